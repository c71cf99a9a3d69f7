"""The requests to a :class:`FaultServer`, its faults as data, and the response that a fault makes of a right one.

A script is a sequence of rules. A rule has the requests that it applies to, how often it applies, and a fault. All
classes are frozen, so a script prints, compares and can be drawn by a property test.

The rules of HTTP, its ranges and conditions, are implemented a second time on purpose: the server that checks the
library shares no code with it.

Pure: it does no I/O.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from aioprefetch.testing.bucket import Bucket, Call


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """One request as it arrived. Header names are lower case.

    `index` counts from 0 over all connections, `connection_index` over the requests of its connection.
    """

    index: int
    method: str
    target: str
    path: str
    headers: Mapping[str, str]
    connection_id: int
    connection_index: int = 0
    body: bytes = b""

    @property
    def call(self) -> Call:
        """The request in the words of S3."""
        query = dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))
        return Call(self.index, self.method, self.key, query, dict(self.headers), self.body)

    @property
    def key(self) -> str:
        """The decoded path without its first slash, which is the key of the requested object."""
        return self.path[1:]

    @property
    def range(self) -> str | None:
        """The Range header, or None."""
        return self.headers.get("range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a response. Fields can be combined; the default has no fault.

    The head:
        status: replaces the status; without `body` the response then has an S3 error body of code `code` for >= 400.
        headers: set on the response; a value of None removes the header.
        header_lines: added unchanged at the end, so that a header may be repeated or malformed.
        etag: sent instead of the right one. location: the target of a redirect (with a 3xx `status`).
        content_range: sent instead of the right one; `omit_content_range` sends none; `content_range_shift_bytes`
            moves the announced range while the body stays.
        omit_content_length: the body ends with the connection. chunked: the body has no announced length.
        ignore_range: 200 with the whole object. ignore_if_match: respond although the ETag differs.
        ignore_if_none_match: send the object although it is unchanged.
        connection_close: send this header, and close after the response.
    The body:
        body: replaces it. short_by_bytes: cut at the end, with a Content-Length that agrees with the cut.
        extra_body: bytes sent after the announced end. flip_byte_at: offset in the body of a byte to invert.
        raw_body: sent unchanged after the head, in any framing. raw: sent instead of head and body.
    The wire, where counts are bytes of the body:
        delay_head_seconds: pause before the head. hang_before_head: never send it (until `release`).
        hang_after_bytes, close_after_bytes (FIN), reset_after_bytes (RST): the fault after that many bytes.
        drop: close the connection before the head (FIN). reset_before_head: the same with RST.
        close_after_reply: close it after the whole response, without announcing it.
        drip_bytes, drip_delay_seconds: send the body in pieces of ``drip_bytes`` with a pause after each.
    """

    status: int | None = None
    code: str = "InternalError"
    headers: Mapping[str, str | None] = field(default_factory=dict)
    header_lines: tuple[str, ...] = ()
    etag: str | None = None
    location: str | None = None
    content_range: str | None = None
    omit_content_range: bool = False
    content_range_shift_bytes: int = 0
    omit_content_length: bool = False
    chunked: bool = False
    ignore_range: bool = False
    ignore_if_match: bool = False
    ignore_if_none_match: bool = False
    connection_close: bool = False

    body: bytes | None = None
    short_by_bytes: int = 0
    extra_body: bytes = b""
    flip_byte_at: int | None = None
    raw_body: bytes | None = None
    raw: bytes | None = None

    delay_head_seconds: float = 0.0
    hang_before_head: bool = False
    hang_after_bytes: int | None = None
    close_after_bytes: int | None = None
    reset_after_bytes: int | None = None
    drop: bool = False
    reset_before_head: bool = False
    close_after_reply: bool = False
    drip_bytes: int = 0
    drip_delay_seconds: float = 0.0

    @property
    def cut_after_bytes(self) -> int | None:
        """The number of bytes of the body after which the response stops, or None if it is complete."""
        cuts = (self.hang_after_bytes, self.close_after_bytes, self.reset_after_bytes)
        return min((cut for cut in cuts if cut is not None), default=None)


NO_FAULT = Fault()
NO_HEAD = Fault(status=405, code="MethodNotAllowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Applies `fault` to requests that satisfy all conditions that are set, at most `times` times (None: always).

    `index` is the number of the request, from 0 over all connections; `matches` is any predicate.
    """

    fault: Fault
    index: int | None = None
    method: str | None = None
    key: str | None = None
    matches: Callable[[ReceivedRequest], bool] | None = None
    times: int | None = 1

    def applies(self, request: ReceivedRequest) -> bool:
        """Whether the conditions hold. The server counts `times`."""
        return (
            self.index in (None, request.index)
            and self.method in (None, request.method)
            and self.key in (None, request.key)
            and (self.matches is None or self.matches(request))
        )


# --- responses --------------------------------------------------------------------------------------------------------

LAST_MODIFIED = formatdate(1_700_000_000, usegmt=True)
PHRASES = {status.value: status.phrase for status in HTTPStatus}
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResponse:
    """A response: `body` is sent as it is except for chunking (empty for HEAD), `lines` unchanged after the headers."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    lines: tuple[str, ...] = ()

    def head(self) -> bytes:
        """The status line and headers, as bytes."""
        phrase = PHRASES.get(self.status, "Unknown")
        lines = [f"HTTP/1.1 {self.status} {phrase}", *(f"{name}: {value}" for name, value in self.headers.items())]
        return ("\r\n".join([*lines, *self.lines]) + "\r\n\r\n").encode("latin-1")


@functools.lru_cache(maxsize=8)  # Tests read few large objects, often.
def etag_of(data: bytes) -> str:
    """The quoted ETag of an object: its MD5, as in S3 for a simple PUT."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def plan_response(
    request: ReceivedRequest, objects: Mapping[str, bytes], fault: Fault, bucket: Bucket | None = None
) -> PlannedResponse:
    """The response to a request for one of `objects`, with head and body changed by `fault`.

    A ``bucket`` of these objects performs all other requests, unless the fault has a status.
    """
    if bucket is None or fault.status is not None or request.call.verb in ("GetObject", "HeadObject"):
        status, headers, body = _response(request, objects, fault)
    else:
        answer = bucket.answer(request.call)
        status, headers, body = answer.status, dict(answer.headers), answer.body or b""
    if fault.body is not None:
        body = fault.body
    if fault.short_by_bytes:
        body = body[: -fault.short_by_bytes]
    if fault.flip_byte_at is not None and fault.flip_byte_at < len(body):
        at = fault.flip_byte_at
        body = body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
    headers |= _framing(status, len(body), fault)
    _bend(headers, fault)
    bodiless = request.method == "HEAD" or status in {204, 304}
    return PlannedResponse(status=status, headers=headers, body=b"" if bodiless else body, lines=fault.header_lines)


def _response(
    request: ReceivedRequest, objects: Mapping[str, bytes], fault: Fault
) -> tuple[int, dict[str, str], bytes]:
    if fault.status is not None:
        body = _error_body(fault.code, request.path) if fault.status >= 400 else b""
        return fault.status, {"Content-Type": "application/xml"}, body
    if request.method not in {"GET", "HEAD"}:
        return _error(405, "MethodNotAllowed", request)
    data = objects.get(request.key)
    if data is None:
        return _error(404, "NoSuchKey", request)
    etag = etag_of(data)
    if_match = request.headers.get("if-match")
    if if_match is not None and not fault.ignore_if_match and not _matches(if_match, etag):
        return _error(412, "PreconditionFailed", request)
    headers = {
        "Content-Type": "application/octet-stream",
        "ETag": etag,
        "Last-Modified": LAST_MODIFIED,
        "Accept-Ranges": "bytes",
    }
    if_none_match = request.headers.get("if-none-match")
    if if_none_match is not None and not fault.ignore_if_none_match and _matches(if_none_match, etag):
        return 304, headers, b""
    wanted = None if fault.ignore_range else _range_bounds(request, etag)
    if wanted is None:
        return 200, headers, data
    return _part(request, headers, data, wanted, fault)


def _part(
    request: ReceivedRequest, headers: dict[str, str], data: bytes, wanted: tuple[str, str], fault: Fault
) -> tuple[int, dict[str, str], bytes]:
    first, last = wanted
    size = len(data)
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if start >= size:
        status, error_headers, body = _error(416, "InvalidRange", request)
        return status, error_headers | {"Content-Range": f"bytes */{size}"}, body
    shift = fault.content_range_shift_bytes
    headers["Content-Range"] = f"bytes {start + shift}-{stop - 1 + shift}/{size}"
    return 206, headers, data[start:stop]


def _range_bounds(request: ReceivedRequest, etag: str) -> tuple[str, str] | None:
    """The two numbers of a single valid range, as text; None for the whole object."""
    match = RANGE.fullmatch(request.range or "")
    if match is None or match[0] == "bytes=-":
        return None
    if match[1] and match[2] and int(match[2]) < int(match[1]):
        return None  # HTTP ignores an invalid range, and so does S3
    if request.headers.get("if-range", etag) != etag:
        return None
    return match[1], match[2]


def _matches(condition: str, etag: str) -> bool:
    return condition.strip() == "*" or etag in [value.strip() for value in condition.split(",")]


def _error(status: int, code: str, request: ReceivedRequest) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/xml"}, _error_body(code, request.path)


def _error_body(code: str, path: str) -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{escape(code)}</Code><Message>{escape(code)}</Message>"
        f"<Resource>{escape(path)}</Resource><RequestId>FAULTSERVER</RequestId></Error>"
    ).encode()


def _framing(status: int, body_bytes: int, fault: Fault) -> dict[str, str]:
    framing = {"x-amz-request-id": "FAULTSERVER"}
    if fault.chunked:
        framing["Transfer-Encoding"] = "chunked"
    elif not fault.omit_content_length and status not in {204, 304}:
        framing["Content-Length"] = str(body_bytes)
    if fault.connection_close or fault.omit_content_length:
        framing["Connection"] = "close"
    return framing


def _bend(headers: dict[str, str], fault: Fault) -> None:
    if fault.etag is not None:
        headers["ETag"] = fault.etag
    if fault.location is not None:
        headers["Location"] = fault.location
    if fault.content_range is not None:
        headers["Content-Range"] = fault.content_range
    if fault.omit_content_range:
        headers.pop("Content-Range", None)
    for name, value in fault.headers.items():
        for present in [present for present in headers if present.lower() == name.lower()]:
            del headers[present]
        if value is not None:
            headers[name] = value
