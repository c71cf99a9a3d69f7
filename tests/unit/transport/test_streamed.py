"""Answers that are read piece by piece: not faster than their reader, and given back or broken off when it ends."""

import asyncio
import hashlib
import tracemalloc
from typing import Any

import pytest

from aioprefetch.errors import Closed, ProtocolError, Stalled, Unavailable
from aioprefetch.testing.oracle import content
from aioprefetch.transport import ClientOptions, HttpClient, StreamedAnswer
from tests.unit.transport.raw_server import Peer, RawServer, answering, client_of, eventually, get, reply
from tests.unit.transport.wire import Taker

MIB = 1 << 20
SHORT_SECONDS = 0.05
SMALL, LARGE = content(100), content(3 * MIB)


async def rest_of(response: StreamedAnswer) -> bytes:
    body = bytearray()
    while piece := await response.read_chunk():
        assert piece.readonly
        body += piece
    return bytes(body)


async def read_into(body: bytearray, client: HttpClient, server: RawServer) -> None:
    response = await client.open(server.target(), b"")
    while piece := await response.read_chunk():
        body += piece


def chunked(body: bytes, piece_bytes: int = 50_000) -> bytes:
    pieces = [body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes)]
    sent = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\n\r\n"


@pytest.mark.parametrize("body", [b"", SMALL, LARGE], ids=len)
@pytest.mark.parametrize("framed", [reply, chunked])
async def test_a_stream_to_its_end_keeps_the_connection(framed: Any, body: bytes) -> None:
    async with RawServer(answering(framed(body))) as server, client_of() as client:
        for _ in range(3):
            response = await client.open(server.target(), b"")
            assert response.head.status == 200
            assert response.head_seconds >= 0
            assert await rest_of(response) == body
            assert len(await response.read_chunk()) == 0
            response.close()
            response.close()
        assert (server.connections, client.snapshot().open, client.snapshot().idle) == (1, 1, 1)


async def test_pieces_stay_as_they_are() -> None:
    """What was handed out is the reader's; the memory is not used again."""
    async with RawServer(answering(reply(LARGE))) as server, client_of() as client:
        response = await client.open(server.target(), b"")
        pieces = []
        while piece := await response.read_chunk():
            pieces.append(piece)
        assert b"".join(pieces) == LARGE


async def test_a_response_that_nobody_reads_holds_little_memory() -> None:
    size = 64 * MIB
    block = content(64 << 10)

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(block)):
            await peer.send(block)
        await peer.gone()

    async with RawServer(handle) as server, client_of() as client:
        await get_nothing(client)
        tracemalloc.start()
        try:
            response = await client.open(server.target(), b"")
            before, _ = tracemalloc.get_traced_memory()
            await eventually(lambda: response._connection._paused)
            for _ in range(1000):
                await asyncio.sleep(0)
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held - before < MIB
        assert peak - before < MIB
        expected, found, count = hashlib.sha256(), hashlib.sha256(), 0
        for _ in range(size // len(block)):
            expected.update(block)
        while piece := await response.read_chunk():
            found.update(piece)
            count += len(piece)
        assert (count, found.digest()) == (size, expected.digest())


async def get_nothing(client: HttpClient) -> None:
    """Load what is loaded on first use."""
    async with RawServer(answering(reply(b""))) as server:
        await get(client, server.target())
    await eventually(lambda: client.snapshot().open == 0)


@pytest.mark.parametrize("framed", [reply, chunked])
async def test_to_be_paused_is_not_to_stall(framed: Any) -> None:
    """The reader takes its time: many times what a server may."""
    limits = {"stall_timeout_seconds": SHORT_SECONDS}
    async with RawServer(answering(framed(LARGE))) as server, client_of(**limits) as client:
        response = await client.open(server.target(), b"")
        await eventually(lambda: response._connection._paused)
        loop, options = asyncio.get_running_loop(), ClientOptions(stall_timeout_seconds=SHORT_SECONDS)
        for windows in (4, 8):
            response._connection.look(loop.time() + windows * SHORT_SECONDS, options)
            assert response._connection.is_busy
            await response.read_chunk()
            await eventually(lambda: response._connection._paused)
        assert await rest_of(response)


@pytest.mark.parametrize("framed", [reply, chunked])
async def test_to_stall_after_a_pause_is_to_stall(framed: Any) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(framed(LARGE)[: 2 * MIB])
        await peer.gone()

    async with RawServer(handle) as server, client_of(stall_timeout_seconds=SHORT_SECONDS) as client:
        response = await client.open(server.target(), b"")
        await eventually(lambda: response._connection._paused)
        async with asyncio.timeout(5):
            with pytest.raises(Stalled):
                await rest_of(response)
        await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


@pytest.mark.parametrize("framed", [reply, chunked])
async def test_to_close_a_stream_breaks_it_off(framed: Any) -> None:
    async with RawServer(answering(framed(LARGE))) as server, client_of(connections_max=1) as client:
        for number in range(3):
            response = await client.open(server.target(), b"")
            if number:
                await response.read_chunk()
            response.close()
            with pytest.raises(Closed):
                await response.read_chunk()
            await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


async def test_to_close_it_wakes_its_reader() -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(LARGE)[:200])
        await peer.gone()

    async with RawServer(handle) as server, client_of() as client:
        response = await client.open(server.target(), b"")
        reading = asyncio.ensure_future(rest_of(response))
        await eventually(lambda: response._pieces._waiter is not None)
        response.close()
        with pytest.raises(Closed):
            await reading


async def test_a_reader_that_is_cancelled_breaks_it_off() -> None:
    """Whether or not it is closed after that."""

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(LARGE)[:200])
        await peer.gone()

    async with RawServer(handle) as server, client_of() as client:
        response = await client.open(server.target(), b"")
        reading = asyncio.ensure_future(rest_of(response))
        await eventually(lambda: response._pieces._waiter is not None)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (reply(LARGE)[:MIB], Unavailable),
        (chunked(LARGE)[:MIB], Unavailable),
        (chunked(LARGE[:MIB]).removesuffix(b"0\r\n\r\n") + b"xyz\r\n", ProtocolError),
        (reply(LARGE)[:20], Unavailable),
        (b"x" * 20 + b"\r\n\r\n", ProtocolError),
    ],
    ids=["length", "chunks", "bad chunk", "head", "no head"],
)
async def test_streams_that_break_off(sent: bytes, kind: type[Exception]) -> None:
    """What came before the break is delivered first."""

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)

    async with RawServer(handle) as server, client_of() as client:
        body = bytearray()
        with pytest.raises(kind):
            await read_into(body, client, server)
        assert LARGE.startswith(body)
        assert bool(body) == (len(sent) > MIB // 2)
        await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


# --- a receiver that makes a stream of its response -------------------------------------------------------------------


class Streaming(Taker):
    """Leaves the body to whoever reads ``answer``."""

    def __init__(self, client: HttpClient) -> None:
        super().__init__()
        self.response: StreamedAnswer
        self._client = client

    def begin(self, head: Any, connection: Any) -> Any:
        self.response = self._client.stream(connection)
        return self.response.take_over(head)


@pytest.mark.parametrize("framed", [reply, chunked])
@pytest.mark.parametrize("body", [b"", SMALL, LARGE], ids=len)
async def test_a_receiver_may_make_a_stream_of_it(framed: Any, body: bytes) -> None:
    """However small it is: the connection is kept once, and two requests never share it."""
    async with RawServer(answering(framed(body))) as server, client_of() as client:
        for _ in range(3):
            takers = [Streaming(client), Streaming(client)]
            await asyncio.gather(*(client.fetch(server.target(), b"", taker) for taker in takers))
            for taker in takers:
                assert await rest_of(taker.response) == body
                taker.response.close()
            await eventually(lambda: client.snapshot().idle == client.snapshot().open)
            kept = client._pool._idle[server.target().route.key]
            assert len(kept) == len(set(kept)) == client.snapshot().open
        assert client.snapshot().open <= 2


async def test_a_stream_that_was_made_so_is_broken_off_by_close() -> None:
    async with RawServer(answering(reply(LARGE))) as server, client_of(connections_max=1) as client:
        for _ in range(3):
            taker = Streaming(client)
            await client.fetch(server.target(), b"", taker)
            assert (await taker.response.read_chunk())[:10] == LARGE[:10]
            taker.response.close()
            await eventually(lambda: client.snapshot().open == 0 and server.open == 0)
