"""Filters beside a read without statistics: random expressions, statistics and indexes that lie or say nothing."""

import asyncio
import datetime as dt
import itertools
import operator as operators
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.parquet import thrift
from tests.probes.search import searched
from tests.profile import few_rows
from tests.unit.parquet.parquet_files import chunk_of, tree_of, with_tree, written

NAN = float("nan")
DAY = dt.date(2020, 1, 1)
ROWS, GROUP_ROWS = 48, 12
PAGES: dict[str, Any] = {"write_page_index": True, "write_batch_size": 3, "data_page_size": 1, "use_dictionary": False}
Change = Callable[[thrift.Struct], None]


def the_struct(row: int) -> dict[str, Any] | None:
    """With nulls at each level, and a list beside the fields."""
    inner = {"s": None if row % 7 == 6 else f"k{row // 6:02}", "x": NAN if row % 5 == 4 else row / 4}
    struct = {"q": None if row % 3 == 2 else row, "l": [row], "t": None if row % 11 == 10 else inner}
    return None if 20 <= row < 25 or row % 17 == 16 else struct


def the_table() -> pa.Table:
    """A struct first, so that leaves and columns are counted differently; sorted, so that statistics can decide."""
    rows = range(ROWS)
    return pa.table(
        {
            "st": [the_struct(row) for row in rows],
            "i": pa.array([None if row % 7 == 3 else row // 4 for row in rows], pa.int64()),
            "x": [NAN if row % 5 == 4 else None if row % 11 == 10 else row / 4 for row in rows],
            "s": [None if row % 13 == 12 else f"k{row // 6:02}" for row in rows],
            "d": pa.array([DAY + dt.timedelta(days=row // 4) for row in rows], pa.date32()),
            "b": [None if row % 9 == 8 else row >= 24 for row in rows],
            "row": pa.array(rows, pa.int32()),
        }
    )


TABLE = the_table()
FILE = written(TABLE, row_group_size=GROUP_ROWS, **PAGES)
LEAF_OF = {"i": 4, "x": 5, "s": 6, "d": 7, "b": 8, "row": 9}
# Fields of the struct, by the column with values of their kind.
FIELDS = {("st", "q"): "row", ("st", "t", "s"): "s", ("st", "t", "x"): "x"}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-1, 13) | st.sampled_from([2.5, NAN]),
    "x": st.sampled_from([-1.0, 0.0, 2.5, 11.75, 20.0, NAN, 3]),
    "s": st.sampled_from(["", "k", "k03", "k07", "z"]),
    "d": st.integers(-1, 13).map(lambda days: DAY + dt.timedelta(days=days)),
    "b": st.booleans(),
    "row": st.integers(-1, ROWS),
}
COMPARISONS = [operators.eq, operators.ne, operators.lt, operators.le, operators.gt, operators.ge]


@st.composite
def members(draw: st.DrawFn) -> pc.Expression:
    """An expression about one column, which is named, or counted, or about a field of a struct."""
    path = draw(st.none() | st.sampled_from(sorted(FIELDS)))
    name = FIELDS[path] if path else draw(st.sampled_from(sorted(VALUES)))
    column = pc.field(path or draw(st.sampled_from([name, name, name, TABLE.schema.get_field_index(name)])))
    value = draw(VALUES[name])
    kind = draw(st.sampled_from(["compare"] * 4 + ["turned", "in", "null", "valid", "column", "compared"]))
    compare = draw(st.sampled_from(COMPARISONS))
    if kind == "turned":
        return compare(pc.scalar(value), column)
    if kind == "in":
        alike = [one for one in draw(st.lists(VALUES[name], max_size=3)) if type(one) is type(value)]
        return column.isin(pa.array([value, *alike, None][: draw(st.integers(1, 5))]))
    if kind == "null":
        return column.is_null(nan_is_null=draw(st.booleans()))
    if kind == "valid":
        return column.is_valid()
    if kind == "column" and name == "b":
        return column
    if kind == "compared":
        return draw(st.sampled_from(COMPARISONS))(compare(column, value), draw(st.booleans()))
    return compare(column, value)


EXPRESSIONS = st.recursive(
    members(),
    lambda inner: st.one_of(
        st.builds(operators.and_, inner, inner), st.builds(operators.or_, inner, inner), st.builds(operators.inv, inner)
    ),
    max_leaves=8,
)


def no_bounds(index: thrift.Struct) -> None:
    for number in (2, 3):
        index[number][1].items[:] = [b""] * len(index[number][1].items)


def bounds_turned(index: thrift.Struct) -> None:
    index[2], index[3] = index[3], index[2]


def page_missing(index: thrift.Struct) -> None:
    for number in (1, 2, 3):
        del index[number][1].items[-1]


def first_row_of_another(index: thrift.Struct) -> None:
    index[1][1].items[0][3] = (thrift.I64, 1)


def no_pages(index: thrift.Struct) -> None:
    del index[1][1].items[:]


def rows_turned(index: thrift.Struct) -> None:
    pages = index[1][1].items
    pages[0], pages[-1] = pages[-1], pages[0]


COLUMN_INDEX, OFFSET_INDEX = (6, 7), (4, 5)
CHANGES: dict[str, tuple[tuple[int, int], Change]] = {
    "bounds are empty": (COLUMN_INDEX, no_bounds),
    "bounds are turned": (COLUMN_INDEX, bounds_turned),
    "a page is missing": (COLUMN_INDEX, page_missing),
    "rows begin with 1": (OFFSET_INDEX, first_row_of_another),
    "there are no pages": (OFFSET_INDEX, no_pages),
    "rows go back": (OFFSET_INDEX, rows_turned),
}


def with_index(data: bytes, name: str, change: Change, fields: tuple[int, int]) -> bytes:
    """The file with another index of a column, in each row group, before its footer."""
    tree = tree_of(data)
    body = data[: len(data) - 8 - int.from_bytes(data[-8:-4], "little")]
    for group in range(len(tree[4][1].items)):
        chunk = chunk_of(tree, group, LEAF_OF[name])
        start, length = chunk[fields[0]][1], chunk[fields[1]][1]
        index = thrift.read_struct(data[start : start + length])[0]
        change(index)
        raw = thrift.write_struct(index)
        chunk[fields[0]], chunk[fields[1]] = (thrift.I64, len(body)), (thrift.I32, len(raw))
        body += raw
    return with_tree(body + bytes(8), tree)


def with_statistics(data: bytes, name: str, bounds: tuple[bytes, bytes] | None) -> bytes:
    """The file with other bounds of a column's row groups; ``None`` turns them."""
    tree = tree_of(data)
    for group in range(len(tree[4][1].items)):
        statistics = chunk_of(tree, group, LEAF_OF[name])[3][1][12][1]
        turned = statistics[5][1], statistics[6][1]
        for number, bound in zip((6, 5), bounds or turned, strict=True):
            statistics[number] = (thrift.BINARY, bound)
        for number in (1, 2):
            statistics.pop(number, None)
    return with_tree(data, tree)


def indexes_of(column: str) -> dict[str, bytes]:
    return {f"{column}: {what}": with_index(FILE, column, *change[::-1]) for what, change in CHANGES.items()}


FILES = {
    "true": FILE,
    **indexes_of("i"),
    **indexes_of("s"),
    "s has empty statistics": with_statistics(FILE, "s", (b"", b"")),
    "i has turned statistics": with_statistics(FILE, "i", None),
    "x has bounds that are NaN": with_statistics(FILE, "x", (b"\0\0\0\0\0\0\xf8\x7f", b"\0\0\0\0\0\0\xf8\x7f")),
}


def read(data: bytes, filters: Any, **arguments: Any) -> pa.Table:
    async def work() -> pa.Table:
        async with ap.Operator.from_uri("memory://") as operator:
            await operator.write("t/k.parquet", data)
            source = arguments.pop("source", "t/k.parquet")
            return await ap.parquet.read_table(operator, source, filters=filters, **arguments)

    return asyncio.run(work())


def rows_that_match(expression: pc.Expression) -> list[int] | None:
    """By the rows alone, which have no statistics; ``None`` where pyarrow does not evaluate the expression."""
    try:
        found: list[int] = ds.InMemoryDataset(TABLE).to_table(filter=expression)["row"].to_pylist()
    except (pa.ArrowException, TypeError):
        return None
    return found


def check_filter(expression: pc.Expression, file: str, source: str) -> None:
    expected = rows_that_match(expression)
    if expected is None:
        with pytest.raises(ap.InvalidArgument):
            read(FILES[file], expression, source=source)
    else:
        assert read(FILES[file], expression, source=source)["row"].to_pylist() == expected


def test_filters_lose_no_row() -> None:
    """Of one file, and of a directory."""
    sources = st.sampled_from(["t/k.parquet", "t/"])
    searched(check_filter, EXPRESSIONS, st.sampled_from(sorted(FILES)), sources, examples=50, rounds=100)


ABOVE, FALSE = pc.field("x") > 3, pc.scalar(False)


@pytest.mark.parametrize(
    "expression",
    [
        ABOVE.__eq__(FALSE),
        ABOVE.__lt__(pc.scalar(True)),
        ABOVE.__le__(FALSE),
        ABOVE.__eq__(pc.field("i") > 100),
        FALSE.__eq__(pc.field("x") <= pc.field("x")),
        pc.if_else(ABOVE, False, True),
        (pc.field("i") < 3) & ABOVE.__eq__(FALSE),
    ],
    ids=str,
)
def test_nan_is_kept_under_a_comparison_of_comparisons(expression: pc.Expression) -> None:
    """Statistics do not speak of it: here both bounds of a row group are the other value."""
    table = pa.table({"x": [5.0, NAN, 1.0, NAN], "i": [1, 2, 3, 4]})
    assert read(written(table, row_group_size=2), expression)["i"] == table.filter(expression)["i"]


CLAUSES: list[Any] = [
    [("s", "==", "k03")],
    [("s", "in", ["k00", "k07"])],
    [("i", ">=", 9)],
    [("i", "in", [1, 11])],
    [("d", "in", [DAY, DAY + dt.timedelta(days=11)]), ("s", ">", "")],
    [[("i", "<", 1)], [("s", "==", "k07")]],
    [[(("st", "q"), ">", 40)]],
    [[("i", "<", 1)], [(("st", "t", "s"), "in", ["k07"]), (("st", "q"), "!=", 46)]],
]


@pytest.mark.parametrize(("file", "filters"), few_rows(itertools.product(sorted(FILES), CLAUSES), 5), ids=str)
def test_clauses_lose_no_row(filters: Any, file: str) -> None:
    """With rows that the caller wants too, which the indexes have to find."""
    import pyarrow.parquet as pq

    expected = rows_that_match(pq.filters_to_expression(filters))
    assert read(FILES[file], filters)["row"].to_pylist() == expected
    assert read(FILES[file], None, rows=(5, 31))["row"].to_pylist() == [*range(5, 31)]


def test_members_of_a_list_are_of_the_type_of_the_column() -> None:
    """As the filter casts them: noon is the day."""
    noons = [dt.datetime(2020, 1, 5, 12), dt.datetime(2020, 1, 9, 12)]
    with_pages, without = FILE, written(TABLE, row_group_size=GROUP_ROWS)
    found = [read(data, [("d", "in", noons)])["row"].to_pylist() for data in (with_pages, without)]
    assert found == [[*range(16, 20), *range(32, 36)]] * 2


def test_an_index_is_left_aside_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Which names file, column and reason."""
    read(FILES["s: a page is missing"], [("s", "==", "k03")])
    assert any("k.parquet" in line and "'s'" in line and "not of" in line for line in caplog.messages)


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def table() -> AsyncIterator[tuple[ap.Operator, list[str]]]:
    """Forty files by number, the first without ``b``; and the paths of files that were read."""
    read: list[str] = []
    async with ap.Operator.from_uri("memory://") as operator:
        for number in range(40):
            columns = {"a": [number] * 3} if not number else {"a": [number] * 3, "b": [990, 991, 992]}
            await operator.write(f"t/m={number:02}/f.parquet", written(pa.table(columns)))
        operator.runtime().events.subscribe(lambda event: read.append(event.path), "request.started")
        yield operator, read


@pytest.mark.parametrize(
    "filters",
    [
        [("m", "==", 39), ("b", ">", 990)],
        (pc.field("m") == 39) & (pc.field("b") > 990),
        (pc.field("m") + 1 == 40) & ((pc.field("b") > 990) & (pc.field("m") > 1)),
        (pc.field("b") > 990) & ((pc.field("m") == 39) | ((pc.field("m") == 70) & (pc.field("b") == 1))),
    ],
    ids=str,
)
async def test_partitions_are_decided_without_the_schema_of_a_file(
    table: tuple[ap.Operator, list[str]], filters: Any
) -> None:
    """Of the expression what is about them alone; so ``rows`` mean the same rows in each form."""
    operator, read = table
    found = await ap.parquet.read_table(operator, "t/", filters=filters, rows=(0, 1000))
    assert found["m"].to_pylist() == [39, 39]
    assert {path for path in read if path.endswith(".parquet")} == {"t/m=39/f.parquet"}


async def test_positions_are_those_of_the_whole_table() -> None:
    """Where the first file lacks a column, and where a struct has leaves of its own."""
    async with ap.Operator.from_uri("memory://") as operator:
        await operator.write("t/p=1/f.parquet", written(pa.table({"a": [1]})))
        await operator.write("t/p=2/f.parquet", written(pa.table({"a": [2], "b": [5]})))
        found = await ap.parquet.read_table(operator, "t/", filters=pc.field(1) == 5)
        assert found.to_pylist() == [{"a": 2, "b": 5, "p": 2}]
        await operator.write("s.parquet", FILE)
        whole = pc.Expression.from_substrait(pc.Expression.to_substrait(pc.field("row") < 5, TABLE.schema))
        assert await ap.parquet.count_rows(operator, "s.parquet", filters=whole) == 5
