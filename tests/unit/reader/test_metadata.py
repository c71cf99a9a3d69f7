"""What a reader knows of its object from the responses that brought the bytes: no request is sent for it."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.testing import CountingS3Server, Fault, FaultServer, Rule

DATA = random.Random(1).randbytes(5000)
ABOUT: dict[str, Any] = {"content_type": "text/x-notes", "user_metadata": {"team": "blue", "run": "7"}}


def described(metadata: ap.Metadata | None) -> tuple[object, ...]:
    """What is compared."""
    assert metadata is not None
    found = (metadata.size, metadata.content_type, dict(metadata.user_metadata), metadata.last_modified is not None)
    return (metadata.path, metadata.etag is not None, *found)


EXPECTED = ("k", True, 5000, "text/x-notes", ABOUT["user_metadata"], True)


@pytest.fixture
def s3(s3_server: CountingS3Server, random_name: Callable[[], str]) -> tuple[str, dict[str, Any]]:
    """A bucket, and the options for it."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    options = {"endpoint_url": s3_server.endpoint_url, "region": "us-east-1"}
    return f"s3://{bucket}", {**options, "access_key_id": "AK", "secret_access_key": "SK"}


@pytest.mark.parametrize("policy", ["adaptive", "random", "parquet"])
async def test_the_first_response_tells(
    s3: tuple[str, dict[str, Any]], s3_server: CountingS3Server, policy: Any
) -> None:
    async with ap.Operator.from_uri(s3[0], **s3[1], block_bytes=2000) as op:
        await op.write("k", DATA, **ABOUT)
        s3_server.reset()
        async with op.reader("k", policy=policy) as reader:
            assert (reader.metadata, s3_server.count()) == (None, 0)
            await reader.read_at(4990, 10)
            assert described(reader.metadata) == EXPECTED
            assert s3_server.count() == 1
            known = reader.metadata
            await reader.read_at(4000, 100)
            async with reader.clone() as clone, op.reader("k") as other:
                await clone.read_at(4000, 100)
                await other.read_at(10, 100)
                assert clone.metadata == other.metadata == known == reader.metadata
        assert reader.metadata == known  # After closing.
        stat = await op.stat("k")
        assert known is not None
        assert (known.etag, known.last_modified) == (stat.etag, stat.last_modified)
        await op.write("k", DATA[1:], content_type="b/b")
        async with op.reader("k") as reader:
            await reader.read_at(0, 10)
            assert described(reader.metadata) == ("k", True, 4999, "b/b", {}, True)


@pytest.mark.parametrize("kept", [False, True])
async def test_also_over_a_cache(kept: bool, tmp_path: Path) -> None:
    """In which the metadata of the object lie with its bytes."""
    store, cache = ap.Operator.from_uri(f"memory://known{kept}"), ap.Operator.from_uri(f"file://{tmp_path}")
    layer = ap.layers.LruCacheLayer(cache=cache, revalidate_seconds=None)
    async with store, cache, store.layer(layer) as op:
        await store.write("k", DATA, **ABOUT)
        if kept:
            await op.read("k", size=1)
            await op.aclose()  # The entry is written, and found by another reader.
        async with op.reader("k") as reader:
            await reader.read_at(0, 10)
            assert described(reader.metadata) == EXPECTED
        assert op.statistics["cache_hits"] == kept


async def test_a_size_alone_is_no_head(tmp_path: Path) -> None:
    """Beyond the end a store names the size; and a declared version is known when a response has shown it."""
    async with ap.Operator.from_uri("memory://beyond") as op:
        etag = (await op.write("k", DATA, **ABOUT)).etag
        async with op.reader("k", policy="random") as reader:
            assert await reader.read_at(9000, 10) == b""
            assert reader.metadata == ap.Metadata(path="k", size=5000)
            await reader.read_at(0, 1)
            assert described(reader.metadata) == EXPECTED
        async with op.reader("k", size=5000, etag=etag) as reader:
            assert [reader.metadata, reader.size] == [None, 5000]
            await reader.read_at(0, 1)
            assert described(reader.metadata) == EXPECTED
    (tmp_path / "k").write_bytes(DATA)
    with ap.sync.open(tmp_path / "k") as file:
        assert [file.metadata] == [None]
        file.read(1)
        assert described(file.metadata) == ("k", True, 5000, None, {}, True)


async def test_a_server_of_http_tells_its_type() -> None:
    async with FaultServer({"k": DATA}) as server:
        server.add(Rule(fault=Fault(headers={"content-type": "image/png"})))
        async with ap.Operator.from_uri(server.url) as op, op.reader("k") as reader:
            await reader.read()
            assert reader.metadata is not None
            assert (reader.metadata.content_type, reader.metadata.size) == ("image/png", 5000)
        server.assert_requests("GET")
