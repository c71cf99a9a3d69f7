"""Blobs by their bytes and by their descriptions, as pylance gives them."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import InvalidArgument, Unsupported
from tests.files.lance_files import PATH, dataset_objects, stored, write_file

lance: Any = pytest.importorskip("lance")

ROWS = 300
BLOB = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def table() -> pa.Table:
    chance = random.Random(3)
    sizes = [chance.choice([0, 1, 100, 5000]) for _ in range(ROWS)]
    blobs = [None if row % 9 == 4 else chance.randbytes(size) for row, size in enumerate(sizes)]
    return pa.table([pa.array(range(ROWS)), pa.array(blobs, pa.large_binary())], pa.schema([("id", pa.int64()), BLOB]))


async def test_descriptions_and_bytes_are_those_of_pylance(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    peer = lance.write_dataset(table(), str(path), data_storage_version="2.0", max_rows_per_file=120)
    peer.delete("id % 10 = 2")
    descriptions = peer.scanner(blob_handling="all_descriptions").to_table()
    values = peer.scanner(blob_handling="all_binary").to_table()
    take = [5, 250, 5, 0, 17]
    async with stored(dataset_objects(path, "ds")) as operator:
        forms: list[tuple[Any, pa.Table]] = [("descriptions", descriptions), ("bytes", values)]
        for blobs, expected in forms:
            for batch_rows in (7, 65536):
                found = await ap_lance.read_table(operator, "ds", blobs=blobs, batch_rows=batch_rows)
                found.validate(full=True)
                assert found.equals(expected)
                assert found.schema.equals(expected.schema, check_metadata=True)
            found = await ap_lance.read_table(operator, "ds", blobs=blobs, columns=["b"], rows=(50, 200))
            assert found.equals(expected.select(["b"]).slice(50, 150))
            found = await ap_lance.read_table(operator, "ds", blobs=blobs, take=take, columns=["b", "id", "_rowaddr"])
            assert found.select(["id", "b"]).equals(expected.take(take))
            found = await ap_lance.read_table(operator, "ds", blobs=blobs, filters=[("id", "<", 40)])
            assert found.equals(expected.slice(0, 36))
        dataset = await ap_lance.open_dataset(operator, "ds")
        assert (await dataset.take(take, blobs="descriptions")).equals(descriptions.take(take))
        assert (await dataset.read_table()).equals(values)


async def test_a_description_is_where_the_bytes_lie() -> None:
    data = write_file(table(), "2.0", 4000, batch_rows=50)
    log: list[Any] = []
    async with stored(data, log=log) as operator:
        found = await ap_lance.read_table(operator, PATH, blobs="descriptions")
        assert sum(1 for _ in log) <= 3
        plan = await ap_lance.plan(operator, PATH, blobs="descriptions")
        assert plan.indirect_pages == 0
        assert (await ap_lance.plan(operator, PATH)).indirect_pages > 0
        for value, place in zip(table().column("b").to_pylist(), found.column("b").to_pylist(), strict=True):
            if value is None:
                assert place == {"position": 1, "size": 0}
            else:
                assert data[place["position"] : place["position"] + place["size"]] == value


async def test_blobs_within_structs() -> None:
    children = [table().column("b").combine_chunks(), pa.array(range(ROWS))]
    column = pa.StructArray.from_arrays(children, fields=[BLOB, pa.field("n", pa.int64())])
    structs = pa.table({"s": column})
    async with stored(write_file(structs, "2.0")) as operator:
        found = await ap_lance.read_table(operator, PATH, blobs="descriptions", columns=["s.b"])
        assert [place["s"]["b"]["size"] for place in found.to_pylist()] == [
            len(value["b"] or b"") for value in column.to_pylist()
        ]
        assert (await ap_lance.read_table(operator, PATH)).equals(structs)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("blobs", ["bytes", "descriptions"])
async def test_blobs_of_later_versions_are_refused(version: str, blobs: Any) -> None:
    async with stored(write_file(table(), version)) as operator:
        with pytest.raises(Unsupported, match="blob field 'b'"):
            await ap_lance.read_table(operator, PATH, blobs=blobs)
        assert (await ap_lance.read_table(operator, PATH, blobs=blobs, columns=["id"])).num_rows == ROWS


async def test_other_columns_of_a_dataset_with_blobs_of_2_2(tmp_path: Path) -> None:
    """Its files have fields without an id, the parts of the descriptions."""
    lance.write_dataset(table(), str(tmp_path / "ds"), data_storage_version="2.2")
    async with stored(dataset_objects(tmp_path / "ds", "ds")) as operator:
        found = await ap_lance.read_table(operator, "ds", columns=["id"])
        assert found.column("id").to_pylist() == list(range(ROWS))
        with pytest.raises(Unsupported, match=r"blob field 'b' .*: name the other columns"):
            await ap_lance.read_table(operator, "ds")


@pytest.mark.parametrize("blobs", ["byte", None, 1, b"bytes", []])
async def test_other_forms_are_refused_at_once(blobs: Any) -> None:
    async with stored({}) as operator:
        with pytest.raises(InvalidArgument, match="'bytes' or 'descriptions'"):
            ap_lance.scan(operator, PATH, blobs=blobs)
        with pytest.raises(InvalidArgument, match="'bytes' or 'descriptions'"):
            await ap_lance.plan(operator, PATH, blobs=blobs)
