"""Casts of plain arrays that lose nothing that matters.

Integers, decimals and dates are checked value by value; a double becomes a decimal only if the decimal is exact.
Timestamps are cut to microseconds towards the past, as Spark does; a timestamp without a zone is in UTC. A double may
be rounded to a float, but not overflow. A cast that would have to guess (the unit of a number as a time, the truth of a
2) is refused.

Decimals of 128 bits are cast by way of 256 bits: in 128 bits pyarrow wraps values that are too large.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS_MAX = 76
_DECIMAL128_DIGITS = 38
# The digits of the largest integer of 64 bits, for which pyarrow always requires room.
_INTEGER_DIGITS = 20
_NUMBER = re.compile(r"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
# Texts of which pyarrow might make more than 76 digits.
_LONG = r".{61}|[eE]\+?[0-9]{2}"


def in_256_bits(kind: pa.DataType) -> pa.DataType:
    """The type with decimals of 256 bits, also within structs and lists, so that a value too large fails later."""
    if pa.types.is_decimal128(kind):
        return pa.decimal256(_DIGITS_MAX, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(in_256_bits(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(in_256_bits(kind.value_type)))
    return kind


def to_decimal(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Numbers or texts as decimals, value by value. ``ValueError`` (also pyarrow's) for one that does not fit."""
    kind = array.type
    if not pa.types.is_decimal128(wanted):
        return array.cast(wanted)
    if pa.types.is_string(kind):
        return _of_texts(array, wanted)
    if pa.types.is_floating(kind):
        return _of_floats(array, wanted)
    if pa.types.is_integer(kind) and 0 <= wanted.scale <= _DECIMAL128_DIGITS - _INTEGER_DIGITS:
        return array.cast(pa.decimal128(_DECIMAL128_DIGITS, wanted.scale)).cast(wanted)
    return array.cast(in_256_bits(wanted)).cast(wanted)


def _of_texts(texts: pa.StringArray, wanted: pa.Decimal128Type) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, _LONG)).as_py():
        texts = pa.array([None if text is None else _short(text, wanted) for text in texts.to_pylist()], pa.string())
    return texts.cast(in_256_bits(wanted)).cast(wanted)


def _short(text: str, wanted: pa.Decimal128Type) -> str:
    """A number without leading and trailing zeros."""
    try:
        value = Decimal(text) if _NUMBER.fullmatch(text) else Decimal("NaN")
    except InvalidOperation:
        value = Decimal("NaN")
    if value.is_finite() and not value:
        return "0"
    if not value.is_finite() or value.adjusted() >= wanted.precision - wanted.scale:
        raise ValueError(f"{text[:_DIGITS_MAX]!r} is not a valid {wanted}")
    sign, digits, _ = value.as_tuple()
    significant = "".join(map(str, digits)).strip("0")
    if len(significant) > _DECIMAL128_DIGITS:
        raise ValueError(f"{text[:_DIGITS_MAX]!r} has more digits than {wanted}")
    first = value.adjusted() - len(significant) + 1
    return f"{'-' * sign}{significant}e{first}"


def _of_floats(array: pa.Array, wanted: pa.Decimal128Type) -> pa.Array:
    converted = array.cast(wanted)
    lost = pc.not_equal(to_floating(converted, array.type), array)
    if lost.true_count:
        raise ValueError(f"{array.filter(lost)[0].as_py()!r} is not a valid {wanted}: it would be rounded")
    return converted


def to_floating(decimals: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Decimals as the nearest floating numbers, which pyarrow's own cast misses by one."""
    return decimals.cast(pa.string()).cast(wanted)


_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


class CannotCast(ValueError):
    """The types cannot be cast, or a value does not fit; the text says which."""


def cast_plain(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """``array`` (plain and not nested) as ``wanted``. ``CannotCast`` if the types or a value do not allow it."""
    kind = array.type
    if kind == wanted:
        return array
    if pa.types.is_null(kind):
        return pa.nulls(len(array), wanted)
    try:
        return _cast(array, wanted)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise CannotCast(str(error)) from error


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    kind, types = array.type, pa.types
    if types.is_timestamp(wanted):
        return _timestamp(array, wanted)
    if types.is_duration(wanted) and types.is_duration(kind):
        return _rescaled(array, kind.unit, wanted.unit).view(wanted)
    if types.is_floating(wanted) and types.is_floating(kind):
        return _floating(array, wanted)
    if types.is_floating(wanted) and types.is_decimal(kind):
        return to_floating(array, wanted)
    if types.is_date(wanted) and types.is_timestamp(kind):
        raise CannotCast("a time would lose its hours")
    if not _goes_together(kind, wanted):
        raise CannotCast("")
    return to_decimal(array, wanted) if types.is_decimal(wanted) else array.cast(wanted)


def _goes_together(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast keeps the meaning. Text may become any type, and any type but bytes may become text."""
    types = pa.types
    if types.is_string(kind):
        return True
    if types.is_string(wanted) or types.is_binary(wanted):
        return bool(types.is_string(wanted) or types.is_binary(kind))
    if is_number(kind) and is_number(wanted):
        return True
    pairs = (types.is_date, types.is_time, types.is_boolean)
    return any(check(kind) and check(wanted) for check in pairs)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of the type are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _floating(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    converted = array.cast(wanted)
    if wanted.bit_width < array.type.bit_width:
        lost = pc.and_(pc.is_inf(converted), pc.invert(pc.is_inf(array)))
        if lost.true_count:
            raise CannotCast(f"{array.filter(lost)[0].as_py()!r} is too large for {wanted}")
    return converted


def _timestamp(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind):
        return _rescaled(array, kind.unit, wanted.unit).view(wanted)
    if pa.types.is_string(kind):
        return _parsed(array, wanted)
    if pa.types.is_date(kind):
        return array.cast(pa.timestamp(wanted.unit)).view(wanted)
    raise CannotCast("")


def _parsed(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Text with a zone or without one, then in UTC."""
    has_zone = pc.match_substring_regex(array, r"\d(?:Z|[+-]\d\d(?::?\d\d)?)$")
    # The end of a date looks like an offset, so a zone counts only after a time.
    has_zone = pc.and_(has_zone, pc.match_substring(array, ":"))
    zoned = pc.if_else(has_zone, array, pa.scalar(None, array.type)).cast(pa.timestamp(wanted.unit, "UTC"))
    bare = pc.if_else(has_zone, pa.scalar(None, array.type), array).cast(pa.timestamp(wanted.unit))
    return pc.coalesce(zoned, bare.view(zoned.type)).view(wanted)


def _rescaled(array: pa.Array, unit: str, wanted_unit: str) -> pa.Array:
    """A time in another unit: cut towards the past, checked against overflow. Nulls stay."""
    numbers = array.view(pa.int64())
    if unit == wanted_unit:
        return numbers
    here, there = _UNIT_NS[unit], _UNIT_NS[wanted_unit]
    if here > there:
        return pc.multiply_checked(numbers, pa.scalar(here // there, pa.int64()))
    by = pa.scalar(there // here, pa.int64())
    towards_zero = pc.divide(numbers, by)
    is_later = pc.greater(pc.multiply(towards_zero, by), numbers)  # Times before 1970 are negative.
    return pc.subtract(towards_zero, pc.cast(is_later, pa.int64()))
