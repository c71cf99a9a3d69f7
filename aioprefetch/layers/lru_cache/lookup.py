"""The source of a read: an entry of the cache, a fill in progress, or the store."""

from __future__ import annotations

import asyncio

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.cache.index import LruIndex
from aioprefetch.cache.object_entry import CacheEntry, Slot, is_excluded, pin_of, slot_of
from aioprefetch.cache.objects import EntryObjects
from aioprefetch.errors import Closed
from aioprefetch.layers.lru_cache.fill import Fill
from aioprefetch.layers.lru_cache.object_memory import ObjectMemory
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, ReadRequest

# The most objects that are remembered as not cached: the next read does not try again.
BYPASSED_MAX = 10_000


class Fills:
    """The fills of one runtime that can still be joined, by the name of their slot."""

    def __init__(self) -> None:
        self._running: dict[str, list[Fill]] = {}
        self._ended_once = asyncio.Event()

    def start(self, fill: Fill) -> None:
        """Start a fill and keep it until it ends."""
        self._running.setdefault(fill.slot.name, []).append(fill)
        fill.start(self._ended)

    def of(self, name: str) -> list[Fill]:
        """The fills of a slot that later readers may join."""
        fills = self._running.get(name)
        return [fill for fill in fills if not fill.is_invalidated] if fills else []

    def invalidate(self, name: str) -> None:
        """The object was changed: running fills are not stored and not joined any more."""
        for fill in self._running.get(name, ()):
            fill.is_invalidated = True

    def invalidate_older(self, newest: Fill) -> None:
        """A later response showed another version: the earlier ones must not be stored after it."""
        for fill in self._running.get(newest.slot.name, ()):
            if fill is newest:
                return
            if fill.head is not None and newest.head is not None and fill.head.etag != newest.head.etag:
                fill.is_invalidated = True

    async def finish(self) -> None:
        """Wait until the objects that have arrived are stored: a process that reads and ends finds them next time."""
        while any(fill.has_arrived and not fill.is_invalidated for fills in self._running.values() for fill in fills):
            self._ended_once.clear()
            await self._ended_once.wait()

    async def aclose(self) -> None:
        """Fail the fills that will never run, so that no reader waits for them."""
        for fills in list(self._running.values()):
            for fill in list(fills):
                fill.fail(Closed("the operator was closed", operation="read", path=fill.request.path))

    def _ended(self, fill: Fill) -> None:
        fills = self._running.get(fill.slot.name, [])
        if fill in fills:
            fills.remove(fill)
        if not fills:
            self._running.pop(fill.slot.name, None)
        self._ended_once.set()


class CacheState:
    """The shared state of the stacks of a runtime with the same LruCache layer: cache, fills, and their memory."""

    def __init__(self, cache: EntryObjects, runtime: Runtime) -> None:
        self.runtime = runtime
        self.cache = cache
        self.memory = ObjectMemory(runtime.budget, wait_seconds=runtime.options.budget_wait_seconds)
        # Size and ETag of the objects that are too large, or have no ETag, by the name of their slot.
        self.bypassed: LruIndex[tuple[int | None, str | None]] = LruIndex()
        self.fills = Fills()
        runtime.before_close(self.fills.finish)
        runtime.supervisor.on_close(self.fills.aclose)


@dataclass(frozen=True, slots=True)
class JoinedFill:
    """A fill that was joined, and has to be left.

    ``is_hit``: the object was complete by then, only its writing went on.
    """

    fill: Fill
    is_hit: bool


Source = JoinedFill | CacheEntry | None


class Lookup:
    """Finds the source of a read, or starts a fill."""

    def __init__(
        self, inner: Accessor, state: CacheState, *, object_bytes_max: int, revalidate_seconds: float | None
    ) -> None:
        self._inner = inner
        self._state = state
        self._cache = state.cache
        self._runtime = state.runtime
        self._object_bytes_max = object_bytes_max
        self._revalidate_seconds = revalidate_seconds
        self._namespace = inner.info.namespace

    def check_bypassed(self, request: ReadRequest, head: ReadHead) -> None:
        """The store served a read itself: forget that its object is bypassed if it is another one now."""
        bypassed, name = self._state.bypassed, self._slots(request)[0].name
        if bypassed.get(name) not in (None, (head.total, head.etag)):
            bypassed.discard(name)

    def _slots(self, request: ReadRequest) -> tuple[Slot, ...]:
        """The slots that may have an entry for this read; first the slot of exactly this request."""
        current = slot_of(self._namespace, request.path, None)
        if request.version is None:
            return (current,)
        return slot_of(self._namespace, request.path, request.version), current

    async def source(self, request: ReadRequest) -> Source:
        """The fill or the entry to read from; ``None`` for the store itself.

        Raises the store's error when the object cannot be opened.
        """
        slots = self._slots(request)
        is_empty = request.size == 0 or request.suffix == 0
        if not (request.if_modified_since is request.if_unmodified_since is None):
            return None  # The store knows when the object was modified.
        if is_empty or request.offset >= self._object_bytes_max:
            return None
        if slots[0].name in self._state.bypassed:
            self._state.bypassed.use(slots[0].name, 0.0)
            return None
        if not (self._cache.is_ready or await self._cache.ready()):
            return None
        fill = self._joinable(slots, request)
        if fill is None:
            entry = self._entry(slots, request)
            if entry is not None and self._is_trusted(entry, request):
                return self._holder(entry)
            if request.if_none_match is not None and (
                entry is None or is_excluded(request, entry.etag if entry.tail else None)
            ):
                return None  # The caller's own condition is the revalidation.
            fill = self._start(slots, request, entry)
        return await self._opened(fill, request)

    def _joinable(self, slots: tuple[Slot, ...], request: ReadRequest) -> Fill | None:
        for slot in slots:
            for fill in self._state.fills.of(slot.name):
                if self._may_join(fill, request, is_same_request=slot == slots[0]):
                    return fill
        return None

    def _may_join(self, fill: Fill, request: ReadRequest, *, is_same_request: bool) -> bool:
        pin = pin_of(request)
        if fill.head is None:
            return fill.state == "opening" and is_same_request and fill.request.if_match == pin
        if pin not in (None, fill.head.etag) or not (is_same_request or fill.head.version == request.version):
            return False
        # Its response may be older than this read: it is trusted no longer than an entry.
        return fill.entry is not None and self._is_trusted(fill.entry, request)

    def _entry(self, slots: tuple[Slot, ...], request: ReadRequest) -> CacheEntry | None:
        """The entry in the index that fits the read's path, version and ``if_match``."""
        for slot in slots:
            entry = self._resident_entry(slot.name) or self._cache.index.get(slot.name)
            if entry is not None and _fits(entry, None if slot is slots[0] else request.version, pin_of(request)):
                return entry
        return None

    def _resident_entry(self, name: str) -> CacheEntry | None:
        """An entry whose object is still arriving, or being written."""
        for fill in reversed(self._state.fills.of(name)):
            if fill.entry is not None:
                return fill.entry
        return None

    def _holder(self, entry: CacheEntry) -> Source:
        """The entry, or the fill that still has it in memory (joined); ``None`` if that fill has failed."""
        for fill in self._state.fills.of(entry.name):
            if fill.entry is entry:
                fill.join()
                return JoinedFill(fill, is_hit=fill.state == "complete")
        if entry.tail is None:
            return None
        self._cache.index.use(entry.name, self._cache.read_time())
        return entry

    def _is_trusted(self, entry: CacheEntry, request: ReadRequest) -> bool:
        """Whether an entry that fits may be served without asking the store."""
        if pin_of(request) is not None or request.version is not None or self._revalidate_seconds is None:
            return True
        validated_at = entry.validated_at
        return validated_at is not None and self._runtime.now() - validated_at < self._revalidate_seconds

    def not_modified(self, request: ReadRequest, asked_at: float) -> None:
        """The response to the caller's own condition was "not modified": so is the entry of that version."""
        name = self._slots(request)[0].name
        entry = self._resident_entry(name) or self._cache.index.get(name)
        if entry is not None and entry.etag is not None and entry.etag == request.if_none_match:
            entry.validated_at = asked_at

    def _start(self, slots: tuple[Slot, ...], request: ReadRequest, stale: CacheEntry | None) -> Fill:
        async def look_up(fill: Fill) -> bool:
            return await self._look_up(fill, slots, request)

        fill = Fill(
            ReadRequest(
                path=request.path,
                size=self._object_bytes_max if self._inner.capability.read_range else None,
                if_match=pin_of(request),
                version=request.version,
            ),
            slots[0],
            object_bytes_max=self._object_bytes_max,
            stale=stale,
            look_up=look_up,
            inner=self._inner,
            cache=self._cache,
            memory=self._state.memory,
            runtime=self._runtime,
        )
        self._state.fills.start(fill)
        return fill

    async def _look_up(self, fill: Fill, slots: tuple[Slot, ...], request: ReadRequest) -> bool:
        """Look whether another process has put an entry into the cache; whether it may serve as it is."""
        for slot in slots:
            entry = await self._cache.find(slot)
            if fill.is_invalidated:
                return False
            self._cache.found(slot.name, entry)
            if entry is not None and _fits(entry, None if slot is slots[0] else request.version, pin_of(request)):
                fill.stale = entry
                return self._is_trusted(entry, request)
        return False

    async def _opened(self, fill: Fill, request: ReadRequest) -> Source:
        """The source of a read that joins a fill, once the head of the response is there.

        The fill is left again if that is an entry or the store. Raises the store's error.
        """
        is_hit = fill.state == "complete"
        fill.join()
        try:
            await fill.wait_until(0, deadline=request.deadline)
        except BaseException:
            fill.leave(served=False)
            self._runtime.counters["cache_misses"] += 1
            raise
        if fill.state == "current":
            fill.leave(served=True)
            return None if fill.stale is None else self._holder(fill.stale)
        if fill.state == "bypassed":
            fill.leave(served=True)
            if fill.head is not None:
                self._bypass(fill.slot.name, fill.head)
            return None
        self._state.fills.invalidate_older(fill)
        return JoinedFill(fill, is_hit)

    def _bypass(self, name: str, head: ReadHead) -> None:
        bypassed = self._state.bypassed
        bypassed.add(name, 1, (head.total, head.etag), used_at=0.0)
        for other in bypassed.victims(len(bypassed) - BYPASSED_MAX):
            bypassed.discard(other)


def _fits(entry: CacheEntry, version: str | None, pin: str | None) -> bool:
    """Whether an entry is of this version id and ETag, if they are given."""
    head = entry.head
    return head is not None and version in (None, head.version) and pin in (None, head.etag)
