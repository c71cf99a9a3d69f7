"""Columns of files made into those of one schema: names, types, filters and the union of schemas. Pure, on pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.source.columns.casts import plain_schema
    from aioprefetch.source.columns.row_filter import RowFilter
    from aioprefetch.source.columns.schemas import Conformer, conform, united

__all__ = ["Conformer", "RowFilter", "conform", "plain_schema", "united"]

load_at_first_use(
    __name__,
    {
        "Conformer": "schemas",
        "conform": "schemas",
        "plain_schema": "casts",
        "RowFilter": "row_filter",
        "united": "schemas",
    },
)
