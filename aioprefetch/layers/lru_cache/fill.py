"""The fill: one GET of a whole object, shared by all reads of the object meanwhile.

It looks whether another process has put the object into the cache. If not, it asks for the object (on condition that it
is not the one in the cache), receives it into memory, and writes it to the cache as it comes. Readers take their bytes
out of its memory as soon as these have arrived. It belongs to the supervisor, not to the reader that started it. When
its last reader leaves unserved (by a cancellation) it is cancelled, unless at least half of the object has arrived:
then it is finished.

The head of the response may show that the object is not stored, because it is too large or has no ETag. Or the body is
cut off, without a proof that the rest is of the same version. Then the fill ends, and its readers go past the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink, check_delivered
from aioprefetch.cache.guard import CacheFailed
from aioprefetch.cache.object_entry import CacheEntry, Slot
from aioprefetch.cache.objects import EntryObjects
from aioprefetch.errors import Closed, ConditionNotMatch, NotFound, TimedOut, copy_of
from aioprefetch.layers.lru_cache.object_memory import ObjectMemory, Reservation
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import ReadHead, ReadRequest

# A fill is "opening" until its head has arrived. Then an entry is "current"; or the object is not stored ("bypassed"),
# or it is "receiving", "complete" when all of it is in memory and perhaps still being written, or "failed".
FillState = Literal["opening", "current", "bypassed", "receiving", "complete", "failed"]

# As much as has arrived, and at most this, is written to the cache at once.
WRITE_BYTES = 1 << 20
# The memory for what follows of a response that was cancelled.
IGNORED_BYTES = 64 << 10


class FillSink(Sink):
    """Receives the response to a fill into the object's memory."""

    __slots__ = ("_fill",)

    def __init__(self, fill: Fill) -> None:
        super().__init__()
        self._fill = fill

    async def begin_again(self) -> bool:
        """Give the fill up: those who read may have bytes already."""
        self._fill.pass_by()
        return False

    def _begun(self, head: ReadHead) -> None:
        self._fill.begin(head)

    def _allocate(self, position: int, size: int) -> memoryview:
        if self._fill.state == "receiving":
            return memoryview(self._fill.buffer)[position:size]
        return memoryview(bytearray(min(IGNORED_BYTES, size - position)))

    def _advanced(self) -> None:
        self._fill.advance(self.received)


class Fill:
    """The transfer of an object from its store into the cache.

    ``stale`` is an entry that the store is asked about: is it still the object? Without one ``look_up`` finds an
    entry in the cache, and says whether that may serve the readers as it is. ``entry``: what is in memory, as an entry.
    """

    def __init__(
        self,
        request: ReadRequest,
        slot: Slot,
        *,
        object_bytes_max: int,
        stale: CacheEntry | None,
        look_up: Callable[[Fill], Awaitable[bool]],
        inner: Accessor,
        cache: EntryObjects,
        memory: ObjectMemory,
        runtime: Runtime,
    ) -> None:
        self.request = request
        self.slot = slot
        self.stale = stale
        self.state: FillState = "opening"
        self.head: ReadHead | None = None
        self.entry: CacheEntry | None = None
        self.error: Exception | None = None
        self.received = 0
        # Set when the object was written or replaced: it is not stored, and later readers do not join.
        self.is_invalidated = False
        self.started_at = runtime.now()
        self.last_read = cache.read_time()
        self.buffer = bytearray()
        self._object_bytes_max = object_bytes_max
        self._look_up = look_up
        self._inner = inner
        self._cache = cache
        self._memory = memory
        self._runtime = runtime
        self._reservation: Reservation | None = None
        self._readers = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._receiving: Work | None = None
        # How many of receiving and writing to the cache have not ended.
        self._works = 0
        self._on_end: Callable[[Fill], None] | None = None

    @property
    def has_arrived(self) -> bool:
        """Whether all of the object is in memory, and only its way into the cache is left."""
        head = self.head
        return head is not None and self.state in ("receiving", "complete") and self.received >= head.size

    def start(self, on_end: Callable[[Fill], None]) -> None:
        """Begin; ``on_end`` is called once, when no reader can join any more."""
        self._on_end = on_end
        self._works += 1
        self._receiving = self._runtime.supervisor.spawn(self._run(), name="fill of the cache", on_end=self._ended_one)

    # --- readers ------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Add a reader, which must ``leave``."""
        self._readers += 1
        self.last_read = self._cache.read_time()

    def leave(self, *, served: bool) -> None:
        """A reader leaves; ``served`` says whether it got its bytes."""
        self._readers -= 1
        if self._readers:
            return
        is_running = self.state in ("opening", "receiving")
        if is_running and not served and not (self.head and 2 * self.received >= self.head.size):
            self.is_invalidated = True
            self.fail(Closed("the last reader of a fill left", operation="read", path=self.request.path))
            self._break_off()
        self._free()

    async def wait_until(self, position: int, *, deadline: float | None) -> None:
        """Wait until the head and ``position`` bytes are there, or none will come ("current" and "bypassed").

        Raises the fill's error, or ``TimedOut``.
        """
        while not self._has(position):
            waiter = self._runtime.loop.create_future()
            self._waiters.append((position, waiter))
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError as late:
                late.__traceback__ = None  # Its frames hold the task, whose error it becomes the context of.
                raise TimedOut(
                    "the object did not arrive before the deadline", operation="read", path=self.request.path
                ) from None
            finally:
                del waiter  # It holds its cancellation, whose traceback holds this frame.

    def _has(self, position: int) -> bool:
        if self.state in ("current", "bypassed"):
            return True
        if self.state != "opening" and self.head is not None and self.received >= position:
            return True
        if self.error is not None:
            raise copy_of(self.error)
        return False

    def _wake(self) -> None:
        waiting: list[tuple[int, asyncio.Future[None]]] = []
        for position, waiter in self._waiters:
            if waiter.done():
                continue
            if self.state == "opening" or (self.state == "receiving" and self.received < position):
                waiting.append((position, waiter))
            else:
                waiter.set_result(None)
        self._waiters = waiting

    def _settle(self, state: FillState) -> None:
        self.state = state
        self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error, which every reader gets whose bytes have not arrived."""
        if self.state in ("opening", "receiving"):
            self.error = copy_of(error)
            self._settle("failed")
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    def _free(self) -> None:
        if not self._readers and not self._works and self._reservation is not None:
            self._reservation.release()
            self._reservation = None
            self.buffer = bytearray()

    def _break_off(self) -> None:
        """End the response: the rest of it is of no use."""
        if self._receiving is not None:
            self._receiving.cancel()

    def _ended_one(self) -> None:
        self._works -= 1
        if not self._works:
            self._end()
            self._free()

    # --- the response -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            if self.stale is None and await self._look_up(self):
                self._settle("current")
                return
            await self._fetch()
            if self.state == "receiving":
                self._settle("complete")
        except asyncio.CancelledError:
            self.fail(Closed("the operator was closed during the read", operation="read", path=self.request.path))
            raise
        except Exception as error:
            self.fail(error)

    async def _fetch(self) -> None:
        stale = self.stale
        if stale is not None and self._inner.capability.read_if_none_match:
            self.request = replace(self.request, if_none_match=stale.etag)
        reservation = self._reservation = await self._memory.reserve(None)
        if reservation is None:
            self._settle("bypassed")
            return
        sink = FillSink(self)
        try:
            reply = await self._inner.read(self.request, sink)
        except ConditionNotMatch:
            if self.request.if_none_match is None or stale is None or sink.head is not None:
                raise
            self._not_modified(stale)
            return
        except NotFound:
            if stale is not None:
                self._cache.drop(stale)
            raise
        finally:
            if not self.buffer:
                reservation.release()
        if self.state in ("opening", "receiving"):
            check_delivered(self.request, sink, reply)

    def begin(self, head: ReadHead) -> None:
        """Take the checked head of the response, and decide on the use of its body."""
        stale = self.stale
        # Not every store supports the condition, so the ETag is compared too.
        if stale is not None and stale.etag is not None and stale.etag == head.etag:
            self._not_modified(stale)
            self._break_off()
            return
        if stale is not None:
            self._cache.drop(stale)
        head = replace(head, version=head.version or self.request.version)
        is_whole = head.start == 0 and head.total == head.size
        if not is_whole or head.size > self._object_bytes_max or (head.etag is None and head.size > 0):
            self.head = head
            self.pass_by()
            return
        assert self._reservation is not None
        if not self._reservation.take(head.size):
            # Memory is short only now: without a head here, the object is not remembered as one to bypass.
            self.pass_by()
            return
        self.head = head
        self.buffer = bytearray(head.size)
        if head.etag is not None:
            self.entry = CacheEntry(name=self.slot.name, head=head, validated_at=self.started_at)
            self._works += 1
            self._runtime.supervisor.spawn(self._keep(self.entry), name="write to the cache", on_end=self._ended_one)
        self._settle("receiving")

    def pass_by(self) -> None:
        """Give up: the readers go past the cache."""
        self.entry = None
        self._settle("bypassed")
        self._break_off()

    def advance(self, received: int) -> None:
        """More bytes of the object are in its memory."""
        self.received = received
        self._wake()

    def _not_modified(self, entry: CacheEntry) -> None:
        entry.validated_at = self.started_at
        self._runtime.counters["cache_revalidations"] += 1
        self._runtime.events.publish("cache.revalidated", self.request.path)
        self._settle("current")

    # --- the way into the cache ---------------------------------------------------------------------------------

    async def _keep(self, entry: CacheEntry) -> None:
        """Write the object to the cache while it arrives."""
        try:
            is_written = await self._cache.write(self.slot, entry, self._arrived, lambda: self.last_read)
        except Exception as error:
            if not isinstance(error, CacheFailed) and self.error is None:
                raise
            return
        if not is_written:
            return
        if not self._is_wanted(entry):  # The object was written while its last version was being stored.
            self._cache.drop(entry)
            return
        self._runtime.counters["cache_fills"] += 1
        self._runtime.events.publish("cache.filled", self.request.path, size_bytes=entry.size_bytes)

    async def _arrived(self, entry: CacheEntry, position: int) -> memoryview | None:
        """The next bytes to be written, none at the end; ``None`` if the object is not to be kept, after all."""
        size = len(self.buffer)
        await self.wait_until(min(position + 1, size), deadline=None)
        if not self._is_wanted(entry):
            return None
        return memoryview(self.buffer)[position : min(self.received, position + WRITE_BYTES)]

    def _is_wanted(self, entry: CacheEntry) -> bool:
        """Whether the arrived bytes still belong to the object, to our knowledge."""
        return self.entry is entry and not self.is_invalidated
