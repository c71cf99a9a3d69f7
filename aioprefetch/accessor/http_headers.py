"""The HTTP headers of ranges, versions and times: the only module that builds and parses them. Pure, no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from aioprefetch.errors import InvalidRange
from aioprefetch.ranges import Range
from aioprefetch.values import HEADERS, Metadata, ReadRequest, WriteRequest

_FIXDATE = re.compile(r"[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)")
# Longer texts are not cached; much longer ones are not parsed as dates.
_CACHED_LENGTH_MAX = 64
_DATE_LENGTH_MAX = 512
_NAMES = {field: field.replace("_", "-") for field in HEADERS}


def described_by(source: Metadata | WriteRequest) -> dict[str, Any]:
    """The description of an object beside its bytes, as fields of its metadata and of a write."""
    return {**{field: getattr(source, field) for field in HEADERS}, "user_metadata": dict(source.user_metadata)}


def described_in(text_of: Callable[[str], str | None]) -> dict[str, Any]:
    """The fields of what describes an object, from the headers of a response."""
    return {field: text_of(name) for field, name in _NAMES.items()}


def headers_about(request: WriteRequest) -> dict[str, str]:
    """The headers that describe a new object, their names in lower case."""
    return {name: text for field, name in _NAMES.items() if (text := getattr(request, field)) is not None}


def range_header(request: ReadRequest) -> str | None:
    """The ``Range`` header of a request, ``None`` for the whole object. With ``first_bytes`` it is for the first part.

    Raises ``InvalidRange`` for an empty range: some servers send the whole object for ``bytes=5-4`` and ``bytes=-0``.
    """
    first_bytes = request.first_bytes
    if first_bytes is not None and request.suffix is None:  # The usual case, in which no request is made of it.
        size = first_bytes if request.size is None else min(request.size, first_bytes)
        return f"bytes={request.offset}-{request.offset + size - 1}"
    request = request.first_part()
    if request.is_whole:
        return None
    if request.suffix is not None:
        if request.suffix <= 0:
            raise InvalidRange("an empty suffix must not be sent", operation="read", path=request.path)
        return f"bytes=-{request.suffix}"
    if request.size is None:
        return f"bytes={request.offset}-"
    if request.size <= 0:
        raise InvalidRange("an empty range must not be sent", operation="read", path=request.path)
    return f"bytes={request.offset}-{request.offset + request.size - 1}"


def parse_content_range(text: str) -> tuple[Range | None, int | None] | None:
    """``Content-Range`` as ``((start, end), total)``: the range is ``None`` for ``bytes */N``, the total for ``a-b/*``.

    ``None`` when the header cannot be understood or contradicts itself.
    """
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first, last, whole = match.groups()
    total = None if whole == "*" else int(whole)
    if first is None:
        return None, total
    start, end = int(first), int(last) + 1
    if end <= start or (total is not None and end > total):
        return None
    return (start, end), total


def unquote_etag(etag: str | None) -> str | None:
    """An ETag without its quotes; a weak one keeps its ``W/``. ``None`` for a missing or empty one."""
    if not etag:
        return None
    if etag[0] == etag[-1] == '"' and len(etag) > 2:  # The usual case.
        return etag[1:-1]
    text = etag.strip()
    weak = text[:2] in ("W/", "w/")
    if weak:
        text = text[2:]
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    if not text:
        return None
    return "W/" + text if weak else text


def quote_etag(etag: str) -> str:
    """An ETag with the quotes that a header needs."""
    if is_weak(etag):
        return f'W/"{etag[2:]}"'
    return etag if etag == "*" else f'"{etag}"'


def is_weak(etag: str) -> bool:
    """Whether an ETag is weak. ``If-Match`` never matches a weak ETag (RFC 9110, 13.1.1), so it is only compared."""
    return etag.startswith("W/")


def parse_http_date(text: str | None) -> datetime | None:
    """``Last-Modified`` or ``Date`` as a time in UTC; ``None`` for a missing header or an invalid date."""
    if not text or len(text) > _DATE_LENGTH_MAX:
        return None
    # All responses for one object have the same date.
    return _cached_date(text) if len(text) <= _CACHED_LENGTH_MAX else _parsed_date(text)


def _parsed_date(text: str) -> datetime | None:
    match = _FIXDATE.fullmatch(text)
    if match is not None and match[2] in _MONTHS:
        day, year, hour, minute, second = map(int, match.group(1, 3, 4, 5, 6))
        try:
            return datetime(year, _MONTHS.index(match[2]) + 1, day, hour, minute, second, tzinfo=UTC)
        except ValueError:
            return None
    return _old_date(text)


def _old_date(text: str) -> datetime | None:
    """A date in another form than servers send today (RFC 9110, 5.6.7), by a module that takes 10 ms to load."""
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


_cached_date = lru_cache(maxsize=256)(_parsed_date)


def http_date(when: datetime) -> str:
    """A time as headers write it, in whole seconds."""
    utc = when.astimezone(UTC)
    day, month = _DAYS[utc.weekday()], _MONTHS[utc.month - 1]
    return f"{day}, {utc.day:02} {month} {utc.year:04} {utc.hour:02}:{utc.minute:02}:{utc.second:02} GMT"


def time_conditions(request: ReadRequest) -> dict[str, str]:
    """The headers of ``if_modified_since`` and ``if_unmodified_since``."""
    times = {"If-Modified-Since": request.if_modified_since, "If-Unmodified-Since": request.if_unmodified_since}
    return {name: http_date(when) for name, when in times.items() if when is not None}


def parse_retry_after(text: str | None, *, now: datetime | None = None) -> float | None:
    """``Retry-After`` in seconds, from a number or a date; ``None`` for a missing, negative or invalid one."""
    if not text or len(text) > _DATE_LENGTH_MAX:
        return None
    try:
        seconds = float(text)
    except ValueError:
        when = parse_http_date(text)
        if when is None:
            return None
        seconds = (when - (now or datetime.now(UTC))).total_seconds()
    return seconds if 0 <= seconds < float("inf") else None
