"""The latest version in stores that list in any order, or not at all, and the requests that it costs."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import NotFound, UntrustedMetadata
from tests.benches.dict_store import DictStore

lance = pytest.importorskip("lance")
pa = pytest.importorskip("pyarrow")

ORDERS: dict[str, Callable[[list[str]], list[str]]] = {
    "sorted": sorted,
    "reversed": lambda names: sorted(names, reverse=True),
    "shuffled": lambda names: random.Random(3).sample(sorted(names), len(names)),
}


@pytest.fixture(scope="module", params=[True, False], ids=["inverted names", "plain names"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("datasets")
    for number in range(1, 12):
        mode = "append" if number > 1 else "create"
        table = pa.table({"a": [number]})
        lance.write_dataset(table, root / "ds", mode=mode, enable_v2_manifest_paths=request.param)
    return {str(path.relative_to(root)): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("path", ["ds", "ds/"])
async def test_the_latest_version_is_found_in_every_order(
    files: dict[str, bytes], order: str, recursive: bool, path: str
) -> None:
    store = DictStore({name: files[name] for name in ORDERS[order](list(files))}, recursive=recursive)
    async with store.operator() as op:
        assert (await ap.lance.read_table(op, path))["a"].to_pylist() == list(range(1, 12))
        pages = sum(request.startswith("list ds/_versions/") for request in store.requests)
        listed = sum(name.startswith("ds/_versions/") for name in files)
        assert pages == -(-listed // 3)  # Each page of the one listing, once.


async def test_a_listing_in_order_is_read_to_the_first_version_and_made_once(files: dict[str, bytes]) -> None:
    store = DictStore({name: files[name] for name in sorted(files)}, recursive=True, ordered=True)
    is_inverted = any(len(name) == len("ds/_versions/12345678901234567890.manifest") for name in files)
    async with store.operator() as op:
        assert (await ap.lance.read_table(op, "ds"))["a"].to_pylist() == list(range(1, 12))
        pages = sum(request.startswith("list") for request in store.requests)
        assert pages == 1 if is_inverted else pages > 1
        assert store.requests.count("stat ds") == 1


async def test_a_dataset_that_lacks_a_file_is_not_called_missing(files: dict[str, bytes]) -> None:
    store = DictStore({name: data for name, data in files.items() if not name.startswith("ds/data")})
    async with store.operator() as op:
        with pytest.raises((NotFound, UntrustedMetadata), match=r"ds/data/") as missing:
            await ap.lance.read_table(op, "ds")
        assert missing.value.path != "ds"
        with pytest.raises(NotFound) as nothing:
            await ap.lance.read_table(op, "other")
        assert nothing.value.path == "other"


class _ListsNothing(DictStore):
    @property
    def capability(self) -> ap.Capability:
        return ap.Capability(read=True, read_range=True, stat=True)


@pytest.mark.parametrize("path", ["ds", "ds/"])
async def test_without_a_listing_the_hint_names_the_version(files: dict[str, bytes], path: str) -> None:
    hint = {"ds/_versions/latest_version_hint.json": b'{"version": 9}'}
    async with Operator(_ListsNothing({**files, **hint})) as op:
        assert (await ap.lance.read_table(op, path))["a"].to_pylist() == list(range(1, 12))
    without = {name: data for name, data in files.items() if not name.endswith("hint.json")}
    async with Operator(_ListsNothing(without)) as op:
        with pytest.raises(NotFound) as missing:
            await ap.lance.read_table(op, path)
        assert missing.value.path in ("ds", "ds/")
        assert (await ap.lance.read_table(op, path, version=3))["a"].to_pylist() == [1, 2, 3]
