"""Reads whose bytes the test lets come: a ``PageIo`` over a file in memory, received into a ``SparseFile``."""

import asyncio
from collections.abc import Sequence
from typing import Any

from aioprefetch.errors import Error
from aioprefetch.parquet.chunks import SparseFile
from aioprefetch.ranges import Range
from aioprefetch.scheduler.pages import PendingRead


class HeldRead:
    """Ranges that come when ``come`` is called, or never."""

    def __init__(self, io: "HeldIo", ranges: Sequence[Range], row: int) -> None:
        self.io = io
        self.ranges = list(ranges)
        self.row = row
        self.wanted = False
        self.released = False
        self.done = False
        self.error: Error | None = None
        self._came = asyncio.Event()

    @property
    def views(self) -> list[memoryview]:
        if self.error is not None:
            raise self.error
        assert self.done
        return [self.io.memory.view(*one) for one in self.ranges]

    def come(self) -> None:
        for start, end in self.ranges:
            self.io.memory.allocate(start, end)[:] = self.io.data[start:end]
        self._end()

    def fail(self, error: Error) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        self.done = True
        self._came.set()

    def promote(self) -> None:
        self.wanted = True

    async def wait(self) -> list[memoryview]:
        self.promote()
        await self._came.wait()
        return self.views

    async def arrive(self) -> None:
        await self._came.wait()

    def release(self) -> None:
        assert not self.released, "once is enough"
        self.released = True
        if self.done and self.error is None:
            for one in self.ranges:
                self.io.memory.discard(*one)


class HeldIo:
    """Remembers what was submitted."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.memory = SparseFile(len(data))
        self.reads: list[HeldRead] = []

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> PendingRead:
        assert not is_follow_up
        self.reads.append(HeldRead(self, ranges, row))
        return self.reads[-1]

    def spawn(self, work: Any, *, name: str) -> None:
        raise AssertionError("nothing is indirect")
