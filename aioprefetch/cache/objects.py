"""The entries in a store behind an Operator: listed, found, read, verified, written, evicted.

The only error raised here is ``CacheFailed``, which makes the layer continue without the cache.

Several processes may use one cache. Before the object is fetched, an entry that is missing from the
index is looked up by its name, since another process may have written it. The store is listed again now and then, so
that the bytes of all processes count.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Protocol, TypeVar

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.list_pages import Paging
from aioprefetch.accessor.protocols import Accessor, WriteBody
from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.cache.entry import (
    TAIL_BYTES_MAX,
    BadEntry,
    Checksums,
    EntryTail,
    claimed_length,
    decode_tail,
    encode_tail,
    piece_bytes,
    tail_length,
)
from aioprefetch.cache.guard import CacheFailed, GuardedCalls
from aioprefetch.cache.index import Looks, LruIndex
from aioprefetch.cache.object_entry import (
    FOLDER,
    CacheEntry,
    Slot,
    decode_facts,
    encode_facts,
    is_object_name,
)
from aioprefetch.errors import ConditionNotMatch, NotFound, ObjectChanged, RangeNotSatisfied
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import DeleteRequest, Entry, ListRequest, ReadHead, ReadRequest, WriteRequest

T = TypeVar("T")

COOL_DOWN_SECONDS = 30.0
DELETE_PATHS = 1000
# Most tails are shorter. A longer one costs a second read.
TAIL_READ_BYTES = 16 << 10
# Checksums of more than this are computed on the executor: zlib lets other threads run meanwhile.
INLINE_BYTES_MAX = 1 << 20

# The file is missing or new: another process evicted or replaced it since its tail was read.
_GONE = (NotFound, ConditionNotMatch, ObjectChanged, RangeNotSatisfied)


class EntryGone(Exception):
    """Another process has evicted or replaced the file of an entry. Never leaves the layer."""


class CacheSource(Protocol):
    """The second store as the cache sees it. An Operator fits."""

    def accessor(self) -> Accessor:
        """The live accessor for the running loop."""
        ...


class CacheCalls(GuardedCalls):
    """Calls of the cache's store: limited in time, and paused after too many failures."""

    def __init__(self, source: CacheSource, runtime: Runtime, timeout_seconds: float) -> None:
        super().__init__(
            runtime,
            subject="the entries of the cache",
            counter="cache_failures",
            event="cache.failed",
            cool_down_seconds=COOL_DOWN_SECONDS,
        )
        self.timeout_seconds = timeout_seconds
        self._source = source

    def _left_alone(self) -> None:
        self.runtime.events.publish("cache.bypassed", "", seconds=self.cool_down_seconds)

    async def call(
        self,
        what: str,
        call: Callable[[Accessor], Awaitable[T]],
        dispose: Callable[[T], Coroutine[object, object, None]] | None = None,
    ) -> T:
        """The result of ``call``, which gets the accessor of the cache. Raises ``CacheFailed`` and nothing else.

        A call that does not have to wait ends here. A call that ignores its deadline and its cancellation is abandoned:
        it must work on memory of its own; ``dispose`` gets a result that comes too late.
        """
        try:
            result = await self.run(
                f"cache {what}", lambda: call(self._source.accessor()), self.timeout_seconds, dispose=dispose
            )
        except Exception as error:
            # A bad entry does not mean that the store is bad.
            self.failed(what, error, "entry" if what == "read" and isinstance(error, BadEntry) else "count")
            raise CacheFailed(error) from error
        self.succeeded()
        return result


class EntryObjects:
    """The cache of one runtime: its index, and the operations on its files."""

    def __init__(self, calls: CacheCalls, runtime: Runtime, *, capacity_bytes: int) -> None:
        self.calls = calls
        self.capacity_bytes = capacity_bytes
        self.index: LruIndex[CacheEntry] = LruIndex()
        self._runtime = runtime
        self._last_read = 0.0
        self._is_loaded = False
        # The live store, and whether it supports a condition on the version, which takes a call of each layer.
        self._pins: tuple[Accessor, bool] | None = None
        self._loading: asyncio.Event | None = None
        self._looks = Looks(capacity_bytes)
        # Size and time of last use of the entries that are being written, and an event that ends each write.
        self._writing: dict[str, tuple[int, Callable[[], float]]] = {}
        self._written = asyncio.Event()
        # Files that are out of the index and still have to be deleted, one sweep at a time: a write waits for the
        # sweep before it, so that no late deletion hits a file that was written again.
        self._to_delete: dict[str, None] = {}
        self._sweeping = asyncio.Lock()

    def read_time(self) -> float:
        """The wall-clock time of a read, later than for all reads before."""
        self._last_read = max(time.time(), self._last_read + 1e-6)
        return self._last_read

    # --- the index ----------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the cache can be used now, at once."""
        return self._is_loaded and not (self._runtime.supervisor.closed or self.calls.is_off)

    async def ready(self) -> bool:
        """Whether the cache can be used; at first use the index is rebuilt from a listing of the store.

        A rebuild that takes longer than one call may continue in the background: until then reads bypass the cache.
        """
        if self._runtime.supervisor.closed or self.calls.is_off or self._is_loaded:
            return self.is_ready
        if self._loading is None:
            self._load_later()
        assert self._loading is not None
        try:
            async with asyncio.timeout(self.calls.timeout_seconds):
                await self._loading.wait()
        except TimeoutError:
            return False
        return self._is_loaded

    def _load_later(self) -> None:
        self._loading = asyncio.Event()
        self._runtime.supervisor.spawn(self._load(self._loading), name="listing of the cache")

    async def _load(self, finished: asyncio.Event) -> None:
        """List the store, and bring the index up to date."""
        began_at = self._runtime.now()
        self._looks.began()
        before = dict(self.index.items())
        try:
            listed = await self._list()
        except CacheFailed:
            return
        else:
            new, gone = self.index.differing(listed)
            for name in gone:
                if before.get(name) is self.index.get(name):  # It was not written during the listing.
                    self.index.discard(name)
            added = sorted((_modified_seconds(listed[name]), name) for name in new if name not in self._to_delete)
            now = self.read_time()
            for modified, name in added:
                entry = CacheEntry(name=name, size_bytes=listed[name].size or 0)
                self.index.add(name, entry.size_bytes, entry, used_at=min(modified, now))
            self._is_loaded = True
            self._delete_later(self._evict(self._excess()))
        finally:
            self._looks.ended(began_at, self._runtime.now())
            self._loading = None
            finished.set()

    async def _list(self) -> dict[str, Entry]:
        """The entries in the store by name."""
        listed: dict[str, Entry] = {}
        paging = Paging(ListRequest(path=FOLDER, recursive=True))

        async def next_page(cache: Accessor) -> list[Entry]:
            assert paging.request is not None
            page = await cache.list_page(paging.request)
            return paging.turn(page.entries, page.next_token, page.left_out)

        while paging.request is not None:
            entries = await self.calls.call("list", next_page)
            listed.update((entry.path, entry) for entry in entries if is_object_name(entry.path))
        return listed

    def _evict(self, need_bytes: int) -> list[str]:
        """Take the least recently read entries out of the index; returns their names, whose files are to be deleted."""
        names = self.index.victims(need_bytes)
        for name in names:
            size_bytes = self.index.size(name)
            self.index.discard(name)
            self._runtime.counters["cache_evictions"] += 1
            self._runtime.events.publish("cache.evicted", "", entry=name, size_bytes=size_bytes)
        return names

    # --- reading ------------------------------------------------------------------------------------------------

    async def find(self, slot: Slot) -> CacheEntry | None:
        """The entry of a slot as it is in the store now; it is added to the index by ``found``."""
        if slot.name in self._to_delete:
            return None
        try:
            return await self.calls.call("read", lambda cache: self._read_tail(cache, slot))
        except CacheFailed as failure:
            if failure.is_lasting:
                self.forget([slot.name])
            return None

    def found(self, name: str, entry: CacheEntry | None) -> None:
        """Bring the index up to date with what was found in the store."""
        indexed = self.index.discard(name)
        if entry is not None:
            if indexed is not None and indexed.tail == entry.tail:
                entry.validated_at = indexed.validated_at
            self.index.add(name, entry.size_bytes, entry, used_at=self.read_time())

    async def _read_tail(self, cache: Accessor, slot: Slot) -> CacheEntry | None:
        sink = CollectSink()
        try:
            head = (await cache.read(ReadRequest(path=slot.name, suffix=TAIL_READ_BYTES), sink)).head
            raw = sink.to_bytes()
            length = claimed_length(raw)
            if len(raw) < length <= head.end:
                rest = CollectSink()
                missing = ReadRequest(
                    path=slot.name,
                    offset=head.end - length,
                    size=length - len(raw),
                    if_match=self._strong_etag(cache, head.etag),
                )
                await cache.read(missing, rest)
                raw = rest.to_bytes() + raw
        except _GONE:
            return None
        tail = decode_tail(raw, identity=slot.identity, file_bytes=head.end)
        return CacheEntry(
            name=slot.name,
            size_bytes=head.end,
            tail=tail,
            head=decode_facts(tail.facts, tail.data_bytes),
            store_etag=head.etag,
            store_modified=head.last_modified,
        )

    async def load(self, entry: CacheEntry, low: int, high: int) -> memoryview:
        """The whole pieces ``[low, high)`` of an entry, read at once and verified each time.

        Raises ``EntryGone`` when another process evicted or replaced the file, and ``CacheFailed``.
        """
        tail = entry.tail
        assert tail is not None
        sink = EntrySink(entry, start=low, size=high - low)

        async def read(cache: Accessor) -> memoryview | None:
            pin = self._strong_etag(cache, entry.store_etag)
            try:
                await cache.read(ReadRequest(path=entry.name, offset=low, size=high - low, if_match=pin), sink)
            except _GONE:
                return None
            return sink.to_view()

        view = await self.calls.call("read", read)
        if view is None:
            raise EntryGone
        try:
            if len(view) <= INLINE_BYTES_MAX:
                tail.verify(low, view)
            else:
                await self._runtime.run_blocking(tail.verify, low, view)
        except BadEntry as error:
            self.calls.failed("read", error, "entry")
            raise CacheFailed(error) from error
        return view

    def _strong_etag(self, cache: Accessor, etag: str | None) -> str | None:
        """The ETag to pin a read of the cache's store to, ``None`` if that is not possible."""
        known = self._pins
        if known is None or known[0] is not cache:
            known = self._pins = (cache, cache.capability.read_if_match)
        return etag if known[1] and etag is not None and not is_weak(etag) else None

    # --- invalidation -------------------------------------------------------------------------------------------

    def drop(self, entry: CacheEntry) -> None:
        """Forget an entry, and delete its file in the background."""
        if self.forget_entry(entry):
            self._delete_later([entry.name])

    def forget_entry(self, entry: CacheEntry) -> bool:
        """Forget an entry and leave its file alone. Returns whether it was in the index."""
        if self.index.get(entry.name) is not entry:
            return False
        self.index.discard(entry.name)
        return True

    def forget(self, names: list[str]) -> None:
        """Forget the entries of these names, and delete their files, by any process, in the background."""
        for name in names:
            self.index.discard(name)
        self._delete_later(names)

    async def invalidate(self, names: list[str]) -> None:
        """Forget these entries; their files are gone when this returns, unless the cache fails."""
        for name in names:
            self.index.discard(name)
        await self._delete(names)

    def _delete_later(self, names: list[str]) -> None:
        self._to_delete.update(dict.fromkeys(names))
        if names and not self._runtime.supervisor.closed:
            self._runtime.supervisor.spawn(self._sweep(), name="deletion of cache entries")

    async def _delete(self, names: list[str]) -> None:
        self._to_delete.update(dict.fromkeys(names))
        await self._sweep()

    async def _sweep(self) -> None:
        """Delete the files in ``_to_delete``. After a failure they wait for the next sweep, which every write does."""
        async with self._sweeping:
            while self._to_delete and not self.calls.is_off:
                paths = tuple(itertools.islice(self._to_delete, DELETE_PATHS))
                request = DeleteRequest(path=paths[0], paths=paths)
                try:
                    await self.calls.call("delete", lambda cache, request=request: cache.delete(request))  # type: ignore[misc]
                except CacheFailed:
                    return
                for path in paths:
                    self._to_delete.pop(path, None)

    # --- writing ------------------------------------------------------------------------------------------------

    async def write(
        self,
        slot: Slot,
        entry: CacheEntry,
        arrived: Callable[[CacheEntry, int], Awaitable[memoryview | None]],
        last_read: Callable[[], float],
    ) -> bool:
        """Write an entry while its data arrive; whether it is there then. Raises ``CacheFailed``.

        ``arrived`` waits for the bytes from a position on: none at the end, ``None`` to give up. Entries that were read
        before this one are evicted; where only other writes leave no room it waits for them.
        """
        facts, data_bytes = encode_facts(entry.whole), entry.whole.size
        size_bytes = data_bytes + tail_length(slot.identity, facts, data_bytes)
        if size_bytes - data_bytes > TAIL_BYTES_MAX:
            return False
        while slot.name in self._writing:
            await self._written.wait()
        replaced = self.index.discard(slot.name)
        evicted = await self._make_room(size_bytes, last_read)
        if evicted is None:
            self._delete_later([] if replaced is None else [slot.name])
            return False
        self._writing[slot.name] = size_bytes, last_read
        is_written = False
        try:
            await self._delete(evicted)
            self._to_delete.pop(slot.name, None)
            body = await self.calls.call("open_write", partial(_open_body, slot.name), _discard)
            try:
                sums = await self._write_data(body, entry, arrived)
                if sums is not None:
                    tail = encode_tail(slot.identity, facts, data_bytes, sums)
                    await self.calls.call("write", lambda _: body.write(tail))
                    metadata = await self.calls.call("close", lambda _: body.close())
                    is_written = True
            finally:
                if not is_written:
                    await self._abort(body)
        finally:
            self._ended(slot.name, is_left=not is_written)
        if sums is not None:
            entry.size_bytes, entry.tail = size_bytes, EntryTail(facts, data_bytes, sums)
            entry.store_etag = metadata.etag
            self._wrote(entry, last_read())
        return is_written

    async def _write_data(
        self, body: WriteBody, entry: CacheEntry, arrived: Callable[[CacheEntry, int], Awaitable[memoryview | None]]
    ) -> tuple[int, ...] | None:
        """Write the data as they arrive; their checksums, ``None`` to give up."""
        sums, position = Checksums(piece_bytes(entry.whole.size)), 0
        while data := await arrived(entry, position):
            sums.add(data)
            await self.calls.call("write", partial(_write_to, body, data))
            position += len(data)
        return None if data is None else sums.all()

    async def _abort(self, body: WriteBody) -> None:
        """Leave no file behind. Not a guarded call: this has to be done at the end of the supervisor too."""
        try:
            async with asyncio.timeout(self.calls.timeout_seconds):
                await body.abort()
        except Exception as error:
            self.calls.failed("abort", error, "count")

    async def _make_room(self, size_bytes: int, last_read: Callable[[], float]) -> list[str] | None:
        """Evict entries until ``size_bytes`` fit; ``None`` when only entries that were read later could go."""
        while size_bytes <= self.capacity_bytes:
            need_bytes = self._excess() + size_bytes
            # An entry that is being written may be the one to go, if it was read before those in the index.
            used_before = min([last_read(), *(read_at() for _, read_at in self._writing.values())])
            victims = self.index.victims(need_bytes, used_before=used_before)
            if sum(map(self.index.size, victims)) >= need_bytes:
                return self._evict(need_bytes)
            if not self._writing:
                return None
            await self._written.wait()
        return None

    def _excess(self) -> int:
        """By how many bytes all entries, including unfinished ones, exceed the capacity; negative below it."""
        return self.index.total_bytes + sum(size for size, _ in self._writing.values()) - self.capacity_bytes

    def _ended(self, name: str, *, is_left: bool) -> None:
        """A write has ended; ``is_left``: a file of it may have appeared, and has to be deleted."""
        del self._writing[name]
        written, self._written = self._written, asyncio.Event()
        written.set()
        if is_left:
            self._to_delete[name] = None

    def _wrote(self, entry: CacheEntry, used_at: float) -> None:
        """Add an entry that was written to the index, by the time of its last read."""
        self.index.add(entry.name, entry.size_bytes, entry, used_at=used_at)
        looks = self._looks
        looks.wrote(entry.size_bytes)
        if self._loading is None and looks.has_written_much and looks.is_cheap(self._runtime.now()):
            self._load_later()


class EntrySink(CollectSink):
    """Receives ``size`` bytes at ``start`` of an entry's file, before a reader sees any of them.

    Any other response, also from a file that replaced the expected one, is ``ObjectChanged``.
    """

    __slots__ = ("_entry", "due")
    piece_bytes_max = sys.maxsize

    def __init__(self, entry: CacheEntry, *, start: int, size: int) -> None:
        CollectSink.__init__(self)
        self.due = (start, start + size)
        self._entry = entry

    def _begun(self, head: ReadHead) -> None:
        entry = self._entry
        # Without an ETag, which the first response brings, range and size alone are compared.
        etag = head.etag if entry.store_etag is None else entry.store_etag
        pin = VersionPin(etag, size=entry.size_bytes, path=entry.name)
        pin.check(head, self.due)
        if entry.store_modified not in (None, head.last_modified):
            raise pin.changed(head.etag, "the file of a cache entry was replaced")
        if entry.store_etag is None:
            entry.store_etag, entry.store_modified = head.etag, head.last_modified


async def _open_body(name: str, cache: Accessor) -> WriteBody:
    return await cache.open_write(WriteRequest(path=name, content_type="application/octet-stream"))


async def _write_to(body: WriteBody, data: memoryview, _: Accessor) -> None:
    await body.write(data)


async def _discard(body: WriteBody) -> None:
    await body.abort()


def _modified_seconds(entry: Entry) -> float:
    return entry.last_modified.timestamp() if entry.last_modified else 0.0
