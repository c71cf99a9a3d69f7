"""Leaves of which chosen pages are read: few rows of a chunk are wanted, and the places of its pages are known.

Neighbouring pages make a part, which is submitted, decoded and released as one. Each part is decoded once, by the first
batch that needs it. A column with such a leaf has its leaves decoded separately; ``PagedField`` assembles them.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import pyarrow as pa

from aioprefetch.errors import Error
from aioprefetch.parquet.byte_plan import PlannedChunk
from aioprefetch.parquet.chunk_columns import ChunkColumns
from aioprefetch.parquet.page_file import FooterParts, decode_pages
from aioprefetch.parquet.page_header import (
    DICTIONARY,
    LARGE_PAGE_BYTES,
    UNCOMPRESSED,
    BadPage,
    LargePages,
    PageHeader,
    PageOptions,
    chunk_refused,
    read_page_header,
)
from aioprefetch.parquet.page_index import OffsetIndex
from aioprefetch.parquet.row_groups import Columns
from aioprefetch.parquet.row_reader import one_array
from aioprefetch.parquet.wanted_rows import WantedRows
from aioprefetch.ranges import Range, joined
from aioprefetch.scheduler.pages import PageIo, PendingRead

_NOTHING = memoryview(b"")


class _PageSpan:
    """Some pages, and their wanted rows ``[first, last)``, counted over the wanted rows of the row group."""

    def __init__(self, pages: Sequence[int], rows: Sequence[Range], first: int, last: int) -> None:
        self.pages = pages
        # The wanted rows, counted over the rows of the concatenated pages.
        self.rows = rows
        self.first = first
        self.last = last
        self.read: PendingRead | None = None
        self.values: pa.ChunkedArray | None = None
        self.large_bytes = 0
        self.lock = threading.Lock()


class PagedLeaf:
    """A ``Unit`` and a source of one column. The dictionary is part of the first part and is kept."""

    def __init__(
        self,
        planned: PlannedChunk,
        footer: FooterParts,
        *,
        wanted: WantedRows,
        first: int,
        part_bytes: int,
        path: str,
        pages: PageOptions,
        large_pages: LargePages,
    ) -> None:
        assert planned.offset_index is not None
        self.chunk = planned.chunk
        self._index: OffsetIndex = planned.offset_index
        self._footer = footer
        self._wanted = wanted
        self._first = first
        self._path = path
        self._page_options = pages
        self._large_pages = large_pages
        self._parts = self._cut(planned.pages or (), part_bytes)
        self._lasts = [part.last for part in self._parts]
        self._dictionary_read: PendingRead | None = None
        self._dictionary_range = (self.chunk.start, self._index.starts[0])
        self._io: PageIo | None = None
        self._submitted = 0
        self._arrived = 0
        self._released = 0

    def _cut(self, pages: Sequence[int], part_bytes: int) -> list[_PageSpan]:
        together: list[list[int]] = []
        size = part_bytes
        for page in pages:
            if size + self._index.sizes[page] > part_bytes or page != together[-1][-1] + 1:
                together.append([])
                size = 0
            together[-1].append(page)
            size += self._index.sizes[page]
        return [self._part(these) for these in together]

    def _part(self, pages: list[int]) -> _PageSpan:
        start, end = self._index.page_rows(pages[0])[0], self._index.page_rows(pages[-1])[1]
        rows = [(low, high) for low, high in self._wanted.within(start, end).ranges]
        return _PageSpan(pages, rows, self._wanted.before(start), self._wanted.before(end))

    # --- scheduling ---------------------------------------------------------------------------------------------

    @property
    def parts(self) -> int:
        return len(self._parts)

    def scan_row(self, part: int) -> int:
        return self._first + self._parts[part].first

    def submit(self, io: PageIo, count: int) -> None:
        self._io = io
        start, end = self._dictionary_range
        if self._submitted == 0 and count and start < end:
            self._dictionary_read = io.submit([(start, end)], self._first)
        while self._submitted < min(count, len(self._parts)):
            part = self._parts[self._submitted]
            ranges = joined(self._index.page_bytes(page) for page in part.pages)
            part.read = io.submit(ranges, self.scan_row(self._submitted))
            self._submitted += 1

    # --- as a source of columns -----------------------------------------------------------------------------------

    def ready(self) -> int:
        if self._dictionary_read is not None and not _has_come(self._dictionary_read):
            return 0
        while self._arrived < self._submitted:
            read = self._parts[self._arrived].read
            if read is not None and not _has_come(read):
                break
            self._arrived += 1
        return self._lasts[self._arrived - 1] if self._arrived else 0

    def promote(self, rows: int) -> None:
        if self._dictionary_read is not None:
            self._dictionary_read.promote()
        for part in self._before(rows):
            if part.read is not None:
                part.read.promote()

    async def wait(self, rows: int) -> None:
        self.promote(rows)
        if self._dictionary_read is not None:
            await self._dictionary_read.wait()
        for part in self._before(rows):
            if part.read is not None:
                await part.read.wait()

    def _before(self, rows: int) -> Sequence[_PageSpan]:
        """The parts of the first ``rows`` rows that may not have arrived; all are submitted."""
        end = bisect_left(self._lasts, rows) + 1
        if self._submitted < min(end, len(self._parts)):
            assert self._io is not None, "a leaf is scheduled before it is waited for"
            self.submit(self._io, end)
        return self._parts[self._arrived : end]

    def drain(self, first: int, last: int) -> Callable[[], pa.Array]:
        """A function that decodes the rows ``[first, last)``, which are ready; it runs on any thread."""
        start, end = bisect_right(self._lasts, first), bisect_left(self._lasts, last) + 1
        parts = self._parts[start:end]

        def decode() -> pa.Array:
            pieces: list[pa.Array] = []
            for part in parts:
                low, high = max(first, part.first) - part.first, min(last, part.last) - part.first
                if low < high:
                    pieces += self._values(part).slice(low, high - low).chunks
            return one_array(pieces)

        return decode

    def release(self, rows: int) -> None:
        while self._released < len(self._parts) and self._lasts[self._released] <= rows:
            self._give_back(self._parts[self._released])
            self._released += 1
        if self._released == len(self._parts):
            self.close()

    def close(self) -> None:
        for part in self._parts:
            self._give_back(part)
        read, self._dictionary_read = self._dictionary_read, None
        if read is not None:
            read.release()

    def _give_back(self, part: _PageSpan) -> None:
        part.values = None
        self._large_pages.remove(part.large_bytes)
        part.large_bytes = 0
        read, part.read = part.read, None
        if read is not None:
            read.release()

    # --- decoding -------------------------------------------------------------------------------------------------

    def _values(self, part: _PageSpan) -> pa.ChunkedArray:
        """The wanted rows of a part."""
        with part.lock:
            if part.values is None:
                part.values = self._decoded(part)
            return part.values

    def _decoded(self, part: _PageSpan) -> pa.ChunkedArray:
        assert part.read is not None
        rows = sum(high - low for low, high in map(self._index.page_rows, part.pages))
        pages = self._pages(part, part.read)
        try:
            dictionary = self._checked_dictionary()
            sizes = [self._checked_page(page, view) for page, view in zip(part.pages, pages, strict=True)]
            self._count(part, sum(size for size in sizes if size > LARGE_PAGE_BYTES))
            values = decode_pages(
                self._footer,
                self.chunk.row_group,
                self.chunk.column,
                rows=rows,
                dictionary=dictionary,
                pages=pages,
                page_checksums=self._page_options.checksums,
            )
        except Error as error:
            raise error.add_context(path=self._path) from error.__cause__
        except Exception as error:
            raise chunk_refused(self.chunk, error, self._path) from error
        if len(values) != rows:
            raise chunk_refused(self.chunk, f"its pages have {len(values)} rows, its index tells {rows}", self._path)
        return pa.chunked_array([values.slice(low, high - low) for low, high in part.rows], type=values.type)

    def _pages(self, part: _PageSpan, read: PendingRead) -> list[memoryview]:
        """The bytes of each page; those that lie back to back were submitted as one range."""
        pages: list[memoryview] = []
        views = iter(read.views)
        ranges = iter(joined(self._index.page_bytes(page) for page in part.pages))
        (start, end), view = next(ranges), next(views)
        for low, high in map(self._index.page_bytes, part.pages):
            if low >= end:
                (start, end), view = next(ranges), next(views)
            pages.append(view[low - start : high - start])
        return pages

    def _checked_dictionary(self) -> memoryview:
        read = self._dictionary_read
        if read is None:
            return _NOTHING
        view = read.views[0]
        header = self._header(view)
        if header is None or header.kind != DICTIONARY or header.end != len(view):
            raise BadPage("the page before its first data page is not a dictionary page")
        return view

    def _header(self, view: memoryview) -> PageHeader | None:
        return read_page_header(view, 0, len(view), self.chunk.codec, bytes_max=self._page_options.bytes_max)

    def _count(self, part: _PageSpan, large_bytes: int) -> None:
        if large_bytes and self.chunk.codec != UNCOMPRESSED:
            self._large_pages.add(large_bytes, self.chunk)
            part.large_bytes = large_bytes

    def _checked_page(self, page: int, view: memoryview) -> int:
        """The decompressed size of a page, which must be the page of the offset index, with its rows.

        Leaves of lists are never paged.
        """
        header = self._header(view)
        low, high = self._index.page_rows(page)
        if header is None or not header.is_data or header.end != len(view) or header.values != high - low:
            raise BadPage(f"page {page} is not the one of {high - low} rows that its offset index tells")
        return header.uncompressed_bytes


def _has_come(read: PendingRead) -> bool:
    """Whether the bytes have arrived. Those of a failed read never do: ``wait`` raises the error."""
    if not read.done:
        return False
    try:
        return len(read.views) > 0
    except Error:
        return False


class PagedField:
    """A ``ColumnSource`` of the column at ``place``, which is of type ``kind``.

    ``others`` has those of its leaves that are read whole. With several leaves ``can_be_merged`` must hold.
    """

    def __init__(
        self,
        place: int,
        kind: pa.DataType,
        leaves: Sequence[PagedLeaf],
        others: ChunkColumns | None,
        *,
        row_bytes: float,
    ) -> None:
        self._place = place
        self._kind = kind
        self._leaves = leaves
        self._others = others
        self._row_bytes = row_bytes
        self._sources: list[PagedLeaf | ChunkColumns] = [*leaves, *([others] if others is not None else [])]

    def ready(self) -> int:
        return min(source.ready() for source in self._sources)

    def promote(self, rows: int) -> None:
        for source in self._sources:
            source.promote(rows)

    async def wait(self, rows: int) -> None:
        for source in self._sources:
            await source.wait(rows)

    def drain(self, first: int, last: int) -> Callable[[], Columns]:
        decodes = [leaf.drain(first, last) for leaf in self._leaves]
        others = self._others.drain(first, last) if self._others is not None else None
        place, kind = self._place, self._kind

        def decode() -> Columns:
            arrays = [decode_leaf() for decode_leaf in decodes]
            arrays += [array for _, array in others()] if others is not None else []
            return [(place, merged(arrays, kind))]

        return decode

    def row_bytes(self) -> float:
        return self._row_bytes

    def release(self, rows: int) -> None:
        for source in self._sources:
            source.release(rows)

    def close(self) -> None:
        for source in self._sources:
            source.close()


def can_be_merged(kind: pa.DataType, leaves: int) -> bool:
    """Whether leaves that are decoded separately can be merged: their paths must part at a struct."""
    return leaves == 1 or pa.types.is_struct(kind)


def merged(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """One column from the arrays of its leaves: the same rows, each with the fields of some leaves."""
    if len(arrays) == 1:
        return arrays[0]
    children: list[pa.Array] = []
    for number in range(kind.num_fields):
        field = kind.field(number)
        having = [array for array in arrays if array.type.get_field_index(field.name) >= 0]
        children.append(merged([array.field(field.name) for array in having], field.type))
    nulls = arrays[0].is_null() if arrays[0].null_count else None
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
