"""How responses end, over TCP and TLS: whole, cut, or followed by bytes without a request. Never short in silence."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.errors import Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing.oracle import content
from aioprefetch.transport.origin import Target
from aioprefetch.transport.pool import HttpClient
from tests.profile import combinations
from tests.stores.certificates import Authority
from tests.stores.raw_server import client_of, eventually, reply
from tests.stores.tls_servers import target_of
from tests.stores.wire import PausingTaker, Taker
from tests.unit.transport.blocking_server import PATIENCE_SECONDS, BlockingServer, Handler, hang_up, next_request

BODY = content(3_000_000)
KINDS = ["length", "chunks", "end"]
SIZES = [10, 16_000, 100_000, 300_000, 3_000_000]
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
FORGED = reply(b"forged")


def framed(kind: str, size: int) -> bytes:
    """A response after which the server hangs up."""
    body = BODY[:size]
    if kind == "length":
        return HEAD + b"Content-Length: %d\r\n\r\n" % size + body
    if kind == "end":
        return HEAD + b"\r\n" + body
    pieces = [body[start : start + 8192] for start in range(0, size, 8192)]
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, pieces)) + b"0\r\n\r\n"


def chunk(piece: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


@pytest.fixture(params=["http", "https"])
def security(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """What a server needs for it, and the options of its client."""
    if request.param == "http":
        return None, {}
    authority = Authority(tmp_path)
    return authority.context("127.0.0.1"), {"ca_bundle": str(authority.bundle)}


def sending(response: bytes, *, says_so: bool = True) -> Handler:
    """Send this at once, and hang up."""

    def handle(served: socket.socket) -> None:
        next_request(served)
        served.sendall(response)
        hang_up(served, says_so=says_so)

    return handle


@contextmanager
def no_complaint() -> Iterator[None]:
    """The loop finds nothing to complain about."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    assert complaints == []


async def whole(http: HttpClient, target: Target) -> bytes:
    """A body in one piece of memory."""
    taker = Taker()
    await http.fetch(target, b"", taker)
    return taker.content()


async def scattered(http: HttpClient, target: Target) -> bytes:
    """A body over thousands of pieces, most of them shorter than what comes at once."""
    taker = Taker(pieces=[1, 1000, 70_000, 3] * 1000)
    await http.fetch(target, b"", taker)
    return taker.content()


async def with_pauses(http: HttpClient, target: Target) -> bytes:
    """A body whose receiver pauses the connection again and again."""
    taker = PausingTaker()
    await http.fetch(target, b"", taker)
    return taker.content()


@pytest.mark.parametrize(("kind", "way", "size"), combinations(KINDS, [with_pauses, whole, scattered], SIZES))
async def test_a_body_after_which_the_server_hangs_up(security: Any, kind: str, size: int, way: Any) -> None:
    """The end is there before the body was taken, and takes nothing of it away."""
    context, options = security
    with no_complaint(), BlockingServer(sending(framed(kind, size)), context) as server:
        async with client_of(**options) as http, asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(3):
                assert await way(http, target_of(server.url())) == BODY[:size]
            await eventually(lambda: http.snapshot().open == 0)


@pytest.mark.parametrize(("kind", "size"), combinations(KINDS, [400_000, 3_000_000]))
async def test_a_slow_receiver_of_a_body_after_which_the_server_hangs_up(security: Any, kind: str, size: int) -> None:
    """What came during a pause is not lost with the connection."""
    context, options = security
    with no_complaint(), BlockingServer(sending(framed(kind, size)), context) as server:
        async with client_of(**options) as http, asyncio.timeout(PATIENCE_SECONDS):
            taker = PausingTaker(300_000, resumes_after=100)
            await http.fetch(target_of(server.url()), b"", taker)
            assert taker.content() == BODY[:size]
            assert taker.pauses > 0


@pytest.mark.parametrize(("way", "size"), combinations([with_pauses, whole], SIZES))
async def test_a_body_that_ends_without_a_word_of_tls(tmp_path: Path, size: int, way: Any) -> None:
    """Anybody on the way can cut a connection: without a length, such a body is not known to be whole."""
    authority = Authority(tmp_path)
    handle = sending(framed("end", size), says_so=False)
    with no_complaint(), BlockingServer(handle, authority.context("127.0.0.1")) as server:
        async with client_of(ca_bundle=str(authority.bundle)) as http, asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(3):
                with pytest.raises(Unavailable, match="before TLS said that the body had ended") as caught:
                    await way(http, target_of(server.url()))
                assert f"after {size} bytes" in caught.value.message
            await eventually(lambda: http.snapshot().open == 0)


@pytest.mark.parametrize("kind", ["length", "chunks"])
@pytest.mark.parametrize("says_so", [False, True])
async def test_a_body_that_is_cut(security: Any, kind: str, says_so: bool) -> None:
    """Its own framing says that it is not whole, whatever TLS says."""
    context, options = security
    handle = sending(framed(kind, 300_000)[:-10], says_so=says_so)
    with no_complaint(), BlockingServer(handle, context) as server:
        async with client_of(**options) as http, asyncio.timeout(PATIENCE_SECONDS):
            for way in (with_pauses, whole, scattered):
                with pytest.raises(Unavailable, match="in the middle of the body"):
                    await way(http, target_of(server.url()))


# --- bytes without a request ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 100_000])
@pytest.mark.parametrize("extra", [FORGED, FORGED[:20], b""], ids=["a response", "a piece of one", "the end"])
async def test_what_waits_in_a_kept_connection_is_no_response(
    runtime: Runtime, security: Any, size: int, extra: bytes
) -> None:
    """Even if the loop had no chance to see it: the caller computes from one request to the next."""
    context, options = security
    may_send, was_sent = threading.Event(), threading.Event()

    def handle(served: socket.socket) -> None:
        while next_request(served):
            served.sendall(reply(BODY[:size]))
            if not may_send.wait(PATIENCE_SECONDS):
                return
            if extra:
                served.sendall(extra)
            else:
                served.shutdown(socket.SHUT_WR)
            was_sent.set()

    with no_complaint(), BlockingServer(handle, context) as server:
        async with client_of(runtime, **options) as http, asyncio.timeout(PATIENCE_SECONDS):
            target = target_of(server.url())
            for number in range(1, 4):
                was_sent.clear()
                assert await whole(http, target) == BODY[:size]
                may_send.set()
                assert was_sent.wait(PATIENCE_SECONDS)
                may_send.clear()
                assert server.connections == number
            assert runtime.statistics()["transport_stale_connections"] == 0


async def test_a_connection_that_says_nothing_is_kept(security: Any) -> None:
    """However often it is taken."""
    context, options = security

    def handle(served: socket.socket) -> None:
        while next_request(served):
            served.sendall(reply(BODY[:100]))

    with BlockingServer(handle, context) as server:
        async with client_of(**options) as http, asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(50):
                assert await whole(http, target_of(server.url())) == BODY[:100]
            assert server.connections == 1
