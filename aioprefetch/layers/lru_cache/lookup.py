"""Where a read is served from: an entry of the cache, a fill on its way, or the store itself."""

from __future__ import annotations

from dataclasses import dataclass

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.write_body import ReadBody
from aioprefetch.layers.lru_cache.entry import slot_of
from aioprefetch.layers.lru_cache.fill import Fill
from aioprefetch.layers.lru_cache.index import IndexEntry
from aioprefetch.layers.lru_cache.state import CacheState
from aioprefetch.values import ReadHead, ReadRequest


@dataclass(frozen=True, slots=True)
class Joined:
    """A fill that was joined: ``leave`` it. ``is_hit``: the object was complete by then, only its writing went on."""

    fill: Fill
    is_hit: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """A response with the beginning of an object that is not cached, which has just begun: close it."""

    body: ReadBody


Source = Joined | Begun | IndexEntry | None


class Lookup:
    """Finds the source of a read, and starts a fill where there is none."""

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

    def check_passed_by(self, request: ReadRequest, head: ReadHead) -> None:
        """An object that was passed by was read: forget that when it is another one now."""
        self._state.passed_by.check(self._slots(request)[0], head.total, head.etag)

    def _slots(self, request: ReadRequest) -> tuple[str, ...]:
        """Where an entry for this read may stand, the slot of exactly this question first."""
        current = slot_of(self._namespace, request.path, None)
        if request.version is None:
            return (current,)
        return slot_of(self._namespace, request.path, request.version), current

    async def source(self, request: ReadRequest) -> Source:
        """The fill, the response or the entry to read from; ``None`` for the store itself.

        Raises what the store says when the object cannot be opened.
        """
        slots = self._slots(request)
        is_empty = request.size == 0 or request.suffix == 0
        if is_empty or request.offset >= self._object_bytes_max or slots[0] in self._state.passed_by:
            return None
        if not await self._cache.ready():
            return None
        fill = self._joinable(slots, request)
        if fill is None:
            entry = await self._entry(slots, request)
            if entry is not None and self._is_trusted(entry, request):
                return self._holder(entry)
            if request.if_none_match is not None and (
                entry is None or is_excluded(request, entry.header.etag if entry.header else None)
            ):
                return None  # The caller's own question is the revalidation.
            # Another read may have started one while this one looked for the entry.
            fill = self._joinable(slots, request) or self._start(slots[0], request, entry)
        return await self._opened(fill, request)

    def _joinable(self, slots: tuple[str, ...], request: ReadRequest) -> Fill | None:
        for slot in slots:
            for fill in self._state.fills.of(slot):
                if self._may_join(fill, request, is_same_question=slot == slots[0]):
                    return fill
        return None

    def _may_join(self, fill: Fill, request: ReadRequest, *, is_same_question: bool) -> bool:
        pin = pin_of(request)
        if fill.head is None:
            return fill.state == "opening" and is_same_question and fill.request.if_match == pin
        if pin not in (None, fill.head.etag) or not (is_same_question or fill.head.version == request.version):
            return False
        if fill.state == "complete":
            return fill.entry is not None and self._is_trusted(fill.entry, request)
        return fill.state in ("opening", "receiving")

    async def _entry(self, slots: tuple[str, ...], request: ReadRequest) -> IndexEntry | None:
        """The entry that fits the read's path, version and ``if_match``, its header known."""
        for slot in slots:
            entry = self._resident_entry(slot) or self._cache.index.get(slot)
            header = None if entry is None else await self._cache.header(entry)
            if header is None or (slot != slots[0] and header.version != request.version):
                continue
            if pin_of(request) in (None, header.etag):
                return entry
        return None

    def _resident_entry(self, slot: str) -> IndexEntry | None:
        """An entry that is still being written."""
        return next((fill.entry for fill in reversed(self._state.fills.of(slot)) if fill.entry is not None), None)

    def _holder(self, entry: IndexEntry) -> Joined | IndexEntry:
        """The entry, or the fill that still has it in memory (joined)."""
        for fill in self._state.fills.of(entry.slot):
            if fill.entry is entry:
                fill.join()
                return Joined(fill, is_hit=True)
        return entry

    def _is_trusted(self, entry: IndexEntry, request: ReadRequest) -> bool:
        """Whether an entry that fits may be served without asking the store."""
        if pin_of(request) is not None or request.version is not None or self._revalidate_seconds is None:
            return True
        validated_at = entry.validated_at
        return validated_at is not None and self._runtime.now() - validated_at < self._revalidate_seconds

    def proved_fresh(self, request: ReadRequest, asked_at: float) -> None:
        """The caller's own question was answered "not modified": so is the entry of that version."""
        slot = self._slots(request)[0]
        entry = self._resident_entry(slot) or self._cache.index.get(slot)
        if entry is not None and entry.header is not None and entry.header.etag == request.if_none_match:
            entry.validated_at = asked_at

    def _start(self, slot: str, request: ReadRequest, known: IndexEntry | None) -> Fill:
        etag = known.header.etag if known is not None and known.header is not None else None
        fill = Fill(
            ReadRequest(
                path=request.path,
                size=self._object_bytes_max if self._inner.capability.read_range else None,
                if_match=pin_of(request),
                if_none_match=etag if self._inner.capability.read_if_none_match else None,
                version=request.version,
            ),
            slot=slot,
            object_bytes_max=self._object_bytes_max,
            known=known,
            inner=self._inner,
            cache=self._cache,
            memory=self._state.memory,
            runtime=self._runtime,
        )
        self._state.start(fill)
        return fill

    async def _opened(self, fill: Fill, request: ReadRequest) -> Source:
        is_hit = fill.state == "complete"
        fill.join()
        try:
            await fill.wait_until(0, deadline=request.deadline)
        except BaseException:
            fill.leave(served=False)
            self._runtime.counters["cache_misses"] += 1
            raise
        if fill.state == "fresh":
            fill.leave(served=True)
            return None if fill.known is None else self._holder(fill.known)
        if fill.state == "passed_by":
            if fill.head is not None:
                self._state.passed_by.remember(fill.slot, fill.head.total, fill.head.etag)
            begun = fill.take_begun()
            fill.leave(served=True)
            return None if begun is None else Begun(begun)
        self._state.fills.doom_older(fill)
        return Joined(fill, is_hit)


def pin_of(request: ReadRequest) -> str | None:
    """The ETag that a read is bound to; ``*`` binds it to none."""
    return None if request.if_match == "*" else request.if_match


def is_excluded(request: ReadRequest, etag: str | None) -> bool:
    """Whether ``if_none_match`` forbids this version."""
    return request.if_none_match is not None and request.if_none_match in ("*", etag)
