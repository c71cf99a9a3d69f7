"""The scheduling loop: pages of all columns in row-major order, as fast as it can, without waiting for a byte.

After the document's "The scheduling loop": the column that covers the fewest rows so far schedules its next page,
whose reads get the priority of its first row. When every column has got further, the pages since then are a scan line,
and the decode loop may count on that many rows.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from aioprefetch.errors import copy_of
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo, PageT, ScanLine, ScanPart

# This many pages are scheduled before other tasks have a turn: some milliseconds. The reads of one turn are merged
# with knowledge of each other.
PAGES_PER_TURN = 1024

# A file with millions of pages is planned in stages: pages ahead of the decode loop take memory too, a KiB or two each.
PAGES_AHEAD_MAX = 32_768


def scan_lines(columns: Sequence[ColumnScheduler[PageT]], io: PageIo, rows: int) -> Iterator[ScanLine[PageT]]:
    """Schedule every page of ``columns``. Ties go by column index. Without columns ``rows`` rows are there at once.

    (The document leaves ties open: its implementation keeps a heap of rows alone. Its listing is in column order.)
    """
    heap = [(column.rows_scheduled, index) for index, column in enumerate(columns) if not column.is_finished]
    heapq.heapify(heap)
    pages: list[tuple[int, PageT]] = []
    while heap:
        covered, index = heap[0]
        column = columns[index]
        pages.append((index, column.schedule_next(io)))
        if column.is_finished:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (column.rows_scheduled, index))
        reached = heap[0][0] if heap else min(column.rows_scheduled for column in columns)
        if reached > covered:
            yield ScanLine(reached, pages)
            pages = []
    if not columns:
        yield ScanLine(rows, pages)
    elif pages:
        yield ScanLine(min(column.rows_scheduled for column in columns), pages)


class ScheduledPages:
    """The channel between the loops: parts, and the scan lines of each, in order; one producer, one consumer.

    The producer waits for ``room`` while more than ``pages_max`` pages lie here.
    """

    def __init__(self, *, pages_max: int = PAGES_AHEAD_MAX) -> None:
        self._pages_max = pages_max
        self._items: deque[ScanPart | ScanLine[Any]] = deque()
        self._pages = 0
        self._ended = False
        self._error: BaseException | None = None
        self._filled: asyncio.Future[None] | None = None
        self._emptied: asyncio.Future[None] | None = None

    def put(self, item: ScanPart | ScanLine[Any]) -> None:
        """Add one; never waits."""
        self._items.append(item)
        self._pages += len(item.pages) if isinstance(item, ScanLine) else 0
        resolve(self._filled)

    def end(self, error: BaseException | None = None) -> None:
        """End the channel, because all pages are scheduled or because of an error. Only the first call counts."""
        if not self._ended:
            self._ended, self._error = True, error
            resolve(self._filled)

    async def next(self) -> ScanPart | ScanLine[Any] | None:
        """The next one, ``None`` at the end; raises the error that ended it, after everything before was taken."""
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise copy_of(self._error)
                return None
            self._filled = asyncio.get_running_loop().create_future()
            await self._filled
        item = self._items.popleft()
        self._pages -= len(item.pages) if isinstance(item, ScanLine) else 0
        if self._pages <= self._pages_max:
            resolve(self._emptied)
        return item

    async def room(self) -> None:
        """Wait while more than ``pages_max`` pages lie here."""
        while self._pages > self._pages_max:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied


def resolve(future: asyncio.Future[None] | None) -> None:
    """Wake the task that waits for it, if there is one."""
    if future is not None and not future.done():
        future.set_result(None)


async def schedule_parts(
    parts: Sequence[ScanPart] | AsyncIterator[ScanPart], pages: ScheduledPages, *, pages_per_turn: int = PAGES_PER_TURN
) -> None:
    """Schedule part after part into ``pages``; an error ends the channel after the pages scheduled before it.

    It waits for no read. It lets other tasks have their turn after each part, since files that are in memory are opened
    without a wait, and after ``pages_per_turn`` pages, when it waits for room, too.
    """
    try:
        async with aclosing(each_part(parts)) as each:
            async for part in each:
                pages.put(part)
                scheduled = 0
                for line in scan_lines(part.columns, part.io, part.rows):
                    pages.put(line)
                    scheduled += len(line.pages)
                    if scheduled >= pages_per_turn:
                        scheduled = 0
                        await asyncio.sleep(0)
                        await pages.room()
                await asyncio.sleep(0)
    except Exception as error:
        pages.end(copy_of(error))
    finally:
        pages.end()


async def each_part(parts: Sequence[ScanPart] | AsyncIterator[ScanPart]) -> AsyncGenerator[ScanPart, None]:
    """The parts one after the other; an iterator of them is closed at the end."""
    if isinstance(parts, Sequence):
        for part in parts:
            yield part
        return
    try:
        async for part in parts:
            yield part
    finally:
        close = getattr(parts, "aclose", None)
        if close is not None:
            await close()
