"""Fields of a single column: numbers, strings, dictionaries, lists of fixed size, packed structs, blobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from aioprefetch.errors import Unexpected
from aioprefetch.lance.logical.columns import ColumnPages
from aioprefetch.lance.logical.portions import PrimitivePortion
from aioprefetch.lance.logical.protocols import RowMap, RowProgress
from aioprefetch.lance.output import AnyPage
from aioprefetch.lance.physical.blob import BlobDescriptors, BlobGroup
from aioprefetch.lance.physical.protocols import PageRows, PhysicalPageScheduler
from aioprefetch.lance.physical.reads import FollowUp, LoadingPage
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.scheduler.pages import PageIo

ValuePage = LoadingPage[AnyPage]


class BlobPage:
    """A page of blobs: its descriptors, and then ``pages`` of values of some megabytes each."""

    def __init__(self, scheduler: BlobDescriptors, ranges: RowRanges, io: PageIo, first: int, row_of: RowMap) -> None:
        self.rows = ranges.rows
        self.pages: list[ValuePage] | None = None
        self._descriptors: LoadingPage[list[BlobGroup]] = LoadingPage(scheduler, ranges, io, row_of(first))
        self._is_released = False
        self._planned = FollowUp(io, lambda: self._follow_up(io, first, row_of), name="lance blobs")

    def promote(self) -> None:
        """Promote the read of the descriptors, since a batch waits for them."""
        self._descriptors.promote()

    async def wait(self) -> None:
        """Wait until the pages of values are scheduled."""
        self.promote()
        await self._planned.wait()

    def release(self) -> None:
        """Release the reads of the page."""
        self._is_released = True
        self._descriptors.release()
        for page in self.pages or ():
            page.release()

    async def _follow_up(self, io: PageIo, first: int, row_of: RowMap) -> None:
        groups = await self._descriptors.arrive()
        self._descriptors.release()
        if not self._is_released:
            self.pages = list(self._schedule(groups, io, first, row_of))

    def _schedule(self, groups: list[BlobGroup], io: PageIo, first: int, row_of: RowMap) -> Iterator[ValuePage]:
        """Schedule the groups of values. The first is needed with the page; the others wait for room in the budget."""
        position = first
        for group in groups:
            scheduler = cast("PhysicalPageScheduler[AnyPage]", group)
            ranges, row = RowRanges.one(0, group.rows), row_of(position)
            yield LoadingPage(scheduler, ranges, io, row, is_follow_up=position == first)
            position += group.rows


@dataclass(frozen=True, slots=True)
class PrimitiveField:
    """A field of one column."""

    pages: ColumnPages

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.pages.rows

    def scheduler(self, ranges: RowRanges, row_of: RowMap) -> PrimitiveScheduler:
        """The pages of ``ranges``."""
        return PrimitiveScheduler(self.pages, ranges, row_of)

    def decoder(self) -> PrimitiveDecoder:
        """A decoder for the pages of one scheduler."""
        return PrimitiveDecoder()

    def portion(self) -> PrimitivePortion:
        """A portion for rows of its decoders."""
        return PrimitivePortion(self.pages.kind)


class PrimitiveScheduler(RowProgress):
    """Schedules the pages of one column with wanted rows, in order."""

    def __init__(self, pages: ColumnPages, ranges: RowRanges, row_of: RowMap) -> None:
        super().__init__(ranges.rows)
        if ranges.rows:
            pages.check(int(ranges.ends[-1]))
        self._pages = pages
        self._ranges = ranges
        self._row_of = row_of

    def schedule_next(self, io: PageIo) -> ValuePage | BlobPage:
        """Submit the reads of the next page."""
        first = self.rows_scheduled
        index = self._pages.page_at(self._ranges.row_at(first))
        wanted = self._pages.wanted(index, self._ranges)
        scheduler = self._pages.scheduler(index)
        self.rows_scheduled += wanted.rows
        if isinstance(scheduler, BlobDescriptors):
            return BlobPage(scheduler, wanted, io, first, self._row_of)
        return LoadingPage(cast("PhysicalPageScheduler[AnyPage]", scheduler), wanted, io, self._row_of(first))


class PrimitiveDecoder:
    """``LogicalDecoder`` of one column."""

    def __init__(self) -> None:
        self._pages: deque[ValuePage | BlobPage] = deque()
        self._taken = 0  # The number of rows taken of the first page.

    def accept(self, page: ValuePage | BlobPage) -> None:
        """Append a page of the scheduler."""
        self._pages.append(page)

    def promote(self, rows: int) -> None:
        """Promote the pages of the next rows."""
        covered = -self._taken
        for page in self._pages:
            if covered >= rows:
                return
            page.promote()
            covered += page.rows

    async def wait(self, rows: int) -> None:
        """Wait for the pages of the next rows."""
        self.promote(rows)
        index, covered = 0, -self._taken
        while covered < rows:
            page = self._at(index)
            if isinstance(page, BlobPage):
                await page.wait()
                self._open(index)
                self.promote(rows)
            else:
                await page.wait()
                covered += page.rows
                index += 1

    def loaded_rows(self, rows: int) -> int:
        """The number of rows before the first page that is not loaded."""
        index, covered = 0, -self._taken
        while covered < rows and index < len(self._pages):
            page = self._pages[index]
            if isinstance(page, BlobPage):
                if not self._open(index):
                    break
            elif page.is_loaded:
                covered += page.rows
                index += 1
            else:
                break
        return max(0, min(covered, rows))

    def size_bytes(self, rows: int) -> int:
        """The approximate size, summed over the pages."""
        return sum(page.decoder.size_bytes(skip, count) for page, skip, count in self._spans(rows))

    def take(self, rows: int, portion: PrimitivePortion) -> None:
        """Move the next rows to a portion, with the reads of the pages that end with them."""
        for page, skip, count in list(self._spans(rows)):
            is_last = skip + count == page.rows
            portion.add(PageRows(page.decoder, skip, count, is_last), page.reads if is_last else ())
            self._taken = skip + count
            if is_last:
                self._pages.popleft()
                self._taken = 0

    def close(self) -> None:
        """Release every page that was not taken."""
        for page in self._pages:
            page.release()
        self._pages.clear()

    def _spans(self, rows: int) -> Iterator[tuple[ValuePage, int, int]]:
        """The pages of the next ``rows`` rows: each with its taken rows and its share of the rows."""
        skip = self._taken
        index = 0
        while rows > 0:
            page = self._at(index)
            assert not isinstance(page, BlobPage), "a page that was not waited for"
            count = min(rows, page.rows - skip)
            yield page, skip, count
            rows -= count
            skip = 0
            index += 1

    def _open(self, index: int) -> bool:
        """Replace a page of blobs by its pages of values, if they are scheduled."""
        page = self._pages[index]
        assert isinstance(page, BlobPage)
        if page.pages is None:
            return False
        del self._pages[index]
        for offset, part in enumerate(page.pages):
            self._pages.insert(index + offset, part)
        return True

    def _at(self, index: int) -> ValuePage | BlobPage:
        if index >= len(self._pages):
            raise Unexpected("more rows were asked for than pages were scheduled", operation="scan")
        return self._pages[index]
