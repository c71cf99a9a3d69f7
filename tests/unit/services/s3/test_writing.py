"""Streaming writes: one put or parts, and nothing left behind."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aioprefetch.errors import AlreadyExists, Closed, InvalidArgument, Unavailable
from aioprefetch.services.s3.writer import S3WriteBody
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.values import WriteRequest
from tests.unit.services.s3.stores import Store

PART = 5 << 20
CHUNK = bytes(range(256)) * 4096  # 1 MiB
CREATED = b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"


async def uploads(store: Store) -> list[Any]:
    """The uploads that were neither completed nor aborted."""
    client = await store.connected()
    return list((await client.list_multipart_uploads(Bucket=store.service.bucket)).get("Uploads") or [])


@pytest.fixture
def small(store: Callable[..., Store], moto: Store) -> Store:
    """The smallest parts that S3 allows."""
    return store(moto.server, moto.service.bucket, part_bytes=PART)


async def test_a_small_object_is_one_put(small: Store) -> None:
    """Nothing appears before the end; then everything does."""
    body = await small.accessor.open_write(WriteRequest(path="k", content_type="text/x", user_metadata={"a": "b"}))
    await body.write(b"hello ")
    await body.write(bytearray(b"wor"))
    await body.write(memoryview(b"ld"))
    assert small.server.count() == 0
    written = await body.close()
    assert [one.method for one in small.server.requests] == ["PUT"]
    found = await small.stat("k")
    assert (written.size, written.etag, found.content_type) == (11, found.etag, "text/x")
    assert found.user_metadata == {"a": "b"}
    assert await small.get("k") == b"hello world"


async def test_an_empty_object(small: Store) -> None:
    """Closing at once writes it."""
    await (await small.accessor.open_write(WriteRequest(path="k"))).close()
    assert await small.get("k") == b""


@pytest.mark.parametrize("chunks", [6, 23])
async def test_a_large_object_goes_in_parts(small: Store, chunks: int) -> None:
    """Parts of one size, the last one shorter; the object is exactly what was written."""
    body = await small.accessor.open_write(WriteRequest(path="k", content_type="text/x"))
    for _ in range(chunks):
        await body.write(CHUNK)
    written = await body.close()
    data = CHUNK * chunks
    parts = -(-len(data) // PART)
    assert [one.method for one in small.server.requests].count("PUT") == parts
    assert small.client.runtime.counters["stream_write_bytes"] == len(data)
    assert written.size == len(data)
    assert await small.get("k") == data
    found = await small.stat("k")
    assert (found.etag, found.content_type) == (written.etag, "text/x")
    await body.abort()
    assert await small.get("k", size=3) == data[:3]


async def test_one_large_chunk_is_cut(small: Store) -> None:
    """The pieces a caller gives have nothing to do with the parts."""
    data = CHUNK * 21
    body = await small.accessor.open_write(WriteRequest(path="k"))
    await body.write(data)
    await body.close()
    assert await small.get("k") == data


async def test_abort_leaves_nothing(small: Store) -> None:
    """Neither an object nor an upload; and the body is closed then."""
    body = await small.accessor.open_write(WriteRequest(path="k"))
    await body.write(CHUNK * 21)
    assert len(await uploads(small)) == 1
    await body.abort()
    await body.abort()
    assert await uploads(small) == []
    assert await small.names() == []
    for call in (body.write(b"x"), body.close()):
        with pytest.raises(Closed):
            await call


async def test_abort_before_anything_was_sent_costs_nothing(small: Store) -> None:
    """There is nothing to remove."""
    body = await small.accessor.open_write(WriteRequest(path="k"))
    await body.write(b"x")
    await body.abort()
    assert small.server.count() == 0


async def test_a_condition_holds_for_parts_too(small: Store) -> None:
    """It is checked when the object would appear."""
    await small.put("k", b"first")
    body = await small.accessor.open_write(WriteRequest(path="k", if_not_exists=True))
    await body.write(CHUNK)
    with pytest.raises(AlreadyExists):
        await body.close()
    await body.abort()
    assert await small.get("k") == b"first"


async def test_too_many_parts(small: Store) -> None:
    """S3 takes 10,000; the error says what to change."""
    request = WriteRequest(path="k")
    requests = await small.live.opened(request)
    body = S3WriteBody(small.client, requests, request, small.service.key_of("k", operation="write"), parts_max=3)
    with pytest.raises(InvalidArgument, match="make part_bytes larger"):
        await body.write(CHUNK * 21)
    await body.abort()
    assert await uploads(small) == []


def scripted(**part: Any) -> list[Rule]:
    """An upload whose parts meet a fault, and that can be aborted."""
    return [
        Rule(fault=Fault(status=200, body=CREATED), method="POST"),
        Rule(fault=Fault(**part), method="PUT", times=None),
        Rule(fault=Fault(status=204), method="DELETE"),
    ]


async def test_a_failed_part_is_the_error_of_the_write(store: Callable[..., Store]) -> None:
    """One plain error; the upload is removed by abort."""
    async with FaultServer({}, scripted(status=500)) as server:
        body = await store(server, part_bytes=PART).accessor.open_write(WriteRequest(path="k"))
        with pytest.raises(Unavailable) as caught:
            await body.write(CHUNK * 21)
        assert (caught.value.operation, caught.value.path) == ("write", "k")
        await body.abort()
        assert (server.requests[-1].method, server.requests[-1].target) == ("DELETE", "/bucket/k?uploadId=u1")


async def test_cancelling_a_write(store: Callable[..., Store]) -> None:
    """The parts stop, and abort removes the upload even when it is cancelled itself."""
    async with FaultServer({}, scripted(hang_before_head=True)) as server:
        opened = store(server, part_bytes=PART)
        body = await opened.accessor.open_write(WriteRequest(path="k"))
        write = asyncio.create_task(body.write(CHUNK * 21))
        await server.wait_for_requests(5)
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        abort = asyncio.create_task(body.abort())
        await asyncio.sleep(0)
        abort.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abort
        await server.wait_for_requests(6)
        assert server.requests[-1].method == "DELETE"


async def test_an_abort_that_fails_is_logged(store: Callable[..., Store], caplog: pytest.LogCaptureFixture) -> None:
    """It hides no other error, and says what stays behind."""
    script = [Rule(fault=Fault(status=200, body=CREATED), method="POST"), Rule(fault=Fault(status=500), times=None)]
    async with FaultServer({}, script) as server:
        body = await store(server, part_bytes=PART).accessor.open_write(WriteRequest(path="k"))
        with pytest.raises(Unavailable):
            await body.write(CHUNK * 21)
        await body.abort()
    assert "its parts stay until they expire" in caplog.text
