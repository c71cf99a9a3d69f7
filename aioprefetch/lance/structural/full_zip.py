"""Full-zip pages, the layout of large values: the levels and the value of each item are stored together.

An item is a control word with its levels (1, 2 or 4 bytes; absent in pages without levels) and its value, unless it is
null. A value has a fixed width, or is a length and the bytes. A second buffer has the position of every row; pages
whose rows have equal widths do not need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aioprefetch.errors import Unsupported
from aioprefetch.lance.structural.chunk_values import ChunkBuffer, decompressed, no_items
from aioprefetch.lance.structural.decoded_rows import (
    DecodedRows,
    LoadedRows,
    equal_breaks,
    flat_rows,
    is_whole,
    list_rows,
    row_starts,
)
from aioprefetch.lance.structural.layouts import (
    FixedSizeListCompression,
    Flat,
    Fsst,
    FullZip,
    General,
    Same,
    Variable,
    max_visible,
)
from aioprefetch.lance.structural.values import (
    Bytes,
    Fixed,
    FixedLists,
    Levels,
    Nulls,
    Positions,
    Texts,
    as_bytes,
    damaged,
    exclusive_sum,
    joined,
    little_endian,
    runs,
)
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges

# The maximum size of a decompressed value.
VALUE_BYTES_MAX = 256 << 20
# At least this number of rows is walked together, fewer are walked one by one.
_TOGETHER_MIN = 32


@dataclass(frozen=True, slots=True)
class _Items:
    """The levels of items in order, and the start of the bytes behind each control word."""

    rep: Levels | None
    definition: Levels | None
    bodies: Positions


class Zip:
    """Reads zipped items of one layout. ``stride`` is the size of an item with a fixed-width value."""

    def __init__(self, layout: FullZip) -> None:
        self.layout = layout
        self._visible = max_visible(layout.layers)
        bits = layout.bits_rep + layout.bits_def
        self.control_bytes = 0 if not bits else 1 if bits <= 8 else 2 if bits <= 16 else 4
        self.has_index = layout.is_variable or layout.bits_rep > 0
        if layout.is_variable:
            if layout.bits not in (8, 16, 32, 64):
                raise Unsupported(f"lengths of {layout.bits} bits are not supported", operation="scan")
            if not isinstance(layout.values, Variable | Fsst | General):
                raise Unsupported(f"{type(layout.values).__name__} in a full-zip page is not supported")
            self.value_bytes = 0
        else:
            if not isinstance(layout.values, Flat | FixedSizeListCompression):
                raise Unsupported(f"{type(layout.values).__name__} in a full-zip page is not supported")
            self.value_bytes = _value_bytes(layout.values)
            if layout.bits != self.value_bytes * 8:
                raise damaged(f"values of {layout.bits} bits, where their encoding needs {self.value_bytes * 8}")
        self.stride = self.control_bytes + self.value_bytes
        self.is_copied = self.control_bytes > 0 or self.has_index or not _is_plain(layout.values)

    def equal_rows(self, data: Bytes, rows: int) -> DecodedRows:
        """Decode ``rows`` rows, each of one item of fixed width."""
        items = data[: rows * self.stride].reshape(rows, self.stride)
        definition = self._levels(np.ascontiguousarray(items[:, : self.control_bytes]))[1]
        values = _fixed_values(self.layout.values, items[:, self.control_bytes :])
        return flat_rows(self.layout.layers, definition, values, RowRanges.one(0, rows))

    def rows(self, data: Bytes, offsets: Positions, rows: int) -> DecodedRows:
        """Decode ``rows`` rows with the boundaries ``offsets``."""
        if not self.layout.bits_rep:
            items = self._items(data, offsets[:-1], offsets[1:])
            texts = self._texts(data, items, offsets[1:])
            return flat_rows(self.layout.layers, items.definition, texts, RowRanges.one(0, rows))
        starts = self._item_starts(data, offsets)
        ends = np.append(starts[1:], data.size)
        items = self._items(data, starts, ends)
        assert items.rep is not None
        if not np.array_equal(starts[row_starts(items.rep, self.layout.layers)], offsets[:-1]):
            raise damaged("rows of a full-zip page do not start where its index says")
        visible = np.ones(starts.size, bool) if items.definition is None else items.definition <= self._visible
        if self.layout.is_variable:
            shown = _Items(
                items.rep, None if items.definition is None else items.definition[visible], items.bodies[visible]
            )
            values: Fixed | FixedLists | Texts = self._texts(data, shown, ends[visible])
        else:
            at = items.bodies[visible]
            bodies = data[runs(at, np.full(at.size, self.value_bytes, np.int64))].reshape(at.size, self.value_bytes)
            values = _fixed_values(self.layout.values, bodies)
        return list_rows(self.layout.layers, items.rep, items.definition, values, RowRanges.one(0, starts.size))

    def _levels(self, words: Bytes) -> tuple[Levels | None, Levels | None]:
        """The repetition and definition levels of control words of shape ``(items, control_bytes)``, contiguous."""
        if not self.control_bytes:
            return None, None
        numbers = words.view(np.dtype(f"<u{self.control_bytes}")).reshape(-1)
        bits_rep, bits_def = self.layout.bits_rep, self.layout.bits_def
        rep = (numbers >> bits_def).astype(np.uint16) if bits_rep else None
        definition = (numbers & ((1 << bits_def) - 1)).astype(np.uint16) if bits_def else None
        return rep, definition

    def _items(self, data: Bytes, starts: Positions, ends: Positions) -> _Items:
        if bool(np.any(starts + self.control_bytes > ends)):
            raise damaged("an item of a full-zip page has no room for its levels")
        at = (starts[:, None] + np.arange(self.control_bytes)).reshape(-1)
        rep, definition = self._levels(data[at].reshape(starts.size, self.control_bytes))
        return _Items(rep, definition, starts + self.control_bytes)

    # --- the starts of items ----------------------------------------------------------------------------------------

    def _item_starts(self, data: Bytes, offsets: Positions) -> Positions:
        """The starts of all items of rows that are lists: item by item over all rows together, then row by row."""
        parts: list[Positions] = []
        at, ends = offsets[:-1], offsets[1:]
        if bool(np.any(at >= ends)):
            raise damaged("a row of a full-zip page without an item")
        while at.size >= _TOGETHER_MIN:
            parts.append(at)
            at = at + self._sizes(data, at, ends)
            if bool(np.any(at > ends)):
                raise damaged("an item of a full-zip page leaves its row")
            more = at < ends
            at, ends = at[more], ends[more]
        if at.size:
            parts.append(self._walk(data, at, ends))
        starts = np.concatenate(parts)
        starts.sort()
        return starts

    def _sizes(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """The sizes of the items at ``at``, in bytes."""
        items = self._items(data, at, ends)
        if not self.layout.is_variable:
            shown = True if items.definition is None else items.definition <= self._visible
            return self.control_bytes + np.where(shown, self.value_bytes, 0).astype(np.int64)
        lengths = np.zeros(at.size, np.int64)
        valid = np.arange(at.size) if items.definition is None else np.flatnonzero(items.definition == 0)
        lengths[valid] = self._lengths(data, items.bodies[valid], ends[valid]) + self.layout.bits // 8
        return self.control_bytes + lengths

    def _walk(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """The starts of all items of a few long rows."""
        raw = data.tobytes()
        control, word = self.control_bytes, self.layout.bits // 8
        mask, visible, fixed = (1 << self.layout.bits_def) - 1, self._visible, not self.layout.is_variable
        starts: list[int] = []
        for start, end in zip(at.tolist(), ends.tolist(), strict=True):
            position = start
            while position < end:
                starts.append(position)
                level = int.from_bytes(raw[position : position + control], "little") & mask
                position += control
                if fixed:
                    position += self.value_bytes if level <= visible else 0
                elif level == 0:
                    position += word + int.from_bytes(raw[position : position + word], "little")
            if position != end:
                raise damaged("an item of a full-zip page leaves its row")
        return np.array(starts, np.int64)

    # --- values of any length ---------------------------------------------------------------------------------------

    def _lengths(self, data: Bytes, bodies: Positions, ends: Positions) -> Positions:
        word = self.layout.bits // 8
        if bool(np.any(bodies + word > ends)):
            raise damaged("an item of a full-zip page has no room for its length")
        stored = data[(bodies[:, None] + np.arange(word)).reshape(-1)].view(np.dtype(f"<u{word}"))
        room = ends - bodies - word
        if bool(np.any(stored > room.astype(np.uint64))):
            raise damaged("a value of a full-zip page is longer than its row")
        lengths: Positions = stored.astype(np.int64)
        return lengths

    def _texts(self, data: Bytes, items: _Items, ends: Positions) -> Texts:
        word = self.layout.bits // 8
        lengths = np.zeros(items.bodies.size, np.int64)
        valid = np.arange(items.bodies.size) if items.definition is None else np.flatnonzero(items.definition == 0)
        lengths[valid] = self._lengths(data, items.bodies[valid], ends[valid])
        stored = joined(data, items.bodies[valid] + word, lengths[valid])
        offsets = exclusive_sum(lengths)
        match self.layout.values:
            case Fsst(table, _):
                return Texts(stored, offsets, table)
            case General(scheme, _):
                # Values are compressed one by one.
                one_by_one = ChunkBuffer(stored, offsets[:-1], lengths)
                contents = decompressed(scheme, one_by_one, np.full_like(lengths, VALUE_BYTES_MAX))
                return Texts(contents.data, exclusive_sum(contents.sizes))
        return Texts(stored, offsets)


def _is_plain(encoding: object) -> bool:
    """Whether values are stored as in Arrow, so that no copy is needed."""
    if isinstance(encoding, FixedSizeListCompression):
        return not encoding.has_validity and _is_plain(encoding.values)
    return isinstance(encoding, Flat) and encoding.bits > 1


def _value_bytes(encoding: FixedSizeListCompression | Flat | Same, items: int = 1) -> int:
    """The bytes of one value with the validity of its items, rounded up to a byte in each layer."""
    if isinstance(encoding, Flat):
        return (items * encoding.bits + 7) // 8
    if isinstance(encoding, Same):
        return 0
    items *= encoding.items
    return ((items + 7) // 8 if encoding.has_validity else 0) + _value_bytes(encoding.values, items)


def _fixed_values(encoding: object, rows: Bytes) -> Fixed | FixedLists:
    """Decode rows of shape ``(count, value bytes)``: the item validity of each layer, then the values."""
    count = rows.shape[0]
    if isinstance(encoding, Flat):
        return _flat(encoding, rows, 1)
    assert isinstance(encoding, FixedSizeListCompression)
    layers: list[tuple[int, Bytes | None]] = []
    items, inner, column = 1, encoding, 0
    while True:
        items *= inner.items
        size = (items + 7) // 8 if inner.has_validity else 0
        validity = None
        if size:
            bits = np.unpackbits(rows[:, column : column + size], axis=1, count=items, bitorder="little")
            validity = bits.reshape(-1)
        layers.append((inner.items, validity))
        column += size
        if isinstance(inner.values, Flat):
            values: Fixed | FixedLists | Nulls = _flat(inner.values, rows[:, column:], items)
            break
        if isinstance(inner.values, Same):
            values = no_items(inner.values, rows.shape[0] * items)
            break
        inner = inner.values
    for dimension, flags in reversed(layers):
        count = values.count // dimension
        values = FixedLists(values, dimension, None if flags is None else flags.view(bool), count)
    assert isinstance(values, FixedLists)
    return values


def _flat(encoding: Flat, rows: Bytes, items: int) -> Fixed:
    if encoding.bits == 1:
        bits = np.unpackbits(rows, axis=1, count=items, bitorder="little")
        return Fixed(bits.reshape(-1), 1, rows.shape[0] * items)
    return Fixed(np.ascontiguousarray(rows).reshape(-1), encoding.bits, rows.shape[0] * items)


class FullZipScheduler:
    """Reads rows of equal width directly, other rows as a whole page or by their positions."""

    def __init__(self, layout: FullZip, rows: int, buffers: Sequence[Range]) -> None:
        self.rows = rows
        self._zip = Zip(layout)
        needed = 2 if self._zip.has_index else 1
        if len(buffers) != needed:
            raise damaged(f"a full-zip page of {len(buffers)} buffers, which needs {needed}")
        self._buffers = tuple(buffers)
        start, end = buffers[0]
        self._index_bytes = 0
        if self._zip.has_index:
            size = buffers[1][1] - buffers[1][0]
            self._index_bytes = size // (rows + 1)
            if self._index_bytes not in (1, 2, 4, 8) or size != self._index_bytes * (rows + 1):
                raise damaged(f"positions of {rows} rows in {size} bytes")
        elif end - start < rows * self._zip.stride:
            raise damaged(f"{rows} rows of {self._zip.stride} bytes in {end - start}")

    def plan(self, ranges: RowRanges) -> list[Range]:
        if not self._zip.has_index:
            return ranges.bytes_at(self._buffers[0][0], self._zip.stride)
        if not self.is_indirect(ranges):
            return list(self._buffers)
        # The position of each row of the ranges, and the end of the last one.
        return [
            (start, end + self._index_bytes) for start, end in ranges.bytes_at(self._buffers[1][0], self._index_bytes)
        ]

    def is_indirect(self, ranges: RowRanges) -> bool:
        return self._zip.has_index and not is_whole(ranges, self.rows, self._buffers)

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        base = self._buffers[0][0]
        row_positions = [self._positions(view) for view in reads]
        return [(base + int(positions[0]), base + int(positions[-1])) for positions in row_positions]

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        views = list(reads)
        if not self._zip.has_index:
            return LoadedRows(ranges, FullZipPage(self._zip, ranges, views, None))
        if self.is_indirect(ranges):
            positions = [self._positions(view) for view in views[: len(ranges)]]
            return LoadedRows(ranges, FullZipPage(self._zip, ranges, views[len(ranges) :], positions))
        positions = [self._positions(views[1])]
        whole = views[0][int(positions[0][0]) :]
        return LoadedRows(ranges, FullZipPage(self._zip, RowRanges.one(0, self.rows), [whole], positions))

    def _positions(self, view: memoryview) -> Positions:
        """Parse row positions. ``UntrustedMetadata`` if they leave the buffer or do not ascend."""
        numbers = little_endian(as_bytes(view), self._index_bytes).astype(np.int64)
        size = self._buffers[0][1] - self._buffers[0][0]
        if numbers[0] < 0 or numbers[-1] > size or bool(np.any(numbers[1:] < numbers[:-1])):
            raise damaged(f"positions of rows leave their {size} bytes, or do not ascend")
        return numbers


class FullZipPage:
    """Some loaded rows of a full-zip page, with the positions of each range if it has an index. Immutable."""

    def __init__(
        self, zipped: Zip, ranges: RowRanges, views: Sequence[memoryview], positions: Sequence[Positions] | None
    ) -> None:
        self._zip = zipped
        self._firsts = ranges.starts
        self._views = [as_bytes(view) for view in views]
        self._positions = positions

    def breaks(self, ranges: RowRanges, rows: int) -> Sequence[int]:
        return equal_breaks(ranges, rows) if self._zip.is_copied else []

    def decode(self, ranges: RowRanges) -> DecodedRows:
        owners = np.searchsorted(self._firsts, ranges.starts, side="right") - 1
        firsts = (ranges.starts - self._firsts[owners]).tolist()
        parts, sizes = [], []
        for first, rows, owner in zip(firsts, ranges.lengths.tolist(), owners.tolist(), strict=True):
            data = self._views[owner]
            if self._positions is None:
                stride = self._zip.stride
                parts.append(data[first * stride : (first + rows) * stride])
                continue
            at = self._positions[owner]
            parts.append(data[at[first] - at[0] : at[first + rows] - at[0]])
            sizes.append(np.diff(at[first : first + rows + 1]))
        zipped = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if self._positions is None:
            return self._zip.equal_rows(zipped, ranges.rows)
        return self._zip.rows(zipped, exclusive_sum(np.concatenate(sizes)), ranges.rows)
