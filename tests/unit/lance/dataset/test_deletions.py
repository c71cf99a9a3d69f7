"""Deleted rows: their files, and the living rows compared with a list."""

import io
import random
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance import fragment_rows as deletions_module
from aioprefetch.lance.fragment_rows import THREAD_ROWS_MIN, parse_arrow, physical_ranges, read_deletions
from aioprefetch.lance.manifest import DeletionFile, Fragment
from aioprefetch.row_ranges import RowNumbers, runs
from tests.files.lance_files import damaged, stored


def arrow_file(column: pa.Array, name: str = "row_id") -> bytes:
    sink = io.BytesIO()
    table = pa.table({name: column})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


DATA = arrow_file(pa.array([3, 1, 7], pa.uint32()))


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_living_rows_lie_between_deleted_ones(gone: set[int], wanted: set[int]) -> None:
    living = [row for row in range(61) if row not in gone]
    wanted = {row for row in wanted if row < len(living)}
    ranges = runs(np.array(sorted(wanted), np.int64))
    found = physical_ranges(ranges, np.array(sorted(gone), np.int64))
    assert found.numbers.tolist() == [living[row] for row in sorted(wanted)]
    assert bool(np.all(found.lengths > 0))


async def deletions(data: bytes, *, rows: int = 10, count: int | None = None, is_bitmap: bool = False) -> list[int]:
    async with stored(data, "d") as operator:
        fragment = Fragment(0, rows, (), DeletionFile("d", is_bitmap, count))
        return [int(row) for row in await read_deletions(operator, fragment)]


async def test_reads_a_file_of_deleted_rows() -> None:
    assert await deletions(DATA) == [1, 3, 7]
    assert await deletions(DATA, count=3) == [1, 3, 7]
    async with stored({}) as operator:
        assert not len(await read_deletions(operator, Fragment(0, 10, (), None)))


@pytest.mark.parametrize(
    ("data", "rows", "count", "message"),
    [
        (DATA, 7, None, "row 7 of 7 rows"),
        (DATA, 10, 2, "3 rows are deleted where the manifest says 2"),
        (arrow_file(pa.array([1, 1], pa.uint32())), 10, 2, "1 rows are deleted"),
        (arrow_file(pa.array([1], pa.int64())), 10, 1, "its columns are"),
        (arrow_file(pa.array([1, None], pa.uint32())), 10, 2, "nulls"),
        (b"", 10, 1, "damaged"),
        (DATA[:-4], 10, 3, "damaged"),
        (b"ARROW1" + bytes(40), 10, 3, "damaged"),
    ],
)
async def test_refuses(data: bytes, rows: int, count: int | None, message: str) -> None:
    with pytest.raises(UntrustedMetadata, match=message):
        await deletions(data, rows=rows, count=count)


def test_damaged_files_are_refused_or_read() -> None:
    chance = random.Random(5)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(300):
        try:
            parse_arrow(damaged(DATA, chance))
            outcomes["read"] += 1
        except UntrustedMetadata:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10


async def test_many_deleted_rows_are_parsed_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(data: bytes, *, path: str) -> RowNumbers:
        threads.append(threading.get_ident())
        return parse_arrow(data, path=path)

    monkeypatch.setattr(deletions_module, "parse_arrow", noted)
    many = arrow_file(pa.array(range(0, 2 * THREAD_ROWS_MIN, 2), pa.uint32()))
    for count in (THREAD_ROWS_MIN, None):
        assert len(await deletions(many, rows=1 << 20, count=count)) == THREAD_ROWS_MIN
    assert threading.get_ident() not in threads
    await deletions(DATA)
    assert threads[-1] == threading.get_ident()
