"""Fields of version 2.0: the protocols of fields of any depth, and the fields of a single column.

The protocols are a stateless plan, which makes schedulers and decoders. They follow the logical schedulers and decoders
of the format's documentation. A decoder fills *portions*, which are decoded together with rows of other pages; a
``FieldDecoder`` wraps the decoder of a top-level field.

A portion has drained rows that are not yet decoded, in a tree with the shape of the type. Decoders add rows of several
pages to a portion, so that the lists of these pages share one array of items.

A single column has numbers, strings, dictionaries, lists of fixed size, packed structs or blobs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from aioprefetch.errors import Unexpected, UntrustedMetadata
from aioprefetch.lance.output import (
    AnyPage,
    ArrayTask,
    ScheduledPages,
    arrow_buffer,
    assemble,
    dictionary,
    is_small_rest,
    next_rows,
)
from aioprefetch.lance.physical import encodings as enc
from aioprefetch.lance.physical.encodings import (
    PageBuffers,
    PageScheduler,
    blob_scheduler,
    list_scheduler,
    page_scheduler,
)
from aioprefetch.lance.physical.indirect import BlobDescriptors, BlobGroup, DictionaryRows
from aioprefetch.lance.physical.protocols import (
    PageRows,
    PhysicalPageScheduler,
    RowBits,
    check_offsets,
    concatenated,
    new_offsets,
)
from aioprefetch.lance.physical.reads import FollowUp, LoadingPage
from aioprefetch.lance.physical.strings import Ends, StoredEnds
from aioprefetch.lance.physical.value import BasicRows, NullRows
from aioprefetch.lance.schema import BLOB_DESCRIPTION
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.row_ranges import RowRanges
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo, PendingRead

if TYPE_CHECKING:
    from aioprefetch.lance.footer import LanceFile

# Up to this size copying and checking takes less time than a change of thread.
CHEAP_BYTES_MAX = 64 << 10


def task_of(portion: Portion) -> ArrayTask:
    """The task that decodes a portion."""
    return ArrayTask(portion.decode, portion.reads(), portion.is_cheap)


class PrimitivePortion:
    """Rows of pages of a single column."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._pieces: list[PageRows[AnyPage]] = []
        self._reads: list[PendingRead] = []

    def add(self, piece: PageRows[AnyPage], reads: Sequence[PendingRead]) -> None:
        """Add rows of a page, with the reads of the page if they are its last rows."""
        self._pieces.append(piece)
        self._reads.extend(reads)

    def decode(self) -> pa.Array:
        """The rows of one page as a slice, rows of several pages bridged into one array."""
        if not pa.types.is_dictionary(self._kind):
            return assemble(self._kind, self._pieces)
        dictionaries = [piece.page.items.array() for piece in self._pieces if isinstance(piece.page, DictionaryRows)]
        return dictionary(self._kind, self._pieces, dictionaries)

    def reads(self) -> list[PendingRead]:
        return self._reads

    @property
    def is_cheap(self) -> bool:
        """Whether the rows are a slice of one page of plain values, or small."""
        if any(not isinstance(piece.page, BasicRows | NullRows) for piece in self._pieces):
            return False
        if len(self._pieces) == 1 and not is_small_rest(self._pieces[0]):
            return True
        return sum(piece.page.size_bytes(piece.skip, piece.rows) for piece in self._pieces) <= CHEAP_BYTES_MAX


class ListPortion:
    """Rows of pages of lists. Their items are in another portion."""

    def __init__(self, kind: pa.DataType, items: Portion) -> None:
        self._kind = kind
        self._width = 8 if pa.types.is_large_list(kind) else 4
        self._pieces: list[PageRows[Ends]] = []
        self._reads: list[PendingRead] = []
        self.items = items

    def add(self, piece: PageRows[Ends], reads: Sequence[PendingRead]) -> None:
        """Add lists whose items were added to ``items``, with the reads of their page if they are its last lists."""
        self._pieces.append(piece)
        self._reads.extend(reads)

    def decode(self) -> pa.Array:
        """The lists as one array over the items of all pages."""
        rows = sum(piece.rows for piece in self._pieces)
        offsets = new_offsets(rows, self._width)
        flags = []
        items = at = 0
        for piece in self._pieces:
            start, end = piece.page.bounds(piece.skip, piece.rows)
            check_offsets(items + end - start, self._width)
            flags.append(piece.page.write(piece.skip, piece.rows, items, offsets[at + 1 : at + 1 + piece.rows]))
            items += end - start
            at += piece.rows
        validity = RowBits.of(concatenated(flags, [piece.rows for piece in self._pieces]))
        buffers = [arrow_buffer(validity.bits), arrow_buffer(offsets)]
        return pa.Array.from_buffers(self._kind, rows, buffers, children=[self.items.decode()])

    def reads(self) -> list[PendingRead]:
        return [*self._reads, *self.items.reads()]

    @property
    def is_cheap(self) -> bool:
        """Whether the lists are few and their items are cheap to decode."""
        return sum(piece.rows for piece in self._pieces) * 8 <= CHEAP_BYTES_MAX and self.items.is_cheap


class StructPortion:
    """Rows of a struct, with a portion of each child."""

    def __init__(self, kind: pa.DataType, children: Sequence[Portion]) -> None:
        self._kind = kind
        self.children = children
        self.rows = 0

    def decode(self) -> pa.Array:
        """The children's arrays as a struct without nulls."""
        arrays = [child.decode() for child in self.children]
        return pa.Array.from_buffers(self._kind, self.rows, [None], children=arrays)

    def reads(self) -> list[PendingRead]:
        return [read for child in self.children for read in child.reads()]

    @property
    def is_cheap(self) -> bool:
        return all(child.is_cheap for child in self.children)


# The drained rows of one field. ``reads`` belong to the pages that end with them; ``is_cheap`` says that ``decode``,
# which is safe on any thread, is too fast to be worth another one.
Portion = PrimitivePortion | ListPortion | StructPortion


# --- protocols --------------------------------------------------------------------------------------------------------

# Maps a position among the wanted rows of a field to the top-level row of the scan that it belongs to.
RowMap = Callable[[int], int]


class LogicalDecoder(ScheduledPages[Any], Protocol):
    """The decoder of one field, or of the items of a list."""

    def take(self, rows: int, portion: Any) -> None:
        """Move the next ``rows`` rows, which are loaded, to a portion of the field."""


class LogicalField(Protocol):
    """One field of a file, or the items of a list. Stateless: the follow-up tasks of list pages share it."""

    @property
    def rows(self) -> int:
        """The number of rows, or items."""

    def scheduler(self, ranges: RowRanges, row_of: RowMap) -> ColumnScheduler[Any]:
        """The pages of ``ranges``. ``UntrustedMetadata`` if the field has fewer rows."""

    def decoder(self) -> LogicalDecoder:
        """A decoder that accepts the pages of one scheduler."""

    def portion(self) -> Portion:
        """A portion to which the decoders of this field move their rows."""


class RowProgress:
    """Counts the rows of a ``ColumnScheduler``: ``rows`` are wanted, ``rows_scheduled`` are scheduled."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rows_scheduled = 0

    @property
    def is_finished(self) -> bool:
        return self.rows_scheduled >= self._rows


# --- pages of a column ------------------------------------------------------------------------------------------------


class ColumnPages:
    """The pages of a column in row order, without empty ones. All schedulers of the column share them."""

    def __init__(self, file: LanceFile, index: int, kind: pa.DataType) -> None:
        self.kind = kind
        self._column = file.column(index)
        self._index = index
        self._file = file
        self._pages = [page for page in self._column.pages if page.rows]
        self._starts: list[int] = []
        self.rows = 0
        for page in self._pages:
            self._starts.append(self.rows)
            self.rows += page.rows
        if self.rows > OFFSET_MAX:
            raise UntrustedMetadata(f"column {index} claims {self.rows} rows")
        self.is_blob = enc.is_blob_column(self._column.encoding, self._column.type_url)
        self._built: dict[int, PageScheduler | BlobDescriptors] = {}
        self._lists: dict[int, StoredEnds] = {}
        self._item_starts: list[int] = [0]

    def check(self, rows: int) -> None:
        """Raise ``UntrustedMetadata`` if the column has fewer than ``rows`` rows."""
        if rows > self.rows:
            raise UntrustedMetadata(f"column {self._index} has {self.rows} rows, and row {rows - 1} is wanted")

    def page_at(self, row: int) -> int:
        """The page that holds a row."""
        return bisect_right(self._starts, row) - 1

    def wanted(self, page: int, ranges: RowRanges) -> RowRanges:
        """The part of ``ranges`` in a page, counted from the first row of the page."""
        start = self._starts[page]
        return ranges.within(start, start + self._pages[page].rows)

    def page_rows(self, page: int) -> int:
        """The number of rows of the page."""
        return self._pages[page].rows

    def encoding(self, page: int) -> enc.Encoding:
        """The encoding of a page."""
        return enc.parse_encoding(self._pages[page].encoding, self._pages[page].type_url)

    def scheduler(self, page: int) -> PageScheduler | BlobDescriptors:
        """The scheduler of a page of values. ``UntrustedMetadata`` or ``Unsupported`` for its encoding."""
        scheduler = self._built.get(page)
        if scheduler is None:
            encoding, buffers, rows = self.encoding(page), self._buffers(page), self._pages[page].rows
            if self.is_blob and self.kind != BLOB_DESCRIPTION:
                scheduler = blob_scheduler(self.kind, encoding, buffers, rows, self._file.size)
            else:
                scheduler = page_scheduler(self.kind, encoding, buffers, rows)
            self._built[page] = scheduler
        return scheduler

    def list_scheduler(self, page: int) -> StoredEnds:
        """The scheduler of the ends of a page of lists."""
        scheduler = self._lists.get(page)
        if scheduler is None:
            scheduler = list_scheduler(self.encoding(page), self._buffers(page), self._pages[page].rows)
            self._lists[page] = scheduler
        return scheduler

    def first_item(self, page: int) -> int:
        """The number of the first item of a page of lists: the number of items in the pages before it."""
        starts = self._item_starts
        while len(starts) <= page:
            starts.append(starts[-1] + self.list_scheduler(len(starts) - 1).content_size)
        return starts[page]

    def _buffers(self, page: int) -> PageBuffers:
        return PageBuffers(self._pages[page].buffers, self._column.buffers, self._file.global_buffers)


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


# --- fields of a single column ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrimitiveField:
    """A field of one column."""

    pages: ColumnPages

    @property
    def rows(self) -> int:
        return self.pages.rows

    def scheduler(self, ranges: RowRanges, row_of: RowMap) -> PrimitiveScheduler:
        return PrimitiveScheduler(self.pages, ranges, row_of)

    def decoder(self) -> PrimitiveDecoder:
        return PrimitiveDecoder()

    def portion(self) -> PrimitivePortion:
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
        self._pages.append(page)

    def promote(self, rows: int) -> None:
        covered = -self._taken
        for page in self._pages:
            if covered >= rows:
                return
            page.promote()
            covered += page.rows

    async def wait(self, rows: int) -> None:
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
        for page in self._pages:
            page.release()
        self._pages.clear()

    def _spans(self, rows: int) -> Iterator[tuple[ValuePage, int, int]]:
        for page, skip, count in next_rows(self._pages, self._taken, rows):
            assert not isinstance(page, BlobPage), "a page that was not waited for"
            yield page, skip, count

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
