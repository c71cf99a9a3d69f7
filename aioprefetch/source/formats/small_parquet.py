"""Small Parquet files, which came whole with their footer: decoded where they are, without a scan.

A scan has requests, memory and threads to look after, and takes a millisecond to begin. Here is nothing to wait for,
and little to decode. What is checked of chunks and pages, and what decodes them, is the same as in a scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from aioprefetch.parquet import Footer
from aioprefetch.parquet.chunk_columns import ChunkColumns
from aioprefetch.parquet.chunks import column_chunks, resolve_columns
from aioprefetch.parquet.group_read import GroupRead
from aioprefetch.parquet.row_ranges import RowRanges
from aioprefetch.parquet.sparse_file import SparseFile

# So many values are decoded in about a millisecond, and need no thread.
_VALUES_MAX = 32 << 10
# Nor does it take longer to decompress so much, by the footer's word.
_UNCOMPRESSED_BYTES_MAX = 1 << 20


def is_small(footer: Footer, columns: Sequence[str], groups: Sequence[int]) -> bool:
    """Whether ``small_batches`` is for these columns of these row groups."""
    names = footer.schema.names
    if footer.pinned.tail_start > 0 or not columns or len(set(names)) < len(names):
        return False
    if any("." in name for name in columns):
        return False  # May mean a field of a struct.
    chunks = [chunk for number in groups for chunk in footer.chunks[number]]
    rows = sum(footer.first_rows[number + 1] - footer.first_rows[number] for number in groups)
    return (
        max(rows * len(footer.shape.paths), sum(chunk.values for chunk in chunks)) <= _VALUES_MAX
        and sum(chunk.uncompressed_bytes for chunk in chunks) <= _UNCOMPRESSED_BYTES_MAX
    )


def small_batches(
    footer: Footer, columns: Sequence[str], groups: Sequence[int], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """All rows of some row groups, in batches of ``batch_rows``. Raises as a scan does."""
    leaves = resolve_columns(footer, columns)
    wanted = set(columns)
    names = [name for name in footer.schema.names if name in wanted]
    memory = SparseFile(footer.size, path=footer.path)
    memory.put(0, footer.pinned.tail[: footer.start])
    groups = [number for number in groups if footer.first_rows[number] < footer.first_rows[number + 1]]
    parts: list[list[GroupRead]] = []
    rows = 0
    for _, found in groupby(column_chunks(footer, groups, leaves), key=lambda chunk: chunk.row_group):
        chunks = list(found)
        all_of_it = RowRanges.all(chunks[0].rows)
        parts.append([GroupRead(chunks, memory, wanted=all_of_it, first=rows, is_resident=True, path=footer.path)])
        rows += chunks[0].rows
    source = ChunkColumns(
        parts,
        wanted=RowRanges.all(rows),
        open_source=memory.source,
        metadata=footer.metadata,
        places=range(len(names)),
        row_bytes=0.0,
        path=footer.path,
        int96_unit=footer.int96_unit,
    )
    try:
        for first in range(0, rows, batch_rows):
            arrays = source.drain(first, min(rows, first + batch_rows))()
            yield pa.RecordBatch.from_arrays([array for _, array in arrays], names=names)
    finally:
        source.close()
