"""The rows of a scan: a range or row numbers in any order, as sorted, disjoint ranges.

``RowRanges`` keeps ranges as arrays, so that a take of thousands of rows is planned without a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import ConfigInvalid, InvalidRange, InvalidType
from aioprefetch.ranges import Range
from aioprefetch.scan import row_range

Rows = npt.NDArray[np.int64]


class RowRanges:
    """Half-open ranges of rows, ascending, disjoint, not empty. Immutable.

    A position is the number of a row among the rows of all ranges, from 0.
    """

    def __init__(self, starts: Rows, ends: Rows) -> None:
        self.starts = starts
        self.ends = ends
        self.rows = int(np.sum(ends - starts)) if len(starts) != 1 else int(ends[0] - starts[0])
        self._positions: Rows | None = None

    @classmethod
    def one(cls, start: int, end: int) -> RowRanges:
        """The range ``[start, end)``, or no range if it is empty."""
        pair = [start, end] if end > start else []
        return cls(np.array(pair[:1], np.int64), np.array(pair[1:], np.int64))

    @classmethod
    def of(cls, ranges: Sequence[Range]) -> RowRanges:
        """The ranges of the caller, which are sorted."""
        pairs = np.array(ranges, np.int64).reshape(-1, 2)
        kept = pairs[pairs[:, 1] > pairs[:, 0]]
        return cls(np.ascontiguousarray(kept[:, 0]), np.ascontiguousarray(kept[:, 1]))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Rows:
        """The number of rows of each range."""
        return self.ends - self.starts

    @property
    def numbers(self) -> Rows:
        """The numbers of all rows."""
        if bool(np.all(self.lengths == 1)):
            return self.starts
        return np.repeat(self.starts - self.positions[:-1], self.lengths) + np.arange(self.rows)

    @property
    def positions(self) -> Rows:
        """The position of the first row of each range, followed by the number of rows."""
        if self._positions is None:
            positions = np.zeros(len(self.starts) + 1, np.int64)
            np.cumsum(self.ends - self.starts, out=positions[1:])
            self._positions = positions
        return self._positions

    def is_whole(self, rows: int) -> bool:
        """Whether the ranges are all of ``rows`` rows."""
        return len(self.starts) == 1 and self.starts[0] == 0 and self.ends[0] == rows

    def row_at(self, position: int) -> int:
        """The number of the row at a position."""
        if len(self.starts) == 1:
            return int(self.starts[0]) + position
        index = int(np.searchsorted(self.positions, position, side="right")) - 1
        return int(self.starts[index] + position - self.positions[index])

    def rows_between(self, start: int, stop: int) -> Rows:
        """The numbers of the rows at the positions from ``start`` up to ``stop``."""
        if start >= stop:
            return np.empty(0, np.int64)
        first = int(np.searchsorted(self.positions, start, side="right")) - 1
        last = int(np.searchsorted(self.positions, stop, side="left"))
        edges = np.clip(self.positions[first : last + 1], start, stop)
        shifts = self.starts[first:last] - self.positions[first:last]
        return np.arange(start, stop) + np.repeat(shifts, np.diff(edges))

    def within(self, start: int, end: int) -> RowRanges:
        """The rows in ``[start, end)``, counted from ``start``."""
        if len(self.starts) == 1:
            return RowRanges.one(max(int(self.starts[0]), start) - start, min(int(self.ends[0]), end) - start)
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left"))
        starts = np.maximum(self.starts[first:last], start) - start
        return RowRanges(starts, np.minimum(self.ends[first:last], end) - start)

    def between(self, start: int, end: int) -> RowRanges:
        """The rows in ``[start, end)``, with the numbers that they have."""
        shifted = self.within(start, end)
        return RowRanges(shifted.starts + start, shifted.ends + start)

    def scaled(self, factor: int) -> RowRanges:
        """The items of these rows, where each row has ``factor`` items."""
        return RowRanges(self.starts * factor, self.ends * factor)

    def bytes_at(self, base: int, width: int) -> list[Range]:
        """The byte ranges of these rows of ``width`` bytes, if row 0 lies at ``base``."""
        if len(self.starts) == 1:
            return [(base + int(self.starts[0]) * width, base + int(self.ends[0]) * width)]
        return list(zip((base + self.starts * width).tolist(), (base + self.ends * width).tolist(), strict=True))


RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The wanted rows of a table: ``rows`` rows in sorted, disjoint ranges ``[start, stop)``, none of them empty.

    ``order`` has the position of each row of the result among the wanted rows, if rows are requested in another order
    or repeatedly. It is ``None`` if the result is in the order of the table.
    """

    ranges: RowRanges
    rows: int
    order: RowNumbers | None = None


def select_rows(rows: object | None, take: object | None, total: int, *, path: str = "") -> RowSelection:
    """The selection of ``rows=(start, stop)`` or ``take=[...]`` in a table of ``total`` rows.

    A range is cut at the end of the table, as a slice is. ``InvalidRange`` for a row number beyond the table and for
    negative or reversed ranges; ``InvalidType`` for other types.
    """
    if take is not None:
        if rows is not None:
            raise ConfigInvalid("rows= and take= exclude each other", operation="scan", path=path)
        return _taken(row_numbers(take, path=path), total, path)
    start, stop = (0, total) if rows is None else row_range(rows, path=path)
    start, stop = min(start, total), min(stop, total)
    return RowSelection(RowRanges.one(start, stop), stop - start)


def row_numbers(take: Any, *, path: str = "") -> RowNumbers:
    """The row numbers of a caller as an array. Takes a list, a range, or an array of numpy or Arrow."""
    try:
        numbers = np.asarray(take)
    except Exception as error:  # An array-like object of the caller may raise any error.
        raise InvalidType(f"take must be a list of row numbers: {error}", operation="scan", path=path) from error
    if numbers.ndim == 1 and not numbers.size:
        return np.empty(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        if not numbers.ndim:
            raise InvalidType(f"take={take!r:.100} is not a list", operation="scan", path=path)
        raise InvalidType(f"take must be a list of integers, not {take!r:.200}", operation="scan", path=path)
    if numbers.dtype == np.uint64 and int(numbers.max()) > np.iinfo(np.int64).max:
        raise InvalidRange(f"there is no row {int(numbers.max())}", operation="scan", path=path)
    return numbers.astype(np.int64)  # A copy, since the caller may change the original before the scan begins.


def _taken(numbers: RowNumbers, total: int, path: str) -> RowSelection:
    if not numbers.size:
        return RowSelection(RowRanges.one(0, 0), 0)
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < 0 or highest >= total:
        wrong = lowest if lowest < 0 else highest
        raise InvalidRange(f"take asks for row {wrong} of {total} rows", operation="scan", path=path)
    if np.all(numbers[1:] > numbers[:-1]):
        return RowSelection(runs(numbers), len(numbers))
    distinct, order = np.unique(numbers, return_inverse=True)
    return RowSelection(runs(distinct), len(distinct), order.astype(np.int64, copy=False))


def runs(numbers: RowNumbers) -> RowRanges:
    """Sorted, distinct numbers as ranges of consecutive numbers."""
    is_first = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1] + 1, out=is_first[1:])
    return RowRanges(numbers[is_first], numbers[np.append(is_first[1:], True)[: len(numbers)]] + 1)
