"""Bodies: answers that must not count, faults in the middle, cancellation, slots."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import Closed, ConditionNotMatch, Error, ObjectChanged, ProtocolError, Stalled, Unavailable
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadHead, ReadRequest
from tests.unit.services.s3.stores import Store

DATA = bytes(range(256)) * 4096  # 1 MiB
OBJECTS = {"bucket/k": DATA}
RANGE = {"offset": 1000, "size": 5000}


@pytest.mark.parametrize(
    ("fault", "fields"),
    [
        (Fault(ignore_range=True), RANGE),
        (Fault(content_range_shift_bytes=1), RANGE),
        (Fault(content_range="bytes 1000-5999/*x"), RANGE),
        (Fault(omit_content_range=True), RANGE),
        (Fault(short_by_bytes=10), RANGE),
        (Fault(omit_content_length=True), {}),
        (Fault(status=200, body=b"<html>captive portal</html>"), RANGE),
        (Fault(chunked=True, extra_body=b""), {}),
    ],
)
async def test_responses_that_must_not_count(store: Callable[..., Store], fault: Fault, fields: dict[str, Any]) -> None:
    """Another range, another length, the whole object: refused at the head, not one byte delivered."""
    async with FaultServer(OBJECTS, [Rule(fault=fault, times=None)]) as server:
        sink = CollectSink()
        with pytest.raises(ProtocolError):
            await store(server).accessor.read(ReadRequest(path="k", **fields), sink)
        assert (sink.head, sink.received) == (None, 0)
        server.assert_requests("GET")


async def test_another_version_is_noticed_without_the_help_of_the_server(store: Callable[..., Store]) -> None:
    """The ETag is compared although If-Match was ignored."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(ignore_if_match=True))]) as server:
        with pytest.raises(ConditionNotMatch, match="not 'old'"):
            await store(server).get("k", if_match="old")
        assert server.requests[0].headers["if-match"] == '"old"'


async def test_a_weak_etag_is_compared_and_not_sent(store: Callable[..., Store]) -> None:
    """No server may match it."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(etag='W/"weak"'), times=None)]) as server:
        assert await store(server).get("k", if_match="W/weak") == DATA
        assert "if-match" not in server.requests[0].headers


async def test_another_version_than_the_one_asked_for(store: Callable[..., Store]) -> None:
    """A server that ignores versionId is found out."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(headers={"x-amz-version-id": "other"}))]) as server:
        with pytest.raises(ProtocolError, match="version 'other', not 'mine'"):
            await store(server).get("k", version="mine")
        assert server.requests[0].target == "/bucket/k?versionId=mine"


@pytest.mark.parametrize("size", ["x", "-1", str(1 << 70)])
async def test_a_size_that_is_none(store: Callable[..., Store], size: str) -> None:
    """A HEAD with a senseless length allocates nothing."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(headers={"Content-Length": size}))]) as server:
        with pytest.raises(ProtocolError):
            await store(server).stat("k")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(close_after_bytes=300_000), Unavailable),
        (Fault(reset_after_bytes=300_000), Unavailable),
        (Fault(hang_after_bytes=300_000), Stalled),
        (Fault(close_after_bytes=0), Unavailable),
    ],
)
async def test_faults_in_the_middle(store: Callable[..., Store], fault: Fault, kind: type[Error]) -> None:
    """A typed, temporary error after the bytes that came, which are the right ones; the slot is free."""
    async with FaultServer(OBJECTS, [Rule(fault=fault)]) as server:
        opened = store(server, read_timeout_seconds=0.1, connections_max=1)
        sink = CollectSink()
        with pytest.raises(Error) as caught:
            await opened.accessor.read(ReadRequest(path="k"), sink)
        assert type(caught.value) is kind
        assert caught.value.is_temporary
        assert sink.to_bytes() == DATA[: sink.received]
        counters = opened.runtime.counters
        assert counters["stream_read_total_bytes"] == sink.received
        assert await opened.get("k", **RANGE) == DATA[1000:6000]


async def test_what_comes_after_the_last_byte_does_not_matter(store: Callable[..., Store]) -> None:
    """The response is complete; the connection is not used again."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(extra_body=b"trash"))]) as server:
        opened = store(server)
        assert await opened.get("k") == DATA
        assert await opened.get("k", **RANGE) == DATA[1000:6000]


async def test_a_chunked_part_is_taken(store: Callable[..., Store]) -> None:
    """Content-Range tells its length; every byte must come, and none more."""
    async with FaultServer(OBJECTS) as server:
        opened = store(server)
        server.add(Rule(fault=Fault(chunked=True)))
        assert await opened.get("k", **RANGE) == DATA[1000:6000]
        server.add(Rule(fault=Fault(chunked=True, body=DATA[1000:5000])))
        with pytest.raises(Unavailable, match="after 4000 of 5000 bytes"):
            await opened.get("k", **RANGE)
        server.add(Rule(fault=Fault(chunked=True, body=DATA[1000:6001])))
        with pytest.raises(ProtocolError, match="more bytes than were asked for"):
            await opened.get("k", **RANGE)


async def test_a_read_that_its_sink_refuses_is_broken_off(store: Callable[..., Store]) -> None:
    """The connection gives its slot back at once, instead of being read to its end."""
    async with FaultServer({"bucket/k": bytes(32 << 20)}) as server:
        opened = store(server, connections_max=1)
        for _ in range(3):
            sink = CollectSink()
            sink.begin(ReadHead(start=0, size=1 << 20, total=1 << 20, etag="another"))
            async with asyncio.timeout(10):
                with pytest.raises(ObjectChanged):
                    await opened.accessor.read(ReadRequest(path="k"), sink)
        await server.wait_until_idle()
        assert server.bytes_sent < 3 * (8 << 20)


async def test_closing_ends_a_read(store: Callable[..., Store]) -> None:
    """While it waits for the store."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(hang_after_bytes=300_000))]) as server:
        opened = store(server)
        arrived = asyncio.Event()
        read = asyncio.create_task(opened.accessor.read(ReadRequest(path="k"), NotingSink(arrived)))
        await arrived.wait()
        await opened.runtime.aclose()
        with pytest.raises(Closed):
            await read


class NotingSink(CollectSink):
    """Says when the first bytes are there."""

    def __init__(self, arrived: asyncio.Event) -> None:
        super().__init__()
        self._arrived = arrived

    def _advanced(self) -> None:
        self._arrived.set()


@checks("reliability:C02")
@pytest.mark.parametrize(
    "fault", [Fault(hang_before_head=True), Fault(hang_after_bytes=0), Fault(hang_after_bytes=300_000)]
)
async def test_cancelling_a_read_gives_its_slot_back(store: Callable[..., Store], fault: Fault) -> None:
    """Before the head, after it, and in the middle of the body."""
    async with FaultServer(OBJECTS, [Rule(fault=fault)]) as server:
        opened = store(server, connections_max=1)
        arrived = asyncio.Event()
        read = asyncio.create_task(opened.accessor.read(ReadRequest(path="k"), NotingSink(arrived)))
        await (arrived.wait() if fault.hang_after_bytes else server.wait_for_requests(1))
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        assert await asyncio.wait_for(opened.get("k", **RANGE), 5) == DATA[1000:6000]


async def test_a_hundred_reads_at_once(moto: Store) -> None:
    """Each has its bytes; one GET each, no HEAD, no more connections than allowed."""
    await moto.put("k", DATA)
    moto.server.reset()
    parts = await asyncio.gather(*(moto.get("k", offset=i * 1000, size=1000) for i in range(100)))
    assert b"".join(parts) == DATA[:100_000]
    assert (moto.server.count("GET"), moto.server.count()) == (100, 100)


async def test_the_headers_that_options_ask_for(store: Callable[..., Store]) -> None:
    """SSE-C and requester pays are said with every request; an anonymous request is not signed."""
    async with FaultServer(OBJECTS) as server:
        await store(server, sse_customer_key=b"k" * 32, request_payer=True).get("k")
        sent = server.requests[-1].headers
        assert sent["x-amz-server-side-encryption-customer-algorithm"] == "AES256"
        assert sent["x-amz-request-payer"] == "requester"
        assert sent["authorization"].startswith("AWS4-HMAC-SHA256")
        assert "range" not in sent
        await store(server, anonymous=True).get("k", suffix=5)
        sent = server.requests[-1].headers
        assert "authorization" not in sent
        assert sent["range"] == "bytes=-5"
        assert "x-amz-checksum-mode" not in sent
