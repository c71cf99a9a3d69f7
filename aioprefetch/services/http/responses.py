"""What a response says: its head for a read, its metadata for a stat, and the error of each status. One table."""

from __future__ import annotations

import asyncio
import html
import re

from aioprefetch.accessor.http_headers import parse_content_range, parse_http_date, parse_retry_after, unquote_etag
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
    excerpt,
)
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.services.http.exchange import Response
from aioprefetch.services.http.fields import field_of, text_of
from aioprefetch.services.http.identity import Identity
from aioprefetch.services.read_receiver import ERROR_BODY_BYTES_MAX
from aioprefetch.transport import ResponseHead
from aioprefetch.values import Metadata, Request, UncheckedHead

ERROR_BODY_SECONDS_MAX = 2.0

STATUSES: dict[int, tuple[type[Error], str]] = {
    304: (ConditionNotMatch, "the object is still the one that if_none_match names"),
    401: (PermissionDenied, "the server wants other credentials; check auth and headers"),
    403: (PermissionDenied, "the server refuses; check auth, headers and whether the URL has expired"),
    404: (NotFound, "there is no such object"),
    407: (PermissionDenied, "the proxy wants credentials; give user and password in its URL"),
    408: (TimedOut, "the server gave up waiting for the request"),
    410: (NotFound, "the object is gone for good"),
    412: (ConditionNotMatch, "the object is not the one that if_match names"),
    425: (Throttled, "the server asks to send the request again later"),
    429: (Throttled, "the server asks for fewer requests"),
    503: (Throttled, "the server is overloaded or down for a while"),
}

_TEXT = re.compile(r"(text/|application/(json|xml|problem\+)).*", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_LENGTH = re.compile(r"\d{1,19}")
# An ETag that we make ourselves begins like this; weak, so it is compared and never sent.
_SYNTHETIC = "W/modified-"


def content_length(head: ResponseHead) -> int | None:
    """``Content-Length``, that of a HEAD too; ``None`` if there is none. ``ProtocolError`` for what is no length."""
    text = field_of(head, b"content-length")
    if text is None:
        return None
    if not _LENGTH.fullmatch(text.strip()) or int(text) > OFFSET_MAX:
        raise ProtocolError("the response's Content-Length is no length")
    return int(text)


def etag_of(head: ResponseHead, total: int | None) -> str | None:
    """The version of the object: its ETag, or one made of ``Last-Modified`` and size where the server has none."""
    etag = unquote_etag(field_of(head, b"etag"))
    if etag is not None or total is None:
        return etag
    modified = parse_http_date(field_of(head, b"last-modified"))
    return None if modified is None else f"{_SYNTHETIC}{int(modified.timestamp()):x}-{total:x}"


def is_synthetic(etag: str) -> bool:
    """Whether the server knows nothing of this ETag."""
    return etag.startswith(_SYNTHETIC)


def answer_head(head: ResponseHead) -> UncheckedHead:
    """The head of a 200 or 206 to a GET, for ``check_reply``."""
    content_range = field_of(head, b"content-range")
    etag = unquote_etag(field_of(head, b"etag"))
    if etag is None:
        parsed = parse_content_range(content_range or "")
        etag = etag_of(head, parsed[1] if parsed else None if content_range or head.status != 200 else head.length)
    return UncheckedHead(
        status=head.status,
        content_range=content_range,
        content_length=head.length,
        etag=etag,
        last_modified=parse_http_date(field_of(head, b"last-modified")),
        content_type=text_of(head, b"content-type"),
    )


def metadata_of(path: str, head: ResponseHead, size: int | None) -> Metadata:
    """The metadata that the head of a response holds."""
    return Metadata(
        path=path,
        size=size,
        etag=etag_of(head, size),
        last_modified=parse_http_date(field_of(head, b"last-modified")),
        content_type=text_of(head, b"content-type"),
        content_encoding=text_of(head, b"content-encoding"),
        content_disposition=text_of(head, b"content-disposition"),
        cache_control=text_of(head, b"cache-control"),
    )


async def failure_of(request: Request, response: Response, identity: Identity) -> Error:
    """The error that a response other than 200 and 206 means. Closes the response."""
    try:
        # A proxy may repeat what it was sent, and with it the password in its URL.
        excerpt = "" if response.status == 407 else await _excerpt(response, identity)
    finally:
        response.close()
    status = response.status
    facts: dict[str, object] = {"status": status}
    if excerpt:
        facts["response"] = excerpt
    if response.redirected_to is not None:
        facts["redirected_to"] = str(response.redirected_to)
    if status == 416:
        parsed = parse_content_range(field_of(response.head, b"content-range") or "")
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
    if kind is PermissionDenied and response.redirected_to is not None:
        words += "; it redirected to another origin, where credentials and headers are not sent"
    return kind(
        words,
        operation=request.operation,
        path=request.path,
        context=facts,
        retry_after_seconds=parse_retry_after(field_of(response.head, b"retry-after")),
    )


def _other(status: int) -> tuple[type[Error], str]:
    if status >= 500:
        return Unavailable, f"the server failed with {status}"
    if status >= 400:
        return Unexpected, f"the server does not accept the request: {status}"
    return ProtocolError, f"a status {status} is no response to a read"


async def _excerpt(response: Response, identity: Identity) -> str:
    """A line of an error's text, or nothing. It may fail or take too long without consequence."""
    stream = response.stream
    if stream is None or not _TEXT.fullmatch(field_of(response.head, b"content-type") or ""):
        return ""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_SECONDS_MAX):
            while len(body) < ERROR_BODY_BYTES_MAX and (chunk := await stream.read_chunk()):
                body += chunk
    except (Error, TimeoutError):
        return ""
    # Scrubbed before it is cut: half of a secret must not remain.
    text = identity.scrub(bytes(body[:ERROR_BODY_BYTES_MAX]).decode("utf-8", "replace"))
    text = identity.scrub(html.unescape(_TAG.sub(" ", text)))
    return excerpt(" ".join("".join(char if char.isprintable() else " " for char in text).split()))
