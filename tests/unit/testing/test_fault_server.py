"""The fault server is right without rules, and wrong to the byte by a rule."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.faults import NO_HEAD, etag_of
from tests.profile import each_of

DATA = bytes(range(256)) * 4
OBJECTS = {"bucket/key": DATA, "bucket/empty": b"", "bucket/ü %?/x": b"odd"}


class Client:
    """A minimal HTTP client that shows the bytes of responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, method: str, target: str, **headers: str) -> tuple[int, dict[str, str]]:
        """Send a request and return the status and headers of the response."""
        lines = [f"{method} {target} HTTP/1.1", "Host: x"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in head[1:-2])
        return int(head[0].split(" ")[1]), {name.lower(): value for name, _, value in pairs}

    async def get(self, target: str = "/bucket/key", **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        """GET and read the announced body."""
        status, reply = await self.ask("GET", target, **headers)
        return status, reply, await self.reader.readexactly(int(reply.get("content-length", 0)))


@contextlib.asynccontextmanager
async def connect(server: FaultServer) -> AsyncIterator[Client]:
    """Open one connection to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def faulty(*faults: Fault, times: int | None = 1) -> AsyncIterator[tuple[FaultServer, Client]]:
    """A server that applies these faults to the first requests, and a connection to it."""
    rules = [Rule(fault=fault, times=times) for fault in faults]
    async with FaultServer(OBJECTS, rules) as server, connect(server) as client:
        yield server, client


@each_of(
    ("wanted", "status", "content_range", "body"),
    [
        ("bytes=0-9", 206, "bytes 0-9/1024", DATA[:10]),
        ("bytes=1000-", 206, "bytes 1000-1023/1024", DATA[1000:]),
        ("bytes=1000-5000", 206, "bytes 1000-1023/1024", DATA[1000:]),
        ("bytes=-10", 206, "bytes 1014-1023/1024", DATA[-10:]),
        ("bytes=-5000", 206, "bytes 0-1023/1024", DATA),
        ("bytes=5-4", 200, None, DATA),
        ("bytes=-", 200, None, DATA),
        ("bytes=0-1,3-4", 200, None, DATA),
    ],
)
async def test_ranges(wanted: str, status: int, content_range: str | None, body: bytes) -> None:
    """Without a fault the response follows HTTP."""
    async with faulty() as (server, client):
        seen_status, headers, seen_body = await client.get(Range=wanted)
        assert (seen_status, headers.get("content-range"), seen_body) == (status, content_range, body)
        assert headers["etag"] == etag_of(DATA)
        server.assert_ranges(wanted)
        assert server.bytes_sent == len(body)


@pytest.mark.parametrize("wanted", ["bytes=1024-", "bytes=-0", "bytes=2000-3000"])
async def test_unsatisfiable_ranges_tell_the_size(wanted: str) -> None:
    """416 carries the size in Content-Range, and an XML error."""
    async with faulty() as (_, client):
        status, headers, body = await client.get(Range=wanted)
        assert (status, headers["content-range"]) == (416, "bytes */1024")
        assert b"<Code>InvalidRange</Code>" in body


async def test_conditions_come_before_ranges() -> None:
    """412 and 304 precede 416; a replaced object has another ETag."""
    async with faulty() as (server, client):
        assert (await client.get(If_Match='"other"', Range="bytes=9999-"))[0] == 412
        assert (await client.get(If_None_Match=etag_of(DATA)))[0] == 304
        assert (await client.get(If_Match=etag_of(DATA), Range="bytes=0-0"))[0] == 206
        server.objects["bucket/key"] = b"new"
        assert (await client.get(If_Match=etag_of(DATA)))[0] == 412
        assert server.connections == 1


async def test_head_empty_missing_and_odd_keys() -> None:
    """HEAD has no body, an empty object is 200, an escaped key is found."""
    async with faulty() as (server, client):
        status, headers = await client.ask("HEAD", "/bucket/key")
        assert (status, headers["content-length"]) == (200, "1024")
        assert (await client.get("/bucket/empty"))[2] == b""
        assert (await client.get("/bucket/%C3%BC%20%25%3F/x"))[2] == b"odd"
        assert (await client.get("/bucket/none"))[0] == 404
        server.assert_requests("HEAD", "GET", "GET", "GET")


@pytest.mark.parametrize("after_bytes", [0, 1, 100, 1023])
async def test_fin_and_reset_come_after_exactly_that_number_of_bytes(after_bytes: int) -> None:
    """FIN shows as an early end, RST as an error."""
    async with faulty(Fault(close_after_bytes=after_bytes)) as (server, client):
        await client.ask("GET", "/bucket/key")
        assert await client.reader.read() == DATA[:after_bytes]
        assert server.body_bytes_sent == {0: after_bytes}
    async with faulty(Fault(reset_after_bytes=after_bytes)) as (_, client):
        await client.ask("GET", "/bucket/key")
        with pytest.raises(ConnectionResetError):
            await client.reader.readexactly(after_bytes + 1)


async def test_hanging_ends_with_release_or_with_the_client() -> None:
    """A hang holds back the head or the rest of the body, and no byte is lost when it is released."""
    async with faulty(Fault(hang_after_bytes=10), Fault(hang_before_head=True)) as (server, client):
        _, headers = await client.ask("GET", "/bucket/key")
        assert await client.reader.readexactly(10) == DATA[:10]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.02)
        server.release()
        assert await client.reader.readexactly(int(headers["content-length"]) - 10) == DATA[10:]
        assert (await client.get())[2] == DATA
    async with FaultServer(OBJECTS, [Rule(fault=Fault(hang_before_head=True))]) as server:
        async with connect(server) as client:
            client.writer.write(b"GET /bucket/key HTTP/1.1\r\n\r\n")
            await client.writer.drain()
            await server.wait_for_requests(1)
        await server.wait_until_idle()
        assert server.connections_open == 0


async def test_stopping_the_server_ends_a_hang() -> None:
    """Leaving the context does not wait for hanging responses."""
    async with faulty(Fault(hang_after_bytes=0)) as (_, client):
        await client.ask("GET", "/bucket/key")


@each_of(
    ("fault", "expected"),
    [
        (Fault(content_range_shift_bytes=7), (206, "bytes 7-16/1024", DATA[:10])),
        (Fault(content_range="bytes 0-9/7"), (206, "bytes 0-9/7", DATA[:10])),
        (Fault(omit_content_range=True), (206, None, DATA[:10])),
        (Fault(ignore_range=True), (200, None, DATA)),
        (Fault(short_by_bytes=3), (206, "bytes 0-9/1024", DATA[:7])),
        (Fault(flip_byte_at=1), (206, "bytes 0-9/1024", b"\x00\xfe" + DATA[2:10])),
        (Fault(body=b"<html>"), (206, "bytes 0-9/1024", b"<html>")),
    ],
)
async def test_heads_and_bodies_that_disagree(fault: Fault, expected: tuple[int, str | None, bytes]) -> None:
    """Heads and bodies that disagree, with a valid framing."""
    async with faulty(fault) as (_, client):
        status, headers, body = await client.get(Range="bytes=0-9")
        assert (status, headers.get("content-range"), body) == expected
        assert (await client.get(Range="bytes=0-9"))[2] == DATA[:10], "the fault applies once"


async def test_wrong_etag_and_ignored_condition() -> None:
    """A server that ignores If-Match, and one that returns another ETag."""
    async with faulty(Fault(ignore_if_match=True), Fault(etag='"liar"')) as (_, client):
        status, headers, body = await client.get(If_Match='"other"')
        assert (status, headers["etag"], body) == (200, etag_of(DATA), DATA)
        assert (await client.get())[1]["etag"] == '"liar"'


async def test_errors_redirects_and_refused_head() -> None:
    """A fault sets the status and headers."""
    faults = (
        Fault(status=503, code="SlowDown", headers={"Retry-After": "2"}),
        Fault(status=302, location="http://elsewhere.invalid/x"),
        NO_HEAD,
    )
    async with faulty(*faults) as (_, client):
        status, headers, body = await client.get()
        assert (status, headers["retry-after"]) == (503, "2")
        assert b"<Code>SlowDown</Code>" in body
        status, headers, _ = await client.get()
        assert (status, headers["location"]) == (302, "http://elsewhere.invalid/x")
        assert (await client.ask("HEAD", "/bucket/key"))[0] == 405


async def test_framing_faults() -> None:
    """Bodies are close-delimited, chunked, dripped, followed by stray bytes, or the last of the connection."""
    async with faulty(Fault(omit_content_length=True)) as (_, client):
        assert "content-length" not in (await client.ask("GET", "/bucket/key"))[1]
        assert await client.reader.read() == DATA
    async with faulty(Fault(chunked=True, drip_bytes=1000), Fault(extra_body=b"stray")) as (_, client):
        _, headers = await client.ask("GET", "/bucket/key")
        assert headers["transfer-encoding"] == "chunked"
        wire = b"3e8\r\n" + DATA[:1000] + b"\r\n18\r\n" + DATA[1000:] + b"\r\n0\r\n\r\n"
        assert await client.reader.readexactly(len(wire)) == wire
        assert (await client.get())[2] == DATA
        assert await client.reader.readexactly(5) == b"stray"
    async with faulty(Fault(connection_close=True)) as (_, client):
        assert (await client.get())[1]["connection"] == "close"
        assert await client.reader.read() == b""
    async with faulty(Fault(drop=True)) as (_, client):
        with pytest.raises(asyncio.IncompleteReadError):
            await client.get()


async def test_headers_and_bodies_sent_unchanged() -> None:
    """Repeated headers, a body that the head does not frame, and bytes that are not HTTP are sent unchanged."""
    lines = Fault(header_lines=("Content-Length: 5", "no header"))
    async with faulty(lines, Fault(chunked=True, raw_body=b"zz"), Fault(raw=b"SSH-2.0\r\n\r\n")) as (server, client):
        client.writer.write(b"HEAD /bucket/key HTTP/1.1\r\n\r\n")
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.count(b"Content-Length: ") == 2
        assert head.endswith(b"\r\nno header\r\n\r\n")
        _, headers = await client.ask("GET", "/bucket/key")
        assert headers["transfer-encoding"] == "chunked"
        assert await client.reader.readexactly(2) == b"zz"
        client.writer.write(b"GET /bucket/key HTTP/1.1\r\n\r\n")
        assert await client.reader.readexactly(11) == b"SSH-2.0\r\n\r\n"
        assert [request.connection_index for request in server.requests] == [0, 1, 2]
        server.behave()
        assert (await client.get())[2] == DATA


async def test_connections_that_end_before_or_after_a_reply() -> None:
    """RST instead of a head, and FIN after a response that did not announce it."""
    async with faulty(Fault(reset_before_head=True)) as (_, client):
        client.writer.write(b"GET /bucket/key HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await client.reader.readexactly(1)
    async with faulty(Fault(close_after_reply=True)) as (_, client):
        _, headers, body = await client.get()
        assert "connection" not in headers
        assert body == DATA
        assert await client.reader.read() == b""


async def test_waiting_for_quiet_and_for_few_connections() -> None:
    """An idle connection is quiet, one with a hanging response is not."""
    async with faulty(Fault(hang_after_bytes=5)) as (server, client), connect(server) as second:
        await client.ask("GET", "/bucket/key")
        assert (await second.get())[2] == DATA
        with pytest.raises(TimeoutError):
            await server.wait_until_quiet(timeout_seconds=0.01)
        with pytest.raises(TimeoutError, match="2 connections"):
            await server.wait_until_idle(connections_max=1, timeout_seconds=0.01)
        await server.wait_until_idle(connections_max=2)
        server.release()
        await server.wait_until_quiet()
        assert server.connections_open == 2


async def test_drip_and_delay_take_time() -> None:
    """A delayed head and a dripped body take time."""
    fault = Fault(delay_head_seconds=0.02, drip_bytes=256, drip_delay_seconds=0.01)
    async with faulty(fault) as (_, client):
        start = asyncio.get_running_loop().time()
        assert (await client.get())[2] == DATA
        assert asyncio.get_running_loop().time() - start >= 0.045


async def test_rules_choose_by_index_method_key_and_predicate() -> None:
    """The first matching rule applies, at most `times` times."""
    oops = Fault(status=500)
    rules = [
        Rule(fault=oops, index=1),
        Rule(fault=Fault(status=501), method="HEAD", times=None),
        Rule(fault=Fault(status=502), key="bucket/empty", times=2),
        Rule(fault=Fault(status=429), matches=lambda request: request.range == "bytes=0-0"),
    ]
    async with FaultServer(OBJECTS, rules) as server, connect(server) as client:
        statuses = [(await client.get())[0] for _ in range(3)]
        statuses += [(await client.get("/bucket/empty"))[0] for _ in range(3)]
        statuses += [(await client.ask("HEAD", "/bucket/key"))[0] for _ in range(2)]
        statuses += [(await client.get(Range="bytes=0-0"))[0] for _ in range(2)]
        assert statuses == [200, 500, 200, 502, 502, 200, 501, 501, 429, 206]
        assert [request.index for request in server.requests] == list(range(10))
        assert {request.connection_id for request in server.requests} == {0}


async def test_assert_helpers_complain() -> None:
    """The errors show the requests that arrived."""
    async with faulty() as (server, client):
        await client.get(Range="bytes=0-1")
        with pytest.raises(AssertionError, match="bytes=0-1"):
            server.assert_requests("HEAD")
        with pytest.raises(AssertionError, match="bytes=0-1"):
            server.assert_ranges(None)
        assert server.count() == server.count("GET") == 1


async def test_a_real_s3_client_reads_from_it() -> None:
    """aiobotocore's GET, HEAD and error mapping work against it."""
    async with FaultServer(OBJECTS) as server:
        config = AioConfig(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
        options: dict[str, Any] = {
            "endpoint_url": server.endpoint_url,
            "region_name": server.region,
            "aws_access_key_id": server.access_key_id,
            "aws_secret_access_key": server.secret_access_key,
            "config": config,
        }
        async with get_session().create_client("s3", **options) as client:
            reply = await client.get_object(Bucket="bucket", Key="key", Range="bytes=1-3")
            async with reply["Body"] as body:
                assert await body.read() == DATA[1:4]
            assert (await client.head_object(Bucket="bucket", Key="key"))["ContentLength"] == 1024
            with pytest.raises(ClientError, match="NoSuchKey"):
                await client.get_object(Bucket="bucket", Key="none")
