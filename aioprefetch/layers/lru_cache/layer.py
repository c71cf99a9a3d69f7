"""LruCache: a second store (files, memory, S3) holds the objects that were read; a miss fetches the whole object.

The outermost layer. A read may be served from:

* an **entry**, when path, version and conditions fit. A read that is pinned (by ``if_match`` or ``version``) takes
  the entry of that version as it is. Another read first asks the store whether the entry is still current (a
  conditional GET), unless ``revalidate_seconds`` lets it trust the entry.
* a **fill** that is in progress, whose bytes are taken as they arrive. Once its response has begun it is joined as an
  entry is used: a read that is not pinned asks first.
* the store itself: objects that turn out to be too large or to have no ETag, and everything while the cache keeps
  failing.

No failure of the cache fails a read: nothing is delivered before all of its part is there and verified, so the store
can always serve the read instead.

A write, copy or delete drops the entries of its objects before the change, so that no crash leaves them behind, and
after it, for entries of reads in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor, WriteBody
from aioprefetch.accessor.sink import Sink
from aioprefetch.cache.entry import aligned
from aioprefetch.cache.guard import CacheFailed
from aioprefetch.cache.object_entry import CacheEntry, part_of, slot_of
from aioprefetch.cache.objects import CacheCalls, CacheSource, EntryGone, EntryObjects
from aioprefetch.errors import ConditionNotMatch, ConfigInvalid, Error, RangeNotSatisfied, Unavailable
from aioprefetch.layers.lru_cache.lookup import CacheState, JoinedFill, Lookup
from aioprefetch.layers.retry import UNPROVEN
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import SECONDS, SECONDS_OR_ZERO, SIZE, check, option
from aioprefetch.ranges import ByteCount
from aioprefetch.runtime.events import EventBus
from aioprefetch.runtime.runtime import TURN_BYTES, Runtime
from aioprefetch.values import (
    CompleteUploadRequest,
    CopyRequest,
    DeleteRequest,
    Metadata,
    ReadHead,
    ReadReply,
    ReadRequest,
    RenameRequest,
    WriteRequest,
)

T = TypeVar("T")

_EVENTS = {
    "cache_hits": "cache.hit",
    "cache_misses": "cache.missed",
    "cache_revalidations": "cache.revalidated",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LruCacheLayer(Layer):
    """The recipe of LruCache.

    Raises ``ConfigInvalid`` for invalid values. Pickles if ``cache`` does.

    Parameters
    ----------
    cache
        An Operator over the store that holds the entries, which several processes may share. They are not encrypted: a
        user who may read that store may read them.
        A trace of all operators leaves it out, with what is read from it otherwise.
    capacity_bytes
        Maximum of the bytes of all entries together. Each runtime keeps to it by its own index: the store is listed
        again when a sixteenth of it was written.
    object_bytes_max
        Larger objects are not cached; their reads go to the store as they are.
    revalidate_seconds
        How long an entry is taken for current without asking the store: 0 asks at every read that is not pinned (a
        reader pins after its first response, so once for each reader), ``None`` never asks.
    cache_timeout_seconds
        How long one call of the cache's store may take. After three failures in a row the cache is bypassed for
        thirty seconds.
    """

    cache: CacheSource
    capacity_bytes: ByteCount = option(1 << 30, SIZE)
    object_bytes_max: ByteCount = option(64 << 20, SIZE)
    revalidate_seconds: float | None = 0.0
    cache_timeout_seconds: float = option(5.0, SECONDS)

    def __post_init__(self) -> None:
        if not callable(getattr(self.cache, "accessor", None)):
            raise ConfigInvalid(f"cache must be an Operator, not {type(self.cache).__name__}", operation="configure")
        check(self)
        if self.revalidate_seconds is not None:
            SECONDS_OR_ZERO.checked(self.revalidate_seconds, "revalidate_seconds")

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        # One state for all stacks of a runtime that have this layer: a write through one is seen by the others.
        return LruCacheAccessor(inner, self, runtime.shared((LruCacheLayer, self), lambda: self._make_state(runtime)))

    def _make_state(self, runtime: Runtime) -> CacheState:
        if isinstance(events := getattr(self.cache, "events", None), EventBus):
            events.leave_process()
        calls = CacheCalls(self.cache, runtime, self.cache_timeout_seconds)
        return CacheState(EntryObjects(calls, runtime, capacity_bytes=int(self.capacity_bytes)), runtime)


class LruCacheAccessor(WrappedAccessor):
    """The live layer: serves reads from the cache, and drops the entries of the objects that writes change."""

    def __init__(self, inner: Accessor, layer: LruCacheLayer, state: CacheState) -> None:
        super().__init__(inner)
        self._state = state
        self._cache = state.cache
        self._runtime = state.runtime
        self._lookup = Lookup(
            inner,
            state,
            object_bytes_max=min(int(layer.object_bytes_max), int(layer.capacity_bytes)),
            revalidate_seconds=layer.revalidate_seconds,
        )

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        try:
            tier = await self._read_cached(request, sink)
            if tier is None:
                response = await self._read_store(request, sink)
                self._lookup.check_bypassed(request, response.head)
                return response
        except Error as error:
            error.add_context(service=self.inner.info.location)  # Errors of the cache pass no inner layer.
            raise
        head = sink.head
        assert head is not None
        return ReadReply(head=head, received=head.size, tier=tier)

    async def _read_store(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """Read from the store: a miss, unless the response is that the caller has the current version already."""
        asked_at = self._runtime.now()
        counter = "cache_misses"
        try:
            return await self.inner.read(request, sink)
        except ConditionNotMatch:
            # With both conditions the other one may have been refused.
            if request.if_none_match is not None and request.if_match is None:
                counter = "cache_revalidations"
                self._lookup.not_modified(request, asked_at)
            raise
        finally:
            self._count(counter, request.path)

    async def _read_cached(self, request: ReadRequest, sink: Sink) -> str | None:
        """Read from the cache or a fill; the tier that had it, or ``None`` when the store has to serve the read."""
        for _ in range(2):  # An entry that cannot be used is dropped: the second time the object comes by a fill.
            source = await self._lookup.source(request)
            if isinstance(source, JoinedFill):
                return await self._read_fill(source, request, sink)
            if source is None:
                return None
            part = self._part(request, source.whole, "cache_hits")
            try:
                if await self._read_entry(source, part, request, sink):
                    return "cache"
            except CacheFailed as failure:
                if not failure.is_lasting:
                    return None
                self._cache.drop(source)
        return None

    async def _read_entry(self, entry: CacheEntry, part: ReadHead, request: ReadRequest, sink: Sink) -> bool:
        """Deliver a part of an entry. ``False`` when another process evicted or replaced it."""
        if part.size == 0:
            self._count("cache_hits", request.path)
            sink.begin(part, path=request.path)
            return True
        start, end = part.start, part.end
        low, high = aligned(start, end, entry.whole.size)
        turn = self._runtime.turn
        if turn.left_bytes <= 0:
            await turn.end()
        reservation = None
        try:
            if high - low > TURN_BYTES:
                reservation = await self._state.memory.reserve(high - low)
                if reservation is None:
                    raise CacheFailed(TimeoutError("no memory for a part of an entry"))
            data = await self._cache.load(entry, low, high)
            turn.spend(len(data))
            self._count("cache_hits", request.path)
            sink.begin(part, path=request.path)
            await sink.pour(data[start - low : end - low])
        except EntryGone:
            self._cache.forget_entry(entry)
            return False
        finally:
            if reservation is not None:
                reservation.release()
        return True

    async def _read_fill(self, source: JoinedFill, request: ReadRequest, sink: Sink) -> str:
        """Deliver a part of an object as it arrives, and leave its fill. Returns the tier that had it."""
        fill, counter = source.fill, "cache_hits" if source.is_hit else "cache_misses"
        served = False
        try:
            assert fill.head is not None
            part = self._part(request, fill.head, counter)
            self._count(counter, request.path)
            sink.begin(part, path=request.path)
            position = part.start
            while position < part.end:
                await fill.wait_until(position + 1, deadline=request.deadline)
                if fill.state == "bypassed":
                    break
                end = min(fill.received, part.end)
                await sink.pour(memoryview(fill.buffer)[position:end])
                position = end
            served = True
        except (RangeNotSatisfied, ConditionNotMatch):
            served = True  # This is the response, and other readers want the object.
            raise
        finally:
            fill.leave(served=served)
        if position < part.end:
            await self._read_again(request, sink)
        return "cache" if source.is_hit else "store"

    async def _read_again(self, request: ReadRequest, sink: Sink) -> None:
        """Read from the store what a fill has begun to deliver. Nothing proves that it is still of that version."""
        if not await sink.begin_again() and sink.received:
            raise Unavailable(
                f"the body was cut off, and {UNPROVEN}",
                operation="read",
                path=request.path,
                status="persistent",
                head=sink.head,
                received=sink.received,
            )
        rest = request if sink.head is None else request.resume(sink.head, sink.received)
        await self.inner.read(rest, sink)

    def _part(self, request: ReadRequest, whole: ReadHead, counter: str) -> ReadHead:
        try:
            return part_of(request, whole)
        except (RangeNotSatisfied, ConditionNotMatch):
            self._count(counter, request.path)  # An error that is the right response counts as one.
            raise

    def _count(self, counter: str, path: str) -> None:
        runtime = self._runtime
        runtime.ledger.current[counter] += 1
        if runtime.events.listeners:
            runtime.events.publish(_EVENTS[counter], path)

    # --- writes -------------------------------------------------------------------------------------------------

    async def changing(
        self, call: Callable[[], Awaitable[T]], paths: Sequence[str], versions: Sequence[str | None] = ()
    ) -> T:
        """The result of a call that changes these objects. Their entries are gone before it, unless the cache fails.

        The entries of ``versions``, one of each path, go too: other versions stay as they are. After the call entries
        of reads in between are dropped, and no fill in progress becomes one.
        """
        namespace = self.inner.info.namespace
        slots = [*((path, None) for path in paths), *zip(paths, versions, strict=False)]
        names = [slot_of(namespace, path, version).name for path, version in slots]
        self._stop_fills(names)
        await self._cache.invalidate(names)
        try:
            return await call()
        finally:
            self._stop_fills(names)
            self._cache.forget(names)

    def _stop_fills(self, names: list[str]) -> None:
        for name in names:
            self._state.fills.invalidate(name)
            self._state.bypassed.discard(name)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        return await self.changing(lambda: self.inner.write(request, data), (request.path,))

    async def complete_upload(self, request: CompleteUploadRequest) -> Metadata:
        return await self.changing(lambda: self.inner.complete_upload(request), (request.path,))

    async def copy(self, request: CopyRequest) -> Metadata:
        return await self.changing(lambda: self.inner.copy(request), (request.target,))

    async def rename(self, request: RenameRequest) -> Metadata:
        return await self.changing(lambda: self.inner.rename(request), (request.path, request.target))

    async def delete(self, request: DeleteRequest) -> None:
        await self.changing(lambda: self.inner.delete(request), request.paths, request.versions)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return InvalidatingWriteBody(await self.inner.open_write(request), self, request.path)


class InvalidatingWriteBody:
    """A body being written; the entry of its object is dropped when it is closed."""

    def __init__(self, body: WriteBody, layer: LruCacheAccessor, path: str) -> None:
        self._body = body
        self._layer = layer
        self._path = path

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        await self._body.write(chunk)

    async def close(self) -> Metadata:
        return await self._layer.changing(self._body.close, (self._path,))

    async def abort(self) -> None:
        await self._body.abort()
