"""The plain types that engines know, and casts of arrays to them that lose nothing that matters.

A dictionary becomes its values, a large or view type the plain one, an unsigned integer the next larger signed one, and
a timestamp of any unit and zone a timestamp of microseconds.

Integers, decimals and dates are checked value by value; a double becomes a decimal only if the decimal is exact.
Timestamps are cut to microseconds towards the past, as Spark does; a timestamp without a zone is in UTC. A double may
be rounded to a float, but not overflow. A cast that would have to guess (the unit of a number as a time, the truth of a
2) is refused. Decimals of 128 bits are cast by way of 256 bits: in 128 bits pyarrow wraps values that are too large.

Times without a zone in the text of a file are local times in the zone of the options, as Spark and Java read them.
Where clocks are put forward, a time within the gap becomes later by the length of the gap. Where they are put back, a
local time occurs twice, and the earlier of its two instants counts. Both follow from the offset that was in force
before the change, which is ``fold=0``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from functools import cache
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import ConfigInvalid
from aioprefetch.runtime.events import logger
from aioprefetch.source.options import FormatOptions

_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
DECIMAL128_DIGITS = 38
INSTANT = pa.timestamp("us", "UTC")
WALL_CLOCK = pa.timestamp("us")


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a file with plain types, every field nullable, without metadata."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type for values of ``kind``; ``kind`` itself if it has none."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct(
            [(kind.field(place).name, plain_type(kind.field(place).type)) for place in range(kind.num_fields)]
        )
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if is_any_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    return _plain_leaf(kind)


def _plain_leaf(kind: pa.DataType) -> pa.DataType:
    if kind in _SIGNED:
        return _SIGNED[kind]
    if pa.types.is_timestamp(kind):
        return WALL_CLOCK if kind.tz is None else INSTANT
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision, DECIMAL128_DIGITS), kind.scale)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_time(kind):
        return pa.time64("ns")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    return kind


def is_any_list(kind: pa.DataType) -> bool:
    """Whether it is a list type, maps excluded."""
    checks = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(check(kind) for check in checks)


def as_plain(array: pa.Array) -> pa.Array:
    """Values without extensions, dictionaries, large and view types. Units are kept."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return as_plain(array.storage)
    if pa.types.is_dictionary(kind):
        return as_plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return as_plain(pc.run_end_decode(array))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if is_any_list(kind) and not pa.types.is_list(kind):
        return _as_list(array)
    return array


def _as_list(array: pa.Array) -> pa.ListArray:
    """Any list as a list with offsets of 32 bits: values in order, without the nulls' own."""
    kind = pa.list_(array.type.value_field)
    lengths: Sequence[int] = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum_checked(pc.cast(lengths, pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, array.flatten(), type=kind, mask=mask)


# --- decimals and doubles ---------------------------------------------------------------------------------------------

_DIGITS_MAX = 76
# The digits of the largest integer of 64 bits, for which pyarrow always requires room.
_INTEGER_DIGITS = 20
_NUMBER = re.compile(r"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
# Texts that pyarrow might turn into more than 76 digits.
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
    """Numbers or texts as decimals, value by value. ``ValueError`` (also pyarrow's) if one does not fit."""
    kind = array.type
    if not pa.types.is_decimal128(wanted):
        return array.cast(wanted)
    if pa.types.is_string(kind):
        return _of_texts(array, wanted)
    if pa.types.is_floating(kind):
        return _of_floats(array, wanted)
    if pa.types.is_integer(kind) and 0 <= wanted.scale <= DECIMAL128_DIGITS - _INTEGER_DIGITS:
        return array.cast(pa.decimal128(DECIMAL128_DIGITS, wanted.scale)).cast(wanted)
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
    if len(significant) > DECIMAL128_DIGITS:
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


# --- casts ------------------------------------------------------------------------------------------------------------

UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


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
        return parsed_instants(array, pa.timestamp(wanted.unit, "UTC"), UTC).view(wanted)
    if pa.types.is_date(kind):
        return array.cast(pa.timestamp(wanted.unit)).view(wanted)
    raise CannotCast("")


def _rescaled(array: pa.Array, unit: str, wanted_unit: str) -> pa.Array:
    """A time in another unit: cut towards the past, checked against overflow. Nulls stay."""
    numbers = array.view(pa.int64())
    if unit == wanted_unit:
        return numbers
    here, there = UNIT_NS[unit], UNIT_NS[wanted_unit]
    if here > there:
        return pc.multiply_checked(numbers, pa.scalar(here // there, pa.int64()))
    by = pa.scalar(there // here, pa.int64())
    towards_zero = pc.divide(numbers, by)
    is_later = pc.greater(pc.multiply(towards_zero, by), numbers)  # Times before 1970 are negative.
    return pc.subtract(towards_zero, pc.cast(is_later, pa.int64()))


# --- zones ------------------------------------------------------------------------------------------------------------

_UTC_NAMES = ("utc", "gmt", "ut", "z", "zulu", "etc/utc", "etc/gmt", "etc/uct", "uct", "universal", "greenwich")
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d\d))?", re.ASCII)
# Time zone files list transitions up to 2037 and a rule for later ones, which pyarrow may not know; times before
# standard time are not left to pyarrow either.
_LISTED = (datetime(1902, 1, 1), datetime(2037, 1, 1))
# The end of a date looks like an offset, so a zone counts only after a time.
_ZONED = r":.*(?:Z|[+-]\d\d(?::?\d\d)?)\s*$"


# The largest offset of a time that Java knows, and a pattern of larger ones.
OFFSET_MAX = timedelta(hours=18)
_TOO_FAR = r":.*[+-](?:19|2\d|18:?(?:[1-5]\d|0[1-9]))(?::?\d\d)?\s*$"


def has_far_offset(texts: pa.StringArray) -> bool:
    """Whether a time has an offset beyond ``OFFSET_MAX``, which pyarrow would take."""
    return bool(pc.any(pc.match_substring_regex(texts, _TOO_FAR)).as_py())


def zone_named(name: str | None) -> tzinfo:
    """A zone by its name, or by an offset such as ``+02:00``; UTC without one. ``ConfigInvalid`` for an unknown one."""
    if name is None or name.lower() in _UTC_NAMES:
        return UTC
    offset = _OFFSET.fullmatch(name)
    try:
        if offset is not None:
            away = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
            return timezone(-away if offset[1] == "-" else away) if away else UTC
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # An unknown one is a ``KeyError``.
        raise ConfigInvalid(f"there is no time zone {name!r}", operation="configure") from error


def in_zone(time: datetime, name: str | None) -> datetime:
    """A time with a zone: its own, otherwise the named one, or UTC."""
    if time.tzinfo is not None:
        return time
    if name is None:
        warn_of_no_zone()
    return time.replace(tzinfo=zone_named(name))


class _Warning:
    """The advice at the end of the warning about times without a zone."""

    advice = "set time_zone"


def set_zone_advice(advice: str) -> None:
    """Replace the advice in ``warn_of_no_zone``: an engine has its own words for ``time_zone``."""
    _Warning.advice = advice


@cache
def warn_of_no_zone() -> None:
    """Warn, once in a process, that times without a zone are read as UTC because no zone was set."""
    logger.warning("times without a zone are read as UTC, because no zone was set: %s", _Warning.advice)


def zone_of(options: FormatOptions) -> tzinfo:
    """The zone of times without one; ``datetime.UTC`` for all names of it. ``ConfigInvalid`` for an unknown one."""
    return zone_named(options.time_zone)


def note_local(texts: pa.StringArray, options: FormatOptions) -> None:
    """Warn of times without a zone among ``texts`` if the options do not name a zone."""
    if options.time_zone is None and pc.all(pc.match_substring_regex(texts, _ZONED)).as_py() is False:
        warn_of_no_zone()


def local_times(schema: pa.Schema) -> re.Pattern[bytes] | None:
    """A pattern of a time without a zone in JSON, as the value of an instant of ``schema`` or within its fields."""
    names = {name for field in schema for name in _instants_of(field.name, field.type)}
    if not names:
        return None
    spelled = {re.escape(text) for name in names for text in (name.encode(), json.dumps(name)[1:-1].encode())}
    value = rb'[\s\[]*"\s*\d{4}-\d\d-\d\d(?:[T ][\d:.,]*)?\s*"'
    return re.compile(rb'"(?:%s)"\s*:' % b"|".join(sorted(spelled)) + value)


def _instants_of(name: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        yield name
    elif pa.types.is_list(kind):
        yield from _instants_of(name, kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _instants_of(field.name, field.type)


def instants(times: pa.TimestampArray, kind: pa.TimestampType, zone: tzinfo) -> pa.TimestampArray:
    """Times without a zone as instants of the type ``kind``. ``pa.ArrowInvalid`` if that overflows."""
    if zone is UTC or not len(times):
        return times.view(kind)
    if not isinstance(zone, ZoneInfo):
        offset = pa.scalar(zone.utcoffset(None), pa.duration(kind.unit))
        return pc.subtract_checked(times, offset).view(kind)
    span = pc.min_max(times)
    first, last = (pa.scalar(time, times.type) for time in _LISTED)
    if not span["min"].is_valid:
        return times.view(kind)
    if pc.less(first, span["min"]).as_py() and pc.less(span["max"], last).as_py():
        try:
            return pc.assume_timezone(times, zone.key, ambiguous="earliest", nonexistent="raise").cast(kind)
        except pa.ArrowInvalid:
            pass  # Some times are in a gap.
    is_listed = pc.and_(pc.less(first, times), pc.less(times, last))
    listed = pc.if_else(is_listed, times, pa.scalar(None, times.type))
    found = pc.assume_timezone(listed, zone.key, ambiguous="earliest", nonexistent="earliest")
    # A time in a gap has no instant that shows it.
    is_other = pc.and_(times.is_valid(), pc.invert(pc.fill_null(pc.equal(pc.local_timestamp(found), times), False)))
    return pc.replace_with_mask(found.cast(kind), is_other, _one_by_one(times.filter(is_other), kind, zone))


def _one_by_one(times: pa.TimestampArray, kind: pa.TimestampType, zone: ZoneInfo) -> pa.TimestampArray:
    """Convert values by the offset at their moment, in integers: at the ends of the calendar UTC is beyond them."""
    try:
        local = pc.floor_temporal(times, unit="second").cast(pa.timestamp("s")).to_pylist()
    except (OverflowError, ValueError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    offsets = pa.array([zone.utcoffset(time) for time in local], pa.duration(kind.unit))
    return pc.subtract_checked(times, offsets).view(kind)


def parsed_instants(texts: pa.StringArray, kind: pa.TimestampType, zone: tzinfo) -> pa.TimestampArray:
    """Texts with a zone or without one as instants. ``pa.ArrowInvalid`` if one of them cannot be read."""
    if has_far_offset(texts):
        raise pa.ArrowInvalid("an offset from UTC is beyond 18 hours")
    is_zoned = pc.match_substring_regex(texts, _ZONED)
    none = pa.scalar(None, texts.type)
    with_zone = pc.if_else(is_zoned, texts, none).cast(kind)
    local = pc.if_else(is_zoned, none, texts).cast(pa.timestamp(kind.unit))
    return pc.coalesce(with_zone, instants(local, kind, zone))
