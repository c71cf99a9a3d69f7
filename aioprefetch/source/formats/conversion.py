"""Converts values of JSON or text, and lines of JSON, one by one: slow, but with exact errors and positions.

Callers try pyarrow's conversions first. The results agree if both succeed. Rows of JSON may have what pyarrow refuses
(any value into a string column, maps, base64, duplicate keys, NaN), and fields that the schema lacks are collected.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch.errors import ConfigInvalid, Error, excerpt
from aioprefetch.source.columns.casts import OFFSET_MAX, UNIT_NS, zone_of
from aioprefetch.source.differences import warn_of_difference
from aioprefetch.source.formats.corruption import UNDECODABLE, corrupt, shown, unknown_field
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import LineEnds, Lines, starts_of

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})", re.ASCII)
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?)?\s*(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?",
    re.ASCII,
)
_FLOATS = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf, "infinity": math.inf, "-infinity": -math.inf}
# Numbers that JSON lacks, as Spark writes them.
_JSON_FLOATS = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
# Formats in ``struct`` of floating-point numbers with fewer than 64 bits.
_PACKED = {16: "<e", 32: "<f"}
_BOOLEANS = {"true": True, "false": False}


class NotConvertible(Exception):
    """A value that its column cannot hold. ``name`` is the column with the path of fields within it."""

    def __init__(self, name: str, value: object, kind: pa.DataType) -> None:
        super().__init__(f"{excerpt(repr(value), 80)} in {name!r} is not a valid {kind}")
        self.name = name
        self.value = value
        self.kind = kind


class Number(float):
    """A JSON number with a fraction or an exponent, which keeps its text."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        """Parse ``text``, a number of JSON, and keep it."""
        number = super().__new__(cls, text)
        number.text = text
        return number


class Integer(int):
    """A whole JSON number, which keeps its text because ``-0`` differs from ``0``."""

    text: str

    def __new__(cls, text: str) -> Integer:
        """Parse ``text``, a number of JSON, and keep it."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def from_text(text: str, kind: pa.DataType, name: str, zone: tzinfo = UTC) -> Any:
    """A CSV field as a Python value for a column of ``kind``. ``zone`` applies to times without an offset.

    ``NotConvertible`` for a value that does not fit.
    """
    types = pa.types
    if _is_text(kind):
        return text
    if types.is_binary(kind) or types.is_large_binary(kind):
        return text.encode()
    stripped = text.strip()
    if types.is_integer(kind):
        if _INTEGER.fullmatch(stripped):
            return _integer(int(stripped), kind, name)
    elif types.is_floating(kind):
        number = _float(stripped)
        if number is not None:
            return _in_range(number, kind, name)
    elif types.is_boolean(kind):
        if stripped.lower() in _BOOLEANS:
            return _BOOLEANS[stripped.lower()]
    elif types.is_decimal(kind):
        return _decimal(stripped, kind, name)
    elif types.is_date(kind):
        return _date(stripped, kind, name)
    elif types.is_timestamp(kind):
        return _timestamp(stripped, kind, name, zone)
    else:
        raise ConfigInvalid(f"the column {name!r} cannot be a {kind} in this format", operation="read_items")
    raise NotConvertible(name, text, kind)


def from_json(value: Any, kind: pa.DataType, name: str, zone: tzinfo = UTC) -> Any:
    """A JSON value as a Python value for a column of ``kind``. ``zone`` and errors as for ``from_text``."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        if isinstance(value, dict):
            return {part.name: from_json(value.get(part.name), part.type, f"{name}.{part.name}", zone) for part in kind}
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        if isinstance(value, list):
            return [from_json(part, kind.value_type, f"{name}[]", zone) for part in value]
    elif types.is_map(kind):
        if isinstance(value, dict):
            if not _is_text(kind.key_type):
                raise ConfigInvalid(
                    f"the column {name!r} cannot be a {kind}: keys of JSON are texts", operation="read_items"
                )
            return [
                (_text(key, kind.key_type, name), from_json(part, kind.item_type, f"{name}.{key}", zone))
                for key, part in value.items()
            ]
    elif _is_text(kind):
        return _text(value, kind, name)
    elif types.is_boolean(kind):
        if isinstance(value, bool):
            return value
    elif isinstance(value, bool):
        pass
    elif types.is_integer(kind):
        if isinstance(value, int):
            return _integer(value, kind, name)
    elif types.is_floating(kind):
        if isinstance(value, (int, float)):
            return _in_range(float(value.text) if isinstance(value, Integer) else value, kind, name)
        if isinstance(value, str) and value in _JSON_FLOATS:
            return _JSON_FLOATS[value]
    elif types.is_decimal(kind):
        if isinstance(value, (int, float, str)):
            return _decimal(value.text if isinstance(value, Number) else str(value), kind, name)
    elif isinstance(value, str):
        return _from_json_text(value, kind, name, zone)
    raise NotConvertible(name, value, kind)


def _from_json_text(value: str, kind: pa.DataType, name: str, zone: tzinfo) -> Any:
    types = pa.types
    if types.is_date(kind):
        return _date(value, kind, name)
    if types.is_timestamp(kind):
        return _timestamp(value, kind, name, zone)
    if types.is_binary(kind) or types.is_large_binary(kind):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error:
            raise NotConvertible(name, value, kind) from None
    raise ConfigInvalid(f"the column {name!r} cannot be a {kind} in this format", operation="read_items")


class Repeated(dict[str, Any]):
    """A JSON object in which names are repeated: the last value counts, and its text has all of them."""

    pairs: list[tuple[str, Any]]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        names = Repeated(names)
        names.pairs = pairs
    return names


def json_text(value: Any) -> str:
    """A JSON value as text, with numbers as they were written. It is nested at most as deep as ``parse_record`` allows.

    NaN and infinities, which JSON lacks, become strings within objects and lists.
    """
    if isinstance(value, (Number, Integer)):
        return value.text
    if isinstance(value, dict):
        pairs = value.pairs if isinstance(value, Repeated) else value.items()
        return "{" + ",".join([f"{json_text(name)}:{_inner_text(item)}" for name, item in pairs]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_inner_text(item) for item in value]) + "]"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _inner_text(value: Any) -> str:
    text = json_text(value)
    return f'"{text}"' if text in ("NaN", "Infinity", "-Infinity") else text


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded as UTF-8. JSON can escape unpaired surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: Any, kind: pa.DataType, name: str) -> str:
    """A JSON value for a string column. Any value is valid, as in Spark."""
    if isinstance(value, (dict, list)):
        warn_of_difference("objects")
    text = value if isinstance(value, str) else json_text(value)
    if not is_unicode(text):
        raise NotConvertible(name, value, kind)
    return text


def first_unfit(values: Sequence[Any], kind: pa.DataType) -> int | None:
    """The index of the first value that Arrow cannot put into an array of ``kind``; ``None`` if all values fit."""
    for place, value in enumerate(values):
        try:
            pa.array([value], kind)
        except UNDECODABLE:
            return place
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _integer(value: int, kind: pa.DataType, name: str) -> int:
    signed = int(pa.types.is_signed_integer(kind))
    bits = kind.bit_width - signed
    if not -(signed << bits) <= value < 1 << bits:
        raise NotConvertible(name, value, kind)
    return value


def _float(text: str) -> float | None:
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return _FLOATS.get(text.lower())


def _in_range(value: float, kind: pa.DataType, name: str) -> float:
    """A number as a float. ``NotConvertible`` if a finite number would become infinite."""
    try:
        number = float(value)
        if kind.bit_width in _PACKED:
            struct.pack(_PACKED[kind.bit_width], number)
        return number
    except OverflowError:
        raise NotConvertible(name, value, kind) from None


def _decimal(text: str, kind: pa.DataType, name: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise NotConvertible(name, text, kind) from None
    digits, exponent = value.as_tuple().digits, value.as_tuple().exponent
    if not isinstance(exponent, int):  # NaN, Infinity
        raise NotConvertible(name, text, kind)
    significant = len("".join(map(str, digits)).rstrip("0"))
    exponent += len(digits) - significant
    if significant and (-exponent > kind.scale or significant + exponent > kind.precision - kind.scale):
        raise NotConvertible(name, text, kind)
    # Trailing zeros count for Arrow.
    return Decimal((value.is_signed(), digits[:significant] or (0,), exponent if significant else 0))


def _date(text: str, kind: pa.DataType, name: str) -> date:
    match = _DATE.fullmatch(text)
    if match is not None:
        try:
            return date(*map(int, match.groups()))
        except ValueError:
            pass
    raise NotConvertible(name, text, kind)


def _timestamp(text: str, kind: pa.DataType, name: str, zone: tzinfo) -> int:
    """A timestamp in units of ``kind``. For a type with a zone, a text without an offset is a time in ``zone``.

    An integer, since an instant at the ends of the calendar may lie in another year than any ``datetime``.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None or (match[8] and kind.tz is None):
        raise NotConvertible(name, text, kind)
    year, month, day, hour, minute, second = (int(digits or 0) for digits in match.groups()[:6])
    offset = _offset(match[8] or "Z")
    if abs(offset) > OFFSET_MAX:
        raise NotConvertible(name, text, kind)
    microsecond = int((match[7] or "0").ljust(6, "0")[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second, microsecond)
    except ValueError:
        raise NotConvertible(name, text, kind) from None
    since = moment - datetime(1970, 1, 1)
    if kind.tz is not None:
        since -= zone.utcoffset(moment) or timedelta() if match[8] is None else offset
    return since // timedelta(microseconds=1) * 1000 // UNIT_NS[kind.unit]


def _offset(text: str) -> timedelta:
    if text == "Z":
        return timedelta()
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0))
    return -offset if text[0] == "-" else offset


# --- rows of JSON -----------------------------------------------------------------------------------------------------

# Python refuses integers of more digits.
_INTEGER_CHARS_MAX = 4000

# Recursive functions walk values with a few calls for each level, far below Python's recursion limit.
DEPTH_MAX = 200


def _json_integer(text: str) -> Integer | Number:
    return Integer(text) if len(text) <= _INTEGER_CHARS_MAX else Number(text)


# An unclosed string matches to the end, so that its quotes do not start further searches.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_OPENING, _CLOSING = np.frombuffer(b"{[", np.uint8), np.frombuffer(b"}]", np.uint8)

_HALF_PAIR = "an unknown field contains an unpaired surrogate"

_DECODER = json.JSONDecoder(parse_float=Number, parse_int=_json_integer, object_pairs_hook=_object)


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
