"""Times without a zone, in the zone that is meant."""

from __future__ import annotations

import datetime as dt
import re
from functools import cache
from zoneinfo import ZoneInfo

from aioprefetch.errors import ConfigInvalid
from aioprefetch.runtime.events import logger

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


@cache
def warn_of_no_zone() -> None:
    """Say, once in a process, that times were taken for UTC though nobody said in which zone they are."""
    logger.warning(
        "times without a zone are read as UTC, since nobody said which zone they are in: give the option timeZone, or "
        "call aioprefetch.spark.register(spark), which hands over spark.sql.session.timeZone"
    )
