"""Ranges and conditions of a request for one object, as RFC 9110 demands. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from aioprefetch.accessor.http_headers import is_weak, parse_http_date, quote_etag, unquote_etag
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import OFFSET_MAX, Range

# More parts than this are served as the whole object: they cost the store more than they save the client.
PARTS_MAX = 64

_RANGES = re.compile(r"bytes[ \t]*=(.*)", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile(r"(\d*)-(\d*)")
_TAG = re.compile(r'[ \t]*((?:W/)?"[\x21\x23-\x7e\x80-\xff]*")[ \t]*(?:,|$)')
# A longer header is ignored, and so are its conditions: no client needs that many.
_HEADER_LENGTH_MAX = 8 << 10
_DIGITS_MAX = len(str(OFFSET_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The version of an object that a response is about: ``size`` in bytes, ``etag`` unquoted."""

    size: int
    etag: str | None
    last_modified: datetime | None
    content_type: str | None
    content_encoding: str | None

    @property
    def quoted_etag(self) -> str | None:
        """The ETag as it stands in a header."""
        return None if self.etag is None else quote_etag(self.etag)

    @property
    def coding(self) -> str | None:
        """The coding that the client has to undo, such as ``gzip``; ``None`` for the bytes themselves."""
        # The second is how an upload was framed; some stores keep it as if it were the object's.
        codings = [one.strip() for one in (self.content_encoding or "").split(",")]
        return ", ".join(one for one in codings if one.lower() not in ("", "aws-chunked", "identity")) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSpec:
    """One range of a header: from ``first`` to ``last``, both included, or the last ``suffix`` bytes."""

    first: int = 0
    last: int | None = None
    suffix: int | None = None

    @property
    def length_max(self) -> int | None:
        """The most bytes that it can have, ``None`` if that depends on the size of the object."""
        if self.suffix is not None:
            return self.suffix
        return None if self.last is None else self.last + 1 - self.first

    def within(self, size: int) -> Range | None:
        """The range in an object of ``size`` bytes; ``None`` if no byte of it is there."""
        if self.suffix is not None:
            start, end = max(0, size - self.suffix), size
        else:
            start, end = self.first, size if self.last is None else min(size, self.last + 1)
        return (start, end) if start < end else None


def parse_ranges(header: str | None) -> list[ByteSpec]:
    """The ranges of a ``Range`` header; an empty list if there is none, or one that must be or may be ignored.

    Ignored are another unit, a syntax error, more than ``PARTS_MAX`` ranges: the response is then the whole object.
    """
    match = _RANGES.fullmatch(header.strip()) if header and len(header) <= _HEADER_LENGTH_MAX else None
    if match is None:
        return []
    specs: list[ByteSpec] = []
    for text in match[1].split(","):
        if not (part := text.strip()):
            continue  # Empty members of a list are allowed.
        found = _RANGE.fullmatch(part)
        if found is None or part == "-":
            return []
        first, last = (_position(digits) if digits else None for digits in found.groups())
        if first is None:
            specs.append(ByteSpec(suffix=last))
        elif last is not None and last < first:
            return []
        else:
            specs.append(ByteSpec(first=first, last=last))
    return specs if len(specs) <= PARTS_MAX else []


def _position(digits: str) -> int:
    # One of thousands of digits is beyond every object, and Python refuses to read it.
    digits = digits.lstrip("0") or "0"
    return min(int(digits), OFFSET_MAX - 1) if len(digits) <= _DIGITS_MAX else OFFSET_MAX - 1


def do_overlap(ranges: Sequence[Range]) -> bool:
    """Whether some ranges share bytes."""
    in_order = sorted(ranges)
    return any(before[1] > after[0] for before, after in pairwise(in_order))


def parse_etags(header: str) -> list[str] | None:
    """The quoted ETags of ``If-Match`` or ``If-None-Match``, or ``["*"]``; ``None`` for an invalid header."""
    if len(header) > _HEADER_LENGTH_MAX:
        return None
    text = header.strip()
    if text == "*":
        return ["*"]
    tags, position = [], 0
    while position < len(text):
        match = _TAG.match(text, position)
        if match is None:
            return None
        tags.append(match[1])
        position = match.end()
    return tags or None


def only_tag(headers: Mapping[str, str]) -> str | None:
    """The unquoted ETag of an ``If-None-Match`` that has exactly one strong one: the store itself can compare it."""
    tags = parse_etags(headers.get("if-none-match", ""))
    if tags is None or len(tags) != 1 or tags[0] == "*" or is_weak(tags[0]):
        return None
    return unquote_etag(tags[0])


def needs_metadata(headers: Mapping[str, str], *, store_compares: bool) -> bool:
    """Whether a condition has to be checked before any byte is read.

    ``store_compares``: a single ETag of ``If-None-Match`` is sent along with the read.
    """
    if "if-match" in headers or "if-unmodified-since" in headers:
        return True
    if "if-none-match" in headers:
        return not (store_compares and only_tag(headers) is not None)
    return "if-modified-since" in headers


def failed_condition(headers: Mapping[str, str], found: Described) -> int | None:
    """412 or 304 if a condition of the request says so, in the order of RFC 9110, 13.2.2; ``None`` to go on."""
    own = found.quoted_etag
    if "if-match" in headers:
        matching = parse_etags(headers["if-match"]) or []
        if matching != ["*"] and not any(_is_strongly_equal(tag, own) for tag in matching):
            return 412
    elif _is_later(found.last_modified, headers.get("if-unmodified-since")):
        return 412
    if "if-none-match" in headers:
        others = parse_etags(headers["if-none-match"]) or []
        return 304 if others == ["*"] or (own is not None and _opaque(own) in map(_opaque, others)) else None
    since = headers.get("if-modified-since")
    if parse_http_date(since) is not None and found.last_modified is not None:
        return None if _is_later(found.last_modified, since) else 304
    return None


def keeps_range(if_range: str | None, found: Described) -> bool:
    """Whether ``If-Range`` lets the ``Range`` of the request stand: the client has a part of this very version."""
    if if_range is None:
        return True
    text = if_range.strip()
    if text.startswith(('"', "W/")):
        return _is_strongly_equal(text, found.quoted_etag)
    when = parse_http_date(text)
    return when is not None and found.last_modified is not None and when == found.last_modified.replace(microsecond=0)


def _is_strongly_equal(tag: str, own: str | None) -> bool:
    return tag == own and not is_weak(tag)


def _opaque(tag: str) -> str:
    return tag.removeprefix("W/")


def _is_later(modified: datetime | None, than: str | None) -> bool:
    """Whether an object was modified after a date of a header, which counts whole seconds."""
    when = parse_http_date(than)
    return when is not None and modified is not None and modified.replace(microsecond=0) > when
