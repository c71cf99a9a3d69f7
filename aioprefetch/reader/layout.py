"""The places of the parts of a file, as its format tells them, and the formats that can tell.

A **layout** lists the columns of a file, each as a series of *chunks* in the order in which they are read: one chunk
for each group of rows. A format is recognised by the last bytes of a file. Its module is imported when a file with
these bytes was seen, never earlier; so ``reader`` depends on no format.

A format for Parquet is built in; another one is a module with the functions of ``LayoutModule`` and an entry in
``FORMATS``. Pure, no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import Range

# The last bytes of a file that a format may look at.
END_BYTES = 64

# A larger footer is not parsed: it would take the interpreter half a second, though on another thread.
FOOTER_BYTES_MAX = 4 << 20

# A layout with more chunks than this is not used.
CHUNKS_MAX = 100_000


class LayoutModule(Protocol):
    """The functions of a format's module. Both functions raise ``ValueError`` for bytes that are not of the format."""

    def footer_range(self, end: bytes, size: int) -> Range:
        """The range of the footer in a file of ``size`` bytes, whose last bytes are ``end``."""

    def columns_of(self, footer: bytes, size: int) -> Sequence[Sequence[Range]]:
        """The chunks of each column by group, an empty range for a missing one. Called on another thread."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the bytes that end its files, and the name of its ``LayoutModule``."""

    name: str
    magic: bytes
    module: str


FORMATS = (Format("parquet", b"PAR1", "aioprefetch.parquet.layout"),)


def format_of(end: bytes) -> Format | None:
    """The format whose files end with these bytes."""
    return next((found for found in FORMATS if end.endswith(found.magic)), None)


class Chunk(NamedTuple):
    """The bytes ``[start, end)`` of one column in one group of rows."""

    start: int
    end: int
    column: int
    group: int


class Layout:
    """The chunks of a file of ``size`` bytes, by place and by column. ``end`` is the end of the last one.

    ``ValueError`` for chunks that overlap or leave the file, and for more than ``CHUNKS_MAX``.
    """

    def __init__(self, columns: Iterable[Sequence[Range]], *, size: int) -> None:
        chunks: list[Chunk] = []
        for column, ranges in enumerate(columns):
            chunks += [Chunk(start, end, column, group) for group, (start, end) in enumerate(ranges) if start < end]
            if len(chunks) > CHUNKS_MAX:
                raise ValueError(f"the file has more than {CHUNKS_MAX} chunks")
        chunks.sort()
        position = 0
        for chunk in chunks:
            if chunk.start < position:
                raise ValueError(f"the chunk at {chunk.start} overlaps the one that ends at {position}")
            position = chunk.end
        if position > size:
            raise ValueError(f"a chunk ends at {position} in a file of {size} bytes")
        self.chunks = chunks
        self.end = position
        self.groups = 1 + max((chunk.group for chunk in chunks), default=-1)
        self._starts = [chunk.start for chunk in chunks]
        self._places = {(chunk.column, chunk.group): number for number, chunk in enumerate(chunks)}

    def touched(self, start: int, end: int) -> range:
        """The numbers of the chunks that a read of ``[start, end)`` touches."""
        first = bisect_right(self._starts, start)
        if first and self.chunks[first - 1].end > start:
            first -= 1
        return range(first, max(first, bisect_right(self._starts, end - 1)))

    def number_of(self, column: int, group: int) -> int | None:
        """The number of the chunk of a column in a group, ``None`` if there is none."""
        return self._places.get((column, group))
