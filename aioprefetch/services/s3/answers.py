"""What S3's answers mean in our values: heads, metadata, pages of a listing. Pure, no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aioprefetch.errors import NotFound, ProtocolError
from aioprefetch.headers import parse_http_date, unquote_etag
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.values import AnswerHead, Entry, ListPage, ListRequest, Metadata, ReadRequest, StatRequest

_NUMBER = re.compile(r"\d{1,19}")


def headers_of(reply: Mapping[str, Any]) -> Mapping[str, str]:
    """The headers of an answer, their names in lower case."""
    headers: Mapping[str, str] = reply["ResponseMetadata"]["HTTPHeaders"]
    return headers


def version_of(text: str | None) -> str | None:
    """A version's identifier. ``null`` is whatever was written last without versioning: it pins nothing."""
    return text if text and text != "null" else None


def in_utc(when: object) -> datetime | None:
    """A time that botocore parsed, which may be in the zone of this machine."""
    return when.astimezone(UTC) if isinstance(when, datetime) else None


def check_is_object(answer: AnswerHead, request: ReadRequest) -> None:
    """``ProtocolError`` for a body that is no object's: each object of S3 has an ETag, error pages have none.

    Without one nothing would tell two versions of an object from one another either.
    """
    if answer.etag is None:
        raise ProtocolError(
            f"the answer ({answer.status}, {answer.content_type}) carries no ETag: it is not an S3 object's",
            operation="read",
            path=request.path,
        )


def answer_head(reply: Mapping[str, Any]) -> AnswerHead:
    """The head of an answer to a GET, not checked yet."""
    headers = headers_of(reply)
    length = headers.get("content-length", "")
    return AnswerHead(
        status=int(reply["ResponseMetadata"]["HTTPStatusCode"]),
        content_range=headers.get("content-range"),
        content_length=int(length) if _NUMBER.fullmatch(length) else None,
        etag=unquote_etag(headers.get("etag")),
        version=version_of(headers.get("x-amz-version-id")),
        last_modified=parse_http_date(headers.get("last-modified")),
        content_type=headers.get("content-type"),
    )


def metadata_of(reply: Mapping[str, Any], request: StatRequest) -> Metadata:
    """The metadata in an answer to a HEAD."""
    headers = headers_of(reply)
    length = headers.get("content-length", "")
    if not _NUMBER.fullmatch(length) or int(length) > OFFSET_MAX:
        raise ProtocolError(
            f"the store says that the object has {length or 'no number of'} bytes",
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
        user_metadata={name.lower(): value for name, value in (reply.get("Metadata") or {}).items()},
    )


def directory_of(reply: Mapping[str, Any], request: StatRequest) -> Metadata:
    """The metadata of a directory, from a listing of at most one entry below it."""
    if not reply.get("Contents") and not reply.get("CommonPrefixes"):
        raise NotFound("there is no such directory", operation=request.operation, path=request.path)
    return Metadata(path=request.path, kind="directory")


def list_page_of(reply: Mapping[str, Any], request: ListRequest, root: str) -> ListPage:
    """One page, in the order of keys, without the listed directory itself. ``root`` is what our paths lack."""

    def wrong(why: str) -> ProtocolError:
        return ProtocolError(why, operation=request.operation, path=request.path)

    entries = [Entry(path=found["Prefix"], kind="directory") for found in reply.get("CommonPrefixes") or ()]
    entries += [_entry(found, wrong) for found in reply.get("Contents") or ()]
    prefix = root + request.path
    strangers = [entry.path for entry in entries if not entry.path.startswith(prefix)]
    if strangers:
        raise wrong(f"the listing of {prefix!r} holds {strangers[0]!r}")
    token = reply.get("NextContinuationToken") if reply.get("IsTruncated") else None
    if reply.get("IsTruncated") and not token:
        raise wrong("the page is not the last one and names no next one")
    if token is not None and token == request.page_token:
        raise wrong("the page names itself as the next one: the listing would never end")
    kept = sorted(
        (_relative(entry, len(root)) for entry in entries if entry.path != prefix or not prefix.endswith("/")),
        key=lambda entry: entry.path,
    )
    if request.start_after is not None:
        # A directory that comes after its own name, as "a/x" does after "a/", is listed again by S3.
        kept = [entry for entry in kept if entry.path > request.start_after]
    return ListPage(entries=tuple(kept), next_token=token)


def _entry(found: Mapping[str, Any], wrong: Callable[[str], ProtocolError]) -> Entry:
    key = found["Key"]
    size = found.get("Size")
    if not isinstance(size, int) or not 0 <= size <= OFFSET_MAX:
        raise wrong(f"the listing gives {key!r} the size {size!r}")
    if key.endswith("/"):
        return Entry(path=key, kind="directory")
    return Entry(
        path=key,
        size=size,
        etag=unquote_etag(found.get("ETag")),
        last_modified=in_utc(found.get("LastModified")),
    )


def _relative(entry: Entry, strip: int) -> Entry:
    if not strip:
        return entry
    return Entry(
        path=entry.path[strip:],
        kind=entry.kind,
        size=entry.size,
        etag=entry.etag,
        last_modified=entry.last_modified,
    )
