"""Random trees of Parquet files, read by us and by pyarrow.dataset: one schema, the same rows in the same order."""

import asyncio
import datetime as dt
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.errors import InvalidArgument
from aioprefetch.parquet.dataset.files import NULL_VALUE
from tests.files.dataset_files import parquet_bytes, write_files
from tests.probes.search import searched

DAY, NOON = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12)
small, words = st.integers(-5, 5), st.text("abc", max_size=2)
moments = st.integers(0, 9).map(lambda days: NOON + dt.timedelta(days=days))
# The types of each column, and the values that all of them hold; nulls come by themselves.
COLUMNS: dict[str, tuple[list[pa.DataType], st.SearchStrategy[Any]]] = {
    "i": ([pa.int32(), pa.int64()], small),
    "f": ([pa.float32(), pa.float64()], st.sampled_from([-1.5, 0.0, 2.25, 4.0, float("nan")])),
    "m": ([pa.int16(), pa.float64()], small),
    "s": ([pa.string(), pa.large_string()], words),
    "n": ([pa.null(), pa.bool_()], st.booleans()),
    "d": ([pa.date32()], moments.map(dt.datetime.date)),
    "t": ([pa.timestamp("ms"), pa.timestamp("us")], moments),
    "c": ([pa.dictionary(pa.int32(), pa.string()), pa.string()], words),
    "l": ([pa.list_(pa.int32()), pa.list_(pa.int64())], st.lists(st.none() | small, max_size=3)),
    "st": (
        [pa.struct([("x", pa.int32()), ("y", pa.string())]), pa.struct([("x", pa.int64())])],
        st.fixed_dictionaries({"x": st.none() | small, "y": st.none() | words}),
    ),
}
HIDDEN = ("_SUCCESS", "_metadata", ".x.crc", "_temporary/f.parquet")

# One of them is no number, and so makes strings of its column.
texts = st.sampled_from(["0", "1", "-2", "007", "2147483648", "a b", "é", NULL_VALUE, ""])
numbers = st.sampled_from(["0", "1", "-2", "007", NULL_VALUE])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A few rows of some of the columns, in some order, each of one of its types."""
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True))
    rows = draw(st.integers(0, 12))
    columns = {}
    for name in names:
        kinds, values = COLUMNS[name]
        kind = draw(st.sampled_from(kinds))
        values = st.none() if pa.types.is_null(kind) else st.none() | values
        columns[name] = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
    return pa.table(columns)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, bytes]:
    """Files below directories of one or two partition columns, some of them at the top, and hidden ones."""
    values = {"y": draw(st.sampled_from([texts, numbers])), "z z": draw(st.sampled_from([texts, numbers]))}
    names = draw(st.sampled_from([["y"], ["y", "z z"], ["z z", "y"], []]))
    files = {}
    for number in range(draw(st.integers(1, 6))):
        depth = draw(st.integers(0, len(names))) if draw(st.booleans()) else len(names)
        directories = [f"{quote(name)}={_quoted(draw(values[name]))}" for name in names[:depth]]
        path = "/".join(["t", *directories, f"f{number}.parquet"])
        files[path] = parquet_bytes(draw(tables()), row_group_size=draw(st.integers(1, 5)))
    for name in draw(st.lists(st.sampled_from(HIDDEN), max_size=2, unique=True)):
        files[f"t/{name}"] = b"not Parquet"
    return files


def _quoted(value: str) -> str:
    return value if value == NULL_VALUE else quote(value)


CLAUSES: list[tuple[str, list[str], list[Any]]] = [
    ("i", ["==", "!=", "<", ">=", "in", "not in"], [-2, 0, 3]),
    ("f", ["==", "<", ">="], [0.0, 2.25]),
    ("m", ["==", "!=", "<", ">="], [0, 3]),
    ("s", ["==", "!=", "in"], ["a", "ab", ""]),
    ("d", ["==", "<", ">=", "in"], [DAY, DAY + dt.timedelta(days=4)]),
    ("t", ["==", "!=", ">", "<="], [NOON, NOON + dt.timedelta(days=4)]),
    ("c", ["==", "!=", "in"], ["a", "ab"]),
    ("y", ["==", "!=", "in", "not in"], [0, 1, -2, 7, "a b"]),
    ("z z", ["==", ">"], [1, "é"]),
]


@st.composite
def clauses(draw: st.DrawFn) -> tuple[str, str, Any]:
    """A clause on a column of a file or of the path."""
    name, operators, values = draw(st.sampled_from(CLAUSES))
    operator = draw(st.sampled_from(operators))
    value = draw(st.sampled_from(values))
    return name, operator, [value] if operator.endswith("in") else value


alternatives = st.lists(st.lists(clauses(), min_size=1, max_size=2), min_size=1, max_size=2)


def by_pyarrow(directory: Path, schema: pa.Schema | None = None) -> ds.Dataset:
    """The directory, of the schema that all its files make together; partitions of one null alone are strings."""
    kind = ds.partitioning(flavor="hive")
    if schema is not None:
        names = [name for name in schema.names if name in ("y", "z z")]
        kind = ds.partitioning(pa.schema([schema.field(name) for name in names]), flavor="hive")
    return ds.dataset(directory / "t", schema, format="parquet", partitioning=kind)


options = st.fixed_dictionaries(
    {"as_expression": st.booleans(), "ordered": st.booleans(), "batch_rows": st.sampled_from([1, 3, 1000])},
    optional={
        "columns": st.lists(st.integers(0, 20), max_size=4),
        "rows": st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted),
        "schema": st.just(True),
    },
)


def test_as_pyarrow_reads_them() -> None:
    """Random datasets, each read whole and by filters, columns, ranges of rows and a schema."""

    def check(files: dict[str, bytes], several: list[tuple[Any, dict[str, Any]]]) -> None:
        with tempfile.TemporaryDirectory() as name:
            write_files(Path(name), files)
            asyncio.run(_compare(Path(name), several))

    reads = st.lists(st.tuples(st.none() | alternatives, options), min_size=1, max_size=4)
    searched(check, trees(), reads, examples=30)


async def _compare(directory: Path, several: list[tuple[Any, dict[str, Any]]]) -> None:
    async with ap.Operator.from_uri(f"file://{directory}") as operator:
        whole = await ap.parquet.scan(operator, "t/").schema()
        for filters, wanted in several:
            await _compare_read(operator, by_pyarrow(directory, whole), filters, **wanted)
            assert operator.runtime().budget.used_bytes == 0


async def _compare_read(
    operator: ap.Operator, dataset: ds.Dataset, filters: Any, *, as_expression: bool, ordered: bool, **wanted: Any
) -> None:
    whole = dataset.schema
    expression = None if filters is None else pq.filters_to_expression(filters)
    given_filters = expression if as_expression else filters
    if "columns" in wanted:
        wanted["columns"] = list(dict.fromkeys(whole.names[place % len(whole)] for place in wanted["columns"]))
    if "schema" in wanted:
        wanted["schema"] = whole
    found = await _table_or_error(ap.parquet.scan(operator, "t/", filters=given_filters, ordered=ordered, **wanted))
    if isinstance(found, InvalidArgument):
        # Values that do not go with their column, or a column that files left out by their path alone have.
        assert "no column" in str(found) or _refuses(dataset, expression)
        return
    # The schema is that of the files that the filters on partitions leave: fewer columns, of narrower types.
    names = found.schema.names
    assert names == wanted["columns"] if "columns" in wanted else {*names} <= {*whole.names}
    if filters is None or "schema" in wanted:
        assert found.schema.equals(pa.schema([whole.field(name) for name in wanted.get("columns", whole.names)]))
    expected = dataset.to_table(filter=expression)
    if "rows" in wanted:
        start, stop = wanted["rows"]
        expected = dataset.to_table(filter=None if filters is None else _of_paths(filters)).slice(start, stop - start)
        expected = expected if expression is None else expected.filter(expression)
    else:
        assert await ap.parquet.count_rows(operator, "t/", filters=given_filters) == expected.num_rows
    assert found.num_rows == expected.num_rows
    rows, expected_rows = _plain(found), _plain(expected.select(names))
    assert (rows if ordered else sorted(rows)) == (expected_rows if ordered else sorted(expected_rows))


def _of_paths(filters: Any) -> pc.Expression:
    """Which files the filters leave by their paths: ``rows`` count through these."""
    left = [[clause for clause in one if clause[0] in ("y", "z z")] for one in filters]
    return pq.filters_to_expression(left) if all(left) else pc.scalar(True)


async def _table_or_error(scan: ap.BatchScan) -> Any:
    try:
        return await scan.read_all()
    except InvalidArgument as error:
        return error


def _refuses(dataset: ds.Dataset, expression: Any) -> bool:
    try:
        dataset.to_table(filter=expression)
    except (pa.ArrowException, TypeError):
        return True
    return False


def _plain(table: pa.Table) -> list[str]:
    """The rows as text, in which NaN equals NaN, and a number is the same in each type."""
    return [
        repr({name: float(value) if type(value) is int else value for name, value in row.items()})
        for row in table.to_pylist()
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(texts | numbers, min_size=1, max_size=4))
def test_partitions_have_pyarrows_types(values: list[str]) -> None:
    """Where pyarrow has one: it refuses a column of nulls alone."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        files = {f"t/y={_quoted(value)}/f{n}": parquet_bytes(pa.table({"x": [n]})) for n, value in enumerate(values)}
        write_files(directory, files)
        if set(values) == {NULL_VALUE}:
            return
        expected = by_pyarrow(directory).to_table()

        async def read() -> pa.Table:
            async with ap.Operator.from_uri(f"file://{directory}") as operator:
                return await ap.parquet.read_table(operator, "t")

        found = asyncio.run(read())
        assert found.schema.equals(expected.schema)
        assert _plain(found) == _plain(expected)


def test_an_expression_on_columns_of_both(tmp_path: Path) -> None:
    """One that compares a column of the file with one of its path."""
    for year in (1, 2, 3):
        write_files(tmp_path, {f"t/y={year}/f": parquet_bytes(pa.table({"x": [1, 2, 3]}))})

    async def read() -> pa.Table:
        async with ap.Operator.from_uri(f"file://{tmp_path}") as operator:
            return await ap.parquet.read_table(operator, "t", filters=pc.field("x") >= pc.field("y"))

    expected = by_pyarrow(tmp_path).to_table(filter=pc.field("x") >= pc.field("y"))
    assert asyncio.run(read()).equals(expected)
