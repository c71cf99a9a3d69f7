"""The decode loop of a scan whose parts may come in any order: several are decoded at once, each by a loop of its own.

A slow response holds back the batches of its own part alone. The rows of one part stay in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from aioprefetch.errors import Closed
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.scheduler.decode_loop import BatchOptions, DecodeLoop
from aioprefetch.scheduler.pages import PreparedScan, ReadService, ScanPart
from aioprefetch.scheduler.scheduling_loop import each_part

if TYPE_CHECKING:
    import pyarrow as pa

# The number of parts that are decoded at once. Each may exceed the budget by what its decoder waits for.
PARTS_AT_ONCE = 4


class _Shared:
    """The I/O service as one of the loops sees it: to close it is for the scan."""

    def __init__(self, service: ReadService) -> None:
        self.on_progress: Callable[[], None] | None = None
        self._service = service

    @property
    def has_received(self) -> bool:
        return self._service.has_received

    def close(self) -> None:
        """Do nothing."""


class UnorderedLoop:
    """Has the methods of ``DecodeLoop``. Bound to the runtime's loop; one consumer at a time."""

    def __init__(self, runtime: Runtime, scan: PreparedScan, options: BatchOptions, *, path: str) -> None:
        self._runtime = runtime
        self._scan = scan
        self._path = path
        self._options = replace(options, readahead=max(1, options.readahead // PARTS_AT_ONCE))
        self._parts: AsyncIterator[ScanPart] = each_part(scan.parts)
        self._turn = asyncio.Lock()
        self._lanes: dict[_Lane, asyncio.Task[pa.RecordBatch | None]] = {}
        self._idle: list[_Lane] = []
        self._closed = False

    def start(self) -> None:
        """Start to decode the first parts in the background."""
        self._scan.service.on_progress = self._progressed
        self._idle = [_Lane(self) for _ in range(PARTS_AT_ONCE)]
        self._take()

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next batch that is ready, ``None`` at the end; a cancelled wait takes no batch with it.

        Raises the error of any part as soon as it is known.
        """
        self._check_open()
        self._take()
        while self._lanes:
            await asyncio.wait(self._lanes.values(), return_when=asyncio.FIRST_COMPLETED)
            self._check_open()
            lane = next(lane for lane, task in self._lanes.items() if task.done())
            task = self._lanes.pop(lane)
            self._idle.append(lane)
            batch = task.result()
            if batch is not None:
                return batch
            self._idle.remove(lane)
        return None

    async def aclose(self) -> None:
        """``close``, and wait for the batches that threads are at."""
        lanes, tasks = self._all_lanes(), list(self._lanes.values())
        self.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in lanes:
            await lane.aclose()
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()

    def close(self) -> None:
        """Stop all loops and release every page. Needs no response; may be called twice."""
        self._closed = True
        for lane in self._all_lanes():
            lane.close()
        for task in self._lanes.values():
            task.cancel()
        self._idle.clear()
        self._scan.service.close()

    async def next_part(self) -> ScanPart | None:
        """The next part for a lane."""
        async with self._turn:
            return None if self._closed else await anext(self._parts, None)

    def loop_of(self, part: ScanPart) -> tuple[DecodeLoop, _Shared]:
        """A loop for one part, started."""
        shared = _Shared(self._scan.service)
        loop = DecodeLoop(
            self._runtime, PreparedScan(self._scan.schema, [part], shared), self._options, path=self._path
        )
        if self._closed:
            loop.close()
        self._check_open()
        loop.start()
        return loop, shared

    def _take(self) -> None:
        """Let each lane without a batch to come get one."""
        idle, self._idle = self._idle, []
        for lane in idle:
            self._lanes[lane] = asyncio.ensure_future(lane.next_batch())

    def _all_lanes(self) -> list[_Lane]:
        return [*self._lanes, *self._idle]

    def _progressed(self) -> None:
        for lane in self._all_lanes():
            lane.progressed()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the scan was closed", operation="scan", path=self._path)


class _Lane:
    """One part after the other."""

    def __init__(self, loops: UnorderedLoop) -> None:
        self._loops = loops
        self._loop: DecodeLoop | None = None
        self._shared: _Shared | None = None

    async def next_batch(self) -> pa.RecordBatch | None:
        while True:
            if self._loop is None:
                part = await self._loops.next_part()
                if part is None:
                    return None
                self._loop, self._shared = self._loops.loop_of(part)
            batch = await self._loop.next_batch()
            if batch is not None:
                return batch
            await self.aclose()

    def progressed(self) -> None:
        if self._shared is not None and self._shared.on_progress is not None:
            self._shared.on_progress()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()

    async def aclose(self) -> None:
        loop, self._loop = self._loop, None
        self._shared = None
        if loop is not None:
            await loop.aclose()
