"""pyarrow's file system over aioprefetch: datasets, tables and files of Arrow, read and written through an operator.

``ap.arrow.filesystem(op)`` goes wherever pyarrow, pandas, dask or DuckDB take ``filesystem=``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.arrow.handler import OperatorHandler, filesystem

__all__ = ["OperatorHandler", "filesystem"]

load_at_first_use(__name__, {"handler": ("OperatorHandler", "filesystem")}, extra="arrow")
