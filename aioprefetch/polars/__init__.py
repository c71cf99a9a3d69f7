"""polars over any store: ``scan_parquet(url)`` is a ``polars.LazyFrame`` whose bytes come by our scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.polars.scan_parquet import scan_parquet

__all__ = ["scan_parquet"]

load_at_first_use(__name__, {"scan_parquet": ("scan_parquet",)}, extra="polars")
