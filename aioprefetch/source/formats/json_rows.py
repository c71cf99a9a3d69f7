"""Reads JSON lines one by one, by the standard library: slow, but with exact errors and positions.

It reads what pyarrow refuses (any value into a string column, maps, base64, duplicate keys, NaN), and collects the
fields that the schema lacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch.errors import Error
from aioprefetch.source.columns.zones import zone_of
from aioprefetch.source.formats.conversion import (
    Integer,
    NotConvertible,
    Number,
    first_unfit,
    from_json,
    is_unicode,
    json_text,
)
from aioprefetch.source.formats.corruption import UNDECODABLE, corrupt, shown, unknown_field
from aioprefetch.source.formats.lines import LineEnds, Lines
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import starts_of

# Python refuses integers of more digits.
_INTEGER_CHARS_MAX = 4000

# Recursive functions walk values with a few calls for each level, far below Python's recursion limit.
DEPTH_MAX = 200


def _integer(text: str) -> Integer | Number:
    return Integer(text) if len(text) <= _INTEGER_CHARS_MAX else Number(text)


# An unclosed string matches to the end, so that its quotes do not start further searches.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_OPENING, _CLOSING = np.frombuffer(b"{[", np.uint8), np.frombuffer(b"}]", np.uint8)

_HALF_PAIR = "an unknown field contains an unpaired surrogate"

_DECODER = json.JSONDecoder(parse_float=Number, parse_int=_integer)


@dataclass(slots=True)
class _Columns:
    values: dict[str, list[Any]]
    unknown: list[str | None] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


def read_rows(
    lines: Lines, ends: LineEnds, want: Wanted, path: str, unknown_names: set[str] | None = None
) -> FoundBatch:
    """The records of whole lines. Blank lines are skipped. Raises for the first invalid record.

    The names of unknown fields are added to ``unknown_names``, if given.
    """
    policy = want.options.unknown_fields
    fields = {field.name: field.type for field in want.schema}
    known_fields = {field.name: field.type for field in want.known_fields}
    columns = _Columns({name: [] for name in fields})
    zone = zone_of(want.options)
    for start, stop in ends.spans(lines.data):
        text = lines.data[start:stop].strip(b" \t\r\n")
        if not text:
            continue
        try:
            record = parse_record(text)
            for name, kind in fields.items():
                columns.values[name].append(from_json(record.get(name), kind, name, zone))
        except Error as error:
            error.add_context(path=path)
            raise
        except ValueError as error:
            raise corrupt(f"no JSON object: {error}", path=path, offset=lines.place(start)) from error
        except NotConvertible as error:
            raise unfit(error, path=path, offset=lines.place(start)) from error
        columns.starts.append(start)
        if not want.options.drops_unknown:
            unknown = unknown_of(record, known_fields)
            if unknown and policy == "fail":
                raise unknown_field(_first_name(unknown, known_fields), path=path, offset=lines.place(start))
            if unknown_names is not None:
                unknown_names.update(_first_name({name: inner}, known_fields) for name, inner in unknown.items())
            columns.unknown.append(json_text(unknown) if unknown else None)
            if unknown and not is_unicode(columns.unknown[-1] or ""):
                raise corrupt(_HALF_PAIR, path=path, offset=lines.place(start))
    try:
        return _batch(lines, columns, want)
    except UNDECODABLE as error:
        first_unfit_value = _first_unfit(columns, want)
        if first_unfit_value is None:
            raise
        start, misfit = first_unfit_value
        raise unfit(misfit, path=path, offset=lines.place(start)) from error


def _first_unfit(columns: _Columns, want: Wanted) -> tuple[int, NotConvertible] | None:
    """The start of the first record with a value that Arrow refuses for its column, and that value."""
    candidates = [(first_unfit(columns.values[field.name], field.type), field) for field in want.schema]
    places = [(place, field) for place, field in candidates if place is not None]
    if not places:
        return None
    place, field = min(places, key=lambda each: each[0])
    return columns.starts[place], NotConvertible(field.name, columns.values[field.name][place], field.type)


def _batch(lines: Lines, columns: _Columns, want: Wanted) -> FoundBatch:
    arrays = [pa.array(columns.values[field.name], field.type) for field in want.schema]
    if arrays:
        batch = pa.RecordBatch.from_arrays(arrays, names=want.schema.names)
    else:
        batch = pa.RecordBatch.from_arrays([pa.nulls(len(columns.starts))], names=[""]).select([])
    return FoundBatch(
        batch,
        starts_of(lines, columns.starts) if want.offsets else None,
        pa.array(columns.unknown, pa.string()) if want.options.unknown_fields == "rescue" else None,
    )


def parse_record(text: bytes) -> dict[str, Any]:
    """One line as an object, nested at most ``DEPTH_MAX`` deep. ``ValueError`` describes an invalid line."""
    if text.count(b"{") + text.count(b"[") > DEPTH_MAX and depth_of(text) > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    record = _DECODER.decode(text.decode())
    if not isinstance(record, dict):
        raise ValueError(f"a record must be an object, not {shown(record)}")
    return record


def depth_of(text: bytes) -> int:
    """The depth of nesting of a JSON text, without parsing it."""
    view = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    steps = np.isin(view, _OPENING).astype(np.int8) - np.isin(view, _CLOSING).astype(np.int8)
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


def unfit(error: NotConvertible, *, path: str, offset: int) -> Exception:
    """The error for a value that does not fit the schema."""
    return corrupt(
        f"a value of the column {error.name!r} is not a valid {error.kind}: {shown(error.value)!r}",
        path=path,
        offset=offset,
        column=error.name,
        value=shown(error.value),
    )


def unknown_of(record: Mapping[str, Any], fields: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """The part of an object that the fields lack, nested objects included."""
    unknown: dict[str, Any] = {}
    for name, value in record.items():
        inner = value if name not in fields else _unknown_within(value, fields[name])
        if name not in fields or inner:
            unknown[name] = inner
    return unknown


def _unknown_within(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return unknown_of(value, {part.name: part.type for part in kind})
    if isinstance(value, list) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        inner = [_unknown_within(part, kind.value_type) for part in value]
        return inner if any(inner) else None
    return None


def _first_name(unknown: Mapping[str, Any], fields: Mapping[str, pa.DataType]) -> str:
    name, inner = next(iter(unknown.items()))
    kind = fields.get(name)
    if kind is None:
        return name
    suffix = ""
    while isinstance(inner, list):
        inner, kind, suffix = next(item for item in inner if item), kind.value_type, suffix + "[]"
    return f"{name}{suffix}." + _first_name(inner, {item.name: item.type for item in kind})
