"""The ends of rows: strings and lists store where the bytes or items of each row end, as unsigned 64-bit numbers.

The first row starts at 0. For a null the stored number is the end of the row before plus an adjustment that exceeds
every end: ``v >= adjustment`` means null, and ``v - adjustment`` is the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.physical.protocols import Direct
from aioprefetch.lance.physical.reads import check_fits, joined
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import OFFSET_MAX, Range

Numbers = npt.NDArray[np.uint64]
_WIDTH = 8


@dataclass(frozen=True, slots=True)
class StoredEnds(Direct):
    """Scheduler of the ends of ``rows`` rows in ``buffer``.

    Their contents have ``content_size`` bytes or items in all.
    """

    buffer: Range
    rows: int
    adjustment: int
    content_size: int

    def __post_init__(self) -> None:
        check_fits(self.rows * _WIDTH, self.buffer, f"{self.rows} ends")
        if not 0 < self.adjustment <= OFFSET_MAX:
            raise UntrustedMetadata(f"{self.adjustment} cannot mark rows that are null")

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the ends of each range and of the row before it, whose end is the start of the range."""
        return RowRanges(np.maximum(ranges.starts - 1, 0), ranges.ends).bytes_at(self.buffer[0], _WIDTH)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> tuple[Ends, RowRanges]:
        """The ends of the rows of ``ranges``, and the range of contents of each range of rows.

        ``UntrustedMetadata`` if the ranges of contents do not ascend. Ends within a range are checked when they are
        used.
        """
        values = joined(reads, len(ranges)).view(np.uint64)
        if len(ranges) == 1:
            return self._single(ranges, values)
        return self._many(ranges, values)

    def _single(self, ranges: RowRanges, values: Numbers) -> tuple[Ends, RowRanges]:
        has_before = int(ranges.starts[0]) > 0
        start = _true_end(int(values[0]), self.adjustment) if has_before else 0
        ends = Ends(values[1:] if has_before else values, start, self.adjustment, self.content_size)
        return ends, RowRanges.one(start, ends.bounds(0, ranges.rows)[1])

    def _many(self, ranges: RowRanges, values: Numbers) -> tuple[Ends, RowRanges]:
        has_before = ranges.starts > 0  # True for all ranges except one that starts at row 0.
        sizes = ranges.lengths + has_before
        firsts = np.cumsum(sizes) - sizes
        is_null = values >= np.uint64(self.adjustment)
        ends = np.where(is_null, values - np.uint64(self.adjustment), values)
        starts = np.where(has_before, ends[firsts], np.uint64(0))
        lasts = ends[firsts + sizes - 1]
        if bool(np.any(lasts < starts)) or bool(np.any(starts[1:] < lasts[:-1])) or lasts[-1] > self.content_size:
            raise UntrustedMetadata(f"ends of rows do not ascend, or leave the {self.content_size} that there are")
        lengths = (lasts - starts).astype(np.int64)
        is_row = np.ones(len(values), np.bool_)
        is_row[firsts[has_before]] = False
        rows = ends[is_row]
        if bool(np.any(rows > np.repeat(lasts, ranges.lengths))):
            raise UntrustedMetadata("ends of rows do not ascend")
        moved = starts - (np.cumsum(lengths) - lengths).astype(np.uint64)  # Unsigned differences may wrap around.
        total = int(lengths.sum())
        mark = np.uint64(total + 1)
        kept = rows - np.repeat(moved, ranges.lengths) + np.where(is_null[is_row], mark, np.uint64(0))
        kept_ranges = lengths > 0
        contents = RowRanges(starts[kept_ranges].astype(np.int64), lasts[kept_ranges].astype(np.int64))
        return Ends(kept, 0, total + 1, total), contents


@dataclass(frozen=True, slots=True)
class Ends:
    """The loaded ends of wanted rows. The first row starts at ``start``."""

    values: Numbers
    start: int
    adjustment: int
    content_size: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.values)

    def bounds(self, skip: int, rows: int) -> Range:
        """The range of contents of ``rows`` rows after the first ``skip``.

        ``UntrustedMetadata`` for impossible ends.
        """
        start = self._end(skip - 1) if skip else self.start
        end = self._end(skip + rows - 1) if rows else start
        if not start <= end <= self.content_size:
            raise UntrustedMetadata(f"contents of rows lie in [{start}, {end}) of {self.content_size}")
        return start, end

    def has_nulls(self, skip: int, rows: int) -> bool:
        """Whether one of the rows is null."""
        return rows > 0 and int(self.values[skip : skip + rows].max()) >= self.adjustment

    def write(self, skip: int, rows: int, base: int, out: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """Write the ends of the rows to ``out`` (int32 or int64) as offsets; the first row starts at ``base``.

        Returns flags of the valid rows, ``None`` if all are valid. ``UntrustedMetadata`` unless the ends ascend within
        ``bounds``. The caller has checked that they fit into ``out``.
        """
        start, _ = self.bounds(skip, rows)
        values = self.values[skip : skip + rows]
        is_valid: npt.NDArray[np.bool_] | None = None
        if self.has_nulls(skip, rows):
            is_valid = values < np.uint64(self.adjustment)
            values = np.where(is_valid, values, values - np.uint64(self.adjustment))
        if int(values[0]) < start or bool(np.any(values[1:] < values[:-1])):
            raise UntrustedMetadata("ends of rows do not ascend")
        np.subtract(values, np.uint64((start - base) & 0xFFFF_FFFF_FFFF_FFFF), out=out, casting="unsafe")
        return is_valid

    def row_finder(self) -> RowFinder:
        """A function that finds the row of a position in the wanted contents."""
        is_null = self.values >= np.uint64(self.adjustment)
        return RowFinder(np.where(is_null, self.values - np.uint64(self.adjustment), self.values), self.start)

    def _end(self, row: int) -> int:
        return _true_end(int(self.values[row]), self.adjustment)


@dataclass(frozen=True, slots=True)
class RowFinder:
    """Finds rows by their ends, which carry no adjustment here."""

    ends: Numbers
    start: int

    def __call__(self, position: int) -> int:
        """The row that holds the content at ``position``, counted from where the first row starts."""
        return int(np.searchsorted(self.ends, np.uint64(self.start + position), side="right"))


def _true_end(value: int, adjustment: int) -> int:
    return value - adjustment if value >= adjustment else value
