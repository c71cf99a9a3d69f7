"""Versions by number, time and tag, against pylance's."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import (
    ConfigInvalid,
    InvalidArgument,
    InvalidType,
    NotFound,
    Unsupported,
    UntrustedMetadata,
)
from aioprefetch.lance.versions import manifest_paths
from aioprefetch.operator.operator import Operator
from tests.files.lance_files import dataset_objects, stored, without_listing, write_file
from tests.profile import each_of

lance: Any = pytest.importorskip("lance")

VERSIONS = 9


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a version of one row more each time, and tags of two of them."""
    path = tmp_path_factory.mktemp("lance") / "ds"
    for number in range(VERSIONS):
        peer = lance.write_dataset(pa.table({"a": [number]}), str(path), mode="append" if number else "create")
    peer.tags.create("first", 1)
    peer.tags.create("Fünf_5.x-", 5)
    return path


async def times(operator: Operator) -> list[datetime]:
    """The times of all versions of ``ds``."""
    datasets = [await ap_lance.open_dataset(operator, "ds", number) for number in range(1, VERSIONS + 1)]
    return [dataset.committed for dataset in datasets if dataset.committed is not None]


async def test_a_number(life: Path) -> None:
    async with stored(dataset_objects(life, "ds")) as operator:
        for version in (1, 4, VERSIONS):
            expected = lance.dataset(str(life), version=version).to_table()
            assert (await ap_lance.read_table(operator, "ds", version=version)).equals(expected)
            assert (await ap_lance.read_table(operator, "ds/", version=version)).equals(expected)
            plan = await ap_lance.plan(operator, "ds", version=version)
            assert (plan.rows, len(plan.files)) == (version, version)
        with pytest.raises(NotFound, match="no version 10"):
            await ap_lance.read_table(operator, "ds", version=10)


async def test_times_are_those_of_pylance(life: Path) -> None:
    """It rounds to a microsecond, and leaves away the zone, which is that of the machine."""
    async with stored(dataset_objects(life, "ds")) as operator:
        peers = [one["timestamp"].astimezone(UTC) for one in lance.dataset(str(life)).versions()]
        differences = [theirs - ours for theirs, ours in zip(peers, await times(operator), strict=True)]
        assert all(abs(difference) <= timedelta(microseconds=1) for difference in differences)


async def test_a_time_is_the_latest_version_written_until_then(life: Path) -> None:
    log: list[Any] = []
    tick = timedelta(microseconds=10)
    async with stored(dataset_objects(life, "ds"), log=log) as operator:
        for number, written in enumerate(await times(operator), 1):
            for when in (written + tick, written - tick):
                naive = when.astimezone().replace(tzinfo=None)
                if number == 1 and when < written:
                    with pytest.raises(NotFound, match="no version of the dataset was written at"):
                        await ap_lance.open_dataset(operator, "ds", when)
                    continue
                dataset = await ap_lance.open_dataset(operator, "ds", when)
                assert dataset.version == lance.dataset(str(life), asof=naive).version
            for when in (written, written.astimezone(timezone(timedelta(hours=-7)))):
                log.clear()
                dataset = await ap_lance.open_dataset(operator, "ds", when)
                assert (dataset.version, dataset.committed) == (number, written)
                assert len(log) <= VERSIONS.bit_length()
                assert (await ap_lance.read_table(operator, "ds", version=when)).num_rows == number
        latest = await ap_lance.open_dataset(operator, "ds", datetime.now(UTC) + timedelta(days=1))
        assert latest.version == VERSIONS


async def test_a_copy_of_a_dataset_keeps_the_times_of_its_versions(life: Path) -> None:
    """The store's own times are those of the copy."""
    async with stored(dataset_objects(life, "ds")) as operator:
        when = (await times(operator))[2]
        dataset = await ap_lance.open_dataset(operator, "ds", when)
        assert dataset.version == 3
        assert all(one.last_modified is None or one.last_modified > when for one in await dataset.versions())


async def test_versions_of_features_that_are_not_read_do_not_hinder_the_search(life: Path) -> None:
    objects = dataset_objects(life, "ds")
    async with stored(objects) as operator:
        written = await times(operator)
    middle = VERSIONS // 2 + 1
    path = manifest_paths("ds/", middle)[0]
    assert b"lance\x12\x032.2" in objects[path]
    objects[path] = objects[path].replace(b"lance\x12\x032.2", b"lance\x12\x039.9")
    async with stored(objects) as operator:
        with pytest.raises(Unsupported, match=r"9\.9"):
            await ap_lance.open_dataset(operator, "ds", written[middle - 1])
        assert (await ap_lance.open_dataset(operator, "ds", written[1])).version == 2


async def test_a_tag(life: Path) -> None:
    log: list[Any] = []
    async with stored(dataset_objects(life, "ds"), log=log) as operator:
        assert (await ap_lance.open_dataset(operator, "ds", tag="first")).version == 1
        assert len(log) == 2
        assert (await ap_lance.read_table(operator, "ds", tag="Fünf_5.x-")).num_rows == 5
        assert (await ap_lance.plan(operator, "ds/", tag="first")).rows == 1
        with pytest.raises(NotFound, match="no tag 'last'"):
            await ap_lance.read_table(operator, "ds", tag="last")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"7", b'{"version": null}', b'{"version": true}', b'{"version": 0}', b'{"version": "1"}'),
        *(b"[" * 100_000, b'{"version": 1e3}', b"\xff", b'{"version": 1' + b"0" * 40 + b"}"),
    ],
)
async def test_a_damaged_tag(life: Path, data: bytes) -> None:
    async with stored({**dataset_objects(life, "ds"), "ds/_refs/tags/bad.json": data}) as operator:
        with pytest.raises(UntrustedMetadata, match="tag 'bad'"):
            await ap_lance.read_table(operator, "ds", tag="bad")


async def test_a_tag_of_a_version_that_is_gone(life: Path) -> None:
    tag = json.dumps({"branch": None, "version": 77}).encode()
    async with stored({**dataset_objects(life, "ds"), "ds/_refs/tags/gone.json": tag}) as operator:
        with pytest.raises(NotFound, match="no version 77"):
            await ap_lance.read_table(operator, "ds", tag="gone")


async def test_without_a_listing(life: Path) -> None:
    async with stored(dataset_objects(life, "ds")) as operator:
        blind = without_listing(operator)
        assert (await ap_lance.read_table(blind, "ds", version=2)).num_rows == 2
        assert (await ap_lance.read_table(blind, "ds", tag="first")).num_rows == 1
        with pytest.raises(Unsupported, match="version=NUMBER"):
            await ap_lance.read_table(blind, "ds", version=datetime.now(UTC))


@each_of(
    ("options", "error", "message"),
    [
        ({"version": 1, "tag": "first"}, ConfigInvalid, "exclude"),
        ({"version": datetime.now(UTC), "tag": "first"}, ConfigInvalid, "exclude"),
        ({"version": "first"}, InvalidType, "tag= takes"),
        ({"version": 1.5}, InvalidType, "version"),
        ({"version": True}, InvalidType, "version"),
        ({"version": 0}, InvalidArgument, "version"),
        ({"version": datetime.now()}, InvalidArgument, "time zone"),
        *(
            ({"tag": name}, InvalidArgument, "not the name of a tag")
            for name in ("", "../x", "a/b", ".a", "a..b", "a b")
        ),
    ],
)
async def test_invalid_arguments_are_refused_at_once(options: Any, error: type[Exception], message: str) -> None:
    async with stored({}) as operator:
        with pytest.raises(error, match=message):
            ap_lance.scan(operator, "ds", **options)
        with pytest.raises(error, match=message):
            await ap_lance.open_dataset(operator, "ds", **options)
        with pytest.raises(error, match=message):
            await ap_lance.plan(operator, "ds", **options)


@pytest.mark.parametrize("options", [{"version": 1}, {"tag": "first"}, {"version": datetime.now(UTC)}])
async def test_a_file_has_no_versions(tmp_path: Path, options: Any) -> None:
    data = write_file(pa.table({"a": [1]}), path=tmp_path / "t.lance")
    async with stored(data) as operator, Operator.from_uri(f"file://{tmp_path}") as disk:
        for store in (operator, disk):
            with pytest.raises(ConfigInvalid, match="for datasets; this is a file"):
                await ap_lance.read_table(store, "t.lance", **options)
            with pytest.raises(NotFound):
                await ap_lance.read_table(store, "other.lance", **options)
