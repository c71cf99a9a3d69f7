"""The requests to a :class:`FaultServer`, and its faults, as data.

A script is a sequence of rules. A rule has the requests that it applies to, how often it applies, and a fault. All
classes are frozen, so a script prints, compares and can be drawn by a property test.

Pure: it does no I/O, and imports only the standard library.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


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
