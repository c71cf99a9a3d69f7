"""The metadata of pages: the header before each, and the indexes of all pages of a column chunk.

**Headers** are read from bytes that may be incomplete, and checked before pyarrow decodes. Only the few numbers that a
reader of pages needs are read; a header is a Thrift struct of some 20 to 100 bytes. pyarrow reads the same headers
again when it decodes. The numbers by which it would allocate memory are checked here.

**Indexes** have the position, the first row and the value statistics of each page. They lie between data and footer,
all chunks together, so they come in one request or were in the tail.
"""

from __future__ import annotations

import logging
import re
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from aioprefetch.errors import BudgetExhausted, UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.parquet.chunks import ColumnChunk, SparseFile
from aioprefetch.ranges import Range, coalesce
from aioprefetch.runtime.task_group import gather_all

if TYPE_CHECKING:
    from aioprefetch.scheduler.pinned_file import PinnedFile

logger = logging.getLogger("aioprefetch")

DATA, INDEX, DICTIONARY, DATA_V2 = range(4)

UNCOMPRESSED = "UNCOMPRESSED"

# pyarrow reads headers up to this size. Long headers contain statistics.
HEADER_BYTES_MAX = 16 << 20

# The maximum expansion of each codec. LZ4 and Snappy: by the shortest form of a copy. GZIP: 258 bytes from two bits.
# ZSTD: a block of 128 KiB from four bytes. Brotli: 16 MiB from a few bytes.
_EXPANSION = {
    UNCOMPRESSED: 1,
    "SNAPPY": 32,
    "LZ4": 256,
    "LZ4_RAW": 256,
    "LZO": 256,
    "GZIP": 1032,
    "ZSTD": 1 << 15,
    "BROTLI": 1 << 22,
}
_EXPANSION_MAX = max(_EXPANSION.values())

# The overhead of frames, checksums and empty blocks, for any codec.
_SLACK_BYTES = 1024

# A page is decompressed as a whole; the format holds its size in 32 bits, writers aim at a MiB.
PAGE_BYTES_MAX = (1 << 31) - 1

# A page that claims a larger size is refused by default: a file of some KB could otherwise take all memory.
PAGE_BYTES_DEFAULT = 256 << 20
# Writers aim at a MiB. Pages above this are added up: a decoder has one of each column in memory.
LARGE_PAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Options for pages: whether checksums in headers are verified, and the maximum decompressed sizes.

    ``bytes_max`` limits each compressed page; other pages have only the bytes that were read. ``together_bytes_max``
    limits the largest pages of the columns that are decoded together, counting pages above ``LARGE_PAGE_BYTES``.
    """

    checksums: bool = True
    bytes_max: int = PAGE_BYTES_DEFAULT
    together_bytes_max: int = PAGE_BYTES_DEFAULT


_NUMBER = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
# Type, both sizes and, in the struct of a data page, the number of values.
_DATA_PAGE = re.compile(rb"(?s)\x15\x00\x15%b\x15%b\x2c\x15(%b)" % (_NUMBER, _NUMBER, _NUMBER))


class BadPage(ValueError):
    """A page that its chunk cannot hold."""


@dataclass(frozen=True, slots=True)
class PageHeader:
    """One page: ``[start, end)`` in the file; its header ends at ``data_start``.

    ``values`` counts nulls and, in lists, items. ``rows`` is known for pages of version 2 alone.
    """

    start: int
    data_start: int
    end: int
    kind: int
    uncompressed_bytes: int
    values: int
    rows: int | None
    encoding: int

    @property
    def is_data(self) -> bool:
        """Whether it holds rows, and is neither a dictionary nor an index."""
        return self.kind in (DATA, DATA_V2)


def read_page_header(
    view: memoryview, start: int, chunk_end: int, codec: str, *, base: int = 0, bytes_max: int = PAGE_BYTES_DEFAULT
) -> PageHeader | None:
    """The header that begins at ``start``, ``None`` when ``view`` (whose first byte is at ``base``) ends within it.

    Raises ``BadPage`` for bytes that are not a header, for a page that exceeds its chunk, and for a page that claims a
    larger size than its codec or ``bytes_max`` allows.
    """
    try:
        fields, after = thrift.read_struct(view, start - base)
    except thrift.TruncatedThrift as error:
        if base + len(view) >= min(chunk_end, start + HEADER_BYTES_MAX):
            raise BadPage(f"the header at {start} does not end within its chunk") from error
        return None
    except thrift.MalformedThrift as error:
        raise BadPage(f"there is no page header at {start}: {error}") from error
    kind = _header_number(fields, 1, "type")
    uncompressed = _header_number(fields, 2, "uncompressed size")
    compressed = _header_number(fields, 3, "compressed size")
    data_start = base + after
    _check_sizes(start, data_start, compressed, uncompressed, chunk_end, codec)
    if codec != UNCOMPRESSED and uncompressed > bytes_max:
        raise BadPage(
            f"the page at {start} claims to become {uncompressed} bytes out of {compressed}; page_bytes_max={bytes_max}"
            " allows no more"
        )
    values, rows, encoding = _counts(fields, kind)
    return PageHeader(start, data_start, data_start + compressed, kind, uncompressed, values, rows, encoding)


def first_page_values(view: memoryview, start: int) -> int | None:
    """The number of values of the data page at ``start``, ``None`` if it is another page or in an unusual form.

    Only the first numbers of the header are read, which takes a tenth of the time.
    """
    header = _DATA_PAGE.match(view, start)
    if header is None:
        return None
    number = 0
    for digit in reversed(header[1]):
        number = number << 7 | digit & 0x7F
    return number >> 1


def _check_sizes(start: int, data_start: int, compressed: int, uncompressed: int, chunk_end: int, codec: str) -> None:
    if data_start + compressed > chunk_end:
        left = chunk_end - data_start
        raise BadPage(f"the page at {start} claims {compressed} bytes where its chunk has {left} left")
    possible = min(compressed * _EXPANSION.get(codec, _EXPANSION_MAX) + _SLACK_BYTES, PAGE_BYTES_MAX)
    if uncompressed > possible:
        raise BadPage(f"the page at {start} claims {uncompressed} bytes out of {compressed} bytes of {codec}")


def _counts(fields: thrift.Struct, kind: int) -> tuple[int, int | None, int]:
    """Number of values, number of rows if stated, and encoding."""
    if kind == DATA:
        inner = _inner_header(fields, 5, "data page")
        return _header_number(inner, 1, "number of values"), None, _header_number(inner, 2, "encoding")
    if kind == DATA_V2:
        inner = _inner_header(fields, 8, "data page")
        rows = _header_number(inner, 3, "number of rows")
        return _header_number(inner, 1, "number of values"), rows, _header_number(inner, 4, "encoding")
    if kind == DICTIONARY:
        inner = _inner_header(fields, 7, "dictionary page")
        return _header_number(inner, 1, "number of values"), 0, _header_number(inner, 2, "encoding")
    return 0, 0, 0


def _inner_header(fields: thrift.Struct, number: int, what: str) -> thrift.Struct:
    kind, value = fields.get(number, (0, None))
    if kind != thrift.STRUCT:
        raise BadPage(f"the header of a {what} lacks its counts")
    inner: thrift.Struct = value
    return inner


def _header_number(fields: thrift.Struct, number: int, what: str) -> int:
    kind, value = fields.get(number, (0, None))
    if kind not in (thrift.I32, thrift.I64) or not 0 <= value <= PAGE_BYTES_MAX:
        raise BadPage(f"a page header has {value!r} as its {what}")
    return int(value)


# --- the pages of a chunk ---------------------------------------------------------------------------------------------

# Chunks below this size are too numerous for reading all their headers, unless it is necessary.
_SMALL_CHUNK_BYTES = 64 << 10

# Chunks that cannot become larger than this are decoded as they come.
_DECODED_BYTES_MIN = 4 << 20

# Of a PageHeader: the CRC-32 of all bytes of the page behind it.
_CHECKSUM_FIELD = 4


class CheckedPages(NamedTuple):
    """The result of a check of a chunk's pages. ``is_exact``: their headers have exactly the rows of the footer.

    This cannot be seen within lists. ``large_page_bytes`` is the decompressed size of the largest page, 0 if no page is
    large.
    """

    is_exact: bool
    large_page_bytes: int = 0


def check_pages(
    chunk: ColumnChunk, memory: SparseFile, path: str, *, page_bytes_max: int = PAGE_BYTES_DEFAULT
) -> CheckedPages:
    """Check the headers of all pages of a chunk, which has arrived as a whole. From any thread.

    ``UntrustedMetadata`` for compressed pages that claim a larger size than is possible, or than ``page_bytes_max``.
    """
    is_flat = chunk.max_repetition == 0
    view = memory.view(0, chunk.end)
    if chunk.codec == UNCOMPRESSED:
        if is_flat and first_page_values(view, chunk.start) == chunk.rows:
            return CheckedPages(is_exact=True)
        if not is_flat or chunk.size < _SMALL_CHUNK_BYTES:
            return CheckedPages(is_exact=False)
    position, values, largest = chunk.start, 0, 0
    try:
        while position < chunk.end and values < chunk.num_values:
            header = read_page_header(view, position, chunk.end, chunk.codec, bytes_max=page_bytes_max)
            assert header is not None
            position = header.end
            values += header.values if header.is_data else 0
            largest = max(largest, header.uncompressed_bytes)
    except BadPage as error:
        raise chunk_refused(chunk, error, path) from error
    is_large = largest > LARGE_PAGE_BYTES and chunk.codec != UNCOMPRESSED
    return CheckedPages(is_flat and values == chunk.rows, largest if is_large else 0)


def dictionary_row_bytes(view_of: Callable[[int, int], memoryview], chunk: ColumnChunk) -> float:
    """The memory of a row by the mean of the values in the dictionary at the beginning of a chunk; 0 without one.

    The footer counts each of them once, for all rows that have it.
    """
    if chunk.rows * max(chunk.uncompressed_bytes, chunk.size) < _DECODED_BYTES_MIN:
        return 0.0  # However often it has the longest one.
    view = view_of(chunk.start, chunk.end)
    try:
        header = read_page_header(view, 0, len(view), chunk.codec)
    except BadPage:  # It is refused when it is decoded.
        return 0.0
    if header is None or header.kind != DICTIONARY:
        return 0.0
    return header.uncompressed_bytes / max(header.values, 1) * chunk.num_values / chunk.rows


class LargePages:
    """The memory of the large pages of a row group that are decoded together. Columns use it from any thread."""

    def __init__(self, bytes_max: int, path: str) -> None:
        self._bytes_max = bytes_max
        self._path = path
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int, chunk: ColumnChunk) -> None:
        """Count pages before they are decoded. ``BudgetExhausted`` if all of them are too large together."""
        with self._lock:
            self._bytes += size_bytes
            together = self._bytes
        if together > self._bytes_max:
            self.remove(size_bytes)
            raise BudgetExhausted(
                f"row group {chunk.row_group}: the largest pages of its columns become {together} bytes together, and"
                f" {self._bytes_max} are allowed; read fewer columns at once, or raise memory_bytes or page_bytes_max",
                operation="scan",
                path=self._path,
            )

    def remove(self, size_bytes: int) -> None:
        """Count released pages."""
        with self._lock:
            self._bytes -= size_bytes


def chunk_refused(chunk: ColumnChunk, what: object, path: str) -> UntrustedMetadata:
    """The error for a chunk with impossible pages."""
    where = f"row group {chunk.row_group}, column {'.'.join(chunk.path)!r}"
    return UntrustedMetadata(f"{where}: {what}", operation="scan", path=path)


def damaged_page(chunk: ColumnChunk, view: memoryview, *, page_bytes_max: int) -> int | None:
    """The start of the first page whose bytes differ from the checksum of its header, or ``None``.

    ``view`` holds the chunk. pyarrow finds such a page too, but does not name the column.
    """
    position = 0
    try:
        while position < len(view):
            header = read_page_header(view, position, len(view), chunk.codec, bytes_max=page_bytes_max)
            assert header is not None
            kind, checksum = thrift.read_struct(view, position)[0].get(_CHECKSUM_FIELD, (0, 0))
            if kind == thrift.I32 and zlib.crc32(view[header.data_start : header.end]) != checksum & 0xFFFFFFFF:
                return chunk.start + position
            position = header.end
    except BadPage:  # Also if the bytes were released already.
        return None
    return None


# --- indexes ----------------------------------------------------------------------------------------------------------

# Indexes of wanted columns lie among others: up to this gap they share a request.
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
    fields = _index_fields(raw, "offset index", chunk, path)
    pages = _list_of(fields, 1, thrift.STRUCT)
    if pages is None:
        raise _bad_index("offset index", chunk, "has no pages", path)
    starts: list[int] = []
    sizes: list[int] = []
    first_rows: list[int] = []
    position, row = chunk.start, 0
    for page in pages:
        start, size, first_row = (_index_number(page, number) for number in (1, 2, 3))
        if start is None or size is None or first_row is None:
            raise _bad_index("offset index", chunk, "has a page without place, size or row", path)
        if size < 1 or start < position or start + size > chunk.end:
            raise _bad_index("offset index", chunk, f"puts a page at [{start}, {start + size})", path)
        if not row <= first_row <= chunk.rows or (not starts and first_row):
            raise _bad_index(
                "offset index", chunk, f"has a page that begins with row {first_row} of {chunk.rows}", path
            )
        starts.append(start)
        sizes.append(size)
        first_rows.append(first_row)
        position, row = start + size, first_row
    if not starts and chunk.rows:
        raise _bad_index("offset index", chunk, f"has no page for {chunk.rows} rows", path)
    return OffsetIndex(starts, sizes, first_rows, chunk.rows)


def parse_column_index(raw: bytes | memoryview, chunk: ColumnChunk, offsets: OffsetIndex, *, path: str) -> ColumnIndex:
    """The column index of a chunk with these pages. ``UntrustedMetadata`` if its lists are not as long.

    Counts of nulls are used if they are possible: the column is nullable, and a page of nulls alone has one for each
    row, if they were counted. (parquet-mr writes a page without statistics as a page of nulls, and counts -1 of them.)
    """
    pages = len(offsets)
    fields = _index_fields(raw, "column index", chunk, path)
    nulls = _list_of(fields, 1, thrift.TRUE)
    if nulls is None:
        nulls = _list_of(fields, 1, thrift.FALSE)
    minima, maxima = _list_of(fields, 2, thrift.BINARY), _list_of(fields, 3, thrift.BINARY)
    counts = _list_of(fields, 5, thrift.I64)
    if nulls is None or minima is None or maxima is None:
        raise _bad_index("column index", chunk, "has no bounds", path)
    if not len(nulls) == len(minima) == len(maxima) == pages or (counts is not None and len(counts) != pages):
        raise _bad_index("column index", chunk, f"is not of {pages} pages", path)
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
    pinned: PinnedFile, chunks: Iterable[ColumnChunk], *, bounds_of: Collection[int] = ()
) -> dict[tuple[int, int], Indexes]:
    """The indexes of chunks by row group and leaf, ``(None, None)`` for chunks without any.

    ``bounds_of`` are the leaves whose column indexes are loaded too. Indexes in the tail cost nothing, the others are
    merged into few requests. An index that does not fit is left aside, with a warning in the log: the chunk can be read
    without it. Raises the errors of reads; a cancelled call leaves nothing behind.
    """
    wanted = list(chunks)
    ranges: list[Range] = []
    for chunk in wanted:
        columns = chunk.column_index if chunk.column in bounds_of else None
        ranges += [pair for pair in (chunk.offset_index, columns) if pair is not None]
    views = await _read_all(pinned, ranges)
    indexes: dict[tuple[int, int], Indexes] = {}
    for chunk in wanted:
        offset: OffsetIndex | None = None
        column: ColumnIndex | None = None
        try:
            if chunk.offset_index is not None:
                offset = parse_offset_index(views[chunk.offset_index], chunk, path=pinned.path)
                if chunk.column in bounds_of and chunk.column_index is not None:
                    column = parse_column_index(views[chunk.column_index], chunk, offset, path=pinned.path)
        except UntrustedMetadata as error:
            logger.warning("an index is left aside: %s", error)
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


def _index_fields(raw: bytes | memoryview, what: str, chunk: ColumnChunk, path: str) -> thrift.Struct:
    try:
        return thrift.read_struct(raw)[0]
    except thrift.MalformedThrift as error:
        raise _bad_index(what, chunk, f"is damaged: {error}", path) from error


def _list_of(fields: thrift.Struct, number: int, element: int) -> list[Any] | None:
    """The items of a list, ``None`` if the field is missing or of another type."""
    kind, value = fields.get(number, (0, None))
    return value.items if kind == thrift.LIST and (value.element == element or not value.items) else None


def _index_number(fields: thrift.Struct, number: int) -> int | None:
    kind, value = fields.get(number, (0, None))
    return value if kind in (thrift.I32, thrift.I64) else None


def _bad_index(what: str, chunk: ColumnChunk, problem: str, path: str) -> UntrustedMetadata:
    return UntrustedMetadata(
        f"the {what} of row group {chunk.row_group}, column {'.'.join(chunk.path)!r} {problem}",
        operation="scan",
        path=path,
    )
