"""The headers of pages: reading them from bytes that may be incomplete, and checking them before pyarrow decodes.

Only the few numbers that a reader of pages needs are read; a header is a Thrift struct of some 20 to 100 bytes. pyarrow
reads the same headers again when it decodes. The numbers by which it would allocate memory are checked here.
"""

from __future__ import annotations

import re
import threading
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from aioprefetch.errors import BudgetExhausted, UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.sparse_file import SparseFile

DATA, INDEX, DICTIONARY, DATA_V2 = range(4)

UNCOMPRESSED = "UNCOMPRESSED"

# pyarrow reads headers up to this size; statistics within them are what makes them long.
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

# What frames, checksums and empty blocks add, whatever the codec.
_SLACK_BYTES = 1024

# A page is decompressed as a whole; the format holds its size in 32 bits, writers aim at a MiB.
PAGE_BYTES_MAX = (1 << 31) - 1


# A page that claims to become larger is refused, unless the caller says so: a file of some KB could take all memory.
PAGE_BYTES_DEFAULT = 256 << 20
# Writers aim at a MiB. Pages above this are added up: a decoder has one of each column in memory.
LARGE_PAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How a scan takes pages: whether checksums are verified where headers have them, and how large pages may become.

    ``bytes_max`` holds for each page that is compressed; others have no more bytes than were read. The largest pages of
    the columns that are decoded together may have ``together_bytes_max``, as far as they are larger than writers make
    them (``LARGE_PAGE_BYTES``).
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
    """One page: ``[start, end)`` in the file, of which the header ends at ``data_start``.

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
        """Whether it holds rows: not a dictionary, nor an index."""
        return self.kind in (DATA, DATA_V2)


def read_page_header(
    view: memoryview, start: int, chunk_end: int, codec: str, *, base: int = 0, bytes_max: int = PAGE_BYTES_DEFAULT
) -> PageHeader | None:
    """The header that begins at ``start``, ``None`` when ``view`` (whose first byte is at ``base``) ends within it.

    Raises ``BadPage`` when it is no header, when the page leaves its chunk, and when it claims to become larger than
    its codec can make it, or than ``bytes_max``.
    """
    try:
        fields, after = thrift.read_struct(view, start - base)
    except thrift.TruncatedThrift as error:
        if base + len(view) >= min(chunk_end, start + HEADER_BYTES_MAX):
            raise BadPage(f"the header at {start} does not end within its chunk") from error
        return None
    except thrift.MalformedThrift as error:
        raise BadPage(f"there is no page header at {start}: {error}") from error
    kind = _number(fields, 1, "type")
    uncompressed = _number(fields, 2, "uncompressed size")
    compressed = _number(fields, 3, "compressed size")
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
    """The number of values of the data page at ``start``, ``None`` if it is another page or not written as usual.

    Only the numbers that a header begins with are looked at, in a tenth of the time.
    """
    found = _DATA_PAGE.match(view, start)
    if found is None:
        return None
    number = 0
    for digit in reversed(found[1]):
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
        inner = _inner(fields, 5, "data page")
        return _number(inner, 1, "number of values"), None, _number(inner, 2, "encoding")
    if kind == DATA_V2:
        inner = _inner(fields, 8, "data page")
        rows = _number(inner, 3, "number of rows")
        return _number(inner, 1, "number of values"), rows, _number(inner, 4, "encoding")
    if kind == DICTIONARY:
        inner = _inner(fields, 7, "dictionary page")
        return _number(inner, 1, "number of values"), 0, _number(inner, 2, "encoding")
    return 0, 0, 0


def _inner(fields: thrift.Struct, number: int, what: str) -> thrift.Struct:
    kind, value = fields.get(number, (0, None))
    if kind != thrift.STRUCT:
        raise BadPage(f"the header of a {what} lacks its counts")
    inner: thrift.Struct = value
    return inner


def _number(fields: thrift.Struct, number: int, what: str) -> int:
    kind, value = fields.get(number, (0, None))
    if kind not in (thrift.I32, thrift.I64) or not 0 <= value <= PAGE_BYTES_MAX:
        raise BadPage(f"a page header has {value!r} as its {what}")
    return int(value)


# Chunks below this size are too many for all their headers to be read, unless they must be.
_SMALL_CHUNK_BYTES = 64 << 10

# Of a PageHeader: the CRC-32 of all bytes of the page behind it.
_CHECKSUM_FIELD = 4


class CheckedPages(NamedTuple):
    """What the headers of a chunk's pages tell: whether they are known to have exactly the rows of the footer.

    They never are within lists. ``large_page_bytes`` is what the largest page becomes, 0 where none is large.
    """

    is_exact: bool
    large_page_bytes: int = 0


def check_pages(
    chunk: ColumnChunk, memory: SparseFile, path: str, *, page_bytes_max: int = PAGE_BYTES_DEFAULT
) -> CheckedPages:
    """Check what the headers of all pages of a chunk claim, which has come as a whole. From any thread.

    ``UntrustedMetadata`` for pages that claim to become larger than they can, or than ``page_bytes_max``; those that
    are not compressed cannot.
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


class LargePages:
    """What the large pages of a row group become that are in memory together. Columns come to it from any thread."""

    def __init__(self, bytes_max: int, path: str) -> None:
        self._bytes_max = bytes_max
        self._path = path
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int, chunk: ColumnChunk) -> None:
        """Count pages before they are decoded. ``BudgetExhausted`` where they are too much together."""
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
        """Pages were given back."""
        with self._lock:
            self._bytes -= size_bytes


def chunk_refused(chunk: ColumnChunk, what: object, path: str) -> UntrustedMetadata:
    """The error for a chunk that cannot be what it claims."""
    where = f"row group {chunk.row_group}, column {'.'.join(chunk.path)!r}"
    return UntrustedMetadata(f"{where}: {what}", operation="scan", path=path)


def damaged_page(chunk: ColumnChunk, view: memoryview, *, page_bytes_max: int) -> int | None:
    """Where the first page begins whose bytes do not have the checksum of its header; ``None`` if none is found.

    ``view`` holds the chunk. pyarrow finds such a page too, and does not say in which column.
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
    except BadPage:  # Also where the bytes were given back already.
        return None
    return None
