"""What is checked of a chunk's pages before pyarrow decodes them."""

from __future__ import annotations

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.page_header import UNCOMPRESSED, BadPage, first_page_values, read_page_header
from aioprefetch.parquet.sparse_file import SparseFile

# Chunks below this size are too many for all their headers to be read, unless they must be.
_SMALL_CHUNK_BYTES = 64 << 10


def check_pages(chunk: ColumnChunk, memory: SparseFile, path: str) -> bool:
    """Check what the headers of all pages of a chunk claim, which has come as a whole. From any thread.

    ``UntrustedMetadata`` for pages that claim to become larger than they can; those that are not compressed cannot.
    Returns whether the pages are known to have exactly the rows that the footer tells. They never are within lists.
    """
    is_flat = chunk.max_repetition == 0
    view = memory.view(0, chunk.end)
    if chunk.codec == UNCOMPRESSED:
        if is_flat and first_page_values(view, chunk.start) == chunk.rows:
            return True
        if not is_flat or chunk.size < _SMALL_CHUNK_BYTES:
            return False
    position, values = chunk.start, 0
    try:
        while position < chunk.end and values < chunk.num_values:
            header = read_page_header(view, position, chunk.end, chunk.codec)
            assert header is not None
            position = header.end
            values += header.values if header.is_data else 0
    except BadPage as error:
        raise chunk_refused(chunk, error, path) from error
    return is_flat and values == chunk.rows


def chunk_refused(chunk: ColumnChunk, what: object, path: str) -> UntrustedMetadata:
    """The error for a chunk that cannot be what it claims."""
    where = f"row group {chunk.row_group}, column {'.'.join(chunk.path)!r}"
    return UntrustedMetadata(f"{where}: {what}", operation="scan", path=path)
