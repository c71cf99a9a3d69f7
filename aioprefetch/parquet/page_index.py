"""The page indexes of column chunks: the position, the first row and the value statistics of each page.

They lie between data and footer, those of all chunks together, so they come in one request or were in the tail.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.ranges import Range, coalesce
from aioprefetch.runtime.task_group import gather_all

if TYPE_CHECKING:
    from aioprefetch.parquet.chunks import ColumnChunk
    from aioprefetch.scheduler.pinned_file import PinnedFile

# Indexes of wanted columns lie among those of others: up to this gap they share a request.
INDEX_GAP_BYTES = 256 << 10
INDEX_REQUEST_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """The data pages of one chunk in order: ``starts`` in the file, ``sizes`` with their headers, and ``first_rows``.

    Rows count from the row group's first, and end at ``rows``. Every page lies within its chunk, behind the one before.
    """

    starts: list[int]
    sizes: list[int]
    first_rows: list[int]
    rows: int

    def __len__(self) -> int:
        return len(self.starts)

    def page_rows(self, page: int) -> Range:
        """The rows of a page."""
        last = page + 1 == len(self.first_rows)
        return self.first_rows[page], self.rows if last else self.first_rows[page + 1]

    def page_bytes(self, page: int) -> Range:
        """The range of a page in the file."""
        return self.starts[page], self.starts[page] + self.sizes[page]

    def pages_of(self, rows: Sequence[Range]) -> list[int]:
        """The pages that hold any of ``rows``: sorted, disjoint ranges of the row group's rows."""
        pages: list[int] = []
        for start, stop in rows:
            first = max(0, bisect_right(self.first_rows, start) - 1)
            last = bisect_left(self.first_rows, stop)
            for page in range(first, last):
                low, high = self.page_rows(page)
                if low < high and start < high and low < stop and (not pages or pages[-1] < page):
                    pages.append(page)
        return pages


@dataclass(frozen=True, slots=True)
class ColumnIndex:
    """Lower and upper bounds of the values of each page of a chunk, as bytes in Parquet's PLAIN encoding.

    Bounds of strings may be shortened. A page in ``null_pages`` has only nulls, and no bounds. ``null_counts`` is
    ``None`` if the writer did not count. The statements on a page in ``unknown_pages`` cannot be true, and are ignored;
    ``None`` if there is no such page.
    """

    null_pages: list[bool]
    minima: list[bytes]
    maxima: list[bytes]
    null_counts: list[int] | None
    unknown_pages: list[bool] | None = None

    def __len__(self) -> int:
        return len(self.null_pages)


Indexes = tuple[OffsetIndex | None, ColumnIndex | None]


def parse_offset_index(raw: bytes | memoryview, chunk: ColumnChunk, *, path: str) -> OffsetIndex:
    """The offset index of a chunk, checked against it. ``UntrustedMetadata`` if it cannot be that chunk's."""
    fields = _read(raw, "offset index", chunk, path)
    pages = _list_of(fields, 1, thrift.STRUCT)
    if pages is None:
        raise _bad("offset index", chunk, "has no pages", path)
    starts: list[int] = []
    sizes: list[int] = []
    first_rows: list[int] = []
    position, row = chunk.start, 0
    for page in pages:
        start, size, first_row = (_integer(page, number) for number in (1, 2, 3))
        if start is None or size is None or first_row is None:
            raise _bad("offset index", chunk, "has a page without place, size or row", path)
        if size < 1 or start < position or start + size > chunk.end:
            raise _bad("offset index", chunk, f"puts a page at [{start}, {start + size})", path)
        if not row <= first_row <= chunk.rows or (not starts and first_row):
            raise _bad("offset index", chunk, f"has a page that begins with row {first_row} of {chunk.rows}", path)
        starts.append(start)
        sizes.append(size)
        first_rows.append(first_row)
        position, row = start + size, first_row
    if not starts and chunk.rows:
        raise _bad("offset index", chunk, f"has no page for {chunk.rows} rows", path)
    return OffsetIndex(starts, sizes, first_rows, chunk.rows)


def parse_column_index(raw: bytes | memoryview, chunk: ColumnChunk, offsets: OffsetIndex, *, path: str) -> ColumnIndex:
    """The column index of a chunk with these pages. ``UntrustedMetadata`` if its lists are not as long.

    Counts of nulls are used if they are possible: the column is nullable, and a page of nulls alone has one for each
    row, if they were counted. (parquet-mr writes a page without statistics as one of nulls, of which it counted -1.)
    """
    pages = len(offsets)
    fields = _read(raw, "column index", chunk, path)
    nulls = _list_of(fields, 1, thrift.TRUE)
    if nulls is None:
        nulls = _list_of(fields, 1, thrift.FALSE)
    minima, maxima = _list_of(fields, 2, thrift.BINARY), _list_of(fields, 3, thrift.BINARY)
    counts = _list_of(fields, 5, thrift.I64)
    if nulls is None or minima is None or maxima is None:
        raise _bad("column index", chunk, "has no bounds", path)
    if not len(nulls) == len(minima) == len(maxima) == pages or (counts is not None and len(counts) != pages):
        raise _bad("column index", chunk, f"is not of {pages} pages", path)
    null_pages = [mark == thrift.TRUE for mark in nulls]
    unknown = [
        not _can_be_true(chunk, is_null, None if counts is None else counts[page], offsets.page_rows(page))
        for page, is_null in enumerate(null_pages)
    ]
    believed = [is_null and not is_unknown for is_null, is_unknown in zip(null_pages, unknown, strict=True)]
    return ColumnIndex(believed, minima, maxima, counts, unknown)


def _can_be_true(chunk: ColumnChunk, is_null_page: bool, null_count: int | None, rows: Range) -> bool:
    """Whether the null count of a page is possible. Writers that did not count have negative counts."""
    if chunk.max_repetition:
        return True  # Nulls are counted in items.
    count = rows[1] - rows[0]
    if is_null_page:
        return chunk.is_nullable and (null_count is None or null_count == count)
    if null_count is None or null_count < 0:
        return True
    return null_count < count if chunk.is_nullable else null_count == 0


async def load_page_indexes(
    pinned: PinnedFile, chunks: Iterable[ColumnChunk], *, with_columns: bool = False
) -> dict[tuple[int, int], Indexes]:
    """The indexes of chunks by row group and leaf, ``(None, None)`` for those that have none.

    ``with_columns``: column indexes too. Indexes in the tail cost nothing, the others are merged into few requests.
    Raises ``UntrustedMetadata`` and the errors of reads; a cancelled call leaves nothing behind.
    """
    wanted = list(chunks)
    ranges: list[Range] = []
    for chunk in wanted:
        ranges += [
            pair for pair in (chunk.offset_index, chunk.column_index if with_columns else None) if pair is not None
        ]
    views = await _read_all(pinned, ranges)
    indexes: dict[tuple[int, int], Indexes] = {}
    for chunk in wanted:
        offset: OffsetIndex | None = None
        column: ColumnIndex | None = None
        if chunk.offset_index is not None:
            offset = parse_offset_index(views[chunk.offset_index], chunk, path=pinned.path)
            if with_columns and chunk.column_index is not None:
                column = parse_column_index(views[chunk.column_index], chunk, offset, path=pinned.path)
        indexes[chunk.row_group, chunk.column] = (offset, column)
    return indexes


async def _read_all(pinned: PinnedFile, ranges: Sequence[Range]) -> dict[Range, memoryview]:
    views: dict[Range, memoryview] = {}
    missing: list[Range] = []
    for pair in ranges:
        view = pinned.resident(*pair)
        if view is None:
            missing.append(pair)
        else:
            views[pair] = view
            pinned.publish_served(*pair)
    pieces = coalesce(missing, gap_bytes=INDEX_GAP_BYTES, request_bytes_max=INDEX_REQUEST_BYTES_MAX)

    async def read(start: int, end: int, members: Sequence[int]) -> None:
        view = await pinned.read(start, end)
        for member in members:
            low, high = missing[member]
            views[low, high] = view[low - start : high - start]

    await gather_all(partial(read, piece.start, piece.end, piece.members) for piece in pieces)
    return views


def _read(raw: bytes | memoryview, what: str, chunk: ColumnChunk, path: str) -> thrift.Struct:
    try:
        return thrift.read_struct(raw)[0]
    except thrift.MalformedThrift as error:
        raise _bad(what, chunk, f"is damaged: {error}", path) from error


def _list_of(fields: thrift.Struct, number: int, element: int) -> list[Any] | None:
    """The items of a list, ``None`` if the field is missing or of another type."""
    kind, value = fields.get(number, (0, None))
    return value.items if kind == thrift.LIST and (value.element == element or not value.items) else None


def _integer(fields: thrift.Struct, number: int) -> int | None:
    kind, value = fields.get(number, (0, None))
    return value if kind in (thrift.I32, thrift.I64) else None


def _bad(what: str, chunk: ColumnChunk, problem: str, path: str) -> UntrustedMetadata:
    return UntrustedMetadata(
        f"the {what} of row group {chunk.row_group}, column {'.'.join(chunk.path)!r} {problem}",
        operation="scan",
        path=path,
    )
