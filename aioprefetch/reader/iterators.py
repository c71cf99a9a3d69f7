"""The iterators of a RangeReader: objects with ``aclose`` and ``async with``. Left early, it releases all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from aioprefetch.blocks.fetch import Wait, tier_of
from aioprefetch.credentials import hiding_frames
from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import MergedRange, Range, coalesce
from aioprefetch.reader.object_reads import ObjectReads
from aioprefetch.reader.window import Run
from aioprefetch.runtime.closing import WITHOUT_AWAIT, AsyncClosing, refused
from aioprefetch.runtime.statistics import Counters, Tier


@dataclass(frozen=True, slots=True)
class RangePlan:
    """Ranges of an object, and the requests they were merged into.

    ``tier`` is the best possible origin of the bytes: the network, if the plan had to wait for the first response.
    """

    reads: ObjectReads
    ranges: Sequence[Range]
    merged: Sequence[MergedRange]
    tier: Tier


class RangeIterator(AsyncClosing):
    """Yields ``(position in the list, bytes)`` as ranges complete. Results are copies: none pins a merged buffer.

    Nothing is sent before the first result is awaited. A failed request fails the iteration when its turn comes;
    ranges of requests that completed before come first, and iterating on afterwards brings the others. Several tasks
    may consume one iterator, in turns; a cancelled task takes no result with it.
    """

    def __init__(
        self, connect: Callable[[], ObjectReads], ranges: Sequence[Range], limits: tuple[int, int], counters: Counters
    ) -> None:
        """``connect`` gets the reads of the pinned version, ``limits`` are ``gap_bytes`` and ``request_bytes_max``."""
        self._connect = connect
        self.ranges = ranges
        self._limits = limits
        self._counters = counters
        self.targets: Sequence[memoryview] | None = None  # Where bytes are copied to, which are yielded as ``b""``.
        self._plan: RangePlan | None = None
        self._pending: deque[MergedRange] = deque()
        self._active: list[tuple[MergedRange, list[Wait]]] = []
        self._ready: deque[tuple[int, bytes]] = deque()
        self._turn = asyncio.Lock()
        self._closed = False

    def __aiter__(self) -> RangeIterator:
        return self

    if not TYPE_CHECKING:
        __iter__ = refused("for", f"write 'async for position, data in ...'; {WITHOUT_AWAIT}")
        __await__ = refused("await", "write 'async for position, data in ...'; read_ranges returns all of them")

    async def __anext__(self) -> tuple[int, bytes]:
        if self._plan is not None:  # A call on another loop must not even wait in the queue.
            reads = self._plan.reads
            reads.runtime.check_loop(operation="read_ranges", path=reads.path)
        async with self._turn:
            try:
                return await self._next()
            except StopAsyncIteration:
                raise
            except Exception:
                self._counters["stream_read_exceptions"] += 1
                raise

    async def _next(self) -> tuple[int, bytes]:
        if self._plan is None and not self._closed:
            self._plan = plan = await self._prepare()
            self._pending.extend(plan.merged)
            self._ready.extend((index, b"") for index, (start, end) in enumerate(plan.ranges) if start == end)
        while not self._ready:
            if self._plan is None or not (self._pending or self._active):
                raise StopAsyncIteration
            self._start(self._plan.reads)
            if not self._active:
                await self._copy(self._plan, self._pending.popleft())
                continue
            if not any(_is_done(waits) for _, waits in self._active):
                late = [wait for _, waits in self._active for wait in waits if not wait.is_over]
                await self._plan.reads.opened.first_completed(late)
                del late  # See ``OpenObject.release``.
            await self._collect(self._plan)
        return self._ready.popleft()

    @hiding_frames
    async def _prepare(self) -> RangePlan:
        ranges, counters = self.ranges, self._counters
        reads = self._connect()
        filled = [wanted for wanted in ranges if wanted[1] > wanted[0]]
        tier = Tier.MEMORY
        if filled and reads.file is None:
            tier = Tier.NETWORK
            low, high = min(filled)
            await reads.opened.open(low, high - low)
        size = reads.opened.size
        if size is not None:
            check_ends(ranges, size, path=reads.path)
        gap_bytes, bytes_max = self._limits
        bytes_max = min(bytes_max, reads.opened.request_bytes_max)
        merged = coalesce(ranges, gap_bytes=gap_bytes, request_bytes_max=bytes_max)
        useful_bytes = sum(end - begin for begin, end in ranges)
        counters["stream_read_vectored_operations"] += 1
        counters["stream_read_vectored_incoming_ranges"] += len(ranges)
        counters["stream_read_vectored_incoming_bytes"] += useful_bytes
        counters["stream_read_vectored_combined_ranges"] += len(merged)
        requested_bytes = sum(piece.size for piece in merged)
        counters["stream_read_vectored_read_bytes_discarded"] += max(0, requested_bytes - useful_bytes)
        counters["stream_read_operations"] += 1
        return RangePlan(reads, ranges, merged, tier)

    def _start(self, reads: ObjectReads) -> None:
        while self._pending and self._pending[0].size <= reads.opened.request_bytes_max:
            piece = self._pending[0]
            in_flight = sum(active.size for active, _ in self._active)
            if not reads.has_room(len(self._active), in_flight, (piece.start, piece.end)):
                return
            self._pending.popleft()
            self._active.append((piece, reads.request(piece.start, piece.end)))

    async def _copy(self, plan: RangePlan, piece: MergedRange) -> None:
        """Copy a range step by step that is too large for memory, or was evicted before its turn."""
        try:
            collected, tier = await plan.reads.collect(piece.start, piece.end)
            if collected.tell() < piece.size:
                size = plan.reads.opened.size
                raise RangeNotSatisfied(
                    f"a range ends past the end of the object of {size} bytes",
                    total=size,
                    operation="read_ranges",
                    path=plan.reads.path,
                )
        except asyncio.CancelledError:
            self._pending.appendleft(piece)  # For the task that awaits the next result.
            raise
        if not self._closed:
            self._deliver(plan, piece, [memoryview(collected.getvalue())], tier)

    async def _collect(self, plan: RangePlan) -> None:
        """Deliver the first request that has ended, and only one: if it failed, the others are not lost with it."""
        entry = next((active for active in self._active if _is_done(active[1])), None)
        if entry is None:  # Closed meanwhile.
            return
        piece, waits = entry
        opened = plan.reads.opened
        try:
            pieces = await plan.reads.arrived(piece.start, piece.end, waits)
            if pieces is None:
                opened.release(waits)  # Pinned bytes must not keep others from the memory that is needed now.
                await self._copy(plan, piece)
            else:
                self._deliver(plan, piece, pieces, tier_of(waits))
        finally:
            if entry in self._active:
                self._active.remove(entry)
                opened.release(waits)

    def _deliver(self, plan: RangePlan, piece: MergedRange, pieces: list[memoryview], tier: Tier) -> None:
        whole = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        delivered_bytes = 0
        for member in piece.members:
            start, end = plan.ranges[member]
            part = whole[start - piece.start : end - piece.start]
            if self.targets is None:
                self._ready.append((member, bytes(part)))
            else:
                self.targets[member][:] = part
                self._ready.append((member, b""))
            delivered_bytes += end - start
            if plan.reads.runtime.events.wants_reads:
                plan.reads.opened.publish_served(start, end - start, max(tier, plan.tier), None)
        plan.reads.count_delivered(delivered_bytes, max(tier, plan.tier))

    async def aclose(self) -> None:
        """Drop the undelivered results, and cancel their requests."""
        self._closed = True
        self._pending.clear()
        self._ready.clear()
        if self._plan is not None:
            for _, waits in self._active:
                for wait in waits:
                    if wait.future is not None:
                        wait.future.cancel()  # Another task may be waiting for the next result.
                self._plan.reads.opened.release(waits)
        self._active.clear()
        self._plan = None


class ChunkIterator(AsyncClosing):
    """Yields the bytes from the cursor on in chunks, and moves the cursor; blocks ahead are fetched meanwhile.

    Closing it early, by ``aclose`` or ``async with``, cancels the requests ahead.
    """

    def __init__(
        self,
        read: Callable[[int], Awaitable[bytes]],
        tell: Callable[[], int],
        chunk_bytes: int,
        *,
        expect_run: Callable[[], Run | None],
        leave_run: Callable[[Run | None, int], None],
    ) -> None:
        """``read`` reads at the cursor and ``tell`` is its position. A run is expected before the first chunk."""
        self._read = read
        self._tell = tell
        self._chunk_bytes = chunk_bytes
        self._expect_run = expect_run
        self._leave_run = leave_run
        self._begun = False
        self._closed = False
        self._run: Run | None = None
        self._position = 0

    def __aiter__(self) -> ChunkIterator:
        return self

    if not TYPE_CHECKING:
        __iter__ = refused("for", f"write 'async for chunk in ...'; {WITHOUT_AWAIT}")
        __await__ = refused("await", "write 'async for chunk in ...'; reader.read() returns all bytes")

    async def __anext__(self) -> bytes:
        if self._closed:
            raise StopAsyncIteration
        return await self._next()

    async def _next(self) -> bytes:
        if not self._begun:
            self._run = self._expect_run()
            self._begun = True
        chunk = await self._read(self._chunk_bytes)
        if not chunk:
            self._closed = True
            raise StopAsyncIteration
        self._position = self._tell()
        if self._closed:  # Closed while it waited for this chunk.
            self._leave_run(self._run, self._position)
        return chunk

    async def aclose(self) -> None:
        """End the iteration; the reader stays open, its cursor after the last chunk delivered.

        Requests ahead are cancelled, and their memory is released. Received bytes stay resident.
        """
        if self._begun and not self._closed:
            self._leave_run(self._run, self._position)
        self._closed = True


def _is_done(waits: Sequence[Wait]) -> bool:
    return all(wait.is_over for wait in waits)


def check_ends(ranges: Sequence[Range], size: int, *, path: str) -> None:
    """``RangeNotSatisfied`` for a range that ends past the end of an object of ``size`` bytes."""
    for start, end in ranges:
        if end > size and end > start:
            raise RangeNotSatisfied(
                f"({start}, {end}) ends past the end of the object of {size} bytes",
                total=size,
                operation="read_ranges",
                path=path,
            )
