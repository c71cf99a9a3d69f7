"""Row selections, compared with lists."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid, InvalidRange, InvalidType
from aioprefetch.lance.dataset import wanted_fragments
from aioprefetch.lance.manifest import Fragment
from aioprefetch.row_ranges import RowSelection, select_rows
from tests.profile import each_of


def rows_of(selection: RowSelection) -> list[int]:
    rows: list[int] = selection.ranges.numbers.tolist()
    assert len(rows) == selection.rows == selection.ranges.rows
    assert rows == sorted(set(rows))
    return rows if selection.order is None else [rows[position] for position in selection.order]


@given(st.integers(0, 20), st.integers(0, 30), st.integers(0, 30))
def test_a_range_is_cut_like_a_slice(total: int, start: int, size: int) -> None:
    assert rows_of(select_rows((start, start + size), None, total)) == list(range(total))[start : start + size]


@given(st.lists(st.integers(0, 30), max_size=40))
def test_take_keeps_order_and_repetitions(numbers: list[int]) -> None:
    selection = select_rows(None, numbers, 31)
    assert rows_of(selection) == numbers
    assert (selection.order is None) == (numbers == sorted(set(numbers)))


@each_of(
    "take",
    [[3, 1], (3, 1), range(3, 0, -2), np.array([3, 1], np.uint8), np.array([3, 1], np.uint64), pa.array([3, 1])],
)
def test_take_by_anything_that_holds_integers(take: Any) -> None:
    assert rows_of(select_rows(None, take, 4)) == [3, 1]


def test_all_rows() -> None:
    assert rows_of(select_rows(None, None, 5)) == list(range(5))
    assert rows_of(select_rows(None, None, 0)) == rows_of(select_rows(None, [], 0)) == []


@each_of(
    ("rows", "take", "error", "message"),
    [
        ((3, 2), None, InvalidRange, "0 <= start <= end"),
        ((-1, 2), None, InvalidRange, "0 <= start <= end"),
        ((0, 1, 2), None, InvalidType, "start, end"),
        (5, None, InvalidType, "start, stop"),
        ("01", None, InvalidType, "start, stop"),
        ((0.0, 1), None, InvalidType, "integer"),
        (None, [4], InvalidRange, "row 4 of 4 rows"),
        (None, [-1], InvalidRange, "row -1 of 4 rows"),
        (None, np.array([1 << 63], np.uint64), InvalidRange, "no row"),
        (None, [1.0], InvalidType, "integers"),
        (None, [True], InvalidType, "integers"),
        (None, "12", InvalidType, "not a list"),
        (None, 3, InvalidType, "not a list"),
        (None, [[1]], InvalidType, "integers"),
        (None, [[1], [1, 2]], InvalidType, "row numbers"),
        (None, pa.array([1, None]), InvalidType, "integers"),
        ((0, 1), [1], ConfigInvalid, "exclude"),
    ],
)
def test_refuses(rows: Any, take: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        select_rows(rows, take, 4)


@given(st.lists(st.integers(0, 5), max_size=8), st.sets(st.integers(0, 40)))
def test_fragments_share_the_rows(sizes: list[int], numbers: set[int]) -> None:
    total = sum(sizes)
    wanted = sorted(number for number in numbers if number < total)
    fragments = [Fragment(index, size, (), None) for index, size in enumerate(sizes)]
    shares = wanted_fragments(fragments, sizes, select_rows(None, wanted, total).ranges)
    found = [sum(sizes[: one.rank]) + row for one in shares for row in one.ranges.numbers.tolist()]
    assert found == wanted
    assert all(one.ranges.rows and one.fragment is fragments[one.rank] for one in shares)
