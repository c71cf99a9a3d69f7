"""One request in flight, the segments it fills, and the reads that wait for its bytes.

Each waiting read has a future of its own, so a cancelled one disturbs no other. It wakes as soon as the bytes that it
needs have arrived, not when the request ends. A demand fetch is cancelled when its last waiter leaves, unless it has
served a waiter already: then the rest of the block is read ahead for the next. A fetch that is nearly complete is never
cancelled, because that would cost its connection.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Protocol

from aioprefetch.accessor.sink import Sink
from aioprefetch.blocks.block import Segment, SegmentState
from aioprefetch.errors import Closed
from aioprefetch.runtime.budget import MemoryBudget, Ticket
from aioprefetch.runtime.buffers import new_buffer
from aioprefetch.runtime.statistics import Account, Tier
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import Lane, ReadHead

FetchCall = Callable[["Fetch"], Awaitable[object]]

# A request with at most this much to come is not cancelled: the rest takes one round trip, a new connection two.
DRAIN_BYTES = 32 << 10


class Wait:
    """The wait of one read for the bytes of a fetch up to a position, until it is closed.

    ``was_late`` says that the bytes had not arrived when it began.
    """

    __slots__ = ("fetch", "future", "is_closed", "is_pinning", "position", "was_late")

    def __init__(self, fetch: Fetch, position: int) -> None:
        self.fetch = fetch
        self.position = position
        self.is_closed = self.is_pinning = False
        self.was_late = True
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pin(self) -> None:
        """Keep the segments of the fetch from eviction until ``close``.

        Only for bytes that are used as soon as they arrive: a read that pinned memory while it waits for more could
        lock all others out, and be locked out by them.
        """
        if not (self.is_closed or self.is_pinning or self.fetch.finished):
            self.is_pinning = True
            for segment in self.fetch.segments:
                segment.pins += 1

    def close(self) -> None:
        """Leave the fetch, after the bytes were used or the wait was cancelled. May be called twice."""
        self.fetch.leave(self)


class FetchedFile(Protocol):
    """The part of a file that the starter of a fetch uses."""

    fetches: list[Fetch]

    def place(self, fetch: Fetch, head: ReadHead) -> None:
        """Make the segments that the response fills."""

    def settle(self, fetch: Fetch) -> None:
        """The fetch has ended: keep the beginning of unfinished segments."""

    def forget_if_empty(self) -> None:
        """Leave the store if nothing is resident, in flight or open."""


class Fetch(Sink):
    """A request for ``[start, end)`` as the sink of its own response.

    ``place`` is called with the checked head and makes the segments to fill, by ``new_segment``, in order. The rest of
    the body is already resident and is dropped. ``on_ready`` is called with each segment whose last byte has arrived.
    """

    __slots__ = (
        "_budget",
        "_next",
        "_place",
        "_served",
        "_waits",
        "abandon",
        "account",
        "end",
        "error",
        "file",
        "finished",
        "headed",
        "label",
        "lane",
        "on_ready",
        "owner",
        "prefetched",
        "reserved_bytes",
        "segments",
        "start",
        "started",
        "ticket",
        "tier",
        "work",
    )

    def __init__(
        self,
        start: int,
        end: int,
        *,
        lane: Lane,
        budget: MemoryBudget,
        place: Callable[[Fetch, ReadHead], None],
        on_ready: Callable[[Segment], None],
    ) -> None:
        super().__init__()
        self.start = start
        self.end = end
        self.lane: Lane = lane
        self.prefetched = lane == "prefetch"
        self.segments: list[Segment] = []
        self.file: FetchedFile | None = None
        self.on_ready = on_ready
        self.ticket: Ticket | None = None
        self.reserved_bytes = 0
        self.work: Work | None = None
        self.abandon: Callable[[], None] | None = None
        self.error: Exception | None = None
        self.finished = False
        self.label = ""
        self.owner: object = None
        self.account: Account | None = None
        self.started = 0.0
        self.headed = 0.0  # When its head arrived, if this request is measured.
        self.tier = Tier.NETWORK
        self._budget = budget
        self._place = place
        self._served = False
        self._next = 0  # The index of the segment that is being filled.
        self._waits: list[Wait] = []

    @property
    def position(self) -> int:
        """The end of the received bytes: every byte of the fetch before it has arrived."""
        return self.start if self.head is None else self.head.start + self.received

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
        if not position:  # A read that waits for the head uses the bytes that arrived with it in the same turn.
            wait.pin()
        if self.lane == "prefetch":
            self.lane = "demand"
            self.promote()
            if self.ticket is not None:
                self._budget.promote(self.ticket)
        if self.finished or self._serves(wait):
            wait.was_late = False
            self._settle(wait)
        return wait

    def leave(self, wait: Wait) -> None:
        """End a wait; see ``Wait.close`` for the rules."""
        if wait.is_closed:
            return
        wait.is_closed = True
        self._waits.remove(wait)
        for segment in self.segments if wait.is_pinning else ():
            segment.pins -= 1
        if wait.future.done() and not wait.future.cancelled():
            wait.future.exception()
        if not (self._waits or self.finished or self._served or self.prefetched):
            self.give_up()
        self._let_go()

    def give_up(self) -> None:
        """Cancel the request because no read needs it any more, unless little of it is missing."""
        if self.head is None or self.head.size - self.received > DRAIN_BYTES:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the request unless it is complete. Received bytes stay resident; later reads start another fetch."""
        if self.work is not None and not self.finished and not self.complete:
            self.work.cancel()
            if self.abandon is not None:
                self.abandon()

    def finish(self, error: Exception | None) -> None:
        """End the fetch. Waiters that are not served get the error, each a copy of its own. Later calls do nothing."""
        if self.finished:
            return
        self.finished = True
        self.error = error
        self.abandon = None
        self._piece, self._piece_end = memoryview(b""), self.received
        if self.reserved_bytes:
            self._budget.give_up(self.reserved_bytes)
            self.reserved_bytes = 0
        for wait in self._waits:
            self._settle(wait)
        self._let_go()

    def _let_go(self) -> None:
        # From now on the segments live as long as their blocks, however long this fetch object is held.
        if self.finished and not any(wait.is_pinning for wait in self._waits):
            self.segments = []
        self._budget.reconsider()

    def new_segment(self, start: int, end: int) -> Segment:
        """A segment for ``[start, end)``, in memory from the reservation of this fetch."""
        size = end - start
        buffer = new_buffer(size, self._budget)  # First, so that the reservation stays if the system has no memory.
        taken = min(size, self.reserved_bytes)
        self.reserved_bytes -= taken
        self._budget.keep(taken)
        if taken < size:  # A response may be longer than the request only if the size was unknown.
            self._budget.charge(size - taken)
        account = None if self.account is None else self.account.reference
        segment = Segment(start, end, buffer, prefetched=self.prefetched, account=account)
        segment.pins = sum(wait.is_pinning for wait in self._waits)
        self.segments.append(segment)
        return segment

    def _settle(self, wait: Wait) -> None:
        if wait.future.done():
            return
        if self._serves(wait) or self.error is None:
            self._served = True
            wait.future.set_result(None)
        else:
            wait.future.set_exception(_copy(self.error))
            wait.future.exception()  # Marked as retrieved, since the error may have no waiter.

    def _serves(self, wait: Wait) -> bool:
        return self.head is not None and self.position >= wait.position

    def _wake(self) -> None:
        for wait in self._waits:
            if self._serves(wait):
                self._settle(wait)

    def _begun(self, head: ReadHead) -> None:
        if self.finished:  # The request was cancelled, and its response arrived nevertheless.
            raise Closed("the request was cancelled", operation="read")
        try:
            self._place(self, head)
        except Exception:
            self.head = None  # A refused response has served no waiter, not even those for its head.
            raise
        self._wake()

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
        position = self.position
        if self.finished:  # Cancelled: bytes that arrive nevertheless are dropped.
            return
        while self._next < len(self.segments) and self.segments[self._next].start < position:
            segment = self.segments[self._next]
            segment.filled = min(position, segment.end) - segment.start
            if position < segment.end:
                break
            self._next += 1
            segment.become(SegmentState.READY)
            self.on_ready(segment)
        self._wake()


def _copy(error: Exception) -> Exception:
    # A copy for each waiter: one exception raised in several tasks would collect all their tracebacks.
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin
