"""The latest version in stores that list in any order, or not at all, and the requests that it costs."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import NotFound, PermissionDenied, UntrustedMetadata
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.bucket import failed
from tests.profile import in_turns
from tests.stores.dict_store import DictStore
from tests.stores.directory_bucket import DirectoryBucket
from tests.stores.faulty_bucket import FaultyBucket

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


@pytest.mark.parametrize(("order", "recursive"), in_turns(ORDERS, [True, False]))
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


async def test_a_directory_bucket_sorts_each_page_by_itself(files: dict[str, bytes]) -> None:
    async with DirectoryBucket() as bucket:
        for name, data in files.items():
            bucket.put(name, data)
        async with bucket.operator() as op:
            for path in ("ds", "ds/"):
                assert (await ap.lance.read_table(op, path))["a"].to_pylist() == list(range(1, 12))
            assert [one.version for one in await (await ap.lance.open_dataset(op, "ds")).versions()] == [*range(1, 12)]


# --- where nothing can be listed --------------------------------------------------------------------------------------

# What servers of files send in place of a directory, and of what is missing.
SERVERS: dict[str, list[Rule]] = {
    "404": [],
    "a page": [Rule(key="ds", fault=Fault(status=200, body=b"<html>Index of /ds</html>"), times=None)],
    "a redirect to a page": [
        Rule(key="ds", fault=Fault(status=301, location="/ds/", body=b""), times=None),
        Rule(key="ds/", fault=Fault(status=200, body=b"<html>Index of /ds</html>" * 99, ignore_range=True), times=None),
    ],
    "403": [],  # For all that is missing, as a bucket of S3 answers who may not list it.
}


@pytest.fixture(params=SERVERS)
async def server(files: dict[str, bytes], request: pytest.FixtureRequest) -> AsyncIterator[FaultServer]:
    async with FaultServer(files, SERVERS[request.param]) as running:
        if request.param == "403":
            is_missing = lambda received: received.key not in running.objects  # noqa: E731
            running.add(Rule(matches=is_missing, fault=Fault(status=403, code="AccessDenied"), times=None))
        yield running


@pytest.mark.parametrize("path", ["ds", "ds/"])
async def test_a_dataset_over_http_opens_with_and_without_a_slash(server: FaultServer, path: str) -> None:
    wanted = list(range(1, 12))
    async with Operator.from_uri(server.url) as op:
        assert (await ap.lance.read_table(op, path))["a"].to_pylist() == wanted
        assert [row for batch in [one async for one in ap.lance.scan(op, path)] for row in batch["a"].to_pylist()] == (
            wanted
        )
        assert (await ap.lance.plan(op, path)).rows == 11
        assert (await ap.lance.open_dataset(op, path)).version == 11
        assert (await ap.lance.read_table(op, path, version=3))["a"].to_pylist() == [1, 2, 3]
        table = await ap.lance.read_table(op, path, take=[10, 0], columns=["a"])
        assert table["a"].to_pylist() == [11, 1]


async def test_an_old_hint_leads_to_the_latest_version_over_http(server: FaultServer) -> None:
    server.objects["ds/_versions/latest_version_hint.json"] = b'{"version": 4}'
    async with Operator.from_uri(server.url) as op:
        assert (await ap.lance.read_table(op, "ds"))["a"].to_pylist() == list(range(1, 12))


async def test_without_a_hint_the_error_is_that_of_the_file(server: FaultServer) -> None:
    del server.objects["ds/_versions/latest_version_hint.json"]
    async with Operator.from_uri(server.url) as op:
        with pytest.raises((NotFound, PermissionDenied, UntrustedMetadata)) as missing:
            await ap.lance.read_table(op, "ds")
        assert missing.value.path == "ds"
        with pytest.raises(NotFound, match="say version="):
            await ap.lance.read_table(op, "ds/")


@pytest.mark.parametrize("path", ["ds", "ds/"])
async def test_who_may_read_and_not_list_finds_the_latest_version(files: dict[str, bytes], path: str) -> None:
    async with FaultyBucket() as bucket:
        for name, data in files.items():
            bucket.put(name, data)
        denied = failed(403, "AccessDenied")
        bucket.fault = lambda call, deed: denied if call.verb == "List" or call.key not in bucket.objects else deed()
        async with bucket.operator() as op:
            assert (await ap.lance.read_table(op, path))["a"].to_pylist() == list(range(1, 12))
            assert (await ap.lance.read_table(op, path, version=5))["a"].to_pylist() == [1, 2, 3, 4, 5]
            assert sum(call.verb == "List" for call in bucket.calls) == 1
            del bucket.objects["ds/_versions/latest_version_hint.json"]
            with pytest.raises(PermissionDenied):
                await ap.lance.read_table(op, path)
