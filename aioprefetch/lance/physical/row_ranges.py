"""Sorted, disjoint ranges of rows as arrays, so that a take of thousands of rows is planned without a loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aioprefetch.ranges import Range

Rows = npt.NDArray[np.int64]


class RowRanges:
    """Half-open ranges of rows, ascending, disjoint, none of them empty. Immutable.

    Positions count the rows of all ranges from 0, in order.
    """

    __slots__ = ("_positions", "ends", "rows", "starts")

    def __init__(self, starts: Rows, ends: Rows) -> None:
        self.starts = starts
        self.ends = ends
        self.rows = int(np.sum(ends - starts)) if len(starts) != 1 else int(ends[0] - starts[0])
        self._positions: Rows | None = None

    @classmethod
    def one(cls, start: int, end: int) -> RowRanges:
        """A single range, none if it is empty."""
        pair = [start, end] if end > start else []
        return cls(np.array(pair[:1], np.int64), np.array(pair[1:], np.int64))

    @classmethod
    def of(cls, ranges: Sequence[Range]) -> RowRanges:
        """The same ranges, which the caller has sorted."""
        pairs = np.array(ranges, np.int64).reshape(-1, 2)
        kept = pairs[pairs[:, 1] > pairs[:, 0]]
        return cls(np.ascontiguousarray(kept[:, 0]), np.ascontiguousarray(kept[:, 1]))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Rows:
        """Rows of each range."""
        return self.ends - self.starts

    @property
    def positions(self) -> Rows:
        """The position of the first row of each range, and behind the last one the number of rows."""
        if self._positions is None:
            positions = np.zeros(len(self.starts) + 1, np.int64)
            np.cumsum(self.ends - self.starts, out=positions[1:])
            self._positions = positions
        return self._positions

    def is_whole(self, rows: int) -> bool:
        """Whether it is all of ``rows`` rows."""
        return len(self.starts) == 1 and self.starts[0] == 0 and self.ends[0] == rows

    def row_at(self, position: int) -> int:
        """The row at a position."""
        if len(self.starts) == 1:
            return int(self.starts[0]) + position
        index = int(np.searchsorted(self.positions, position, side="right")) - 1
        return int(self.starts[index] + position - self.positions[index])

    def within(self, start: int, end: int) -> RowRanges:
        """What of them lies in ``[start, end)``, counted from ``start``."""
        if len(self.starts) == 1:
            return RowRanges.one(max(int(self.starts[0]), start) - start, min(int(self.ends[0]), end) - start)
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left"))
        starts = np.maximum(self.starts[first:last], start) - start
        return RowRanges(starts, np.minimum(self.ends[first:last], end) - start)

    def scaled(self, factor: int) -> RowRanges:
        """The items of these rows, where each row has ``factor`` items."""
        return RowRanges(self.starts * factor, self.ends * factor)

    def bytes_at(self, base: int, width: int) -> list[Range]:
        """Where these rows of ``width`` bytes each lie, the first of all rows being at ``base``."""
        if len(self.starts) == 1:
            return [(base + int(self.starts[0]) * width, base + int(self.ends[0]) * width)]
        return list(zip((base + self.starts * width).tolist(), (base + self.ends * width).tolist(), strict=True))
