"""One connection, driven by hand: incomplete responses, how slow they may be, and what is reported to its owner."""

import random

import pytest

from aioprefetch.errors import Closed, ProtocolError, Stalled, TimedOut, Unavailable
from aioprefetch.transport.connection import INTERIM_HEADS_MAX, SCRATCH_BYTES, Connection, StaleConnection
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.responses import HEAD_BYTES_MAX, ResponseHead
from tests.profile import each_of
from tests.stores.raw_server import reply
from tests.stores.wire import Memory, Taker, Wire

MODES = ["selector", "tls", "rude"]
BODY = random.Random(1).randbytes(50_000)
OPTIONS = ClientOptions(first_byte_timeout_seconds=8, stall_timeout_seconds=4, stall_bytes_per_second=10)


@each_of("mode", MODES)
@each_of("piece_bytes", [1, 7, 4096, 1 << 20])
def test_a_body_lands_in_its_pieces(mode: str, piece_bytes: int) -> None:
    wire, taker = Wire(mode), Taker(pieces=[1, 10_000, 3, 20_000])
    done = wire.connection.send(b"GET", taker)
    sent = reply(BODY)
    wire.feed(sent, *[piece_bytes] * (len(sent) // piece_bytes))
    assert done.result() == 0.0
    assert taker.content() == BODY
    assert wire.connection.is_usable
    assert bytes(wire.transport.written) == b"GET"


def head_of(size: int) -> bytes:
    """The head of an empty response: a head of ``size`` bytes."""
    bare = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: \r\n\r\n"
    return bare.replace(b"X: ", b"X: " + b"v" * (size - len(bare)))


@each_of("mode", MODES)
@each_of("piece_bytes", [333, SCRATCH_BYTES, HEAD_BYTES_MAX])
@each_of("size", [SCRATCH_BYTES - 1, SCRATCH_BYTES, SCRATCH_BYTES + 1, HEAD_BYTES_MAX])
def test_heads_up_to_their_limit(mode: str, piece_bytes: int, size: int) -> None:
    wire = Wire(mode)
    done = wire.connection.send(b"GET", Taker())
    sent = head_of(size)
    assert len(sent) == size
    wire.feed(sent, *[piece_bytes] * (size // piece_bytes))
    assert done.exception() is None
    assert wire.connection.is_usable


@each_of("mode", MODES)
@each_of("sent", [head_of(HEAD_BYTES_MAX + 1), b"x" * (1 << 20), b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 99_999])
def test_heads_beyond_their_limit(mode: str, sent: bytes) -> None:
    wire = Wire(mode)
    done = wire.connection.send(b"GET", Taker())
    wire.feed(sent)
    assert isinstance(done.exception(), ProtocolError)
    assert wire.transport.closed
    assert len(wire.connection.get_buffer(-1)) > 0  # Loops may ask once more.
    wire.connection.buffer_updated(1)
    wire.turn()
    assert wire.lost == 1


@each_of("count", [1, INTERIM_HEADS_MAX, INTERIM_HEADS_MAX + 1, 900])
@each_of("piece_bytes", [1, 1 << 20])
def test_interim_answers(count: int, piece_bytes: int) -> None:
    wire, taker = Wire(), Taker()
    done = wire.connection.send(b"GET", taker)
    sent = b"HTTP/1.1 100\r\n\r\n" * count + reply(b"hello")
    wire.feed(sent, *[piece_bytes] * (len(sent) // piece_bytes))
    error = done.exception()
    if count <= INTERIM_HEADS_MAX:
        assert (error, taker.content(), wire.connection.is_usable) == (None, b"hello", True)
        assert [head.status for head in taker.heads] == [200]
    else:
        assert isinstance(error, ProtocolError)
        assert wire.transport.closed


@each_of("is_reused", [False, True])
@each_of("error", [None, ConnectionResetError(104, "reset")])
@each_of("sent", [b"", b"H", b"HTTP/1.1 100 Continue\r\n\r\n", reply(b"hello")[:-1]])
def test_stale_is_what_was_used_before_and_gave_no_byte(sent: bytes, error: Exception | None, is_reused: bool) -> None:
    wire = Wire()
    wire.connection.is_reused = is_reused
    done = wire.connection.send(b"GET", Taker())
    wire.feed(sent)
    wire.end(error)
    assert isinstance(done.exception(), Unavailable)
    assert isinstance(done.exception(), StaleConnection) == (is_reused and not sent)


@each_of("peeks", [False, True])
@each_of("extra", [b"", b"x", reply(b"hello")])
def test_what_follows_a_body_closes(extra: bytes, peeks: bool) -> None:
    """Where a socket can be peeked into before the response ends; over TLS, before another request can be sent."""
    wire, taker = Wire(peeks=peeks), Taker()
    done = wire.connection.send(b"GET", taker)
    wire.feed(reply(BODY) + extra)
    assert done.exception() is None
    assert taker.content() == BODY
    assert wire.connection.is_usable == (not extra)


@each_of("pieces", [[len(BODY) - 10], [len(BODY) - 20, 4, 4, 4]])
@each_of("extra", [b"", b"x", reply(b"hello")])
def test_what_follows_a_body_in_one_record_closes(pieces: list[int], extra: bytes) -> None:
    """TLS hands out whole records: what does not belong to the body, wherever that went, is no next response.

    The connection is closed in a later turn, because TLS calls while it receives.
    """
    wire, taker = Wire(is_secured=True), Taker(pieces=list(pieces))
    done = wire.connection.send(b"GET", taker)
    head, _, body = reply(BODY).partition(b"\r\n\r\n")
    wire.feed(head + b"\r\n\r\n")
    wire.feed(body[:-20])
    last_record = body[-20:] + extra
    buffer = wire.connection.get_buffer(len(last_record))
    buffer[: len(last_record)] = last_record
    wire.connection.buffer_updated(len(last_record))
    assert done.exception() is None
    assert taker.content() == BODY
    assert not wire.transport.closed
    wire.turn()
    assert wire.connection.is_usable == (not extra)
    assert wire.transport.closed == bool(extra)


@each_of("mode", MODES)
def test_a_chunked_body_longer_than_its_memory_is_refused(mode: str) -> None:
    """It is not cut to what was asked for without a word."""

    class Five(Taker):
        def begin(self, head: ResponseHead, connection: Connection) -> Memory:
            self.memory = Memory(5)
            return self.memory

    wire, taker = Wire(mode), Five()
    done = wire.connection.send(b"GET", taker)
    wire.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n0\r\n\r\n")
    assert isinstance(done.exception(), ProtocolError)
    assert not wire.connection.is_usable


def test_unrequested_bytes_close() -> None:
    wire = Wire()
    wire.feed(reply(b"hello"))
    assert wire.lost == 1
    assert not wire.connection.is_usable


def test_a_server_that_hangs_up_while_idle() -> None:
    wire = Wire()
    assert not wire.connection.eof_received()
    assert not wire.connection.is_usable
    wire.end()
    assert wire.lost == 1


def test_to_close_twice_is_fine() -> None:
    wire = Wire()
    done = wire.connection.send(b"GET", Taker())
    wire.connection.close()
    wire.connection.close(Closed("again"))
    wire.turn()
    wire.connection.close()
    assert isinstance(done.exception(), Closed)
    assert wire.lost == 1


def test_a_body_may_be_left_off() -> None:
    wire, taker = Wire(), Taker()
    taker.on_begin = lambda memory: setattr(memory, "on_advance", wire.connection.stop)
    done = wire.connection.send(b"GET", taker)
    wire.feed(reply(BODY), 1000)
    assert done.exception() is None
    assert 0 < len(taker.content()) < len(BODY)
    assert wire.transport.closed


# --- how slow a response may be --------------------------------------------------------------------------------------


def look(wire: Wire, now: float) -> None:
    wire.loop.now = now
    wire.connection.look(now, OPTIONS)


def test_the_head_has_its_time_whatever_trickles_in() -> None:
    wire = Wire()
    done = wire.connection.send(b"GET", Taker())
    for second in range(8):
        look(wire, second)
        wire.feed(b"HTTP/1.1 200 OK\r\n"[second : second + 1])
    wire.feed(b"HTTP/1.1 200 OK\r\n"[8:])
    assert not done.done()
    look(wire, 8)
    assert type(done.exception()) is TimedOut


@pytest.mark.parametrize("chunked", [False, True])
def test_a_drip_is_a_stall_and_a_pause_is_none(chunked: bool) -> None:
    wire, taker = Wire(), Taker()
    done = wire.connection.send(b"GET", taker)
    if chunked:
        wire.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n")
    else:
        wire.feed(reply(bytes(0xFFFFF))[:-0xFFFFF])
    wire.feed(BODY)
    look(wire, 4)  # 50 000 bytes came in this window.
    wire.connection.pause()
    look(wire, 100)
    wire.connection.resume()
    assert not done.done()
    for second in range(101, 104):
        wire.feed(b"x")
        look(wire, second)
    assert not done.done()
    look(wire, 104)
    assert type(done.exception()) is Stalled
    assert wire.transport.closed


def test_an_idle_connection_has_no_timeout() -> None:
    wire = Wire()
    done = wire.connection.send(b"GET", Taker())
    wire.feed(reply(b"hello"))
    look(wire, 1000)
    assert done.exception() is None
    assert wire.connection.is_usable


def test_a_request_after_a_paused_response_is_received() -> None:
    """A receiver paused the connection at its last byte: the next response does not wait for that."""
    wire, taker = Wire(), Taker()

    def pause_at_the_end(memory: Memory) -> None:
        memory.on_advance = lambda: wire.connection.pause() if memory.received == len(BODY) else None

    taker.on_begin = pause_at_the_end
    wire.connection.send(b"GET", taker)
    wire.feed(reply(BODY))
    assert not wire.transport.paused
    following = Taker()
    done = wire.connection.send(b"GET", following)
    wire.feed(reply(b"hello"))
    assert (done.exception(), following.content()) == (None, b"hello")


@each_of("piece_bytes", [1, 7, 1 << 20])
@each_of(
    "head",
    [
        b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\n\nx",
        b"HTTP/1.1 200 OK\r\nX: 1\nContent-Length: 1\r\n",
        b"\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\n",
    ],
)
def test_a_head_whose_lines_end_otherwise_is_not_waited_for(head: bytes, piece_bytes: int) -> None:
    """Its end, as it should be, would never come."""
    wire = Wire()
    done = wire.connection.send(b"GET", Taker())
    wire.feed(head, *[piece_bytes] * (len(head) // piece_bytes))
    assert isinstance(done.exception(), ProtocolError)
    assert not wire.connection.is_usable
