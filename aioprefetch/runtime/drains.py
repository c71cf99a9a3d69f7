"""The drained responses of a runtime, which give way to requests that wait.

A drained response is received for the sake of its connection alone. Meanwhile it holds a slot, that connection and
memory. When a read waits for one of these, drained responses are cancelled, and no further one begins. A prefetch that
waits ends nothing: a stream has some in the queue at almost any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.values import Lane

# The turns of the loop until a cancelled response has returned its slot and its connection is closed.
_TURNS = 4


class Drained(Protocol):
    """A response of which no read needs the rest."""

    @property
    def left_bytes(self) -> int:
        """The bytes that have not arrived."""

    def cancel(self) -> None:
        """Break it off."""


class Waiting:
    """A request that waits, for as long as its ``with`` block runs."""

    __slots__ = ("_drains", "lane")

    def __init__(self, drains: Drains, lane: Lane) -> None:
        self.lane: Lane = lane
        self._drains = drains

    def __enter__(self) -> Self:
        self._drains.demand_waiting += self.lane == "demand"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drains.demand_waiting -= self.lane == "demand"

    def promote(self) -> None:
        """A read waits for this prefetch now."""
        self._drains.demand_waiting += self.lane == "prefetch"
        self.lane = "demand"


class Drains:
    """The drained responses of a runtime.

    ``demand_waiting`` is the number of requests for reads that wait for a slot, and of those of either lane that wait
    for a connection, where lanes are not known. The budget knows by itself how many bytes of reads wait for memory.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.demand_waiting = 0
        self._budget = budget
        self._responses: set[Drained] = set()

    def waits(self, lane: Lane) -> Waiting:
        """``with drains.waits(lane):`` around the wait of a request."""
        return Waiting(self, lane)

    def begin(self, response: Drained) -> bool:
        """Let a response be drained; ``False`` if a read waits, which needs what the response holds."""
        if self.demand_waiting or self._budget.queued_bytes:
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
