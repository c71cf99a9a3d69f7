"""Pages of a listing from a store that lists by a stream without tokens, or one level at once.

A token is a number and the last path of its page. The number finds the listing, which is kept for a while; if it is
gone, or was asked twice, a new listing begins behind that path, which takes a listing in order. Stores that list in
no order at all are listed to the end, sorted, and served from memory.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from aioprefetch.errors import InvalidArgument, ProtocolError, Unsupported, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.services.folding import PAGE_ENTRIES, fold_page
from aioprefetch.services.obspec.responses import entry_of
from aioprefetch.services.obspec.traits import Order, has, kind_of, order_of
from aioprefetch.values import Entry, ListPage, ListRequest

T = TypeVar("T")

# Unfinished listings keep the entries that they have fetched; the oldest is dropped first.
LISTINGS_KEPT_MAX = 16
_TOKEN = re.compile(r"\d+([:!])(.*)", re.DOTALL)

# Makes our errors of those of the store.
Guard = Callable[[ListRequest, Callable[[], Awaitable[T]]], Awaitable[T]]


class Listing(Protocol):
    """A listing that was begun. Paths in it are keys of the store, with the root."""

    @property
    def in_order(self) -> bool:
        """Whether all entries so far were in the order of keys."""
        ...

    async def page(self, request: ListRequest, limit: int) -> ListPage:
        """The next entries; ``next_token`` is the last of them unless there are no more."""
        ...


class Listings:
    """The listings of one store, for one runtime. ``root`` ends with ``/`` or is empty."""

    def __init__(self, store: Any, root: str, guard: Guard[Any]) -> None:
        self._store = store
        self._root = root
        self._guard = guard
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
        order = order_of(self._store)
        if request.recursive and order != "none":
            stream = self._open(request, _offset_of(request))
            return StreamedListing(stream, request, self._guard, order)
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
        self, stream: AsyncIterator[Sequence[Any]], request: ListRequest, guard: Guard[Any], order: Order
    ) -> None:
        self.in_order = True
        self._order = order
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
                if self._order == "keys":
                    raise _disordered(request, f"{excerpt(key)!r} after {excerpt(self._seen)!r}")
            self._seen = key
            if key.startswith(self._prefix):
                if key > self._after:
                    self._ready.append(entry)
            elif key > self._prefix and self._order == "keys":
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
    """A text behind which the listing may begin; ``None`` if there is none that every store understands."""
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
