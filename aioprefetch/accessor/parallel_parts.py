"""The parts of a long read: requests of one version side by side, each into its place in the memory of the result.

**Memory.** One request is the read's own, as the one request of a short read is. Further ones take their bytes from the
budget in the lane of prefetch while they are in flight, and are not sent while there is none: so a read of an object
larger than the budget, or several reads at once, go on with fewer requests, and no read waits for memory that another
one holds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import copy_of
from aioprefetch.ranges import Range
from aioprefetch.runtime.budget import MemoryBudget, Ticket
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import PlainTaskGroup
from aioprefetch.values import Lane

# The requests for one long read, and the size of each. Measured from a store 30 ms away: half as many are slower, twice
# as many are not faster, and neither are parts of 4 or 16 MiB (docs/decisions/0025).
REQUESTS_MAX = 16
PART_BYTES_MAX = 8 << 20


class PartSource(Protocol):
    """The read that the parts belong to."""

    def sink_of(self, start: int, end: int) -> Sink:
        """The sink of the request for ``[start, end)``."""

    async def read_part(self, start: int, end: int, sink: Sink, lane: Lane) -> None:
        """Receive ``[start, end)`` into its sink."""


class ParallelParts:
    """The requests for ``gaps`` of one version of an object, for ``source``.

    ``others`` is the number of requests that the same read has in flight besides these.
    """

    def __init__(self, runtime: Runtime, gaps: Sequence[Range], source: PartSource) -> None:
        self.others = 0
        self._runtime = runtime
        self._source = source
        self._gaps = deque(gaps)
        missing = sum(end - start for start, end in gaps)
        # Small blocks are for readers; here a request that is not worth its first byte costs all the others.
        self._part_bytes = min(PART_BYTES_MAX, max(runtime.options.block_bytes, -(-missing // REQUESTS_MAX)))
        self._workers: set[asyncio.Task[None]] = set()
        self._in_flight: set[Sink] = set()
        self._end_error: Exception | None = None

    async def run(self) -> None:
        """Receive all parts. The first failure is raised, and no request is in flight afterwards."""
        if not self._gaps:
            return
        async with PlainTaskGroup() as group:
            self._start_worker(group, "demand")
            self._widen(group)
        if self._end_error is not None:
            raise copy_of(self._end_error)

    def end(self, error: Exception) -> None:
        """Cancel all requests; ``run`` raises the error when none of them can write into its memory any more."""
        self._end_error = error
        for worker in self._workers:
            worker.cancel()

    def _widen(self, group: asyncio.TaskGroup) -> None:
        """Add workers while parts are left and the budget has memory for their requests."""
        options, budget = self._runtime.options, self._runtime.budget
        fitting = options.memory_bytes // 2 // self._part_bytes  # Half of the memory is for others.
        workers_max = min(REQUESTS_MAX, options.concurrency - self.others, 1 + fitting)  # The first one takes none.
        while self._gaps and len(self._workers) < workers_max:
            ticket = budget.request(self._part_bytes, "prefetch")
            if not ticket.granted:
                budget.cancel(ticket)
                return
            # Not in the worker: a worker that is cancelled before its first step never runs.
            self._start_worker(group, "prefetch").add_done_callback(partial(_give_back, budget, ticket))

    def _start_worker(self, group: asyncio.TaskGroup, lane: Lane) -> asyncio.Task[None]:
        worker = group.create_task(self._work(group, lane), context=entering())
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)
        return worker

    async def _work(self, group: asyncio.TaskGroup, lane: Lane) -> None:
        while self._gaps and self._end_error is None:
            await self._read_part(*self._next_part(), lane)
            self._widen(group)
        for sink in self._in_flight:  # The caller waits for these alone now.
            sink.promote()

    def _next_part(self) -> Range:
        start, end = self._gaps[0]
        stop = min(end, start + self._part_bytes)
        if stop == end:
            self._gaps.popleft()
        else:
            self._gaps[0] = (stop, end)
        return start, stop

    async def _read_part(self, start: int, end: int, lane: Lane) -> None:
        sink = self._source.sink_of(start, end)
        self._in_flight.add(sink)
        try:
            await self._source.read_part(start, end, sink, lane)
        finally:
            self._in_flight.discard(sink)


def _give_back(budget: MemoryBudget, ticket: Ticket, worker: asyncio.Task[None]) -> None:
    budget.cancel(ticket)
