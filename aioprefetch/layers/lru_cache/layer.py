"""LruCache: a second store (files, memory, S3) holds what was read; whole objects are fetched in full on a miss.

The outermost layer. What a read may be served from:

* an **entry**, when path, version and conditions fit. A read that is pinned (by ``if_match`` or ``version``) takes
  the entry of that version as it is. One that is not pinned first asks the store whether the entry is still current
  (a conditional GET), unless ``revalidate_seconds`` lets it trust the entry.
* a **fill** that is on its way, whose bytes are taken as they arrive.
* a response that has begun: of an object that turns out too large or has no ETag, as far as it goes.
* the store itself: objects that are too large or have no ETag, and everything while the cache keeps failing.

No failure of the cache fails a read: nothing is delivered before all of its part is there and checked, so the store
can always serve the read instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.accessor.sink import Sink, drain
from aioprefetch.accessor.write_body import ReadBody
from aioprefetch.errors import ConditionNotMatch, ConfigInvalid, RangeNotSatisfied
from aioprefetch.layers.lru_cache.bodies import BegunBody, FillBody, HeldBody
from aioprefetch.layers.lru_cache.cache_store import CacheStore
from aioprefetch.layers.lru_cache.guard import CacheFailed, CacheGuard, CacheSource
from aioprefetch.layers.lru_cache.index import IndexEntry
from aioprefetch.layers.lru_cache.invalidation import InvalidatingAccessor
from aioprefetch.layers.lru_cache.lookup import Begun, Joined, Lookup
from aioprefetch.layers.lru_cache.parts import part_of, whole_of
from aioprefetch.layers.lru_cache.state import CacheState
from aioprefetch.runtime.options import checked_seconds
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, ReadReply, ReadRequest

T = TypeVar("T")

# So many bytes before the ones that are wanted are received rather than asking again, on another connection.
SKIPPED_BYTES_MAX = 8 << 20

_EVENTS = {
    "cache_hits": "cache.hit",
    "cache_misses": "cache.missed",
    "cache_revalidations": "cache.revalidated",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LruCacheLayer(Layer):
    """The recipe of LruCache.

    Parameters
    ----------
    cache
        An Operator over the store that holds the entries. They are plain: who may read that store may read them.
    capacity_bytes
        The most that the entries written by one runtime may take together.
    object_bytes_max
        Larger objects are not cached; their reads go to the store as they are.
    revalidate_seconds
        How long an entry is taken for current without asking the store: 0 asks at every read that is not pinned (a
        reader pins after its first response, so once for each reader), ``None`` never asks.
    cache_timeout_seconds
        How long one call of the cache's store may take. After three failures in a row the cache is bypassed for
        thirty seconds.

    Raises ``ConfigInvalid`` for values that cannot be meant. Pickles if ``cache`` does.
    """

    cache: CacheSource
    capacity_bytes: int = 1 << 30
    object_bytes_max: int = 64 << 20
    revalidate_seconds: float | None = 0.0
    cache_timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not callable(getattr(self.cache, "accessor", None)):
            raise ConfigInvalid(f"cache must be an Operator, not {type(self.cache).__name__}", operation="configure")
        for name in ("capacity_bytes", "object_bytes_max"):
            count = getattr(self, name)
            if type(count) is not int or count < 1:
                raise ConfigInvalid(f"{name} must be a positive integer, not {count!r}", operation="configure")
        if self.revalidate_seconds is not None:
            checked_seconds("revalidate_seconds", self.revalidate_seconds, zero_allowed=True)
        checked_seconds("cache_timeout_seconds", self.cache_timeout_seconds)

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        # One state for all stacks of a runtime that have this layer: a write through one is seen by the others.
        return LruCacheAccessor(inner, self, runtime.shared((LruCacheLayer, self), lambda: self._make_state(runtime)))

    def _make_state(self, runtime: Runtime) -> CacheState:
        guard = CacheGuard(self.cache, runtime, self.cache_timeout_seconds)
        return CacheState(CacheStore(guard, runtime, capacity_bytes=self.capacity_bytes), runtime)


class LruCacheAccessor(InvalidatingAccessor):
    """The live layer."""

    def __init__(self, inner: Accessor, layer: LruCacheLayer, state: CacheState) -> None:
        super().__init__(inner, state)
        self._cache = state.cache
        self._runtime = state.runtime
        self._lookup = Lookup(
            inner,
            state,
            object_bytes_max=min(layer.object_bytes_max, layer.capacity_bytes),
            revalidate_seconds=layer.revalidate_seconds,
        )

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        body = await self._open_cached(request)
        if body is not None:
            await drain(body, sink, path=request.path)
            return ReadReply(head=body.head, received=body.head.size)
        reply = await self._from_store(request, lambda: self.inner.read(request, sink))
        self._lookup.check_passed_by(request, reply.head)
        return reply

    async def open_read(self, request: ReadRequest) -> ReadBody:
        body = await self._open_cached(request)
        if body is not None:
            return body
        body = await self._from_store(request, lambda: self.inner.open_read(request))
        self._lookup.check_passed_by(request, body.head)
        return body

    async def _from_store(self, request: ReadRequest, ask: Callable[[], Awaitable[T]]) -> T:
        """What the store says: a miss, unless it says that the caller has the current version already."""
        asked_at = self._runtime.now()
        counter = "cache_misses"
        try:
            return await ask()
        except ConditionNotMatch:
            # With both conditions the one that was refused may be the other.
            if request.if_none_match is not None and request.if_match is None:
                counter = "cache_revalidations"
                self._lookup.proved_fresh(request, asked_at)
            raise
        finally:
            self._count(counter, request.path)

    async def _open_cached(self, request: ReadRequest) -> ReadBody | None:
        """The response out of the cache or out of a fill; ``None`` when the store has to serve this read."""
        for _ in range(2):  # A bad entry is dropped: the second time the object comes by a fill.
            source = await self._lookup.source(request)
            if source is None:
                return None
            if isinstance(source, Joined):
                return self._open_fill(source, request)
            if isinstance(source, Begun):
                return await self._open_begun(source.body, request)
            part = self._part(request, whole_of(source), "cache_hits")
            try:
                body = await self._open_entry(source, part)
            except CacheFailed as failure:
                self._cache.judge(source, failure)
                if not failure.is_lasting:
                    return None
            else:
                self._count("cache_hits", request.path)
                return body
        return None

    def _open_fill(self, source: Joined, request: ReadRequest) -> ReadBody:
        fill = source.fill
        assert fill.head is not None
        counter = "cache_hits" if source.is_hit else "cache_misses"
        try:
            part = self._part(request, fill.head, counter)
        except (RangeNotSatisfied, ConditionNotMatch):
            fill.leave(served=True)  # This is the response, and others want the object.
            raise
        self._count(counter, request.path)
        return FillBody(fill, part, deadline=request.deadline)

    async def _open_begun(self, begun: ReadBody, request: ReadRequest) -> ReadBody | None:
        """A part of an object that is not cached, if it is worth to be waited for; else ``None``, and it is closed."""
        head = begun.head
        try:
            if request.suffix is None and head.start == 0 and head.total is not None:
                part = self._part(request, replace(head, version=head.version or request.version), "cache_misses")
                can_go_on = head.etag is not None and not is_weak(head.etag) and self.inner.capability.read_if_match
                reaches = part.end <= head.end or (can_go_on and self.inner.capability.read_range)
                if part.start <= min(SKIPPED_BYTES_MAX, head.end) and reaches:
                    self._count("cache_misses", request.path)
                    return BegunBody(self.inner, request, begun, part)
        except BaseException:
            await begun.aclose()
            raise
        await begun.aclose()
        return None

    async def _open_entry(self, entry: IndexEntry, part: ReadHead) -> ReadBody:
        if part.size == 0:
            return HeldBody(part, b"", None)
        reservation = await self._state.memory.reserve(self._cache.load_bytes(entry, part))
        if reservation is None:
            raise CacheFailed(TimeoutError("no memory for a part of an entry"))
        try:
            return HeldBody(part, await self._cache.load(entry, part), reservation)
        except BaseException:
            reservation.release()
            raise

    def _part(self, request: ReadRequest, whole: ReadHead, counter: str) -> ReadHead:
        try:
            return part_of(request, whole)
        except (RangeNotSatisfied, ConditionNotMatch):
            self._count(counter, request.path)  # An error that is the right answer counts as one.
            raise

    def _count(self, counter: str, path: str) -> None:
        self._runtime.counters[counter] += 1
        self._runtime.events.publish(_EVENTS[counter], path)
