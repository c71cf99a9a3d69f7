"""Rows out of pyarrow: pieces in any order, row groups together where that is safe and apart where it is not."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioprefetch.errors import Unsupported
from aioprefetch.parquet.row_groups import RowReader, concatenated, one_array
from tests.unit.parquet.parquet_files import footer_at_hand, written

ROWS = 4_000
TABLE = pa.table({"i": pa.array(range(ROWS), pa.int64()), "s": [f"text {n}" for n in range(ROWS)]})
FOUR_GROUPS = written(TABLE, row_group_size=1_000, data_page_size=500, write_batch_size=50)


def row_reader(
    data: bytes, groups: list[int], end: int, check: Callable[[int], bool] = lambda group: True
) -> RowReader:
    metadata = footer_at_hand(data).metadata
    first_rows = list(accumulate((metadata.row_group(group).num_rows for group in groups), initial=0))
    return RowReader(
        lambda: pa.BufferReader(data), metadata, groups, [0, 1], first_rows=first_rows, end=end, check=check
    )


def test_rows_between_pieces_are_dropped() -> None:
    reader = row_reader(FOUR_GROUPS, [1, 3], 2_000)
    pieces = [reader.expect([(5, 10), (990, 1_010)]), reader.expect([(1_010, 1_011)]), reader.expect([(1_900, 2_000)])]
    found = pa.Table.from_batches([reader.read(piece) for piece in pieces])
    numbers = [*range(1_005, 1_010), *range(1_990, 2_000), *range(3_000, 3_010), 3_010, *range(3_900, 4_000)]
    assert found.column(0).to_pylist() == numbers
    assert reader.row_bytes > 8


def test_after_an_error_nothing_is_decoded() -> None:
    def check(group: int) -> bool:
        if group == 1:
            raise ValueError("no")
        return True

    reader = row_reader(FOUR_GROUPS, [0, 1, 2], 3_000, check)
    pieces = [reader.expect([(n, n + 600)]) for n in (0, 600, 1_200)]
    with pytest.raises(ValueError, match="no"):
        reader.read(pieces[2])
    assert reader.read(pieces[0]).num_rows == 600, "it had been decoded before"
    with pytest.raises(ValueError, match="no"):
        reader.read(pieces[1])


@pytest.mark.parametrize("exact", [True, False])
def test_row_groups_whose_rows_are_not_certain_are_read_apart(exact: bool) -> None:
    data = written(TABLE, row_group_size=100)
    checked: list[int] = []

    def check(group: int) -> bool:
        checked.append(group)
        return exact or group % 3 == 0

    reader = row_reader(data, list(range(40)), ROWS, check)
    pieces = [reader.expect([(start, min(start + 250, ROWS))]) for start in range(0, ROWS, 250)]
    found = pa.Table.from_batches([reader.read(piece) for piece in pieces])
    assert found.equals(TABLE)
    assert checked == list(range(40))


def test_more_rows_than_there_are() -> None:
    reader = row_reader(FOUR_GROUPS, [0], 5_000)
    piece = reader.expect([(0, 1_001)])
    with pytest.raises(ValueError, match="end after 1000 rows"):
        reader.read(piece)


def test_what_is_put_together_has_one_dictionary() -> None:
    batches = [pa.record_batch({"d": pa.array(values).dictionary_encode()}) for values in (["a", "b"], ["c", "b"])]
    together = concatenated(batches)
    assert together.num_rows == 4
    assert together.column(0).cast(pa.string()).to_pylist() == ["a", "b", "c", "b"]
    assert concatenated(batches[:1]) is batches[0]


def test_more_bytes_than_an_array_holds_are_refused() -> None:
    """Lists whose items together are too many for offsets of 32 bits. Nulls take no memory."""
    items = (1 << 31) - 10
    lists = pa.ListArray.from_arrays(pa.array([0, items], pa.int32()), pa.nulls(items))
    with pytest.raises(Unsupported, match=r"2 rows have more bytes .* ask for fewer rows a batch"):
        concatenated([pa.record_batch({"l": lists})] * 2)
    with pytest.raises(Unsupported, match=r"2 rows have more bytes .* ask for fewer rows a batch"):
        one_array([lists, lists])


def test_rows_that_a_row_group_lacks_are_not_taken_from_the_next_one() -> None:
    """Its last list is said to go on with the one before: a row less than the footer tells."""
    table = pa.table({"i": range(8), "l": [[n] for n in range(8)]})
    data = written(table, row_group_size=4, compression="none", use_dictionary=False)
    footer = footer_at_hand(data)
    chunk = footer.metadata.row_group(0).column(1)
    pages = data[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size]
    levels = pages.index(b"\x02\x00\x00\x00\x08\x00")  # Four repetition levels of 0, as one run.
    place = chunk.data_page_offset + levels + 4
    changed = data[:place] + b"\x03\x08" + data[place + 2 :]  # 0 0 0 1, bit by bit.
    assert pq.read_metadata(pa.BufferReader(changed)).num_rows == 8
    source = partial(pa.BufferReader, changed)
    reader = RowReader(source, footer.metadata, [0, 1], [0, 1], first_rows=[0, 4, 8], end=8, check=lambda _: False)
    piece = reader.expect([(0, 8)])
    with pytest.raises((pa.ArrowException, OSError, ValueError)):
        reader.read(piece)
