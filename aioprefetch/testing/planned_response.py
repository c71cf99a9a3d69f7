"""The response of a :class:`FaultServer` to a request: HTTP ranges and conditions, changed by a fault.

Pure: it uses no sockets. The rules of HTTP are implemented a second time on purpose: the server that checks the library
shares no code with it.
"""

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from xml.sax.saxutils import escape

from aioprefetch.testing.faults import Fault, ReceivedRequest

LAST_MODIFIED = formatdate(1_700_000_000, usegmt=True)
PHRASES = {status.value: status.phrase for status in HTTPStatus}
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResponse:
    """A response to be sent. `body` is sent as it is except for chunking; it is empty for HEAD.

    `lines` are sent unchanged after the headers.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    lines: tuple[str, ...] = ()

    def head(self) -> bytes:
        """The status line and headers, as bytes."""
        phrase = PHRASES.get(self.status, "Unknown")
        lines = [f"HTTP/1.1 {self.status} {phrase}", *(f"{name}: {value}" for name, value in self.headers.items())]
        return ("\r\n".join([*lines, *self.lines]) + "\r\n\r\n").encode("latin-1")


@functools.lru_cache(maxsize=8)  # A server is asked for few large objects often.
def etag_of(data: bytes) -> str:
    """The quoted ETag of an object: its MD5, as in S3 for a simple PUT."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def plan_response(request: ReceivedRequest, objects: Mapping[str, bytes], fault: Fault) -> PlannedResponse:
    """The response to a request for one of `objects`, with head and body changed by `fault`."""
    status, headers, body = _response(request, objects, fault)
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
