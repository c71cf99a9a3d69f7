"""The layout of a Parquet file for the look-ahead of readers: column chunks by row group, from the footer's own bytes.

Without pyarrow. Nothing here is needed to read: bytes that are wrong or not understood raise ``ValueError``, and the
reader looks ahead without a layout.
"""

from __future__ import annotations

from aioprefetch.parquet.footer_walk import ChunkNumbers, walk_footer
from aioprefetch.ranges import Range

MAGIC = b"PAR1"
# Length of the footer and magic bytes come last; a file has magic bytes at the beginning too.
_END_BYTES = 8
_DATA_START = 4

# The maximum number of names in all paths together, which bounds the work for a schema of deep groups.
_NAMES_MAX = 200_000


def footer_range(end: bytes, size: int) -> Range:
    """The range of the footer in a file of ``size`` bytes that ends with ``end``."""
    length = int.from_bytes(end[-_END_BYTES:-4], "little")
    start = size - _END_BYTES - length
    if len(end) < _END_BYTES or end[-4:] != MAGIC or length == 0 or start < _DATA_START:
        raise ValueError(f"a footer of {length} bytes is claimed in a file of {size}")
    return start, size - _END_BYTES


def columns_of(footer: bytes, size: int) -> list[list[Range]]:
    """The chunks of each leaf by row group. Chunks in other files and encrypted ones are left out."""
    outline = walk_footer(footer, names_max=_NAMES_MAX)
    data_end = size - _END_BYTES - len(footer)
    columns: list[list[Range]] = [[] for _ in outline.shape.paths]
    for number, group in enumerate(outline.chunks):
        if len(group) != len(columns):
            raise ValueError(f"row group {number} has {len(group)} chunks, the schema {len(columns)} leaves")
        for column, said in zip(columns, group, strict=True):
            column.append(_range_of(said, data_end))
    return columns


def _range_of(said: ChunkNumbers, data_end: int) -> Range:
    if said.elsewhere or said.is_encrypted:
        return 0, 0
    start = said.data_page
    if 0 < said.dictionary_page < start:  # Old writers wrote 0 here, or arbitrary numbers.
        start = said.dictionary_page
    end = start + said.compressed_bytes
    if not _DATA_START <= start <= end <= data_end:
        raise ValueError(f"a chunk claims [{start}, {end}) of data that end at {data_end}")
    return start, end
