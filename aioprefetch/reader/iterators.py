"""The iterators of a RangeReader: objects with ``aclose`` and ``async with``; leaving one early gives all back."""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from aioprefetch.blocks.accounting import tier_of
from aioprefetch.blocks.fetch import Wait
from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.ranges import MergedRange, Range
from aioprefetch.reader.pinned_object import PinnedObject
from aioprefetch.reader.window import Session
from aioprefetch.runtime.statistics import Tier

if TYPE_CHECKING:
    from aioprefetch.reader.range_reader import RangeReader


@dataclass(frozen=True, slots=True)
class RangePlan:
    """What a RangeIterator does: ranges of an object, and the requests they were merged into.

    ``tier``: what it has waited for already.
    """

    pinned: PinnedObject
    ranges: Sequence[Range]
    merged: Sequence[MergedRange]
    tier: Tier


class RangeIterator:
    """Yields ``(position in the list, bytes)`` as ranges complete. Results are copies: none pins a merged buffer.

    Nothing is sent before the first result is awaited. A failed request fails the iteration when its turn comes;
    ranges of requests that completed before come first, and whoever goes on afterwards gets the others. Several tasks
    may consume one iterator, in turns; one that is cancelled takes no result with it.
    """

    def __init__(self, reader: RangeReader, prepare: Callable[[], Awaitable[RangePlan]]) -> None:
        self._reader = reader
        self._prepare = prepare
        self._plan: RangePlan | None = None
        self._pending: deque[MergedRange] = deque()
        self._active: list[tuple[MergedRange, list[Wait]]] = []
        self._ready: deque[tuple[int, bytes]] = deque()
        self._turn = asyncio.Lock()
        self._closed = False

    def __aiter__(self) -> RangeIterator:
        return self

    async def __anext__(self) -> tuple[int, bytes]:
        if self._plan is not None:  # A foreign loop must not even queue.
            self._plan.pinned.runtime.check_loop(operation="read_ranges", path=self._plan.pinned.path)
        async with self._turn:
            return await self._reader._guarded(self._next())

    async def _next(self) -> tuple[int, bytes]:
        if self._plan is None and not self._closed:
            self._plan = plan = await self._prepare()
            self._pending.extend(plan.merged)
            self._ready.extend((index, b"") for index, (start, end) in enumerate(plan.ranges) if start == end)
        while not self._ready:
            if self._plan is None or not (self._pending or self._active):
                raise StopAsyncIteration
            self._start(self._plan.pinned)
            if not self._active:
                await self._copy(self._plan, self._pending.popleft())
                continue
            if not any(_is_done(waits) for _, waits in self._active):
                late = [wait for _, waits in self._active for wait in waits if not wait.future.done()]
                await self._plan.pinned.first_completed(late)
            await self._collect(self._plan)
        return self._ready.popleft()

    def _start(self, pinned: PinnedObject) -> None:
        while self._pending and self._pending[0].size <= pinned.request_bytes_max:
            piece = self._pending[0]
            in_flight = sum(active.size for active, _ in self._active)
            if not pinned.has_room(len(self._active), in_flight, (piece.start, piece.end)):
                return
            self._pending.popleft()
            self._active.append((piece, pinned.ask(piece.start, piece.end, fill="exact")))

    async def _copy(self, plan: RangePlan, piece: MergedRange) -> None:
        """A range too large to lie in memory as a whole, or evicted before its turn, step by step."""
        collected = io.BytesIO()
        try:
            tier = await plan.pinned.copy(piece.start, piece.end, collected.write)
            if collected.tell() < piece.size:
                raise RangeNotSatisfied(
                    f"a range ends past the end of the object of {plan.pinned.size} bytes",
                    total=plan.pinned.size,
                    operation="read_ranges",
                    path=plan.pinned.path,
                )
        except asyncio.CancelledError:
            self._pending.appendleft(piece)  # For whoever asks for the next result.
            raise
        if not self._closed:
            self._deliver(plan, piece, [memoryview(collected.getvalue())], tier)

    async def _collect(self, plan: RangePlan) -> None:
        """The first request that has ended. One alone: if it failed, what others brought is not lost with it."""
        entry = next((one for one in self._active if _is_done(one[1])), None)
        if entry is None:  # Closed meanwhile.
            return
        piece, waits = entry
        try:
            found = await plan.pinned.arrived(piece.start, piece.end, waits)
            if found is None:
                plan.pinned.release(waits)  # Pinned bytes must not keep others from the memory that is needed now.
                await self._copy(plan, piece)
            else:
                self._deliver(plan, piece, found, tier_of(waits))
        finally:
            if entry in self._active:
                self._active.remove(entry)
                plan.pinned.release(waits)

    def _deliver(self, plan: RangePlan, piece: MergedRange, found: list[memoryview], tier: Tier) -> None:
        whole = found[0] if len(found) == 1 else memoryview(b"".join(found))
        for member in piece.members:
            start, end = plan.ranges[member]
            self._ready.append((member, bytes(whole[start - piece.start : end - piece.start])))
        self._reader._count_delivered(
            sum(len(self._ready[-1 - i][1]) for i in range(len(piece.members))), max(tier, plan.tier)
        )

    async def aclose(self) -> None:
        """Give up what is not delivered yet: nobody waits for it any more."""
        self._closed = True
        self._pending.clear()
        self._ready.clear()
        if self._plan is not None:
            for _, waits in self._active:
                for wait in waits:
                    wait.future.cancel()  # Another task may be waiting for the next result.
                self._plan.pinned.release(waits)
        self._active.clear()
        self._plan = None

    async def __aenter__(self) -> RangeIterator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class ChunkIterator:
    """Yields the bytes from the cursor on in chunks, and moves the cursor; blocks ahead are fetched meanwhile.

    Left before its end, by ``aclose`` or ``async with``, it breaks off what is fetched ahead.
    """

    def __init__(self, reader: RangeReader, chunk_bytes: int) -> None:
        self._reader = reader
        self._chunk_bytes = chunk_bytes
        self._begun = False
        self._closed = False
        self._run: Session | None = None
        self._position = 0

    def __aiter__(self) -> ChunkIterator:
        return self

    async def __anext__(self) -> bytes:
        if self._closed:
            raise StopAsyncIteration
        return await self._next()

    async def _next(self) -> bytes:
        if not self._begun:
            self._run = self._reader._expect_run()
            self._begun = True
        chunk = await self._reader.read(self._chunk_bytes)
        if not chunk:
            self._closed = True
            raise StopAsyncIteration
        self._position = self._reader.tell()
        if self._closed:  # Closed while it waited for this chunk.
            self._reader._leave_run(self._run, self._position)
        return chunk

    async def aclose(self) -> None:
        """End the iteration; the reader stays open, its cursor after the last chunk delivered.

        Requests for what lies ahead are broken off, and their memory comes back; what has arrived stays.
        """
        if self._begun and not self._closed:
            self._reader._leave_run(self._run, self._position)
        self._closed = True

    async def __aenter__(self) -> ChunkIterator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _is_done(waits: Sequence[Wait]) -> bool:
    return all(wait.future.done() for wait in waits)
