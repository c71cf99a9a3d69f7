"""Byte arithmetic against naive oracles: sets of positions instead of arithmetic on ends."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import InvalidRange, InvalidType, RangeNotSatisfied
from aioprefetch.ranges import (
    OFFSET_MAX,
    BlockGrid,
    Range,
    checked_int,
    checked_range,
    checked_ranges,
    coalesce,
    resolve_range,
    subtract,
)
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of

KIB = 1024
ranges_in_60 = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def positions(ranges: Iterable[Range]) -> set[int]:
    """Every byte position of some ranges."""
    return {position for start, end in ranges for position in range(start, end)}


class Indexable:
    """What numpy's integers look like."""

    def __index__(self) -> int:
        return 7


@given(st.lists(ranges_in_60, max_size=12), st.integers(0, 15), st.integers(1, 50))
def test_coalesce_keeps_its_promises(ranges: list[Range], gap: int, most: int) -> None:
    merged = coalesce(ranges, gap_bytes=gap, request_bytes_max=most)
    members = sorted(member for piece in merged for member in piece.members)
    assert members == [position for position, (start, end) in enumerate(ranges) if end > start]
    for piece in merged:
        inside = [ranges[member] for member in piece.members]
        assert (piece.start, piece.end) == (min(s for s, _ in inside), max(e for _, e in inside))
        assert piece.size == piece.end - piece.start
        largest = max(end - start for start, end in inside)
        assert piece.size <= max(most, largest)
        missing = sorted(set(range(piece.start, piece.end)) - positions(inside))
        runs = [one for n, one in enumerate(missing) if n == 0 or missing[n - 1] != one - 1]
        for first in runs:  # No hole within a piece is longer than the gap.
            length = next(n for n in range(len(missing) + 1) if first + n not in missing)
            assert length <= gap
    assert [piece.start for piece in merged] == sorted(piece.start for piece in merged)
    assert positions(ranges) <= positions((piece.start, piece.end) for piece in merged)
    for left, right in pairwise(merged):  # What was left apart had to be.
        joined = max(left.end, right.end) - left.start
        assert right.start - left.end > gap or joined > most
    if most >= 100:
        assert all(left.end < right.start for left, right in pairwise(merged))


@given(st.lists(ranges_in_60, max_size=12))
def test_coalesce_without_gap_is_the_union(ranges: list[Range]) -> None:
    merged = coalesce(ranges, gap_bytes=0, request_bytes_max=1000)
    assert positions((piece.start, piece.end) for piece in merged) == positions(ranges)


@checks("s3a:V22")
def test_five_ranges_become_three_requests() -> None:
    """5 incoming, 3 combined, 5944 bytes discarded, 1424 bytes wanted."""
    ranges = [(2 * KIB - 101, 2 * KIB - 1)] + [(k * KIB, k * KIB + 100) for k in (8, 10, 14)]
    ranges.append((40 * KIB, 41 * KIB))
    merged = coalesce(ranges, gap_bytes=4 * KIB, request_bytes_max=1 << 20)
    assert len(merged) == 3
    assert sum(end - start for start, end in ranges) == 1424
    assert sum(piece.size for piece in merged) - 1424 == 5944


@checks("s3a:V23")
def test_neighbours_become_one() -> None:
    """Two neighbours are one request and discard nothing."""
    (piece,) = coalesce([(100, 600), (600, 1100)], gap_bytes=4 * KIB, request_bytes_max=1 << 20)
    assert (piece.start, piece.end, piece.members) == (100, 1100, (0, 1))


@checks("s3a:V24")
def test_a_gap_of_exactly_the_limit_is_bridged() -> None:
    """Our rule bridges ranges that are ``gap_bytes`` or less apart."""
    assert len(coalesce([(0, 100), (4196, 4200)], gap_bytes=4096, request_bytes_max=1 << 20)) == 1
    assert len(coalesce([(0, 100), (4197, 4200)], gap_bytes=4096, request_bytes_max=1 << 20)) == 2


@given(ranges_in_60, st.lists(ranges_in_60, max_size=6))
def test_subtract_leaves_what_is_nowhere_else(wanted: Range, others: list[Range]) -> None:
    missing = subtract(wanted, sorted(one for one in others if one[1] > one[0]))
    assert positions(missing) == positions([wanted]) - positions(others)
    assert all(start < end for start, end in missing)
    assert all(left[1] < right[0] for left, right in pairwise(missing))


@given(st.integers(0, 100), st.integers(1, 30), st.integers(0, 120), st.integers(0, 120))
def test_block_grid(size: int, block_bytes: int, start: int, end: int) -> None:
    grid = BlockGrid(size, block_bytes)
    cells = [range(low, min(low + block_bytes, size)) for low in range(0, size, block_bytes)]
    assert grid.count == len(cells)
    assert [grid.bounds(index) for index in range(grid.count)] == [(cell.start, cell.stop) for cell in cells]
    wanted = set(range(start, end))
    assert list(grid.indices(start, end)) == [n for n, cell in enumerate(cells) if wanted & set(cell)]
    for position in range(size):
        assert position in cells[grid.index(position)]


@given(st.integers(0, 30), st.none() | st.integers(0, 30), st.none() | st.integers(0, 30), st.integers(0, 30))
def test_resolve_range_is_slicing(offset: int, size: int | None, suffix: int | None, total: int) -> None:
    data = list(range(total))
    if suffix is not None:
        expected = data[total - suffix :] if suffix < total else data
    else:
        expected = data[offset:] if size is None else data[offset : offset + size]
    found = resolve_range(offset, size, suffix, total)
    if found is None:
        assert suffix is None
        assert offset >= total > 0
        return
    assert data[found[0] : found[1]] == expected


@each_of("value", [1.0, True, False, "1", None, b"1", 1j, [1]])
def test_no_integer(value: object) -> None:
    with pytest.raises(InvalidType) as caught:
        checked_int(value, "offset", operation="read_at", path="k")
    assert isinstance(caught.value, TypeError)
    assert repr(value) in str(caught.value)
    assert (caught.value.operation, caught.value.path) == ("read_at", "k")


def test_what_counts_as_an_integer() -> None:
    assert checked_range(Indexable(), Indexable(), operation="read", path="k") == (7, 7)
    assert checked_ranges([(Indexable(), 9), [0, 0]], operation="read", path="k") == [(7, 9), (0, 0)]


@checks("reliability:I03", "reliability:K23")
@each_of(("offset", "size"), [(-1, 1), (0, -1), (OFFSET_MAX + 1, 0), (0, OFFSET_MAX + 1), (-(1 << 70), None)])
def test_no_range(offset: int, size: int | None) -> None:
    with pytest.raises(InvalidRange):
        checked_range(offset, size, operation="read", path="k")


def test_claims_of_a_file_must_stay_inside_it() -> None:
    assert checked_range(4, 6, operation="read", path="k", total=10) == (4, 6)
    with pytest.raises(RangeNotSatisfied):
        checked_range(4, 7, operation="read", path="k", total=10)


@each_of(
    ("ranges", "error"),
    [
        (None, InvalidType),
        (5, InvalidType),
        ("ab", InvalidType),
        (b"ab", InvalidType),
        ([None], InvalidType),
        ([(1,)], InvalidType),
        ([(1, 2, 3)], InvalidType),
        (["ab"], InvalidType),
        ([(1, None)], InvalidType),
        ([(1.0, 2)], InvalidType),
        ([(True, 2)], InvalidType),
        ([5], InvalidType),
        ([(2, 1)], InvalidRange),
        ([(-1, 1)], InvalidRange),
        ([(0, OFFSET_MAX + 1)], InvalidRange),
    ],
)
def test_no_ranges(ranges: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked_ranges(ranges, operation="read_ranges", path="k")


def test_ranges_may_come_from_any_iterable() -> None:
    assert checked_ranges(((n, n + 1) for n in range(3)), operation="read", path="k") == [(0, 1), (1, 2), (2, 3)]
    assert checked_ranges([], operation="read", path="k") == []
