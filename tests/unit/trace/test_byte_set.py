"""A set of bytes agrees with a set of integers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.trace.byte_set import ByteSet

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=40)


def numbers_of(ranges: list[tuple[int, int]]) -> set[int]:
    """The bytes of ranges, one by one."""
    return {number for start, end in ranges for number in range(start, end)}


@given(RANGES, RANGES, st.integers(0, 60), st.integers(0, 60))
def test_it_is_a_set(left: list[tuple[int, int]], right: list[tuple[int, int]], start: int, end: int) -> None:
    one, other = ByteSet(left), ByteSet(right)
    mine, theirs = numbers_of(left), numbers_of(right)
    assert len(one) == len(mine)
    assert numbers_of(one.ranges) == mine
    assert all(low < high for low, high in one.ranges)
    assert all(before[1] < after[0] for before, after in zip(one.ranges, one.ranges[1:], strict=False))
    assert numbers_of((one & other).ranges) == mine & theirs
    assert numbers_of((one | other).ranges) == mine | theirs
    assert numbers_of((one - other).ranges) == mine - theirs
    assert one.count_in(start, end) == len(mine & set(range(start, end)))
    assert numbers_of(ByteSet([*left, *right]).ranges) == mine | theirs


def test_ranges_in_any_order_are_joined_now_and_then() -> None:
    """A million reads of the same pages take the memory of the pages."""
    bytes_ = ByteSet()
    for _ in range(50):
        starts = [10 * (number * 7919 % 300) for number in range(1000)]
        bytes_.extend([(start, start + 5) for start in starts])
    assert bytes_.kept_ranges < 40_000
    assert len(bytes_) == 300 * 5
    assert len(bytes_.ranges) == 300
    assert repr(bytes_) == "<ByteSet of 1500 bytes in 300 ranges>"


@given(RANGES, st.integers(1, 10))
def test_coarser_is_the_least_that_is_more(ranges: list[tuple[int, int]], ranges_max: int) -> None:
    """The smallest gaps are closed, and no more of them than must be."""
    bytes_ = ByteSet(ranges)
    before = bytes_.ranges
    gaps = sorted(after[0] - one[1] for one, after in itertools.pairwise(before))
    closed = gaps[: max(0, len(before) - ranges_max)]
    assert bytes_.coarsen(ranges_max) == bool(closed)
    assert numbers_of(bytes_.ranges) >= numbers_of(before)
    assert len(bytes_.ranges) == bytes_.kept_ranges == len(before) - len(closed)
    assert len(bytes_) == len(ByteSet(before)) + sum(closed)
