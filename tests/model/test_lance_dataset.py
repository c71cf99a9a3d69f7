"""Datasets as pylance writes them, read from disk through an Operator, against what pylance reads."""

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import Error, InvalidRange, NotFound, Unsupported, UntrustedMetadata
from aioprefetch.lance import LanceDataset, open_dataset
from aioprefetch.lance.dataset import _DELETION_READS
from aioprefetch.lance.fragment_rows import THREAD_ROWS_MIN, physical_ranges, read_deletions
from aioprefetch.lance.manifest import Fragment, Manifest, parse_manifest
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import run as sync_run
from aioprefetch.testing import CountingS3Server
from tests.files.lance_files import damaged, dataset_objects, stored
from tests.profile import chosen, few
from tests.stores.s3_options import options_of

lance: Any = pytest.importorskip("lance")

VERSIONS = ("2.0", "2.1", "2.2")


def rows_of(start: int, stop: int, *, seed: int = 0) -> pa.Table:
    """Rows of several type families; without nulls in structs, which version 2.0 cannot hold."""
    chance = random.Random(seed)
    numbers = range(start, stop)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "score": pa.array([None if number % 11 == 0 else chance.random() for number in numbers]),
            "name": pa.array([None if number % 7 == 0 else f"row {number} " * (number % 5) for number in numbers]),
            "flag": pa.array([number % 3 == 0 for number in numbers]),
            "vector": pa.array([[number, number + 1] for number in numbers], pa.list_(pa.float32(), 2)),
            "tags": pa.array([[f"t{number % 9}"] * (number % 4) for number in numbers], pa.list_(pa.string())),
            "point": pa.array([{"x": number, "y": {"z": str(number)}} for number in numbers]),
        }
    )


async def check(path: Path, peer: Any, *, seed: int = 1, samples: int = 3) -> LanceDataset:
    """All rows, ranges, takes, projections and batch sizes of our reading against pylance's."""
    chance = random.Random(seed)
    async with Operator.from_uri(f"file://{path.parent}") as operator:
        dataset = await open_dataset(operator, path.name, peer.version)
        expected = peer.to_table()
        assert dataset.count_rows() == expected.num_rows == peer.count_rows()
        assert dataset.schema.equals(peer.schema, check_metadata=True)
        found = await dataset.read_table(batch_rows=chance.choice([70, 300, 65536]))
        found.validate(full=True)
        assert found.equals(expected)
        for _ in range(samples):
            start, size = chance.randrange(expected.num_rows + 1), chance.choice([1, 10, 1000])
            batch_rows = chance.choice([37, 300, 65536])
            rows = await dataset.read_table(rows=(start, start + size), batch_rows=batch_rows)
            assert rows.equals(expected.slice(start, size))
        for _ in range(samples):
            numbers = [chance.randrange(expected.num_rows) for _ in range(chance.choice([1, 5, 60]))]
            if chance.random() < 0.5:
                numbers = sorted(set(numbers))
            names = chance.sample(expected.column_names, min(3, expected.num_columns))
            taken = await dataset.take(numbers, columns=names, batch_rows=chance.choice([3, 65536]))
            assert taken.equals(expected.select(names).take(numbers))
            assert taken.equals(peer.take(numbers, columns=names))
        return dataset


async def test_the_places_of_rows_between_many_deleted_ones_are_found_on_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, find = [], physical_ranges

    def noted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return find(*arguments)

    monkeypatch.setattr("aioprefetch.lance.dataset.physical_ranges", noted)
    peer = lance.write_dataset(pa.table({"id": range(3 * THREAD_ROWS_MIN)}), str(tmp_path / "d.lance"))
    peer.delete("id % 3 != 1")
    async with Operator.from_uri(f"file://{tmp_path}") as operator:
        found = await (await open_dataset(operator, "d.lance")).read_table()
    assert found.equals(peer.to_table())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("version", few(VERSIONS, lambda _, version: version != "2.1"))
async def test_a_life_of_a_dataset(version: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.lance"
    first = rows_of(0, 1000).replace_schema_metadata({"made by": "a test"})
    peer = lance.write_dataset(first, str(path), data_storage_version=version, max_rows_per_file=300)
    await check(path, peer)
    peer.delete("id % 7 = 3")  # Sparse: Arrow files.
    await check(path, peer)
    peer = lance.write_dataset(rows_of(1000, 1500), str(path), mode="append")
    await check(path, peer)
    peer.delete("id >= 250 and id < 640")  # One fragment goes altogether.
    await check(path, peer)
    peer.add_columns({"double": "id * 2"})
    await check(path, peer)
    peer = lance.write_dataset(rows_of(1500, 1600), str(path), mode="append")  # Without the new column.
    dataset = await check(path, peer)
    assert any(len(one.files) == 2 for one in dataset.fragments)
    assert any(len(one.files) == 1 for one in dataset.fragments)
    peer.alter_columns({"path": "name", "name": "label"})
    peer.drop_columns(["point.x", "flag"])
    await check(path, peer)
    peer.optimize.compact_files(target_rows_per_fragment=1000)
    await check(path, peer)
    for one in range(1, peer.version + 1):
        await check(path, lance.dataset(str(path), version=one), seed=one, samples=1)


@pytest.mark.parametrize("version", few(VERSIONS))
async def test_deletions_as_bitmaps(version: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.lance"
    table = pa.table({"id": range(150_000)})
    peer = lance.write_dataset(table, str(path), data_storage_version=version)
    peer.delete("id < 60000 or id % 3 = 0")
    assert list((path / "_deletions").glob("*.bin"))
    await check(path, peer)


async def test_a_column_that_fragments_do_not_have_is_null(tmp_path: Path) -> None:
    path = tmp_path / "ds.lance"
    lance.write_dataset(rows_of(0, 50), str(path), data_storage_version="2.0")
    peer = lance.dataset(str(path))
    new = pa.schema(
        [
            pa.field("n", pa.int32()),
            pa.field("s", pa.struct([("a", pa.string()), ("b", pa.list_(pa.int8()))])),
            pa.field("d", pa.dictionary(pa.int8(), pa.string())),
            pa.field("v", pa.list_(pa.float32(), 3)),
        ]
    )
    peer.add_columns(new)
    dataset = await check(path, peer)
    assert all(len(one.files) == 1 for one in dataset.fragments)
    peer.delete("id % 2 = 0")
    await check(path, peer)


async def test_row_ids_columns_merged_and_updated(tmp_path: Path) -> None:
    path = tmp_path / "ds.lance"
    peer = lance.write_dataset(
        rows_of(0, 400), str(path), data_storage_version="2.0", max_rows_per_file=150, enable_stable_row_ids=True
    )
    peer.update({"score": "1.5"}, where="id % 5 = 0")
    await check(path, peer)
    merge = peer.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows_of(390, 420, seed=9))
    await check(path, lance.dataset(str(path)))
    peer = lance.dataset(str(path))
    peer.merge(pa.table({"id": range(0, 420, 2), "half": range(210)}), left_on="id")
    await check(path, peer)


async def test_files_of_several_versions(tmp_path: Path) -> None:
    path = tmp_path / "ds.lance"
    lance.write_dataset(rows_of(0, 250), str(path), data_storage_version="2.0")
    for number, version in enumerate(("2.2", "2.1", "2.0"), 1):
        rows = rows_of(250 * number, 250 * number + 250, seed=number)
        peer = lance.write_dataset(rows, str(path), mode="append", data_storage_version=version)
    files = [file for one in peer.get_fragments() for file in one.metadata.files]
    assert [(one.file_major_version, one.file_minor_version) for one in files] == [(2, 0), (2, 2), (2, 1), (2, 0)]
    await check(path, peer, samples=8)
    peer.delete("id % 9 = 4")
    await check(path, peer)


@pytest.mark.parametrize("version", VERSIONS)
async def test_dictionaries_of_several_fragments(version: str, tmp_path: Path) -> None:
    """Arrow does not unify dictionaries that hold nulls, as those of version 2.0 do."""
    path = tmp_path / "ds.lance"
    kind = pa.dictionary(pa.int8(), pa.string())
    several: list[list[str | None]] = [["a", "b", None, "c"], [None] * 4, ["x", None, "c", "a"]]
    for number, letters in enumerate(several):
        column = pa.array(letters * 25, kind)
        lists = pa.array([letters[: row % 4] for row in range(100)], pa.list_(kind))
        table = pa.table({"d": column, "l": lists, "s": pa.StructArray.from_arrays([column, lists], ["d", "l"])})
        peer = lance.write_dataset(
            table, str(path), mode="append" if number else "create", data_storage_version=version
        )
    expected = peer.to_table().to_pylist()
    chance = random.Random(2)
    async with Operator.from_uri(f"file://{tmp_path}") as operator:
        dataset = await open_dataset(operator, path.name)
        for numbers in ([299, 3, 100, 201, 2, 0], [150, 3], chance.choices(range(300), k=200)):
            found = await dataset.take(numbers, batch_rows=chance.choice([7, 65536]))
            found.validate(full=True)
            assert found.to_pylist() == [expected[number] for number in numbers]


async def test_wide_columns_that_are_missing_count_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "ds.lance"
    peer = lance.write_dataset(pa.table({"id": range(5000)}), str(path), data_storage_version="2.0")
    peer.add_columns(pa.field("v", pa.list_(pa.float32(), 256)))
    async with Operator.from_uri(f"file://{tmp_path}") as operator:
        scan = ap_lance.scan(operator, "ds.lance", batch_bytes=1 << 20)
        sizes = [(batch.num_rows, batch.column("v").null_count) async for batch in scan]
    assert sum(rows for rows, _ in sizes) == 5000
    assert max(rows for rows, _ in sizes) <= (1 << 20) // 1024
    assert all(rows == nulls for rows, nulls in sizes)


async def test_deletion_files_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the manifest does not count deleted rows: those of early writers do not."""
    path = tmp_path / "ds.lance"
    peer = lance.write_dataset(pa.table({"id": range(400)}), str(path), max_rows_per_file=10)
    peer.delete("id % 10 = 3")
    all_waiting, waiting = asyncio.Event(), 0

    async def read(operator: Operator, fragment: Fragment) -> Any:
        nonlocal waiting
        waiting += 1
        if waiting == _DELETION_READS:
            all_waiting.set()
        assert waiting <= _DELETION_READS
        await all_waiting.wait()
        waiting -= 1
        return await read_deletions(operator, fragment)

    def uncounted(*arguments: Any) -> Manifest:
        made = parse_manifest(*arguments)
        files = [(one, one.deletion_file) for one in made.fragments]
        fragments = [replace(one, deletion_file=file and replace(file, rows=None)) for one, file in files]
        return replace(made, fragments=tuple(fragments))

    monkeypatch.setattr("aioprefetch.lance.versions.parse_manifest", uncounted)
    monkeypatch.setattr("aioprefetch.lance.dataset.read_deletions", read)
    async with Operator.from_uri(f"file://{tmp_path}") as operator:
        assert (await open_dataset(operator, path.name)).count_rows() == 360


async def test_manifests_named_by_version(tmp_path: Path) -> None:
    path = tmp_path / "ds.lance"
    for number in range(12):  # 10 and 11 come before 2 in a listing.
        peer = lance.write_dataset(
            rows_of(number, number + 3),
            str(path),
            mode="append" if number else "create",
            data_storage_version="2.0",
            enable_v2_manifest_paths=False,
        )
    assert (path / "_versions" / "12.manifest").exists()
    await check(path, peer)
    async with Operator.from_uri(f"file://{tmp_path}") as operator:
        assert (await open_dataset(operator, "ds.lance")).version == 12
        assert (await open_dataset(operator, "ds.lance/", 11)).count_rows() == 33


@pytest.mark.parametrize("path", ["ds.lance", "ds.lance/"])
async def test_scan_takes_a_dataset_for_a_file(path: str, tmp_path: Path) -> None:
    peer = lance.write_dataset(
        rows_of(0, 500), str(tmp_path / "ds.lance"), max_rows_per_file=200, data_storage_version="2.0"
    )
    peer.delete("id = 250")
    expected = peer.to_table()
    async with Operator.from_uri(f"file://{tmp_path}") as operator:
        assert (await ap_lance.read_table(operator, path)).equals(expected)
        batches = [batch async for batch in ap_lance.scan(operator, path, columns=["name"], rows=(190, 260))]
        assert pa.Table.from_batches(batches).equals(expected.select(["name"]).slice(190, 70))
        assert [batch.num_rows for batch in batches] == [10, 60]
        plan = await ap_lance.plan(operator, path, columns=["id"], rows=(150, 260), gap_bytes=0)
        assert (plan.rows, len(plan.files)) == (110, 2)
        with pytest.raises(InvalidRange, match="row 499 of 499"):
            await ap_lance.read_table(operator, path, take=[499])
        with pytest.raises(NotFound):
            await ap_lance.read_table(operator, "other.lance")
    async with stored(dataset_objects(tmp_path / "ds.lance", "ds.lance")) as operator:
        assert (await ap_lance.read_table(operator, path)).equals(expected)


async def test_a_plan_counts_rows_once(tmp_path: Path) -> None:
    """Whether their columns lie in several files, in one, or in none."""
    peer = lance.write_dataset(rows_of(0, 50), str(tmp_path / "ds.lance"), max_rows_per_file=30)
    peer.add_columns({"double": "id * 2"})
    async with Operator.from_uri(f"file://{tmp_path}") as operator:
        for columns in (None, ["id"], ["double", "name"], ["_rowid"], []):
            assert (await ap_lance.plan(operator, "ds.lance", columns=columns, rows=(20, 45))).rows == 25


def test_a_dataset_as_an_arrow_stream(tmp_path: Path) -> None:
    lance.write_dataset(rows_of(0, 500), str(tmp_path / "ds.lance"), max_rows_per_file=200, data_storage_version="2.0")
    operator = Operator.from_uri(f"file://{tmp_path}")
    reader = ap_lance.scan(operator, "ds.lance", batch_rows=64).to_reader()
    assert reader.read_all().equals(rows_of(0, 500))


@pytest.mark.parametrize("version", VERSIONS)
async def test_many_takes(version: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.lance"
    peer = lance.write_dataset(
        rows_of(0, 3000), str(path), data_storage_version=version, max_rows_per_file=700, max_rows_per_group=100
    )
    peer.delete("id % 13 = 5")
    expected = peer.to_table()
    chance = random.Random(3)
    async with Operator.from_uri(f"file://{tmp_path}") as operator:
        dataset = await open_dataset(operator, path.name)
        for _ in range(chosen(quick=25, full=100) if version == "2.0" else chosen(quick=10, full=25)):
            numbers = chance.choices(range(expected.num_rows), k=chance.choice([1, 3, 30]))
            assert (await dataset.take(numbers)).equals(expected.take(numbers))
            start, size = chance.randrange(expected.num_rows), chance.choice([1, 50, 900])
            assert (await dataset.read_table(rows=(start, start + size))).equals(expected.slice(start, size))


async def test_one_listing_and_one_read_for_each_file_of_known_size(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    peer = lance.write_dataset(rows_of(0, 90), str(path), max_rows_per_file=30, data_storage_version="2.0")
    peer.delete("id = 3")
    log: list[Any] = []
    async with stored(dataset_objects(path, "ds"), log=log) as operator:
        assert (await ap_lance.read_table(operator, "ds/")).num_rows == 89
    # A manifest, a deletion file, and three files that are smaller than the tail they are opened with.
    assert len(log) == 5
    assert all(start == 0 for _, start, _ in log if _ is not None)


async def test_metadata_of_files_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    peer = lance.write_dataset(rows_of(0, 90), str(path), max_rows_per_file=30, data_storage_version="2.0")
    peer.delete("id = 3")
    log: list[Any] = []
    async with stored(dataset_objects(path, "ds"), log=log) as operator:
        dataset = await open_dataset(operator, "ds")
        log.clear()
        assert (await dataset.take([5, 1])).column("id").to_pylist() == [6, 1]
        assert len(log) == 2
        assert (await dataset.take([2, 3])).column("id").to_pylist() == [2, 4]
        assert (await dataset.take([88, 3])).column("id").to_pylist() == [89, 4]
        assert len(log) == 3


async def test_a_take_in_any_order_over_many_fragments(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    lance.write_dataset(pa.table({"id": range(400)}), str(path), max_rows_per_file=4, data_storage_version="2.0")
    async with stored(dataset_objects(path, "ds")) as operator:
        dataset = await open_dataset(operator, "ds")
        assert len(dataset.fragments) == 100
        numbers = list(range(399, -1, -1))
        assert (await dataset.take(numbers)).column("id").to_pylist() == numbers
        assert (await dataset.read_table()).column("id").to_pylist() == numbers[::-1]


async def test_a_scan_of_many_fragments_that_is_left(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    lance.write_dataset(pa.table({"id": range(400)}), str(path), max_rows_per_file=4, data_storage_version="2.0")
    async with stored(dataset_objects(path, "ds")) as operator:
        async with ap_lance.scan(operator, "ds/") as scan:
            assert (await anext(scan)).num_rows == 4
        assert operator.runtime().budget.used_bytes == 0


async def test_hostile_datasets_end_in_the_rows_or_a_typed_error(tmp_path: Path) -> None:
    peer = lance.write_dataset(rows_of(0, 60), str(tmp_path / "ds"), data_storage_version="2.0", max_rows_per_file=30)
    peer.delete("id = 3")
    peer.add_columns({"double": "id * 2"})
    objects = dataset_objects(tmp_path / "ds", "ds")
    manifest = min(path for path in objects if path.endswith(".manifest"))
    others = [path for path in objects if path.startswith(("ds/data/", "ds/_deletions/"))]
    chance = random.Random(11)
    outcomes: dict[str, int] = {}
    async with stored({}) as operator:
        for key, data in objects.items():
            await operator.write(key, data)
        for number in range(chosen(quick=100, full=300)):
            key = manifest if number % 2 else chance.choice(others)
            data = objects[key]
            await operator.write(key, damaged(data, chance, start=max(0, len(data) - 900)))
            try:
                await ap_lance.read_table(operator, "ds/")
                outcome = "read"
            except Error as error:
                outcome = error.kind
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            await operator.write(key, data)
    assert outcomes.keys() <= {"read", "UntrustedMetadata", "Unsupported", "NotFound"}, outcomes
    assert outcomes["read"] > 10
    assert outcomes["UntrustedMetadata"] > 50


async def test_fragments_that_contradict_their_files(tmp_path: Path) -> None:
    lance.write_dataset(rows_of(0, 60), str(tmp_path / "ds"), data_storage_version="2.0")
    lance.write_dataset(rows_of(0, 61), str(tmp_path / "other"), data_storage_version="2.0")
    objects, others = (dataset_objects(tmp_path / name, name) for name in ("ds", "other"))
    (key,) = (path for path in objects if path.startswith("ds/data/"))
    (other,) = (data for path, data in others.items() if path.startswith("other/data/"))
    for data, message in ((other, "61 rows where the manifest says 60"), (other + b"x", "bytes where")):
        async with stored({**objects, key: data}) as operator:
            with pytest.raises(UntrustedMetadata, match=message):
                await ap_lance.read_table(operator, "ds/")


async def test_a_dataset_in_s3(s3_server: CountingS3Server, random_name: Callable[[], str], tmp_path: Path) -> None:
    path, bucket = tmp_path / "ds", random_name()
    peer = lance.write_dataset(rows_of(0, 300), str(path), max_rows_per_file=100, data_storage_version="2.2")
    peer.delete("id = 3")
    objects = dataset_objects(path, "ds")
    s3_server.create_bucket(bucket)
    options = options_of(s3_server)
    async with Operator.from_uri(f"s3://{bucket}", **options) as operator:
        for key, data in objects.items():
            await operator.write(key, data)
        s3_server.reset()
        assert (await ap_lance.read_table(operator, "ds/")).equals(peer.to_table())
        # A page of a listing, the manifest, the deleted rows, and each file in one.
        assert [request.method for request in s3_server.requests] == ["GET"] * 6


def test_a_dataset_in_a_plain_loop(tmp_path: Path) -> None:
    """Without an event loop, from the beginning each time."""
    peer = lance.write_dataset(rows_of(0, 300), str(tmp_path / "ds"), max_rows_per_file=100)
    operator = Operator.from_uri(f"file://{tmp_path}")
    scan = ap_lance.scan(operator, "ds/", batch_rows=64)
    for _ in range(2):
        assert pa.Table.from_batches(list(scan)).equals(peer.to_table())
    sync_run(operator.aclose())


async def test_legacy_datasets_are_named(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "ds"), data_storage_version="legacy")
    async with stored(dataset_objects(tmp_path / "ds", "ds")) as operator:
        with pytest.raises(Unsupported, match=r"'0\.1'"):
            await ap_lance.read_table(operator, "ds/")
