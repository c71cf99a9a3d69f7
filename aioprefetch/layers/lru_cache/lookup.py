"""The source of a read: an entry of the cache, a fill in progress, or the store."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.cache.object_entry import CacheEntry, Slot, is_excluded, pin_of, slot_of
from aioprefetch.cache.objects import EntryObjects
from aioprefetch.errors import Closed
from aioprefetch.layers.lru_cache.fill import Fill, FillReader
from aioprefetch.layers.lru_cache.object_memory import ObjectMemory
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, ReadRequest

BYPASSED_MAX = 10_000


class BypassedObjects:
    """The objects that are not cached (too large, or without an ETag), so that the next read does not try again.

    Remembers size and ETag of ``names_max`` objects and forgets the least recently read.
    """

    def __init__(self, names_max: int = BYPASSED_MAX) -> None:
        self._names_max = names_max
        self._objects: OrderedDict[str, tuple[int | None, str | None]] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        if name not in self._objects:
            return False
        self._objects.move_to_end(name)
        return True

    def remember(self, name: str, total: int | None, etag: str | None) -> None:
        """The object of this slot has this size and ETag, and is not cached."""
        self._objects[name] = (total, etag)
        self._objects.move_to_end(name)
        if len(self._objects) > self._names_max:
            self._objects.popitem(last=False)

    def check(self, name: str, total: int | None, etag: str | None) -> None:
        """Forget the slot when a response shows another object than the remembered one."""
        if self._objects.get(name, (total, etag)) != (total, etag):
            self.forget(name)

    def forget(self, name: str) -> None:
        """The object may have changed."""
        self._objects.pop(name, None)


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
        self.bypassed = BypassedObjects()
        self.fills = Fills()
        self._closes_fills = False

    def start(self, fill: Fill) -> None:
        """Start a fill; the readers of fills that never run get an error when the runtime ends."""
        if not self._closes_fills:
            self._closes_fills = True
            self.runtime.before_close(self.fills.finish)
            self.runtime.supervisor.on_close(self.fills.aclose)
        self.fills.start(fill)


@dataclass(frozen=True, slots=True)
class JoinedFill:
    """A fill that was joined: ``reader`` has to leave it.

    ``is_hit``: the object was complete by then, only its writing went on.
    """

    fill: Fill
    reader: FillReader
    is_hit: bool


Source = JoinedFill | CacheEntry | None


class Lookup:
    """Finds the source of a read, and starts a fill if there is none."""

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
        self._state.bypassed.check(self._slots(request)[0].name, head.total, head.etag)

    def _slots(self, request: ReadRequest) -> tuple[Slot, ...]:
        """The slots that may have an entry for this read, that of exactly this request first."""
        current = slot_of(self._namespace, request.path, None)
        if request.version is None:
            return (current,)
        return slot_of(self._namespace, request.path, request.version), current

    async def source(self, request: ReadRequest, sink: Sink) -> Source:
        """The fill or the entry to read from; ``None`` for the store itself.

        Raises the store's error when the object cannot be opened.
        """
        slots = self._slots(request)
        is_empty = request.size == 0 or request.suffix == 0
        if not (request.if_modified_since is request.if_unmodified_since is None):
            return None  # The store knows when the object was modified.
        if is_empty or request.offset >= self._object_bytes_max or slots[0].name in self._state.bypassed:
            return None
        if not (self._cache.is_ready or await self._cache.ready()):
            return None
        fill = self._joinable(slots, request)
        if fill is None:
            entry = self._entry(slots, request)
            if entry is not None and self._is_trusted(entry, request):
                return self._holder(entry, request, sink)
            if request.if_none_match is not None and (
                entry is None or is_excluded(request, entry.etag if entry.tail else None)
            ):
                return None  # The caller's own condition is the revalidation.
            fill = self._start(slots, request, entry)
        return await self.opened(fill, fill.join(request, sink))

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

    def _holder(self, entry: CacheEntry, request: ReadRequest, sink: Sink) -> Source:
        """The entry, or the fill that still has it in memory (joined); ``None`` if that fill has failed."""
        for fill in self._state.fills.of(entry.name):
            if fill.entry is entry:
                return JoinedFill(fill, fill.join(request, sink), is_hit=fill.state == "complete")
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
        def judge(slot: Slot, entry: CacheEntry) -> bool | None:
            fits = _fits(entry, None if slot is slots[0] else request.version, pin_of(request))
            return self._is_trusted(entry, request) if fits else None

        fill = Fill(
            ReadRequest(
                path=request.path,
                size=self._object_bytes_max if self._inner.capability.read_range else None,
                if_match=pin_of(request),
                version=request.version,
            ),
            slots=slots,
            object_bytes_max=self._object_bytes_max,
            stale=stale,
            judge=judge,
            inner=self._inner,
            cache=self._cache,
            memory=self._state.memory,
            runtime=self._runtime,
        )
        self._state.start(fill)
        return fill

    async def opened(self, fill: Fill, reader: FillReader) -> Source:
        """The source of a reader that has joined a fill, once the head of the response is there.

        The reader has left the fill if that is an entry or the store. Raises the store's error.
        """
        reader.rewound()
        request, is_hit = reader.request, fill.state == "complete"
        try:
            await fill.wait_until(0, deadline=request.deadline)
        except BaseException:
            fill.leave(reader, served=False)
            self._runtime.counters["cache_misses"] += 1
            raise
        if fill.state == "current":
            fill.leave(reader, served=True)
            return None if fill.stale is None else self._holder(fill.stale, request, reader.sink)
        if fill.state == "bypassed":
            if fill.head is not None:
                self._state.bypassed.remember(fill.slot.name, fill.head.total, fill.head.etag)
            if reader.relay is None:
                fill.leave(reader, served=True)
                return None
        else:
            self._state.fills.invalidate_older(fill)
        reader.response = fill.response
        return JoinedFill(fill, reader, is_hit)


def _fits(entry: CacheEntry, version: str | None, pin: str | None) -> bool:
    """Whether an entry is of this version id and ETag, if they are given."""
    facts = entry.facts
    return facts is not None and version in (None, facts.version) and pin in (None, facts.etag)
