"""Manifests and versions: the one that is read, the number of requests, and invalid ones."""

import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import InvalidArgument, NotFound, Unsupported, UntrustedMetadata
from aioprefetch.lance.dataset import LanceDataset, open_dataset
from aioprefetch.lance.manifest import Directory, Manifest, manifest_range, parse_manifest
from aioprefetch.lance.versions import manifest_paths, version_of
from aioprefetch.values import Entry
from tests.files.lance_files import damaged, dataset_objects, stored, without_listing
from tests.profile import each_of
from tests.unit.lance.protobuf import key, span, varint

lance: Any = pytest.importorskip("lance")


@pytest.fixture(scope="module")
def three_versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("lance") / "ds"
    table = pa.table({"a": range(10), "b": ["x"] * 10}).replace_schema_metadata({"k": "v"})
    dataset = lance.write_dataset(table, str(path), data_storage_version="2.0", max_rows_per_file=4)
    dataset.delete("a = 3")
    lance.write_dataset(table, str(path), mode="append")
    return dataset_objects(path, "ds")


def renamed(objects: dict[str, bytes]) -> dict[str, bytes]:
    """A copy of a dataset whose manifests are named by their versions."""
    result = dict(objects)
    for version in (1, 2, 3):
        inverted, plain = manifest_paths("ds/", version)
        result[plain] = result.pop(inverted)
    return result


@pytest.mark.parametrize("is_renamed", [False, True])
async def test_versions(three_versions: dict[str, bytes], is_renamed: bool) -> None:
    objects = renamed(three_versions) if is_renamed else three_versions
    async with stored(objects) as operator:
        dataset = await open_dataset(operator, "ds")
        assert (dataset.version, dataset.count_rows(), len(dataset.fragments)) == (3, 19, 4)
        assert [one.version for one in await dataset.versions()] == [1, 2, 3]
        for version, rows in ((1, 10), (2, 9), (3, 19)):
            assert (await open_dataset(operator, "ds/", version)).count_rows() == rows
        with pytest.raises(NotFound, match="no version 4"):
            await open_dataset(operator, "ds", 4)
        with pytest.raises(NotFound, match="no version of a Lance dataset"):
            await open_dataset(operator, "other")
        with pytest.raises(InvalidArgument):
            await open_dataset(operator, "ds", 0)
        assert "version 3, 19 rows" in repr(dataset)
        assert dataset.schema.metadata == {b"k": b"v"}
        assert dataset.schema.names == ["a", "b"]


async def test_the_root_of_a_store_may_be_a_dataset(three_versions: dict[str, bytes]) -> None:
    objects = {path.removeprefix("ds/"): data for path, data in three_versions.items()}
    async with stored(objects) as operator:
        assert (await open_dataset(operator, "")).version == 3


async def test_opening_takes_one_read(three_versions: dict[str, bytes]) -> None:
    log: list[Any] = []
    async with stored(three_versions, log=log) as operator:
        await open_dataset(operator, "ds")
    path = manifest_paths("ds/", 3)[0]
    assert log == [(path, 0, len(three_versions[path]))]


@pytest.mark.parametrize("hint", [1, 3])
async def test_without_a_listing_the_hint_leads_to_the_latest(three_versions: dict[str, bytes], hint: int) -> None:
    objects = {**three_versions, "ds/_versions/latest_version_hint.json": b'{"version":%d}' % hint}
    async with stored(objects) as operator:
        assert (await open_dataset(without_listing(operator), "ds")).version == 3


@pytest.mark.parametrize("hint", [b"", b"[]", b'{"version":"1"}', b'{"version":true}', b'{"version":0}', b"[" * 4000])
async def test_an_invalid_hint_is_refused(three_versions: dict[str, bytes], hint: bytes) -> None:
    async with stored({**three_versions, "ds/_versions/latest_version_hint.json": hint}) as operator:
        with pytest.raises(Unsupported, match="version="):
            await open_dataset(without_listing(operator), "ds")
        assert (await open_dataset(without_listing(operator), "ds", 2)).version == 2


def test_names_of_manifests() -> None:
    def found(name: str) -> int | None:
        one = version_of(Entry(path=f"ds/_versions/{name}"), "ds/")
        return None if one is None else one[0].version

    assert found("18446744073709551614.manifest") == 1
    assert found("7.manifest") == 7
    assert found("99999999999999999999.manifest") is None
    for name in ("d123.manifest", "1.manifest.tmp", "latest_version_hint.json", "x/1.manifest", "-1.manifest"):
        assert found(name) is None


def field(**changed: Any) -> bytes:
    return span(2, b"a") + key(4, 0) + varint(-1) + span(5, b"int64")


def file(path: bytes = b"f.lance", fields: bytes = b"\0", columns: bytes = b"\0", more: bytes = b"") -> bytes:
    return span(1, path) + span(2, fields) + span(3, columns) + more


def number(at: int, value: int) -> bytes:
    return key(at, 0) + varint(value)


def manifest(*parts: bytes) -> Manifest:
    body = b"".join([span(1, field()), number(3, 1), *parts])
    return parse_manifest(struct.pack("<I", len(body)) + body, Directory("ds/", "ds/"), "p")


def fragment(*parts: bytes) -> bytes:
    return span(2, b"".join(parts))


def test_a_manifest_by_hand() -> None:
    deletion = span(3, number(1, 1) + number(2, 5) + number(3, 9) + number(4, 2))
    found = manifest(fragment(number(1, 7), span(2, file(more=number(6, 123))), number(4, 10), deletion))
    (one,) = found.fragments
    assert (one.id, one.rows, one.files[0].path, one.files[0].size) == (7, 10, "ds/data/f.lance", 123)
    assert one.deletion_file is not None
    assert (one.deletion_file.path, one.deletion_file.rows) == ("ds/_deletions/7-5-9.bin", 2)


@each_of(
    ("parts", "error", "message"),
    [
        ([number(9, 32)], Unsupported, "flags 0x20"),
        ([number(9, 64 | 1)], Unsupported, "flags 0x40"),
        ([span(15, span(1, b"lance") + span(2, b"2.3"))], Unsupported, "'2.3'"),
        ([span(15, span(1, b"parquet"))], Unsupported, "'parquet'"),
        ([fragment(span(2, file()))], Unsupported, "how many rows"),
        ([fragment(number(4, 1 << 63))], UntrustedMetadata, "claims"),
        ([fragment(number(4, 5), span(2, file(more=number(7, 0))))], Unsupported, "outside"),
        ([fragment(number(4, 5), span(2, file(b"../x")))], UntrustedMetadata, "cannot be named"),
        ([fragment(number(4, 5), span(2, file(b"/etc/x")))], UntrustedMetadata, "cannot be named"),
        ([fragment(number(4, 5), span(2, file(b"")))], UntrustedMetadata, "cannot be named"),
        ([fragment(number(4, 5), span(2, file(columns=b"\0\1")))], UntrustedMetadata, "1 fields and 2 column"),
        ([fragment(number(4, 5), span(3, number(1, 2)))], Unsupported, "kind 2"),
        ([fragment(number(4, 5), span(3, number(4, 6)))], UntrustedMetadata, "6 of 5 rows"),
        ([fragment(number(4, 5), span(3, number(7, 1)))], Unsupported, "outside"),
    ],
)
def test_refuses(parts: list[bytes], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        manifest(*parts)


def test_known_flags_are_fine() -> None:
    assert manifest(number(9, 1 | 2 | 16)).version == 1


@each_of(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (b"x" * 20, "not LANC"),
        (struct.pack("<QHH4s", 0, 0, 2, b"LANC"), "begin at 0 of 16"),
        (bytes(8) + struct.pack("<QHH4s", 5, 0, 2, b"LANC"), "begin at 5 of 24"),
        (bytes(8) + struct.pack("<QHH4s", (1 << 64) - 1, 0, 2, b"LANC"), "said to begin"),
    ],
)
def test_refuses_trailers(data: bytes, message: str) -> None:
    with pytest.raises(UntrustedMetadata, match=message):
        manifest_range(data, len(data), "p")


async def test_a_manifest_must_be_of_the_version_in_its_name(three_versions: dict[str, bytes]) -> None:
    objects = dict(three_versions)
    objects[manifest_paths("ds/", 3)[0]] = objects[manifest_paths("ds/", 2)[0]]
    async with stored(objects) as operator:
        with pytest.raises(UntrustedMetadata, match="of version 2, its name of 3"):
            await open_dataset(operator, "ds")


async def test_damaged_manifests_are_refused_or_read(three_versions: dict[str, bytes]) -> None:
    path = manifest_paths("ds/", 3)[0]
    data = three_versions[path]
    chance = random.Random(7)
    outcomes = {"read": 0, "refused": 0}
    async with stored(three_versions) as operator:
        for _ in range(400):
            await operator.write(path, damaged(data, chance))
            try:
                assert isinstance(await open_dataset(operator, "ds"), LanceDataset)
                outcomes["read"] += 1
            except (UntrustedMetadata, Unsupported, NotFound):
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 20


async def test_the_path_may_be_anything_that_pylance_wrote(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "x y/ü"))
    async with stored(dataset_objects(tmp_path / "x y/ü", "x y/ü")) as operator:
        assert (await open_dataset(operator, "x y/ü")).count_rows() == 1
