"""Columns whose chunks are read whole, decoded row by row by pyarrow's one reader for some row groups.

The chunks of a small row group are read with one submission: to schedule hundreds of chunks of a few KiB one by one
would take more time than to receive and decode them.

A chunk larger than a segment is read in pieces, and the memory of decoded pieces is released in pieces, so that a row
group larger than the memory budget streams through it. The row at which a segment begins is an estimate, and so is its
priority. When decoding needs a segment that is not scheduled yet, it is submitted at once.

pyarrow decodes a chunk page by page, and touches a page only when it needs a row of it. Rows can therefore be decoded
while the rest of the chunk is still to come. ``PageWalk`` follows the page headers as the bytes arrive.

* Leaves outside lists: pyarrow touches a page with its first row; the values of its header are rows.
* Leaves within lists: the end of a record shows at the beginning of the next record, so the page behind the row's
  must have arrived too. Pages of version 2 have a number of rows, pages of version 1 do not: such a chunk is decoded
  when all of it has arrived, and is kept until its last row was decoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any

import pyarrow as pa

from aioprefetch.errors import BudgetExhausted, Error, Unsupported, UntrustedMetadata
from aioprefetch.parquet.chunks import ColumnChunk, SparseFile, WantedRows
from aioprefetch.parquet.decoded_values import Int96
from aioprefetch.parquet.page_metadata import (
    LARGE_PAGE_BYTES,
    PAGE_BYTES_DEFAULT,
    UNCOMPRESSED,
    BadPage,
    CheckedPages,
    LargePages,
    PageHeader,
    PageOptions,
    check_pages,
    chunk_refused,
    damaged_page,
    dictionary_row_bytes,
    read_page_header,
)
from aioprefetch.parquet.row_groups import Columns, RowReader
from aioprefetch.ranges import Range
from aioprefetch.scheduler.pages import PageIo, PendingRead


class PageWalk:
    """The pages of one chunk ``[start, end)`` of ``rows`` rows that have arrived. Pure.

    ``is_repeated``: a list contains the leaf. ``codec`` is the footer's compression. No page may decompress to more
    than ``page_bytes_max``.
    """

    def __init__(
        self,
        start: int,
        end: int,
        rows: int,
        *,
        is_repeated: bool,
        codec: str,
        page_bytes_max: int = PAGE_BYTES_DEFAULT,
    ) -> None:
        self.start = start
        self.end = end
        self.rows = rows
        self.codec = codec
        self._is_repeated = is_repeated
        self._page_bytes_max = page_bytes_max
        self._position = start
        self._rows_seen = 0
        # Whether a page has no number of rows, so that the chunk cannot be decoded before all of it has arrived.
        self.is_blind = False
        # The decompressed size of the largest page so far, 0 if no page is large.
        self.large_page_bytes = 0
        # Data pages with rows, in order: start, end, and the number of rows before.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._first_rows: list[int] = []

    def advance(self, view: memoryview, base: int, arrived_end: int) -> None:
        """Read the headers that have arrived: ``view`` holds the file from ``base`` on, valid up to ``arrived_end``.

        Raises ``BadPage``, also if the pages of a complete chunk have another number of rows than the chunk.
        """
        limit = min(arrived_end, self.end)
        while not self.is_blind and self._position < limit and self._rows_seen < self.rows:
            header = read_page_header(
                view[: limit - base],
                self._position,
                self.end,
                self.codec,
                base=base,
                bytes_max=self._page_bytes_max,
            )
            if header is None:
                return
            self._append(header)
        if not self.is_blind and self._position >= self.end and self._rows_seen != self.rows:
            raise BadPage(f"the pages have {self._rows_seen} rows of the {self.rows} that the footer tells")

    def _append(self, header: PageHeader) -> None:
        self._position = header.end
        if header.uncompressed_bytes > LARGE_PAGE_BYTES and self.codec != UNCOMPRESSED:
            self.large_page_bytes = max(self.large_page_bytes, header.uncompressed_bytes)
        if not header.is_data:
            return
        rows = header.rows if self._is_repeated else header.values
        if rows is None:
            self.is_blind = True
            return
        if rows == 0:
            return
        if self._rows_seen + rows > self.rows:
            raise BadPage(f"the pages have more rows than the {self.rows} that the footer tells")
        self._starts.append(header.start)
        self._ends.append(header.end)
        self._first_rows.append(self._rows_seen)
        self._rows_seen += rows

    def rows_ready(self, arrived_end: int) -> int:
        """The number of rows of the chunk that its bytes up to ``arrived_end`` suffice to decode."""
        if arrived_end >= self.end:
            return self.rows
        if self.is_blind:
            return 0
        complete = bisect_right(self._ends, arrived_end)
        if self._is_repeated:
            return self._first_rows[complete - 1] if complete else 0
        return self._first_rows[complete] if complete < len(self._first_rows) else self._rows_seen

    def needed_from(self, row: int) -> int:
        """The first byte that the decoding of ``row`` and later rows may touch, once all rows before it are decoded."""
        if row >= self.rows:
            return self.end
        if self.is_blind or not self._first_rows or row <= 0:
            return self.start
        return self._starts[bisect_right(self._first_rows, row) - 1]


def segments(start: int, end: int, segment_bytes: int) -> list[Range]:
    """``[start, end)`` in equal parts of at most ``segment_bytes``."""
    size = end - start
    count = -(-size // segment_bytes)
    return [(start + size * i // count, start + size * (i + 1) // count) for i in range(count)]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The wanted rows of a row group of the file ``path``, whose bytes come into ``memory``.

    The first of the ``wanted`` rows is row ``first`` of the scan.
    """

    wanted: WantedRows
    first: int
    memory: SparseFile
    path: str
    pages: PageOptions

    def checked(self, chunk: ColumnChunk) -> CheckedPages:
        """The pages of a chunk that has arrived, with their headers checked."""
        return check_pages(chunk, self.memory, self.path, page_bytes_max=self.pages.bytes_max)


class ChunkRead:
    """One chunk of a row group, in segments of at most ``segment_bytes``; without these several, submitted together.

    ``is_resident``: their bytes are in the memory already, and nothing is submitted. Rows count within the row group.
    """

    def __init__(
        self,
        chunks: Sequence[ColumnChunk],
        group: GroupRows,
        segment_bytes: int | None = None,
        *,
        is_resident: bool = False,
    ) -> None:
        self.chunks = chunks
        self.segments = [[(chunk.start, chunk.end) for chunk in chunks if chunk.start < chunk.end]]
        chunk = chunks[0]
        self.rows = chunk.rows
        if segment_bytes is not None:
            self.segments = [[span] for span in segments(chunk.start, chunk.end, segment_bytes)]
        self._group = group
        self._io: PageIo | None = None
        self._reads: list[PendingRead | None] = [None] if is_resident else []
        self._arrived = 0
        self._released = 0
        self._walk: PageWalk | None = None
        if len(self.segments) > 1:
            self._walk = PageWalk(
                chunk.start,
                chunk.end,
                chunk.rows,
                is_repeated=chunk.max_repetition > 0,
                codec=chunk.codec,
                page_bytes_max=group.pages.bytes_max,
            )

    @property
    def parts(self) -> int:
        """The number of segments."""
        return len(self.segments)

    def scan_row(self, segment: int) -> int:
        """The estimated row of the scan at which a segment begins; for the index behind the last segment, its end."""
        if segment >= len(self.segments):
            return self._group.first + self._group.wanted.count
        if not segment:
            return self._group.first
        chunk = self.chunks[0]
        position = self.segments[segment][0][0] - chunk.start
        return self._group.first + self._group.wanted.before(chunk.rows * position // chunk.size)

    # --- submitting ---------------------------------------------------------------------------------------------

    def submit(self, io: PageIo, count: int) -> None:
        """Submit the first ``count`` segments, if they are not yet."""
        self._io = io
        while len(self._reads) < min(count, len(self.segments)):
            segment = len(self._reads)
            self._reads.append(io.submit(self.segments[segment], self.scan_row(segment)))

    def promote(self, row: int) -> None:
        """Promote the reads with rows of the row group before ``row``, if their segments are known."""
        for segment in range(self._arrived, self._segments_for(row)):
            read = self._submitted(segment)
            if read is not None:
                read.promote()

    async def wait(self, row: int) -> None:
        """Wait until the rows before ``row`` can be decoded. Raises the error of a failed read, and for bad headers."""
        self.promote(row)
        while self.rows_ready() < row:
            read = self._submitted(self._arrived)
            if read is not None:
                await read.wait()

    def _submitted(self, segment: int) -> PendingRead | None:
        if segment >= len(self._reads):
            assert self._io is not None, "chunks are scheduled before they are waited for"
            self.submit(self._io, segment + 1)
        return self._reads[segment]

    def _segments_for(self, row: int) -> int:
        """The number of segments of the rows before ``row``, if it is known."""
        if row >= self.rows or self._walk is None:
            return len(self.segments)
        estimate = -(-row * len(self.segments) // max(self.rows, 1))
        return min(max(estimate, self._arrived + 1), len(self.segments))

    # --- arriving -----------------------------------------------------------------------------------------------

    def rows_ready(self) -> int:
        """The number of rows of the row group that can be decoded. ``UntrustedMetadata`` for an impossible page."""
        before = self._arrived
        while self._arrived < len(self._reads) and has_come(self._reads[self._arrived]):
            self._arrived += 1
        is_complete = self._arrived == len(self.segments)
        if self._walk is None or self._arrived == 0:
            return self.rows if is_complete else 0
        arrived_end = self.segments[self._arrived - 1][-1][1]
        if self._arrived > before:
            try:
                self._walk.advance(self._group.memory.view(0, arrived_end), 0, arrived_end)
            except BadPage as error:
                raise chunk_refused(self.chunks[0], error, self._group.path) from error
        return self.rows if is_complete else self._walk.rows_ready(arrived_end)

    def check_pages(self) -> CheckedPages:
        """Check the headers of all pages, and whether they have exactly the rows. From any thread.

        All of the chunks has arrived, unless the headers of one are checked as they arrive.
        """
        # The walk has checked its pages; segments that are released already cannot be checked again.
        if self._walk is not None and not self._walk.is_blind:
            return CheckedPages(self.chunks[0].max_repetition == 0, self._walk.large_page_bytes)
        checked_chunks = [self._group.checked(chunk) for chunk in self.chunks]
        return CheckedPages(
            all(map(attrgetter("is_exact"), checked_chunks)),
            sum([checked.large_page_bytes for checked in checked_chunks]),
        )

    def dictionary_row_bytes(self) -> float:
        """The memory of a row by the values of dictionaries, which are the first pages of their chunks."""
        return sum([dictionary_row_bytes(self._group.memory.view, chunk) for chunk in self.chunks])

    # --- giving back --------------------------------------------------------------------------------------------

    def release(self, row: int) -> None:
        """Release the segments that only rows before ``row`` need, which are decoded."""
        if row >= self.rows:
            self.close()
            return
        if self._walk is None:
            return
        needed_from = self._walk.needed_from(row)
        while self._released < len(self._reads) and self.segments[self._released][-1][1] <= needed_from:
            self._release_next()

    def close(self) -> None:
        """Release every segment."""
        while self._released < len(self._reads):
            self._release_next()

    def _release_next(self) -> None:
        read = self._reads[self._released]
        self._reads[self._released] = None
        self._released += 1
        if read is not None:
            read.release()


def has_come(read: PendingRead | None) -> bool:
    """Whether the bytes have arrived. The bytes of a failed read never do: ``wait`` raises the error."""
    if read is None:
        return True
    if not read.done:
        return False
    try:
        return bool(read.views) or True
    except Error:
        return False


class ChunkColumns:
    """A ``ColumnSource``. ``wanted`` are rows of its row groups, counted through.

    ``groups`` has the parts of each row group, which together have the chunks of the same leaves; ``places`` are the
    columns' places in the scan's schema. ``row_bytes`` is the memory of a row, estimated from the footer.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[ChunkRead]],
        *,
        wanted: WantedRows,
        open_source: Callable[[], pa.BufferReader],
        metadata: Any,
        places: Sequence[int],
        row_bytes: float,
        path: str = "",
        int96: Int96 | None = None,
        pages: PageOptions | None = None,
    ) -> None:
        self._groups = groups
        self._wanted = wanted
        self._places = places
        self._row_bytes = row_bytes
        self._path = path
        self._open_source = open_source
        self._page_options = pages or PageOptions()
        self._first_rows = list(accumulate((parts[0].rows for parts in groups), initial=0))
        # The first row group that has not arrived, and the first that was not released.
        self._coming = 0
        self._released = 0
        # The first whose dictionaries have not been seen.
        self._seen = 0
        numbers = [parts[0].chunks[0].row_group for parts in groups]
        leaves = [chunk.column for part in groups[0] for chunk in part.chunks]
        self._reader = RowReader(
            open_source,
            metadata,
            numbers,
            leaves,
            first_rows=self._first_rows,
            end=wanted.end,
            check=self._check_group,
            int96=int96,
            page_checksums=self._page_options.checksums,
        )

    def ready(self) -> int:
        while self._coming < len(self._groups):
            parts = self._groups[self._coming]
            ready = min(part.rows_ready() for part in parts)
            if ready and self._coming == self._seen:
                self._see_dictionaries(self._coming)
            if ready < parts[0].rows:
                return self._wanted.before(self._first_rows[self._coming] + ready)
            self._coming += 1
        return self._wanted.count

    def promote(self, rows: int) -> None:
        for part, row in self._parts_before(self._wanted.end_of(rows)):
            part.promote(row)

    async def wait(self, rows: int) -> None:
        for part, row in self._parts_before(self._wanted.end_of(rows)):
            await part.wait(row)

    def _parts_before(self, end: int) -> list[tuple[ChunkRead, int]]:
        """The parts with rows before ``end`` that may not have arrived, and how far their rows are needed."""
        last = bisect_right(self._first_rows, end - 1) if end else 0
        return [
            (part, min(end, self._first_rows[number + 1]) - self._first_rows[number])
            for number in range(self._coming, min(last, len(self._groups)))
            for part in self._groups[number]
        ]

    def drain(self, first: int, last: int) -> Callable[[], Columns]:
        piece = self._reader.expect(self._wanted.cut(first, last))

        def decode() -> Columns:
            try:
                batch = self._reader.read(piece)
            except Error as error:
                raise error.add_context(path=self._path) from error.__cause__
            except pa.ArrowNotImplementedError as error:
                raise Unsupported(self._where(error), operation="scan", path=self._path) from error
            except MemoryError as error:
                raise BudgetExhausted(f"no memory to decode: {error}", operation="scan", path=self._path) from error
            except Exception as error:
                self._check_checksums()
                raise UntrustedMetadata(self._where(error), operation="scan", path=self._path) from error
            return list(zip(self._places, batch.columns, strict=True))

        return decode

    def _check_group(self, number: int) -> bool:
        """Check the pages of a row group before decoding. Returns whether they have exactly its rows."""
        checked_chunks = [part.check_pages() for part in self._groups[number]]
        together = sum(checked.large_page_bytes for checked in checked_chunks)
        large = LargePages(self._page_options.together_bytes_max, self._path)
        large.add(together, self._groups[number][0].chunks[0])
        return all(checked.is_exact for checked in checked_chunks)

    def _check_checksums(self) -> None:
        """Raise ``UntrustedMetadata`` for a page whose checksum shows that it is damaged."""
        if not self._page_options.checksums:
            return
        try:
            damaged = self._damaged_page()
        except Exception:  # A failure of this check must not hide the reason why decoding failed.
            return
        if damaged is not None:
            chunk, page = damaged
            raise chunk_refused(chunk, f"the page at {page} does not have the checksum of its header", self._path)

    def _damaged_page(self) -> tuple[ColumnChunk, int] | None:
        """The chunk and the start of the first page with a wrong checksum."""
        source = self._open_source()
        for chunk in (chunk for parts in self._groups for part in parts for chunk in part.chunks):
            source.seek(chunk.start)
            view = memoryview(source.read_buffer(chunk.size)).cast("B")
            page = damaged_page(chunk, view, page_bytes_max=self._page_options.bytes_max)
            if page is not None:
                return chunk, page
        return None

    def _where(self, error: Exception) -> str:
        numbers = [parts[0].chunks[0].row_group for parts in self._groups]
        where = f"row group {numbers[0]}" if len(numbers) == 1 else f"row groups {numbers[0]} to {numbers[-1]}"
        names = ", ".join(repr(".".join(chunk.path)) for part in self._groups[0] for chunk in part.chunks)
        return f"{where}, columns {names}: {error}"

    def row_bytes(self) -> float:
        self.ready()  # Sees the dictionaries of what has arrived.
        return max(self._reader.row_bytes, self._row_bytes)

    def _see_dictionaries(self, number: int) -> None:
        """Take into account what values of dictionaries make of a row."""
        total = sum(part.dictionary_row_bytes() for part in self._groups[number])
        self._row_bytes = max(self._row_bytes, total)
        self._seen = number + 1

    def release(self, rows: int) -> None:
        row = self._first_rows[-1] if rows >= self._wanted.count else self._wanted.end_of(rows)
        while self._released < len(self._groups):
            for part in self._groups[self._released]:
                part.release(row - self._first_rows[self._released])
            if row < self._first_rows[self._released + 1]:
                return
            self._released += 1

    def close(self) -> None:
        for parts in self._groups:
            for part in parts:
                part.close()
        self._reader.close()
