"""The chunks of a mini-block page: their positions, their rows, and the buffers within each.

Every number of the chunk metadata, the repetition index and the chunk headers is checked here before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aioprefetch.lance.structural.buffers import Bytes, Flags, Positions, damaged, exclusive_sum, little_endian
from aioprefetch.lance.structural.chunk_values import ChunkBuffer, Pick
from aioprefetch.lance.structural.layouts import MiniBlock
from aioprefetch.ranges import Range

ALIGNMENT = 8
# The word of a chunk has four bits for the logarithm of its number of values.
CHUNK_VALUES_MAX = 1 << 15


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """All chunks of a page, by number.

    ``starts`` are positions within the chunk buffer, ``items`` the number of values before each chunk, and ``rows`` the
    number of rows that start before each chunk; all three have one more entry, for the end of the last chunk.
    ``has_preamble`` says which chunks begin in the middle of a row; it is ``None`` for pages without lists.
    """

    starts: Positions
    items: Positions
    rows: Positions
    has_preamble: Flags | None

    @property
    def count(self) -> int:
        """The number of chunks."""
        return self.starts.size - 1

    def span(self, start: int, end: int) -> Range:
        """The first and the last chunk with parts of the rows ``[start, end)``, a range that is not empty."""
        first = int(self.rows.searchsorted(start, side="right")) - 1
        if self.has_preamble is None:
            return first, int(self.rows.searchsorted(end - 1, side="right")) - 1
        # The last row ends where the next row starts: in the same chunk, or before a chunk that begins with the next
        # row.
        following = int(self.rows.searchsorted(end, side="right")) - 1
        if following < self.count and (self.has_preamble[following] or self.rows[following] < end):
            return first, following
        return first, following - 1

    def spans(self, ranges: Sequence[Range]) -> Positions:
        """The first and the last chunk of each range of rows, shape ``(ranges, 2)``. No range is empty."""
        if len(ranges) == 1:
            return np.array([self.span(*ranges[0])], np.int64)
        bounds = np.array(ranges, np.int64).reshape(-1, 2)
        first = np.searchsorted(self.rows, bounds[:, 0], side="right") - 1
        if self.has_preamble is None:
            last = np.searchsorted(self.rows, bounds[:, 1] - 1, side="right") - 1
            return np.stack([first, last], axis=1)
        following = np.searchsorted(self.rows, bounds[:, 1], side="right") - 1
        inside = following < self.count
        rest = np.zeros(following.size, bool)
        chunk = following[inside]
        rest[inside] = self.has_preamble[chunk] | (self.rows[chunk] < bounds[inside, 1])
        return np.stack([first, np.where(rest, following, following - 1)], axis=1)

    def wanted(self, ranges: Sequence[Range]) -> Positions:
        """The numbers of the chunks that hold rows of the ranges, ascending and distinct."""
        marks = np.zeros(self.count + 1, np.int64)
        spans = self.spans(ranges)
        np.add.at(marks, spans[:, 0], 1)
        np.add.at(marks, spans[:, 1] + 1, -1)
        return np.flatnonzero(np.cumsum(marks[:-1]) > 0).astype(np.int64)


def parse_index(layout: MiniBlock, words: Bytes, index: Bytes | None, chunk_bytes: int, rows: int) -> ChunkIndex:
    """Parse the chunk metadata of a page of ``rows`` rows, and for lists its repetition index.

    ``chunk_bytes`` is the size of the chunk buffer. ``UntrustedMetadata`` for numbers that contradict each other.
    """
    word = 4 if layout.has_large_chunks else 2
    if words.size % word or not words.size:
        raise damaged(f"chunk metadata of {words.size} bytes")
    numbers = little_endian(words, word).astype(np.int64)
    counts = _counts(numbers & 15, layout.items)
    starts = exclusive_sum(((numbers >> 4) + 1) * ALIGNMENT)
    if starts[-1] > chunk_bytes:
        raise damaged(f"chunks of {int(starts[-1])} bytes in a buffer of {chunk_bytes}")
    items = exclusive_sum(counts)
    if layout.rep is None:
        if layout.items != rows:
            raise damaged(f"a page of {rows} rows holds {layout.items} values")
        return ChunkIndex(starts, items, items, None)
    if index is None:
        raise damaged("a page with lists has no repetition index")
    row_counts, has_preamble = _rows(index, layout.index_depth, numbers.size)
    if int(row_counts.sum()) != rows:
        raise damaged(f"a page of {rows} rows has {int(row_counts.sum())} in its repetition index")
    return ChunkIndex(starts, items, exclusive_sum(row_counts), has_preamble)


def _counts(logarithms: Positions, items: int) -> Positions:
    """The number of values of each chunk. The last chunk has the rest of ``items``."""
    counts = np.int64(1) << logarithms
    left = items - int(counts[:-1].sum())
    if not 0 <= left <= CHUNK_VALUES_MAX or (logarithms[-1] and left != counts[-1]):
        raise damaged(f"the chunks of a page of {items} values leave {left} for the last one")
    counts[-1] = left
    return counts


def _rows(index: Bytes, depth: int, chunks: int) -> tuple[Positions, Flags]:
    """The number of rows that start in each chunk, and flags of the chunks that begin in the middle of a row."""
    stride = depth + 1
    if index.size != chunks * stride * 8:
        raise damaged(f"a repetition index of {index.size} bytes for {chunks} chunks")
    table = little_endian(index, 8).reshape(chunks, stride)[:, :2]
    if int(table.max()) >> 48:
        raise damaged(f"a repetition index that counts {int(table.max())}")
    numbers = table.astype(np.int64)
    has_trailer = numbers[:, 1] > 0
    has_preamble = np.concatenate(([False], has_trailer[:-1]))
    counts = numbers[:, 0] + has_trailer - has_preamble
    if has_trailer[-1] or bool(np.any(counts < 0)):
        raise damaged("a repetition index that ends within a row, or counts rows backwards")
    return counts, has_preamble


@dataclass(frozen=True, slots=True)
class ChunkParts:
    """The levels and values of some chunks."""

    level_counts: Positions
    rep: ChunkBuffer | None
    definition: ChunkBuffer | None
    values: tuple[ChunkBuffer, ...]

    def picked(self, pick: Pick) -> ChunkParts:
        """The parts of the picked chunks."""
        rep = None if self.rep is None else self.rep.picked(pick)
        definition = None if self.definition is None else self.definition.picked(pick)
        return ChunkParts(self.level_counts[pick], rep, definition, tuple(part.picked(pick) for part in self.values))


def parse_headers(layout: MiniBlock, data: Bytes, starts: Positions, ends: Positions) -> ChunkParts:
    """The parts of the chunks ``data[start:end]``. ``UntrustedMetadata`` if their sizes exceed the chunks."""
    has_levels = [layout.rep is not None, layout.definition is not None]
    value_word = 4 if layout.has_large_chunks else 2
    header = 2 + 2 * sum(has_levels) + value_word * layout.value_buffers
    position = starts + _padded(header)
    if bool(np.any(position > ends)):
        raise damaged("a chunk is smaller than its header")
    level_counts = _numbers(data, starts, 2)
    at = starts + 2
    pieces: list[ChunkBuffer | None] = []
    for width, is_there in [*((2, there) for there in has_levels), *((value_word, True),) * layout.value_buffers]:
        if not is_there:
            pieces.append(None)
            continue
        sizes = _numbers(data, at, width)
        pieces.append(ChunkBuffer(data, position, sizes))
        at = at + width
        position = position + _padded(sizes)
        if bool(np.any(position > ends)):
            raise damaged("the buffers of a chunk leave it")
    values = tuple(piece for piece in pieces[2:] if piece is not None)
    return ChunkParts(level_counts, pieces[0], pieces[1], values)


def _padded(size: int | Positions) -> int | Positions:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _numbers(data: Bytes, at: Positions, width: int) -> Positions:
    """The little-endian numbers of ``width`` bytes at the positions ``at``."""
    gathered = data[(at[:, None] + np.arange(width)).reshape(-1)]
    numbers: Positions = gathered.view(np.dtype(f"<u{width}")).astype(np.int64)
    return numbers
