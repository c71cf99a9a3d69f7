"""One request in flight, the segments it fills, and the reads that wait for its bytes.

Each waiting read has a future of its own, so a cancelled one disturbs no other. It wakes as soon as the bytes that it
needs have arrived, not when the request ends. A demand fetch is cancelled when its last waiter leaves, unless it has
served a waiter already: then the rest of the block is read ahead for the next. A fetch that is nearly complete is not
cancelled but **drained**: its rest costs less than a new connection.

The counters of fetches and blocks are kept here too: each segment counts for the reader that it was fetched for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from aioprefetch.accessor.sink import Sink, is_comparable
from aioprefetch.blocks.block import Segment, SegmentState
from aioprefetch.errors import Closed, Error, copy_of
from aioprefetch.runtime.budget import Ticket
from aioprefetch.runtime.buffers import new_buffer
from aioprefetch.runtime.eager_work import EagerWork
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Account, Counters, Tier
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import Lane, ReadHead

# A drained response that takes longer than this is cancelled.
DRAIN_SECONDS_MAX = 1.0


class Wait:
    """The wait of one read for the bytes of a fetch up to a position, until it is closed.

    ``future`` is ``None`` if there was nothing to wait for: the bytes were there when it began, or the fetch had ended,
    with ``error`` if that is set. ``was_late`` says that the bytes had not arrived when it began. ``received`` is the
    number of bytes in the body that had, negative without a head.
    """

    __slots__ = ("error", "fetch", "future", "is_closed", "is_pinning", "position", "received", "was_late")

    def __init__(self, fetch: Fetch, position: int) -> None:
        self.fetch = fetch
        self.position = position
        self.received = -1 if fetch.head is None else fetch.received
        self.is_closed = self.is_pinning = False
        self.was_late = True
        self.future: asyncio.Future[None] | None = None
        self.error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.future is None or self.future.done()

    def pin(self) -> None:
        """Keep the segments of the fetch from eviction until ``close``.

        Only for bytes that are used as soon as they arrive: a read that pinned memory while it waits for more could
        lock all others out, and be locked out by them.
        """
        if not (self.is_closed or self.is_pinning or self.fetch.finished):
            self.is_pinning = True
            for segment in self.fetch.segments:
                segment.pins += 1

    def fail(self, error: Exception) -> None:
        """End the wait with an error, unless it is over."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def close(self) -> None:
        """Leave the fetch, after the bytes were used or the wait was cancelled. May be called twice."""
        self.fetch.leave(self)


class FetchedFile(Protocol):
    """The part of a file that a fetch uses."""

    def add(self, fetch: Fetch) -> None:
        """A fetch brings bytes of this file."""

    def place(self, fetch: Fetch, head: ReadHead) -> None:
        """Make the segments that the response fills."""

    def settle(self, fetch: Fetch) -> None:
        """The fetch has ended: keep the beginning of unfinished segments."""

    def forget_if_empty(self) -> None:
        """Leave the store if nothing is resident, in flight or open."""


class FetchSource(Protocol):
    """The sender of a fetch."""

    @property
    def stall_seconds(self) -> float | None:
        """After how many seconds without a byte its requests fail, ``None`` if that is not known."""

    def send(self, fetch: Fetch) -> Awaitable[object]:
        """Send the request, with the fetch as the sink of its response."""

    async def refused(self, error: Error) -> Error | None:
        """The error that the refusal of the request means, which may be another one; ``None`` if it is the answer."""

    def file_of(self, fetch: Fetch, head: ReadHead) -> FetchedFile:
        """The file that a response fills. Called before any segment is made; raises if it is from another object."""


class _NoSource:
    """The source of a fetch that has ended, which may not keep what has sent it."""

    stall_seconds = None

    def send(self, fetch: Fetch) -> Awaitable[object]:
        raise AssertionError("the fetch has ended")

    async def refused(self, error: Error) -> Error | None:
        raise AssertionError("the fetch has ended")

    def file_of(self, fetch: Fetch, head: ReadHead) -> FetchedFile:
        raise AssertionError("the fetch has ended")


_NO_SOURCE = _NoSource()


class FetchStarter(Protocol):
    """The part of a block store that a fetch uses."""

    runtime: Runtime
    keeps_fetched: bool

    def keep(self, fetch: Fetch, segment: Segment) -> None:
        """A segment is complete: write its block to the disk if all of that is there."""

    def start(self, fetch: Fetch) -> None:
        """Start a request. A demand request is sent by this call if there is memory for it."""

    def abandon(self, fetch: Fetch) -> None:
        """End a fetch that was cancelled."""

    def filled(self, segment: Segment) -> None:
        """The last byte of a segment has arrived."""

    def opened(self, fetch: Fetch) -> None:
        """The response of a fetch has named the file that it fills."""


class Fetch(Sink):
    """A request for ``[start, end)`` as the sink of its own response.

    ``is_drained``: no read needs it any more, and its rest is received for the sake of the connection.

    The file of the response makes the segments to fill, by ``new_segment``, in order. The rest of the body is already
    resident and is dropped. ``label`` is the name of the object in events. ``on_end`` is called once, however it ends.
    """

    def __init__(
        self,
        store: FetchStarter,
        source: FetchSource,
        start: int,
        end: int,
        *,
        lane: Lane,
        label: str,
        account: Account | None,
    ) -> None:
        Sink.__init__(self)
        self.source: FetchSource = source
        self.start = start
        self.end = end
        self.lane: Lane = lane
        self.prefetched = lane == "prefetch"
        self.account = account
        self.segments: list[Segment] = []
        self.file: FetchedFile | None = None
        self.ticket: Ticket | None = None
        self.reserved_bytes = 0
        self.work: EagerWork | Work | None = None
        self.error: Exception | None = None
        self.finished = False
        self.label = label
        self.on_end: Callable[[], None] | None = None
        self.started = 0.0
        self.headed: float | None = None  # When its head arrived, if this request is measured; negative before.
        self.tier = Tier.NETWORK
        self.was_sent = self.is_drained = False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._store = store
        self._served = False
        self._next = 0  # The index of the segment that is being filled.
        self._waits: list[Wait] = []

    @property
    def position(self) -> int:
        """The end of the received bytes: every byte of the fetch before it has arrived."""
        return self.start if self.head is None else self.head.start + self.received

    @property
    def left_bytes(self) -> int:
        """The bytes of the response that have not arrived, without a head of the request."""
        return (self.end - self.start if self.head is None else self.head.size) - self.received

    @property
    def has_waiters(self) -> bool:
        """Whether a read waits for it now."""
        return bool(self._waits)

    @property
    def succeeded(self) -> bool:
        """Whether it has ended without an error."""
        return self.finished and self.error is None

    def is_past(self, end: int) -> bool:
        """Whether all of its bytes before ``end`` have arrived."""
        return self.head is not None and self.position >= min(end, self.end)

    def join(self, position: int) -> Wait:
        """Wait until everything before ``position`` has arrived; position 0 waits for the head alone.

        A prefetch with a waiter is promoted to demand.
        """
        wait = Wait(self, position)
        self._waits.append(wait)
        if self.is_drained:
            self._end_drain()
        head = self.head
        if head is not None and head.start + self.received >= position:  # As ``_serves``.
            wait.was_late = False
            self._served = True
        elif self.finished:
            wait.was_late = False
            if self.error is None:
                self._served = True
            else:
                wait.error = copy_of(self.error)
        else:
            wait.future = self._store.runtime.loop.create_future()
        if not position:  # A read that waits for the head uses the bytes that arrived with it in the same turn.
            wait.pin()
        if self.lane == "prefetch":
            self.lane = "demand"
            self.promote()
            if self.ticket is not None:
                self._store.runtime.budget.promote(self.ticket)
        return wait

    def leave(self, wait: Wait) -> None:
        """End a wait; see ``Wait.close`` for the rules."""
        if wait.is_closed:
            return
        wait.is_closed = True
        self._waits.remove(wait)
        if wait.is_pinning:
            for segment in self.segments:
                segment.pins -= 1
        future = wait.future
        if future is not None and future.done() and not future.cancelled():
            future.exception()
        if not (self._waits or self.finished or self._served or self.prefetched):
            if wait.received == self.received:  # The body has stalled: a read that is repeated must not join it again.
                self.cancel()
            else:
                self.give_up()
        self._let_go()

    def give_up(self) -> None:
        """Cancel the request because no read needs it any more, or drain it if little is missing.

        That is ``drain_bytes``, and the rest of an object of at most a block: with it the object is resident. While
        another request waits for a slot, a connection or memory, nothing is drained.
        """
        head = self.head
        if head is None:
            self.cancel()
            return
        options = self._store.runtime.options
        left_bytes = self.left_bytes
        is_small_object = options.drain_bytes and head.size == head.total and head.size <= options.block_bytes
        if left_bytes > options.drain_bytes and not is_small_object:
            self.cancel()
        elif left_bytes and not (self.is_drained or self.finished):
            runtime = self._store.runtime
            if not runtime.drains.begin(self):
                self.cancel()
                return
            self.is_drained = True
            self._drain_timer = runtime.loop.call_later(DRAIN_SECONDS_MAX, self.cancel)

    def _end_drain(self) -> None:
        self.is_drained = False
        self._store.runtime.drains.end(self)
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None

    def cancel(self) -> None:
        """Cancel the request unless it is complete. Received bytes stay resident; later reads start another fetch."""
        if self.work is not None and not self.finished and not self.complete:
            self.work.cancel()
            self._store.abandon(self)

    def finish(self, error: Exception | None) -> None:
        """End the fetch. Waiters that are not served get the error, each a copy of its own. Later calls do nothing."""
        if self.finished:
            return
        self.finished = True
        self.error = error
        self.source = _NO_SOURCE
        if self.is_drained:
            self._end_drain()
        self.drop_memory()
        self._piece_end = self.received
        if self.reserved_bytes:
            self._store.runtime.budget.give_up(self.reserved_bytes)
            self.reserved_bytes = 0
        for wait in self._waits:
            self._settle(wait)
        self._let_go()

    def _let_go(self) -> None:
        # From now on the segments live as long as their blocks, however long this fetch object is held.
        if self.finished:
            for wait in self._waits:
                if wait.is_pinning:
                    break
            else:
                self.segments = []
        budget = self._store.runtime.budget
        if budget.waiting:
            budget.reconsider()

    async def begin_again(self) -> bool:
        """Take the rest from the next response if it can be compared with this one: reads have seen its bytes.

        All requests of a reader of an unproven version are held together by that.
        """
        return self.head is not None and is_comparable(self.head)

    def shorten(self, end: int) -> None:
        """Bring the bytes up to ``end`` alone. Before the request is sent."""
        surplus = max(0, self.reserved_bytes - (end - self.start))
        self.end = end
        self.reserved_bytes -= surplus
        self._store.runtime.budget.give_up(surplus)

    def take_back(self) -> None:
        """Undo ``begin``, before a byte was received: the response comes from elsewhere, and into other memory."""
        file = self.file
        if file is None or self.head is None or self.received or self.finished:
            return
        file.settle(self)
        self.segments, self._next = [], 0
        self.head = None
        self._rewind()
        file.add(self)

    def new_segment(self, start: int, end: int) -> Segment:
        """A segment for ``[start, end)``, in memory from the reservation of this fetch."""
        size = end - start
        budget = self._store.runtime.budget
        buffer = new_buffer(size, budget)  # First, so that the reservation stays if the system has no memory.
        taken = size if size < self.reserved_bytes else self.reserved_bytes
        self.reserved_bytes -= taken
        budget.keep(taken)
        if taken < size:  # A response may be longer than the request only if the size was unknown.
            budget.charge(size - taken)
        account = None if self.account is None else self.account.reference
        segment = Segment(start, end, buffer, prefetched=self.prefetched, account=account)
        for wait in self._waits:
            segment.pins += wait.is_pinning
        self.segments.append(segment)
        return segment

    def _settle(self, wait: Wait) -> None:
        future = wait.future
        if future is None or future.done():
            return
        if self.error is None or self._serves(wait):
            self._served = True
            future.set_result(None)
        else:
            future.set_exception(copy_of(self.error))
            future.exception()  # Marked as retrieved, since the error may have no waiter.

    def _serves(self, wait: Wait) -> bool:
        return self.head is not None and self.head.start + self.received >= wait.position

    def _wake(self, position: int) -> None:
        """Wake the waits for bytes before ``position``."""
        for wait in self._waits:
            if wait.position <= position:
                self._settle(wait)

    def _begun(self, head: ReadHead) -> None:
        if self.finished:  # The request was cancelled, and its response arrived nevertheless.
            raise Closed("the request was cancelled", operation="read")
        if self.headed is not None:
            self.headed = self._store.runtime.clock()
        try:
            file = self.source.file_of(self, head)
            self.start, self.end = head.start, head.start + head.size
            if self.file is None:
                self.file = file
                file.add(self)
                if self._store.keeps_fetched:
                    self._store.opened(self)
            file.place(self, head)
        except Exception:
            self.head = None  # A refused response has served no waiter, not even those for its head.
            raise
        if self._waits:
            self._wake(head.start)

    def _allocate(self, position: int, size: int) -> memoryview:
        assert self.head is not None
        offset = self.head.start + position
        if self.finished or self._next >= len(self.segments):
            return memoryview(bytearray(self.head.end - offset))
        segment = self.segments[self._next]
        if offset < segment.start:
            return memoryview(bytearray(segment.start - offset))
        return segment.view[offset - segment.start :]

    def _advanced(self) -> None:
        head = self.head
        if self.finished or head is None:  # Cancelled: bytes that arrive nevertheless are dropped.
            return
        position = head.start + self.received
        segments = self.segments
        while self._next < len(segments):
            segment = segments[self._next]
            if segment.start >= position:
                break
            if position < segment.end:
                segment.filled = position - segment.start
                break
            segment.filled = segment.end - segment.start
            self._next += 1
            segment.become(SegmentState.READY)
            if self.prefetched:
                self._store.filled(segment)
            if self._store.keeps_fetched:
                self._store.keep(self, segment)
        if self._waits:
            self._wake(position)


# --- counters ---------------------------------------------------------------------------------------------------------


def counters_of(runtime: Runtime, segment: Segment) -> Counters:
    """The counters for the events of a segment: of the reader that it was fetched for, as long as it exists."""
    return runtime.ledger.of(None if segment.account is None else segment.account())


def count_begin(runtime: Runtime, fetch: Fetch) -> None:
    """A fetch begins."""
    account = fetch.account
    counters = runtime.ledger.own if account is None else account.counters
    counters["stream_read_block_fetches"] += 1
    if fetch.prefetched:
        counters["stream_read_prefetch_operations"] += 1
        fetch.started = runtime.clock()


def count_end(runtime: Runtime, fetch: Fetch, error: Exception | None) -> None:
    """A fetch ends; ``Closed`` means that it was cancelled."""
    counters = runtime.ledger.of(fetch.account)
    if fetch.is_drained and error is None:
        counters["stream_drained"] += 1
    if isinstance(error, Closed):
        if fetch.was_sent:
            counters["stream_aborted"] += 1
            size = fetch.end - fetch.start if fetch.head is None else fetch.head.size
            counters["stream_read_bytes_discarded_in_abort"] += size - fetch.received
    elif fetch.prefetched and error is not None:
        counters.failed("stream_read_prefetch_operations")
    elif fetch.prefetched:
        counters.succeeded("stream_read_prefetch_operations", runtime.clock() - fetch.started)


def count_eviction(runtime: Runtime, first: Segment) -> None:
    """Count the eviction of a block, or a part, for the reader that had its ``first`` segment fetched."""
    counters_of(runtime, first)["stream_evict_blocks_from_cache"] += 1


def count_ready(runtime: Runtime, segment: Segment) -> None:
    """A segment is complete: no more of its bytes will arrive."""
    segment.ready_at = runtime.clock()
    if not segment.unused_prefetch:
        settle(runtime, segment)


def count_first_read(runtime: Runtime, segment: Segment) -> None:
    """Something of a prefetched segment is read for the first time. From any thread."""
    segment.unused_prefetch = False
    counters = counters_of(runtime, segment)
    counters["prefetch_lead"] += 1
    filling = segment.state is SegmentState.FILLING
    counters.succeeded("prefetch_lead", 0.0 if filling else runtime.clock() - segment.ready_at)
    if not filling:  # Otherwise the number of bytes is not known yet.
        settle(runtime, segment)


def settle(runtime: Runtime, segment: Segment) -> None:
    """Count prefetched bytes as used or wasted, once: at their first read, or when no read can follow."""
    if segment.is_unsettled:
        segment.is_unsettled = False
        name = "prefetch_bytes_wasted" if segment.unused_prefetch else "prefetch_bytes_used"
        counters_of(runtime, segment)[name] += segment.filled


def tier_of(waits: Iterable[Wait]) -> Tier:
    """The slowest tier that a read had to wait for; memory if all its blocks were resident when it began."""
    return max((wait.fetch.tier for wait in waits if wait.was_late), default=Tier.MEMORY)
