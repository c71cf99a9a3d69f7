"""The schema of a sample of JSON lines, by the rules of Spark's inference.

Whole numbers are longs (decimals where they are longer), others doubles, texts strings whatever they look like; what
is of several kinds is a string. What is always null is of the type null, for other files may tell more; an object that
is always empty is a struct without fields. Fields are in the order in which they first come.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from aioprefetch.source.formats.conversion import is_unicode
from aioprefetch.source.formats.corruption import corrupt
from aioprefetch.source.formats.json_rows import parse_record
from aioprefetch.source.formats.lines import LineEnds, Lines

_LONG_MAX = (1 << 63) - 1
_DECIMAL_DIGITS_MAX = 38

_SIMPLE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}

# A kind: the name of a simple one, ``dict`` of fields, or a list of one kind.
_Kind = Any


def infer_json(lines: Lines, ends: LineEnds, path: str) -> pa.Schema:
    """The schema of whole lines. ``UntrustedMetadata`` for what is no JSON object."""
    merged: _Kind = {}
    for start, stop in ends.spans(lines.data):
        text = lines.data[start:stop].strip(b" \t\r\n")
        if text:
            try:
                merged = _merge(merged, _kind(parse_record(text)))
            except ValueError as error:
                raise corrupt(f"no JSON object: {error}", path=path, offset=lines.place(start)) from error
    return pa.schema([(name, _arrow(kind)) for name, kind in merged.items()])


def _kind(value: Any) -> _Kind:
    if isinstance(value, dict):
        wrong = next((name for name in value if not is_unicode(name)), None)
        if wrong is not None:
            raise ValueError(f"the name {wrong!r} has half of a surrogate pair in it, which is no text")
        return {name: _kind(one) for name, one in value.items()}
    if isinstance(value, list):
        inner: _Kind = "null"
        for one in value:
            inner = _merge(inner, _kind(one))
        return [inner]
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if -_LONG_MAX - 1 <= value <= _LONG_MAX:
            return "long"
        digits = len(str(abs(value)))
        return digits if digits <= _DECIMAL_DIGITS_MAX else "double"
    return "double" if isinstance(value, float) else "string"


def _merge(one: _Kind, other: _Kind) -> _Kind:
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        for name, kind in other.items():  # In place: a copy for each record would make many names cost their square.
            one[name] = _merge(one.get(name, "null"), kind)
        return one
    if isinstance(one, list) and isinstance(other, list):
        return [_merge(one[0], other[0])]
    numbers = [kind for kind in (one, other) if kind in ("long", "double") or isinstance(kind, int)]
    if len(numbers) < 2:
        return "string"
    if "double" in numbers:
        return "double"
    return max(kind for kind in numbers if isinstance(kind, int))


def _arrow(kind: _Kind) -> pa.DataType:
    if isinstance(kind, dict):
        return pa.struct([(name, _arrow(one)) for name, one in kind.items()])
    if isinstance(kind, list):
        return pa.list_(_arrow(kind[0]))
    if isinstance(kind, int):
        return pa.decimal128(kind, 0)
    return _SIMPLE[kind]
