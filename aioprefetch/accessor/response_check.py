"""The check of every response to a read, before the first byte of its body counts: its range and its version. Pure.

``check_reply`` is for stores that respond as HTTP does, with a status and a ``Content-Range`` that may be wrong.
``check_range`` is for stores that know the object's size and cut the range themselves, such as a file or a dict.

A ``VersionPin`` is the version of an object that a read holds to. A request carries the pinned ETag as ``If-Match`` and
the pinned version id. Some stores ignore conditions, and a weak ETag may not be sent as one, so every response is
compared with the pin too; another version is ``ObjectChanged``.

``ETags`` finds ETags that do not tell versions apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from datetime import datetime
from typing import Any

from aioprefetch.accessor.http_headers import is_weak, parse_content_range
from aioprefetch.errors import (
    ConditionNotMatch,
    Error,
    NotFound,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
    Unsupported,
    excerpt,
)
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import Range, resolve_range
from aioprefetch.runtime.statistics import Counters
from aioprefetch.values import Entry, ReadHead, ReadRequest, StatRequest, UncheckedHead

# Larger numbers have no place in a Content-Range: a signed 64-bit offset has as many digits.
TOTAL_DIGITS_MAX = 19
# The MD5 of no bytes.
_ETAG_OF_NOTHING = "d41d8cd98f00b204e9800998ecf8427e"


def check_reply(request: ReadRequest, response: UncheckedHead) -> ReadHead:
    """The head of a 200 or 206, checked against its request.

    Four kinds of wrong response pass silently elsewhere: the whole object for a range, another range, a shorter body
    with consistent headers, another version. Raises ``ProtocolError`` for these, and ``ConditionNotMatch`` also where
    the server has ignored a condition.
    """
    if request.if_match not in (None, "*", response.etag) or request.if_none_match is not None:
        check_etag(request, response.etag)
    if not (request.if_modified_since is request.if_unmodified_since is None):
        check_times(request, response.last_modified)
    if request.version is not None and response.version not in (None, request.version):
        raise _other_version(request, response.version)
    total: int | None
    if request.first_bytes is not None and response.content_range is not None and response.content_length != 0:
        start, size, total = _checked_first_part(request, response, response.content_range)
    else:
        total = _total_if_exact(request, response)
        if total is not None:
            start, size = request.offset, request.size or 0
        else:
            start, size, total = fully_checked_range(request, response)
    return ReadHead(
        start=start,
        size=size,
        total=total,
        etag=response.etag,
        version=response.version,
        last_modified=response.last_modified,
        content_type=response.content_type,
        content_encoding=response.content_encoding,
        user_metadata=response.user_metadata,
    )


def check_range(
    request: ReadRequest,
    *,
    total: int,
    etag: str | None = None,
    version: str | None = None,
    last_modified: datetime | None = None,
    content_type: str | None = None,
    content_encoding: str | None = None,
    user_metadata: Mapping[str, str] | None = None,
) -> ReadHead:
    """The head of a response that the service makes itself, from an object of ``total`` bytes.

    For a store that is not HTTP: it looks the object up, calls this, and delivers ``[head.start, head.end)``, which is
    the requested range cut at the end of the object, and empty for an empty object. The other arguments describe the
    object as it is now, and are in the head. Raises ``ConditionNotMatch`` where a condition does not hold for ``etag``
    or ``last_modified``, ``RangeNotSatisfied`` (with ``total``) for a range that starts at or beyond the end of an
    object that is not empty, and ``ProtocolError`` where ``version`` is not the requested one.
    """
    if request.if_match not in (None, "*", etag) or request.if_none_match is not None:
        check_etag(request, etag)
    if not (request.if_modified_since is request.if_unmodified_since is None):
        check_times(request, last_modified)
    if request.version is not None and version not in (None, request.version):
        raise _other_version(request, version)
    start, end = due_range(request, total)
    return ReadHead(
        start=start,
        size=end - start,
        total=total,
        etag=etag,
        version=version,
        last_modified=last_modified,
        content_type=content_type,
        content_encoding=content_encoding,
        user_metadata=user_metadata,
    )


def due_range(request: ReadRequest, total: int) -> Range:
    """The bytes that a request is due of an object of ``total`` bytes. ``RangeNotSatisfied`` for one beyond its end."""
    bounds = resolve_range(request.offset, request.size, request.suffix, total)
    if bounds is None:
        raise RangeNotSatisfied(
            f"{request.describe()} starts at or beyond the end of the object's {total} bytes",
            total=total,
            operation="read",
            path=request.path,
        )
    return bounds


def check_etag(request: ReadRequest | StatRequest, etag: str | None) -> None:
    """Raise ``ConditionNotMatch`` where ``if_match`` or ``if_none_match`` does not hold."""
    wanted = request.if_match
    # The response to a write has no time: its ETag is the store's.
    if wanted not in (None, "*", etag) and not (etag or "").startswith(f"{wanted}{DATED}"):
        raise ConditionNotMatch(
            f"the object's ETag is {excerpt(etag)!r}, not {excerpt(wanted)!r}",
            operation=request.operation,
            path=request.path,
            context={"if_match": wanted, "etag": etag},
        )
    if request.if_none_match is not None and request.if_none_match in ("*", etag):
        raise ConditionNotMatch(
            f"the object's ETag is still {excerpt(etag)!r}",
            operation=request.operation,
            path=request.path,
            context={"etag": etag},
        )


def check_times(request: ReadRequest | StatRequest, last_modified: datetime | None) -> None:
    """Raise ``ConditionNotMatch`` where ``if_modified_since`` or ``if_unmodified_since`` does not hold.

    ``Unsupported`` where the time of the last change is not known.
    """
    since, until = request.if_modified_since, request.if_unmodified_since
    if since is until is None:
        return
    name = "if_unmodified_since" if since is None else "if_modified_since"
    if last_modified is None:
        raise Unsupported(
            f"the store does not say when this was modified, which {name} would be compared with",
            operation=request.operation,
            path=request.path,
        )
    if since is not None and last_modified <= since:
        why = f"the object was last modified at {last_modified}, and not after if_modified_since={since}"
    elif until is not None and last_modified > until:
        why = f"the object was modified at {last_modified}, after if_unmodified_since={until}"
    else:
        return
    raise ConditionNotMatch(
        why, operation=request.operation, path=request.path, context={"last_modified": last_modified.isoformat()}
    )


def _other_version(request: ReadRequest, version: str | None) -> ProtocolError:
    return wrong_response(request, f"the response is version {excerpt(version)!r}, not {request.version!r}")


def _checked_first_part(
    request: ReadRequest, response: UncheckedHead, content_range: str
) -> tuple[int, int, int | None]:
    """Start, size and total of a response with a range, for which the first part is enough.

    A server without ranges sends everything without one: such a response is checked as that to the whole request.
    """
    length, size = request.size, response.content_length
    part_bytes = request.first_bytes or 0
    if size and size <= part_bytes and request.suffix is None and (length is None or size <= length):
        # The usual case is an object that ends within its first part: there is one right text.
        end = request.offset + size
        if content_range == f"bytes {request.offset}-{end - 1}/{end}" and response.status in (200, 206):
            return request.offset, size, end
    bounds, total = parse_content_range(content_range) or (None, None)
    if bounds is not None and total is not None and request.suffix is None:
        end = request.offset + (part_bytes if length is None or length > part_bytes else length)
        start = bounds[0]
        is_part = start == request.offset and bounds[1] == (end if end < total else total)
        if is_part and response.status in (200, 206) and response.content_length in (None, bounds[1] - start):
            return start, bounds[1] - start, total
    if total is None and length is None:
        raise _wrong(request, response, f"Content-Range {excerpt(content_range)!r} does not say where the object ends")
    return fully_checked_range(request.first_part(), response)


def _total_if_exact(request: ReadRequest, response: UncheckedHead) -> int | None:
    """The size of the object if the response holds exactly the requested range, which is the usual case."""
    size, text = request.size, response.content_range
    if not size or text is None or request.suffix is not None or response.status not in (200, 206):
        return None
    end = request.offset + size
    due = f"bytes {request.offset}-{end - 1}/"
    digits = text[len(due) :]
    if not text.startswith(due) or not digits.isdecimal() or len(digits) > TOTAL_DIGITS_MAX:
        return None
    total = int(digits)
    return total if total >= end and response.content_length in (None, size) else None


def fully_checked_range(request: ReadRequest, response: UncheckedHead) -> tuple[int, int, int | None]:
    """Start, size and total of a response that is not exactly the requested range, checked step by step."""
    total: int | None
    # Some servers (rclone's S3, for one) respond to a range with 200 and a correct Content-Range: that is accepted too.
    if _is_empty(response):
        start = end = total = 0
    elif response.status == 200 and response.content_range is None:
        if response.content_length is None:
            raise _wrong(request, response, "the response has neither Content-Length nor Content-Range")
        start, end, total = 0, response.content_length, response.content_length
    else:
        parsed = parse_content_range(response.content_range or "")
        bounds, total = parsed or (None, None)
        if response.status not in (200, 206) or bounds is None:
            raise _wrong(request, response, f"a response with Content-Range {excerpt(response.content_range)!r}")
        start, end = bounds
        if response.content_length not in (None, end - start):
            raise _wrong(
                request,
                response,
                f"Content-Length {response.content_length} contradicts {excerpt(response.content_range)!r}",
            )
    if total is None and (request.size is None or request.suffix is not None):
        raise _wrong(
            request, response, f"Content-Range {excerpt(response.content_range)!r} does not say where the object ends"
        )
    first, last = _expected(request, total)
    if (start, end) != (first, last):
        raise _wrong(
            request,
            response,
            f"the response holds [{start}, {end}) where [{first}, {last}) was requested: the server did not obey Range",
        )
    return start, end - start, total


def _is_empty(response: UncheckedHead) -> bool:
    """Whether a 206 is of an empty object, whose ranges have no right text: stores say ``bytes 0--1/0`` and others."""
    is_of_nothing = (response.content_range or "").endswith("/0") or response.etag == _ETAG_OF_NOTHING
    return response.status == 206 and response.content_length == 0 and is_of_nothing


def _expected(request: ReadRequest, total: int | None) -> Range:
    if total is None:  # ``bytes a-b/*``, which is accepted for an exact range alone.
        return request.offset, request.offset + (request.size or 0)
    bounds = resolve_range(request.offset, request.size, request.suffix, total)
    return bounds or (request.offset, total)


def check_due(request: ReadRequest, head: ReadHead) -> None:
    """Raise ``ProtocolError`` for a head of anything but the requested range, or ``first_bytes`` at one of its ends."""
    start, end, total = head.start, head.start + head.size, head.total
    if total is None and (request.size is None or request.suffix is not None):
        total = end  # Nothing else says where the object ends.
    low, high = _expected(request, total)
    is_part = head.size == request.first_bytes and low <= start and end <= high and (start == low or end == high)
    if not is_part and (start, end) != (low, high):
        raise wrong_response(request, f"the head promises [{start}, {end}) of {total} bytes, which was not asked for")


def _wrong(request: ReadRequest, response: UncheckedHead, why: str) -> ProtocolError:
    return wrong_response(request, why, status=response.status)


def wrong_response(request: ReadRequest, why: str, **facts: object) -> ProtocolError:
    """The error for a response that is not one to this request."""
    facts = {"range": request.describe(), **facts}
    return ProtocolError(why, operation="read", path=request.path, context=facts)


# --- versions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionPin:
    """One version of one object: its unquoted ETag, its version id and its size in bytes.

    An ETag of ``None`` means that the store sends no ETag for this object: a response with an ETag is then of another
    version. A size of ``None`` is unknown and is not compared. Errors name ``path`` and ``operation`` and end with
    ``advice``. ``counters`` counts each mismatch as ``stream_read_version_mismatches``.
    """

    etag: str | None
    version: str | None = None
    size: int | None = None
    _: KW_ONLY
    path: str = ""
    operation: str = "read"
    advice: str = ""
    counters: Counters | None = None

    @property
    def is_strong(self) -> bool:
        """Whether an equal pin means equal bytes: a weak ETag may stand for two that differ (RFC 9110, 8.8.1)."""
        return is_strong(self.etag, self.version)

    def check(self, head: ReadHead, due: Range | None = None) -> None:
        """Raise ``ObjectChanged`` unless a response is of this version and holds the range ``due``, if one is named."""
        if (
            head.etag == self.etag
            and (self.size is None or head.total is None or head.total == self.size)
            and (due is None or (head.start, head.end) == due)
        ):
            return
        wrong = "" if due is None else f"[{head.start}, {head.end}) of "
        right = "" if due is None else f"[{due[0]}, {due[1]}) of "
        raise self.changed(
            head.etag,
            f"the object was overwritten after its version was pinned: the response holds {wrong}an object of"
            f" {head.total} bytes, expected was {right}one of {self.size}",
        )

    def explain(
        self, error: Error, *, actual_etag: object = None, message: str | None = None, **fields: Any
    ) -> ObjectChanged:
        """The refusal of a request for the pinned version, as the ``ObjectChanged`` that it means.

        ``error`` is a ``ConditionNotMatch``, ``NotFound`` or ``RangeNotSatisfied``: no request reaches beyond the
        pinned size, so a refused range says that the object is shorter now. ``actual_etag`` is the store's ETag if the
        error does not name it. ``message`` replaces the usual text; ``fields`` are further fields of the error.
        """
        actual = error.context.get("etag")
        what = "deleted" if isinstance(error, NotFound) else "overwritten"
        return self.changed(
            actual_etag if actual is None else actual,
            message or f"the object was {what} after its version was pinned",
            **fields,
        )

    def changed(self, actual_etag: object, message: str, **fields: Any) -> ObjectChanged:
        """The error for an object that is not this version any more; the mismatch is counted."""
        if self.counters is not None:
            self.counters["stream_read_version_mismatches"] += 1
        return ObjectChanged(
            message + self.advice,
            expected_etag=self.etag,
            actual_etag=None if actual_etag is None else str(actual_etag),
            operation=self.operation,
            path=self.path,
            **fields,
        )


def is_strong(etag: str | None, version: str | None) -> bool:
    """Whether equal values mean equal bytes; see ``VersionPin.is_strong``."""
    return bool(version) or (etag is not None and not etag.startswith("W/"))  # As ``is_weak``.


# --- ETags that prove nothing -----------------------------------------------------------------------------------------

# What stands between an ETag that proves nothing and the second of the object's last change.
DATED = "@modified:"
_ZEROS = re.compile(r"0+(-[0-9]+)?")
_ZEROS_MAX = "00000001"  # The quick look: zeros alone are below it.
_ETAGS_MAX = 4096


class ETags:
    """The ETags of one store in a runtime. Where they do not tell versions apart, a time is added.

    These are zeros alone (with ``-N`` too), which some stores give to every object, and an ETag seen with objects
    of two sizes. ``DATED`` and the whole second of the last change are added to them, so that every comparison of ETags
    compares that time: pins, resumed reads, caches, notes of downloads, second looks. Without the form of a digest they
    let no copy be left out either. Where the time is not known they are weak.
    """

    def __init__(self) -> None:
        # Size, path and time of the first object that was seen with an ETag.
        self._first: dict[str, tuple[int | None, str, datetime | None]] = {}
        self._empty: set[str] = set()

    def prove_nothing(self, etag: str) -> bool:
        """Whether an ETag of the store tells no versions apart."""
        return etag in self._empty or (etag < _ZEROS_MAX and _ZEROS.fullmatch(etag) is not None)

    def can_be_sent(self, etag: str) -> bool:
        """Whether a read may have an ETag as its condition; any other one is compared with the response's."""
        # A weak ETag never matches, and some stores respond 412 to "*" although the object exists.
        return etag != "*" and not is_weak(etag) and not self.prove_nothing(bare_etag(etag))

    def has_seen(self, etag: str | None) -> bool:
        """Whether an object was found with an ETag, not too long ago."""
        return etag in self._first

    def dated(self, etag: str, path: str, size: int | None, modified: datetime | None, pin: str | None = None) -> str:
        """The ETag of an object, with its time if it needs one. One whose ``size`` is known is recorded.

        The first object that was seen with an ETag keeps it for a ``pin`` that was made before there was a second one.
        """
        if size is not None:
            if len(self._first) > _ETAGS_MAX:
                self._first.clear()
            seen = size, path, modified
            first = self._first.setdefault(etag, seen)
            # The size in a response to HEAD may be wrong.
            if first[0] != size and first[1:] != seen[1:] and len(self._empty) < _ETAGS_MAX:
                self._empty.add(etag)
            if etag == pin and first == seen and etag > _ZEROS_MAX:
                return etag
        if (etag > _ZEROS_MAX and etag not in self._empty) or not self.prove_nothing(etag):
            return etag
        return f"W/{etag}" if modified is None else f"{etag}{DATED}{int(modified.timestamp())}"

    def dated_entries(self, entries: list[Entry]) -> list[Entry]:
        """The entries of a page, their ETags as ``dated`` has them."""
        first = self._first.setdefault
        if not self._empty and not any(
            (etag := one.etag)
            and (first(etag, (one.size, one.path, one.last_modified))[0] != one.size or etag < _ZEROS_MAX)
            for one in entries
        ):
            if len(self._first) > _ETAGS_MAX:
                self._first.clear()
            return entries
        for one in entries:  # Before any is named: one may tell of those before it.
            self.dated(one.etag or "", one.path, one.size, one.last_modified)
        return [
            replace(one, etag=self.dated(one.etag, one.path, None, one.last_modified)) if one.etag else one
            for one in entries
        ]


def bare_etag(etag: str) -> str:
    """The store's ETag in a value that ``ETags.dated`` made."""
    return etag.partition(DATED)[0]
