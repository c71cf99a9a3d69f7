"""Branches, and tags of their versions, as pylance writes and reads them."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import ConfigInvalid, InvalidArgument, NotFound, Unsupported, UntrustedMetadata
from aioprefetch.lance.manifest import Directory
from aioprefetch.operator.operator import Operator
from tests.files.lance_files import dataset_objects, stored, without_listing, write_file

lance: Any = pytest.importorskip("lance")

NAMES = ("dev", "feat/x", "ü.1-_/y/z")


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"id": range(start, stop)})


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose branches append, delete, and branch again."""
    path = tmp_path_factory.mktemp("lance") / "ds"
    lance.write_dataset(rows(0, 40), str(path), max_rows_per_file=15)
    main = lance.write_dataset(rows(40, 50), str(path), mode="append")
    dev = main.create_branch("dev", 2)
    dev = lance.write_dataset(rows(100, 110), dev, mode="append")
    feature = dev.create_branch("feat/x", ("dev", 3))
    feature.delete("id % 4 = 1")
    third = lance.dataset(str(path)).checkout_version(("feat/x", None)).create_branch(NAMES[2], ("feat/x", 4))
    lance.write_dataset(rows(200, 203), third, mode="append")
    lance.dataset(str(path)).delete("id = 0")
    dev = lance.dataset(str(path)).checkout_version(("dev", None))
    dev.add_columns({"double": "id * 2"})
    main = lance.dataset(str(path))
    main.tags.create("of-dev", ("dev", 3))
    main.tags.create("of-main", 1)
    return path


def peers(path: Path) -> list[tuple[str | None, Any]]:
    """Every version of every branch."""
    latest = {branch: lance.dataset(str(path)).checkout_version((branch, None)) for branch in (None, *NAMES)}
    return [
        (branch, peer.checkout_version((branch, one["version"])))
        for branch, peer in latest.items()
        for one in peer.versions()
    ]


@pytest.mark.parametrize("name", ["ds", "moved/to/another", ""])
async def test_every_version_of_every_branch(tree: Path, name: str) -> None:
    """Where it was written, and where it was moved to: the manifests name the former."""
    objects = {path.removeprefix("/"): data for path, data in dataset_objects(tree, name).items()}
    columns = ["_rowid", "id", "_rowaddr"]
    async with stored(objects) as operator:
        for branch, peer in peers(tree):
            options: dict[str, Any] = {"version": peer.version, "branch": branch}
            assert (await ap_lance.read_table(operator, name, **options)).equals(peer.to_table())
            expected = peer.to_table(columns=columns)
            assert (await ap_lance.read_table(operator, name, columns=columns, **options)).equals(expected)
            assert (await ap_lance.plan(operator, name, **options)).rows == peer.count_rows()
            dataset = await ap_lance.open_dataset(operator, name, **options)
            assert (dataset.branch, dataset.version) == (branch, peer.version)
            numbers = [one["version"] for one in peer.versions()]
            assert [one.version for one in await dataset.versions()] == numbers
            when = dataset.committed
            assert (await ap_lance.open_dataset(operator, name, when, branch=branch)).version == peer.version
        for branch in NAMES:
            latest = lance.dataset(str(tree)).checkout_version((branch, None))
            found = await ap_lance.open_dataset(operator, name, branch=branch)
            assert found.version == latest.version
            assert (await found.read_table()).equals(latest.to_table())
            blind = without_listing(operator)
            assert (await ap_lance.open_dataset(blind, name, branch=branch)).version == latest.version
        assert (await ap_lance.open_dataset(operator, name, branch="main")).branch is None


async def test_tags_of_branches(tree: Path) -> None:
    async with Operator.from_uri(f"file://{tree.parent}") as operator:
        for tag in ("of-dev", "of-main"):
            expected = lance.dataset(str(tree), version=tag).to_table()
            assert (await ap_lance.read_table(operator, "ds", tag=tag)).equals(expected)
        dataset = await ap_lance.open_dataset(operator, "ds", tag="of-dev")
        assert (dataset.branch, dataset.version) == ("dev", 3)


async def test_branches_that_are_not_there(tree: Path) -> None:
    async with stored({**dataset_objects(tree, "ds"), "t.lance": write_file(rows(0, 1))}) as operator:
        with pytest.raises(NotFound, match="no branch 'none'"):
            await ap_lance.read_table(operator, "ds", branch="none")
        with pytest.raises(NotFound, match="no version 1"):
            await ap_lance.read_table(operator, "ds", branch="dev", version=1)
        with pytest.raises(NotFound, match="no version"):
            await ap_lance.read_table(operator, "ds", branch="dev", version=datetime(2001, 1, 1, tzinfo=UTC))
        with pytest.raises(ConfigInvalid, match="branch= is for datasets; this is a file"):
            await ap_lance.read_table(operator, "t.lance", branch="dev")


@pytest.mark.parametrize("branch", ["../x", "a/../b", "", 7, [], "a b", "/a"])
async def test_a_damaged_tag_of_a_branch(tree: Path, branch: object) -> None:
    tag = json.dumps({"branch": branch, "version": 3}).encode()
    async with stored({**dataset_objects(tree, "ds"), "ds/_refs/tags/bad.json": tag}) as operator:
        with pytest.raises(UntrustedMetadata, match="tag 'bad'"):
            await ap_lance.read_table(operator, "ds", tag="bad")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"branch": "dev", "tag": "t"}, ConfigInvalid, "exclude"),
        *(({"branch": name}, InvalidArgument, "branch") for name in ("", "a//b", "../a", "a b", "/a", "a/", "./a")),
    ],
)
async def test_invalid_arguments_are_refused_at_once(options: Any, error: type[Exception], message: str) -> None:
    async with stored({}) as operator:
        with pytest.raises(error, match=message):
            ap_lance.scan(operator, "ds", **options)
        with pytest.raises(error, match=message):
            await ap_lance.open_dataset(operator, "ds", **options)


async def test_a_shallow_clone_and_its_branches_are_refused(tree: Path) -> None:
    """Their files lie in another dataset."""
    clone = tree.parent / "clone"
    lance.dataset(str(tree)).shallow_clone(str(clone), 1)
    lance.dataset(str(clone)).create_branch("b", lance.dataset(str(clone)).version)
    async with Operator.from_uri(f"file://{tree.parent}") as operator:
        for branch in (None, "b"):
            with pytest.raises(Unsupported, match="outside the dataset"):
                await ap_lance.read_table(operator, "clone", branch=branch)


def test_bases_that_are_not_below_the_dataset() -> None:
    root = {"is_dataset": True, "path": "s3://b/ds"}
    branch = {"id": 1, "name": "x", "is_dataset": True, "path": "s3://b/ds/tree/x"}
    place = Directory("k/tree/y/", "k/")
    assert place.of_bases([root, branch]) == {0: "k/", 1: "k/tree/x/"}
    for changed in ({"name": ".."}, {"path": "s3://b/other/tree/x"}, {"is_dataset": False}, {"name": "z"}):
        assert place.of_bases([root, {**branch, **changed}]) == {0: "k/"}
    dots = {"id": 1, "name": "../../x", "is_dataset": True, "path": "s3://b/ds/tree/../../x"}
    assert place.of_bases([root, dots]) == {0: "k/"}
    assert place.of_bases([root, {**root, "id": 3}, branch]) == {}
    assert Directory("k/", "k/").of_bases([root]) == {}
