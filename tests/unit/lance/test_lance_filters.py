"""Filters of a scan: the rows that match, the columns that are read for them, and those of the result."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import InvalidArgument, InvalidType
from aioprefetch.lance import open_dataset
from tests.files.lance_files import PATH, VERSIONS, dataset_objects, stored, write_file
from tests.profile import chosen

lance: Any = pytest.importorskip("lance")

ROWS = 900
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "name": [None if row % 7 == 0 else f"row {row}" for row in range(ROWS)],
        "tags": [[row] * (row % 4) for row in range(ROWS)],
        "point": [{"x": row, "y": {"z": str(row), "w": row % 3 == 0}} for row in range(ROWS)],
        "score": [float("nan") if row % 5 == 0 else row / 2 for row in range(ROWS)],
    }
).replace_schema_metadata({"k": "v"})


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return {version: write_file(TABLE, version, 12_000, batch_rows=150) for version in VERSIONS}


FILTERS: list[Any] = [
    [("id", "<", 10)],
    [("id", ">=", 890), ("name", "!=", "row 895")],
    [[("id", "=", 4)], [("name", "==", "row 400")], [("id", "in", {7, 8})]],
    [("name", "not in", ["row 1"])],
    [("id", "<", -1)],
    [("id", ">=", 0)],
    pc.field("score").is_nan(),
    pc.field("point", "y", "w") & (pc.field("id") < 100),
    pc.field("name").is_null(),
    pc.list_value_length(pc.field("tags")) == 3,
    pc.field(0) < 5,
    pc.scalar(True),
    pc.scalar(False),
]
# Every filter, and every version with some filters: how they combine is the same code.
PAIRS = [(VERSIONS[number % len(VERSIONS)], filters) for number, filters in enumerate(FILTERS)]
CASES = chosen(quick=PAIRS, full=list(itertools.product(VERSIONS, FILTERS)))


@pytest.mark.parametrize(("version", "filters"), CASES, ids=str)
async def test_the_rows_that_pyarrow_keeps(files: dict[str, bytes], version: str, filters: Any) -> None:
    import pyarrow.parquet as pq

    expression = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
    expected = TABLE.filter(expression)
    async with stored(files[version]) as operator:
        for batch_rows in (7, 65536):
            found = await ap_lance.read_table(operator, PATH, filters=filters, batch_rows=batch_rows)
            found.validate(full=True)
            assert same(found, expected)
            assert found.schema.equals(expected.schema, check_metadata=True)
        for columns in (["name"], ["score", "id"], ["tags", "point"]):
            found = await ap_lance.read_table(operator, PATH, columns=columns, filters=filters)
            assert same(found, expected.select(columns))
        batches = [batch async for batch in ap_lance.scan(operator, PATH, columns=[], filters=filters)]
        assert sum(batch.num_rows for batch in batches) == expected.num_rows
        assert all(batch.num_columns == 0 for batch in batches)


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Equality where NaN is equal to itself."""
    return found.schema.equals(expected.schema) and repr(found.to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_struct_of_which_the_result_has_less_than_the_filter_reads(
    files: dict[str, bytes], version: str
) -> None:
    filters = (pc.field("point", "y", "w")) & (pc.field("point", "x") < 7)
    async with stored(files[version]) as operator:
        found = await ap_lance.read_table(operator, PATH, columns=["point.y.z", "id"], filters=filters)
    assert found.to_pylist() == [{"point": {"y": {"z": str(row)}}, "id": row} for row in (0, 3, 6)]


async def test_nulls_of_a_struct_of_which_fields_are_left_out() -> None:
    values = [{"x": row, "y": {"z": row} if row % 4 else None} for row in range(200)]
    structs = [None if row % 3 == 0 else value for row, value in enumerate(values)]
    table = pa.table({"s": structs, "id": range(200)})
    async with stored(write_file(table, "2.2")) as operator:
        for batch_rows in (7, 1000):
            found = await ap_lance.read_table(
                operator, PATH, columns=["s.y"], filters=pc.field("s", "x") > 150, batch_rows=batch_rows
            )
            found.validate(full=True)
            expected = [{"s": {"y": values[row]["y"]}} for row in range(151, 200) if row % 3]
            assert found.to_pylist() == expected
            found = await ap_lance.read_table(
                operator, PATH, columns=["s.y"], filters=pc.field("s").is_null(), batch_rows=batch_rows
            )
            assert found.to_pylist() == [{"s": None}] * 67


async def test_columns_of_the_filter_alone_are_read_and_dropped(files: dict[str, bytes]) -> None:
    log: list[Any] = []
    async with stored(files["2.2"], log=log) as operator:
        plan = await ap_lance.plan(operator, PATH, columns=["id"], filters=[("score", ">", 3)], gap_bytes=0)
        assert {page.column for page in plan.files[0].pages} == {"id", "score"}
        log.clear()
        scan = ap_lance.scan(operator, PATH, columns=["id"], filters=[("score", ">", 3)], gap_bytes=0, slots=1)
        assert (await scan.schema()).names == ["id"]
        assert (await scan.read_all()).column_names == ["id"]
        assert log[1:] == list(plan.requests)
        twice = await ap_lance.plan(operator, PATH, columns=["id"], filters=[("id", ">", 3)])
        assert {page.column for page in twice.files[0].pages} == {"id"}


async def test_rows_and_take_count_the_rows_of_the_table(files: dict[str, bytes]) -> None:
    async with stored(files["2.2"]) as operator:
        found = await ap_lance.read_table(operator, PATH, rows=(100, 120), filters=[("id", ">=", 115)])
        assert found.column("id").to_pylist() == list(range(115, 120))
        take = [890, 5, 890, 70, 6, 2]
        found = await ap_lance.read_table(operator, PATH, columns=["id"], take=take, filters=[("name", "!=", "row 6")])
        assert found.column("id").to_pylist() == [890, 5, 890, 2]
        found = await ap_lance.read_table(operator, PATH, columns=["name"], take=[1, 2, 3], filters=[("id", "=", 2)])
        assert found.to_pylist() == [{"name": "row 2"}]


async def test_a_dataset_with_deleted_rows_and_a_column_that_fragments_lack(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    peer = lance.write_dataset(TABLE.select(["id", "name"]), str(path), max_rows_per_file=250)
    peer.delete("id % 5 = 2")
    peer.add_columns(pa.field("late", pa.int32()))
    more = pa.table({"id": range(5000, 5100), "name": ["x"] * 100, "late": pa.array(range(100), pa.int32())})
    peer = lance.write_dataset(more, str(path), mode="append")
    async with stored(dataset_objects(path, "ds")) as operator:
        dataset = await open_dataset(operator, "ds")
        for filters, sql in (
            ([("id", ">", 600), ("id", "<", 800)], "id > 600 and id < 800"),
            ([[("late", "<", 3)], [("id", "=", 4)]], "late < 3 or id = 4"),
            (pc.field("late").is_null() & (pc.field("id") > 870), "late is null and id > 870"),
        ):
            assert (await dataset.read_table(filters=filters)).equals(peer.to_table(filter=sql))
            found = await dataset.read_table(filters=filters, columns=["name"])
            assert found.equals(peer.to_table(filter=sql, columns=["name"]))
        taken = await dataset.take([740, 3, 740, 0], filters=[("id", ">", 3)], columns=["late", "id"])
        assert taken.column("id").to_pylist() == [
            row for row in peer.take([740, 3, 740, 0])["id"].to_pylist() if row > 3
        ]
        assert (await ap_lance.read_table(operator, "ds", version=1, filters=[("id", "=", 2)])).num_rows == 1


@pytest.mark.parametrize(("version", "rows"), [("2.0", 3000), ("2.1", 700_000), ("2.2", 3000)])
async def test_random_matches_in_windows(version: str, rows: int, tmp_path: Path) -> None:
    """Against pylance's SQL: matches alone, in clusters and all over; nulls, lists, deleted rows, ids, ranges."""
    rng = np.random.default_rng(rows)
    marks = np.where(rng.random(rows) < 0.003, 7, np.arange(rows) // 150 % 4)
    table = pa.table(
        {
            "mark": pa.array(marks, mask=rng.random(rows) < 0.1),
            "name": pa.array(np.arange(rows) % 1000, mask=rng.random(rows) < 0.1).cast(pa.string()),
            "tags": [None if row % 11 == 0 else [row] * (row % 3) for row in range(rows)],
            "code": pa.array([f"c{row % 5}" for row in range(rows)]).dictionary_encode(),
        }
    )
    peer = lance.write_dataset(
        table, str(tmp_path / "ds"), max_rows_per_file=max(1300, rows - 1000), data_storage_version=version
    )
    peer.delete("name = '300' or (mark = 2 and code = 'c1')")
    async with stored(dataset_objects(tmp_path / "ds", "ds")) as operator:
        dataset = await open_dataset(operator, "ds")
        columns = ["tags", "_rowid", "mark", "code"]
        for filters, sql, options in (
            ([("mark", "=", 1)], "mark = 1", {"gap_bytes": 0}),
            ([("mark", "=", 7)], "mark = 7", {"batch_rows": 7}),
            ([("mark", "<", 8)], "mark < 8", {}),
            ([("mark", "=", 9)], "mark = 9", {}),
            ([("mark", "=", 3), ("name", "!=", "3")], "mark = 3 and name != '3'", {"ordered": False}),
        ):
            expected = peer.to_table(filter=sql, columns=columns)
            found = await dataset.read_table(filters=filters, columns=columns, **options)
            found.validate(full=True)
            assert plain(found.sort_by("_rowid") if options.get("ordered") is False else found).equals(plain(expected))
            found = await dataset.read_table(filters=filters, columns=columns, limit=5)
            assert plain(found).equals(plain(expected.slice(0, 5)))
        found = await dataset.read_table(filters=[("mark", "=", 1)], columns=columns, rows=(1000, 2000))
        places = await dataset.read_table(columns=["_rowid"], rows=(1000, 2000))
        expected = peer.to_table(filter="mark = 1", columns=columns)
        expected = expected.filter(pc.is_in(expected["_rowid"], value_set=places["_rowid"]))
        assert plain(found).equals(plain(expected))


def plain(table: pa.Table) -> pa.Table:
    """The table without its dictionary, whose order is the reader's affair."""
    place = table.column_names.index("code")
    return table.set_column(place, "code", table["code"].cast(pa.string()))


@pytest.mark.parametrize("version", VERSIONS)
async def test_other_columns_are_read_near_matches_alone(version: str) -> None:
    rows = 200_000
    rng = np.random.default_rng(1)
    values = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(16 * rows)), 16)
    table = pa.table({"id": range(rows), "values": values, "text": [f"text {row} of many" for row in range(rows)]})
    log: list[Any] = []

    def received() -> int:
        return sum((end or 0) - start for _, start, end in log if start >= 0)

    async with stored(write_file(table, version, 4 << 20, batch_rows=10_000), log=log) as operator:
        await ap_lance.read_table(operator, PATH)
        whole = received()
        log.clear()
        found = await ap_lance.read_table(operator, PATH, filters=[("id", ">=", 70_000), ("id", "<", 72_000)])
        assert found.equals(table.slice(70_000, 2000))
        assert received() <= 0.2 * whole
        log.clear()
        scan = ap_lance.scan(operator, PATH, filters=[("id", ">=", 10)], limit=3)
        assert (await scan.read_all()).equals(table.slice(10, 3))
        assert received() <= 0.2 * whole


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ("id > 3", InvalidType),
        ([], InvalidArgument),
        ([("id", "~", 3)], InvalidArgument),
        ([("id", "in", 3)], InvalidType),
    ],
)
async def test_invalid_filters_are_refused_at_once(filters: Any, error: type[Exception]) -> None:
    async with stored({}) as operator:
        with pytest.raises(error):
            ap_lance.scan(operator, PATH, filters=filters)
        with pytest.raises(error):
            await ap_lance.plan(operator, PATH, filters=filters)


@pytest.mark.parametrize("rows", [0, 20])
@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([("nme", "=", 3)], "no column 'nme' to filter by"),
        (pc.field("nme") == 3, "nme"),
        ([("id", "=", "x")], "filters="),
        (pc.field("id") + 1, "evaluate to bool"),
        (pc.field("point", "q") == 1, "point"),
    ],
)
async def test_filters_that_do_not_go_with_the_columns(rows: int, filters: Any, message: str) -> None:
    async with stored(write_file(TABLE.slice(0, rows))) as operator:
        with pytest.raises(InvalidArgument, match=message):
            await ap_lance.read_table(operator, PATH, filters=filters)
