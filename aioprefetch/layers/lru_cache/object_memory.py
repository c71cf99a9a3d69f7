"""Memory for the objects that the LruCache layer transfers, taken from the budget of the runtime.

A caller of the layer already holds memory for its own buffer while the layer needs memory for the object. If all
memory is held by such callers, no read would ever get on. So one object at a time may overdraw the budget, as one
reservation of the budget's demand lane may.
"""

from __future__ import annotations

import asyncio
from collections import deque

from aioprefetch.runtime.budget import MemoryBudget, Ticket


class Overdraft:
    """The right of one object to memory that the budget does not have."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        """Take it if it is free. Returns whether it was."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    async def take(self, seconds: float) -> bool:
        """Wait for the overdraft. Returns whether it was granted in time; a cancelled call has not taken it."""
        if self.take_now():
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():  # It was handed over at the same moment.
                self.release()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def release(self) -> None:
        """Hand it to the next waiter."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._is_taken = False


class Reservation:
    """Bytes that are held until ``release``, which may be called twice."""

    __slots__ = ("_budget", "_overdraft", "_ticket")

    def __init__(self, budget: MemoryBudget, ticket: Ticket, overdraft: Overdraft | None) -> None:
        self._budget = budget
        self._ticket: Ticket | None = ticket
        self._overdraft = overdraft

    def release(self) -> None:
        """Release the bytes."""
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        self._budget.cancel(ticket)
        if self._overdraft is not None:
            self._overdraft.release()


class Turn:
    """The right to reserve memory for one object, at once, when its size is known."""

    __slots__ = ("_budget", "_holds_overdraft", "_overdraft")

    def __init__(self, budget: MemoryBudget, overdraft: Overdraft, *, holds_overdraft: bool) -> None:
        self._budget = budget
        self._overdraft = overdraft
        self._holds_overdraft = holds_overdraft

    def reserve(self, size_bytes: int) -> Reservation | None:
        """Reserve ``size_bytes``; ``None`` when memory is full and another object overdraws it already."""
        ticket = self._budget.request(size_bytes, "demand")
        if ticket.granted:
            return Reservation(self._budget, ticket, None)
        if self._holds_overdraft or self._overdraft.take_now():
            self._holds_overdraft = False
            return Reservation(self._budget, ticket, self._overdraft)
        self._budget.cancel(ticket)
        return None

    def end(self) -> None:
        """End the reservations."""
        if self._holds_overdraft:
            self._holds_overdraft = False
            self._overdraft.release()


class ObjectMemory:
    """Reserves memory in the demand lane.

    Objects that are not granted memory at once continue one at a time without it.
    """

    def __init__(self, budget: MemoryBudget, *, wait_seconds: float) -> None:
        self._budget = budget
        self._wait_seconds = wait_seconds
        self._overdraft = Overdraft()

    async def turn(self) -> Turn | None:
        """Wait until memory for an object of unknown size can be reserved; ``None`` when that takes too long."""
        probe = self._budget.request(1, "demand")
        is_granted = probe.granted
        self._budget.cancel(probe)
        if not is_granted and not await self._overdraft.take(self._wait_seconds):
            return None
        return Turn(self._budget, self._overdraft, holds_overdraft=not is_granted)

    async def reserve(self, size_bytes: int) -> Reservation | None:
        """Wait for ``size_bytes``; ``None`` when that takes too long. If cancelled, nothing stays reserved."""
        ticket = self._budget.request(size_bytes, "demand")
        if ticket.granted:
            return Reservation(self._budget, ticket, None)
        try:
            is_taken = await self._overdraft.take(self._wait_seconds)
        except BaseException:
            self._budget.cancel(ticket)
            raise
        if not is_taken:
            self._budget.cancel(ticket)
            return None
        return Reservation(self._budget, ticket, self._overdraft)
