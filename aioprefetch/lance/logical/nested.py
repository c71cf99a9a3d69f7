"""Fields of version 2.0 with children: lists and structs.

**Lists** have a column with their ends, and other columns with the items. The items of some lists are known only from
their ends, which makes the read indirect: a task schedules the items when the ends have arrived. If all lists of a page
are wanted, the metadata of the page gives the items, and everything is scheduled at once.

**Structs** without nulls have no column of interest, their children have. Errors of a top-level field name the field
and the file. Errors of numpy and Arrow become ``UntrustedMetadata``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.logical.fields import (
    ColumnPages,
    ListPortion,
    LogicalDecoder,
    LogicalField,
    RowMap,
    RowProgress,
    StructPortion,
    task_of,
)
from aioprefetch.lance.output import ArrayTask, WrappedColumn, blamed_on, next_rows
from aioprefetch.lance.physical.protocols import PageRows
from aioprefetch.lance.physical.reads import FollowUp, LoadingPage
from aioprefetch.lance.physical.strings import Ends, StoredEnds
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo, PendingRead


@dataclass(frozen=True, slots=True)
class _FollowUpIo:
    """The ``PageIo`` of a follow-up task. Reads of its first row are the second step of a read that was admitted."""

    io: PageIo
    row: int

    @property
    def size(self) -> int:
        return self.io.size

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> PendingRead:
        return self.io.submit(ranges, row, is_follow_up=is_follow_up or row <= self.row)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        self.io.spawn(work, name=name)


class LoadingListPage:
    """The wanted lists of one page: their ends and, once the items are scheduled, a decoder of the items."""

    def __init__(
        self,
        ends: StoredEnds,
        wanted: RowRanges,
        items: LogicalField,
        first_item: int,
        io: PageIo,
        row_of: RowMap,
    ) -> None:
        """``row_of`` takes positions among the page's wanted lists; ``first_item`` counts the column's items."""
        self.rows = wanted.rows
        self.items: LogicalDecoder | None = None
        self._field = items
        self._first_item = first_item
        self._count = ends.content_size
        self._is_released = False
        self._ends: LoadingPage[tuple[Ends, RowRanges]] = LoadingPage(ends, wanted, io, row_of(0))
        self._planned: FollowUp | None = None
        if first_item + self._count > items.rows:
            raise UntrustedMetadata(f"lists end at item {first_item + self._count} of {items.rows}")
        if wanted.is_whole(ends.rows):
            ranges = RowRanges.one(first_item, first_item + self._count)
            rows, count = self.rows, self._count
            self._schedule(ranges, io, lambda position: row_of(position * rows // count))
        else:
            self._planned = FollowUp(io, lambda: self._follow_up(io, row_of), name="lance list items")

    @property
    def ends(self) -> Ends:
        """The loaded ends of the lists. Requires ``has_ends``."""
        return self._ends.decoder[0]

    @property
    def reads(self) -> list[PendingRead]:
        return self._ends.reads

    @property
    def has_ends(self) -> bool:
        """Whether the ends have arrived and the items are scheduled."""
        return self._ends.is_loaded and self.items is not None

    def promote(self, skip: int, rows: int) -> None:
        """Promote the reads of these lists, since a batch waits for them."""
        self._ends.promote()
        if self.items is None:
            return
        if self._ends.is_loaded:
            self.items.promote(self.item_count(skip, rows))
        else:  # The number of items is unknown until the ends are loaded, so it is estimated.
            self.items.promote(-(-self._count * (skip + rows) // self.rows))

    async def wait(self, skip: int, rows: int) -> None:
        self._ends.promote()
        if self._planned is not None:
            await self._planned.wait()
        await self._ends.wait()
        assert self.items is not None
        await self.items.wait(self.item_count(skip, rows))

    def item_count(self, skip: int, rows: int) -> int:
        """The number of items of these lists."""
        start, end = self.ends.bounds(skip, rows)
        return end - start

    def loaded_rows(self, skip: int, rows: int) -> int:
        """The number of the next lists whose items are all loaded."""
        if not self.has_ends:
            return 0
        assert self.items is not None
        count = self.item_count(skip, rows)
        loaded = self.items.loaded_rows(count)
        if loaded >= count:
            return rows
        fits, exceeds = 0, rows
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            if self.item_count(skip, middle) <= loaded:
                fits = middle
            else:
                exceeds = middle
        return fits

    def release(self) -> None:
        self._is_released = True
        self._ends.release()
        if self.items is not None:
            self.items.close()

    def _schedule(self, ranges: RowRanges, io: PageIo, row_of: RowMap) -> None:
        decoder = self._field.decoder()
        scheduler = self._field.scheduler(ranges, row_of)
        while not scheduler.is_finished:
            decoder.accept(scheduler.schedule_next(io))
        self.items = decoder

    async def _follow_up(self, io: PageIo, row_of: RowMap) -> None:
        ends, contents = await self._ends.arrive()
        if not self._is_released:
            ranges = RowRanges(contents.starts + self._first_item, contents.ends + self._first_item)
            row_at = ends.row_finder()
            last = self.rows - 1
            self._schedule(ranges, _FollowUpIo(io, row_of(0)), lambda position: row_of(min(row_at(position), last)))


@dataclass(frozen=True, slots=True)
class ListField:
    """A field of lists."""

    pages: ColumnPages
    items: LogicalField
    kind: pa.DataType

    @property
    def rows(self) -> int:
        return self.pages.rows

    def scheduler(self, ranges: RowRanges, row_of: RowMap) -> ListScheduler:
        return ListScheduler(self, ranges, row_of)

    def decoder(self) -> ListDecoder:
        return ListDecoder(self.kind)

    def portion(self) -> ListPortion:
        return ListPortion(self.kind, self.items.portion())


class ListScheduler(RowProgress):
    """Schedules the pages with wanted lists, in order. Their items are scheduled with them or by follow-up tasks."""

    def __init__(self, field: ListField, ranges: RowRanges, row_of: RowMap) -> None:
        super().__init__(ranges.rows)
        if ranges.rows:
            field.pages.check(int(ranges.ends[-1]))
        self._field = field
        self._ranges = ranges
        self._row_of = row_of

    def schedule_next(self, io: PageIo) -> LoadingListPage:
        first, row_of, pages = self.rows_scheduled, self._row_of, self._field.pages
        index = pages.page_at(self._ranges.row_at(first))
        wanted = pages.wanted(index, self._ranges)
        self.rows_scheduled += wanted.rows
        ends, first_item = pages.list_scheduler(index), pages.first_item(index)
        return LoadingListPage(
            ends, wanted, self._field.items, first_item, io, lambda position: row_of(first + position)
        )


class ListDecoder:
    """``LogicalDecoder`` of lists. Each page has a decoder of its items."""

    def __init__(self, kind: pa.DataType) -> None:
        self._width = 8 if pa.types.is_large_list(kind) else 4
        self._pages: deque[LoadingListPage] = deque()
        self._taken = 0  # The number of rows taken of the first page.

    def accept(self, page: LoadingListPage) -> None:
        self._pages.append(page)

    def promote(self, rows: int) -> None:
        """Promote the ends of the next lists, and the scheduled ones of their items."""
        for page, skip, count in self._spans(rows):
            page.promote(skip, count)

    async def wait(self, rows: int) -> None:
        self.promote(rows)
        for page, skip, count in list(self._spans(rows)):
            await page.wait(skip, count)

    def loaded_rows(self, rows: int) -> int:
        """The number of lists before the first that is not completely loaded."""
        loaded = 0
        available = min(rows, sum(page.rows for page in self._pages) - self._taken)
        for page, skip, count in self._spans(available):
            ready = page.loaded_rows(skip, count)
            loaded += ready
            if ready < count:
                break
        return loaded

    def size_bytes(self, rows: int) -> int:
        size = rows * self._width
        for page, skip, count in self._spans(rows):
            assert page.items is not None
            size += page.items.size_bytes(page.item_count(skip, count))
        return size

    def take(self, rows: int, portion: ListPortion) -> None:
        """Move the next lists to a portion, and their items to the portion of the items."""
        for page, skip, count in list(self._spans(rows)):
            assert page.items is not None
            is_last = skip + count == page.rows
            page.items.take(page.item_count(skip, count), portion.items)
            portion.add(PageRows(page.ends, skip, count, is_last), page.reads if is_last else ())
            self._taken = skip + count
            if is_last:
                page.items.close()
                self._pages.popleft()
                self._taken = 0

    def close(self) -> None:
        for page in self._pages:
            page.release()
        self._pages.clear()

    def _spans(self, rows: int) -> Iterator[tuple[LoadingListPage, int, int]]:
        return next_rows(self._pages, self._taken, rows)


# --- structs ----------------------------------------------------------------------------------------------------------

# Pages of children, each with the index of the child.
StructPage = list[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class StructField:
    """A struct of other fields, all of the same ``rows``."""

    children: Sequence[LogicalField]
    kind: pa.DataType
    rows: int

    def scheduler(self, ranges: RowRanges, row_of: RowMap) -> StructScheduler:
        return StructScheduler([child.scheduler(ranges, row_of) for child in self.children], ranges.rows)

    def decoder(self) -> StructDecoder:
        return StructDecoder([child.decoder() for child in self.children])

    def portion(self) -> StructPortion:
        return StructPortion(self.kind, [child.portion() for child in self.children])


class StructScheduler(RowProgress):
    """Schedules the pages of the children in row-major order."""

    def __init__(self, children: Sequence[ColumnScheduler[Any]], rows: int) -> None:
        self._children = children
        super().__init__(rows)

    def schedule_next(self, io: PageIo) -> StructPage:
        """Schedule pages until the number of scheduled rows grows for every child."""
        if not self._children:
            self.rows_scheduled = self._rows
            return []
        pages: StructPage = []
        covered = self.rows_scheduled
        while self.rows_scheduled <= covered and not self.is_finished:
            for index, child in enumerate(self._children):
                if child.rows_scheduled <= covered:
                    pages.append((index, child.schedule_next(io)))
            self.rows_scheduled = min(child.rows_scheduled for child in self._children)
        return pages


class StructDecoder:
    """The decoders of the children, side by side."""

    def __init__(self, children: Sequence[LogicalDecoder]) -> None:
        self._children = children

    def accept(self, page: StructPage) -> None:
        for index, part in page:
            self._children[index].accept(part)

    def promote(self, rows: int) -> None:
        for child in self._children:
            child.promote(rows)

    async def wait(self, rows: int) -> None:
        self.promote(rows)
        for child in self._children:
            await child.wait(rows)

    def loaded_rows(self, rows: int) -> int:
        for child in self._children:
            rows = min(rows, child.loaded_rows(rows))
        return rows

    def size_bytes(self, rows: int) -> int:
        return sum(child.size_bytes(rows) for child in self._children)

    def take(self, rows: int, portion: StructPortion) -> None:
        for child, part in zip(self._children, portion.children, strict=True):
            child.take(rows, part)
        portion.rows += rows

    def close(self) -> None:
        for child in self._children:
            child.close()


# --- top-level fields -------------------------------------------------------------------------------------------------


class TopScheduler(WrappedColumn):
    """The scheduler of a top-level field. Its errors name the field."""

    def __init__(self, scheduler: ColumnScheduler[Any], name: str, path: str) -> None:
        super().__init__(scheduler)
        self._name = name
        self._path = path

    def schedule_next(self, io: PageIo) -> Any:
        with blamed_on(self._name, self._path):
            return super().schedule_next(io)


@dataclass(frozen=True, slots=True)
class _Decode:
    task: ArrayTask
    name: str
    path: str

    def __call__(self) -> pa.Array:
        with blamed_on(self.name, self.path):
            return self.task.decode()


class TopDecoder:
    """``FieldDecoder`` of a field of version 2.0."""

    def __init__(self, field: LogicalField, name: str, path: str) -> None:
        self._field = field
        self._decoder = field.decoder()
        self._name = name
        self._path = path

    def accept(self, page: Any) -> None:
        self._decoder.accept(page)

    def promote(self, rows: int) -> None:
        with blamed_on(self._name, self._path):
            self._decoder.promote(rows)

    async def wait(self, rows: int) -> None:
        with blamed_on(self._name, self._path):
            await self._decoder.wait(rows)

    def loaded_rows(self, rows: int) -> int:
        with blamed_on(self._name, self._path):
            return self._decoder.loaded_rows(rows)

    def size_bytes(self, rows: int) -> int:
        with blamed_on(self._name, self._path):
            return self._decoder.size_bytes(rows)

    def drain(self, rows: int) -> ArrayTask:
        with blamed_on(self._name, self._path):
            portion = self._field.portion()
            self._decoder.take(rows, portion)
            task = task_of(portion)
        return ArrayTask(_Decode(task, self._name, self._path), task.spent, task.is_cheap)

    def close(self) -> None:
        self._decoder.close()
