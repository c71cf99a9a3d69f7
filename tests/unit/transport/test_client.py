"""One client and a server: connections are kept, replaced when stale, and closed when anything is odd about them."""

import asyncio
from typing import Any

import pytest

from aioprefetch.errors import Error, ProtocolError, Stalled, TimedOut, Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing.oracle import content
from aioprefetch.transport.connection import StaleConnection
from tests.profile import each_of
from tests.stores.raw_server import Handler, Peer, RawServer, answering, client_of, eventually, get, reply
from tests.stores.wire import Taker

SHORT_SECONDS = 0.05
SMALL, LARGE = content(100), content(100_000)


@pytest.mark.parametrize("body", [b"", SMALL, LARGE], ids=len)
async def test_a_connection_serves_many_requests(runtime: Runtime, body: bytes) -> None:
    async with RawServer(answering(reply(body))) as server, client_of(runtime) as client:
        for _ in range(5):
            assert await get(client, server.target(), b"Range: bytes=0-\r\n") == body
        assert (server.connections, server.requests, client.snapshot().open) == (1, 5, 1)
        assert runtime.counters["transport_connections_opened"] == 1
        assert server.peers[0].requests[0].startswith(b"GET /k HTTP/1.1\r\n")
        assert server.peers[0].requests[0].endswith(b"\r\nRange: bytes=0-\r\n\r\n")


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + reply(b"hello"),
        reply(b"hello", b"X-Long: " + b"v" * 40_000),
    ],
    ids=["chunked", "interim", "long"],
)
async def test_other_responses_keep_the_connection_too(sent: bytes) -> None:
    async with RawServer(answering(sent)) as server, client_of() as client:
        for _ in range(3):
            assert await get(client, server.target()) == b"hello"
        assert server.connections == 1


async def test_head_has_no_body() -> None:
    head = reply(LARGE)[: -len(LARGE)]
    async with RawServer(answering(head)) as server, client_of() as client:
        taker = Taker()
        for _ in range(2):
            await client.fetch(server.target(method="HEAD"), b"", taker)
        assert (taker.heads[0].fields[b"content-length"], taker.content()) == (b"100000", b"")
        assert server.connections == 1


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (reply(SMALL, b"Connection: close"), SMALL),
        (reply(LARGE, b"Connection: close"), LARGE),
        (reply(SMALL).replace(b"1.1", b"1.0"), SMALL),
        (b"HTTP/1.1 200 OK\r\n\r\n" + LARGE, LARGE),
        (b"HTTP/1.0 200 OK\r\n\r\n", b""),
    ],
    ids=["close", "close-large", "1.0", "until-close", "empty-until-close"],
)
async def test_some_answers_end_the_connection(runtime: Runtime, sent: bytes, body: bytes) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)

    async with RawServer(handle) as server, client_of(runtime) as client:
        for number in range(3):
            assert await get(client, server.target()) == body
            await eventually(lambda: client.snapshot().open == 0)
            assert server.connections == number + 1
        assert runtime.counters["transport_stale_connections"] == 0


# --- stale connections ----------------------------------------------------------------------------------------------


def breaking_at(request: int, sent: bytes, how: str, *, connections: tuple[int, ...] = (0,)) -> Handler:
    """Answer, but break off at a connection's n-th request after ``sent``, on these connections."""

    async def handle(peer: Peer) -> None:
        while await peer.request() is not None:
            if len(peer.requests) >= request and peer.number in connections:
                if sent:
                    await peer.send(sent)
                if how == "RST":
                    peer.reset()
                return
            await peer.send(reply(SMALL))

    return handle


@pytest.mark.parametrize("how", ["FIN", "RST"])
async def test_a_stale_connection_is_replaced(runtime: Runtime, how: str) -> None:
    async with RawServer(breaking_at(2, b"", how)) as server, client_of(runtime) as client:
        for _ in range(3):
            assert await get(client, server.target()) == SMALL
        assert [len(peer.requests) for peer in server.peers] == [2, 2]
        assert runtime.counters["transport_stale_connections"] == 1
        assert client.snapshot().open == 1


@pytest.mark.parametrize("how", ["FIN", "RST"])
async def test_it_is_replaced_once_and_by_a_new_one(how: str) -> None:
    """Other connections that were kept are as stale as the first one."""

    async def handle(peer: Peer) -> None:
        if peer.number < 3:
            await peer.request()
            await arrived.wait()
            await peer.send(reply(SMALL))
        await peer.request()
        if how == "RST":
            peer.reset()

    arrived = asyncio.Event()
    async with RawServer(handle) as server, client_of() as client:
        first = [asyncio.ensure_future(get(client, server.target())) for _ in range(3)]
        await eventually(lambda: server.requests == 3)
        arrived.set()
        await asyncio.gather(*first)
        with pytest.raises(Unavailable) as caught:
            await get(client, server.target())
        assert not isinstance(caught.value, StaleConnection)
        assert (server.connections, server.requests) == (4, 5)
        await eventually(lambda: client.snapshot().open == 2)


@pytest.mark.parametrize("how", ["FIN", "RST"])
async def test_a_new_connection_is_not_replaced(runtime: Runtime, how: str) -> None:
    async with RawServer(breaking_at(1, b"", how, connections=(0, 1))) as server, client_of(runtime) as client:
        for number in (1, 2):
            with pytest.raises(Unavailable):
                await get(client, server.target())
            assert server.requests == number
        assert runtime.counters["transport_stale_connections"] == 0
        assert await get(client, server.target()) == SMALL


@pytest.mark.parametrize("sent", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", reply(LARGE)[:500]])
async def test_after_one_byte_of_a_response_nothing_is_repeated(runtime: Runtime, sent: bytes) -> None:
    async with RawServer(breaking_at(2, sent, "FIN")) as server, client_of(runtime) as client:
        await get(client, server.target())
        with pytest.raises(Unavailable) as caught:
            await get(client, server.target())
        assert not isinstance(caught.value, StaleConnection)
        assert server.requests == 2
        assert runtime.counters["transport_stale_connections"] == 0


async def test_a_server_that_hangs_up_at_once() -> None:
    """Before the request can be sent, or in the middle of that: never anything but our own errors."""

    async def handle(peer: Peer) -> None:
        if peer.number % 2:
            peer.reset()

    async with RawServer(handle) as server, client_of() as client:
        for _ in range(40):
            with pytest.raises(Unavailable):
                await get(client, server.target())
        assert server.connections == 40
        await eventually(lambda: client.snapshot().open == 0)


# --- what comes unasked ---------------------------------------------------------------------------------------------


async def test_an_idle_connection_that_the_server_closes(runtime: Runtime) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(SMALL))

    async with RawServer(handle) as server, client_of(runtime) as client:
        for _ in range(3):
            assert await get(client, server.target()) == SMALL
            await eventually(lambda: client.snapshot().open == 0)
        assert runtime.counters["transport_stale_connections"] == 0


async def test_bytes_on_an_idle_connection_close_it() -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(SMALL))
        await may_follow.wait()
        await peer.send(reply(b"smuggled"))
        await peer.gone()

    may_follow = asyncio.Event()
    async with RawServer(handle) as server, client_of() as client:
        assert await get(client, server.target()) == SMALL
        assert client.snapshot().open == 1
        may_follow.set()
        await eventually(lambda: client.snapshot().open == 0)
        assert await get(client, server.target()) == SMALL


async def test_bytes_on_an_idle_connection_that_the_loop_has_not_seen_are_no_response() -> None:
    """They are in the kernel when the next request is sent, which gets a connection of its own."""
    peers: list[Peer] = []

    async def handle(peer: Peer) -> None:
        peers.append(peer)
        await peer.request()
        await peer.send(reply(SMALL))
        await peer.gone()

    async with RawServer(handle) as server, client_of() as client:
        for number in range(3):
            assert await get(client, server.target()) == SMALL
            assert len(peers) == number + 1
            peers[-1].send_now(reply(SMALL[::-1]))


@pytest.mark.parametrize("body", [b"", SMALL, LARGE], ids=len)
async def test_bytes_after_a_body_close_the_connection(body: bytes) -> None:
    """They come in one piece with it, or are in the kernel by the time its last byte is taken."""
    async with RawServer(answering(reply(body) + reply(b"smuggled"))) as server, client_of() as client:
        for number in range(5):
            assert await get(client, server.target()) == body
            assert server.connections == number + 1
        await eventually(lambda: client.snapshot().open == 0)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"v" * (1 << 20),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    ],
    ids=["two-lengths", "length-and-chunks", "bad-chunk", "101", "interim", "ssh", "1MiB-line", "10000-headers"],
)
async def test_a_response_that_is_none_closes_the_connection(sent: bytes) -> None:
    async def handle(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(sent)

    async with RawServer(handle) as server, client_of() as client:
        with pytest.raises(ProtocolError):
            await get(client, server.target())
        await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


@each_of("count", [0, 1, 50_000, len(LARGE) - 1])
@each_of("how", ["FIN", "RST"])
async def test_a_body_that_breaks_off(count: int, how: str) -> None:
    sent = reply(LARGE)[: -len(LARGE)] + LARGE[:count]
    async with RawServer(breaking_at(1, sent, how)) as server, client_of() as client:
        taker = Taker()
        with pytest.raises(Unavailable) as caught:
            await client.fetch(server.target(), b"", taker)
        assert LARGE.startswith(taker.content())
        if how == "FIN":  # RST may throw away what was sent before.
            assert len(taker.content()) == count
            assert f"in the middle of the body, after {count} bytes" in str(caught.value)
        await eventually(lambda: client.snapshot().open == 0)
        assert await get(client, server.target()) == SMALL


# --- time -----------------------------------------------------------------------------------------------------------

LIMITS: dict[str, Any] = {
    "first_byte_timeout_seconds": SHORT_SECONDS,
    "stall_timeout_seconds": SHORT_SECONDS,
    "idle_seconds_max": 60.0,
}


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"", TimedOut),
        (b"HTTP/1.1 200 OK\r\n", TimedOut),
        (b"HTTP/1.1 100 Continue\r\n\r\n", TimedOut),
        (reply(LARGE)[:-1], Stalled),
        (reply(LARGE)[: -len(LARGE)], Stalled),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", Stalled),
        (b"HTTP/1.1 200 OK\r\n\r\nhel", Stalled),
    ],
    ids=["nothing", "half-a-head", "interim", "most-of-a-body", "head", "chunk", "until-close"],
)
async def test_a_server_that_hangs(sent: bytes, kind: type[Error]) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        await peer.gone()

    async with RawServer(handle) as server, client_of(**LIMITS) as client:
        with pytest.raises(Error) as caught:
            await get(client, server.target())
        assert type(caught.value) is kind
        await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


@pytest.mark.parametrize("framing", [b"Content-Length: 1000000", b"X: y"])
async def test_a_drip_is_a_stall(framing: bytes) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
        gone = asyncio.ensure_future(peer.gone())
        while not gone.done():
            await peer.send(b"x")
            await asyncio.wait([gone], timeout=SHORT_SECONDS / 5)

    async with RawServer(handle) as server, client_of(**LIMITS) as client:
        with pytest.raises(Stalled):
            await get(client, server.target())
        await eventually(lambda: server.open == 0)


async def test_idle_connections_are_closed_after_a_while() -> None:
    async with RawServer(answering(reply(SMALL))) as server, client_of(idle_seconds_max=SHORT_SECONDS) as client:
        await asyncio.gather(*(get(client, server.target()) for _ in range(3)))
        assert client.snapshot().open > 0
        await eventually(lambda: client.snapshot().open == 0 and server.open == 0)
        assert await get(client, server.target()) == SMALL


async def test_old_connections_are_not_used_again() -> None:
    async with RawServer(answering(reply(SMALL))) as server, client_of(age_seconds_max=0.0) as client:
        for number in range(3):
            assert await get(client, server.target()) == SMALL
            assert server.connections == number + 1
        await eventually(lambda: client.snapshot().open == 0)


async def test_a_request_that_is_sent_once_has_a_new_connection(runtime: Runtime) -> None:
    """A kept one may be stale, and the request could not be sent again."""
    async with RawServer(breaking_at(2, b"", "FIN")) as server, client_of(runtime) as client:
        await get(client, server.target())
        await client.fetch(server.target(), b"", Taker(), resends=False)
        assert (server.connections, server.requests) == (2, 2)
