"""Memory for the objects that the LruCache layer transfers, taken from the budget of the runtime.

A caller of the layer already holds memory for its own buffer while the layer needs memory for the object. If all
memory is held by such callers, no read would ever get on. So one object at a time may overdraw the budget, as one
reservation of the budget's demand lane may.
"""

from __future__ import annotations

import asyncio

from aioprefetch.runtime.budget import MemoryBudget, Ticket


class Reservation:
    """The right to memory for one object, and the memory once it is taken, until ``release``."""

    __slots__ = ("_memory", "_overdraws", "_ticket")

    def __init__(self, memory: ObjectMemory, *, overdraws: bool) -> None:
        self._memory = memory
        self._overdraws = overdraws
        self._ticket: Ticket | None = None

    def take(self, size_bytes: int) -> bool:
        """Take the memory; ``False`` when it is full by now and this object may not overdraw it."""
        ticket = self._memory.budget.request(size_bytes, "demand")
        if ticket.granted or self._overdraws:
            self._ticket = ticket
        else:
            self._memory.budget.cancel(ticket)
        return self._ticket is not None

    def release(self) -> None:
        """Give the memory and the right up. May be called twice."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._memory.budget.cancel(ticket)
        if self._overdraws:
            self._overdraws = False
            self._memory.overdraft.release()


class ObjectMemory:
    """Reserves memory in the demand lane; objects for which none is free go on one at a time without it."""

    def __init__(self, budget: MemoryBudget, *, wait_seconds: float) -> None:
        self.budget = budget
        self.overdraft = asyncio.Semaphore(1)
        self._wait_seconds = wait_seconds

    async def reserve(self, size_bytes: int | None) -> Reservation | None:
        """Wait for ``size_bytes``, or for the right to take some as soon as the size is known (``None``).

        ``None`` when that takes too long. If cancelled, nothing stays reserved.
        """
        reservation = Reservation(self, overdraws=False)
        if reservation.take(size_bytes or 1):
            if size_bytes is None:
                reservation.release()
            return reservation
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self.overdraft.acquire()
        except TimeoutError:
            return None
        reservation = Reservation(self, overdraws=True)
        if size_bytes is not None:
            reservation.take(size_bytes)
        return reservation
