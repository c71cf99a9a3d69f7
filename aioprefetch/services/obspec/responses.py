"""The responses of a store as our values, checked as a response of HTTP is. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aioprefetch.accessor.http_headers import is_weak, quote_etag, unquote_etag
from aioprefetch.accessor.response_check import check_reply
from aioprefetch.errors import ProtocolError, excerpt
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.values import (
    Capability,
    Entry,
    Metadata,
    ReadHead,
    ReadRequest,
    Request,
    StatRequest,
    UncheckedHead,
    WriteRequest,
)

# Attributes that obspec names; any other is metadata of the user.
_NAMED = frozenset(
    {"content-disposition", "content-encoding", "content-language", "content-type", "cache-control", "storage-class"}
)


def read_options(request: ReadRequest) -> dict[str, Any]:
    """The options of ``get_async`` for a request, without conditions, whose form depends on the store."""
    options: dict[str, Any] = {}
    if request.suffix is not None:
        options["range"] = {"suffix": request.suffix}
    elif request.size is not None:
        options["range"] = (request.offset, request.offset + request.size)
    elif request.offset:
        options["range"] = {"offset": request.offset}
    if request.version is not None:
        options["version"] = request.version
    return options


def sent_etag(etag: str, *, quoted: bool) -> str:
    """An ETag in the form in which the store itself writes it."""
    return quote_etag(etag) if quoted else etag


def head_of(meta: Any, bounds: Any, attributes: Mapping[str, str], request: ReadRequest) -> ReadHead:
    """The head of a response to a GET, checked against its request before the first byte counts.

    Raises ``ProtocolError`` or ``ConditionNotMatch``. The response itself is not passed in: an exception that is kept
    would keep the connection too.
    """
    start, end = bounds
    size = _size_of(meta, request)
    if not (type(start) is type(end) is int and 0 <= start <= end <= size):
        raise _wrong(request, f"the store says that it sends [{start}, {end}) of an object of {size} bytes")
    response = UncheckedHead(
        status=206 if size else 200,
        content_range=f"bytes {start}-{end - 1}/{size}" if size else None,
        content_length=end - start,
        etag=_etag_of(meta, size),
        version=_version_of(meta),
        last_modified=_time_of(meta),
        content_type=attributes.get("content-type"),
        content_encoding=attributes.get("content-encoding"),
    )
    head = check_reply(request, response)
    if request.version not in (None, head.version):
        raise _wrong(request, f"the response is version {excerpt(head.version)!r}, not {request.version!r}")
    return head


def metadata_of(meta: Any, attributes: Mapping[str, str], request: StatRequest) -> Metadata:
    """The metadata of an object, from the metadata of the store."""
    size = _size_of(meta, request)
    version = _version_of(meta)
    if request.version not in (None, version):
        raise _wrong(request, f"the response is version {excerpt(version)!r}, not {request.version!r}")
    return Metadata(
        path=request.path,
        size=size,
        etag=_etag_of(meta, size),
        version=version,
        last_modified=_time_of(meta),
        user_metadata={name: text for name, text in attributes.items() if name not in _NAMED},
        content_type=attributes.get("content-type"),
        content_encoding=attributes.get("content-encoding"),
        content_disposition=attributes.get("content-disposition"),
        cache_control=attributes.get("cache-control"),
    )


def attributes_of(result: Any) -> dict[str, str]:
    """The attributes of a response, their names in lower case."""
    attributes = getattr(result, "attributes", None)
    return (
        {str(name).lower(): str(value) for name, value in attributes.items()} if isinstance(attributes, Mapping) else {}
    )


def entry_of(meta: Any, request: Request) -> Entry:
    """One line of a listing, with the key as its path."""
    path = meta.get("path") if isinstance(meta, Mapping) else None
    if not isinstance(path, str):
        raise _wrong(request, "the listing holds an entry without a path")
    size = _size_of(meta, request)
    return Entry(
        path=path, size=size, etag=_etag_of(meta, size), version=_version_of(meta), last_modified=_time_of(meta)
    )


def write_attributes(request: WriteRequest, capability: Capability) -> dict[str, str]:
    """The attributes of a new object, under obspec's names, as far as the store keeps them."""
    if not capability.write_content_type:
        return {}
    attributes = {
        "Content-Type": request.content_type,
        "Content-Encoding": request.content_encoding,
        "Content-Disposition": request.content_disposition,
        "Cache-Control": request.cache_control,
    }
    metadata = dict(request.user_metadata) if capability.write_user_metadata else {}
    return {name: value for name, value in attributes.items() if value is not None} | metadata


def sized(metadata: Metadata, size: int) -> Metadata:
    """Metadata of an object whose size has become known."""
    return replace(metadata, size=size)


def written(request: WriteRequest, result: Any, size: int | None) -> Metadata:
    """The metadata of an object that has just been written."""
    said = result if isinstance(result, Mapping) else {}
    return Metadata(
        path=request.path,
        size=size,
        etag=unquote_etag(said.get("e_tag")),
        version=_version_of(said),
        content_type=request.content_type,
        content_encoding=request.content_encoding,
        content_disposition=request.content_disposition,
        cache_control=request.cache_control,
        user_metadata=dict(request.user_metadata),
    )


def raw_etag(meta: Any) -> str | None:
    """The ETag as the store writes it, ``None`` if it gives none or a weak one."""
    etag = meta.get("e_tag") if isinstance(meta, Mapping) else None
    return etag if isinstance(etag, str) and etag and not is_weak(etag) else None


def _size_of(meta: Any, request: Request) -> int:
    size = meta.get("size") if isinstance(meta, Mapping) else None
    if type(size) is not int or not 0 <= size <= OFFSET_MAX:
        raise _wrong(request, f"the store says that the object has {excerpt(str(size))} bytes")
    return size


def _etag_of(meta: Mapping[str, Any], size: int) -> str | None:
    etag = unquote_etag(meta.get("e_tag"))
    if etag is not None:
        return etag
    # Two versions must be distinguished anyway. A weak ETag is compared and never sent.
    when = _time_of(meta)
    return None if when is None else f"W/{int(when.timestamp() * 1_000_000):x}-{size:x}"


def _version_of(meta: Mapping[str, Any]) -> str | None:
    version = meta.get("version")
    return str(version) if version and version != "null" else None


def _time_of(meta: Mapping[str, Any]) -> datetime | None:
    when = meta.get("last_modified")
    if not isinstance(when, datetime) or when.tzinfo is None:
        return None
    # obstore writes the beginning of time where a response has none.
    return when.astimezone(UTC) if when.timestamp() else None


def _wrong(request: Request, why: str) -> ProtocolError:
    return ProtocolError(why, operation=request.operation, path=request.path)
