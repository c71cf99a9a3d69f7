"""Receivers without memory for more: their connection is paused, no timeout runs, and nothing is lost."""

import asyncio
from typing import Any

import pytest

from aioprefetch.errors import Closed, ProtocolError, Stalled, Unavailable
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing.oracle import content
from aioprefetch.transport.options import ClientOptions
from tests.stores.raw_server import Peer, RawServer, answering, client_of, eventually, reply
from tests.stores.wire import PausingTaker, Wire

MIB = 1 << 20
SHORT_SECONDS = 0.05
SMALL, LARGE = content(100), content(3 * MIB)


def chunked(body: bytes, piece_bytes: int = 50_000) -> bytes:
    pieces = [body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes)]
    sent = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\n\r\n"


@pytest.mark.parametrize("framed", [reply, chunked])
async def test_a_body_with_pauses_is_whole_and_keeps_the_connection(framed: Any) -> None:
    for body in (b"", SMALL, LARGE):
        async with RawServer(answering(framed(body))) as server, client_of() as client:
            for _ in range(3):
                taker = PausingTaker(MIB)
                await client.fetch(server.target(), b"", taker)
                assert taker.content() == body
                assert bool(taker.pauses) == (body is LARGE)
            assert (server.connections, client.snapshot().open, client.snapshot().idle) == (1, 1, 1)


@pytest.mark.parametrize("framed", [reply, chunked])
def test_a_pause_is_no_stall(framed: Any) -> None:
    """However long it lasts; after it the timeout begins again."""
    wire, taker = Wire(), PausingTaker(MIB, resumes_after=None)
    done = wire.connection.send(b"GET", taker)
    wire.feed(framed(LARGE)[: -(1 << 10)], *[50_000] * 60)  # The last KiB never comes.
    options = ClientOptions(stall_timeout_seconds=8.0)

    def look(now: float) -> None:
        wire.loop.now = now
        wire.connection.look(now, options)

    for seconds in (10_000.0, 20_000.0):
        assert taker.is_paused
        look(seconds)
        assert not done.done()
        taker.resume()
        wire.receive()
    assert not taker.is_paused
    look(20_007.0)
    assert not done.done()
    for seconds in (20_008.0, 20_016.0):  # Within the first window some bytes came.
        look(seconds)
    assert isinstance(done.exception(), Stalled)


@pytest.mark.parametrize("framed", [reply, chunked])
async def test_a_stall_after_a_pause_is_a_stall(framed: Any) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(framed(LARGE)[: 2 * MIB])
        await peer.gone()

    async with RawServer(handle) as server, client_of(stall_timeout_seconds=SHORT_SECONDS) as client:
        taker = PausingTaker(MIB)
        async with asyncio.timeout(5):
            with pytest.raises(Stalled):
                await client.fetch(server.target(), b"", taker)
        assert taker.pauses
        await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


@pytest.mark.parametrize("framed", [reply, chunked])
async def test_a_paused_request_can_be_cancelled_and_closed(framed: Any) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(framed(LARGE)[: 2 * MIB])  # One receive may bring all of it, and must not end the request.
        await peer.gone()

    async with RawServer(handle) as server:
        for ends_by in ("cancelling", "closing"):
            runtime = Runtime(RuntimeOptions())
            async with client_of(runtime, connections_max=1) as client:
                taker = PausingTaker(MIB, resumes_after=None)
                request = asyncio.ensure_future(client.fetch(server.target(), b"", taker))
                await eventually(lambda: taker.is_paused)  # noqa: B023
                if ends_by == "cancelling":
                    request.cancel()
                else:
                    await runtime.aclose()
                with pytest.raises((asyncio.CancelledError, Closed)):
                    await request
                taker.resume()
                await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (reply(LARGE)[:MIB], Unavailable),
        (chunked(LARGE)[:MIB], Unavailable),
        (chunked(LARGE[:MIB]).removesuffix(b"0\r\n\r\n") + b"xyz\r\n", ProtocolError),
    ],
    ids=["length", "chunks", "bad chunk"],
)
async def test_a_body_that_breaks_off_after_pauses(sent: bytes, kind: type[Exception]) -> None:
    """What came before the break is delivered first."""

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)

    async with RawServer(handle) as server, client_of() as client:
        taker = PausingTaker(100_000)
        with pytest.raises(kind):
            await client.fetch(server.target(), b"", taker)
        assert LARGE.startswith(taker.content())
        assert len(taker.content()) > MIB // 2
        await eventually(lambda: client.snapshot().open == 0 and server.open == 0)
