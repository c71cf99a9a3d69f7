"""Reads past the blocks: into the memory of the result. Nothing is resident afterwards.

A **long read** has more bytes than blocks can keep. What is resident or in flight when it begins is copied out of its
blocks, and all other bytes come in parallel requests for parts of the pinned version (``ParallelParts``).

A read of a **local file** of any length goes past the blocks: they would hold a copy of a copy, and evict others for
it. Each gap is one request, which the caller awaits itself: where the bytes are in the page cache, the read ends
without a turn of the loop.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Protocol

from aioprefetch.accessor.parallel_parts import ParallelParts
from aioprefetch.accessor.sink import Sink
from aioprefetch.blocks.fetch import Fetch, Wait
from aioprefetch.blocks.store import without_frames
from aioprefetch.errors import Closed, copy_of
from aioprefetch.ranges import Range, subtract
from aioprefetch.reader.opening import OpenObject, OpenPart
from aioprefetch.reader.policy import Fill
from aioprefetch.runtime.buffers import ResultStream
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.statistics import Tier, count_as_before, count_for
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
        self._task: asyncio.Task[object] | None = None
        self._end_error: Exception | None = None

    @staticmethod
    async def collect(
        reads: BlockReads, start: int, end: int, gaps: list[Range] | None = None
    ) -> tuple[io.BytesIO, Tier]:
        """Read ``[start, end)``; returns a stream of the bytes that stands at its end, and their origin.

        Errors as of ``run``, and ``MemoryError`` before any request if there is no memory for them.
        """
        collected = ResultStream(bytes(end - start))
        tier = await LongRead(reads, start, collected.getbuffer()).run(gaps)
        collected.seek(end - start)
        return collected, tier

    async def run(self, gaps: list[Range] | None = None) -> Tier:
        """Read everything; returns the origin of the bytes. However it ends, nothing writes into the memory afterwards.

        ``gaps`` come by requests, by default what is in no block. The first failure is raised. If the reader is closed
        or reopened meanwhile, that is the failure.
        """
        opened, start = self._opened, self._start
        wanted = start, start + len(self._memory)
        gaps = gaps or opened.open_file().missing(*wanted)
        resident = [] if gaps == [wanted] else subtract(wanted, gaps)
        try:
            if opened.passes_blocks:
                await self._receive_here(gaps, resident)
            else:
                await self._receive(gaps, resident)
        finally:
            self._memory.release()
        return Tier.NETWORK if gaps else Tier.MEMORY

    async def _receive_here(self, gaps: list[Range], resident: list[Range]) -> None:
        """Receive the gaps one by one in the task of the caller, and then copy what is in blocks."""
        opened, account = self._opened, self._opened.account
        self._task = task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        opened.long_reads.append(self.end)
        token = count_for(account)
        try:
            for low, high in gaps:
                await opened.wait_for(self.read_part(low, high, self.sink_of(low, high), "demand"))
        except asyncio.CancelledError:
            if self._end_error is None or task.uncancel() > cancelling:
                raise
            raise copy_of(self._end_error) from None
        finally:
            count_as_before(token)
            opened.long_reads.remove(self.end)
            del task
            self._task = None  # It holds its error, whose traceback holds this frame.
        for low, high in resident:
            await self._copy(low, high)

    def end(self, error: Exception) -> None:
        """Cancel the task that receives in itself, and let it raise ``error``."""
        if self._task is not None and self._end_error is None and self._task is not asyncio.current_task():
            self._end_error = error
            self._task.cancel()

    async def _receive(self, gaps: list[Range], resident: list[Range]) -> None:
        """Receive the gaps, and copy what is in blocks meanwhile. The waits for the two are counted, one by one."""
        opened = self._opened
        parts = ParallelParts(opened.runtime, gaps, self)
        opened.long_reads.append(parts.end)
        receiving: asyncio.Task[None] | None = None
        group = PlainTaskGroup()
        try:
            async with group:
                receiving = group.create_task(self._run(parts), context=entering()) if gaps else None
                for low, high in resident:
                    await self._copy(low, high)
                if receiving is not None:
                    await opened.wait_for(asyncio.wait((receiving,)))
        finally:
            opened.long_reads.remove(parts.end)
            del receiving, group  # The traceback of its error holds this frame.

    async def _run(self, parts: ParallelParts) -> None:
        count_for(self._opened.account)
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
        sink.lane = lane
        error: str | None = Closed.__name__
        counters, now = opened.account.counters, opened.runtime.clock
        counters["stream_read_block_read"] += 1
        started = now()
        try:
            await opened.receive(sink)
            error = None
            counters.succeeded("stream_read_block_read", now() - started)
        except Exception as failure:
            error = type(failure).__name__
            if not isinstance(failure, Closed):
                counters.failed("stream_read_block_read")
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


class PastFetch(Fetch):
    """A range of several that are read past the blocks side by side: begun in its caller, its bytes in ``data``."""

    @classmethod
    def begun(cls, reads: BlockReads, start: int, end: int) -> Wait:
        """A read of ``[start, end)`` that has begun, and a wait for all of it."""
        opened = reads.opened
        runtime = opened.runtime
        fetch = cls(opened.store, opened, start, end, lane="demand", label=opened.path, account=opened.account)
        fetch.tier = Tier.NETWORK
        fetch.work = work = runtime.supervisor.start(fetch._receive(reads), runtime.loop, name="fetch")
        work.start()
        wait = fetch.join(end)
        wait.was_late = True
        opened.waits.add(wait)
        return wait

    def cancel(self) -> None:
        """End the read."""
        if self.work is not None and not self.finished:
            self.work.cancel()

    async def _receive(self, reads: BlockReads) -> None:
        try:
            collected, self.tier = await LongRead.collect(reads, self.start, self.end)
            self.data = collected.getvalue()
        except Exception as error:
            self.finish(without_frames(error))
        except asyncio.CancelledError:
            self.finish(Closed("the reader or its operator was closed while it read", operation="read"))
            raise
        else:
            self.finish(None)


def stream_of(size: int) -> io.BytesIO:
    """A stream that need not grow for ``size`` bytes, if there is memory for them: a declared size may be any."""
    try:
        return io.BytesIO(bytes(size))
    except MemoryError:
        return io.BytesIO()
