"""Files of a dataset that are named, known and chosen beforehand: escaped names, first rows, pruning alone, plans."""

import glob
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aioprefetch as ap
from aioprefetch.errors import InvalidArgument, IsADirectory, NotFound
from aioprefetch.parquet.dataset.scan import spread
from tests.files.dataset_files import asked, column, numbers, parquet_bytes, put_files, write_files, years
from tests.stores.gated_reader import MIB, Bench, bench, settle

YEARS = dict(years())
PATHS = list(YEARS)


@cache
def large() -> dict[str, bytes]:
    """Six files of 100,000 rows each."""
    return {f"l/{n}.parquet": parquet_bytes(numbers(n * 100_000, 100_000), row_group_size=25_000) for n in range(6)}


@pytest.fixture
async def b() -> AsyncIterator[Bench]:
    """A store with files of three years."""
    async with bench(memory_bytes=64 * MIB) as made:
        put_files(made, YEARS)
        yield made


@pytest.mark.parametrize("read", [ap.parquet.read_table, ap.parquet.count_rows])
async def test_a_directory_in_a_list_needs_its_slash(b: Bench, tmp_path: Path, read: Callable[..., Any]) -> None:
    write_files(tmp_path, YEARS)
    async with ap.Operator.from_uri(f"file://{tmp_path}") as files:
        for operator in (b.operator, files):
            with pytest.raises((NotFound, IsADirectory), match="'t/year=2022' is a directory: in a list it ends with"):
                await read(operator, ["t/year=2022", "t/year=2023"])


# --- names ------------------------------------------------------------------------------------------------------------


async def test_characters_of_globs_in_names(b: Bench) -> None:
    """Escaped they are themselves, and nothing is listed: in a file, a directory, a pattern, a list."""
    odd = "u/a[1]*?/part[0].parquet"
    put_files(b, {odd: parquet_bytes(numbers(0, 7)), "u/a1xy/part0.parquet": parquet_bytes(numbers(50, 1))})
    escaped = glob.escape(odd)
    for source in (escaped, [escaped], glob.escape("u/a[1]*?/"), glob.escape("u/a[1]*?"), "u/a[[]*/*.parquet"):
        assert column(await ap.parquet.read_table(b.operator, source), "x") == list(range(7)), source
        assert await ap.parquet.count_rows(b.operator, source) == 7
    assert (await ap.parquet.plan(b.operator, escaped)).path == odd
    footer = await ap.parquet.footer(b.operator, odd)
    assert (await ap.parquet.read_table(b.operator, escaped, footer=footer)).num_rows == 7
    assert column(await ap.parquet.read_table(b.operator, odd), "x") == [50], "a pattern, as it stands"
    with pytest.raises(NotFound, match=r"glob\.escape"):
        await ap.parquet.read_table(b.operator, "u/part[0].parquet")


async def test_a_glob_of_directories_is_what_is_in_them(b: Bench) -> None:
    put_files(b, {"t/year=2023/more/part-9.parquet": parquet_bytes(numbers(900, 1))})
    assert (await ap.parquet.read_table(b.operator, "t/year=202[34]/")).num_rows == 401


# --- rows and filters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "files"),
    [((0, 5), 1), ((0, 10), 1), ((5, 25), 3), ((0, 0), 0), ((290, 310), 31), ((995, 2000), 100)],
)
async def test_the_first_rows_of_a_known_schema_take_few_footers(b: Bench, rows: tuple[int, int], files: int) -> None:
    """Footers are read in growing numbers, until they have all wanted rows, and none behind them."""
    put_files(b, {f"n/{number:03}.parquet": parquet_bytes(numbers(number * 10, 10)) for number in range(100)})
    schema = pa.schema([("x", pa.int64())])
    found = await ap.parquet.read_table(b.operator, "n/", rows=rows, schema=schema)
    assert column(found, "x") == list(range(rows[0], min(rows[1], 1000)))
    assert len(set(asked(b))) == len(asked(b)) == files


async def test_filters_that_leave_rows_in(b: Bench) -> None:
    """Files, row groups and pages are left out, and nothing else; a column of a filter alone is not read."""
    for filters in ([("x", ">=", 260), ("year", "==", 2023)], (pc.field("x") >= 260) & (pc.field("year") == 2023)):
        found = await ap.parquet.read_table(b.operator, "t/", filters=filters, filter_rows=False)
        assert column(found, "x") == list(range(250, 400)), "row groups of 25"
        texts = await ap.parquet.read_table(b.operator, "t/", filters=filters, filter_rows=False, columns=["s"])
        assert column(texts, "s") == [f"v{row}" for row in range(250, 400)]
    found = await ap.parquet.read_table(b.operator, PATHS[0], filters=[("x", "<", 30)], filter_rows=False)
    assert column(found, "x") == list(range(50))


NEW = pa.table({"x": [7], "new": [1.5], "deep": [{"a": 1, "b": "b"}]})


@pytest.mark.parametrize("year", [2022, 2023])
async def test_a_column_that_the_filters_leave_out_is_null(b: Bench, year: int) -> None:
    """A job that asks for a column goes on for years before it was there; other files are looked at for it alone."""
    b.put(parquet_bytes(NEW), "t/year=2025/part-0.parquet")
    for filters in ([("year", "==", year)], pc.field("year") == year):
        b.calls.clear()
        found = await ap.parquet.read_table(b.operator, "t/", columns=["x", "new", "deep.b"], filters=filters)
        assert found.schema == pa.schema([("x", pa.int64()), ("new", pa.float64()), ("b", pa.string())])
        assert (found.num_rows, found["new"].null_count, found["b"].null_count) == (200, 200, 200)
        assert set(asked(b)) - {PATHS[0]} <= {f"t/year={year}/part-{part}.parquet" for part in (0, 1)} | {
            "t/year=2025/part-0.parquet"
        }
    new = pc.field("new")
    for column_filter, rows in ((new > 1, 0), (new.is_null(), 200)):
        filters = (pc.field("year") == year) & column_filter
        assert await ap.parquet.count_rows(b.operator, "t/", filters=filters) == rows
    assert await ap.parquet.count_rows(b.operator, "t/", filters=[("year", "==", year), ("new", ">", 1.0)]) == 0
    everything = await ap.parquet.read_table(b.operator, "t/", filters=[("year", "==", year)])
    assert everything.schema.names == ["x", "s", "year"], "columns are those of the files that are read"


@pytest.mark.parametrize("filters", [[("year", "==", 2022), ("z", "==", 1)], pc.field("z") == 1])
async def test_a_column_that_no_file_has(b: Bench, filters: Any) -> None:
    b.put(parquet_bytes(NEW), "t/year=2025/part-0.parquet")
    with pytest.raises(InvalidArgument, match="z"):
        await ap.parquet.read_table(b.operator, "t/", filters=filters)
    with pytest.raises(InvalidArgument, match="no column 'z'; the files have 'x', 's', 'year'"):
        await ap.parquet.read_table(b.operator, "t/", columns=["z"], filters=[("year", "==", 2022)])


@pytest.mark.parametrize(
    ("columns", "filters"),
    [
        (["z"], [("p", "==", 7)]),
        (["z"], pc.field("p") == 7),
        (["x"], [("p", "==", 7), ("z", "==", 1)]),
    ],
)
async def test_few_of_the_other_files_are_looked_at(b: Bench, columns: list[str], filters: Any) -> None:
    """A name that is misspelt is an error after a few requests, which says that there are more files."""
    put_files(b, {f"o/p={number}/a.parquet": parquet_bytes(numbers(number, 1)) for number in range(100)})
    with pytest.raises(InvalidArgument, match="91 files were not looked at: schema= names"):
        await ap.parquet.read_table(b.operator, "o/", columns=columns, filters=filters)
    assert len(asked(b)) <= 10, "the first of all for an Expression, the file that is left, and eight others"
    b.calls.clear()
    schema = pa.schema([("x", pa.int64()), ("z", pa.int64()), ("p", pa.int32())])
    found = await ap.parquet.read_table(b.operator, "o/", columns=["z"], filters=[("p", "==", 7)], schema=schema)
    assert found.to_pydict() == {"z": [None]}


async def test_a_column_of_an_expression_that_the_first_file_alone_has(b: Bench) -> None:
    put_files(b, {f"o/p={number:02}/a.parquet": parquet_bytes(numbers(0, 1)) for number in range(1, 100)})
    b.put(parquet_bytes(NEW), "o/p=00/a.parquet")
    for new, rows in ((pc.field("new") > 1, 0), (pc.field("new").is_null(), 1), (pc.field("deep", "a").is_null(), 1)):
        b.calls.clear()
        assert await ap.parquet.count_rows(b.operator, "o/", filters=(pc.field("p") == 7) & new) == rows
        assert len(asked(b)) <= 10


@pytest.mark.parametrize("place", [0, 50, 98])
async def test_a_column_of_the_last_the_first_or_many_other_files_is_found(b: Bench, place: int) -> None:
    """Of files that cannot be read nothing is learned, and nothing fails; the last one alone is one request."""
    plain, new = parquet_bytes(numbers(0, 1)), parquet_bytes(NEW)
    where = range(place - 9, place + 9) if place == 50 else (place,)
    put_files(b, {f"o/p={number:02}/a.parquet": new if number in where else plain for number in range(99)})
    found = await ap.parquet.read_table(b.operator, "o/", columns=["new"], filters=[("p", "==", 7)])
    assert found.schema == pa.schema([("new", pa.float64())])
    assert len(asked(b)) == 2 if place == 98 else 4 <= len(asked(b)) <= 9
    put_files(b, {"o/p=98/a.parquet": b"not Parquet at all", "o/p=00/a.parquet": b"", "o/p=99/a.parquet": _doubled()})
    if place == 50:
        found = await ap.parquet.read_table(b.operator, "o/", columns=["new"], filters=[("p", "==", 7)])
        assert found.to_pydict() == {"new": [None]}


def _doubled() -> bytes:
    """A file in which two columns have one name."""
    return parquet_bytes(pa.table([[1], [2]], names=["x", "x"]))


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, [10]), (2, [10, 15]), (3, [10, 12, 15]), (6, None), (9, None)]
)
def test_numbers_that_are_spread(count: int, expected: list[int] | None) -> None:
    six = list(range(10, 16))
    assert spread(six, count) == (six if expected is None else expected)
    assert spread([], count) == []


async def test_the_column_of_a_filter_is_not_read_where_rows_stay() -> None:
    async with bench(memory_bytes=32 * MIB, block_bytes=128 << 10) as b:
        put_files(b, large())
        plan = await ap.parquet.plan(b.operator, "l/0.parquet", columns=["s"], row_groups=[0])
        options: dict[str, Any] = {"columns": ["s"], "filters": [("x", "<", 5)]}
        for source in ("l/0.parquet", ["l/0.parquet"]):
            b.calls.clear()
            found = await ap.parquet.read_table(b.operator, source, filter_rows=False, **options)
            assert found.num_rows == 25_000
            assert sum(call.request.size or 0 for call in b.calls) == plan.requested_bytes
            assert (await ap.parquet.read_table(b.operator, source, **options)).num_rows == 5


@pytest.mark.parametrize("source", ["l/0.parquet", "l/"])
@pytest.mark.parametrize("ordered", [True, False])
async def test_the_schema_takes_footers_alone(source: str, *, ordered: bool) -> None:
    """No data is asked for before a batch is: who asks for a schema may close the scan next."""
    async with bench(memory_bytes=32 * MIB, block_bytes=128 << 10) as b:
        put_files(b, large())
        async with ap.parquet.scan(b.operator, source, ordered=ordered) as scan:
            assert (await scan.schema()).names == ["x", "s"]
            await settle()
            assert sorted(asked(b)) == [path for path in large() if path.startswith(source)]
            assert (await scan.read_all()).num_rows == 100_000 * len(set(asked(b)))
        async with ap.parquet.scan(b.operator, source, ordered=ordered) as scan:
            await scan.schema()
        await settle()
        assert b.runtime.budget.used_bytes == 0


async def test_the_plan_of_many_files() -> None:
    """The files that are read, in their order, and the requests that a scan then sends."""
    async with bench(memory_bytes=64 * MIB, block_bytes=MIB) as b:
        put_files(b, large() | YEARS)
        options: dict[str, Any] = {"columns": ["x"], "filters": [("x", ">=", 230_000), ("x", "<", 310_000)]}
        found = await ap.parquet.plan_files(b.operator, "l/*.parquet", **options)
        assert [(plan.path, plan.row_count) for plan in found.files] == [
            ("l/2.parquet", 75_000),
            ("l/3.parquet", 25_000),
        ]
        b.calls.clear()
        async with ap.parquet.scan(b.operator, "l/*.parquet", **options) as scan:
            assert sum([batch.num_rows async for batch in scan]) == 80_000
        assert len(b.calls) == found.request_count > 0
        assert sum(call.request.size or 0 for call in b.calls) == found.requested_bytes
        assert found.row_count == 100_000
        assert f"100000 rows of 2 files, {found.request_count} requests" in found.describe()
        assert "files=2" in repr(found)
        by_path = await ap.parquet.plan_files(b.operator, "t", filters=[("year", "==", 2024)], rows=(0, 150))
        assert [(plan.path, plan.row_count) for plan in by_path.files] == [(PATHS[4], 100), (PATHS[5], 50)]
        assert by_path.projected_bytes == sum(plan.projected_bytes for plan in by_path.files)
        assert len((await ap.parquet.plan_files(b.operator, PATHS[0])).files) == 1
        with pytest.raises(NotFound):
            await ap.parquet.plan_files(b.operator, "u/*")
        assert b.runtime.budget.used_bytes == 0
