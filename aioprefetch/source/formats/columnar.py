"""The common parts of Parquet and Lance: the wanted columns, unknown fields, and row numbers."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.ranges import Range
from aioprefetch.source.columns.casts import plain_type
from aioprefetch.source.columns.schemas import match_names
from aioprefetch.source.formats.corruption import warn_of_unknown
from aioprefetch.source.formats.record_format import FoundBatch, Wanted


@dataclass(frozen=True, slots=True)
class Unknown:
    """The unknown part of a type: the whole type (without ``kind``), or some fields of a struct, a list or a map.

    ``parts`` are named like the fields of a struct; the name is empty for the items of a list and the values of a map.
    """

    kind: Literal["struct", "list", "map"] | None = None
    parts: tuple[tuple[str, Unknown], ...] = ()

    def names(self, column: str) -> list[str]:
        """The names of all unknown fields, as ``c.a``, ``c[].a`` or ``c.value.a``."""
        if self.kind is None:
            return [column]
        prefix = {"struct": f"{column}.", "list": f"{column}[]", "map": f"{column}.value"}[self.kind]
        return [inner_name for name, part in self.parts for inner_name in part.names(prefix + name)]

    def of(self, value: Any) -> Any:
        """The unknown part of a Python value of Arrow; ``None`` if no part is unknown."""
        if self.kind is None or value is None:
            return value
        if self.kind == "struct":
            unknown = {name: part.of(value[name]) for name, part in self.parts}
            return {name: inner for name, inner in unknown.items() if inner is not None} or None
        part = self.parts[0][1]
        if self.kind == "list":
            items = [part.of(inner) for inner in value]
            return items if any(inner is not None for inner in items) else None
        return [
            (key, inner) for key, inner in ((key, part.of(item)) for key, item in value) if inner is not None
        ] or None


def unknown_of(file_type: pa.DataType, schema_type: pa.DataType, exact_case: bool = False) -> Unknown | None:
    """The part of a file's type that the schema's type lacks, or ``None``. Names match as in ``conform``."""
    return _unknown_of(plain_type(file_type), plain_type(schema_type), exact_case)


def _unknown_of(file_type: pa.DataType, schema_type: pa.DataType, exact_case: bool) -> Unknown | None:
    types = pa.types
    if types.is_struct(file_type) and types.is_struct(schema_type):
        return _of_struct(file_type, schema_type, exact_case)
    if types.is_list(file_type) and types.is_list(schema_type):
        part = _unknown_of(file_type.value_type, schema_type.value_type, exact_case)
        return None if part is None else Unknown("list", (("", part),))
    if types.is_map(file_type) and types.is_map(schema_type):
        part = _unknown_of(file_type.item_type, schema_type.item_type, exact_case)
        return None if part is None else Unknown("map", (("", part),))
    return None


def _of_struct(file_type: pa.StructType, schema_type: pa.StructType, exact_case: bool) -> Unknown | None:
    names = [field.name for field in file_type]
    fields = list(schema_type)
    places = match_names(names, [field.name for field in fields], exact_case=exact_case)
    kinds = {place: field.type for place, field in zip(places, fields, strict=True) if place is not None}
    parts = []
    for place, field in enumerate(file_type):
        part = Unknown() if place not in kinds else _unknown_of(field.type, kinds[place], exact_case)
        if part is not None:
            parts.append((field.name, part))
    return Unknown("struct", tuple(parts)) if parts else None


# The number of batches that a scan of one item decodes ahead, while the window decodes other items.
READAHEAD_BATCHES = 2
# The shares (1 / n) of ``bytes_in_flight`` for the pages of one item, and for one of its batches.
_BUDGET_SHARE = 2
_BATCH_SHARE = 16


def budget_bytes(want: Wanted) -> int:
    """The memory for the pages of one item, in bytes."""
    return max(1, want.read.bytes_in_flight // _BUDGET_SHARE)


def batch_bytes(want: Wanted) -> int:
    """The memory for a batch of wide rows, in bytes: an engine holds several, and each as it is and as it is sent."""
    return max(1, want.read.bytes_in_flight // _BATCH_SHARE)


class WantedColumns:
    """The columns of a file to read: the wanted ones, and all others if the policy for unknown fields needs them.

    ``Unsupported`` names unknown fields under ``unknown_fields="fail"``, also those within columns.
    """

    def __init__(self, file_schema: pa.Schema, want: Wanted, *, path: str) -> None:
        names, policy = file_schema.names, want.options.unknown_fields
        places = match_names(names, want.schema.names, exact_case=want.options.exact_case)
        self.wanted = list(dict.fromkeys(names[place] for place in places if place is not None))
        self._unknown = {} if want.options.drops_unknown else _unknown_columns(file_schema, want)
        unknown = [name for column, part in self._unknown.items() for name in part.names(column)]
        if policy == "fail" and unknown:
            raise Unsupported(
                f"the file has {', '.join(map(repr, unknown))}, which the schema does not have: add it, or set"
                " unknown_fields to ignore or rescue",
                operation="read_items",
                path=path,
                context={"field": unknown[0]},
            )
        if policy == "warn" and unknown:
            warn_of_unknown(unknown, path=path)
            self._unknown = {}
        self.read = list(dict.fromkeys([*self.wanted, *self._unknown]))

    def found(self, batch: pa.RecordBatch, offsets: pa.Int64Array | None) -> FoundBatch:
        """A batch of the columns in ``read`` as a ``FoundBatch``."""
        if not self._unknown:
            return FoundBatch(batch, offsets)
        columns = {name: batch.column(batch.schema.names.index(name)).to_pylist() for name in self._unknown}
        texts = [self._rescued(values) for values in zip(*columns.values(), strict=True)]
        return FoundBatch(batch.select(self.wanted), offsets, pa.array(texts, pa.string()))

    def _rescued(self, values: Sequence[Any]) -> str | None:
        rescued = {name: part.of(value) for (name, part), value in zip(self._unknown.items(), values, strict=True)}
        fields = {name: _as_json(value) for name, value in rescued.items() if value is not None}
        return json.dumps(fields, default=str, allow_nan=False) if fields else None


def _unknown_columns(file_schema: pa.Schema, want: Wanted) -> dict[str, Unknown]:
    schema, exact_case = want.known_fields, want.options.exact_case
    places = match_names(file_schema.names, schema.names, exact_case=exact_case)
    kinds = {place: field.type for place, field in zip(places, schema, strict=True) if place is not None}
    unknown = {}
    for place, field in enumerate(file_schema):
        part = unknown_of(field.type, kinds[place], exact_case) if place in kinds else Unknown()
        if part is not None:
            unknown[field.name] = part
    return unknown


def _as_json(value: Any) -> Any:
    """A value for JSON, with texts for values that JSON lacks: base64 for bytes, ``NaN`` and ``Infinity`` by name."""
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


class RowCounter:
    """Counts out the row numbers of ranges."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._remaining = [span for span in ranges if span[0] < span[1]][::-1]

    def take(self, count: int) -> pa.Int64Array:
        """The next ``count`` numbers."""
        parts = []
        while count and self._remaining:
            start, stop = self._remaining.pop()
            end = min(stop, start + count)
            parts.append(np.arange(start, end, dtype=np.int64))
            count -= end - start
            if end < stop:
                self._remaining.append((end, stop))
        return pa.array(np.concatenate(parts) if parts else np.empty(0, np.int64))
