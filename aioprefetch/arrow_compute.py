"""``pyarrow.compute``, imported when a name of it is first used: it takes 40 ms, and many scans need none of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.compute import Expression as Expression


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("pyarrow.compute"), name)
