"""The fill: one GET of a whole object, shared by all reads of the object meanwhile.

It looks whether another process has put the object into the cache. If not, it asks for the object (on condition that it
is not the one in the cache), receives it into memory, and writes it to the cache as it comes. Readers take their bytes
out of its memory as soon as these have arrived. It belongs to the supervisor, not to the reader that started it. When
its last reader leaves unserved (by a cancellation) it is cancelled, unless at least half of the object has arrived:
then it is finished.

The head of the response may show that the object is not stored, because it is too large or has no ETag. The response
then continues into the sink of the first reader for which that is worth it (a ``Relay``), and the others read without
the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink, check_delivered
from aioprefetch.cache.entry import TAIL_BYTES_MAX, tail_length
from aioprefetch.cache.guard import CacheFailed
from aioprefetch.cache.object_entry import CacheEntry, ObjectFacts, Slot, part_of
from aioprefetch.cache.objects import EntryObjects
from aioprefetch.errors import Closed, ConditionNotMatch, NotFound, RangeNotSatisfied, TimedOut, copy_of
from aioprefetch.layers.lru_cache.object_memory import ObjectMemory, Reservation
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import ReadHead, ReadRequest

# A fill is "opening" until its head has arrived. Then an entry is "current"; or the object is not stored ("bypassed":
# one reader may have a relay, the others read without the cache), or it is "receiving", "complete" when all of it is in
# memory and perhaps still being written, or "failed".
FillState = Literal["opening", "current", "bypassed", "receiving", "complete", "failed"]

# A relay receives at most this much before its reader's first byte, rather than to ask again on another connection.
SKIPPED_BYTES_MAX = 8 << 20
# The memory of a relay: bytes are copied from it into the sink of the reader.
RELAY_BYTES = 256 << 10
# As much as has arrived, and at most this, is written to the cache at once.
WRITE_BYTES = 1 << 20


class FillReader:
    """A read that has joined a fill. ``relay`` is set if the response is also delivered into its sink.

    ``response`` is the number of the response of which it reads (``Fill.response``).
    """

    __slots__ = ("_rewinding", "relay", "request", "response", "sink")

    def __init__(self, request: ReadRequest, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.relay: Relay | None = None
        self.response = 0
        self._rewinding: asyncio.Future[None] | None = None

    def rewinding(self) -> asyncio.Future[None]:
        """The end of what the reader has to do before it takes the next response."""
        self.relay = None
        self._rewinding = asyncio.get_running_loop().create_future()
        return self._rewinding

    def rewound(self) -> None:
        """The reader is ready for the next response, or has left."""
        if self._rewinding is not None and not self._rewinding.done():
            self._rewinding.set_result(None)


class Relay:
    """Passes the response to a fill on to one reader: its part, as far as the response goes.

    Bytes go through memory of the relay's own, so that nothing is written to the reader's memory after it has left.
    """

    def __init__(self, reader: FillReader, head: ReadHead, part: ReadHead) -> None:
        self.part = part
        self.end = min(part.end, head.end)
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reader = reader
        self._deliver(lambda: reader.sink.begin(part, path=reader.request.path))
        if part.start >= self.end:  # The part is empty, or lies behind this response.
            self.finish()

    def feed(self, start: int, data: memoryview) -> None:
        """Pass on the bytes of the object from ``start`` on, as far as the reader wants them."""
        wanted = data[max(0, self.part.start - start) : max(0, self.end - start)]
        if wanted and not self.finished.done():
            self._deliver(lambda: self.reader.sink.feed(wanted))
        if start + len(data) >= self.end:
            self.finish()

    def finish(self) -> None:
        """The reader has got all that the response holds for it, unless it has failed or left."""
        if not self.finished.done():
            self.finished.set_result(None)

    def fail(self, error: Exception) -> None:
        """The response was cut off, or the reader's sink refused it."""
        if not self.finished.done():
            self.finished.set_exception(error)
            self.finished.exception()  # The reader gets it, unless it has left.

    def _deliver(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            self.fail(error)


class FillSink(Sink):
    """Receives the response to a fill, into the object's memory or through a relay."""

    __slots__ = ("_fill", "_relayed", "_scratch")
    is_paced = True  # A relay goes at the pace of its reader.

    def __init__(self, fill: Fill) -> None:
        super().__init__()
        self._fill = fill
        self._relayed = 0
        self._scratch = memoryview(b"")

    @property
    def is_full(self) -> bool:  # type: ignore[override]  # A constant for sinks that are never behind.
        """Whether the response has a relay whose reader is behind."""
        relay = self._fill.relay
        return relay is not None and relay.reader.sink.is_full and not relay.finished.done()

    async def drained(self) -> None:
        """Wait until that reader has room."""
        if self._fill.relay is not None:
            await self._fill.relay.reader.sink.drained()

    async def begin_again(self) -> bool:
        """Begin again with no bytes. The readers of the fill do so by themselves, as far as their own sinks can."""
        if not await self._fill.begin_again():
            return False
        self._rewind()
        self.head = None
        self._relayed = 0
        return True

    def _begun(self, head: ReadHead) -> None:
        self._fill.begin(head)

    def _allocate(self, position: int, size: int) -> memoryview:
        if self._fill.state == "receiving":
            return memoryview(self._fill.buffer)[position:size]
        if not self._scratch:
            self._scratch = memoryview(bytearray(min(RELAY_BYTES, size - position)))
        return self._scratch[: size - position]

    def _advanced(self) -> None:
        if self._fill.state == "receiving":
            self._fill.advance(self.received)
            return
        start, self._relayed = self._relayed, self.received
        self._fill.pass_on(start, self._piece[start - self._piece_start : self.received - self._piece_start])


class Fill:
    """The transfer of an object from its store into the cache.

    ``stale`` is an entry of which the store is asked whether it still is the object. Without one the cache is looked up
    in ``slots``, the first of which the object is stored in; ``judge`` says of an entry that was found whether it may
    serve the readers as it is (``None``: it does not fit). ``entry``: what is in memory, as an entry.
    """

    def __init__(
        self,
        request: ReadRequest,
        *,
        slots: Sequence[Slot],
        object_bytes_max: int,
        stale: CacheEntry | None,
        judge: Callable[[Slot, CacheEntry], bool | None],
        inner: Accessor,
        cache: EntryObjects,
        memory: ObjectMemory,
        runtime: Runtime,
    ) -> None:
        self.request = request
        self.slot = slots[0]
        self.stale = stale
        self.state: FillState = "opening"
        self.head: ReadHead | None = None
        # Counts the responses that were dropped because nothing proved that the next one continued them.
        self.response = 0
        self.entry: CacheEntry | None = None
        self.error: Exception | None = None
        self.received = 0
        # Set when the object was written or replaced: it is not stored, and later readers do not join.
        self.is_invalidated = False
        self.started_at = runtime.now()
        self.last_read = cache.read_time()
        self.buffer = bytearray()
        self.relay: Relay | None = None
        self._object_bytes_max = object_bytes_max
        self._slots = slots
        self._judge = judge
        self._inner = inner
        self._cache = cache
        self._memory = memory
        self._runtime = runtime
        self._reservation: Reservation | None = None
        self._readers: list[FillReader] = []
        self._response_bytes = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._work: Work | None = None
        self._keeping: Work | None = None
        self._writes = 0
        self._on_end: Callable[[Fill], None] | None = None

    @property
    def has_arrived(self) -> bool:
        """Whether all of the object is in memory, and only its way into the cache is left."""
        head = self.head
        return head is not None and self.state in ("receiving", "complete") and self.received >= head.size

    def start(self, on_end: Callable[[Fill], None]) -> None:
        """Begin; ``on_end`` is called once, when no reader can join any more."""
        self._on_end = on_end
        self._work = self._runtime.supervisor.spawn(self._run(), name="fill of the cache", on_end=self._ran)

    # --- readers ------------------------------------------------------------------------------------------------

    def join(self, request: ReadRequest, sink: Sink) -> FillReader:
        """Add a reader, which must ``leave``."""
        reader = FillReader(request, sink)
        self._readers.append(reader)
        self.last_read = self._cache.read_time()
        return reader

    def leave(self, reader: FillReader, *, served: bool) -> None:
        """A reader leaves; ``served`` says whether it got its bytes."""
        self._readers.remove(reader)
        reader.rewound()
        if reader.relay is not None and not reader.relay.finished.done():
            reader.relay.finished.cancel()  # Its sink gets nothing more.
            self._break_off()
        if self._readers:
            return
        is_running = self.state in ("opening", "receiving")
        if is_running and not served and not (self.head and 2 * self.received >= self.head.size):
            self.is_invalidated = True
            self.fail(Closed("the last reader of a fill left", operation="read", path=self.request.path))
            self._break_off()
        self._free()

    async def wait_until(self, position: int, *, deadline: float | None, response: int | None = None) -> None:
        """Wait until the head and ``position`` bytes are there, or the ``response`` of that number was dropped.

        Raises the fill's error, or ``TimedOut``.
        """
        while response in (None, self.response) and not self._has(position):
            waiter = self._runtime.loop.create_future()
            self._waiters.append((position, waiter))
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError as late:
                late.__traceback__ = None  # Its frames hold the task, whose error it becomes the context of.
                raise late_error(self.request) from None
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
            self.state = "failed"
        if self.relay is not None:
            self.relay.fail(copy_of(error))
        self._wake()
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    def _free(self) -> None:
        is_used = self._readers or self._work is not None or self._writes
        if not is_used and self._reservation is not None:
            self._reservation.release()
            self._reservation = None
            self.buffer = bytearray()

    def _break_off(self) -> None:
        """End the response: the rest of it is of no use."""
        if self._work is not None:
            self._work.cancel()

    # --- the response -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            if self.stale is not None or not await self._look_up():
                await self._fetch()
            if self.state == "receiving":
                self._settle("complete")
        except asyncio.CancelledError:
            self.fail(Closed("the operator was closed during the read", operation="read", path=self.request.path))
            raise
        except Exception as error:
            if self.state == "complete":
                raise
            self.fail(error)

    def _ran(self) -> None:
        self._work = None
        self._ended_one()

    def _ended_one(self) -> None:
        """The response has ended, or the writing to the cache."""
        if self._work is None and not self._writes:
            self._end()
            self._free()

    async def _look_up(self) -> bool:
        """Whether the cache has an entry that may serve the readers as it is; the store is asked about another one."""
        for slot in self._slots:
            entry = await self._cache.find(slot)
            if self.is_invalidated:
                return False
            self._cache.found(slot.name, entry)
            serves = None if entry is None else self._judge(slot, entry)
            if serves is None:
                continue
            self.stale = entry
            if serves:
                self._settle("current")
                return True
            break
        return False

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
            if self.request.if_none_match is None or self.stale is None or sink.head is not None:
                raise
            self._not_modified(self.stale)
            return
        except NotFound:
            if self.stale is not None:
                self._cache.drop(self.stale)
            raise
        finally:
            if not self.buffer:
                reservation.release()
        if self.state in ("opening", "receiving", "bypassed"):
            check_delivered(self.request, sink, reply)
        if self.relay is not None:
            self.relay.finish()

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
            self._bypass(head)
            return
        assert self._reservation is not None
        if not self._reservation.take(head.size):
            # Memory is short only now: without a head here, the object is not remembered as one to bypass.
            self._bypass(head)
            return
        self.head = head
        self.buffer = bytearray(head.size)
        if head.etag is not None:
            self._keep(head, head.etag)
        self._settle("receiving")

    async def begin_again(self) -> bool:
        """Drop what has arrived, and take the next response as the first one. Returns whether that is of use."""
        relay = self.relay
        has_relay = relay is not None and not relay.finished.done()
        if not has_relay and self.state != "receiving":
            return False
        self.relay = self.head = self.entry = None
        self.response += 1
        self.received = 0
        if self._keeping is not None:
            self._keeping.cancel()
        if self._reservation is not None:
            self._reservation.release()
        self.buffer = bytearray()
        # Those that wait for bytes of the dropped response.
        waiters, self._waiters = self._waiters, []
        self.state = "opening"
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if relay is not None and has_relay:
            rewinding = relay.reader.rewinding()
            relay.finish()
            await asyncio.wait((rewinding,))
        return True

    def advance(self, received: int) -> None:
        """More bytes of the object are in its memory."""
        self.received = received
        self._wake()

    def pass_on(self, start: int, data: memoryview) -> None:
        """More bytes have arrived of a response that is not stored."""
        if self.relay is not None:
            self.relay.feed(start, data)
            if self.relay.finished.done() and start + len(data) < self._response_bytes:
                self._break_off()

    def _bypass(self, head: ReadHead) -> None:
        self._response_bytes = head.size
        for reader in self._readers:
            part = self._relayed_part(reader, head)
            if part is not None:
                self.relay = reader.relay = Relay(reader, head, part)
                break
        else:
            self._break_off()
        self._settle("bypassed")

    def _relayed_part(self, reader: FillReader, head: ReadHead) -> ReadHead | None:
        """The part of the object that a reader gets by a relay, ``None`` if a request of its own is better."""
        if reader.request.suffix is not None or head.start != 0 or head.total is None:
            return None
        if reader.sink.head is not None:  # It has bytes of a response that was dropped.
            return None
        try:
            part = part_of(reader.request, replace(head, start=0, size=head.total))
        except (RangeNotSatisfied, ConditionNotMatch):
            return None
        capability = self._inner.capability
        can_go_on = head.etag is not None and not is_weak(head.etag) and capability.read_if_match
        reaches = part.end <= head.end or (can_go_on and capability.read_range)
        return part if reaches and part.start <= min(SKIPPED_BYTES_MAX, head.end) else None

    def _not_modified(self, entry: CacheEntry) -> None:
        entry.validated_at = self.started_at
        self._runtime.counters["cache_revalidations"] += 1
        self._runtime.events.publish("cache.revalidated", self.request.path)
        self._settle("current")

    # --- the way into the cache ---------------------------------------------------------------------------------

    def _keep(self, head: ReadHead, etag: str) -> None:
        """Write the object to the cache while it arrives."""
        facts = ObjectFacts(
            etag=etag,
            version=head.version,
            last_modified=head.last_modified,
            content_type=head.content_type,
            content_encoding=head.content_encoding,
            user_metadata=head.user_metadata,
            filled_at=datetime.now(UTC),
        )
        entry = CacheEntry(name=self.slot.name, size_bytes=head.size, facts=facts, validated_at=self.started_at)
        self.entry = entry
        tail_bytes = tail_length(self.slot.identity, facts.encode(), head.size)
        if tail_bytes <= TAIL_BYTES_MAX:
            work = self._write(entry, facts, head.size, head.size + tail_bytes)
            self._writes += 1
            self._keeping = self._runtime.supervisor.spawn(work, name="write to the cache", on_end=self._kept)

    def _kept(self) -> None:
        self._writes -= 1
        self._ended_one()

    async def _write(self, entry: CacheEntry, facts: ObjectFacts, data_bytes: int, size_bytes: int) -> None:
        try:
            writer = await self._cache.begin(self.slot, facts, data_bytes, size_bytes, lambda: self.last_read)
        except CacheFailed:
            return
        if writer is None:
            return
        try:
            position, data = 0, memoryview(self.buffer)
            while position < data_bytes:
                await self.wait_until(position + 1, deadline=None)
                end = min(self.received, position + WRITE_BYTES)
                await writer.write(data[position:end])
                position = end
            await self.wait_until(data_bytes, deadline=None)
            if not self._is_wanted(entry):
                return
            written = await writer.finish()
        except Exception as error:
            if not isinstance(error, CacheFailed) and self.error is None:
                raise
            return
        finally:
            await writer.abort()
        entry.size_bytes, entry.tail, entry.store_etag = size_bytes, written.tail, written.store_etag
        self._cache.wrote(entry, self.last_read)
        if not self._is_wanted(entry):  # The object was written while its last version was being stored.
            self._cache.drop(entry)
            return
        self._runtime.counters["cache_fills"] += 1
        self._runtime.events.publish("cache.filled", self.request.path, size_bytes=size_bytes)

    def _is_wanted(self, entry: CacheEntry) -> bool:
        """Whether what has arrived is still the object, as far as is known."""
        return self.entry is entry and not self.is_invalidated


def late_error(request: ReadRequest) -> TimedOut:
    """The error of a read whose bytes did not come in time."""
    return TimedOut("the object did not arrive before the deadline", operation="read", path=request.path)
