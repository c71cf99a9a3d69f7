"""The scan of a file: its arguments, the order of rows, and its plan."""

from typing import Any

import pyarrow as pa
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import (
    ConfigInvalid,
    InvalidArgument,
    InvalidRange,
    InvalidType,
    NotFound,
    ObjectChanged,
    UntrustedMetadata,
)
from tests.files.lance_files import PATH, VERSIONS, stored, write_file

ROWS = 20_000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "name": [None if row % 7 == 0 else f"row {row}" for row in range(ROWS)],
        "tags": [[row] * (row % 4) for row in range(ROWS)],
        "point": [{"x": row, "y": {"z": str(row), "w": row % 3 == 0}} for row in range(ROWS)],
    }
)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return {version: write_file(TABLE, version, 40_000, batch_rows=1000) for version in VERSIONS}


@pytest.mark.parametrize("version", VERSIONS)
async def test_fields_of_structs(files: dict[str, bytes], version: str) -> None:
    async with stored(files[version]) as operator:
        found = await ap_lance.read_table(operator, PATH, columns=["point.y.z", "id", "point.x"], rows=(9, 12))
        assert found.schema.names == ["point", "id"]
        assert found.column("point").to_pylist() == [{"x": row, "y": {"z": str(row)}} for row in range(9, 12)]
        plan = await ap_lance.plan(operator, PATH, columns=["point.x"])
        whole = await ap_lance.plan(operator, PATH, columns=["point"])
        assert 0 < plan.projected_bytes < whole.projected_bytes


@pytest.mark.parametrize("version", VERSIONS)
async def test_rows_without_columns(files: dict[str, bytes], version: str) -> None:
    log: list[Any] = []
    async with stored(files[version], log=log) as operator:
        scan = ap_lance.scan(operator, PATH, columns=[], batch_rows=15_000)
        batches = [batch async for batch in scan]
        assert [(batch.num_rows, batch.num_columns) for batch in batches] == [(15_000, 0), (5000, 0)]
        taken = [batch async for batch in ap_lance.scan(operator, PATH, columns=[], take=[5, 1, 1])]
        assert [(batch.num_rows, batch.num_columns) for batch in taken] == [(3, 0)]
        assert (await ap_lance.plan(operator, PATH, columns=[])).requests == ()
    assert len(log) == 3


@pytest.mark.parametrize("version", VERSIONS)
async def test_no_rows(files: dict[str, bytes], version: str) -> None:
    async with stored({PATH: files[version], "empty": write_file(TABLE.slice(0, 0), version)}) as operator:
        wanted: list[dict[str, Any]] = [{"rows": (5, 5)}, {"rows": (ROWS, ROWS + 5)}, {"take": []}]
        for options in wanted:
            assert (await ap_lance.read_table(operator, PATH, **options)).equals(TABLE.slice(0, 0))
        assert (await ap_lance.read_table(operator, "empty")).equals(TABLE.slice(0, 0))


async def test_requests_are_those_of_the_plan(files: dict[str, bytes]) -> None:
    log: list[Any] = []
    async with stored(files["2.0"], log=log) as operator:
        limits: dict[str, Any] = {"gap_bytes": 0, "request_bytes_max": 30_000}
        wanted: list[dict[str, Any]] = [{}, {"columns": ["id", "point"]}, {"columns": ["id"], "rows": (3000, 9000)}]
        for options in wanted:
            plan = await ap_lance.plan(operator, PATH, **options, **limits)
            assert plan.requests
            assert plan.indirect_pages == 0
            log.clear()
            await ap_lance.read_table(operator, PATH, **options, **limits, slots=1)
            assert log[1:] == list(plan.requests)
            assert plan.requested_bytes == sum(end - start for _, start, end in plan.requests)
            assert plan.rows == (6000 if "rows" in options else ROWS)
        rows = [page.row for page in plan.files[0].pages]
        assert rows == sorted(rows)
        assert {page.column for page in plan.files[0].pages} == {"id"}
        assert plan.files[0].version == (2, 0)


async def test_a_plan_names_reads_that_decide_on_others() -> None:
    table = pa.table({"id": range(20_000), "text": [f"{row} " * 100 for row in range(20_000)]})
    async with stored(write_file(table)) as operator:
        whole = await ap_lance.plan(operator, PATH)
        assert whole.indirect_pages == 0
        assert whole.projected_bytes > 8 * 20_000 + table.column("text").nbytes
        partly = await ap_lance.plan(operator, PATH, rows=(10_000, 10_010))
        assert [page.column for page in partly.files[0].pages if page.is_indirect] == ["text"]
        assert partly.projected_bytes < 1000


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rows": (2, 1)}, InvalidRange, "start <= end"),
        ({"rows": (0, 1), "take": [1]}, ConfigInvalid, "exclude"),
        ({"take": ["a"]}, InvalidType, "integers"),
        ({"columns": "id"}, InvalidType, "list of names"),
        ({"columns": [1]}, InvalidType, "must be text"),
        ({"batch_rows": 0}, ConfigInvalid, "batch_rows"),
        ({"gap_bytes": -1}, ConfigInvalid, "gap_bytes"),
        ({"slots": 0}, ConfigInvalid, "slots"),
        ({"budget_bytes": 1.5}, InvalidType, "budget_bytes"),
    ],
)
async def test_invalid_arguments_are_refused_at_once(options: Any, error: type[Exception], message: str) -> None:
    async with stored({}) as operator:
        with pytest.raises(error, match=message):
            ap_lance.scan(operator, PATH, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"columns": ["nme"]}, InvalidArgument, "no column 'nme'; there are: id, name, tags, point"),
        ({"columns": ["point.q"]}, InvalidArgument, "no column 'point.q'; there are: point.x, point.y"),
        ({"columns": ["id.x"]}, InvalidArgument, "no column 'id.x'; there are: none"),
        ({"columns": ["tags.item"]}, InvalidArgument, "no column 'tags.item'"),
        ({"take": [ROWS]}, InvalidRange, "row 20000 of 20000 rows"),
    ],
)
async def test_errors_name_missing_rows_and_columns(
    files: dict[str, bytes], options: Any, error: Any, message: str
) -> None:
    async with stored(files["2.0"]) as operator:
        with pytest.raises(error, match=message) as caught:
            await ap_lance.read_table(operator, PATH, **options)
        assert caught.value.path == PATH


async def test_errors_of_opening_name_the_path() -> None:
    async with stored(b"x" * 100) as operator:
        with pytest.raises(UntrustedMetadata, match=r"open 't\.lance'.*LANC"):
            await ap_lance.open_file(operator, PATH)
        with pytest.raises(NotFound):
            await ap_lance.read_table(operator, "other")
        with pytest.raises(NotFound):
            await ap_lance.read_table(operator, "other/")


async def test_another_version_of_the_file_is_noticed(files: dict[str, bytes]) -> None:
    async with stored(files["2.0"]) as operator:
        scan = ap_lance.scan(operator, PATH)
        await scan.schema()
        file = await ap_lance.open_file(operator, PATH)
        await operator.write(PATH, files["2.1"])
        with pytest.raises(ObjectChanged):
            await file.pinned.read(0, 10)
        await scan.aclose()


def test_as_an_arrow_stream_for_code_without_a_loop(files: dict[str, bytes], tmp_path: Any) -> None:
    from aioprefetch.operator.operator import Operator

    (tmp_path / PATH).write_bytes(files["2.2"])
    scan = ap_lance.scan(Operator.from_uri(f"file://{tmp_path}"), PATH, columns=["id", "name"], batch_rows=999)
    assert pa.table(scan).equals(TABLE.select(["id", "name"]))
    assert pa.RecordBatchReader.from_stream(scan).read_all().num_rows == ROWS
