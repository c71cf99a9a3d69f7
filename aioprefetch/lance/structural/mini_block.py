"""Mini-block pages, the layout of small values: chunks of up to 32 Ki values that are decoded as a whole.

A page is read whole if most of it is wanted, or if it is small. Otherwise its chunk metadata, dictionary and repetition
index are read first, and then the chunks with wanted rows. Only those chunks are decoded, all at once: decoding takes
memory for the wanted rows and a chunk at either end, not for the page.

A dictionary is a block: one buffer of values that is not divided into chunks.

Every number of the chunk metadata, the repetition index and the chunk headers is checked here before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aioprefetch.errors import Unsupported
from aioprefetch.lance.compression import decode_fsst, decompress_within
from aioprefetch.lance.structural import chunk_values
from aioprefetch.lance.structural.chunk_values import ChunkBuffer, Pick, split_runs
from aioprefetch.lance.structural.decoded_rows import (
    DecodedRows,
    Deferred,
    LoadedRows,
    decode_levels,
    flat_rows,
    is_whole,
    list_rows,
    row_starts,
)
from aioprefetch.lance.structural.layouts import (
    ByteStreamSplit,
    Encoding,
    Flat,
    Fsst,
    General,
    InlineBitpacked,
    MiniBlock,
    OutOfLineBitpacked,
    Rle,
    Same,
    Variable,
)
from aioprefetch.lance.structural.values import (
    Bytes,
    Coded,
    Fixed,
    FixedLists,
    Flags,
    Levels,
    Positions,
    Texts,
    as_bytes,
    damaged,
    exclusive_sum,
    little_endian,
)
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges
from aioprefetch.row_ranges import runs as row_runs

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

    def spans(self, ranges: RowRanges) -> tuple[Positions, Positions]:
        """The first and the last chunk of each range of rows."""
        first = self.rows.searchsorted(ranges.starts, side="right") - 1
        if self.has_preamble is None:
            return first, self.rows.searchsorted(ranges.ends - 1, side="right") - 1
        # The last row ends where the next row starts: in the same chunk, or before a chunk that begins with the next
        # row.
        following = self.rows.searchsorted(ranges.ends, side="right") - 1
        inside = following < self.count
        rest = np.zeros(following.size, bool)
        chunk = following[inside]
        rest[inside] = self.has_preamble[chunk] | (self.rows[chunk] < ranges.ends[inside])
        return first, np.where(rest, following, following - 1)

    def within(self, spans: tuple[Positions, Positions]) -> Positions:
        """The numbers of the chunks of some spans, ascending and distinct."""
        marks = np.bincount(spans[0], minlength=self.count + 1)
        marks -= np.bincount(spans[1] + 1, minlength=self.count + 1)
        return np.flatnonzero(np.cumsum(marks[:-1]) > 0)


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


# --- pages ------------------------------------------------------------------------------------------------------------

# The maximum number of items of one column of a batch: a few bytes can claim thousands of items.
ITEMS_MAX = 1 << 29


class MiniBlockScheduler:
    """Reads all buffers of a mini-block page at once, or first all but the chunks, and then the wanted ones."""

    def __init__(self, layout: MiniBlock, rows: int, buffers: Sequence[Range]) -> None:
        needed = 2 + (layout.dictionary is not None) + (layout.index_depth > 0)
        if len(buffers) != needed:
            raise damaged(f"a mini-block page of {len(buffers)} buffers, which needs {needed}")
        self.rows = rows
        self._layout = layout
        self._chunk_buffer = buffers[1]
        self._buffers = tuple(buffers)
        self._index_buffers = (buffers[0], *buffers[2:])

    def plan(self, ranges: RowRanges) -> list[Range]:
        return list(self._index_buffers if self.is_indirect(ranges) else self._buffers)

    def is_indirect(self, ranges: RowRanges) -> bool:
        return not is_whole(ranges, self.rows, self._buffers)

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        return self._chunk_ranges(self._index(reads), ranges)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        views, is_indirect = list(reads), self.is_indirect(ranges)
        return LoadedRows(ranges, Deferred(lambda: self._page(ranges if is_indirect else None, views)))

    def _index(self, views: Sequence[memoryview]) -> ChunkIndex:
        """The index of the page, from the bytes of all buffers but the chunks."""
        index = as_bytes(views[-1]) if self._layout.index_depth > 0 else None
        start, end = self._chunk_buffer
        return parse_index(self._layout, as_bytes(views[0]), index, end - start, self.rows)

    def _page(self, ranges: RowRanges | None, views: Sequence[memoryview]) -> MiniBlockPage:
        """The page with the chunks of ``ranges``, from the bytes of both steps, or with all, of all buffers."""
        layout, count = self._layout, len(self._index_buffers)
        if ranges is None:
            views = [views[0], *views[2:], views[1]]
        chunks = self._index(views[:count])
        base = self._chunk_buffer[0]
        starts = [0] if ranges is None else [start - base for start, _ in self._chunk_ranges(chunks, ranges)]
        numbers: list[Positions] = []
        places: list[Positions] = []
        before = 0
        for start, view in zip(starts, views[count:], strict=True):
            low = int(chunks.starts.searchsorted(start))
            high = int(chunks.starts.searchsorted(start + len(view), side="right")) - 1
            numbers.append(np.arange(low, high))
            places.append(chunks.starts[low:high] - start + before)
            before += len(view)
        ids, at = np.concatenate(numbers), np.concatenate(places)
        data = as_bytes(views[count]) if len(starts) == 1 else np.concatenate([as_bytes(v) for v in views[count:]])
        parts = parse_headers(layout, data, at, at + chunks.starts[ids + 1] - chunks.starts[ids])
        dictionary = None
        if layout.dictionary is not None:
            dictionary = decode_dictionary(layout.dictionary, as_bytes(views[1]), layout.dictionary_items)
        return MiniBlockPage(layout, chunks, ids, parts, dictionary)

    def _chunk_ranges(self, index: ChunkIndex, ranges: RowRanges) -> list[Range]:
        """The bytes of the chunks with rows of ``ranges``. Adjacent chunks are one range."""
        chunks = row_runs(index.within(index.spans(ranges)))
        return RowRanges(index.starts[chunks.starts], index.starts[chunks.ends]).bytes_at(self._chunk_buffer[0], 1)


@dataclass(frozen=True, slots=True)
class MiniBlockPage:
    """The loaded chunks of a mini-block page: their numbers ``ids``, their buffers, and the dictionary of the page."""

    layout: MiniBlock
    chunks: ChunkIndex
    ids: Positions
    parts: ChunkParts
    dictionary: Fixed | Texts | None

    def breaks(self, ranges: RowRanges, rows: int) -> Sequence[int]:
        """Breaks between chunks, so that few chunks are decoded twice."""
        rows_max = max(1, rows * int(self.chunks.items[-1]) // max(1, int(self.chunks.rows[-1])))
        wanted = self.chunks.within(self.chunks.spans(ranges))
        before = exclusive_sum(self.chunks.items[wanted + 1] - self.chunks.items[wanted])[:-1]
        group = before // rows_max
        first = np.flatnonzero(np.diff(group)) + 1
        breaks: list[int] = np.unique(self.chunks.rows[wanted[first]]).tolist()
        return breaks

    def decode(self, ranges: RowRanges) -> DecodedRows:
        spans = self.chunks.spans(ranges)
        at = self.ids.searchsorted(self.chunks.within(spans))
        pick: Pick = slice(int(at[0]), int(at[-1]) + 1) if at[-1] - at[0] == at.size - 1 else at
        ids, parts = self.ids[pick], self.parts.picked(pick)
        counts = self.chunks.items[ids + 1] - self.chunks.items[ids]
        if int(counts.sum()) > ITEMS_MAX:
            raise Unsupported(f"a batch with {int(counts.sum())} items of one column: ask for fewer rows a batch")
        values = chunk_values.decode(self.layout.values, parts.values, counts)
        content = values if self.dictionary is None else _coded(values, self.dictionary)
        if self.layout.rep is None:
            definition = self._definition(parts, counts)
            return flat_rows(self.layout.layers, definition, content, self._moved(ids, counts, ranges, spans[0]))
        assert parts.rep is not None
        rep = decode_levels(self.layout.rep, parts.rep, parts.level_counts)
        definition = self._definition(parts, parts.level_counts)
        positions = self._row_positions(rep, parts.level_counts, ids, ranges, spans)
        return list_rows(self.layout.layers, rep, definition, content, positions)

    def _moved(self, ids: Positions, counts: Positions, ranges: RowRanges, first: Positions) -> RowRanges:
        """The ranges of rows of a page without lists as ranges of values of the chunks ``ids``.

        ``first`` is the first chunk of each range.
        """
        shifts = np.zeros(self.chunks.count, np.int64)
        shifts[ids] = exclusive_sum(counts)[:-1] - self.chunks.items[ids]
        return RowRanges(ranges.starts + shifts[first], ranges.ends + shifts[first])

    def _definition(self, parts: ChunkParts, counts: Positions) -> Levels | None:
        if self.layout.definition is None or parts.definition is None:
            return None
        if not np.array_equal(parts.level_counts, counts):
            raise damaged("a chunk has other than one level per value")
        return decode_levels(self.layout.definition, parts.definition, counts)

    def _row_positions(
        self,
        rep: Levels,
        level_counts: Positions,
        ids: Positions,
        ranges: RowRanges,
        spans: tuple[Positions, Positions],
    ) -> RowRanges:
        """The ranges of rows as ranges of levels of the chunks ``ids``."""
        starts = row_starts(rep, self.layout.layers)
        rows_in = self.chunks.rows[ids + 1] - self.chunks.rows[ids]
        rows_before = exclusive_sum(rows_in)
        if starts.size != rows_before[-1]:
            raise damaged(f"{starts.size} rows start where the repetition index says {int(rows_before[-1])}")
        level_ends = np.cumsum(level_counts)
        owner, last = ids.searchsorted(spans[0]), ids.searchsorted(spans[1])
        first = rows_before[owner] + ranges.starts - self.chunks.rows[spans[0]]
        after = first + ranges.lengths
        low = starts[first]
        # Chunks between two ranges may be missing, so a row ends at the end of its last chunk at the latest.
        high = np.minimum(np.append(starts, rep.size)[after], level_ends[last])
        if bool(np.any(high <= low)):
            raise damaged("rows of a page that contradict its repetition index")
        return RowRanges(low, high)


def _coded(values: Fixed | Texts | FixedLists, dictionary: Fixed | Texts) -> Coded:
    """Values as indices into the dictionary. ``UntrustedMetadata`` for an index without an item."""
    if not isinstance(values, Fixed) or values.bits not in (8, 16, 32, 64):
        raise damaged("dictionary indices that are not numbers")
    indices = np.ascontiguousarray(values.data).view(np.dtype(f"<u{values.width}"))
    if indices.size and int(indices.max()) >= dictionary.count:
        raise damaged(f"index {int(indices.max())} into a dictionary of {dictionary.count} values")
    return Coded(indices, dictionary)


# --- dictionaries -----------------------------------------------------------------------------------------------------

# Real writers use far smaller dictionaries.
DICTIONARY_BYTES_MAX = 256 << 20


def decode_dictionary(encoding: Encoding, data: Bytes, count: int) -> Fixed | Texts:
    """Decode the ``count`` items of a dictionary. ``UntrustedMetadata`` if ``data`` does not hold them."""
    if isinstance(encoding, General):
        bytes_max = DICTIONARY_BYTES_MAX
        if isinstance(encoding.values, Flat):
            bytes_max = min(bytes_max, (count * encoding.values.bits + 7) // 8)
        return decode_dictionary(encoding.values, decompress_within(encoding.scheme, data, bytes_max), count)
    if isinstance(encoding, Variable):
        return _texts(data, count)
    if isinstance(encoding, Fsst):
        coded = _texts(data, count)
        return Texts(*decode_fsst(encoding.symbol_table, coded.data, coded.offsets))
    if isinstance(encoding, Flat | InlineBitpacked | OutOfLineBitpacked | ByteStreamSplit | Rle):
        # A few bytes can claim any number of items, so the limit is on the decoded size.
        if count * encoding.bits > 8 * DICTIONARY_BYTES_MAX:
            raise damaged(f"a dictionary of {count} items of {encoding.bits} bits")
        bounds = np.array([0, data.size, count], np.int64)
        whole = ChunkBuffer(data, bounds[:1], bounds[1:2])
        buffers = split_runs(whole) if isinstance(encoding, Rle) else [whole]
        values = chunk_values.decode(encoding, buffers, bounds[2:])
        assert isinstance(values, Fixed)
        return values
    if isinstance(encoding, Same) and encoding.value:
        width = len(encoding.value)
        if count * width > DICTIONARY_BYTES_MAX:
            raise damaged(f"a dictionary of {count} items of {width} bytes")
        return Fixed(np.tile(np.frombuffer(encoding.value, np.uint8), count), 8 * width, count)
    raise Unsupported(f"a dictionary in {type(encoding).__name__} is not supported", operation="scan")


def _texts(data: Bytes, count: int) -> Texts:
    """Decode texts: a word with the bits of an offset, a word with the start of the bytes, the offsets, the bytes."""
    if data.size < 8:
        raise damaged(f"a block of strings of {data.size} bytes")
    bits = int.from_bytes(data[:4].tobytes(), "little")
    if bits not in (32, 64):
        raise Unsupported(f"a block of strings with offsets of {bits} bits is not supported", operation="scan")
    word = bits // 8
    start = int.from_bytes(data[word : 2 * word].tobytes(), "little")
    if not 2 * word <= 2 * word + (count + 1) * word <= start <= data.size:
        raise damaged(f"a block of {count} strings whose bytes start at {start} of {data.size}")
    offsets = little_endian(data[2 * word : 2 * word + (count + 1) * word], word).astype(np.int64)
    texts = data[start:]
    if offsets[0] < 0 or offsets[-1] > texts.size or bool(np.any(offsets[1:] < offsets[:-1])):
        raise damaged("offsets of strings leave their block, or do not ascend")
    return Texts(texts, offsets)
