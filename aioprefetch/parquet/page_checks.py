"""What is checked of a chunk's pages before pyarrow decodes them."""

from __future__ import annotations

import threading
import zlib
from typing import NamedTuple

from aioprefetch.errors import BudgetExhausted, UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.page_header import (
    LARGE_PAGE_BYTES,
    PAGE_BYTES_DEFAULT,
    UNCOMPRESSED,
    BadPage,
    first_page_values,
    read_page_header,
)
from aioprefetch.parquet.sparse_file import SparseFile

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
