"""zarr on any store: ``Store(operator, prefix)`` is a ``zarr.abc.store.Store``, to read and to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.zarr.store import Store

__all__ = ["Store"]

load_at_first_use(__name__, {"store": ("Store",)}, extra="zarr")
