"""Counts by statistics: of row groups all of whose rows match no data is read, and no statistic is taken too far."""

from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.parquet import thrift
from tests.unit.parquet.parquet_files import chunk_of, tree_of, with_tree, written

pytestmark = pytest.mark.virtual

ROWS, GROUP_ROWS = 80_000, 20_000
LEAVES = {"i": 0, "t": 1, "x": 2, "n": 3, "s": 4}
A, T, X = pc.field("i"), pc.field("t"), pc.field("x")
NULL = pa.scalar(None, pa.int64())


def the_table() -> pa.Table:
    rows = range(ROWS)
    return pa.table(
        {
            "i": rows,
            "t": [f"{row:06}" for row in rows],
            "x": [float(row) for row in rows],
            "n": pa.array([None if row == 10_000 else row for row in rows]),
            "s": [None if row == 30_000 else {"a": row} for row in rows],
        }
    )


TABLE = the_table()


@cache
def file() -> bytes:
    """Larger than what comes with the footer."""
    return written(TABLE, row_group_size=GROUP_ROWS, compression="none", use_dictionary=False)


def marked(low: int | None, high: int | None) -> Callable[[thrift.Struct], None]:
    """Says whether the lower and the upper bound are exact; ``None`` says nothing."""

    def change(statistics: thrift.Struct) -> None:
        for number, mark in ((8, low), (7, high)):
            statistics.pop(number, None)
            if mark is not None:
                statistics[number] = (mark, mark == thrift.TRUE)

    return change


def nulls(count: int | None) -> Callable[[thrift.Struct], None]:
    def change(statistics: thrift.Struct) -> None:
        statistics.pop(3)
        if count is not None:
            statistics[3] = (thrift.I64, count)

    return change


def wide(statistics: thrift.Struct) -> None:
    """Bounds that no row has, and that claim to be exact."""
    statistics[6], statistics[5] = (thrift.BINARY, b"0"), (thrift.BINARY, b"1")


def changed(column: str, change: Callable[[thrift.Struct], None] | None) -> bytes:
    tree = tree_of(file())
    for group in range(ROWS // GROUP_ROWS if change is not None else 0):
        change(chunk_of(tree, group, LEAVES[column])[3][1][12][1])  # type: ignore[misc]
    return with_tree(file(), tree)


YES, NO = thrift.TRUE, thrift.FALSE
CASES: list[tuple[str, Any, Any, bool]] = [
    ("i", None, A >= 0, True),
    ("i", None, [("i", ">=", 0), ("t", "<", "1")], True),
    ("i", None, [[("i", "<", 20_000)], [("t", ">=", "060000")]], True),
    ("i", None, ~(A < 40_000), True),
    ("i", None, A.is_valid(), True),
    ("i", None, (A >= 0) | (A + 1 > 5), False),
    ("i", None, A >= 50_000, False),
    ("i", None, A.isin([1, 2]), False),
    ("i", None, ~A.isin([100_000]), True),
    ("i", None, pc.field(0) >= 0, False),
    ("i", None, A > NULL, True),
    ("i", None, ~(A > NULL), True),
    ("i", marked(None, None), A >= 0, True),
    ("i", marked(YES, NO), A >= 0, False),
    ("i", nulls(None), A >= 0, False),
    ("i", nulls(-1), A >= 0, False),
    ("i", nulls(1), A >= 0, False),
    ("t", None, T >= "0", True),
    ("t", marked(None, None), T >= "0", False),
    ("t", marked(YES, None), T >= "0", False),
    ("t", marked(NO, YES), T >= "0", False),
    ("t", wide, T >= "0", True),
    ("t", wide, T < "08", False),
    ("x", None, X >= 0.0, False),
    ("x", None, (A >= 0) & (X >= 0.0), False),
    ("n", None, (pc.field("n") >= 40_000) & (A >= 40_000), True),
    ("n", None, pc.field("n") >= 0, False),
    ("n", None, pc.field("n").is_null(), False),
    ("s", None, (pc.field("s", "a") >= 40_000) & (A >= 40_000), True),
    ("s", None, pc.field("s", "a") >= 0, False),
]


@pytest.fixture
async def op() -> AsyncIterator[ap.Operator]:
    async with ap.Operator.from_uri("memory://") as operator:
        yield operator


async def count(op: ap.Operator, path: Any = None, **options: Any) -> tuple[int, int]:
    """The rows, and the requests."""
    before = op.statistics["action_http_get_request"]
    found = await ap.parquet.count_rows(op, path, **options)
    return found, op.statistics["action_http_get_request"] - before


@pytest.mark.parametrize(("column", "change", "filters", "is_known"), CASES)
async def test_rows_are_counted_by_statistics_that_prove_it(
    op: ap.Operator, column: str, change: Any, filters: Any, is_known: bool
) -> None:
    """A footer alone is one request. By pyarrow, of the rows; and in a directory as by itself."""
    await op.write("d/k", changed(column, change))
    expression = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
    expected = ds.InMemoryDataset(TABLE).count_rows(filter=expression)
    for path in ("d/k", "d/"):
        found, requests = await count(op, path, filters=filters)
        assert found == expected
        if path == "d/k":
            assert (requests == 1) == is_known


async def test_filters_on_partitions_leave_the_rest_to_statistics(op: ap.Operator) -> None:
    for part in range(3):
        await op.write(f"t/m={part}/k", file())
    filters = [[("m", "==", 1), ("i", ">=", 20_000)], [("m", "==", 2)]]
    assert (await count(op, "t/", filters=filters))[0] == 60_000 + ROWS
    files = [ap.ScanFile(f"t/m={part}/k", partition={"m": part}) for part in range(3)]
    assert (await count(op, files=files, filters=filters))[0] == 60_000 + ROWS


async def test_rows_that_a_catalog_leaves_out_are_not_counted(op: ap.Operator) -> None:
    await op.write("k", file())
    files = [
        ap.ScanFile("k", skip=[0, 5, 30_000]),
        ap.ScanFile("k", rows=(10, 25_000)),
        ap.ScanFile("k", rows=[(0, 20), (79_990, 80_000)], skip=[10, 50]),
    ]
    for filters, expected in ((None, 79_997 + 24_990 + 29), ([("i", ">=", 10)], 79_989 + 24_990 + 19)):
        table = await ap.parquet.read_table(op, files=files, columns=["i"], filters=filters)
        assert await count(op, files=files, filters=filters) == (expected, 3 if filters is None else 6)
        assert table.num_rows == expected


async def test_a_column_of_many_bytes_is_counted_once(op: ap.Operator) -> None:
    """Other scans evaluate such a filter before they read more."""
    rows = 4_000_000
    table = pa.table({"i": pa.array(range(rows), pa.int64())})
    await op.write("large", written(table, row_group_size=rows // 4, compression="none", use_dictionary=False))
    assert await ap.parquet.count_rows(op, "large", filters=[("i", ">", 5), ("i", "<", rows - 5)]) == rows - 11
