"""Intervals over time: how many at once, in which row."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.trace.timeline import busy_seconds, chunks, gaps, highest_in_bins, in_flight, packed

INTERVALS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda pair: (float(pair[0]), float(pair[0] + pair[1]))),
    max_size=30,
)


def open_at(intervals: list[tuple[float, float]], moment: float) -> int:
    """How many intervals a moment lies in, counted one by one."""
    return sum(begun <= moment < ended for begun, ended in intervals)


@given(INTERVALS)
def test_in_flight(intervals: list[tuple[float, float]]) -> None:
    steps = in_flight(intervals)
    for moment in range(72):
        number = next((number for at, number in reversed(steps) if at <= moment), 0)
        assert number == open_at(intervals, moment)
    busy, total = busy_seconds(steps)
    assert busy == sum(open_at(intervals, moment) > 0 for moment in range(72))
    assert total == sum(ended - begun for begun, ended in intervals)


@given(INTERVALS)
def test_bins_have_the_highest_number_in_them(intervals: list[tuple[float, float]]) -> None:
    bins = highest_in_bins(in_flight(intervals), 72.0, 36)
    assert bins == [max(open_at(intervals, 2 * number), open_at(intervals, 2 * number + 1)) for number in range(36)]


@given(INTERVALS)
def test_rows_overlap_nowhere_and_are_few(intervals: list[tuple[float, float]]) -> None:
    intervals = [interval for interval in intervals if interval[0] < interval[1]]
    rows = packed(intervals)
    by_row: dict[int, list[tuple[float, float]]] = {}
    for row, interval in zip(rows, intervals, strict=True):
        by_row.setdefault(row, []).append(interval)
    for together in by_row.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(together)))
    assert len(by_row) == max((open_at(intervals, moment) for moment in range(72)), default=0)


@pytest.mark.parametrize(("count", "lengths"), [(0, []), (3, [1, 1, 1]), (4, [2, 2]), (7, [3, 3, 1])])
def test_chunks(count: int, lengths: list[int]) -> None:
    parts = chunks(range(count), 3)
    assert [len(part) for part in parts] == lengths
    assert [number for part in parts for number in part] == list(range(count))


def test_gaps_are_what_no_interval_covers() -> None:
    assert gaps([(1.0, 9.0), (2.0, 3.0), (9.5, 10.0)], 12.0) == [(0.0, 1.0), (9.0, 9.5), (10.0, 12.0)]
    assert gaps([], 0.0) == []
