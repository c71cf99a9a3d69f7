"""The responses of a store as our values, checked as a response of HTTP is; and pages of its listings.

A store lists by a stream without tokens, or one level at once. A token of ours is a number and the last path of its
page. The number finds the listing, which is kept for a while; if it is gone, or was asked twice, a new listing begins
behind that path, which takes a listing in order. Stores that list in no order at all are listed to the end, sorted, and
served from memory.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from aioprefetch.accessor.http_headers import (
    described_by,
    described_in,
    headers_about,
    is_weak,
    quote_etag,
    unquote_etag,
)
from aioprefetch.accessor.response_check import check_reply
from aioprefetch.errors import InvalidArgument, ProtocolError, Unsupported, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.services.keys import PAGE_ENTRIES, fold_page, listed
from aioprefetch.services.obspec.options import has, kind_of, lists_by_chunks
from aioprefetch.values import (
    Capability,
    Entry,
    ListPage,
    ListRequest,
    Metadata,
    ReadHead,
    ReadRequest,
    Request,
    StatRequest,
    UncheckedHead,
    WriteRequest,
)

T = TypeVar("T")

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
        user_metadata=_user_metadata_in(attributes),
    )
    head = check_reply(request, response)
    if request.version not in (None, head.version):
        raise _wrong(request, f"the response is version {excerpt(head.version)!r}, not {request.version!r}")
    return head


def _user_metadata_in(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in attributes.items() if name not in _NAMED}


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
        user_metadata=_user_metadata_in(attributes),
        **{**described_in(attributes.get), "expires": None},
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
    etag, version, modified = _etag_of(meta, size), _version_of(meta), _time_of(meta)
    return listed(Entry(path=path, size=size, etag=etag, version=version, last_modified=modified))


def write_attributes(request: WriteRequest, capability: Capability) -> dict[str, str]:
    """The attributes of a new object, under obspec's names, without those the store drops."""
    if not capability.write_content_type:
        return {}
    metadata = dict(request.user_metadata) if capability.write_user_metadata else {}
    return {name.title(): text for name, text in headers_about(replace(request, expires=None)).items()} | metadata


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
        **described_by(request),
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


# --- listings ---------------------------------------------------------------------------------------------------------

# Unfinished listings keep the entries that they have fetched; the oldest is dropped first.
LISTINGS_KEPT_MAX = 16
_TOKEN = re.compile(r"\d+([:!])(.*)", re.DOTALL)

# Makes our errors from the store's.
Guard = Callable[[ListRequest, Callable[[], Awaitable[T]]], Awaitable[T]]


class Listing(Protocol):
    """A listing that was begun. Paths in it are keys of the store, with the root."""

    @property
    def in_order(self) -> bool:
        """Whether all entries so far were in the order of keys."""

    async def page(self, request: ListRequest, limit: int) -> ListPage:
        """The next entries; ``next_token`` is the last of them unless there are no more."""


class Listings:
    """The listings of one store, for one runtime. ``root`` ends with ``/`` or is empty."""

    def __init__(self, store: Any, root: str, guard: Guard[Any], *, is_ordered: bool) -> None:
        self._store = store
        self._root = root
        self._guard = guard
        self._is_ordered = is_ordered
        self._numbers = itertools.count(1)
        self._begun: OrderedDict[str, Listing] = OrderedDict()

    async def page(self, request: ListRequest) -> ListPage:
        """One page, its paths without the root."""
        root = self._root
        last, in_order = _read_token(request)
        limit = min(request.page_entries_max or PAGE_ENTRIES, PAGE_ENTRIES)
        inner = replace(
            request,
            path=root + request.path,
            start_after=root + request.start_after if request.start_after else None,
            page_token=root + last if last else None,
            page_entries_max=limit,
        )
        # A listing whose page failed is not used again: its position is unknown.
        listing = self._begun.pop(request.page_token or "", None)
        if listing is None:
            if not in_order:
                raise _disordered(request, "and is gone: list again")
            listing = await self._begin(inner)
        page = await listing.page(inner, limit)
        strip = len(root)
        entries = tuple(replace(entry, path=entry.path[strip:]) for entry in page.entries) if strip else page.entries
        token = None
        if page.next_token is not None:
            token = f"{next(self._numbers)}{':' if listing.in_order else '!'}{page.next_token[strip:]}"
            self._begun[token] = listing
            if len(self._begun) > LISTINGS_KEPT_MAX:
                self._begun.popitem(last=False)
        return ListPage(entries=entries, next_token=token)

    def clear(self) -> None:
        """Forget every listing that was begun."""
        self._begun.clear()

    async def _begin(self, request: ListRequest) -> Listing:
        if not request.recursive and has(self._store, "list_with_delimiter_async"):
            return await self._level(request)
        if not has(self._store, "list_async"):
            raise Unsupported("the store lists no more than one level", operation="list", path=request.path)
        if request.recursive and lists_by_chunks(self._store):
            stream = self._open(request, _offset_of(request))
            return StreamedListing(stream, request, self._guard, is_ordered=self._is_ordered)
        return await self._drained(request)

    async def _level(self, request: ListRequest) -> Listing:
        """A listing of one directory, which obspec returns at once."""
        parent = _parent_of(request.path)
        level = await self._guard(request, lambda: self._store.list_with_delimiter_async(parent))
        if not isinstance(level, Mapping):
            what = f"list_with_delimiter_async returned a {type(level).__name__}, not a mapping"
            raise ProtocolError(what, operation="list", path=request.path)
        entries = [entry_of(meta, request) for meta in level.get("objects") or ()]
        entries += [
            Entry(path=f"{str(path).rstrip('/')}/", kind="directory") for path in level.get("common_prefixes") or ()
        ]
        return HeldListing.of(entries)

    async def _drained(self, request: ListRequest) -> Listing:
        stream = self._open(request, None)
        entries: list[Entry] = []
        while (chunk := await self._guard(request, lambda: _chunk(stream))) is not None:
            entries += [entry_of(meta, request) for meta in chunk]
        return HeldListing.of(entries)

    def _open(self, request: ListRequest, offset: str | None) -> AsyncIterator[Sequence[Any]]:
        options: dict[str, Any] = {"offset": offset} if offset else {}
        if kind_of(self._store):
            options["chunk_size"] = PAGE_ENTRIES
        stream: AsyncIterator[Sequence[Any]] = aiter(self._store.list_async(_parent_of(request.path), **options))
        return stream


@dataclass(frozen=True, slots=True)
class HeldListing:
    """A listing that is held whole."""

    keys: Sequence[str]
    entries: Mapping[str, Entry]
    in_order: bool = True

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> HeldListing:
        """A listing of entries that may be in any order."""
        by_path = {entry.path: entry for entry in entries}
        return cls(sorted(by_path), by_path)

    async def page(self, request: ListRequest, limit: int) -> ListPage:
        """The entries behind the token."""
        return fold_page(self.keys, request, self.entries.__getitem__)


class StreamedListing:
    """A recursive listing in the order of the store, held chunk by chunk."""

    def __init__(
        self, stream: AsyncIterator[Sequence[Any]], request: ListRequest, guard: Guard[Any], *, is_ordered: bool
    ) -> None:
        self.in_order = True
        self._is_ordered = is_ordered
        self._stream = stream
        self._guard = guard
        self._prefix = request.path
        self._after = max(request.start_after or "", request.page_token or "")
        self._seen = ""
        self._ready: deque[Entry] = deque()
        self._ended = False

    async def page(self, request: ListRequest, limit: int) -> ListPage:
        """The next entries; a page may be empty when the one before ended the listing."""
        while len(self._ready) < limit and not self._ended:
            chunk = await self._guard(request, lambda: _chunk(self._stream))
            self._take(chunk, request)
        entries = tuple(self._ready.popleft() for _ in range(min(limit, len(self._ready))))
        more = bool(self._ready) or not self._ended
        return ListPage(entries=entries, next_token=entries[-1].path if more else None)

    def _take(self, chunk: Sequence[Any] | None, request: ListRequest) -> None:
        for meta in chunk or ():
            entry = entry_of(meta, request)
            key = entry.path
            if key < self._seen:
                self.in_order = False
                if self._is_ordered:
                    raise _disordered(request, f"{excerpt(key)!r} after {excerpt(self._seen)!r}")
            self._seen = key
            if key.startswith(self._prefix):
                if key > self._after and not (key == self._prefix and entry.is_directory):
                    self._ready.append(entry)
            elif key > self._prefix and self._is_ordered:
                self._ended = True
                return
        if chunk is None:
            self._ended = True


async def _chunk(stream: AsyncIterator[Sequence[Any]]) -> Sequence[Any] | None:
    """The next entries, ``None`` after the last ones."""
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return None


def _parent_of(prefix: str) -> str | None:
    """The directory of the keys that begin with ``prefix``: obspec's prefixes are whole segments."""
    return prefix.rpartition("/")[0] or None


def _offset_of(request: ListRequest) -> str | None:
    """A text behind which the listing may begin; ``None`` if not every store understands it."""
    after = max(request.start_after or "", request.page_token or "")
    if not after.startswith(request.path):
        after = request.path[:-1]  # Keys with this prefix sort after the prefix without its last character.
    if not after.isprintable() or "//" in after or after.startswith("/"):
        return None
    return after.rstrip("/") or None


def _read_token(request: ListRequest) -> tuple[str, bool]:
    """The last path of the page, and whether a new listing may begin behind it."""
    if request.page_token is None:
        return "", True
    match = _TOKEN.fullmatch(request.page_token)
    if match is None:
        raise InvalidArgument(
            f"page_token={request.page_token!r} is of no listing of this service", operation="list", path=request.path
        )
    return match[2], match[1] == ":"


def _disordered(request: ListRequest, what: str) -> ProtocolError:
    return ProtocolError(
        f"the listing does not come in the order of its keys ({what})",
        operation="list",
        path=request.path,
        status="permanent",
    )
