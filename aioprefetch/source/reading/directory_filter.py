"""Filters on what the directories of a key tell: files none of whose records can match are not read, nor planned."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.columns.directories import Directories, directories_of, directory_fields, directory_value
from aioprefetch.source.columns.row_filter import RowFilter, normalized

# Answers of so many different directories are kept.
_RESPONSES_MAX = 10_000


class DirectoryFilter:
    """The clauses of ``filters`` on fields of ``schema`` that directories tell. Other clauses drop nothing."""

    def __init__(self, filters: Any, schema: pa.Schema, time_zone: str | None) -> None:
        self._schema = schema
        self._time_zone = time_zone
        checked = normalized(filters, schema, may_miss=True, time_zone=time_zone)
        self._alternatives = None if checked is None or isinstance(checked, pc.Expression) else checked
        self._responses: dict[Directories, bool] = {}

    def may_match(self, key: str) -> bool:
        """Whether a file may have records that match. A directory whose value does not fit is for who reads it."""
        directories = directories_of(key)
        if self._alternatives is None or not directories:
            return True
        response = self._responses.get(directories)
        if response is None:
            if len(self._responses) >= _RESPONSES_MAX:
                self._responses.clear()
            response = self._responses[directories] = self._may_match(directories, key)
        return response

    def _may_match(self, directories: Directories, key: str) -> bool:
        texts = dict(directories)
        told = directory_fields(list(texts), self._schema)
        alternatives = [[clause for clause in one if clause[0] in told] for one in self._alternatives or ()]
        if not all(alternatives):
            return True
        fields = [self._schema.field(name).with_nullable(True) for name in told]
        try:
            values = [
                directory_value(texts[told[field.name]], field, key=key, time_zone=self._time_zone) for field in fields
            ]
        except UntrustedMetadata:
            return True
        row = pa.RecordBatch.from_arrays([pa.repeat(value, 1) for value in values], schema=pa.schema(fields))
        return bool(RowFilter(alternatives, row.schema, time_zone=self._time_zone).apply(row).num_rows)
