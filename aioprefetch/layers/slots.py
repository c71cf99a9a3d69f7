"""A bounded number of slots with a queue of two lanes, for ConcurrentLimit. Pure: no loop, no clock, no I/O.

When the store asks for fewer requests the limit is halved, at most once a second; each full round of responses raises
it by one (additive increase, multiplicative decrease, as in TCP).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aioprefetch.values import Lane

# Requests in flight at one time are refused at one time: they halve the limit once.
HALVING_SECONDS = 1.0


class SlotTicket:
    """A place in the queue. ``lane`` changes by promotion; ``granted`` is set when the ticket becomes a slot."""

    __slots__ = ("_wake", "granted", "lane")

    def __init__(self, lane: Lane, wake: Callable[[], object]) -> None:
        self.lane: Lane = lane
        self.granted = False
        self._wake = wake

    def grant(self) -> None:
        """Make the ticket a slot. For the queue alone."""
        self.granted = True
        self._wake()


class SlotQueue:
    """At most ``limit`` slots are taken at any time.

    Demand goes before prefetch; within a lane the order is first come, first served. Prefetches never take the last
    free slot, so that demand does not wait for many prefetches; if ``limit`` is 1, both lanes share the one slot.

    A slot is taken by ``try_acquire``, or by ``enqueue`` and a later grant. ``release`` returns it, with the lane in
    which it was taken. ``withdraw`` returns a ticket, granted or not, so a waiter that is cancelled at the moment of
    its grant loses no slot.

    ``limit`` begins at ``limit_max``, is lowered by ``refused`` and raised by ``responded``, which has no effect while
    the two are equal. Requests in flight stay in flight when the limit is lowered, so ``in_flight`` may exceed it.
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
        """The number of tickets that wait."""
        return len(self._demand) + len(self._prefetch)

    def try_acquire(self, lane: Lane) -> bool:
        """Take a slot if one is free for this lane. This overtakes no ticket: while a slot is free, none waits."""
        if self.in_flight >= self.limit:
            return False
        if lane == "prefetch":
            if self.prefetch_in_flight >= self.prefetch_max:
                return False
            self.prefetch_in_flight += 1
        self.in_flight += 1
        return True

    def is_free(self, lane: Lane) -> bool:
        """Whether ``try_acquire`` would take a slot."""
        if self.in_flight >= self.limit:
            return False
        return lane == "demand" or self.prefetch_in_flight < self.prefetch_max

    def enqueue(self, lane: Lane, wake: Callable[[], object]) -> SlotTicket:
        """A ticket at the end of its lane, after ``try_acquire`` has failed; ``wake`` is called once, at its grant."""
        ticket = SlotTicket(lane, wake)
        self._line(lane).append(ticket)
        return ticket

    def release(self, lane: Lane) -> None:
        """Return a slot, which goes to the next ticket."""
        self.in_flight -= 1
        self.releases += 1
        if lane == "prefetch":
            self.prefetch_in_flight -= 1
        if self._demand or self._prefetch:
            self._grant()

    def withdraw(self, ticket: SlotTicket) -> None:
        """Return a ticket: remove it from the queue, or release its slot if it was granted meanwhile."""
        if ticket.granted:
            self.release(ticket.lane)
        else:
            self._line(ticket.lane).remove(ticket)

    def promote(self, ticket: SlotTicket) -> None:
        """Make a prefetch demand, because a reader waits for it; it queues behind the demand that waits already."""
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
        """Lower the limit because the store asked for fewer requests, at ``now`` in seconds; whether it was lowered.

        The count of responses starts again: a round with a refusal is not a full one.
        """
        self._responses = 0
        if self.limit == 1 or now < self._halved_seconds + HALVING_SECONDS:
            return False
        self._halved_seconds = now
        self._set_limit(self.limit // 2)
        return True

    def responded(self) -> bool:
        """Count a response of the store; whether the limit has returned to its maximum by it."""
        if self.limit == self.limit_max:
            return False
        self._responses += 1
        if self._responses < self.limit:
            return False
        self._set_limit(self.limit + 1)
        return self.limit == self.limit_max

    def restore(self) -> None:
        """Return the limit to its maximum, without regard to the store."""
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
