"""Columns of files made into those of one schema: names, types, filters and the union of schemas. Pure, on pyarrow."""

from __future__ import annotations

from aioprefetch.source.columns.conform import Conformer, conform
from aioprefetch.source.columns.plain_types import plain_schema
from aioprefetch.source.columns.row_filter import RowFilter
from aioprefetch.source.columns.schema_union import united

__all__ = ["Conformer", "RowFilter", "conform", "plain_schema", "united"]
