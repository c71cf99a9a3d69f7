"""Pages of version 2.1 and 2.2 as ``PhysicalPageScheduler``: their reads are planned in one step or two.

A page is read whole if nearly all its rows are wanted, or if it is small: a second round trip costs more than the
bytes. All buffers are submitted together; they are adjacent and become one request.

In a constant page all visible items have the same value, or all are null. Levels are stored in separate buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aioprefetch.lance.physical.protocols import Direct, PhysicalPageScheduler
from aioprefetch.lance.structural.chunk_values import ChunkBuffer
from aioprefetch.lance.structural.decoded_rows import (
    LEVEL_BITS,
    DecodedRows,
    Deferred,
    LoadedRows,
    decode_levels,
    equal_breaks,
    flat_rows,
    list_rows,
    row_starts,
)
from aioprefetch.lance.structural.full_zip import FullZipScheduler
from aioprefetch.lance.structural.layouts import (
    Constant,
    Encoding,
    Flat,
    FullZip,
    MiniBlock,
    PageLayout,
    RepDefLayer,
    max_definition,
    max_repetition,
)
from aioprefetch.lance.structural.mini_block import MiniBlockScheduler
from aioprefetch.lance.structural.values import Bytes, Coded, Fixed, Levels, Nulls, Texts, Values, as_bytes, damaged
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges

# The maximum number of levels of a page, far above the pages of real writers: a few runs can claim any number.
LEVELS_MAX = 1 << 26
_SCALAR_BUFFERS_MAX = 2


class ConstantScheduler(Direct):
    """Reads all buffers of a constant page: at most a value, repetition levels and definition levels."""

    def __init__(self, layout: Constant, rows: int, buffers: Sequence[Range]) -> None:
        self.layout = layout
        self.rows = rows
        self.buffers = tuple(buffers)
        self.has_scalar = layout.inline_value is None and len(buffers) in (1, 3)
        has_levels = len(buffers) - self.has_scalar == 2
        if len(buffers) not in (0, 2, 1, 3) or (layout.inline_value is not None and len(buffers) not in (0, 2)):
            raise damaged(f"a constant page of {len(buffers)} buffers")
        needs_levels = max_repetition(layout.layers) > 0 or (
            max_definition(layout.layers) > 0 and layout.layers != (RepDefLayer.NULLABLE_ITEM,)
        )
        if needs_levels and not has_levels:
            raise damaged("a constant page without the levels that its layers need")

    def plan(self, ranges: RowRanges) -> list[Range]:
        return list(self.buffers)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        views = list(reads)
        return LoadedRows(ranges, Deferred(lambda: self._page(views)))

    def _page(self, views: Sequence[memoryview]) -> ConstantPage:
        parts = [as_bytes(view) for view in views]
        scalar = parts.pop(0) if self.has_scalar else None
        layout = self.layout
        rep = definition = None
        if parts:
            if layout.definition is not None and not max_repetition(layout.layers) and layout.def_values != self.rows:
                raise damaged(f"a constant page of {self.rows} rows claims {layout.def_values} definition levels")
            rep = _levels(layout.rep, parts[0], layout.rep_values)
            definition = _levels(layout.definition, parts[1], layout.def_values)
        return ConstantPage(layout, self.rows, _value(layout, scalar), rep, definition)


class ConstantPage:
    """A loaded constant page. Rows without levels take memory only when they are decoded."""

    def __init__(
        self, layout: Constant, rows: int, value: Fixed | Texts | None, rep: Levels | None, definition: Levels | None
    ) -> None:
        self.layout = layout
        self._value = value
        self._rep = rep
        self._definition = definition
        if (rep is not None) != (max_repetition(layout.layers) > 0):
            raise damaged("the levels of a constant page do not fit its layers")
        if rep is None:
            if definition is not None and definition.size != rows:
                raise damaged(f"a constant page of {rows} rows has {definition.size} definition levels")
            return
        self._starts = np.append(row_starts(rep, layout.layers), rep.size)
        if self._starts.size != rows + 1 or self._starts[0] != 0:
            raise damaged(f"a constant page of {rows} rows has {self._starts.size - 1} in its levels")

    def breaks(self, ranges: RowRanges, rows: int) -> Sequence[int]:
        """No breaks for pages of nulls, which take no memory until they are put into a batch."""
        return [] if self._value is None and self._rep is self._definition is None else equal_breaks(ranges, rows)

    def decode(self, ranges: RowRanges) -> DecodedRows:
        layers = self.layout.layers
        first, last = int(ranges.starts[0]), int(ranges.ends[-1])
        if self._rep is not None:
            low, high = int(self._starts[first]), int(self._starts[last])
            positions = RowRanges(self._starts[ranges.starts] - low, self._starts[ranges.ends] - low)
            if self._definition is not None and self._definition.size != self._rep.size:
                raise damaged(f"{self._rep.size} levels of one kind stand beside {self._definition.size} of the other")
            definition = None if self._definition is None else self._definition[low:high]
            decoded = list_rows(layers, self._rep[low:high], definition, None, positions)
            return DecodedRows(layers, decoded.rep, decoded.definition, self._values(decoded.values.count))
        rows = ranges.rows
        if self._definition is not None:
            near, moved = self._definition[first:last], ranges.within(first, last)
            part = flat_rows(layers, near, Nulls(near.size), moved).definition
            return DecodedRows(layers, None, part, self._values(rows))
        part = np.ones(rows, np.uint16) if max_definition(layers) else None
        return DecodedRows(layers, None, part, self._values(rows))

    def _values(self, count: int) -> Values:
        if self._value is None:
            return Nulls(count)
        return Coded(np.zeros(count, np.uint8), self._value)


def _levels(encoding: Encoding | None, data: Bytes, count: int) -> Levels | None:
    if data.size == 0:
        return None
    if encoding is None:
        encoding, count = Flat(LEVEL_BITS), data.size * 8 // LEVEL_BITS
    if count > LEVELS_MAX:
        raise damaged(f"a constant page of {count} levels")
    sizes = np.array([0, data.size, count], np.int64)
    return decode_levels(encoding, ChunkBuffer(data, sizes[:1], sizes[1:2]), sizes[2:])


def _value(layout: Constant, scalar: Bytes | None) -> Fixed | Texts | None:
    """The constant, stored within the layout or as the Arrow buffers of an array of one value."""
    if layout.inline_value is not None:
        data = np.frombuffer(layout.inline_value, np.uint8)
        return Fixed(data, 8 * data.size, 1)
    if scalar is None:
        return None
    words = scalar[: scalar.size // 4 * 4].view(np.dtype("<u4")).astype(np.int64)
    count = int(words[0]) if words.size else 0
    if not 1 <= count <= _SCALAR_BUFFERS_MAX or words.size <= count:
        raise damaged(f"a constant of {count} buffers")
    sizes = words[1 : 1 + count]
    if 4 * (1 + count) + int(sizes.sum()) != scalar.size:
        raise damaged("the buffers of a constant do not fill their place")
    first = scalar[4 * (1 + count) :][: int(sizes[0])]
    if count == 1:
        return Fixed(first, 8 * first.size, 1)
    if sizes[0] not in (8, 16):
        raise damaged(f"offsets of a constant in {int(sizes[0])} bytes")
    offsets = np.ascontiguousarray(first).view(np.dtype(f"<i{int(sizes[0]) // 2}")).astype(np.int64)
    if not 0 <= offsets[0] <= offsets[1] <= sizes[1]:
        raise damaged("offsets of a constant leave its bytes")
    return Texts(scalar[4 * (1 + count) + int(sizes[0]) :], offsets)


# --- schedulers -------------------------------------------------------------------------------------------------------


def page_scheduler(layout: PageLayout, rows: int, buffers: Sequence[Range]) -> PhysicalPageScheduler[LoadedRows]:
    """The scheduler of a page of ``rows`` rows. ``UntrustedMetadata`` if its buffers do not fit its layout."""
    match layout:
        case MiniBlock():
            return MiniBlockScheduler(layout, rows, buffers)
        case FullZip():
            return FullZipScheduler(layout, rows, buffers)
        case Constant():
            return ConstantScheduler(layout, rows, buffers)
