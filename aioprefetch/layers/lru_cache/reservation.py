"""Memory for whole objects on their way through the cache layer, taken from the runtime's one budget."""

from __future__ import annotations

import asyncio

from aioprefetch.runtime.budget import MemoryBudget, Ticket


class Reservation:
    """Bytes that are held until ``release``, which may be called twice."""

    __slots__ = ("_budget", "_overdraft", "_ticket")

    def __init__(self, budget: MemoryBudget, ticket: Ticket, overdraft: asyncio.Lock | None) -> None:
        self._budget = budget
        self._ticket: Ticket | None = ticket
        self._overdraft = overdraft

    def release(self) -> None:
        """Give the bytes back."""
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        self._budget.cancel(ticket)
        if self._overdraft is not None:
            self._overdraft.release()


class ObjectMemory:
    """Reserves in the demand lane; what is not granted at once goes one object at a time, granted or not.

    A caller of the layer already holds memory for its own buffer while it waits here. If all memory is held by such
    callers, none would ever get on: the one object that may overdraw keeps them going, as the budget's demand lane
    does with one reservation.
    """

    def __init__(self, budget: MemoryBudget, *, wait_seconds: float) -> None:
        self._budget = budget
        self._wait_seconds = wait_seconds
        self._overdraft = asyncio.Lock()

    async def reserve(self, size_bytes: int) -> Reservation | None:
        """Wait for ``size_bytes``; ``None`` when that takes too long. If cancelled, nothing stays reserved."""
        ticket = self._budget.request(size_bytes, "demand")
        if ticket.granted:
            return Reservation(self._budget, ticket, None)
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._overdraft.acquire()
        except TimeoutError:
            self._budget.cancel(ticket)
            return None
        except BaseException:
            self._budget.cancel(ticket)
            raise
        return Reservation(self._budget, ticket, self._overdraft)
