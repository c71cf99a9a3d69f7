"""A set of the bytes of one object, built from ranges in any order, also overlapping ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from aioprefetch.ranges import Range, intersected, joined, total_length

# Ranges are kept as they come, and joined when they have become twice as many as after the last time.
_UNJOINED_MIN = 32_768


class ByteSet:
    """Bytes of an object. ``ranges`` are ascending and disjoint; ranges that touch are one."""

    __slots__ = ("_is_joined", "_limit", "_ranges")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges: list[Range] = []
        self._is_joined = True
        self._limit = _UNJOINED_MIN
        self.extend(ranges)

    def extend(self, ranges: Iterable[Range]) -> None:
        """Add ranges; empty ones add nothing."""
        kept = self._ranges
        kept += ranges
        self._is_joined = False
        if len(kept) > self._limit:
            self._limit = max(_UNJOINED_MIN, 2 * len(self.ranges))

    @property
    def kept_ranges(self) -> int:
        """How many ranges it keeps now, including overlapping ones."""
        return len(self._ranges)

    def coarsen(self, ranges_max: int) -> bool:
        """Keep at most ``ranges_max`` ranges: those with the smallest gaps become one. Whether any gap was closed."""
        ranges = self.ranges
        excess = len(ranges) - max(1, ranges_max)
        if excess > 0:
            by_gap = sorted(range(1, len(ranges)), key=lambda number: ranges[number][0] - ranges[number - 1][1])
            closed = set(by_gap[:excess])
            coarse: list[Range] = []
            for number, (start, end) in enumerate(ranges):
                if number in closed:
                    coarse[-1] = (coarse[-1][0], end)
                else:
                    coarse.append((start, end))
            self._ranges = coarse
        self._limit = max(_UNJOINED_MIN, 2 * len(self._ranges))
        return excess > 0

    @property
    def ranges(self) -> list[Range]:
        """The ranges, ascending and disjoint."""
        if not self._is_joined:
            self._ranges = joined(self._ranges)
            self._is_joined = True
        return self._ranges

    def count_in(self, start: int, end: int) -> int:
        """The number of its bytes in ``[start, end)``."""
        ranges = self.ranges
        first = max(0, bisect_right(ranges, (start, start)) - 1)
        last = bisect_right(ranges, (end, end))
        return sum(max(0, min(high, end) - max(low, start)) for low, high in ranges[first:last])

    def __len__(self) -> int:
        """The number of bytes."""
        return total_length(self.ranges)

    def __repr__(self) -> str:
        return f"<ByteSet of {len(self)} bytes in {len(self.ranges)} ranges>"

    def __and__(self, other: ByteSet) -> ByteSet:
        return ByteSet(intersected(self.ranges, other.ranges))

    def __or__(self, other: ByteSet) -> ByteSet:
        return ByteSet(joined([*self.ranges, *other.ranges]))

    def __sub__(self, other: ByteSet) -> ByteSet:
        end = max((self.ranges or [(0, 0)])[-1][1], (other.ranges or [(0, 0)])[-1][1])
        gaps, position = [], 0
        for low, high in other.ranges:
            gaps.append((position, low))
            position = high
        gaps.append((position, end))
        return ByteSet(intersected(self.ranges, [gap for gap in gaps if gap[0] < gap[1]]))
