"""The one byte budget of a runtime: cache, prefetch, requests in flight and scans all reserve here before they start.

There are two lanes, each first in, first out. Demand goes before prefetch and may overdraw by one reservation, so that
a read always makes progress; prefetch never overdraws. ``release`` returns memory, from any thread: the last view of
a block may be dropped anywhere.

Unused mappings stay here for the next buffers. Together with the memory in use they never exceed the limit by more
than one demand reservation and the minimum that running scans need.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mmap
import threading
from collections import deque
from collections.abc import Callable

from aioprefetch.runtime.buffers import Exports, IdleMemory, Lease
from aioprefetch.values import Lane

_budget_ids = itertools.count(1)


class Ticket:
    """A reservation, granted or queued. End it exactly once: by ``cancel``, or by ``release`` after the grant.

    ``is_promise``: the memory is allocated later, which ``MemoryBudget.keep`` reports; until then idle memory may fill
    it. ``on_grant`` is called once, when the ticket is granted, and must not touch the budget.
    """

    __slots__ = ("_future", "granted", "is_promise", "lane", "on_grant", "size_bytes")

    def __init__(
        self, size_bytes: int, lane: Lane, *, is_promise: bool = False, on_grant: Callable[[], None] | None = None
    ) -> None:
        self.size_bytes = size_bytes
        self.lane: Lane = lane
        self.is_promise = is_promise
        self.on_grant = on_grant
        self.granted = False
        self._future: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until granted. A cancelled wait leaves the ticket in the queue: call ``MemoryBudget.cancel``."""
        if not self.granted:
            self._future = asyncio.get_running_loop().create_future()
            await self._future

    def grant(self) -> None:
        """Grant the ticket; only the budget calls this."""
        self.granted = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        if self.on_grant is not None:
            self.on_grant()


class MemoryBudget:
    """Bytes in use against a limit.

    When the limit is reached, ``reclaim`` is called with a number of bytes and a lane, and frees memory through
    ``release`` (the block store evicts). ``used_bytes`` exceeds ``limit_bytes`` by at most one demand reservation and
    the reads that a scan charges because it could not make progress without them. Idle memory is not in use.
    ``on_first_use`` is called before the first bytes are reserved or lent: the runtime closes the budget later.
    """

    def __init__(self, limit_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.budget_id = next(_budget_ids)
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.waiting = 0  # The number of queued reservations.
        self.queued_bytes = 0  # Of those for demand.
        self.idle = IdleMemory(limit_bytes)
        self.exports = Exports()
        self.reclaim: Callable[[int, Lane], None] | None = None
        self.on_first_use: Callable[[], None] | None = None
        self._promised_bytes = 0
        self._is_open = True
        self._loop = loop
        self._thread = threading.get_ident()
        self._lanes: dict[Lane, deque[Ticket]] = {"demand": deque(), "prefetch": deque()}
        self._grant_scheduled = False

    @property
    def is_mostly_viewed(self) -> bool:
        """Whether views hold more than half of the limit, so that further views must be copies."""
        return self.exports.size_bytes > self.limit_bytes // 2

    @property
    def held_bytes(self) -> int:
        """Allocated bytes: idle memory, and memory in use that is not merely promised."""
        return self.used_bytes - self._promised_bytes + self.idle.size_bytes

    def request(
        self, size_bytes: int, lane: Lane, *, is_promise: bool = False, on_grant: Callable[[], None] | None = None
    ) -> Ticket:
        """A ticket, granted at once if the limit and the queue allow it. Options as for ``Ticket``."""
        ticket = Ticket(size_bytes, lane, is_promise=is_promise, on_grant=on_grant)
        behind = bool(self._lanes["demand"]) or (lane == "prefetch" and bool(self._lanes["prefetch"]))
        if not size_bytes:
            ticket.grant()  # It takes nothing, so it waits for nothing.
        elif behind or not self._admit(ticket):
            self._enqueue(ticket)
        return ticket

    def promise(self, size_bytes: int) -> bool:
        """Reserve bytes that will be allocated later, if they are free and no reservation waits; whether that was so.

        What ``request`` grants at once without evicting anything, at a fraction of its cost. End it by ``keep`` and
        ``release``, or by ``give_up``.
        """
        used_bytes = self.used_bytes + size_bytes
        if used_bytes > self.limit_bytes or self.waiting:
            return False
        if self.on_first_use is not None:
            self._begin()
        self._promised_bytes += size_bytes
        self.used_bytes = used_bytes
        if used_bytes > self.peak_bytes:
            self.peak_bytes = used_bytes
        if self.idle.size_bytes:
            self._make_room()
        return True

    def cancel(self, ticket: Ticket) -> None:
        """End a ticket, whether it was granted or still waits."""
        if ticket.granted:
            if ticket.is_promise:
                self._promised_bytes -= ticket.size_bytes
            self.release(ticket.size_bytes)
            return
        self._lanes[ticket.lane].remove(ticket)
        self._leave_queue(ticket)
        self._schedule_grant()

    def promote(self, ticket: Ticket) -> None:
        """Move a ticket to the demand lane, because a read waits for this prefetch now."""
        if ticket.lane == "demand":
            return
        ticket.lane = "demand"
        if not ticket.granted:
            self._lanes["prefetch"].remove(ticket)
            self.waiting -= 1
            self._enqueue(ticket)
            self._schedule_grant()

    def reconsider(self) -> None:
        """Look at the queue again, because something became evictable."""
        if self.waiting:
            self._schedule_grant()

    def lease(self, size_bytes: int) -> Lease | None:
        """Bytes for as long as the lease lives, if they are free now: a prefetch's place in line, and no waiting."""
        ticket = self.request(size_bytes, "prefetch")
        if ticket.granted:
            return Lease(self, size_bytes)
        self.cancel(ticket)
        return None

    def room(self, need_bytes: int, lane: Lane) -> int:
        """The bytes left of the limit, after reclaiming memory to make it at least ``need_bytes``.

        Negative if the limit is exceeded. The queue is ignored: the caller overtakes the waiting tickets.
        """
        over = self.used_bytes + need_bytes - self.limit_bytes
        if over > 0 and self.reclaim is not None:
            self.reclaim(over, lane)
        return self.limit_bytes - self.used_bytes

    def charge(self, size_bytes: int) -> None:
        """Count bytes unconditionally: they are allocated already, or may exceed the limit (a scan decides that)."""
        self._use(size_bytes)

    def keep(self, size_bytes: int) -> None:
        """Report that ``size_bytes`` of the promised bytes were allocated."""
        self._promised_bytes -= size_bytes
        if self.idle.size_bytes:
            self._make_room()

    def give_up(self, size_bytes: int) -> None:
        """Release promised bytes that were never allocated."""
        self._promised_bytes -= size_bytes
        self.used_bytes -= size_bytes
        if self.idle.size_bytes:
            self._make_room()
        if self.waiting:
            self._schedule_grant()

    def release(self, size_bytes: int, mapping: mmap.mmap | None = None) -> None:
        """Return bytes and their mapping, from any thread: the last view of a block may be dropped anywhere."""
        if threading.get_ident() == self._thread:
            self._release(size_bytes, mapping)
        elif not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # The loop closed in between: no ticket waits for these bytes.
                self._loop.call_soon_threadsafe(self._release, size_bytes, mapping)

    def _release(self, size_bytes: int, mapping: mmap.mmap | None) -> None:
        self.used_bytes -= size_bytes
        if mapping is not None and not self._loop.is_closed():
            self.idle.add(mapping)
        if self.idle.size_bytes:
            self._make_room()
        if self.waiting:
            self._schedule_grant()

    # --- idle memory --------------------------------------------------------------------------------------------

    def find_idle(self, size_bytes: int) -> mmap.mmap | None:
        """Take an idle mapping of that size."""
        if threading.get_ident() != self._thread:
            return None
        if self.on_first_use is not None:
            self._begin()
        return self.idle.take(size_bytes)

    def close(self) -> bool:
        """Keep no more idle memory. Memory in use is still accounted when it is released. Whether it was open."""
        was_open, self._is_open = self._is_open, False
        self.reclaim = None
        self.idle.close()
        return was_open

    def _begin(self) -> None:
        begin, self.on_first_use = self.on_first_use, None
        assert begin is not None
        begin()

    def _use(self, size_bytes: int) -> None:
        if self.on_first_use is not None:
            self._begin()
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self._make_room()

    def _make_room(self) -> None:
        """Shrink the idle memory. Promised bytes will be filled from it, so they are not counted twice."""
        if self.idle.size_bytes:
            spare_bytes = min(self.limit_bytes - self.used_bytes, self.idle.limit_bytes)
            self.idle.shrink(self._promised_bytes + spare_bytes)

    # --- within -------------------------------------------------------------------------------------------------

    def _enqueue(self, ticket: Ticket) -> None:
        self._lanes[ticket.lane].append(ticket)
        self.waiting += 1
        if ticket.lane == "demand":
            self.queued_bytes += ticket.size_bytes

    def _leave_queue(self, ticket: Ticket) -> None:
        self.waiting -= 1
        if ticket.lane == "demand":
            self.queued_bytes -= ticket.size_bytes

    def _schedule_grant(self) -> None:
        # Never granted from within a release: that may run in a destructor, in the middle of anything.
        if self.waiting and not self._grant_scheduled and not self._loop.is_closed():
            self._grant_scheduled = True
            self._loop.call_soon(self._grant)

    def _grant(self) -> None:
        self._grant_scheduled = False
        for lane in ("demand", "prefetch"):
            queue = self._lanes[lane]
            while queue and self._admit(queue[0]):
                self._leave_queue(queue.popleft())
            if queue:
                return

    def _admit(self, ticket: Ticket) -> bool:
        over = ticket.size_bytes - self.room(ticket.size_bytes, ticket.lane)
        if over > 0 and (ticket.lane == "prefetch" or self.used_bytes > self.limit_bytes):
            return False
        if ticket.is_promise:
            self._promised_bytes += ticket.size_bytes
        self._use(ticket.size_bytes)
        ticket.grant()
        return True
