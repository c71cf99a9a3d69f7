"""Columns whose chunks are read whole, decoded row by row by pyarrow's one reader for some row groups.

The chunks of a small row group are read with one submission: to schedule hundreds of chunks of a few KiB one by one
would take more time than to receive and decode them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from aioprefetch.errors import BudgetExhausted, Error, Unsupported, UntrustedMetadata
from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.page_header import (
    PAGE_BYTES_DEFAULT,
    CheckedPages,
    LargePages,
    PageOptions,
    check_pages,
    chunk_refused,
    damaged_page,
)
from aioprefetch.parquet.row_groups import Columns
from aioprefetch.parquet.row_reader import RowReader
from aioprefetch.parquet.sparse_file import SparseFile
from aioprefetch.parquet.wanted_rows import WantedRows
from aioprefetch.scheduler.pages import PageIo, PendingRead


class GroupRead:
    """Chunks of one row group that are submitted together; see ``ChunkRead``.

    ``is_resident``: their bytes are in the memory already, and nothing is submitted.
    """

    parts = 1

    def __init__(
        self,
        chunks: Sequence[ColumnChunk],
        memory: SparseFile,
        *,
        wanted: WantedRows,
        first: int,
        is_resident: bool,
        path: str = "",
        page_bytes_max: int = PAGE_BYTES_DEFAULT,
    ) -> None:
        self.chunks = chunks
        self.rows = chunks[0].rows
        self._memory = memory
        self._wanted = wanted
        self._first = first
        self._path = path
        self._page_bytes_max = page_bytes_max
        self._read: PendingRead | None = None
        self._is_there = is_resident

    def scan_row(self, part: int) -> int:
        return self._first + self._wanted.count if part else self._first

    def submit(self, io: PageIo, count: int) -> None:
        if self._read is None and not self._is_there and count:
            self._read = io.submit([(chunk.start, chunk.end) for chunk in self.chunks if chunk.size], self._first)

    def promote(self, row: int) -> None:
        if self._read is not None:
            self._read.promote()

    async def wait(self, row: int) -> None:
        if self._read is not None:
            await self._read.wait()

    def rows_ready(self) -> int:
        if not self._is_there and self._read is not None and self._read.done:
            try:
                self._is_there = len(self._read.views) > 0
            except Error:
                return 0
        return self.rows if self._is_there else 0

    def check_pages(self) -> CheckedPages:
        page_bytes_max = self._page_bytes_max
        checked_chunks = [
            check_pages(chunk, self._memory, self._path, page_bytes_max=page_bytes_max) for chunk in self.chunks
        ]
        return CheckedPages(
            all(checked.is_exact for checked in checked_chunks),
            sum(checked.large_page_bytes for checked in checked_chunks),
        )

    def release(self, row: int) -> None:
        if row >= self.rows:
            self.close()

    def close(self) -> None:
        read, self._read = self._read, None
        if read is not None:
            self._is_there = True
            read.release()


class GroupPart(Protocol):
    """The bytes of one or more chunks of a row group; rows are the row group's."""

    @property
    def chunks(self) -> Sequence[ColumnChunk]:
        """The chunks of the unit."""
        ...

    @property
    def rows(self) -> int:
        """Rows of the row group."""
        ...

    def promote(self, row: int) -> None:
        """The rows before ``row`` are needed now."""
        ...

    async def wait(self, row: int) -> None:
        """Wait until the rows before ``row`` can be decoded."""
        ...

    def rows_ready(self) -> int:
        """The number of rows that can be decoded."""
        ...

    def check_pages(self) -> CheckedPages:
        """Raise ``UntrustedMetadata`` for pages that must not be decoded. From any thread."""
        ...

    def release(self, row: int) -> None:
        """Release the memory that only rows before ``row`` need, which are decoded."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class ChunkColumns:
    """A ``ColumnSource``. ``wanted`` are rows of its row groups, counted through.

    ``groups`` has the parts of each row group, which together have the chunks of the same leaves; ``places`` are the
    columns' places in the scan's schema. ``row_bytes`` is the memory of a row, estimated from the footer.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[GroupPart]],
        *,
        wanted: WantedRows,
        open_source: Callable[[], pa.BufferReader],
        metadata: Any,
        places: Sequence[int],
        row_bytes: float,
        path: str = "",
        int96_unit: str | None = None,
        pages: PageOptions | None = None,
    ) -> None:
        self._groups = groups
        self._wanted = wanted
        self._places = places
        self._row_bytes = row_bytes
        self._path = path
        self._open_source = open_source
        self._page_options = pages or PageOptions()
        self._first_rows = [0]
        for parts in groups:
            self._first_rows.append(self._first_rows[-1] + parts[0].rows)
        # The first row group that has not arrived, and the first that was not released.
        self._coming = 0
        self._released = 0
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
            int96_unit=int96_unit,
            page_checksums=self._page_options.checksums,
        )

    def ready(self) -> int:
        while self._coming < len(self._groups):
            parts = self._groups[self._coming]
            ready = min(part.rows_ready() for part in parts)
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

    def _parts_before(self, end: int) -> list[tuple[GroupPart, int]]:
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
        return max(self._reader.row_bytes, self._row_bytes)

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
