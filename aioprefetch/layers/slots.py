"""A bounded number of slots in two lanes: the queue behind ConcurrentLimit. Pure: no loop, no clock, no I/O.

Where the store asks for fewer requests there are fewer slots: the half, at most once a second, and one more again for
each full round of responses (additive increase, multiplicative decrease, as TCP does it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aioprefetch.values import Lane

# Requests that are in flight together are refused together: that is one reason to halve, not one for each.
HALVING_SECONDS = 1.0


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

    ``limit`` begins at ``limit_max``. It sinks by ``refused`` and rises by ``answered``, which nobody needs to call
    while the two are equal. What is in flight when it sinks stays in flight, so ``in_flight`` may be above it.
    """

    __slots__ = (
        "_demand",
        "_halved_seconds",
        "_prefetch",
        "_responses",
        "in_flight",
        "limit",
        "limit_max",
        "prefetch_in_flight",
        "prefetch_max",
        "releases",
    )

    def __init__(self, limit_max: int) -> None:
        self.limit = self.limit_max = limit_max
        self.prefetch_max = max(1, limit_max - 1)
        self._responses = 0
        self._halved_seconds = float("-inf")
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
        if self._demand or self._prefetch:
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

    def refused(self, now: float) -> bool:
        """The store asked for fewer requests, at ``now`` in seconds. Whether there are fewer slots because of it.

        A round of responses begins anew: one with a refusal in it is not full.
        """
        self._responses = 0
        if self.limit == 1 or now < self._halved_seconds + HALVING_SECONDS:
            return False
        self._halved_seconds = now
        self._set_limit(self.limit // 2)
        return True

    def answered(self) -> bool:
        """The store answered a request. Whether this brought the last slot back."""
        if self.limit == self.limit_max:
            return False
        self._responses += 1
        if self._responses < self.limit:
            return False
        self._set_limit(self.limit + 1)
        return self.limit == self.limit_max

    def restore(self) -> None:
        """All slots are there again, whatever the store said."""
        self._set_limit(self.limit_max)

    def _set_limit(self, limit: int) -> None:
        self.limit = limit
        self.prefetch_max = max(1, limit - 1)
        self._responses = 0
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
