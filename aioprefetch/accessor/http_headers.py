"""The HTTP headers that speak of ranges, versions and times: made and parsed here alone. Pure, no I/O."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from aioprefetch.errors import InvalidRange
from aioprefetch.ranges import Range
from aioprefetch.values import ReadRequest

_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)")
# What is longer is not worth keeping, and what is much longer is no date.
_KEPT_LENGTH_MAX = 64
_DATE_LENGTH_MAX = 512


def range_header(request: ReadRequest) -> str | None:
    """The ``Range`` header of a request, ``None`` for the whole object. An empty range must never get here.

    ``bytes=5-4`` and ``bytes=-0`` are answered by some servers with the whole object, so they are refused outright.
    """
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
    """An ETag as we keep it: opaque, the quotes removed, a weak one still marked ``W/``. ``None`` for none or empty."""
    if not etag:
        return None
    if etag[0] == etag[-1] == '"' and len(etag) > 2:  # As nearly all are.
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
    """An ETag as a header wants it."""
    if is_weak(etag):
        return f'W/"{etag[2:]}"'
    return etag if etag == "*" else f'"{etag}"'


def is_weak(etag: str) -> bool:
    """Whether an ETag is weak: no server may match it in ``If-Match`` (RFC 9110, 13.1.1), so we only compare it."""
    return etag.startswith("W/")


def parse_http_date(text: str | None) -> datetime | None:
    """``Last-Modified`` or ``Date`` with its time zone, ``None`` when it is missing or no date."""
    if not text or len(text) > _DATE_LENGTH_MAX:
        return None
    # The responses for one object all say the same.
    return _known_date(text) if len(text) <= _KEPT_LENGTH_MAX else _parsed_date(text)


def _parsed_date(text: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


_known_date = lru_cache(maxsize=256)(_parsed_date)


def parse_retry_after(text: str | None, *, now: datetime | None = None) -> float | None:
    """``Retry-After`` in seconds, from a number or a date; ``None`` when missing or senseless."""
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
