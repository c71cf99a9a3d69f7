"""Casts to decimals of 128 bits, by way of 256: in 128 pyarrow wraps what is too large and may take it for a value."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS_MAX = 76
_DECIMAL128_DIGITS = 38
# Digits of the largest integer of 64 bits, which pyarrow wants room for whatever the values are.
_INTEGER_DIGITS = 20
_NUMBER = re.compile(r"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
# Texts of which pyarrow might make more than 76 digits.
_LONG = r".{61}|[eE]\+?[0-9]{2}"


def in_256_bits(kind: pa.DataType) -> pa.DataType:
    """The type with room for whatever is read, also within structs and lists: what is too large fails to be cast."""
    if pa.types.is_decimal128(kind):
        return pa.decimal256(_DIGITS_MAX, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(in_256_bits(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(in_256_bits(kind.value_type)))
    return kind


def to_decimal(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Numbers or texts as decimals, value by value. ``ValueError`` (also pyarrow's) for one that does not fit."""
    found = array.type
    if not pa.types.is_decimal128(wanted):
        return array.cast(wanted)
    if pa.types.is_string(found):
        return _of_texts(array, wanted)
    if pa.types.is_floating(found):
        return _of_floats(array, wanted)
    if pa.types.is_integer(found) and 0 <= wanted.scale <= _DECIMAL128_DIGITS - _INTEGER_DIGITS:
        return array.cast(pa.decimal128(_DECIMAL128_DIGITS, wanted.scale)).cast(wanted)
    return array.cast(in_256_bits(wanted)).cast(wanted)


def _of_texts(texts: pa.StringArray, wanted: pa.Decimal128Type) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, _LONG)).as_py():
        texts = pa.array([None if one is None else _short(one, wanted) for one in texts.to_pylist()], pa.string())
    return texts.cast(in_256_bits(wanted)).cast(wanted)


def _short(text: str, wanted: pa.Decimal128Type) -> str:
    """The same number without digits that say nothing."""
    try:
        value = Decimal(text) if _NUMBER.fullmatch(text) else Decimal("NaN")
    except InvalidOperation:
        value = Decimal("NaN")
    if value.is_finite() and not value:
        return "0"
    if not value.is_finite() or value.adjusted() >= wanted.precision - wanted.scale:
        raise ValueError(f"{text[:_DIGITS_MAX]!r} is no {wanted}")
    sign, digits, _ = value.as_tuple()
    significant = "".join(map(str, digits)).strip("0")
    if len(significant) > _DECIMAL128_DIGITS:
        raise ValueError(f"{text[:_DIGITS_MAX]!r} has more digits than {wanted}")
    first = value.adjusted() - len(significant) + 1
    return f"{'-' * sign}{significant}e{first}"


def _of_floats(array: pa.Array, wanted: pa.Decimal128Type) -> pa.Array:
    made = array.cast(wanted)
    lost = pc.not_equal(to_floating(made, array.type), array)
    if lost.true_count:
        raise ValueError(f"{array.filter(lost)[0].as_py()!r} is no {wanted}: it would be rounded")
    return made


def to_floating(decimals: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Decimals as the nearest floating numbers: pyarrow's own cast takes one beside them."""
    return decimals.cast(pa.string()).cast(wanted)
