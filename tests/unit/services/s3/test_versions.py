"""Versions: pages of them, each read and deleted by its name, also when requests fail or the caller gives up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.errors import InvalidArgument, NotFound, PermissionDenied, ProtocolError
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.services.s3 import S3
from aioprefetch.testing import CountingS3Server, Fault, FaultLayer, FaultServer, Injection, Rule
from aioprefetch.values import Entry, ListRequest
from tests.profile import chosen
from tests.reliability.scripted import NO_PAUSES
from tests.stores.stacks import MotoBucket

PAGES = {
    "": (
        "<IsTruncated>true</IsTruncated><NextKeyMarker>p/a%20b</NextKeyMarker>"
        "<NextVersionIdMarker>v2</NextVersionIdMarker>"
        "<DeleteMarker><Key>p/a%20b</Key><VersionId>v3</VersionId><IsLatest>true</IsLatest>"
        "<LastModified>2026-01-03T00:00:00.000Z</LastModified><Owner><ID>o</ID></Owner></DeleteMarker>"
        "<Version><Key>p/a%20b</Key><VersionId>v2</VersionId><IsLatest>false</IsLatest><ETag>&quot;e2&quot;</ETag>"
        "<LastModified>2026-01-02T00:00:00.000Z</LastModified><Size>2</Size><Owner><ID>o</ID></Owner></Version>"
    ),
    "v2": (
        "<IsTruncated>false</IsTruncated>"
        "<Version><Key>p/a%20b</Key><VersionId>null</VersionId><IsLatest>false</IsLatest><ETag>&quot;e1&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Version>"
        "<CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes>"
    ),
}
EXPECTED = [("a b", "v3", True, True, 0), ("a b", "v2", False, False, 2), ("a b", "null", False, False, 1)]


def page(fields: str) -> Fault:
    """A page of versions."""
    body = f"<ListVersionsResult><Name>bucket</Name><EncodingType>url</EncodingType>{fields}</ListVersionsResult>"
    return Fault(status=200, body=body.encode())


def rules() -> list[Rule]:
    """The two pages, each for its marker, and a delete."""
    first = Rule(fault=page(PAGES[""]), matches=lambda request: "key-marker" not in request.target, times=None)
    second = Rule(
        fault=page(PAGES["v2"]),
        matches=lambda request: "key-marker=p%2Fa%20b" in request.target and "version-id-marker=v2" in request.target,
        times=None,
    )
    return [Rule(fault=Fault(status=204), method="DELETE", times=None), first, second]


@asynccontextmanager
async def opened(*faults: Rule) -> AsyncIterator[tuple[FaultServer, Operator]]:
    """An operator below p/, of a store whose faults come first."""
    async with FaultServer({}, [*faults, *rules()]) as server:
        service = S3(
            bucket="bucket",
            prefix="p",
            endpoint_url=server.url,
            proxies={},
            access_key_id="id",
            secret_access_key="secret",
        )
        async with Operator(service).layer(NO_PAUSES) as op:
            yield server, op
        await server.wait_until_idle()


async def listed(op: Operator) -> list[tuple[Any, ...]]:
    """What a listing shows of each version."""
    entries = [entry async for entry in op.list(versions=True)]
    return [(each.path, each.version, each.is_latest, each.is_delete_marker, each.size) for each in entries]


async def test_versions_of_one_path_go_on_to_the_next_page() -> None:
    """`null` is the name of a version like any other: without it a delete would be of the newest one."""
    async with opened() as (server, op):
        assert await listed(op) == [*EXPECTED, ("d/", None, True, False, None)]
        assert [request.method for request in server.requests] == ["GET", "GET"]
        assert all("versions" in request.target and "list-type" not in request.target for request in server.requests)


FAULTS = [Fault(status=503, code="SlowDown"), Fault(reset_before_head=True), Fault(close_after_bytes=50)]


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_nth_request_fails(fault: Fault) -> None:
    for number in range(3):
        async with opened(Rule(fault=fault, index=number)) as (server, op):
            assert len(await listed(op)) == 4
            await op.delete("a b", version="v2")
            assert server.requests[-1].target == "/bucket/p/a%20b?versionId=v2"
    async with opened(Rule(fault=Fault(status=403, code="AccessDenied"), index=1)) as (_, op):
        with pytest.raises(PermissionDenied) as caught:
            await listed(op)
        assert caught.value.operation == "list"


async def test_the_caller_gives_up_at_any_step() -> None:
    for steps in range(0, chosen(quick=40, full=200), chosen(quick=3, full=1)):
        async with opened() as (_, op):
            task = asyncio.ensure_future(listed(op))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert len(await listed(op)) == 4


async def test_a_page_that_cannot_be_right_is_refused() -> None:
    """One that names itself as the next, and one with a version of another prefix."""
    itself = Rule(fault=page(PAGES[""]), times=None)
    stranger = Rule(fault=page(PAGES["v2"].replace("p/a%20b", "other")), times=None)
    sizeless = Rule(fault=page(PAGES["v2"].replace("<Size>1</Size>", "")), times=None)
    for rule, said in ((itself, "page"), (stranger, "'other'"), (sizeless, "no valid size")):
        async with opened(rule) as (_, op):
            with pytest.raises(ProtocolError, match=said):
                await listed(op)


async def test_a_token_of_another_listing_is_refused() -> None:
    async with opened() as (server, op):
        with pytest.raises(InvalidArgument, match="not a token"):
            await op.accessor().list_page(ListRequest(path="", versions=True, page_token="abc"))
        assert server.count() == 0


async def test_a_version_that_cannot_be_one_is_not_found() -> None:
    """S3 parses the name, and says no more than that."""
    refused = Rule(fault=Fault(status=400, code="InvalidArgument"), times=None)
    async with opened(refused) as (_, op):
        for call in (op.delete, op.stat, op.read):
            with pytest.raises(NotFound) as caught:
                await call("k", version="no version")
            assert caught.value.path == "k"


async def test_a_deleted_version_is_gone_from_the_cache_too(s3_server: CountingS3Server, random_name: Any) -> None:
    bucket = MotoBucket(random_name(), versioned=True)
    service = S3(bucket=bucket.name, endpoint_url=s3_server.endpoint_url, access_key_id="a", secret_access_key="b")
    async with Operator(Memory()) as cache:
        layer = LruCacheLayer(cache=cache, capacity_bytes=1 << 20, revalidate_seconds=None)
        async with Operator(service).layer(layer) as op:
            for data in (b"first", b"second"):
                bucket.put("k", data)
            second, first = [entry async for entry in op.list(versions=True)]
            assert isinstance(first, Entry)
            assert await op.read("k", version=first.version) == b"first"
            assert await op.read("k", version=second.version) == b"second"
            await op.delete("k", version=first.version)
            with pytest.raises(NotFound):
                await op.read("k", version=first.version)
            count = s3_server.count()
            assert await op.read("k", version=second.version) == b"second"
            assert s3_server.count() == count


async def test_a_version_that_is_moved_leaves_the_current_one(s3_server: CountingS3Server, random_name: Any) -> None:
    bucket = MotoBucket(random_name(), versioned=True)
    service = S3(bucket=bucket.name, endpoint_url=s3_server.endpoint_url, access_key_id="a", secret_access_key="b")
    async with Operator(service) as op:
        for data in (b"first", b"second"):
            bucket.put("k", data)
        second, first = await op.list(versions=True).collect()
        await op.move("k", "old", version=first.version)
        assert (await op.read("old"), await op.read("k")) == (b"first", b"second")
        left = [entry.version for entry in await op.list(versions=True).collect() if entry.path == "k"]
        assert left == [second.version]


@pytest.mark.parametrize("begins_with_old", [True, False])
async def test_a_download_goes_on_with_no_other_version(
    s3_server: CountingS3Server, random_name: Any, tmp_path: Path, begins_with_old: bool
) -> None:
    """Neither that of one version with the latest, nor the other way round; with its own it does."""
    bucket = MotoBucket(random_name(), versioned=True)
    service = S3(bucket=bucket.name, endpoint_url=s3_server.endpoint_url, access_key_id="a", secret_access_key="b")
    parts = {name: bytes([number]) * (17 << 20) for number, name in enumerate(("old", "new"))}
    for data in parts.values():
        bucket.put("k", data)
    async with Operator(service, attempts_max=1, block_bytes=1 << 20, concurrency=2) as op:
        new, old = [entry.version async for entry in op.list(versions=True)]
        wanted = {"old": old, "new": None}
        first, second = ("old", "new") if begins_with_old else ("new", "old")
        failing = op.layer(
            FaultLayer((Injection(operation="read", occurrence=12, times=None, error=PermissionDenied),))
        )
        for name, then in (("one", first), ("other", second)):
            target = tmp_path / name
            with pytest.raises(PermissionDenied):
                await failing.download("k", target, version=wanted[first])
            received = s3_server.bytes_sent
            metadata = await op.download("k", target, version=wanted[then])
            assert (target.read_bytes() == parts[then], metadata.version) == (True, old if then == "old" else new)
            assert (s3_server.bytes_sent - received < 17 << 20) == (then == first)
            await failing.aclose()
