"""The turns of the event loop: how much is read in one of them without waiting for anything."""

from __future__ import annotations

import asyncio
from collections import deque

# The kernel copies this much in 10 µs into memory in use; into fresh memory, whose pages it zeroes, in 60 to 120 µs.
TURN_BYTES = 64 << 10
# What a read counts at least: the calls around it take longer than the copy of a few bytes.
_LEAST_BYTES = 8 << 10
# The most tasks that begin in one turn.
_BEGINNERS_MAX = TURN_BYTES // _LEAST_BYTES


class LoopTurn:
    """Counts the bytes that tasks read on the loop, since a task that only reads what is in memory never waits.

    ``spend`` them; when ``left_bytes`` is not positive, ``await end()`` before the next read.
    """

    __slots__ = ("_beginners", "_loop", "_waiting", "left_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.left_bytes = TURN_BYTES
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._beginners = 1

    def spend(self, size_bytes: int) -> None:
        """A read of ``size_bytes`` was made."""
        self.left_bytes -= size_bytes if size_bytes > _LEAST_BYTES else _LEAST_BYTES

    async def end(self) -> None:
        """Wait for another turn of the loop, behind those that wait for one already."""
        waiting = self._waiting
        if not waiting:
            self._loop.call_soon(self._begin)
        waiter = self._loop.create_future()
        waiting.append(waiter)
        await waiter

    def _begin(self) -> None:
        # A task that reads on and on uses the turn up, so one of them begins in each. Where tasks read once and then do
        # something else, more begin together.
        self._beginners = min(2 * self._beginners, _BEGINNERS_MAX) if self.left_bytes > 0 else 1
        self.left_bytes = TURN_BYTES
        waiting = self._waiting
        for _ in range(min(self._beginners, len(waiting))):
            waiter = waiting.popleft()
            if not waiter.done():  # Its task was cancelled.
                waiter.set_result(None)
        if waiting:
            self._loop.call_soon(self._begin)
