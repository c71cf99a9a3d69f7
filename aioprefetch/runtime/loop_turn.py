"""The turns of the event loop: how much is read in one of them without waiting for anything."""

from __future__ import annotations

import asyncio

# The kernel copies this much in 10 µs into memory in use, and in 60 to 120 µs into fresh memory, whose pages it zeroes.
TURN_BYTES = 64 << 10
# What a read counts at least: the calls around it take as long as some bytes.
_LEAST_BYTES = 4 << 10


class LoopTurn:
    """Counts the bytes that tasks read on the loop, since a task that only reads what is in memory never waits.

    ``spend`` them; when ``left_bytes`` is not positive, ``await end()`` before the next read.
    """

    __slots__ = ("left_bytes",)

    def __init__(self) -> None:
        self.left_bytes = TURN_BYTES

    def spend(self, size_bytes: int) -> None:
        """A read of ``size_bytes`` was made or tried."""
        self.left_bytes -= size_bytes if size_bytes > _LEAST_BYTES else _LEAST_BYTES

    async def end(self) -> None:
        """Let the other tasks have their turn, and begin a new one."""
        self.left_bytes = TURN_BYTES
        await asyncio.sleep(0)
