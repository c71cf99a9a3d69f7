"""The entries in the cache's store: listed, found, read, verified, written, evicted.

No error of the cache gets out of here but ``CacheFailed``, which makes the layer continue without the cache.

Several processes may use one cache. An entry that is not in the index is looked up by its name before the object's
store is asked, since another process may have written it; and the store is listed again now and then, so that the
bytes of all processes count.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeVar

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.list_pages import Paging
from aioprefetch.accessor.protocols import Accessor, WriteBody
from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.cache.entry import BadEntry, LruIndex, checksums, claimed_length, decode_header
from aioprefetch.cache.guard import CacheFailed, Consequence, FailureGuard
from aioprefetch.errors import Closed, ConditionNotMatch, NotFound, ObjectChanged, RangeNotSatisfied
from aioprefetch.layers.lru_cache.entry import FOLDER, CacheEntry, ObjectFacts, Slot, is_entry_name, is_old_name
from aioprefetch.runtime.eager_work import EagerWork
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import DeleteRequest, Entry, ListRequest, ReadHead, ReadRequest, WriteRequest

T = TypeVar("T")

COOL_DOWN_SECONDS = 30.0
WRITE_BYTES = 1 << 20
DELETE_PATHS = 1000
# Most headers are shorter. A longer one costs a second read.
HEADER_READ_BYTES = 16 << 10
# Checksums of more than this are computed on the executor: zlib lets other threads run meanwhile.
INLINE_BYTES_MAX = 1 << 20
# The store is listed again after one part in this many of the capacity was written: others may have written as much.
LIST_WRITTEN_SHARE = 16
# A listing that takes longer than this is not repeated more often than this share of the time.
LIST_SECONDS_FREE, LIST_TIME_SHARE = 0.02, 0.05

# The file is not there, or not the one whose header was read: another process evicted or replaced it.
_GONE = (NotFound, ConditionNotMatch, ObjectChanged, RangeNotSatisfied)


class EntryGone(Exception):
    """Another process has evicted or replaced the file of an entry. Never leaves the layer."""


class CacheSource(Protocol):
    """The second store as the layer sees it. An Operator fits."""

    def accessor(self) -> Accessor:
        """The live accessor for the running loop."""
        ...


class CacheCalls:
    """Calls of the cache's store: bounded in time, and none for a while after too many failures."""

    def __init__(self, source: CacheSource, runtime: Runtime, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._source = source
        self._runtime = runtime
        self._failures = FailureGuard(
            runtime,
            subject="the entries of the cache",
            counter="cache_failures",
            event="cache.failed",
            cool_down_seconds=COOL_DOWN_SECONDS,
        )

    @property
    def is_off(self) -> bool:
        """Whether the cache is to be left alone for now."""
        return self._failures.is_off

    async def call(
        self,
        what: str,
        call: Callable[[Accessor], Awaitable[T]],
        dispose: Callable[[T], Coroutine[object, object, None]] | None = None,
    ) -> T:
        """The result of ``call``, which gets the accessor of the cache. Raises ``CacheFailed`` and nothing else.

        A read begins here, and ends here if it waits for nothing. All else goes on with the supervisor: a call that
        does not end in time, not even by a cancellation (a thread on a disk that hangs), is left behind there. So it
        must work on memory of its own; ``dispose`` gets a result that comes too late.
        """
        supervisor = self._runtime.supervisor
        if supervisor.closed:
            raise CacheFailed(_closed())
        outcome: asyncio.Future[T] = self._runtime.loop.create_future()
        running, name = self._run(call, outcome, dispose), f"cache {what}"
        work: EagerWork | Work
        if what == "read":
            work = supervisor.start(running, self._runtime.loop, name=name)
            work.start()
        else:
            work = supervisor.spawn(running, name=name)
        try:
            if outcome.done():
                result = outcome.result()
            else:
                async with asyncio.timeout(self.timeout_seconds):
                    # Shielded, so that a result at the same moment as a cancellation is not lost.
                    result = await asyncio.shield(outcome)
        except Exception as error:
            self._abandon(work, outcome, dispose)
            self.failed(what, error)
            raise CacheFailed(error) from error
        except BaseException:
            self._abandon(work, outcome, dispose)
            raise
        self._failures.succeeded()
        return result

    async def _run(
        self,
        call: Callable[[Accessor], Awaitable[T]],
        outcome: asyncio.Future[T],
        dispose: Callable[[T], Coroutine[object, object, None]] | None,
    ) -> None:
        try:
            result = await call(self._source.accessor())
        except asyncio.CancelledError:
            if not outcome.done():  # The supervisor ends while a caller still waits.
                outcome.set_exception(_closed())
            raise
        except Exception as error:
            if not outcome.done():
                outcome.set_exception(error)
        else:
            if not outcome.done():
                outcome.set_result(result)
            elif dispose is not None:
                await dispose(result)

    def _abandon(
        self,
        work: EagerWork | Work,
        outcome: asyncio.Future[T],
        dispose: Callable[[T], Coroutine[object, object, None]] | None,
    ) -> None:
        """The caller stops waiting for the result. A result that has just arrived is disposed of."""
        if not outcome.done():
            outcome.cancel()
            work.cancel()
        elif not outcome.cancelled() and outcome.exception() is None and dispose is not None:
            self._runtime.supervisor.spawn(dispose(outcome.result()), name="disposal")

    def failed(self, what: str, error: Exception) -> None:
        """Count a failure. One that concerns a single entry says nothing of the store."""
        is_entrys = isinstance(error, Closed) or (what == "read" and isinstance(error, BadEntry))
        consequence: Consequence = "entry" if is_entrys else "count"
        if self._failures.failed(what, error, consequence):
            self._runtime.events.publish("cache.bypassed", "", seconds=self._failures.cool_down_seconds)


class CacheStore:
    """The cache of one runtime: its index, and the operations on its files."""

    def __init__(self, calls: CacheCalls, runtime: Runtime, *, capacity_bytes: int) -> None:
        self.calls = calls
        self.capacity_bytes = capacity_bytes
        self.index: LruIndex[CacheEntry] = LruIndex()
        self.reserved_bytes = 0
        self._runtime = runtime
        self._last_read = 0.0
        self._is_loaded = False
        # The live store, and whether it takes a condition on the version: a capability is asked for layer by layer.
        self._pins: tuple[Accessor, bool] | None = None
        self._loading: asyncio.Event | None = None
        self._list_again_at = float("-inf")
        self._unlisted_bytes = 0  # Written since the last listing.
        # The times of the last reads of the entries that are being written, and an event that ends each write.
        self._writing: list[Callable[[], float]] = []
        self._written = asyncio.Event()
        self._probes: dict[str, asyncio.Future[CacheEntry | None]] = {}
        # Files that are out of the index and still have to be deleted, one sweep at a time: a write waits for the
        # sweep before it, so that no late deletion hits a file that was written again.
        self._to_delete: dict[str, None] = {}
        self._sweeping = asyncio.Lock()

    def read_time(self) -> float:
        """The wall-clock time of a read, later than that of every read before it."""
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
        if self._runtime.supervisor.closed or self.calls.is_off:
            return False
        if self._is_loaded:
            return True
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
        started_at = self._runtime.now()
        self._unlisted_bytes = 0
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
            self._delete_later(self._evict(self.index.total_bytes + self.reserved_bytes - self.capacity_bytes))
        finally:
            took = self._runtime.now() - started_at
            self._list_again_at = self._runtime.now() + (took / LIST_TIME_SHARE if took > LIST_SECONDS_FREE else 0.0)
            self._loading = None
            finished.set()

    def _list_when_due(self) -> None:
        if self._loading is not None or self._runtime.supervisor.closed or self._runtime.now() < self._list_again_at:
            return
        if self._unlisted_bytes >= self.capacity_bytes // LIST_WRITTEN_SHARE:
            self._load_later()

    async def _list(self) -> dict[str, Entry]:
        """The entries in the store by name. Files of earlier format versions are deleted."""
        listed: dict[str, Entry] = {}
        paging = Paging(ListRequest(path=FOLDER, recursive=True))

        async def next_page(cache: Accessor) -> list[Entry]:
            assert paging.request is not None
            page = await cache.list_page(paging.request)
            return paging.turn(page.entries, page.next_token, page.left_out)

        while paging.request is not None:
            entries = await self.calls.call("list", next_page)
            listed.update((entry.path, entry) for entry in entries if is_entry_name(entry.path))
            self._delete_later([entry.path for entry in entries if is_old_name(entry.path)])
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

    async def probe(self, slot: Slot) -> CacheEntry | None:
        """The entry of a slot as it is in the store now. Reads beside each other share one request."""
        name = slot.name
        if name in self._to_delete:
            return None
        probe = self._probes.get(name)
        if probe is None:
            probe = self._probes[name] = self._runtime.loop.create_future()
            self._runtime.supervisor.spawn(
                self._probe(slot, probe), name="look-up in the cache", on_end=lambda: self._end_probe(name, probe)
            )
        return await asyncio.shield(probe)

    async def _probe(self, slot: Slot, probe: asyncio.Future[CacheEntry | None]) -> None:
        name = slot.name
        entry = None
        try:
            entry = await self.calls.call("read", lambda cache: self._read_header(cache, slot))
        except CacheFailed as failure:
            if failure.is_lasting and self._probes.get(name) is probe:
                self.index.discard(name)
                self._delete_later([name])
        else:
            if self._probes.get(name) is not probe:  # The entry was invalidated meanwhile.
                entry = None
            elif entry is None:
                self.index.discard(name)
            else:
                indexed = self.index.get(name)
                if indexed is not None and indexed.header == entry.header:
                    entry.validated_at = indexed.validated_at
                self.index.add(name, entry.size_bytes, entry, used_at=self.read_time())
        if not probe.done():
            probe.set_result(entry)

    def _end_probe(self, name: str, probe: asyncio.Future[CacheEntry | None]) -> None:
        if self._probes.get(name) is probe:
            del self._probes[name]
        if not probe.done():
            probe.set_result(None)

    async def _read_header(self, cache: Accessor, slot: Slot) -> CacheEntry | None:
        sink = CollectSink()
        request = ReadRequest(path=slot.name, size=HEADER_READ_BYTES)
        try:
            head = (await cache.read(request, sink)).head
            raw = sink.to_bytes()
            length = claimed_length(raw)
            if len(raw) < length and head.total is not None and length <= head.total:
                rest = CollectSink()
                missing = ReadRequest(
                    path=slot.name,
                    offset=len(raw),
                    size=length - len(raw),
                    if_match=self._strong_etag(cache, head.etag),
                )
                await cache.read(missing, rest)
                raw += rest.to_bytes()
        except _GONE:
            return None
        file_bytes = (self.index.size(slot.name) or len(raw)) if head.total is None else head.total
        header = decode_header(raw, identity=slot.identity, file_bytes=file_bytes)
        return CacheEntry(
            name=slot.name,
            size_bytes=file_bytes,
            header=header,
            facts=ObjectFacts.decode(header.facts),
            store_etag=head.etag,
            store_modified=head.last_modified,
        )

    async def load(self, entry: CacheEntry, low: int, high: int) -> memoryview:
        """The whole pieces ``[low, high)`` of an entry, read at once and verified each time.

        Raises ``EntryGone`` when another process evicted or replaced the file, and ``CacheFailed``.
        """
        header = entry.header
        assert header is not None
        sink = EntrySink(entry, start=header.data_offset + low, size=high - low)

        async def read(cache: Accessor) -> memoryview | None:
            try:
                await cache.read(self._request_of(entry, sink, cache), sink)
            except _GONE:
                return None
            return sink.to_view()

        view = await self.calls.call("read", read)
        if view is None:
            raise EntryGone
        try:
            if len(view) <= INLINE_BYTES_MAX:
                header.verify(low, view)
            else:
                await self._runtime.run_blocking(header.verify, low, view)
        except BadEntry as error:
            raise self._damaged(error) from error
        return view

    def _request_of(self, entry: CacheEntry, sink: EntrySink, cache: Accessor) -> ReadRequest:
        """For bytes of the very file whose header was read."""
        start, end = sink.due
        return ReadRequest(
            path=entry.name, offset=start, size=end - start, if_match=self._strong_etag(cache, entry.store_etag)
        )

    def _strong_etag(self, cache: Accessor, etag: str | None) -> str | None:
        """The ETag to pin a read of the cache's store to, ``None`` if that is not possible."""
        known = self._pins
        if known is None or known[0] is not cache:
            known = self._pins = (cache, cache.capability.read_if_match)
        return etag if known[1] and etag is not None and not is_weak(etag) else None

    def _damaged(self, error: BadEntry) -> CacheFailed:
        """Count the failure. On the loop, to which counters and events belong."""
        self.calls.failed("read", error)
        return CacheFailed(error)

    async def checksums(self, data: bytearray) -> tuple[int, ...]:
        """The checksums of the pieces of an object."""
        parts = [memoryview(data)]
        if len(data) <= INLINE_BYTES_MAX:
            return checksums(parts)
        return await self._runtime.run_blocking(checksums, parts)

    # --- invalidation -------------------------------------------------------------------------------------------

    def judge(self, entry: CacheEntry, failure: CacheFailed) -> None:
        """Drop an entry that cannot be read, unless the failure is transient."""
        if failure.is_lasting:
            self.drop(entry)

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
        """Forget the entries of these names, and delete their files in the background, those of other processes too."""
        self._discard(names)
        self._delete_later(names)

    async def invalidate(self, names: list[str]) -> None:
        """Forget these entries; their files are gone when this returns, unless the cache fails."""
        self._discard(names)
        await self._delete(names)

    def _discard(self, names: list[str]) -> None:
        for name in names:
            self.index.discard(name)
            self._probes.pop(name, None)

    # --- writing ------------------------------------------------------------------------------------------------

    async def put(self, entry: CacheEntry, header: bytes, data: memoryview, last_read: Callable[[], float]) -> bool:
        """Write an entry and add it to the index by the time of its last read. Returns whether that was done.

        Waits for other writes where only they leave no room. Evicts no entry that was read later than this one. A
        failure or a cancellation leaves no file.
        """
        replaced = self.index.discard(entry.name)
        evicted = await self._make_room(entry.size_bytes, last_read)
        if evicted is None:
            self._delete_later([] if replaced is None else [entry.name])
            return False
        self.reserved_bytes += entry.size_bytes
        self._writing.append(last_read)
        try:
            await self._delete(evicted)
            self._to_delete.pop(entry.name, None)
            await self._write(entry, header, data)
        except CacheFailed:
            if replaced is not None:
                self._to_delete[entry.name] = None
            return False
        finally:
            self.reserved_bytes -= entry.size_bytes
            self._writing.remove(last_read)
            written, self._written = self._written, asyncio.Event()
            written.set()
        self.index.add(entry.name, entry.size_bytes, entry, used_at=last_read())
        self._unlisted_bytes += entry.size_bytes
        self._list_when_due()
        return True

    async def _make_room(self, size_bytes: int, last_read: Callable[[], float]) -> list[str] | None:
        """Evict entries until ``size_bytes`` fit; ``None`` when only entries that were read later could go."""
        while size_bytes <= self.capacity_bytes:
            need_bytes = self.index.total_bytes + self.reserved_bytes + size_bytes - self.capacity_bytes
            # An entry that is being written may be the one to go, if it was read before those in the index.
            used_before = min([last_read(), *(other() for other in self._writing)])
            victims = self.index.victims(need_bytes, used_before=used_before)
            if sum(map(self.index.size, victims)) >= need_bytes:
                return self._evict(need_bytes)
            if not self._writing:
                return None
            await self._written.wait()
        return None

    async def _write(self, entry: CacheEntry, header: bytes, data: memoryview) -> None:
        request = WriteRequest(path=entry.name, content_type="application/octet-stream")
        body = await self.calls.call("open_write", lambda cache: cache.open_write(request), _discard)
        try:
            await self.calls.call("write", lambda _: body.write(header))
            for start in range(0, len(data), WRITE_BYTES):
                piece = data[start : start + WRITE_BYTES]
                await self.calls.call("write", lambda _, piece=piece: body.write(piece))  # type: ignore[misc]
            metadata = await self.calls.call("close", lambda _: body.close())
            entry.store_etag = metadata.etag
        except BaseException:
            # A close that was given up may have made the file appear.
            self._to_delete[entry.name] = None
            await self._abort(body)
            raise

    async def _abort(self, body: WriteBody) -> None:
        # Not a guarded call: this has to be done at the end of the supervisor too.
        try:
            async with asyncio.timeout(self.calls.timeout_seconds):
                await body.abort()
        except Exception as error:
            self.calls.failed("abort", error)

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


class EntrySink(CollectSink):
    """Receives ``size`` bytes at ``start`` of an entry's file, before a reader sees any of them.

    Any other response, also one of a file that is not the one whose header was read, is ``ObjectChanged``.
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


def _closed() -> Closed:
    return Closed("the operator is closed", operation="read")


async def _discard(body: WriteBody) -> None:
    await body.abort()


def _modified_seconds(entry: Entry) -> float:
    return entry.last_modified.timestamp() if entry.last_modified else 0.0
