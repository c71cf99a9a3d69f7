"""Objects over HTTP: ``RangeApp(operator)`` is an ASGI application that serves them whole or by ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.asgi.app import RangeApp

__all__ = ["RangeApp"]

load_at_first_use(__name__, {"app": ("RangeApp",)})
