"""Headers of ranges, versions and times: round trips, nonsense, and what must never be sent."""

import re
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor.http_headers import (
    is_weak,
    parse_content_range,
    parse_http_date,
    parse_retry_after,
    quote_etag,
    range_header,
    unquote_etag,
)
from aioprefetch.errors import InvalidRange
from aioprefetch.values import ReadRequest
from tests.profile import each_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
sizes = st.none() | st.integers(-3, 1000)


@given(st.integers(0, 1000), sizes, sizes)
def test_a_range_header_is_never_empty_or_reversed(offset: int, size: int | None, suffix: int | None) -> None:
    """S26: what is sent names at least one byte, and exactly the bytes of the request."""
    request = ReadRequest(path="k", offset=offset, size=size, suffix=suffix)
    try:
        header = range_header(request)
    except InvalidRange:
        assert (suffix if suffix is not None else size or 0) <= 0
        return
    if header is None:
        assert (offset, size, suffix) == (0, None, None)
        return
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    assert match is not None
    first, last = match.groups()
    if suffix is not None:
        assert (first, int(last)) == ("", suffix)
        assert suffix > 0
    elif size is None:
        assert (int(first), last) == (offset, "")
    else:
        assert len(range(int(first), int(last) + 1)) == size > 0
        assert int(first) == offset


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 50), st.none() | st.integers(0, 1 << 50))
def test_content_range_round_trip(start: int, size: int, beyond: int | None) -> None:
    total = None if beyond is None else start + size + beyond
    text = f"bytes {start}-{start + size - 1}/{'*' if total is None else total}"
    assert parse_content_range(text) == ((start, start + size), total)
    assert parse_content_range(f"  {text} ") == ((start, start + size), total)


@each_of(
    "text",
    [
        "",
        "bytes",
        "bytes 5-4/10",
        "bytes 0-10/10",
        "bytes 0-9/9",
        "bytes 0-9",
        "bytes -9/10",
        "bytes 0-/10",
        "bytes 0-9/x",
        "bits 0-9/10",
        "bytes 0-9/10, bytes 20-29/30",
        "bytes=0-9/10",
        "bytes +0-9/10",
        "bytes 0-9/99999999999999999999999",
        "bytes 0 - 9/10",
    ],
)
def test_content_range_that_makes_no_sense(text: str) -> None:
    assert parse_content_range(text) is None


def test_content_range_without_a_range() -> None:
    assert parse_content_range("bytes */17") == (None, 17)
    assert parse_content_range("bytes */*") == (None, None)


@given(st.text(max_size=30) | st.from_regex(r"bytes \d{0,3}-?\d{0,3}/?(\d{0,3}|\*)", fullmatch=True))
def test_content_range_never_raises_and_never_contradicts_itself(text: str) -> None:
    bounds, total = parse_content_range(text) or (None, None)
    if bounds is not None:
        start, end = bounds
        assert 0 <= start < end
        assert total is None or end <= total


@each_of(
    ("raw", "kept"),
    [
        ('"abc"', "abc"),
        ("abc", "abc"),
        (' "abc" ', "abc"),
        ('W/"abc"', "W/abc"),
        ('w/"abc"', "W/abc"),
        ('"d41d8-5"', "d41d8-5"),
        ('"', '"'),
        ('"a"b"', 'a"b'),
        ("", None),
        ('""', None),
        ('W/""', None),
        (None, None),
    ],
)
def test_unquote_etag(raw: str | None, kept: str | None) -> None:
    """S32: weak, unquoted and multipart ETags compare once their quotes are off."""
    assert unquote_etag(raw) == kept


@given(st.text("abcXYZ0123456789-_/+=", min_size=1), st.booleans())
def test_etags_survive_the_round_trip(opaque: str, weak: bool) -> None:
    kept = ("W/" if weak else "") + opaque
    assert unquote_etag(quote_etag(kept)) == kept
    assert unquote_etag(kept) == kept
    if weak:
        assert is_weak(kept)
        assert quote_etag(kept) == f'W/"{opaque}"'


def test_the_star_is_no_etag() -> None:
    assert quote_etag("*") == "*"


@given(st.datetimes(datetime(1971, 1, 1), datetime(2099, 1, 1)), st.integers(-12, 12))
def test_dates_survive_the_round_trip(naive: datetime, hours: int) -> None:
    when = naive.replace(microsecond=0, tzinfo=timezone(timedelta(hours=hours)))
    assert parse_http_date(format_datetime(when.astimezone(UTC), usegmt=True)) == when


@each_of(
    "text",
    [
        None,
        "",
        "yesterday",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 99999999999999999999 Jan 2020 00:00:00 GMT",
        "Mon, 01 Jan 2020 00:00:00 +99999999999999999",
        "Mon, 31 Feb 2020 00:00:00 GMT",
    ],
)
def test_no_date(text: str | None) -> None:
    assert parse_http_date(text) is None


def test_a_date_is_the_same_however_often_and_however_long_it_is_said() -> None:
    text = "Thu, 01 Jan 2026 00:00:00 GMT"
    assert parse_http_date(text) == parse_http_date(text) == NOW
    assert parse_http_date(f"{text} ({'x' * 100})") == NOW


def test_a_date_without_zone_is_utc() -> None:
    assert parse_http_date("Thu, 01 Jan 2026 00:00:00 -0000") == NOW


@given(st.text(max_size=40))
def test_dates_and_delays_never_raise(text: str) -> None:
    parse_http_date(text)
    delay = parse_retry_after(text)
    assert delay is None or 0 <= delay < float("inf")


@each_of(
    ("text", "seconds"),
    [
        ("5", 5.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 23:59:30 GMT", None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, now=NOW) == seconds
