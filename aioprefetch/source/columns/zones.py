"""Times without a zone: local times in the zone of the options, as Spark and Java read them.

Where clocks are put forward, a time within the gap becomes later by the length of the gap. Where they are put back, a
local time occurs twice, and the earlier of its two instants counts. Both follow from the offset that was in force
before the change, which is ``fold=0``.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import cache
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import ConfigInvalid
from aioprefetch.runtime.events import logger
from aioprefetch.source.options import FormatOptions

_UTC_NAMES = ("utc", "gmt", "ut", "z", "zulu", "etc/utc", "etc/gmt", "etc/uct", "uct", "universal", "greenwich")
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d\d))?", re.ASCII)


def zone_named(name: str | None) -> dt.tzinfo:
    """A zone by its name, or by an offset such as ``+02:00``; UTC without one. ``ConfigInvalid`` for an unknown one."""
    if name is None or name.lower() in _UTC_NAMES:
        return dt.UTC
    offset = _OFFSET.fullmatch(name)
    try:
        if offset is not None:
            away = dt.timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
            return dt.timezone(-away if offset[1] == "-" else away) if away else dt.UTC
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # An unknown one is a ``KeyError``.
        raise ConfigInvalid(f"there is no time zone {name!r}", operation="configure") from error


def in_zone(time: dt.datetime, name: str | None) -> dt.datetime:
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


# Time zone files list transitions up to 2037 and a rule for later ones, which pyarrow may not know; times before
# standard time are not left to pyarrow either.
_LISTED = (datetime(1902, 1, 1), datetime(2037, 1, 1))
# The end of a date looks like an offset, so a zone counts only after a time.
_ZONED = r":.*(?:Z|[+-]\d\d(?::?\d\d)?)\s*$"


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


def instant(local: datetime, zone: tzinfo) -> datetime:
    """A time without a zone as an instant in UTC. ``OverflowError`` outside of the range of ``datetime``."""
    return local.replace(tzinfo=zone).astimezone(UTC)


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
    return _one_by_one(times, kind, zone)


def _one_by_one(times: pa.TimestampArray, kind: pa.TimestampType, zone: ZoneInfo) -> pa.TimestampArray:
    """Convert values in Python. Offsets are whole seconds, so fractions of a second are added after."""
    whole = pc.floor_temporal(times, unit="second")
    rest = pc.subtract(times, whole)
    try:
        moved = [None if time is None else instant(time, zone) for time in whole.cast(pa.timestamp("s")).to_pylist()]
    except OverflowError as error:
        raise pa.ArrowInvalid(str(error)) from error
    return pc.add(pa.array(moved, pa.timestamp("s", "UTC")).cast(kind), rest)


def parsed_instants(texts: pa.StringArray, kind: pa.TimestampType, zone: tzinfo) -> pa.TimestampArray:
    """Texts with a zone or without one as instants. ``pa.ArrowInvalid`` if pyarrow cannot read one of them."""
    is_zoned = pc.match_substring_regex(texts, _ZONED)
    none = pa.scalar(None, texts.type)
    with_zone = pc.if_else(is_zoned, texts, none).cast(kind)
    local = pc.if_else(is_zoned, none, texts).cast(pa.timestamp(kind.unit))
    return pc.coalesce(with_zone, instants(local, kind, zone))
