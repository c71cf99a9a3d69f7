"""The error of each status, with a line of the server's own text. One table, pure."""

from __future__ import annotations

import re

from aioprefetch.accessor.http_headers import parse_content_range, parse_retry_after
from aioprefetch.errors import (
    ConditionNotMatch,
    Error,
    NotFound,
    PermissionDenied,
    ProtocolError,
    RangeNotSatisfied,
    Throttled,
    TimedOut,
    Unavailable,
    Unexpected,
)
from aioprefetch.services.http.options import HttpOptions
from aioprefetch.services.http.responses import field_of
from aioprefetch.services.response_bodies import text_of
from aioprefetch.transport.origin import Origin
from aioprefetch.transport.responses import ResponseHead
from aioprefetch.values import Request

STATUSES: dict[int, tuple[type[Error], str]] = {
    304: (ConditionNotMatch, "the object has not changed: if_none_match or if_modified_since still holds for it"),
    401: (PermissionDenied, "the server wants other credentials; check auth and headers"),
    403: (PermissionDenied, "the server refuses; check auth, headers and whether the URL has expired"),
    404: (NotFound, "there is no such object"),
    407: (PermissionDenied, "the proxy wants credentials; give user and password in its URL"),
    408: (TimedOut, "the server gave up waiting for the request"),
    410: (NotFound, "the object is gone permanently"),
    412: (ConditionNotMatch, "the object has changed: if_match or if_unmodified_since does not hold for it any more"),
    425: (Throttled, "the server asks to send the request again later"),
    429: (Throttled, "the server asks for fewer requests"),
    503: (Throttled, "the server is overloaded or down for a while"),
}

_TEXT = re.compile(r"(text/|application/(json|xml|problem\+)).*", re.IGNORECASE)


def has_text(head: ResponseHead) -> bool:
    """Whether the body of an error response is text for people, and may be shown."""
    # A proxy may repeat the request, and with it the password in its URL.
    return head.status != 407 and _TEXT.fullmatch(field_of(head, b"content-type") or "") is not None


def failure_of(
    request: Request, head: ResponseHead, body: bytes, redirected_to: Origin | None, options: HttpOptions
) -> Error:
    """The error for a response other than 200 and 206, whose ``body`` has text."""
    said = text_of(body, options.scrub)
    status = head.status
    facts: dict[str, object] = {"status": status}
    if said:
        facts["response"] = said
    if redirected_to is not None:
        facts["redirected_to"] = str(redirected_to)
    if status == 416:
        parsed = parse_content_range(field_of(head, b"content-range") or "")
        total = parsed[1] if parsed else None
        size = "" if total is None else f" of the object's {total} bytes"
        return RangeNotSatisfied(
            f"the range starts at or beyond the end{size}",
            total=total,
            operation=request.operation,
            path=request.path,
            context=facts,
        )
    kind, words = STATUSES.get(status) or _other(status)
    if kind is PermissionDenied and redirected_to is not None:
        words += "; it redirected to another origin, where credentials and headers are not sent"
    return kind(
        words,
        operation=request.operation,
        path=request.path,
        context=facts,
        retry_after_seconds=parse_retry_after(field_of(head, b"retry-after")),
    )


def _other(status: int) -> tuple[type[Error], str]:
    if status >= 500:
        return Unavailable, f"the server failed with {status}"
    if status >= 400:
        return Unexpected, f"the server does not accept the request: {status}"
    return ProtocolError, f"a status {status} is not a valid response to a read"
