"""The reads of a page between its scheduling and its decoding.

``LoadingPage`` holds the pending reads, and the task of an indirect read. The functions join the views of responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar, overload

import numpy as np

from aioprefetch.errors import Closed, UntrustedMetadata, copy_of
from aioprefetch.lance.physical.protocols import Bytes, PhysicalPageScheduler
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges
from aioprefetch.scheduler.pages import PageIo, PendingRead
from aioprefetch.scheduler.pending_read import QueuedRead, Stretch

# At least this number of responses, of at most this average size, are copied together by one index of all their bytes.
_GATHERED_MIN = 256
_GATHERED_BYTES_MAX = 64
# The number of responses that one index covers: it takes eight times the memory of their bytes.
_GATHERED_TOGETHER = 1 << 14


class Gathered(Sequence[memoryview]):
    """Responses back to back in ``data``. The view of a response is made when it is used."""

    def __init__(self, data: Bytes, bounds: Sequence[int]) -> None:
        self.data = data
        self.bounds = bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.data.data[self.bounds[index] : self.bounds[index + 1]]

    def __iter__(self) -> Responses:
        return Responses([self])


class Responses(Iterator[memoryview]):
    """The responses to several plans, taken one by one or several at once."""

    def __init__(self, plans: Sequence[Sequence[memoryview]]) -> None:
        self._plans = plans
        self._plan = 0
        self._index = 0

    def __next__(self) -> memoryview:
        while self._plan < len(self._plans):
            if self._index < len(self._plans[self._plan]):
                self._index += 1
                return self._plans[self._plan][self._index - 1]
            self._plan, self._index = self._plan + 1, 0
        raise StopIteration

    def gathered(self, count: int) -> Bytes | None:
        """The next ``count`` responses without a copy, if they are back to back; otherwise ``None``."""
        while self._plan < len(self._plans) and self._index == len(self._plans[self._plan]):
            self._plan, self._index = self._plan + 1, 0
        if self._plan == len(self._plans):
            return None
        plan, end = self._plans[self._plan], self._index + count
        if not isinstance(plan, Gathered) or end > len(plan):
            return None
        data = plan.data[plan.bounds[self._index] : plan.bounds[end]]
        self._index = end
        return data


def gathered(ranges: Sequence[Range], stretches: Sequence[Stretch]) -> Gathered | None:
    """The responses to ``ranges`` (some may be empty), copied together; ``None`` if views are cheaper."""
    counted = sum(len(starts) for starts, _, _, _ in stretches)
    bounds = np.zeros(len(ranges) + 1, np.int64)
    if counted < _GATHERED_MIN:
        return None
    np.cumsum(np.fromiter((end - start for start, end in ranges), np.int64, len(ranges)), out=bounds[1:])
    if bounds[-1] > _GATHERED_BYTES_MAX * counted:
        return None
    parts = [part for stretch in stretches for part in _copied(*stretch)]
    data = np.concatenate(parts)
    if data.size != bounds[-1]:
        raise UntrustedMetadata("a read brought another number of bytes than was asked for")
    return Gathered(data, bounds.tolist())


def _copied(starts: Sequence[int], ends: Sequence[int], base: int, view: memoryview) -> Iterator[Bytes]:
    data = np.frombuffer(view, np.uint8)
    for first in range(0, len(starts), _GATHERED_TOGETHER):
        places = np.array(starts[first : first + _GATHERED_TOGETHER], np.int64) - base
        sizes = np.array(ends[first : first + _GATHERED_TOGETHER], np.int64) - base - places
        before = np.cumsum(sizes) - sizes
        yield data[np.repeat(places - before, sizes) + np.arange(int(sizes.sum()))]


def joined(reads: Iterator[memoryview], count: int) -> Bytes:
    """The next ``count`` responses as one array. A single response is not copied."""
    together = reads.gathered(count) if isinstance(reads, Responses) else None
    if together is not None:
        return together
    if count == 1:
        return np.frombuffer(next(reads), np.uint8)
    return np.frombuffer(b"".join(islice(reads, count)), np.uint8)


def check_fits(needed_bytes: int, buffer: Range, what: str) -> None:
    """Raise ``UntrustedMetadata`` if a buffer is smaller than the content that its page claims."""
    if needed_bytes > buffer[1] - buffer[0]:
        raise UntrustedMetadata(f"{what} need {needed_bytes} bytes and have {buffer[1] - buffer[0]}")


DecodedT = TypeVar("DecodedT")

_NOTHING = memoryview(b"")


class _Submission:
    """One submission of byte ranges; empty ones are not sent."""

    def __init__(self, ranges: Sequence[Range], row: int, io: PageIo, *, is_follow_up: bool) -> None:
        self._ranges = ranges
        wanted = [span for span in ranges if span[1] > span[0]]
        self.pending: PendingRead | None = io.submit(wanted, row, is_follow_up=is_follow_up) if wanted else None

    @property
    def done(self) -> bool:
        return self.pending is None or self.pending.done

    def promote(self) -> None:
        if self.pending is not None:
            self.pending.promote()

    async def arrive(self) -> None:
        if self.pending is not None:
            await self.pending.arrive()

    def views(self) -> Sequence[memoryview]:
        if isinstance(self.pending, QueuedRead):
            together = gathered(self._ranges, self.pending.stretches)
            if together is not None:
                return together
        received: Iterator[memoryview] = iter(()) if self.pending is None else iter(self.pending.views)
        views = [next(received) if end > start else _NOTHING for start, end in self._ranges]
        if any(len(view) != end - start for view, (start, end) in zip(views, self._ranges, strict=True)):
            raise UntrustedMetadata("a read brought another number of bytes than was asked for")
        return views


class FollowUp:
    """The second step of an indirect read, run by a task. Waiters get its error."""

    def __init__(self, io: PageIo, work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        io.spawn(self._run(work), name=name)

    @property
    def is_planned(self) -> bool:
        """Whether it ended without an error."""
        return self._ended.is_set() and self._error is None

    async def wait(self) -> None:
        """Wait until it ends. Raises its error."""
        await self._ended.wait()
        if self._error is not None:
            raise copy_of(self._error)

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            self._error = Closed("the scan was closed", operation="scan")
            raise
        except Exception as error:
            self._error = copy_of(error)
        finally:
            self._ended.set()


class LoadingPage(Generic[DecodedT]):
    """The rows ``ranges`` of one page, from scheduling to decoding. Not thread-safe: it belongs to the event loop.

    ``row`` is the top-level row of its first row, which is the priority of its reads. For an indirect page a task
    submits the second step when the first has arrived.
    """

    def __init__(
        self,
        scheduler: PhysicalPageScheduler[DecodedT],
        ranges: RowRanges,
        io: PageIo,
        row: int,
        *,
        is_follow_up: bool = False,
    ) -> None:
        self.rows = ranges.rows
        self._scheduler = scheduler
        self._ranges = ranges
        self._decoder: DecodedT | None = None
        self._error: BaseException | None = None
        self._is_wanted = self._is_released = False
        self._reads = [_Submission(scheduler.plan(ranges), row, io, is_follow_up=is_follow_up)]
        self._second: FollowUp | None = None
        if scheduler.is_indirect(ranges):
            self._second = FollowUp(io, lambda: self._follow_up(io, row), name="lance indirect read")

    @property
    def reads(self) -> list[PendingRead]:
        """The reads to release when the page is drained."""
        return [read.pending for read in self._reads if read.pending is not None]

    @property
    def decoder(self) -> DecodedT:
        """The loaded rows. Requires ``is_loaded``, which is true after ``wait``."""
        assert self._decoder is not None
        return self._decoder

    @property
    def is_loaded(self) -> bool:
        """Whether all bytes have arrived and form a valid page."""
        is_planned = self._second is None or self._second.is_planned
        if self._decoder is None and self._error is None and is_planned and all(r.done for r in self._reads):
            try:
                self._decode()
            except Exception as error:
                self._error = copy_of(error)  # ``wait`` raises it.
        return self._decoder is not None

    def promote(self) -> None:
        """Promote the reads of this page, of the second step too: a batch waits for them."""
        if not self._is_wanted and self._decoder is None:
            self._is_wanted = True
            for read in self._reads:
                read.promote()

    async def wait(self) -> DecodedT:
        """Promote the reads and wait for the bytes. Raises the error of a failed read or of the page."""
        self.promote()
        return await self.arrive()

    async def arrive(self) -> DecodedT:
        """Wait for the bytes without promoting the reads. Raises as ``wait`` does."""
        if self._decoder is None:
            if self._second is not None:
                await self._second.wait()
            if self._error is not None:
                raise copy_of(self._error)
            for read in self._reads:
                await read.arrive()
            if self._decoder is None:
                self._decode()
        return self.decoder

    def release(self) -> None:
        """Release the reads. A running second step submits no more reads."""
        self._is_released = True
        for read in self.reads:
            read.release()

    def _decode(self) -> None:
        responses = Responses([read.views() for read in self._reads])
        self._decoder = self._scheduler.decoder(self._ranges, responses)

    async def _follow_up(self, io: PageIo, row: int) -> None:
        await self._reads[0].arrive()
        if not self._is_released:
            rest = self._scheduler.follow_up(self._ranges, self._reads[0].views())
            second = _Submission(rest, row, io, is_follow_up=True)
            self._reads.append(second)
            if self._is_wanted:
                second.promote()
