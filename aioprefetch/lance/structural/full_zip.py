"""Full-zip pages, the layout of large values: each item's levels and value stand together.

An item is a control word (its levels, in 1, 2 or 4 bytes; none where the page has no levels), then the value, if it has
one: of fixed width, or a length and so many bytes. A second buffer has the position of every row; without it rows are
equally wide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aioprefetch.lance.structural.bytes_of import Positions, as_bytes, damaged, exclusive_sum, little_endian
from aioprefetch.lance.structural.layouts import FullZip
from aioprefetch.lance.structural.segment import Segment, equal_breaks
from aioprefetch.lance.structural.zipped import Zip
from aioprefetch.ranges import Range


class FullZipPlan:
    """Which bytes of a full-zip page are needed. Pure; ranges of bytes are absolute."""

    def __init__(self, layout: FullZip, rows: int, buffers: Sequence[Range]) -> None:
        self.layout = layout
        self.rows = rows
        self.zip = Zip(layout)
        needed = 2 if self.zip.has_index else 1
        if len(buffers) != needed:
            raise damaged(f"a full-zip page of {len(buffers)} buffers, which needs {needed}")
        self.buffers = tuple(buffers)
        start, end = buffers[0]
        self.index_bytes = 0
        if self.zip.has_index:
            size = buffers[1][1] - buffers[1][0]
            self.index_bytes = size // (rows + 1)
            if self.index_bytes not in (1, 2, 4, 8) or size != self.index_bytes * (rows + 1):
                raise damaged(f"positions of {rows} rows in {size} bytes")
        elif end - start < rows * self.zip.stride:
            raise damaged(f"{rows} rows of {self.zip.stride} bytes in {end - start}")

    def data_ranges(self, ranges: Sequence[Range]) -> list[Range]:
        """The bytes of rows of equal width."""
        base, stride = self.buffers[0][0], self.zip.stride
        return [(base + start * stride, base + end * stride) for start, end in ranges]

    def index_ranges(self, ranges: Sequence[Range]) -> list[Range]:
        """The bytes that say where each row of the ranges starts, and where the last one ends."""
        base, width = self.buffers[1][0], self.index_bytes
        return [(base + start * width, base + (end + 1) * width) for start, end in ranges]

    def positions(self, view: memoryview) -> Positions:
        """Row positions that were read, checked against the buffer."""
        numbers = little_endian(as_bytes(view), self.index_bytes).astype(np.int64)
        size = self.buffers[0][1] - self.buffers[0][0]
        if numbers[0] < 0 or numbers[-1] > size or bool(np.any(numbers[1:] < numbers[:-1])):
            raise damaged(f"positions of rows leave their {size} bytes, or do not ascend")
        return numbers

    def page(
        self, ranges: Sequence[Range], views: Sequence[memoryview], positions: Sequence[Positions] | None
    ) -> FullZipPage:
        """The rows of ``ranges``, with their bytes and (where the page has an index) positions of each range."""
        return FullZipPage(self.layout, self.zip, ranges, views, positions)


class FullZipPage:
    """Some rows of a full-zip page, loaded. Never changes."""

    def __init__(
        self,
        layout: FullZip,
        zipped: Zip,
        ranges: Sequence[Range],
        views: Sequence[memoryview],
        positions: Sequence[Positions] | None,
    ) -> None:
        self.layout = layout
        self._zip = zipped
        self._firsts = [start for start, _ in ranges]
        self._views = [as_bytes(view) for view in views]
        self._positions = positions

    def breaks(self, ranges: Sequence[Range], rows: int) -> Sequence[int]:
        """See ``Page``."""
        return equal_breaks(ranges, rows) if self._zip.is_copied else []

    def decode(self, ranges: Sequence[Range]) -> Segment:
        """The rows of ``ranges``: ascending, disjoint, not empty, each within one that was loaded."""
        owners = np.searchsorted(self._firsts, [start for start, _ in ranges], side="right") - 1
        parts, sizes = [], []
        for (start, end), owner in zip(ranges, owners.tolist(), strict=True):
            first, data = start - self._firsts[owner], self._views[owner]
            if self._positions is None:
                stride = self._zip.stride
                parts.append(data[first * stride : (first + end - start) * stride])
                continue
            at = self._positions[owner]
            low, high = first, first + end - start
            parts.append(data[at[low] - at[0] : at[high] - at[0]])
            sizes.append(np.diff(at[low : high + 1]))
        zipped = parts[0] if len(parts) == 1 else np.concatenate(parts)
        rows = sum(end - start for start, end in ranges)
        if self._positions is None:
            return self._zip.equal_rows(zipped, rows)
        return self._zip.rows(zipped, exclusive_sum(np.concatenate(sizes)), rows)
