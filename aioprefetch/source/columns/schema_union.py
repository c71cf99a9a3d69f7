"""The schema of several files as one: the union of their fields, each with a type that holds all their values. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.columns.casts import is_number
from aioprefetch.source.columns.plain_types import INSTANT, plain_schema

_DECIMAL128_DIGITS = 38
# Decimal digits that hold every integer of a width in bits.
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
# A double holds every integer of this many bits.
_DOUBLE_INTEGER_BITS = 32


def united(schemas: Sequence[tuple[str, pa.Schema]], *, is_lenient: bool) -> pa.Schema:
    """The schema of files, given with their paths: plain types, all nullable, fields in the order of their first file.

    A field of different types gets a type that holds both without loss. If there is none it becomes text
    (``is_lenient``: the values are text in the files), otherwise ``UntrustedMetadata`` names field and files.
    """
    fields: dict[str, tuple[pa.DataType, str]] = {}
    for path, schema in schemas:
        for field in plain_schema(schema):
            earlier = fields.get(field.name)
            if earlier is None:
                fields[field.name] = field.type, path
                continue
            both = wider(earlier[0], field.type, is_lenient=is_lenient)
            if both is None:
                raise UntrustedMetadata(
                    f"column {field.name!r} is {earlier[0]} in {earlier[1]!r} and {field.type} in {path!r}: give the "
                    "schema that shall be read",
                    operation="infer_schema",
                    path=path,
                    context={"column": field.name},
                )
            fields[field.name] = both, earlier[1]
    return pa.schema([pa.field(name, kind) for name, (kind, _) in fields.items()])


def with_texts_for_nulls(schema: pa.Schema) -> pa.Schema:
    """The schema with strings for fields without any value, and for structs without fields."""
    return pa.schema([field.with_type(_text_for_null(field.type)) for field in schema])


def _text_for_null(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_null(kind) or (types.is_struct(kind) and not kind.num_fields):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_text_for_null(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_text_for_null(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _text_for_null(kind.item_type))
    return kind


def wider(kind: pa.DataType, other: pa.DataType, *, is_lenient: bool) -> pa.DataType | None:
    """The type that holds values of both; if there is none, text, or ``None`` without ``is_lenient``."""
    common = _wider(kind, other, is_lenient)
    return pa.string() if common is None and is_lenient else common


def _wider(kind: pa.DataType, other: pa.DataType, is_lenient: bool) -> pa.DataType | None:
    types = pa.types
    if kind == other or types.is_null(other):
        return kind
    if types.is_null(kind):
        return other
    if is_number(kind) and is_number(other):
        return _wider_number(kind, other, is_lenient)
    if types.is_timestamp(kind) and types.is_timestamp(other):
        return INSTANT
    for date, time in ((kind, other), (other, kind)):
        if types.is_date(date) and types.is_timestamp(time):
            return time
    if types.is_struct(kind) and types.is_struct(other):
        return _wider_struct(kind, other, is_lenient)
    if types.is_list(kind) and types.is_list(other):
        value = wider(kind.value_type, other.value_type, is_lenient=is_lenient)
        return None if value is None else pa.list_(pa.field("element", value))
    if types.is_map(kind) and types.is_map(other):
        key = wider(kind.key_type, other.key_type, is_lenient=is_lenient)
        item = wider(kind.item_type, other.item_type, is_lenient=is_lenient)
        return None if key is None or item is None else pa.map_(key, item)
    return None


def _wider_struct(kind: pa.StructType, other: pa.StructType, is_lenient: bool) -> pa.DataType | None:
    fields = {field.name: field.type for field in kind}
    for field in other:
        both = wider(fields.get(field.name, field.type), field.type, is_lenient=is_lenient)
        if both is None:
            return None
        fields[field.name] = both
    return pa.struct(list(fields.items()))


def _wider_number(kind: pa.DataType, other: pa.DataType, is_lenient: bool) -> pa.DataType | None:
    types = pa.types
    if types.is_integer(kind) and types.is_integer(other):
        return max(kind, other, key=_bits)
    if types.is_decimal(kind) or types.is_decimal(other):
        if types.is_floating(kind) or types.is_floating(other):
            return pa.float64() if is_lenient else None
        scale = max(_scale(kind), _scale(other))
        digits = max(_digits(kind) - _scale(kind), _digits(other) - _scale(other)) + scale
        return pa.decimal128(digits, scale) if digits <= _DECIMAL128_DIGITS else None
    integers = [number for number in (kind, other) if types.is_integer(number)]
    if not is_lenient and integers and integers[0].bit_width > _DOUBLE_INTEGER_BITS:
        return None
    return pa.float64()


def _bits(kind: pa.DataType) -> int:
    bits: int = kind.bit_width
    return bits


def _digits(kind: pa.DataType) -> int:
    digits: int = kind.precision if pa.types.is_decimal(kind) else _DIGITS[kind.bit_width]
    return digits


def _scale(kind: pa.DataType) -> int:
    scale: int = kind.scale if pa.types.is_decimal(kind) else 0
    return scale
