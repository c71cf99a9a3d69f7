"""Common parts of Parquet and Lance: fields by name, row numbers, unknown fields as text."""

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
from aioprefetch.source.columns.names import match_names
from aioprefetch.source.columns.plain_types import plain_type
from aioprefetch.source.formats.corruption import warn_of_unknown
from aioprefetch.source.formats.record_format import FoundBatch, Wanted


@dataclass(frozen=True, slots=True)
class Unknown:
    """The unknown part of a type: all of it (no ``kind``), or some fields within a struct, a list or a map.

    ``parts`` have the names of a struct's fields, and an empty name in a list or in the values of a map.
    """

    kind: Literal["struct", "list", "map"] | None = None
    parts: tuple[tuple[str, Unknown], ...] = ()

    def names(self, column: str) -> list[str]:
        """The names of all unknown fields, as ``c.a``, ``c[].a`` or ``c.value.a``."""
        if self.kind is None:
            return [column]
        prefix = {"struct": f"{column}.", "list": f"{column}[]", "map": f"{column}.value"}[self.kind]
        return [found for name, part in self.parts for found in part.names(prefix + name)]

    def of(self, value: Any) -> Any:
        """The unknown part of a value as Arrow gives it; ``None`` if there is none."""
        if self.kind is None or value is None:
            return value
        if self.kind == "struct":
            found = {name: part.of(value[name]) for name, part in self.parts}
            return {name: one for name, one in found.items() if one is not None} or None
        part = self.parts[0][1]
        if self.kind == "list":
            items = [part.of(one) for one in value]
            return items if any(one is not None for one in items) else None
        return [(key, one) for key, one in ((key, part.of(item)) for key, item in value) if one is not None] or None


def unknown_of(found: pa.DataType, known: pa.DataType) -> Unknown | None:
    """The part of a file's type that the schema's type lacks; ``None`` if none. Names match as in ``conform``."""
    return _unknown_of(plain_type(found), plain_type(known))


def _unknown_of(found: pa.DataType, known: pa.DataType) -> Unknown | None:
    types = pa.types
    if types.is_struct(found) and types.is_struct(known):
        return _of_struct(found, known)
    if types.is_list(found) and types.is_list(known):
        part = _unknown_of(found.value_type, known.value_type)
        return None if part is None else Unknown("list", (("", part),))
    if types.is_map(found) and types.is_map(known):
        part = _unknown_of(found.item_type, known.item_type)
        return None if part is None else Unknown("map", (("", part),))
    return None


def _of_struct(found: pa.StructType, known: pa.StructType) -> Unknown | None:
    names = [field.name for field in found]
    fields = list(known)
    places = match_names(names, [field.name for field in fields])
    kinds = {place: field.type for place, field in zip(places, fields, strict=True) if place is not None}
    parts = []
    for place, field in enumerate(found):
        part = Unknown() if place not in kinds else _unknown_of(field.type, kinds[place])
        if part is not None:
            parts.append((field.name, part))
    return Unknown("struct", tuple(parts)) if parts else None


# Batches that a scan of one item decodes ahead, while the window decodes other items.
READAHEAD_BATCHES = 2
# The share (1 / n) of ``bytes_in_flight`` for the pages of one item.
_BUDGET_SHARE = 2


def budget_bytes(want: Wanted) -> int:
    """The memory for the pages of one item."""
    return max(1, want.read.bytes_in_flight // _BUDGET_SHARE)


class WantedColumns:
    """The columns to read of a file: the wanted ones, and all others where unknown fields matter.

    ``Unsupported`` names unknown fields under ``unknown_fields="fail"``, also those within columns.
    """

    def __init__(self, found: pa.Schema, want: Wanted, *, path: str) -> None:
        names, policy = found.names, want.options.unknown_fields
        places = match_names(names, want.schema.names)
        self.wanted = list(dict.fromkeys(names[place] for place in places if place is not None))
        self._unknown = {} if want.options.drops_unknown else _unknown_columns(found, want.known_fields)
        unknown = [name for column, one in self._unknown.items() for name in one.names(column)]
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
        """A batch of the columns ``read`` as a ``FoundBatch``."""
        if not self._unknown:
            return FoundBatch(batch, offsets)
        columns = {name: batch.column(batch.schema.names.index(name)).to_pylist() for name in self._unknown}
        texts = [self._rescued(values) for values in zip(*columns.values(), strict=True)]
        return FoundBatch(batch.select(self.wanted), offsets, pa.array(texts, pa.string()))

    def _rescued(self, values: Sequence[Any]) -> str | None:
        found = {name: one.of(value) for (name, one), value in zip(self._unknown.items(), values, strict=True)}
        fields = {name: _as_json(value) for name, value in found.items() if value is not None}
        return json.dumps(fields, default=str, allow_nan=False) if fields else None


def _unknown_columns(found: pa.Schema, known: pa.Schema) -> dict[str, Unknown]:
    places = match_names(found.names, known.names)
    kinds = {place: field.type for place, field in zip(places, known, strict=True) if place is not None}
    unknown = {}
    for place, field in enumerate(found):
        one = unknown_of(field.type, kinds[place]) if place in kinds else Unknown()
        if one is not None:
            unknown[field.name] = one
    return unknown


def _as_json(value: Any) -> Any:
    """A value with texts for values that JSON lacks: base64 of bytes, ``NaN`` and ``Infinity`` by their names."""
    if isinstance(value, dict):
        return {name: _as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


class RowNumbers:
    """Consecutive numbers of rows within ranges."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._left = [one for one in ranges if one[0] < one[1]][::-1]

    def take(self, count: int) -> pa.Int64Array:
        """The next ``count`` numbers."""
        parts = []
        while count and self._left:
            start, stop = self._left.pop()
            end = min(stop, start + count)
            parts.append(np.arange(start, end, dtype=np.int64))
            count -= end - start
            if end < stop:
                self._left.append((end, stop))
        return pa.array(np.concatenate(parts) if parts else np.empty(0, np.int64))
