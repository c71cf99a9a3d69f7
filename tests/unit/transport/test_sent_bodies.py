"""Requests with a body: sent as fast as the connection takes it, and responses that come before its end."""

import asyncio
import socket

import pytest

from aioprefetch.errors import TimedOut
from aioprefetch.transport.connection import SENT_PIECE_BYTES
from aioprefetch.transport.options import ClientOptions
from tests.stores.raw_server import Peer, RawServer, client_of, eventually, get, reply
from tests.stores.wire import Taker, Wire

HEAD = b"PUT /k HTTP/1.1\r\n\r\n"
BODY = bytes(range(256)) * (5 * SENT_PIECE_BYTES // 512)  # Two pieces and a half.
REFUSED = reply(b"refused", status=b"403 Forbidden")


def sent(wire: Wire, body: bytes = BODY) -> tuple[Taker, asyncio.Future[float]]:
    taker = Taker()
    return taker, wire.connection.send(HEAD, taker, body=memoryview(body))


@pytest.mark.parametrize("body", [b"", b"abc", BODY[:SENT_PIECE_BYTES], BODY])
def test_a_body_is_sent_behind_its_head_and_keeps_the_connection(body: bytes) -> None:
    wire = Wire()
    taker, done = sent(wire, body)
    assert wire.transport.written == HEAD + body
    wire.feed(REFUSED)
    assert done.done()
    assert taker.content() == b"refused"
    assert wire.connection.is_usable


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("left", ["pieces", "the send buffer"])
def test_an_early_response_is_delivered_and_closes_the_connection(left: str, is_secured: bool) -> None:
    """The rest of the body would be taken for the next request, or keep it waiting."""
    wire = Wire(is_secured=is_secured)
    if left == "pieces":
        wire.connection.pause_writing()
        taker, done = sent(wire)
    else:
        taker, done = sent(wire, b"abc")
        wire.transport.unsent_bytes = 1
    wire.feed(REFUSED)
    wire.turn()
    assert done.exception() is None
    assert (taker.heads[0].status, taker.content()) == (403, b"refused")
    assert not wire.connection.is_usable
    assert wire.transport.closed
    assert wire.lost == 1
    written = bytes(wire.transport.written)
    wire.connection.resume_writing()
    assert wire.transport.written == written


@pytest.mark.parametrize("found", ["by a piece", "by the loop"])
def test_a_response_that_is_there_when_sending_fails_is_delivered(found: str) -> None:
    """The loop drops what the socket holds, and nothing goes on a broken connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(REFUSED)
        wire = Wire()
        wire.transport.socket, wire.transport.protocol = ours, wire.connection
        if found == "by a piece":
            wire.transport.on_write = lambda: setattr(wire.transport, "closed", len(wire.transport.written) > len(HEAD))
            taker, done = sent(wire)
            assert len(wire.transport.written) == len(HEAD) + SENT_PIECE_BYTES
        else:
            wire.connection.pause_writing()
            taker, done = sent(wire)
            wire.transport.closed = True
            wire.connection.connection_lost(BrokenPipeError())
        assert done.exception() is None
        assert (taker.heads[0].status, taker.content()) == (403, b"refused")


def test_nothing_follows_a_piece_that_broke_the_connection() -> None:
    wire = Wire()
    wire.transport.on_write = lambda: setattr(wire.transport, "closed", len(wire.transport.written) > len(HEAD))
    sent(wire)
    assert wire.transport.written == HEAD + BODY[:SENT_PIECE_BYTES]


def test_what_is_left_of_a_body_does_not_close_the_connection_of_the_next_request() -> None:
    """Only a request with a body looks at the send buffer."""
    wire = Wire()
    wire.transport.unsent_bytes = 1
    taker = Taker()
    wire.connection.send(b"GET /k HTTP/1.1\r\n\r\n", taker)
    wire.feed(REFUSED)
    assert wire.connection.is_usable


def test_a_full_send_buffer_holds_the_next_piece_back() -> None:
    wire = Wire()
    wire.transport.on_write = wire.connection.pause_writing
    sent(wire)
    for end in range(0, len(BODY), SENT_PIECE_BYTES):
        assert wire.transport.written == HEAD + BODY[:end]
        wire.connection.resume_writing()
    assert wire.transport.written == HEAD + BODY


def test_the_timeout_of_the_first_byte_begins_again_with_each_piece() -> None:
    wire, options = Wire(), ClientOptions(first_byte_timeout_seconds=8.0)
    wire.transport.on_write = wire.connection.pause_writing  # The head, and then each piece, fill the send buffer.
    _, done = sent(wire)
    for now in (7.0, 14.0, 21.0):
        wire.loop.now = now
        wire.connection.look(now, options)
        assert not done.done()
        wire.connection.resume_writing()
    assert wire.transport.written == HEAD + BODY
    wire.connection.look(28.9, options)
    assert not done.done()
    wire.connection.look(29.0, options)
    assert isinstance(done.exception(), TimedOut)


async def test_a_server_that_refuses_without_receiving() -> None:
    """The body is more than the kernel takes. The next request has a connection of its own."""

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(REFUSED if peer.number == 0 else reply(b"next"))
        await peer.gone()

    body = bytes(32 << 20)
    async with RawServer(handle) as server, client_of() as client:
        taker = Taker()
        await client.fetch(
            server.target(), b"Content-Length: %d\r\n" % len(body), taker, body=memoryview(body), resends=False
        )
        assert (taker.heads[0].status, taker.content()) == (403, b"refused")
        assert await get(client, server.target()) == b"next"
        assert server.connections == 2
        await eventually(lambda: server.open == 1)
