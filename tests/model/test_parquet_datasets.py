"""Random trees of Parquet files, read by us and by pyarrow.dataset: one schema, the same rows in the same order."""

import asyncio
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

COLUMNS: dict[str, list[pa.DataType]] = {
    "i": [pa.int32(), pa.int64()],
    "f": [pa.float32(), pa.float64(), pa.int16()],
    "s": [pa.string(), pa.large_string()],
    "n": [pa.null(), pa.bool_()],
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
        kind = draw(st.sampled_from(COLUMNS[name]))
        values: Any
        if pa.types.is_null(kind):
            values = st.none()
        elif pa.types.is_boolean(kind):
            values = st.none() | st.booleans()
        elif pa.types.is_integer(kind):
            values = st.none() | st.integers(-5, 5)
        elif pa.types.is_floating(kind):
            values = st.none() | st.sampled_from([-1.5, 0.0, 2.25, 4.0, float("nan")])
        else:
            values = st.none() | st.text("abc", max_size=2)
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
    ("s", ["==", "!=", "in"], ["a", "ab", ""]),
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


@settings(max_examples=150, deadline=None)
@given(trees(), st.none() | alternatives, st.booleans(), st.booleans())
def test_as_pyarrow_reads_them(files: dict[str, bytes], filters: Any, as_expression: bool, ordered: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_files(directory, files)
        asyncio.run(_compare(directory, filters, as_expression=as_expression, ordered=ordered))


async def _compare(directory: Path, filters: Any, *, as_expression: bool, ordered: bool) -> None:
    async with ap.Operator.from_uri(f"file://{directory}") as operator:
        expression = None if filters is None else pq.filters_to_expression(filters)
        given_filters = expression if as_expression else filters
        scan = ap.parquet.scan(operator, "t/", filters=given_filters, ordered=ordered, batch_rows=3)
        found = await _table_or_error(scan)
        whole = await ap.parquet.scan(operator, "t/").schema()
        if isinstance(found, InvalidArgument):
            # Values that do not go with their column, or a column that files left out by their path alone have.
            assert "no column" in str(found) or _refuses(by_pyarrow(directory, whole), expression)
            return
        # The schema is that of the files that the filters on partitions leave: fewer columns, of narrower types.
        names = found.schema.names
        assert names == [name for name in whole.names if name in names] or filters is not None
        assert filters is not None or found.schema.equals(whole)
        expected = by_pyarrow(directory, whole).to_table(columns=names, filter=expression)
        rows, expected_rows = _plain(found), _plain(expected)
        assert (rows if ordered else sorted(rows)) == (expected_rows if ordered else sorted(expected_rows))
        assert await ap.parquet.count_rows(operator, "t/", filters=given_filters) == expected.num_rows
        assert operator.runtime().budget.used_bytes == 0


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
