"""The one byte budget of a runtime: cache, prefetch, requests in flight and scans all reserve here before they start.

Two lanes, each first in, first out. Demand goes before prefetch and may overdraw by one reservation, so that a read
always gets on; prefetch never overdraws. Memory comes back by ``release`` from whichever thread drops the last view.

Mappings that nobody uses stay here for the next buffers, within the limit: together with what is in use they are no
more than the limit, one demand reservation, and what scans must have to get on.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import threading
from collections import deque
from collections.abc import Callable

from aioprefetch.runtime.buffers import Exports, IdleMemory
from aioprefetch.values import Lane


class Ticket:
    """A reservation, granted or still in the queue. Exactly one of ``cancel`` or a later ``release`` gives it back.

    ``is_promise``: the memory is taken later, by ``MemoryBudget.keep``. Until then it may be idle memory. ``on_grant``
    is called once when it is granted, at once or from the queue: it must not touch the budget.
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
        """Called by the budget alone."""
        self.granted = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        if self.on_grant is not None:
            self.on_grant()


class MemoryBudget:
    """Bytes in use against a limit.

    ``reclaim`` is asked for a number of bytes when the limit is reached and frees what it can for that lane, by way of
    ``release`` (the block store evicts). ``used_bytes`` never exceeds ``limit_bytes`` by more than one demand
    reservation, and what scans charge for reads without which they could not get on. Idle memory is not in use.
    ``on_lend`` is called when memory is asked for the first time: who set it closes the budget later.
    """

    def __init__(self, limit_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.idle = IdleMemory(limit_bytes)
        self.exports = Exports()
        self.reclaim: Callable[[int, Lane], None] | None = None
        self.on_lend: Callable[[], None] | None = None
        self._promised_bytes = 0
        self._loop = loop
        self._thread = threading.get_ident()
        self._lanes: dict[Lane, deque[Ticket]] = {"demand": deque(), "prefetch": deque()}
        self._grant_scheduled = False

    @property
    def is_mostly_viewed(self) -> bool:
        """Whether views hold more than half of the limit: what is given out from now on has to be a copy."""
        return self.exports.size_bytes > self.limit_bytes // 2

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that are there: idle, or in use and not merely promised."""
        return self.used_bytes - self._promised_bytes + self.idle.size_bytes

    @property
    def queued_bytes(self) -> int:
        """What the demand reservations ask for that are queued."""
        return sum(ticket.size_bytes for ticket in self._lanes["demand"])

    @property
    def waiting(self) -> int:
        """How many reservations are queued."""
        return len(self._lanes["demand"]) + len(self._lanes["prefetch"])

    def request(
        self, size_bytes: int, lane: Lane, *, is_promise: bool = False, on_grant: Callable[[], None] | None = None
    ) -> Ticket:
        """A ticket, granted at once where the limit and the queue allow it. The options are those of ``Ticket``."""
        ticket = Ticket(size_bytes, lane, is_promise=is_promise, on_grant=on_grant)
        behind = bool(self._lanes["demand"]) or (lane == "prefetch" and bool(self._lanes["prefetch"]))
        if behind or not self._admit(ticket):
            self._lanes[lane].append(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Give a ticket back, whether it was granted in the meantime or still waits."""
        if ticket.granted:
            if ticket.is_promise:
                self._promised_bytes -= ticket.size_bytes
            self.release(ticket.size_bytes)
            return
        self._lanes[ticket.lane].remove(ticket)
        self._schedule_grant()

    def promote(self, ticket: Ticket) -> None:
        """Somebody waits for this prefetch now: let it go with the demand lane."""
        if ticket.lane == "demand":
            return
        if not ticket.granted:
            self._lanes["prefetch"].remove(ticket)
            self._lanes["demand"].append(ticket)
            self._schedule_grant()
        ticket.lane = "demand"

    def reconsider(self) -> None:
        """Something became evictable: look at the queue again."""
        self._schedule_grant()

    def room(self, need_bytes: int, lane: Lane) -> int:
        """How many bytes are left of the limit, once what can be was reclaimed to make it ``need_bytes``.

        Less than 0 where the limit is exceeded. It overlooks the queue: who takes room passes those that wait.
        """
        over = self.used_bytes + need_bytes - self.limit_bytes
        if over > 0 and self.reclaim is not None:
            self.reclaim(over, lane)
        return self.limit_bytes - self.used_bytes

    def charge(self, size_bytes: int) -> None:
        """Count bytes without asking: they are there already, or may exceed the limit (a scan decides that itself)."""
        self._use(size_bytes)

    def keep(self, size_bytes: int) -> None:
        """Memory was taken for so many of the bytes that were promised."""
        self._promised_bytes -= size_bytes
        self._make_room()

    def give_up(self, size_bytes: int) -> None:
        """Give bytes back that were promised and for which no memory was taken."""
        self._promised_bytes -= size_bytes
        self.release(size_bytes)

    def release(self, size_bytes: int, mapping: mmap.mmap | None = None) -> None:
        """Give bytes back, from any thread (the last view of a block may die anywhere), and the memory they were in."""
        if threading.get_ident() == self._thread:
            self._release(size_bytes, mapping)
        elif not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # The loop closed in between: nobody waits for these bytes.
                self._loop.call_soon_threadsafe(self._release, size_bytes, mapping)

    def _release(self, size_bytes: int, mapping: mmap.mmap | None) -> None:
        self.used_bytes -= size_bytes
        if mapping is not None and not self._loop.is_closed():
            self.idle.add(mapping)
        self._make_room()
        self._schedule_grant()

    # --- idle memory --------------------------------------------------------------------------------------------

    def find_idle(self, size_bytes: int) -> mmap.mmap | None:
        """An idle mapping of that size, which is the caller's from now on."""
        if threading.get_ident() != self._thread:
            return None
        first, self.on_lend = self.on_lend, None
        if first is not None:
            first()
        return self.idle.take(size_bytes)

    def close(self) -> None:
        """Keep no memory from now on; what is in use comes back all the same."""
        self.reclaim = None
        self.idle.close()

    def _use(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self._make_room()

    def _make_room(self) -> None:
        """What is promised has no memory yet: idle memory is what it is going to get, and not counted twice."""
        if self.idle.size_bytes:
            spare_bytes = min(self.limit_bytes - self.used_bytes, self.idle.limit_bytes)
            self.idle.shrink(self._promised_bytes + spare_bytes)

    # --- within -------------------------------------------------------------------------------------------------

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
                queue.popleft()
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
