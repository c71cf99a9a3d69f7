"""Reads past the blocks, which would hold their bytes a second time: long reads, and warm ones.

**A long read** has more bytes than blocks can keep. What is resident or in flight when it begins is copied out of its
blocks, and all other bytes come in parallel requests for parts of the pinned version (``ParallelParts``), into the
memory of the result. Nothing of these is resident afterwards.

**Warm reads** are short ones of what the store itself has in memory, as a file system has the files that were read
before. Such bytes are delivered in the same call, without a request in flight, and nothing of them is kept: the block
store would hold a copy of a copy, and evict blocks for it that cost a request each. Only a range that is read again
later is kept in blocks, where a hit costs less still.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Protocol

from aioprefetch.accessor.parallel_parts import ParallelParts
from aioprefetch.accessor.protocols import Accessor, read_now_of
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.blocks.fetch import Wait
from aioprefetch.blocks.file import BlockFile
from aioprefetch.errors import Closed
from aioprefetch.ranges import Range, subtract
from aioprefetch.reader.opening import OpenObject, OpenPart
from aioprefetch.reader.policy import TAIL_BYTES, Fill
from aioprefetch.runtime.buffers import ResultStream
from aioprefetch.runtime.runtime import TURN_BYTES, Runtime
from aioprefetch.runtime.statistics import Tier, Timer, count_as_before, count_for
from aioprefetch.runtime.task_group import PlainTaskGroup
from aioprefetch.values import Lane, ReadHead, ReadRequest

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
        receiving: asyncio.Task[None] | None = None
        group = PlainTaskGroup()
        try:
            async with group:
                receiving = None if parts is None else group.create_task(self._run(parts))
                for low, high in resident:
                    await self._copy(low, high)
                if receiving is not None:
                    await self._opened.wait_for(asyncio.wait((receiving,)))
        finally:
            del receiving, group  # The traceback of its error holds this frame.

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


# --- warm reads -------------------------------------------------------------------------------------------------------

# The number of reads that are remembered, by their starts, to find those that are made again.
_STARTS_MAX = 256


class WarmReads:
    """The reads of one open object from the memory of its store. Bound to the runtime's loop.

    ``is_possible`` is false where the bytes come from a network, and behind every layer that does something to reads.
    """

    def __init__(self, opened: OpenObject, accessor: Accessor, runtime: Runtime) -> None:
        self._opened = opened
        self._runtime = runtime
        self._read_now = read_now_of(accessor)
        self.is_possible = self._read_now is not None
        self._starts: set[int] = set()

    def read(self, file: BlockFile, start: int, end: int, *, keeps_end: bool) -> memoryview | None:
        """``[start, end)`` of the pinned version, counted as one request.

        ``None`` if the bytes are not in memory at the store, or are in a block or in flight already; also for every
        failure, whose error a request finds again. ``keeps_end``: neither for the end of the file, which is kept in
        blocks because the layout of the file may be learnt from it. Raises ``ObjectChanged``.
        """
        read_now = self._read_now
        if read_now is None or end - start > TURN_BYTES or file.at(start) is not None:
            return None
        if keeps_end and end > file.size - TAIL_BYTES:
            return None
        if (file.fetches and file.in_flight(start, end)) or self._is_repeated(start):
            return None
        opened, runtime = self._opened, self._runtime
        pin, account = opened.pin, opened.account
        size = end - start
        request = ReadRequest(
            path=opened.path, offset=start, size=size, if_match=pin.etag, version=pin.version, session=opened.session
        )
        sink = _WarmSink(opened, file)
        started = runtime.loop.time()
        token = count_for(account)
        try:
            if read_now(request, sink) is None or sink.received != size:
                return None
        finally:
            count_as_before(token)
        runtime.turn.spend(size)
        account.counters["stream_read_block_read"] += 1
        account.counters.succeeded("stream_read_block_read", runtime.loop.time() - started)
        if runtime.events.listeners:
            opened.publish_range(start, end, size, "demand", None)
        return sink.to_view()

    def _is_repeated(self, start: int) -> bool:
        starts = self._starts
        if start in starts:
            return True
        if len(starts) == _STARTS_MAX:
            starts.clear()
        starts.add(start)
        return False


class _WarmSink(CollectSink):
    """Collects bytes of the pinned version."""

    __slots__ = ("_file", "_opened")

    def __init__(self, opened: OpenObject, file: BlockFile) -> None:
        CollectSink.__init__(self)
        self._opened = opened
        self._file = file

    def _begun(self, head: ReadHead) -> None:
        self._opened.check_head(self._file, head)
