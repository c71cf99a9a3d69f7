"""Directories, globs and lists of Parquet files as one table: rows, requests, errors, and what is left behind."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.errors import (
    ConfigInvalid,
    InvalidArgument,
    InvalidType,
    NotFound,
    ObjectChanged,
    Unavailable,
    Unsupported,
    UntrustedMetadata,
)
from aioprefetch.testing import CountingS3Server
from tests.files.dataset_files import asked, column, numbers, parquet_bytes, put_files, sorted_rows, write_files, years
from tests.stores.gated_reader import MIB, Bench, bench, settle

YEARS = dict(years())
PATHS = list(YEARS)


@pytest.fixture
async def b() -> AsyncIterator[Bench]:
    """A store with files of three years; the budget must be whole again at the end."""
    async with bench(memory_bytes=64 * MIB) as made:
        put_files(made, YEARS)
        yield made
        gc.collect()
        await settle()
        assert made.runtime.budget.used_bytes == 0


# --- which files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
async def test_every_way_to_name_them(b: Bench, *, ordered: bool) -> None:
    ways: list[str | list[str]] = ["t/", "t", "t/**", "t/*/*.parquet", "t/year=202[234]/*", PATHS, ["t/"]]
    for source in ways:
        table = await ap.parquet.read_table(b.operator, source, ordered=ordered)
        assert table.schema.names == ["x", "s", "year"], source
        assert table.schema.field("year").type == pa.int32()
        rows = column(table, "x")
        assert (rows if ordered else sorted(rows)) == list(range(600)), source
        assert column(table, "year") == [2022 + x // 200 for x in rows], source


async def test_a_list_keeps_its_order_and_repeats(b: Bench) -> None:
    table = await ap.parquet.read_table(b.operator, [PATHS[1], PATHS[0], PATHS[1]])
    assert column(table, "x") == [*range(100, 200), *range(100), *range(100, 200)]


async def test_hidden_names_and_markers_are_passed_over(b: Bench) -> None:
    for path in ("t/_SUCCESS", "t/_metadata", "t/year=2022/.part.crc", "t/_temporary/0/a.parquet"):
        b.put(b"no Parquet", path)
    assert (await ap.parquet.read_table(b.operator, "t/")).num_rows == 600
    assert (await ap.parquet.read_table(b.operator, "t/**")).num_rows == 600
    assert await ap.parquet.count_rows(b.operator, "t/**/*.parquet") == 600
    b.put(parquet_bytes(numbers(0, 7)), "t/_mine.parquet")
    assert await ap.parquet.count_rows(b.operator, "t/_m*.parquet") == 7, "a pattern that names them means them"
    assert await ap.parquet.count_rows(b.operator, ["t/_mine.parquet"]) == 7


async def test_what_is_not_there(b: Bench) -> None:
    for source, what in [("u/", "has no files"), ("t/*.csv", "no file matches"), (["t/", "u/*"], "no file matches")]:
        with pytest.raises(NotFound, match=what):
            await ap.parquet.read_table(b.operator, source)
        with pytest.raises(NotFound, match=what):
            await ap.parquet.count_rows(b.operator, source)
    with pytest.raises(NotFound):
        await ap.parquet.read_table(b.operator, "u")
    with pytest.raises(NotFound) as caught:
        await ap.parquet.read_table(b.operator, [*PATHS, "t/gone.parquet"])
    assert caught.value.path == "t/gone.parquet"


async def test_invalid_arguments(b: Bench) -> None:
    scan = ap.parquet.scan
    for option in ({"row_groups": [0]}, {"size": 5}, {"version": "v"}, {"if_match": "e"}):
        with pytest.raises(ConfigInvalid, match="one file"):
            scan(b.operator, "t/", **option)
    with pytest.raises(ConfigInvalid, match="plan_files"):
        await ap.parquet.plan(b.operator, "t/*")
    with pytest.raises(InvalidType, match="filter_rows"):
        scan(b.operator, "t/", filter_rows="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="at least one"):
        scan(b.operator, [])
    with pytest.raises(InvalidType):
        scan(b.operator, [5])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="partitioning"):
        scan(b.operator, "t/", partitioning="directory")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"no column 'z'; the files have 'x', 's', 'year'"):
        await scan(b.operator, "t/", columns=["z"]).read_all()
    with pytest.raises(InvalidArgument, match="no column 'z'"):
        await scan(b.operator, "t/", filters=[("z", "==", 1)]).read_all()
    with pytest.raises(InvalidArgument):
        await scan(b.operator, "t/", filters=pc.field("z") == 1).read_all()


async def test_a_directory_on_this_machine(tmp_path: Path) -> None:
    write_files(tmp_path, {**YEARS, "t/_SUCCESS": b""})
    async with ap.Operator.from_uri(f"file://{tmp_path}") as operator:
        for source in ("t", "t/", "t/**/*.parquet"):
            assert column(await ap.parquet.read_table(operator, source), "x") == list(range(600))


# --- columns and filters ----------------------------------------------------------------------------------------------


async def test_columns_in_the_order_of_the_call(b: Bench) -> None:
    table = await ap.parquet.read_table(b.operator, "t/", columns=["year", "x"])
    assert table.schema.names == ["year", "x"]
    rows = await ap.parquet.read_table(b.operator, "t/", columns=[])
    assert (rows.num_rows, rows.num_columns) == (600, 0)
    assert (await ap.parquet.read_table(b.operator, "t/", partitioning=None)).schema.names == ["x", "s"]


async def test_the_path_wins_over_a_column_of_the_file(b: Bench) -> None:
    b.put(parquet_bytes(pa.table({"year": ["wrong"], "x": [1]})), "u/year=7/f.parquet")
    table = await ap.parquet.read_table(b.operator, "u/")
    assert table.to_pylist() == [{"x": 1, "year": 7}]


FILTERS = [
    [("year", "==", 2023), ("x", ">=", 250)],
    [[("year", "==", 2022), ("x", "<", 3)], [("year", "in", [2024])]],
    [("x", "in", [5, 305])],
    [("year", "not in", [2023])],
    [("year", "==", 1)],
    (pc.field("year") == 2023) & (pc.field("x") >= 250),
    (pc.field("x") + 1 == pc.field("year") - 1621),
    pc.field("s") == "v7",
]


async def test_filters(b: Bench) -> None:
    everything = await ap.parquet.read_table(b.operator, "t/")
    for filters in FILTERS:
        expected = everything.filter(
            filters if isinstance(filters, pc.Expression) else pq.filters_to_expression(filters)
        )
        found = await ap.parquet.read_table(b.operator, "t/", filters=filters, columns=["x", "year"])
        assert found.equals(expected.select(["x", "year"])), filters
        assert await ap.parquet.count_rows(b.operator, "t/", filters=filters) == expected.num_rows


async def test_files_that_cannot_match_are_not_opened(b: Bench) -> None:
    await ap.parquet.read_table(b.operator, "t/", filters=[("year", "==", 2023)])
    assert asked(b) == PATHS[2:4]
    b.calls.clear()
    expression = (pc.field("year") == 2024) & (pc.field("x") > 0)
    await ap.parquet.read_table(b.operator, "t/", filters=expression)
    assert set(asked(b)) == set(PATHS[4:])
    b.calls.clear()
    assert (await ap.parquet.read_table(b.operator, "t/", filters=[("year", "==", 1)])).schema.names[-1] == "year"
    assert asked(b) == [PATHS[0]], "the first one, for its schema"


async def test_row_groups_that_cannot_match_are_not_read() -> None:
    """Two files of 16 MB, of which filters leave two row groups each: by clauses, by expressions, with the path."""
    async with bench(memory_bytes=64 * MIB, block_bytes=MIB) as b:
        for number in range(2):
            table = pa.table({"x": pa.array(range(number, 4_000_000, 2), pa.int64())})
            data = parquet_bytes(table, row_group_size=250_000, use_dictionary=False, compression="none")
            b.put(data, f"t/part={number}/f.parquet")
        groups = [("x", ">=", 1_000_000), ("x", "<", 1_400_000)]
        by_path = (pc.field("x") >= 1_000_000) & (pc.field("x") < 1_400_000) & (pc.field("part") >= 0)
        for filters in (groups, (pc.field("x") >= 1_000_000) & (pc.field("x") < 1_400_000), by_path):
            b.calls.clear()
            table = await ap.parquet.read_table(b.operator, "t/", filters=filters)
            assert sorted(column(table, "x")) == list(range(1_000_000, 1_400_000))
            sent = sum(call.request.size or call.request.suffix or 0 for call in b.calls)
            assert sent < 6 * MIB, "four row groups of 16, two footers"


async def test_rows_count_through_all_files(b: Bench) -> None:
    table = await ap.parquet.read_table(b.operator, "t/", rows=[(98, 102), (599, 1000), (300, 300)])
    assert column(table, "x") == [98, 99, 100, 101, 599]
    table = await ap.parquet.read_table(b.operator, "t/", rows=(0, 5), filters=[("year", ">", 2022)])
    assert column(table, "x") == [200, 201, 202, 203, 204]
    table = await ap.parquet.read_table(b.operator, "t/", rows=(90, 110), filters=[("x", "<", 95)])
    assert column(table, "x") == [90, 91, 92, 93, 94]
    put_files(b, LARGE)
    b.calls.clear()
    await ap.parquet.count_rows(b.operator, "l/")
    b.calls.clear()
    assert (await ap.parquet.read_table(b.operator, "l/", rows=(0, 10))).num_rows == 10
    assert set(asked(b)) <= {"l/0.parquet"}, "the footers are kept, and no other file has any of these rows"


# --- one schema -------------------------------------------------------------------------------------------------------


async def test_columns_that_come_and_go_and_grow(b: Bench) -> None:
    tables = [
        pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", None]}),
        pa.table({"c": [0.5], "a": pa.array([1 << 40], pa.int64())}),
        pa.table({"b": pa.array(["z"]).dictionary_encode(), "a": pa.array([None], pa.null())}),
    ]
    put_files(b, {f"u/{number}.parquet": parquet_bytes(table) for number, table in enumerate(tables)})
    found = await ap.parquet.read_table(b.operator, "u/")
    assert found.schema.equals(pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())]))
    assert column(found, "a") == [1, 2, 1 << 40, None]
    assert column(found, "b") == ["x", None, None, "z"]
    assert column(found, "c") == [None, None, 0.5, None]
    big = await ap.parquet.read_table(b.operator, "u/", filters=[("a", ">", 1)], columns=["c", "a"])
    assert big.to_pylist() == [{"c": None, "a": 2}, {"c": 0.5, "a": 1 << 40}]
    nulls = await ap.parquet.read_table(b.operator, "u/", filters=pc.field("c").is_null(), columns=["a"])
    assert column(nulls, "a") == [1, 2, None]


async def test_fields_of_structs(b: Bench) -> None:
    first = pa.table({"p": pa.array([{"a": 1, "b": "x"}])})
    second = pa.table({"p": pa.array([{"b": "y"}]), "q": [1]})
    put_files(b, {"u/0.parquet": parquet_bytes(first), "u/1.parquet": parquet_bytes(second)})
    found = await ap.parquet.read_table(b.operator, "u/", columns=["p.b", "p.a"])
    assert found.to_pylist() == [{"b": "x", "a": 1}, {"b": "y", "a": None}]


async def test_types_that_clash_matter_where_they_are_asked_for(b: Bench) -> None:
    put_files(
        b,
        {
            f"u/{kind}.parquet": parquet_bytes(pa.table({"a": [value], "b": [kind]}))
            for kind, value in (("int", 1), ("text", "one"))
        },
    )
    with pytest.raises(Unsupported, match=r"column 'a' is string in 'u/text.parquet' and int64 in 'u/int.parquet'"):
        await ap.parquet.read_table(b.operator, "u/")
    assert column(await ap.parquet.read_table(b.operator, "u/", columns=["b"]), "b") == ["int", "text"]


async def test_integers_of_one_file_are_decimals_of_another(b: Bench) -> None:
    b.put(parquet_bytes(pa.table({"p": pa.array([2**31 - 1, None], pa.int32())})), "p/0.parquet")
    b.put(parquet_bytes(pa.table({"p": pa.array([Decimal("0.5")], pa.decimal128(7, 1))})), "p/1.parquet")
    table = await ap.parquet.read_table(b.operator, "p/")
    assert column(table, "p") == [Decimal(2**31 - 1), None, Decimal("0.5")]
    assert await ap.parquet.count_rows(b.operator, "p/", filters=[("p", ">", 0.25)]) == 2


async def test_a_value_that_does_not_fit_is_an_error(b: Bench) -> None:
    put_files(
        b,
        {
            "u/0.parquet": parquet_bytes(pa.table({"a": [0.5]})),
            "u/1.parquet": parquet_bytes(pa.table({"a": [(1 << 60) + 1]})),
        },
    )
    with pytest.raises(Unsupported, match="column 'a', int64 in this file, does not fit double") as caught:
        await ap.parquet.read_table(b.operator, "u/")
    assert caught.value.path == "u/1.parquet"


async def test_a_schema_from_the_caller_saves_the_first_look(b: Bench) -> None:
    """No footer is read ahead of its turn, and columns that it lacks are left out."""
    schema = pa.schema([("year", pa.int32()), ("x", pa.int32()), ("later", pa.string())])
    scan = ap.parquet.scan(b.operator, "t/", schema=schema)
    assert (await scan.schema()).equals(schema)
    table = await scan.read_all()
    assert asked(b) == PATHS
    assert table.schema.equals(schema)
    assert column(table, "x") == list(range(600))
    assert table.column("later").null_count == 600
    texts = pa.schema([("year", pa.string())])
    found = await ap.parquet.read_table(b.operator, "t/", schema=texts, filters=[("year", "==", "2023")])
    assert set(column(found, "year")) == {"2023"}
    b.calls.clear()
    assert (await ap.parquet.read_table(b.operator, "t", schema=texts)).num_rows == 600
    assert (await ap.parquet.read_table(b.operator, PATHS[0], schema=schema)).schema.equals(schema)
    with pytest.raises(NotFound):
        await ap.parquet.read_table(b.operator, "u", schema=schema)
    with pytest.raises(Unsupported, match="'year' in paths are not bool"):
        await ap.parquet.read_table(b.operator, "t/", schema=pa.schema([("year", pa.bool_())]))


# --- requests, memory, errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
async def test_small_files_are_one_request_each(b: Bench, *, ordered: bool) -> None:
    await ap.parquet.read_table(b.operator, "t/", ordered=ordered)
    assert sorted(asked(b)) == PATHS
    b.calls.clear()
    await ap.parquet.count_rows(b.operator, "t/")
    assert asked(b) == [], "footers are kept, and the listing said that they are current"


async def test_small_files_of_a_list_are_one_request_each(b: Bench) -> None:
    """The tail has them whole, although nothing said so before; so have footers that are kept, by their ETags."""
    assert (await ap.parquet.read_table(b.operator, PATHS)).num_rows == 600
    assert asked(b) == PATHS
    b.calls.clear()
    b.put(YEARS[PATHS[0]], PATHS[0])
    again = await ap.parquet.read_table(b.operator, PATHS, budget_bytes=1)
    assert again.num_rows == 600
    assert sorted(asked(b)) == PATHS


async def test_requests_to_a_server(s3_server: CountingS3Server, random_name: Callable[[], str]) -> None:
    """A page of a listing and one GET a file; no HEAD. A scan once more costs the listing and what is not kept."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    keys = {"access_key_id": s3_server.access_key_id, "secret_access_key": s3_server.secret_access_key}
    options: dict[str, Any] = {"endpoint_url": s3_server.endpoint_url, "region": s3_server.region, **keys}
    async with ap.Operator.from_uri(f"s3://{bucket}", **options) as operator:
        for path, data in YEARS.items():
            await operator.write(path, data)
        s3_server.reset()
        assert (await ap.parquet.read_table(operator, "t/")).num_rows == 600
        assert [request.method for request in s3_server.requests] == ["GET"] * 7
        s3_server.reset()
        assert await ap.parquet.count_rows(operator, "t/", filters=[("year", "==", 2023)]) == 200
        assert [request.method for request in s3_server.requests] == ["GET"]


async def test_footers_are_read_side_by_side(b: Bench) -> None:
    b.gate.open = False
    scan = ap.parquet.scan(b.operator, "t/")
    schema = asyncio.ensure_future(scan.schema())
    await settle()
    assert asked(b) == PATHS
    for call in b.calls:
        call.finish()
    assert (await schema).names == ["x", "s", "year"]
    await scan.aclose()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("number", range(len(PATHS)))
async def test_the_request_for_a_file_fails(b: Bench, number: int, *, ordered: bool) -> None:
    """The error names the file, and nothing is held afterwards."""
    b.gate.open = False
    scan = asyncio.ensure_future(ap.parquet.read_table(b.operator, "t/", ordered=ordered))
    await settle()
    for call in b.calls:
        if call.request.path == PATHS[number]:
            call.fail(Unavailable("down"))
        else:
            call.finish()
    with pytest.raises(Unavailable) as caught:
        await scan
    assert caught.value.path == PATHS[number]


LARGE = {f"l/{n}.parquet": parquet_bytes(numbers(n * 100_000, 100_000), row_group_size=25_000) for n in range(6)}


@pytest.mark.parametrize("ordered", [True, False])
async def test_the_nth_request_fails(*, ordered: bool) -> None:
    """For every n: the batches before are right where they have an order, then it is the error."""
    for number in range(40):
        async with bench(memory_bytes=32 * MIB, block_bytes=512 << 10) as b:
            put_files(b, LARGE)
            b.gate.open = False
            rows: list[int] = []
            feeding = asyncio.ensure_future(_fail_at(b, number))
            error = await _read_into(rows, ap.parquet.scan(b.operator, "l/", ordered=ordered, columns=["x"]))
            assert (error is None) == (len(b.calls) <= number)
            assert error is None or error.path in LARGE
            feeding.cancel()
            assert rows == list(range(len(rows))) if ordered else len(set(rows)) == len(rows)
            if len(b.calls) <= number:
                assert sorted(rows) == list(range(600_000))
                return
            await settle()
            assert b.runtime.budget.used_bytes == 0
    raise AssertionError("it never came to an end")


async def _read_into(rows: list[int], scan: ap.BatchScan) -> ap.errors.Error | None:
    """Collect a column until the end, or until an error of the store, which is returned."""
    try:
        async for batch in scan:
            rows += batch.column("x").to_pylist()
    except (Unavailable, ObjectChanged) as error:
        return error
    return None


async def _fail_at(b: Bench, number: int) -> None:
    """Let requests through, but for one."""
    seen = 0
    while True:
        while seen < len(b.calls):
            call = b.calls[seen]
            if seen == number:
                call.fail(Unavailable("down"))
            else:
                call.finish()
            seen += 1
        b.gate.arrived.clear()
        await b.gate.arrived.wait()


@pytest.mark.parametrize("ordered", [True, False])
async def test_cancelled_at_every_request(*, ordered: bool) -> None:
    async with bench(memory_bytes=32 * MIB, block_bytes=128 << 10) as b:
        put_files(b, LARGE)
        for number in range(30):
            b.calls.clear()
            b.gate.open = False
            reading = asyncio.ensure_future(
                ap.parquet.read_table(b.operator, "l/", ordered=ordered, columns=["x"], batch_rows=10_000)
            )
            feeding = asyncio.ensure_future(_fail_at(b, -1))
            while len(b.calls) <= number and not reading.done():
                b.gate.arrived.clear()
                await asyncio.wait(
                    (reading, asyncio.ensure_future(b.gate.arrived.wait())), return_when="FIRST_COMPLETED"
                )
            feeding.cancel()
            if reading.done():
                return
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await settle(200)
            assert b.runtime.budget.used_bytes == 0
            assert all(call.ended for call in b.calls)


async def test_a_file_overwritten_after_the_listing(b: Bench) -> None:
    b.gate.open = False
    scan = asyncio.ensure_future(ap.parquet.read_table(b.operator, "t/"))
    await settle()
    b.put(parquet_bytes(numbers(7, 7)), PATHS[3])
    for call in b.calls:
        call.finish()
    with pytest.raises(ObjectChanged, match="after it was listed") as caught:
        await scan
    assert caught.value.path == PATHS[3]


async def test_a_file_that_vanishes_after_the_listing(b: Bench) -> None:
    b.gate.open = False
    scan = asyncio.ensure_future(ap.parquet.read_table(b.operator, "t/"))
    await settle()
    await b.operator.delete(PATHS[3])
    for call in b.calls:
        call.finish()
    with pytest.raises(NotFound) as caught:
        await scan
    assert caught.value.path == PATHS[3]


async def test_a_file_overwritten_while_it_is_read() -> None:
    """Its footer was read for the schema; its data are another version's."""
    async with bench(memory_bytes=32 * MIB, block_bytes=128 << 10) as b:
        put_files(b, LARGE)
        scan = ap.parquet.scan(b.operator, "l/")
        await scan.schema()
        b.put(parquet_bytes(numbers(0, 10)), "l/4.parquet")
        rows: list[int] = []
        error = await _read_into(rows, scan)
        assert isinstance(error, ObjectChanged)
        assert error.path == "l/4.parquet"
        assert rows == list(range(400_000))


async def test_a_file_that_is_not_parquet(b: Bench) -> None:
    b.put(b"year,x\n2022,1\n" * 9, "t/year=2022/table.csv")
    with pytest.raises(UntrustedMetadata) as caught:
        await ap.parquet.read_table(b.operator, "t/")
    assert caught.value.path == "t/year=2022/table.csv"


@pytest.mark.parametrize("ordered", [True, False])
async def test_memory_is_bounded(*, ordered: bool) -> None:
    """Twelve files of 3 MB, of which a consumer that takes its time holds no more than the budget and a little."""
    memory_bytes = 8 * MIB
    async with bench(memory_bytes=memory_bytes, block_bytes=MIB) as b:
        for number in range(12):
            table = pa.table({"x": pa.array(range(number, 12 * 400_000, 12), pa.int64())})
            b.put(parquet_bytes(table, row_group_size=40_000, use_dictionary=False, compression="none"), f"m/{number}")
        rows = 0
        async with ap.parquet.scan(b.operator, "m/", ordered=ordered, batch_rows=20_000) as scan:
            async for batch in scan:
                rows += batch.num_rows
                await settle(100)
        assert rows == 4_800_000
        assert b.runtime.budget.peak_bytes <= memory_bytes


async def test_leaving_early_asks_for_no_more(b: Bench) -> None:
    put_files(b, LARGE)
    async with ap.parquet.scan(b.operator, "l/", ordered=False, batch_rows=1000) as scan:
        async for batch in scan:
            assert batch.num_rows <= 1000
            break
    await settle()
    sent = len(b.calls)
    await settle()
    assert len(b.calls) == sent


def test_iterating_without_a_loop() -> None:
    """From the beginning each time; left early, it ends."""
    operator = ap.Operator.from_uri("memory://datasets-without-a-loop")

    async def write() -> None:
        for path, data in YEARS.items():
            await operator.write(path, data)

    ap.sync.run(write())
    scan = ap.parquet.scan(operator, "t/", batch_rows=50)
    for _ in range(2):
        assert [row for batch in scan for row in batch.column("x").to_pylist()] == list(range(600))
    for batch in scan:
        assert batch.num_rows == 50
        break
    del batch
    gc.collect()
    held = ap.sync.run(_used(operator))
    assert held == 0
    ap.sync.run(operator.aclose())


async def test_iterating_where_a_loop_runs() -> None:
    """As in a cell of a notebook: the loop stands still meanwhile."""
    operator = ap.Operator.from_uri("memory://datasets-in-a-notebook")
    for path, data in YEARS.items():
        await operator.write(path, data)
    found = [row for batch in ap.parquet.scan(operator, "t/*/*") for row in batch.column("x").to_pylist()]
    assert found == list(range(600))
    await operator.aclose()


async def _used(operator: ap.Operator) -> int:
    await settle(100)
    return operator.runtime().budget.used_bytes


async def test_unordered_rows_of_a_file_stay_in_order(b: Bench) -> None:
    found = await ap.parquet.read_table(b.operator, "t/", ordered=False, batch_rows=30)
    for year in (2022, 2023, 2024):
        for part in (0, 100):
            first = (year - 2022) * 200 + part
            rows = [x for x in column(found, "x") if first <= x < first + 100]
            assert rows == list(range(first, first + 100))
    assert sorted_rows(found) == sorted_rows(await ap.parquet.read_table(b.operator, "t/"))


async def test_a_slow_file_holds_back_no_other_where_order_does_not_matter() -> None:
    async with bench(memory_bytes=32 * MIB, block_bytes=128 << 10) as b:
        put_files(b, LARGE)
        scan = ap.parquet.scan(b.operator, "l/", ordered=False, columns=["x"])
        await scan.schema()
        b.calls.clear()
        b.gate.open = False
        rows: list[int] = []
        feeding = asyncio.ensure_future(_all_but(b, "l/0.parquet"))
        while len(rows) < 500_000:
            rows += (await anext(scan)).column("x").to_pylist()
        assert min(rows) == 100_000, "nothing of the first file has come"
        feeding.cancel()
        await scan.aclose()


async def _all_but(b: Bench, path: str) -> None:
    """Let the requests of all other files through."""
    seen = 0
    while True:
        for call in b.calls[seen:]:
            if call.request.path != path:
                call.finish()
        seen = len(b.calls)
        b.gate.arrived.clear()
        await b.gate.arrived.wait()
