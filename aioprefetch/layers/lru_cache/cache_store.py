"""The entries in the second store: found by the index, read, written, evicted.

Nothing here raises an error of the cache: ``CacheFailed`` tells the layer to go on without it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from zlib import crc32

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.accessor.write_body import WriteBody
from aioprefetch.errors import UntrustedMetadata
from aioprefetch.layers.lru_cache.entry import FOLDER, HEADER_BYTES_MAX, EntryHeader, decode_header, slot_in
from aioprefetch.layers.lru_cache.entry_sink import EntrySink
from aioprefetch.layers.lru_cache.guard import CacheFailed, CacheGuard
from aioprefetch.layers.lru_cache.index import IndexEntry, LruIndex
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import DeleteRequest, Entry, ListRequest, ReadHead, ReadRequest, WriteRequest

WRITE_BYTES = 1 << 20
DELETE_PATHS = 1000
# An entry is verified in pieces of at most this much.
VERIFY_BYTES = 4 << 20
# Larger checksums are computed on the executor: zlib lets other threads run meanwhile.
CRC_INLINE_BYTES = 1 << 20


class CacheStore:
    """The cache of one runtime: its index, and what is done with its files."""

    def __init__(self, guard: CacheGuard, runtime: Runtime, *, capacity_bytes: int) -> None:
        self.guard = guard
        self.index = LruIndex(capacity_bytes)
        self._runtime = runtime
        self._is_loaded = False
        self._loading: asyncio.Event | None = None
        # Slots that were invalidated before the index was there to look them up.
        self._invalidated: dict[str, None] = {}
        # Files that are out of the index and still have to be deleted, one sweep at a time: a write waits for the
        # sweep before it, so that no late deletion hits a file that was written again.
        self._doomed_names: dict[str, None] = {}
        self._sweeping = asyncio.Lock()
        # Entries that are being verified, so that readers beside each other do not all read all of one.
        self._verifying: dict[str, asyncio.Lock] = {}

    async def ready(self) -> bool:
        """Whether the cache can be used now; at first use the index is rebuilt from a listing of the store.

        A rebuild that takes longer than one call may goes on in the background: until then reads pass by.
        """
        if self._runtime.supervisor.closed or self.guard.is_bypassed:
            return False
        if self._is_loaded:
            return True
        if self._loading is None:
            self._loading = asyncio.Event()
            self._runtime.supervisor.spawn(self._load(self._loading), name="rebuild of the cache's index")
        try:
            async with asyncio.timeout(self.guard.timeout_seconds):
                await self._loading.wait()
        except TimeoutError:
            return False
        return self._is_loaded

    async def _load(self, finished: asyncio.Event) -> None:
        try:
            found = await self._list()
        except CacheFailed:
            return
        else:
            found.sort(key=_modified_seconds)
            entries = [
                IndexEntry(slot=slot, name=one.path, size_bytes=one.size or 0)
                for one in found
                if (slot := slot_in(one.path)) is not None
            ]
            superfluous = self.index.rebuild(entries)
            superfluous += [gone for slot in self._invalidated if (gone := self.index.pop(slot)) is not None]
            self._invalidated.clear()
            self._is_loaded = True
            self._delete_later(superfluous)
        finally:
            self._loading = None
            finished.set()

    async def _list(self) -> list[Entry]:
        found: list[Entry] = []
        token: str | None = None
        while True:
            request = ListRequest(path=FOLDER, recursive=True, page_token=token)
            page = await self.guard.call("list", lambda cache, request=request: cache.list_page(request))  # type: ignore[misc]
            found += [entry for entry in page.entries if slot_in(entry.path) is not None]
            token = page.next_token
            if token is None:
                return found

    async def header(self, entry: IndexEntry) -> EntryHeader | None:
        """The verified header of an entry, read once in this process. ``None``: the entry is bad, and dropped."""
        if entry.header is not None:
            return entry.header
        sink = CollectSink()
        try:
            await self.guard.call("read", lambda cache: self._read_header(cache, entry, sink))
        except CacheFailed as failure:
            self.judge(entry, failure)
        return entry.header

    async def _read_header(self, cache: Accessor, entry: IndexEntry, sink: CollectSink) -> None:
        reply = await cache.read(ReadRequest(path=entry.name, size=HEADER_BYTES_MAX), sink)
        file_bytes = entry.size_bytes if reply.head.total is None else reply.head.total
        header, data_offset = decode_header(sink.to_bytes(), name=entry.name, slot=entry.slot, file_bytes=file_bytes)
        entry.header, entry.data_offset = header, data_offset
        entry.store_etag, entry.store_modified = reply.head.etag, reply.head.last_modified

    def load_bytes(self, entry: IndexEntry, part: ReadHead) -> int:
        """How much memory ``load`` takes at most."""
        assert entry.header is not None
        total = entry.header.total
        return part.size if entry.is_verified or part.size == total else part.size + min(total, VERIFY_BYTES)

    async def load(self, entry: IndexEntry, part: ReadHead) -> bytearray:
        """A part of an entry with a known header, of data whose checksum was verified in this process.

        The first part of an entry reads all of it therefore. Raises ``CacheFailed``. Nothing is delivered before all of
        it is there and checked, so the store can still serve the read.
        """
        assert entry.header is not None
        if part.size == entry.header.total:
            data = await self._read(entry, part.start, part.size)
            self._verify(entry, await self.checksum(data))
            return data
        if not entry.is_verified:
            lock = self._verifying.setdefault(entry.name, asyncio.Lock())
            try:
                async with lock:
                    if not entry.is_verified:
                        return await self._load_verifying(entry, part)
            finally:
                if not lock.locked():
                    self._verifying.pop(entry.name, None)
        return await self._read(entry, part.start, part.size)

    async def _load_verifying(self, entry: IndexEntry, part: ReadHead) -> bytearray:
        assert entry.header is not None
        wanted, checksum = bytearray(part.size), 0
        for start in range(0, entry.header.total, VERIFY_BYTES):
            data = await self._read(entry, start, min(VERIFY_BYTES, entry.header.total - start))
            checksum = await self.checksum(data, checksum)
            first, end = max(part.start, start), min(part.end, start + len(data))
            if first < end:
                wanted[first - part.start : end - part.start] = memoryview(data)[first - start : end - start]
        self._verify(entry, checksum)
        return wanted

    def _verify(self, entry: IndexEntry, checksum: int) -> None:
        assert entry.header is not None
        if checksum != entry.header.data_crc:
            error = UntrustedMetadata("the checksum of the data is wrong", operation="read", path=entry.name)
            self.guard.failed("read", error)
            raise CacheFailed(error)
        entry.is_verified = True

    async def _read(self, entry: IndexEntry, position: int, size: int) -> bytearray:
        """Bytes of the data, of the very file that was read before."""

        async def read(cache: Accessor) -> bytearray:
            start = entry.data_offset + position
            sink = EntrySink(entry, start=start, size=size)
            # Pinned where that is possible: the bytes then belong to the very file whose header was verified.
            etag = entry.store_etag if cache.capability.read_if_match else None
            if etag is not None and is_weak(etag):
                etag = None
            await cache.read(ReadRequest(path=entry.name, offset=start, size=size, if_match=etag), sink)
            return sink.data

        return await self.guard.call("read", read)

    async def checksum(self, data: bytearray | memoryview, before: int = 0) -> int:
        """The CRC32 of an object's data, or of more of it: ``before`` is that of what came before."""
        if len(data) <= CRC_INLINE_BYTES:
            return crc32(data, before)
        return await self._runtime.run_blocking(crc32, data, before)

    def judge(self, entry: IndexEntry, failure: CacheFailed) -> None:
        """Drop an entry that cannot be read, unless the failure may pass."""
        if failure.is_lasting:
            self.drop(entry)

    def drop(self, entry: IndexEntry) -> None:
        """Forget an entry, and delete its file in the background."""
        if self.index.remove(entry):
            self._delete_later([entry])

    def forget(self, slots: Iterable[str]) -> None:
        """Forget the entries of these slots, and delete their files in the background."""
        slots = list(slots)
        if not self._is_loaded:
            self._invalidated.update(dict.fromkeys(slots))
        self._delete_later([entry for slot in slots if (entry := self.index.pop(slot)) is not None])

    async def invalidate(self, slots: Iterable[str]) -> None:
        """Forget the entries of these slots; their files are gone when this returns, unless the cache fails."""
        slots = list(slots)
        await self.ready()
        self.forget(slots)
        await self._sweep()

    async def put(self, entry: IndexEntry, header: bytes, data: memoryview) -> bool:
        """Write an entry and make it known; whether that was done. A failure or a cancellation leaves no file."""
        if not self.index.fits(entry.size_bytes):
            return False
        evicted = self.index.make_room(entry.size_bytes)
        try:
            self._runtime.counters["cache_evictions"] += len(evicted)
            for gone in evicted:
                self._runtime.events.publish("cache.evicted", "", entry=gone.name, size_bytes=gone.size_bytes)
            await self._delete(evicted)
            self._doomed_names.pop(entry.name, None)
            await self._write(entry, header, data)
        except CacheFailed:
            self.index.give_back(entry.size_bytes)
            return False
        except BaseException:
            self.index.give_back(entry.size_bytes)
            raise
        replaced = self.index.put(entry)
        if replaced is not None and replaced.name != entry.name:
            self._delete_later([replaced])
        return True

    async def _write(self, entry: IndexEntry, header: bytes, data: memoryview) -> None:
        request = WriteRequest(path=entry.name, content_type="application/octet-stream")
        body = await self.guard.call("open_write", lambda cache: cache.open_write(request), _discard)
        try:
            await self.guard.call("write", lambda _: body.write(header))
            for start in range(0, len(data), WRITE_BYTES):
                piece = data[start : start + WRITE_BYTES]
                await self.guard.call("write", lambda _, piece=piece: body.write(piece))  # type: ignore[misc]
            await self.guard.call("close", lambda _: body.close())
        except BaseException:
            # A close that was given up may have made the file appear.
            self._doomed_names[entry.name] = None
            await self._abort(body)
            raise

    async def _abort(self, body: WriteBody) -> None:
        # Not by way of the guard: this has to be done at the end of the supervisor too.
        try:
            async with asyncio.timeout(self.guard.timeout_seconds):
                await body.abort()
        except Exception as error:
            self.guard.failed("abort", error)

    def _delete_later(self, entries: list[IndexEntry]) -> None:
        self._doomed_names.update(dict.fromkeys(entry.name for entry in entries))
        if entries and not self._runtime.supervisor.closed:
            self._runtime.supervisor.spawn(self._sweep(), name="deletion of cache entries")

    async def _delete(self, entries: list[IndexEntry]) -> None:
        self._doomed_names.update(dict.fromkeys(entry.name for entry in entries))
        await self._sweep()

    async def _sweep(self) -> None:
        """Delete what is to be deleted. After a failure the names wait for the next sweep, which every write does."""
        async with self._sweeping:
            while self._doomed_names and not self.guard.is_bypassed:
                paths = tuple(itertools.islice(self._doomed_names, DELETE_PATHS))
                request = DeleteRequest(path=paths[0], paths=paths)
                try:
                    await self.guard.call("delete", lambda cache, request=request: cache.delete(request))  # type: ignore[misc]
                except CacheFailed:
                    return
                for path in paths:
                    self._doomed_names.pop(path, None)


async def _discard(body: WriteBody) -> None:
    await body.abort()


def _modified_seconds(entry: Entry) -> float:
    return entry.last_modified.timestamp() if entry.last_modified else 0.0
