"""Limits, columns by expressions, counts and batches in any order: as pylance and pyarrow have them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import InvalidArgument, NotFound
from tests.files.lance_files import PATH, VERSIONS, dataset_objects, stored, write_file

lance: Any = pytest.importorskip("lance")

TABLE = pa.table(
    {
        "id": range(600),
        "name": [f"row {row}" for row in range(600)],
        "point": [{"x": row, "y": row % 3} for row in range(600)],
    }
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Mapping[str, bytes]]:
    """A dataset of six fragments without the rows 100 to 149, as pylance has it and as objects."""
    directory: Path = tmp_path_factory.mktemp("dataset")
    found = lance.write_dataset(TABLE, directory / PATH, max_rows_per_file=100)
    found.delete("id >= 100 and id < 150")
    return lance.dataset(directory / PATH), dataset_objects(directory / PATH, PATH)


LIMITED: list[dict[str, Any]] = [
    {"limit": 0},
    {"limit": 7},
    {"limit": 120},
    {"limit": 5, "filters": pc.field("id") > 97},
    {"limit": 10**6, "filters": pc.field("id") > 595},
]


@pytest.mark.parametrize("options", LIMITED)
async def test_the_first_rows_that_match(dataset: tuple[Any, Mapping[str, bytes]], options: dict[str, Any]) -> None:
    theirs, objects = dataset
    expected = theirs.to_table(filter=options.get("filters")).slice(0, options["limit"])
    async with stored(objects) as op:
        for batch_rows in (1, 9, 1000):
            assert (await ap_lance.read_table(op, PATH, batch_rows=batch_rows, **options)).equals(expected)
        opened = await ap_lance.open_dataset(op, PATH)
        assert (await opened.read_table(**options)).equals(expected)
        anyhow = await ap_lance.read_table(op, PATH, ordered=False, **options)
        assert anyhow.num_rows == expected.num_rows


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_limit_of_rows_that_were_chosen(version: str) -> None:
    async with stored(write_file(TABLE, version)) as op:
        for options, expected in (
            ({"rows": (5, 8), "limit": 2}, [5, 6]),
            ({"rows": (598, 700), "limit": 9}, [598, 599]),
            ({"take": [9, 3, 9, 4], "limit": 3}, [9, 3, 9]),
            ({"take": [9, 3, 9, 4], "limit": 2, "filters": pc.field("id") < 5}, [3, 4]),
        ):
            found = await ap_lance.read_table(op, PATH, columns=["id"], **options)
            assert found["id"].to_pylist() == expected
        with pytest.raises(InvalidArgument, match="limit must be at least 0"):
            ap_lance.scan(op, PATH, limit=-1)
        with pytest.raises(NotFound):
            await ap_lance.read_table(op, "none.lance", limit=0)


async def test_no_data_is_requested_behind_a_limit() -> None:
    log: list[tuple[str, int, int | None]] = []
    many = pa.table({"id": range(200_000)})
    async with stored(write_file(many, data_cache_bytes=8_000, batch_rows=1000), log=log) as op:
        await ap_lance.read_table(op, PATH, limit=10, gap_bytes=0)
        assert log[1:] == [(PATH, 0, 80)], "the metadata, and ten numbers of eight bytes"


async def test_columns_by_expressions(dataset: tuple[Any, Mapping[str, bytes]]) -> None:
    columns: dict[str, Any] = {"double": pc.field("id") * 2, "n": "name", "x": "point.x", "y": pc.field("point", "y")}
    async with stored(dataset[1]) as op:
        found = await ap_lance.read_table(op, PATH, columns=columns, filters=pc.field("id") >= 598)
        expected = {"double": [1196, 1198], "n": ["row 598", "row 599"], "x": [598, 599], "y": [1, 2]}
        assert found.to_pydict() == expected
        ids = await ap_lance.read_table(op, PATH, columns={"at": "_rowid"}, limit=2)
        assert ids.to_pydict() == {"at": [0, 1]}
        with pytest.raises(InvalidArgument, match="none"):
            await ap_lance.read_table(op, PATH, columns={"x": pc.field("none") + 1})


async def test_counts(dataset: tuple[Any, Mapping[str, bytes]]) -> None:
    log: list[tuple[str, int, int | None]] = []
    async with stored(dataset[1], log=log) as op:
        assert await ap_lance.count_rows(op, PATH) == dataset[0].count_rows() == 550
        assert not [path for path, *_ in log if "/data/" in path], "metadata alone is read"
        for condition in (pc.field("id") > 120, pc.field("name") == "row 3", pc.scalar(False)):
            assert await ap_lance.count_rows(op, PATH, filters=condition) == dataset[0].count_rows(filter=condition)
        assert await ap_lance.count_rows(op, PATH, version=1) == 600
        with pytest.raises(NotFound, match=r"none\.lance"):
            await ap_lance.count_rows(op, "none.lance")


async def test_batches_in_any_order(dataset: tuple[Any, Mapping[str, bytes]]) -> None:
    async with stored(dataset[1]) as op:
        found = await ap_lance.read_table(op, PATH, ordered=False, batch_rows=30)
        assert found.sort_by("id").equals(dataset[0].to_table().sort_by("id").combine_chunks())
