"""The head of a response: its fields as text, the head of a read, the metadata of a stat. Pure, no I/O."""

from __future__ import annotations

import re

from aioprefetch.accessor.http_headers import described_in, parse_content_range, parse_http_date, unquote_etag
from aioprefetch.errors import ProtocolError
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.transport.responses import ResponseHead
from aioprefetch.values import Metadata, UncheckedHead

_LENGTH = re.compile(r"\d{1,19}")
# The beginning of an ETag that is made here; weak, so it is compared and never sent.
_SYNTHETIC = "W/modified-"


def field_of(head: ResponseHead, name: bytes) -> str | None:
    """A field as received, each byte a character: ETags must be sent back unchanged. ``name`` in lower case."""
    value = head.fields.get(name)
    return None if value is None else value.decode("latin-1")


def location_of(head: ResponseHead) -> str | None:
    """The target of a redirect, as sent by the server."""
    return head.text("location")


def content_length(head: ResponseHead) -> int | None:
    """``Content-Length``, of a HEAD too; ``None`` without the header. ``ProtocolError`` for an invalid length."""
    text = field_of(head, b"content-length")
    if text is None:
        return None
    if not _LENGTH.fullmatch(text.strip()) or int(text) > OFFSET_MAX:
        raise ProtocolError("the response's Content-Length is not a valid length")
    return int(text)


def etag_of(head: ResponseHead, total: int | None) -> str | None:
    """The version of the object: its ETag, or one made of ``Last-Modified`` and size where the server has none."""
    etag = unquote_etag(field_of(head, b"etag"))
    if etag is not None or total is None:
        return etag
    modified = parse_http_date(field_of(head, b"last-modified"))
    return None if modified is None else f"{_SYNTHETIC}{int(modified.timestamp()):x}-{total:x}"


def is_synthetic(etag: str) -> bool:
    """Whether an ETag was made here, so that the server does not know it."""
    return etag.startswith(_SYNTHETIC)


def unchecked_head(head: ResponseHead) -> UncheckedHead:
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
        content_type=head.text("content-type"),
        content_encoding=head.text("content-encoding"),
    )


def metadata_of(path: str, head: ResponseHead, size: int | None) -> Metadata:
    """The metadata that the head of a response holds."""
    return Metadata(
        path=path,
        size=size,
        etag=etag_of(head, size),
        last_modified=parse_http_date(field_of(head, b"last-modified")),
        **{**described_in(head.text), "expires": None},  # The response's: it is another one each time.
    )
