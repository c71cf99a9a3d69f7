"""The drained responses of a runtime, which give way to requests that wait.

A drained response is received for the sake of its connection alone. Meanwhile it holds a slot, that connection and
memory. When a request waits for one of these, drained responses are cancelled, and no further one begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aioprefetch.runtime.budget import MemoryBudget

# The turns of the loop until a cancelled response has returned its slot and its connection is closed.
_TURNS = 4


class Drained(Protocol):
    """A response of which no read needs the rest."""

    @property
    def left_bytes(self) -> int:
        """The bytes that have not arrived."""

    def cancel(self) -> None:
        """Break it off."""


class Drains:
    """The drained responses of a runtime. ``waiting`` is the number of requests that wait for a slot or a connection.

    The budget knows by itself how many bytes wait for memory.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.waiting = 0
        self._budget = budget
        self._responses: set[Drained] = set()

    def begin(self, response: Drained) -> bool:
        """Let a response be drained; ``False`` if a request waits, which needs what the response holds."""
        if self.waiting or self._budget.queued_bytes:
            return False
        self._responses.add(response)
        return True

    def end(self, response: Drained) -> None:
        """It has ended, or a read waits for its bytes."""
        self._responses.discard(response)

    def cancel_one(self) -> bool:
        """Cancel the response that misses most bytes; ``False`` if there is none."""
        if not self._responses:
            return False
        response = max(self._responses, key=lambda drained: drained.left_bytes)
        self._responses.discard(response)
        response.cancel()
        return True

    async def give_way(self, is_over: Callable[[], bool]) -> None:
        """Cancel responses, one after the other, until the wait of a request ``is_over`` or none is left."""
        while not is_over() and self.cancel_one():
            for _ in range(_TURNS):
                await asyncio.sleep(0)
