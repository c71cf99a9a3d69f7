"""The wanted rows of a stretch of rows, as ordered, disjoint ranges, and positions in them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from aioprefetch.ranges import Range


class WantedRows:
    """Wanted rows ``[start, end)``, ``count`` of them. The n-th wanted row is counted from 0 over all ranges."""

    __slots__ = ("_before", "_ends", "_starts", "count", "ranges")

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.ranges = tuple(pair for pair in ranges if pair[0] < pair[1])
        self._starts = [start for start, _ in self.ranges]
        self._ends = [end for _, end in self.ranges]
        self._before = list(accumulate((end - start for start, end in self.ranges), initial=0))
        self.count = self._before[-1]

    @classmethod
    def all(cls, rows: int) -> WantedRows:
        """All of ``rows`` rows."""
        return cls(((0, rows),))

    @property
    def end(self) -> int:
        """The row behind the last wanted one."""
        return self._ends[-1] if self._ends else 0

    def before(self, row: int) -> int:
        """The number of wanted rows before ``row``."""
        index = bisect_right(self._starts, row) - 1
        if index < 0:
            return 0
        return self._before[index] + min(row, self._ends[index]) - self._starts[index]

    def end_of(self, wanted: int) -> int:
        """The row behind the first ``wanted`` wanted ones; 0 for none."""
        if wanted <= 0:
            return 0
        index = bisect_left(self._before, min(wanted, self.count)) - 1
        return self._starts[index] + min(wanted, self.count) - self._before[index]

    def cut(self, first: int, last: int) -> list[Range]:
        """The rows of the wanted rows number ``first`` to ``last`` (excluded)."""
        ranges: list[Range] = []
        index = max(bisect_right(self._before, first) - 1, 0)
        while index < len(self.ranges) and self._before[index] < last:
            start, before = self._starts[index], self._before[index]
            low = start + max(first - before, 0)
            high = min(start + last - before, self._ends[index])
            if low < high:
                ranges.append((low, high))
            index += 1
        return ranges

    def within(self, start: int, end: int) -> WantedRows:
        """The wanted rows of ``[start, end)``, counted from ``start`` on."""
        return WantedRows((max(low, start) - start, min(high, end) - start) for low, high in self.ranges)
