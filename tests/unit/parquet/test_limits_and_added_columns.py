"""What a scan gives beside the rows of files: no more than a limit, columns by expressions, where a row comes from.

The tables are those of polars, or of pyarrow's dataset, for the same files.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import aioprefetch as ap
from aioprefetch.errors import InvalidArgument, InvalidType, NotFound, Unsupported
from tests.files.dataset_files import asked, parquet_bytes, write_files
from tests.stores.gated_reader import Bench, bench, settle

pytestmark = pytest.mark.virtual

ROWS = 300


def rows_from(start: int) -> pa.Table:
    rows = range(start, start + ROWS)
    return pa.table({"a": rows, "b": [row % 7 for row in rows], "s": [{"t": str(row)} for row in rows]})


FILES = {f"t/y={2020 + number}/{number}.parquet": rows_from(number * ROWS) for number in range(3)}


# More than comes with the footer.
MANY = parquet_bytes(pa.table({"a": range(400_000)}), row_group_size=1000, compression="none", use_dictionary=False)


@pytest.fixture(scope="module")
def files() -> Mapping[str, bytes]:
    return {path: parquet_bytes(table, row_group_size=50) for path, table in FILES.items()}


@pytest.fixture
async def b(files: Mapping[str, bytes]) -> AsyncIterator[Bench]:
    async with bench() as made:
        for path, data in files.items():
            made.put(data, path)
        yield made
        gc.collect()
        await settle()
        assert made.runtime.budget.used_bytes == 0


FIRST = "t/y=2020/0.parquet"
LIMITED: list[tuple[Any, dict[str, Any], list[int]]] = [
    ("t/", {"limit": 0}, []),
    ("t/", {"limit": 0, "filters": [("a", ">", 5)]}, []),
    ("t/", {"limit": 5}, [0, 1, 2, 3, 4]),
    ("t/", {"limit": 302, "rows": (298, 304)}, [298, 299, 300, 301, 302, 303]),
    ("t/", {"limit": 3, "rows": [(500, 600), (298, 300)]}, [298, 299, 500]),
    ("t/", {"limit": 3, "filters": [("a", ">", 297)]}, [298, 299, 300]),
    ("t/", {"limit": 3, "filters": [("y", "==", 2021)]}, [300, 301, 302]),
    ("t/", {"limit": 900}, list(range(900))),
    (FIRST, {"limit": 10**6, "filters": pc.field("a") > 297}, [298, 299]),
    (FIRST, {"limit": 3, "row_groups": [2, 4]}, [100, 101, 102]),
    (FIRST, {"limit": 52, "row_groups": [0, 4]}, [*range(50), 200, 201]),
    (FIRST, {"limit": 3, "rows": (7, 9)}, [7, 8]),
]


@pytest.mark.parametrize(("path", "options", "expected"), LIMITED)
async def test_the_first_rows_that_match(b: Bench, path: Any, options: Any, expected: list[int]) -> None:
    for batch_rows in (1, 7, 1000):
        found = await ap.parquet.read_table(b.operator, path, columns=["a"], batch_rows=batch_rows, **options)
        assert found["a"].to_pylist() == expected
    anyhow = await ap.parquet.read_table(b.operator, path, columns=["a"], ordered=False, **options)
    everything = await ap.parquet.read_table(b.operator, path, columns=["a"], **{**options, "limit": None})
    assert anyhow.num_rows == len(expected)
    assert set(anyhow["a"].to_pylist()) <= set(everything["a"].to_pylist())


async def test_a_limit_that_is_reached_ends_the_requests(b: Bench) -> None:
    """The reads of what would come next are broken off with the last row, before the next batch is asked for."""
    b.put(MANY, "many")
    b.gate.open = False
    scan = ap.parquet.scan(
        b.operator, "many", filters=[("a", ">=", 0)], limit=50, batch_rows=50, request_bytes_max=4096
    )
    first, answered = asyncio.ensure_future(anext(scan)), 0
    while not first.done():
        await settle()
        for call in b.calls[answered : answered + 1]:
            call.finish()
            answered += 1
    assert (await first)["a"].to_pylist() == list(range(50))
    await settle()
    count = len(b.calls)
    assert count > answered
    assert all(call.cancelled for call in b.calls[answered:])
    assert [batch async for batch in scan] == []
    assert len(b.calls) == count
    assert scan.is_closed


async def test_no_data_is_requested_for_rows_behind_a_limit(b: Bench) -> None:
    whole = {"columns": ["a"], "schema": pa.schema([("a", pa.int64())])}
    assert (await ap.parquet.read_table(b.operator, "t/", limit=50, **whole)).num_rows == 50
    assert asked(b) == [FIRST], "the footer of the first file says that it has enough"
    with pytest.raises(NotFound):
        await ap.parquet.read_table(b.operator, "u/", limit=0)


async def test_a_blocking_scan_has_the_limit_each_time(b: Bench) -> None:
    scan = ap.parquet.scan(b.operator, FIRST, columns=["a"], limit=3)
    for _ in range(2):
        assert await asyncio.to_thread(lambda: [batch.num_rows for batch in scan]) == [3]


# --- columns by expressions -------------------------------------------------------------------------------------------

MAPPINGS: list[Mapping[str, Any]] = [
    {"x": pc.field("a"), "y": pc.field("y")},
    {"sum": pc.field("a") + pc.field("b"), "is_even": pc.equal(pc.bit_wise_and(pc.field("a"), 1), 0)},
    {"b": pc.field("a"), "a": pc.field("b")},
    {"text": pc.field("s", "t"), "one": pc.scalar(1)},
    {"one": pc.scalar(1)},
]


@pytest.mark.parametrize("columns", MAPPINGS)
async def test_columns_by_expressions(b: Bench, tmp_path: Path, columns: Any, files: Mapping[str, bytes]) -> None:
    write_files(tmp_path, files)
    dataset = ds.dataset(tmp_path / "t", partitioning="hive")
    found = await ap.parquet.read_table(b.operator, "t/", columns=columns, filters=pc.field("b") > 3)
    expected = dataset.to_table(columns=columns, filter=pc.field("b") > 3)
    assert found.equals(expected.cast(found.schema))
    assert found.schema.types == expected.schema.types


async def test_names_are_given_to_columns(b: Bench) -> None:
    options: dict[str, Any] = {"filters": [("a", "<", 2)], "row_index_name": "at"}
    found = await ap.parquet.read_table(b.operator, "t/", columns={"n": "a", "t": "s.t", "again": "a"}, **options)
    assert found.to_pydict() == {"n": [0, 1], "t": ["0", "1"], "again": [0, 1], "at": [0, 1]}
    assert (await ap.parquet.read_table(b.operator, "t/", columns={}, limit=2)).shape == (2, 0)


WRONG: list[tuple[Any, type[Exception], str]] = [
    ({"x": "none"}, InvalidArgument, "no column 'none'"),
    ({"x": pc.field("none") + 1}, InvalidArgument, "no column 'none'"),
    ({"x": pc.field("s") + 1}, InvalidArgument, "columns="),
    ({"x": pc.field(0)}, InvalidArgument, "by position"),
    ({"x": 1}, InvalidType, r"columns\['x'\] must be"),
    ({1: "a"}, InvalidType, "must be text"),
]


@pytest.mark.parametrize(("columns", "error", "why"), WRONG)
async def test_columns_that_cannot_be_made(b: Bench, columns: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        await ap.parquet.read_table(b.operator, "t/", columns=columns)


# --- where a row comes from -------------------------------------------------------------------------------------------


async def test_paths_and_numbers_are_those_of_the_file(b: Bench, tmp_path: Path, files: Mapping[str, bytes]) -> None:
    write_files(tmp_path, files)
    options: dict[str, Any] = {"include_file_paths": "path", "row_index_name": "row"}
    found = await ap.parquet.read_table(b.operator, "t/", batch_rows=64, **options)
    frames = [
        pl.scan_parquet(tmp_path / path, include_file_paths="path", row_index_name="row", hive_partitioning=True)
        for path in files
    ]
    expected = pl.concat(frames).with_columns(pl.col("path").str.strip_prefix(f"{tmp_path}/")).collect()
    assert found.schema.names == ["a", "b", "s", "y", "path", "row"]
    assert (
        pl.DataFrame(found)
        .select(pl.all().exclude("y"))
        .equals(expected.select("a", "b", "s", "path", pl.col("row").cast(pl.Int64)))
    )


FILTERED: list[tuple[Any, list[int], int]] = [
    ([("row", ">=", 298)], [298, 299, 598, 599, 898, 899], 3),
    ([("path", "==", FIRST), ("a", ">", 297)], [298, 299], 1),
    (pc.field("path") == FIRST, list(range(300)), 1),
    ((pc.field("row") == 7) & (pc.field("a") > 300), [307, 607], 3),
    ([("a", ">=", 899)], [899], 3),
]


@pytest.mark.parametrize(("filters", "expected", "opened"), FILTERED)
async def test_filters_on_paths_and_numbers(b: Bench, filters: Any, expected: list[int], opened: int) -> None:
    options: dict[str, Any] = {"include_file_paths": "path", "row_index_name": "row", "schema": FILES[FIRST].schema}
    found = await ap.parquet.read_table(b.operator, "t/", columns=["a"], filters=filters, **options)
    assert found["a"].to_pylist() == expected
    assert found["row"].to_pylist() == [row % ROWS for row in expected]
    assert len({*asked(b)}) == opened


async def test_numbers_of_chosen_rows_of_one_file(b: Bench) -> None:
    found = await ap.parquet.read_table(b.operator, FIRST, columns=["a"], rows=[(3, 5), (120, 122)], row_index_name="n")
    assert found.to_pydict() == {"a": [3, 4, 120, 121], "n": [3, 4, 120, 121]}
    assert asked(b) == [FIRST]


NAMES = [
    ({"include_file_paths": "a"}, InvalidArgument, "a column 'a' already"),
    ({"row_index_name": "y"}, InvalidArgument, "a column 'y' already"),
    ({"include_file_paths": "x", "row_index_name": "x"}, InvalidArgument, "both 'x'"),
    ({"row_index_name": 1}, InvalidType, "must be text"),
]


@pytest.mark.parametrize(("options", "error", "why"), NAMES)
async def test_names_that_are_taken(b: Bench, options: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        await ap.parquet.read_table(b.operator, "t/", **options)


# --- partitions and columns that differ -------------------------------------------------------------------------------


async def test_types_of_partitions(b: Bench) -> None:
    types = pa.schema([("y", pa.int64()), ("z", pa.string())])
    found = await ap.parquet.read_table(b.operator, "t/", columns=["y", "z"], partition_schema=types, limit=1)
    assert found.equals(pa.table({"y": [2020], "z": [None]}, schema=types))
    with pytest.raises(Unsupported, match="'y' in paths are not date"):
        await ap.parquet.read_table(b.operator, "t/", partition_schema=pa.schema([("y", pa.date32())]))


DIFFERENT: list[tuple[Any, dict[str, Any], str | None]] = [
    (["v/1", "v/2"], {"missing_columns": "error"}, "'c' is not in this file"),
    (["v/1", "v/2"], {"missing_columns": "error", "columns": ["a"]}, None),
    (["v/1", "v/2"], {"missing_columns": "error", "columns": ["a"], "filters": [("c", "==", 1)]}, "'c' is not in"),
    (["v/1", "v/2"], {"extra_columns": "error"}, "'c' is not in the first file"),
    (["v/2", "v/1"], {"extra_columns": "error"}, None),
    (["v/1", "v/2"], {"extra_columns": "error", "schema": pa.schema([("a", pa.int64())])}, r"'c' is not in schema="),
    (["v/1"], {"missing_columns": "error", "schema": pa.schema([("z", pa.int64())])}, "'z' is not in this file"),
    ("t/", {"missing_columns": "error", "extra_columns": "error"}, None),
]


@pytest.mark.parametrize(("path", "options", "why"), DIFFERENT)
async def test_columns_that_files_lack_or_have_beside(b: Bench, path: Any, options: Any, why: str | None) -> None:
    b.put(parquet_bytes(pa.table({"a": [1]})), "v/1")
    b.put(parquet_bytes(pa.table({"a": [2], "c": [1]})), "v/2")
    if why is None:
        await ap.parquet.read_table(b.operator, path, **options)
        return
    with pytest.raises(Unsupported, match=why):
        await ap.parquet.read_table(b.operator, path, **options)


# --- plans ------------------------------------------------------------------------------------------------------------

TEXT_YEARS = pa.schema([("y", pa.string())])
PLANNED: list[tuple[Any, dict[str, Any], int]] = [
    ("t/", {"limit": 305}, 305),
    ("t/", {"limit": 0, "filters": [("a", ">", 5)]}, 0),
    ("t/", {"partition_schema": TEXT_YEARS, "filters": [("y", "==", "2021")]}, 300),
    ("t/", {"include_file_paths": "p", "filters": [("p", "==", FIRST)], "row_index_name": "n"}, 300),
    (
        "t/",
        {"columns": {"c": pc.field("a") + 1}, "filters": pc.field("s", "t") == "7", "missing_columns": "error"},
        100,
    ),
    (FIRST, {"limit": 3, "columns": {"c": pc.field("a") + 1}, "int96_unit": "us"}, 3),
    (FIRST, {"include_file_paths": "p", "filters": [("p", "==", "q")]}, 0),
    (None, {"files": [ap.ScanFile(FIRST, rows=(5, 25)), ap.ScanFile(FIRST, keep=[True] * 50 + [False] * 250)]}, 70),
]


@pytest.mark.parametrize(("path", "options", "rows"), PLANNED)
async def test_a_plan_means_what_a_scan_does(b: Bench, path: Any, options: Any, rows: int) -> None:
    found = await ap.parquet.plan_files(b.operator, path, **options)
    table = await ap.parquet.read_table(b.operator, path, **options)
    assert found.row_count == rows
    assert table.num_rows <= rows if "filters" in options else table.num_rows == rows
    if path == FIRST:
        assert (await ap.parquet.plan(b.operator, FIRST, **options)).row_count == rows


async def test_a_plan_with_a_limit_has_the_requests_of_its_rows(b: Bench) -> None:
    b.put(MANY, "many")
    plans = [await ap.parquet.plan(b.operator, "many", limit=limit) for limit in (50, None)]
    assert [len(plan.row_groups) for plan in plans] == [1, 400]
    assert plans[0].requested_bytes < 0.01 * plans[1].requested_bytes


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"extra_columns": "error", "schema": pa.schema([("a", pa.int64())])}, Unsupported),
        ({"missing_columns": "error", "schema": pa.schema([("z", pa.int64())])}, Unsupported),
        ({"columns": {"c": pc.field("z") + 1}}, InvalidArgument),
        ({"limit": -1}, InvalidArgument),
        ({"row_index_name": "a"}, InvalidArgument),
    ],
)
async def test_a_plan_raises_what_a_scan_does(b: Bench, options: Any, error: type[Exception]) -> None:
    for path in ("t/", FIRST):
        with pytest.raises(error):
            await ap.parquet.plan_files(b.operator, path, **options)
