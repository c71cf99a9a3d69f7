"""Files under one directory: a confined walk to each file, positioned reads off the loop, atomic writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.services.fs.recipe import Fs

__all__ = ["Fs"]

load_at_first_use(__name__, {"recipe": ("Fs",)})
