"""A read of more bytes than blocks can keep: in parallel requests, past the blocks, into the memory of its result.

Blocks would hold the bytes a second time. What is resident or in flight when it begins is copied out of its blocks, and
all other bytes come in parts of the pinned version (``ParallelParts``). Nothing of these is resident afterwards.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Protocol

from aioprefetch.accessor.parallel_parts import ParallelParts
from aioprefetch.accessor.sink import Sink
from aioprefetch.blocks.fetch import Wait
from aioprefetch.errors import Closed
from aioprefetch.ranges import Range, subtract
from aioprefetch.reader.opening import OpenObject, OpenPart
from aioprefetch.reader.policy import Fill
from aioprefetch.runtime.buffers import ResultStream
from aioprefetch.runtime.statistics import Tier, Timer, count_for
from aioprefetch.runtime.task_group import PlainTaskGroup
from aioprefetch.values import Lane

Write = Callable[[memoryview], object]


class BlockReads(Protocol):
    """The reads of blocks; see ``ObjectReads``."""

    opened: OpenObject

    def request_and_join(self, start: int, end: int, *, fill: Fill) -> list[Wait]:
        """Join the requests that bring bytes of a range."""

    def deliver(
        self, start: int, end: int, waits: list[Wait], write: Write, fill: Fill, has_prefix: bool
    ) -> Awaitable[Tier]:
        """Pass a range to ``write`` as it arrives."""


class LongRead:
    """A read into ``memory`` from ``start`` on, which it releases. ``reads`` have the bytes that are in blocks."""

    def __init__(self, reads: BlockReads, start: int, memory: memoryview) -> None:
        self._reads = reads
        self._opened = reads.opened
        self._start = start
        self._memory = memory

    @staticmethod
    async def collect(reads: BlockReads, start: int, end: int) -> tuple[io.BytesIO, Tier]:
        """Read ``[start, end)``; returns a stream of the bytes that stands at its end, and their origin.

        Errors as of ``run``, and ``MemoryError`` before any request if there is no memory for them.
        """
        collected = ResultStream(bytes(end - start))
        tier = await LongRead(reads, start, collected.getbuffer()).run()
        collected.seek(end - start)
        return collected, tier

    async def run(self) -> Tier:
        """Read everything; returns the origin of the bytes. However it ends, nothing writes into the memory afterwards.

        The first failure is raised. If the reader is closed or reopened meanwhile, that is the failure.
        """
        opened, start = self._opened, self._start
        wanted = start, start + len(self._memory)
        gaps = opened.open_file().missing(*wanted)
        parts = ParallelParts(opened.runtime, gaps, self)
        opened.long_reads += (parts,)
        try:
            await self._receive(parts if gaps else None, subtract(wanted, gaps))
        finally:
            self._memory.release()
            opened.long_reads = tuple(other for other in opened.long_reads if other is not parts)
        return Tier.NETWORK if gaps else Tier.MEMORY

    async def _receive(self, parts: ParallelParts | None, resident: list[Range]) -> None:
        """Receive the parts, and copy what is in blocks meanwhile. The waits for the two are counted, one by one."""
        async with PlainTaskGroup() as group:
            receiving = None if parts is None else group.create_task(self._run(parts))
            for low, high in resident:
                await self._copy(low, high)
            if receiving is not None:
                await self._opened.wait_for(asyncio.wait((receiving,)))

    async def _run(self, parts: ParallelParts) -> None:
        try:
            await parts.run()
        except Exception as error:
            if not isinstance(error, Closed):  # The task group cancels the wait, which knows of no failure.
                self._opened.account.counters.failed("stream_read_block_acquire_read")
            raise

    def sink_of(self, start: int, end: int) -> Sink:
        """The place of ``[start, end)`` in the result."""
        return self._opened.part(start, self._memory[start - self._start : end - self._start])

    async def read_part(self, start: int, end: int, sink: Sink, lane: Lane) -> None:
        """Receive a part of the pinned version."""
        assert isinstance(sink, OpenPart)
        opened = self._opened
        count_for(opened.account)
        sink.lane = lane
        error: str | None = Closed.__name__
        try:
            with Timer(opened.account.counters, "stream_read_block_read", opened.runtime.now):
                await opened.receive(sink)
            error = None
        except Exception as failure:
            error = type(failure).__name__
            raise
        finally:
            if opened.runtime.events.listeners:
                opened.publish_range(start, end, sink.received, sink.lane, error)

    async def _copy(self, start: int, end: int) -> None:
        """Copy a range out of its blocks, as it arrives."""
        reads = self._reads
        place = start - self._start

        def write(piece: memoryview) -> None:
            nonlocal place
            self._memory[place : place + len(piece)] = piece
            place += len(piece)

        waits = reads.request_and_join(start, end, fill="exact")
        try:
            await reads.deliver(start, end, waits, write, "exact", has_prefix=True)
        finally:
            self._opened.release(waits)


def stream_of(size: int) -> io.BytesIO:
    """A stream that need not grow for ``size`` bytes, if there is memory for them: a declared size may be any."""
    try:
        return io.BytesIO(bytes(size))
    except MemoryError:
        return io.BytesIO()
