"""Small holes of deleted rows are read through and dropped; counts of rows match those of lists."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.lance.batches import HOLE_ROWS_MAX, KeptRows, read_through
from aioprefetch.lance.fragment_rows import physical_ranges
from aioprefetch.row_ranges import runs

holes = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 50)), max_size=8)


@given(holes, holes)
def test_holes_are_closed_where_they_are_small(gone: list[tuple[int, int]], unwanted: list[tuple[int, int]]) -> None:
    deleted = {row for start, size in gone for row in range(start, start + size)}
    alive = [row for row in range(400) if row not in deleted]
    left_out = {row for start, size in unwanted for row in range(start, start + size)}
    numbers = [number for number in range(len(alive)) if number not in left_out]
    living = runs(np.array(numbers, np.int64))
    exact = physical_ranges(living, np.array(sorted(deleted), np.int64))
    coarse, dropped = read_through(exact, living)
    read = coarse.numbers.tolist()
    assert [row for position, row in enumerate(read) if position not in set(dropped.tolist())] == [
        alive[number] for number in numbers
    ]
    assert {read[position] for position in dropped} <= deleted
    for (_, stop), (start, _) in pairwise(coarse.bytes_at(0, 1)):
        hole = set(range(stop, start))
        assert len(hole) > HOLE_ROWS_MAX or not hole <= deleted


@given(st.sets(st.integers(0, 50)))
def test_kept_rows_are_counted(dropped: set[int]) -> None:
    rows = KeptRows(np.array(sorted(dropped), np.int64))
    kept = [row for row in range(60) if row not in dropped]
    for read in range(60):
        assert rows.kept(read) == sum(row < read for row in kept)
    assert rows.read(0) == 0
    for count in range(1, len(kept) + 1):
        assert rows.read(count) == kept[count - 1] + 1
