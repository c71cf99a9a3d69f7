"""The responses of S3 as our values: heads, metadata, pages of a listing. Pure, no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from aioprefetch.accessor.http_headers import parse_http_date, unquote_etag
from aioprefetch.accessor.response_check import check_reply
from aioprefetch.errors import NotFound, ProtocolError, excerpt
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.services.s3.list_page import ListedPage
from aioprefetch.transport import ResponseHead
from aioprefetch.values import Entry, ListPage, ListRequest, Metadata, ReadHead, ReadRequest, StatRequest, UncheckedHead

_NUMBER = re.compile(r"[0-9]{1,19}")
_path_of = attrgetter("path")
# The beginning of the headers with the metadata that a user has given.
USER_METADATA = "x-amz-meta-"


def headers_of(response: Mapping[str, Any]) -> Mapping[str, str]:
    """The headers of a response, their names in lower case."""
    headers: Mapping[str, str] = response["ResponseMetadata"]["HTTPHeaders"]
    return headers


def version_of(text: str | None) -> str | None:
    """A version's identifier. ``null`` is the last write without versioning: it pins nothing."""
    return text if text and text != "null" else None


# What to do about a success of another server.
NOT_OF_S3 = "it is not that of an S3 object; check endpoint_url"


def _no_object(response: UncheckedHead, request: ReadRequest) -> ProtocolError:
    """The error for a response without an ETag.

    Objects of S3 have one, and versions differ by it; error pages have none.
    """
    return ProtocolError(
        f"the response ({response.status}, {excerpt(response.content_type)}) carries no ETag: {NOT_OF_S3}",
        operation="read",
        path=request.path,
    )


def unchecked_head(response: Mapping[str, Any]) -> UncheckedHead:
    """The head of a response to a GET, not checked yet."""
    headers = headers_of(response)
    length = headers.get("content-length", "")
    return UncheckedHead(
        status=int(response["ResponseMetadata"]["HTTPStatusCode"]),
        content_range=headers.get("content-range"),
        content_length=int(length) if _NUMBER.fullmatch(length) else None,
        etag=unquote_etag(headers.get("etag")),
        version=version_of(headers.get("x-amz-version-id")),
        last_modified=parse_http_date(headers.get("last-modified")),
        content_type=headers.get("content-type"),
        content_encoding=headers.get("content-encoding"),
    )


def checked_head(request: ReadRequest, head: ResponseHead) -> ReadHead:
    """The head of a 200 or 206 of our own transport, checked against its request."""
    get = head.fields.get
    content_range, etag, version = get(b"content-range"), get(b"etag"), get(b"x-amz-version-id")
    modified, content_type, encoding = get(b"last-modified"), get(b"content-type"), get(b"content-encoding")
    response = UncheckedHead(
        status=head.status,
        content_range=None if content_range is None else content_range.decode("latin-1"),
        content_length=head.length,
        etag=None if etag is None else unquote_etag(etag.decode("latin-1")),
        version=None if version is None else version_of(version.decode("latin-1")),
        last_modified=None if modified is None else parse_http_date(modified.decode("latin-1")),
        content_type=None if content_type is None else content_type.decode("latin-1"),
        content_encoding=None if encoding is None else encoding.decode("latin-1"),
    )
    if response.etag is None:
        raise _no_object(response, request)
    return check_reply(request, response)


def checked(request: ReadRequest, response: UncheckedHead) -> ReadHead:
    """``check_reply``, and the check that there is an ETag, which each object of S3 has."""
    if response.etag is None:
        raise _no_object(response, request)
    return check_reply(request, response)


def metadata_of(headers: Mapping[str, str], request: StatRequest) -> Metadata:
    """The metadata in the headers of a response to a HEAD."""
    length = headers.get("content-length", "")
    if not _NUMBER.fullmatch(length) or int(length) > OFFSET_MAX:
        raise ProtocolError(
            f"the response to HEAD has no valid Content-Length{f': {excerpt(length)}' if length else ''}",
            operation=request.operation,
            path=request.path,
        )
    if headers.get("etag") is None:
        raise ProtocolError(
            f"the response to HEAD ({excerpt(headers.get('content-type'))}) carries no ETag: {NOT_OF_S3}",
            operation=request.operation,
            path=request.path,
        )
    return Metadata(
        path=request.path,
        size=int(length),
        etag=unquote_etag(headers.get("etag")),
        version=version_of(headers.get("x-amz-version-id")),
        last_modified=parse_http_date(headers.get("last-modified")),
        content_type=headers.get("content-type"),
        content_encoding=headers.get("content-encoding"),
        content_disposition=headers.get("content-disposition"),
        cache_control=headers.get("cache-control"),
        user_metadata={
            name.removeprefix(USER_METADATA): value for name, value in headers.items() if name.startswith(USER_METADATA)
        },
    )


def directory_of(page: ListedPage, request: StatRequest) -> Metadata:
    """The metadata of a directory, from a listing of at most one entry below it."""
    if not page.entries:
        raise NotFound("there is no such directory", operation=request.operation, path=request.path)
    return Metadata(path=request.path, kind="directory")


def list_page_of(page: ListedPage, request: ListRequest, entries_max: int) -> ListPage:
    """One page, in the order of keys, without the listed directory itself. ``entries_max`` were asked for.

    Raises ``ProtocolError`` for a page that cannot be right.
    """

    def wrong(why: str, **context: object) -> ProtocolError:
        return ProtocolError(why, operation=request.operation, path=request.path, context=context)

    entries, token, path = page.entries, page.next_token, request.path
    if len(entries) > entries_max:
        raise wrong(f"the page holds {len(entries)} entries where at most {entries_max} were asked for")
    if page.strangers:
        raise wrong(f"the listing of {path!r} holds {excerpt(page.strangers[0])!r}", strangers=len(page.strangers))
    if page.is_truncated and not token:
        raise wrong("the page is not the last one and names no next one")
    if token is not None and token == request.page_token:
        raise wrong("the page names itself as the next one: the listing would never end")
    has_marker = False
    if path.endswith("/") or not path:
        own = [entry for entry in entries if entry.path == path]
        has_marker = bool(own)
        entries = [entry for entry in entries if entry.path != path] if own else entries
    if request.start_after is not None:
        # A directory that comes after its own name, as "a/x" does after "a/", is listed again by S3.
        entries = [entry for entry in entries if entry.path > request.start_after]
    # Some stores send the delete markers after the versions.
    ordered = sorted(entries, key=_by_version if request.versions else _path_of)
    return ListPage(entries=tuple(ordered), next_token=token if page.is_truncated else None, has_marker=has_marker)


def _by_version(entry: Entry) -> tuple[str, bool, float]:
    """The order of paths, and of the versions of one from the newest to the oldest."""
    age = 0.0 if entry.last_modified is None else -entry.last_modified.timestamp()
    return entry.path, not entry.is_latest, age
