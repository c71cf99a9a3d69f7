"""A bounded number of slots in two lanes: the queue behind ConcurrentLimit. Pure: no loop, no clock, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aioprefetch.values import Lane


class SlotTicket:
    """A place in the queue. ``lane`` changes when it is promoted; ``granted`` once it has become a slot."""

    __slots__ = ("_wake", "granted", "lane")

    def __init__(self, lane: Lane, wake: Callable[[], object]) -> None:
        self.lane: Lane = lane
        self.granted = False
        self._wake = wake

    def grant(self) -> None:
        """Called by the queue alone: the slot is the ticket's from now on."""
        self.granted = True
        self._wake()


class SlotQueue:
    """At most ``limit`` slots are taken at any time.

    Demand goes before prefetch, and within a lane who came first goes first. Prefetch never takes the last free slot,
    so a demand request need not wait for a wall of prefetches; only where ``limit`` is 1 is the single slot for both.

    A slot is taken by ``try_acquire``, or by ``enqueue`` and a later grant; it goes back by ``release`` with the lane
    it was taken in. A ticket goes back by ``withdraw``, whether it was granted in the meantime or not, so a waiter that
    gives up in the very moment of its grant loses no slot.
    """

    __slots__ = ("_demand", "_prefetch", "in_flight", "limit", "prefetch_in_flight", "prefetch_max", "releases")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.prefetch_max = max(1, limit - 1)
        self.in_flight = 0
        self.prefetch_in_flight = 0
        self.releases = 0
        self._demand: deque[SlotTicket] = deque()
        self._prefetch: deque[SlotTicket] = deque()

    @property
    def queued(self) -> int:
        """How many tickets wait."""
        return len(self._demand) + len(self._prefetch)

    def try_acquire(self, lane: Lane) -> bool:
        """Take a slot at once if one is free for this lane. Nobody is overtaken: while one is free, nobody waits."""
        if self.in_flight >= self.limit:
            return False
        if lane == "prefetch":
            if self.prefetch_in_flight >= self.prefetch_max:
                return False
            self.prefetch_in_flight += 1
        self.in_flight += 1
        return True

    def enqueue(self, lane: Lane, wake: Callable[[], object]) -> SlotTicket:
        """A ticket at the end of its lane; ``wake`` is called once, when it is granted. Call after ``try_acquire``."""
        ticket = SlotTicket(lane, wake)
        self._line(lane).append(ticket)
        return ticket

    def release(self, lane: Lane) -> None:
        """Give a slot back and grant it to who is next."""
        self.in_flight -= 1
        self.releases += 1
        if lane == "prefetch":
            self.prefetch_in_flight -= 1
        self._grant()

    def withdraw(self, ticket: SlotTicket) -> None:
        """Give a ticket back: out of the queue, or, when it was granted in the meantime, its slot."""
        if ticket.granted:
            self.release(ticket.lane)
        else:
            self._line(ticket.lane).remove(ticket)

    def promote(self, ticket: SlotTicket) -> None:
        """Somebody waits for this prefetch now: it counts as demand from here on, behind the demand that waits."""
        if ticket.lane == "demand":
            return
        if ticket.granted:
            self.prefetch_in_flight -= 1
        else:
            self._prefetch.remove(ticket)
            self._demand.append(ticket)
        ticket.lane = "demand"
        self._grant()

    def _line(self, lane: Lane) -> deque[SlotTicket]:
        return self._demand if lane == "demand" else self._prefetch

    def _grant(self) -> None:
        while self.in_flight < self.limit:
            if self._demand:
                ticket = self._demand.popleft()
            elif self._prefetch and self.prefetch_in_flight < self.prefetch_max:
                ticket = self._prefetch.popleft()
                self.prefetch_in_flight += 1
            else:
                return
            self.in_flight += 1
            ticket.grant()
