"""TLS: who the server is gets checked, bodies are exact, and what breaks is a typed error with nothing left open."""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.errors import ConfigInvalid, Error, TimedOut, Unavailable
from aioprefetch.transport import connecting
from aioprefetch.transport.origin import Origin, Proxy, Target
from aioprefetch.transport.pool import HttpClient
from aioprefetch.transport.tls import tls_context
from tests.stores.certificates import Authority
from tests.stores.raw_server import PATIENCE_SECONDS, client_of, get
from tests.stores.tls_servers import Serve, get_with_pauses, ok, serving, target_of
from tests.stores.wire import PausingTaker, Taker

LARGE = bytes(range(256)) * (8 << 12)  # 8 MiB
# For a server that hangs, and long enough for a busy machine to reach it before.
QUICK_SECONDS = 1
LINGER_RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority for one test."""
    return Authority(tmp_path)


def answering(*responses: bytes, log: list[bytes] | None = None) -> Serve:
    """Give the requests of each connection these answers, one after the other, and hang up after the last."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in responses:
            request = await reader.readuntil(b"\r\n\r\n")
            if log is not None:
                log.append(request)
            writer.write(response)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    return serve


@asynccontextmanager
async def over_tls(
    authority: Authority, serve: Serve, name: str = "127.0.0.1"
) -> AsyncIterator[tuple[HttpClient, int]]:
    """A server with a certificate for this name, and a client that trusts its authority."""
    async with serving(serve, ssl=authority.context(name)) as port, client_of(ca_bundle=str(authority.bundle)) as http:
        yield http, port


Way = Callable[[HttpClient, Target], Awaitable[bytes]]


@pytest.mark.parametrize("body", [b"x", bytes(range(256)) * 64, LARGE], ids=["1 B", "16 KiB", "8 MiB"])
@pytest.mark.parametrize("way", [get, get_with_pauses])
async def test_bodies_are_exact(authority: Authority, body: bytes, way: Way) -> None:
    """And the connection serves the next request."""
    connections: list[int] = []
    response = answering(ok(body), ok(body[::-1]))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await response(reader, writer)

    async with over_tls(authority, serve) as (http, port):
        target = target_of(f"https://127.0.0.1:{port}/k")
        assert await way(http, target) == body
        assert await way(http, target) == body[::-1]
    assert len(connections) == 1


async def test_many_at_once(authority: Authority) -> None:
    """Each on a connection of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        writer.write(ok(line * 10_000))
        await writer.drain()
        await reader.read()

    async with over_tls(authority, serve, "localhost") as (http, port):
        targets = [target_of(f"https://localhost:{port}/{number}") for number in range(20)]
        found = await asyncio.gather(*(get(http, target) for target in targets))
        assert found == [f"/{number}".encode() * 10_000 for number in range(20)]


async def refused(http: HttpClient, target: Target, kind: type[Error], match: str) -> Error:
    """The error of a request, in both ways the same."""
    for way in (get, get_with_pauses):
        with pytest.raises(kind, match=match) as caught:
            await way(http, target)
        assert type(caught.value) is kind
    assert http.snapshot().open == 0
    return caught.value


@pytest.mark.parametrize(
    ("names", "days", "trusted", "why"),
    [
        (("127.0.0.1",), 1, False, "ca_bundle"),
        (("localhost", "127.0.0.2"), 1, True, "IP address mismatch"),
        (("127.0.0.1",), -1, True, "expired"),
    ],
    ids=["an unknown authority", "another host", "expired"],
)
async def test_a_certificate_that_proves_nothing(
    authority: Authority, tmp_path: Path, names: tuple[str, ...], days: int, trusted: bool, why: str
) -> None:
    """The error is permanent, and no byte of the request was sent."""
    log: list[bytes] = []
    (tmp_path / "other").mkdir()
    bundle = authority.bundle if trusted else Authority(tmp_path / "other", "another authority").bundle
    context = authority.context(*names, days=days)
    async with serving(answering(ok(b"x"), log=log), ssl=context) as port, client_of(ca_bundle=str(bundle)) as http:
        error = await refused(http, target_of(f"https://127.0.0.1:{port}/k"), ConfigInvalid, why)
        assert not error.is_temporary
        assert f"https://127.0.0.1:{port} is not trusted" in error.message
    assert log == []


async def test_the_systems_authorities_do_not_know_ours(authority: Authority) -> None:
    async with serving(answering(ok(b"x")), ssl=authority.context("127.0.0.1")) as port, client_of() as http:
        await refused(http, target_of(f"https://127.0.0.1:{port}/k"), ConfigInvalid, "ca_bundle")


async def test_a_name_is_checked_as_a_name(authority: Authority) -> None:
    """A certificate for the address does not speak for the name that led there."""
    async with over_tls(authority, answering(ok(b"x"))) as (http, port):
        await refused(http, target_of(f"https://localhost:{port}/k"), ConfigInvalid, "Hostname mismatch")


@pytest.mark.parametrize(
    ("host", "sent"), [("localhost", "localhost"), ("localhost.", "localhost"), ("127.0.0.1", None)]
)
async def test_the_server_gets_the_name_by_sni(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, host: str, sent: str | None
) -> None:
    """By SNI; an address is no name, and the dot at the end is not part of the certificate's name."""
    real, server_names = socket.getaddrinfo, []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **kinds: real("127.0.0.1", *more, **kinds))
    context = authority.context("localhost", "127.0.0.1")
    context.sni_callback = lambda _, name, __: server_names.append(name)
    async with serving(answering(ok(b"x")), ssl=context) as port, client_of(ca_bundle=str(authority.bundle)) as http:
        assert await get(http, target_of(f"https://{host}:{port}/k")) == b"x"
    assert server_names == [sent]


async def test_http_1_1_is_what_is_offered(authority: Authority) -> None:
    """A server that prefers HTTP/2 must not take us for one that speaks it."""
    context = authority.context("127.0.0.1")
    context.set_alpn_protocols(["h2", "http/1.1"])
    chosen: list[str | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chosen.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await answering(ok(b"x"))(reader, writer)

    async with serving(serve, ssl=context) as port, client_of(ca_bundle=str(authority.bundle)) as http:
        assert await get(http, target_of(f"https://127.0.0.1:{port}/k")) == b"x"
    assert chosen == ["http/1.1"]


# --- what breaks before the first byte ---------------------------------------------------------------------------


async def test_a_handshake_that_hangs_has_an_end() -> None:
    """The server accepts, and says nothing."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1000):
                pass
        gone.set()

    async with serving(serve) as port, client_of(connect_timeout_seconds=QUICK_SECONDS) as http:
        with pytest.raises(TimedOut, match="connect_timeout_seconds=1") as caught:
            await get(http, target_of(f"https://127.0.0.1:{port}/k"))
        assert caught.value.is_temporary
        async with asyncio.timeout(PATIENCE_SECONDS):
            await gone.wait()


async def test_a_handshake_that_is_cancelled_closes_its_socket() -> None:
    greeted, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1000):
                greeted.set()
        gone.set()

    async with serving(serve) as port, client_of() as http:
        task = asyncio.ensure_future(get(http, target_of(f"https://127.0.0.1:{port}/k")))
        await greeted.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()
        assert http.snapshot().open == 0


async def test_cancelled_after_any_number_of_turns(authority: Authority) -> None:
    """From before the socket to after the response: nothing stays open."""
    async with serving(answering(ok(b"x" * 100)), ssl=authority.context("127.0.0.1")) as port:
        for turns in range(60):
            async with client_of(ca_bundle=str(authority.bundle)) as http:
                task = asyncio.ensure_future(get(http, target_of(f"https://127.0.0.1:{port}/k")))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})


async def test_a_server_without_tls() -> None:
    """It answers our greeting with what it takes for an error."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with serving(serve) as port, client_of() as http:
        await refused(http, target_of(f"https://127.0.0.1:{port}/k"), ConfigInvalid, "scheme and port")


@pytest.mark.parametrize("reset", [False, True])
async def test_a_server_that_hangs_up_within_the_handshake(reset: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        if reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        writer.transport.abort()

    async with serving(serve) as port, client_of() as http:
        error = await refused(http, target_of(f"https://127.0.0.1:{port}/k"), Unavailable, "no connection to https:")
        assert error.is_temporary


async def test_to_read_the_authorities_has_an_end(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may lie on a disk that does not respond, or wait for a thread."""
    may_go_on = threading.Event()
    real = tls_context

    def hanging(ca_bundle: str | None) -> ssl.SSLContext:
        may_go_on.wait()
        return real(ca_bundle)

    monkeypatch.setattr(connecting, "tls_context", hanging)
    limits: dict[str, Any] = {"connect_timeout_seconds": 1.0, "ca_bundle": str(authority.bundle)}
    async with serving(answering(ok(b"x")), ssl=authority.context("127.0.0.1")) as port, client_of(**limits) as http:
        target = target_of(f"https://127.0.0.1:{port}/k")
        try:
            with pytest.raises(TimedOut, match=r"certificates in ca_bundle .*connect_timeout_seconds=1"):
                await get(http, target)
        finally:
            may_go_on.set()
        assert await get(http, target) == b"x"


@pytest.mark.parametrize("host", [".example.com", "a" * 70 + ".com", "a..b"])
async def test_a_host_that_no_certificate_could_name(host: str) -> None:
    """Behind a proxy, where no other check looks at it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await reader.read()

    async with serving(serve) as port, client_of() as http:
        proxy = Proxy(Origin("http", "127.0.0.1", port))
        error = await refused(
            http, target_of(f"https://{host}:443/k", proxy), ConfigInvalid, "not a valid name for a certif"
        )
        assert not error.is_temporary


# --- what breaks within the body ---------------------------------------------------------------------------------


def cutting(response: bytes, *, reset: bool) -> Serve:
    """Send this and cut the connection below TLS, without the word by which TLS ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.set_write_buffer_limits(0)  # So that ``drain`` returns when all is in the kernel.
        writer.write(response)
        await writer.drain()
        if reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        writer.transport.abort()

    return serve


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("size", [10, 1 << 20])
async def test_a_body_that_breaks_off(authority: Authority, reset: bool, size: int) -> None:
    """What had come before is exact, and the connection is not used again."""
    response = ok(LARGE)[: -len(LARGE) + size]
    async with over_tls(authority, cutting(response, reset=reset)) as (http, port):
        receiver = Taker()
        with pytest.raises(Unavailable, match="in the middle of the body") as caught:
            await http.fetch(target_of(f"https://127.0.0.1:{port}/k"), b"", receiver)
        assert caught.value.is_temporary
        received = receiver.content()
        assert len(received) == size or reset
        assert received == LARGE[: len(received)]
        with pytest.raises(Unavailable):
            await get_with_pauses(http, target_of(f"https://127.0.0.1:{port}/k"))
        assert http.snapshot().open == 0


async def test_a_body_that_ends_with_the_connection(authority: Authority) -> None:
    async with (
        serving(answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 50_000), ssl=authority.context("127.0.0.1")) as port,
        client_of(ca_bundle=str(authority.bundle)) as http,
    ):
        assert await get_with_pauses(http, target_of(f"https://127.0.0.1:{port}/k")) == b"x" * 50_000


async def test_a_chunked_body(authority: Authority) -> None:
    chunks = b"".join(b"4e20\r\n%b\r\n" % (b"x" * 20_000) for _ in range(50))
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with over_tls(authority, answering(response, ok(b"next"))) as (http, port):
        target = target_of(f"https://127.0.0.1:{port}/k")
        assert await get_with_pauses(http, target) == b"x" * 1_000_000
        assert await get(http, target) == b"next"


@pytest.mark.parametrize("size", [10, 100_000])
async def test_what_follows_a_body_is_no_response(authority: Authority, size: int) -> None:
    """A response without a request is not taken for that of the next request."""
    forged = ok(b"forged")
    async with over_tls(authority, answering(ok(b"x" * size) + forged)) as (http, port):
        target = target_of(f"https://127.0.0.1:{port}/k")
        for _ in range(3):
            assert await get(http, target) == b"x" * size


async def test_a_connection_that_the_server_closed_is_replaced(authority: Authority) -> None:
    """Without anybody's noticing."""
    async with over_tls(authority, answering(ok(b"x"))) as (http, port):
        for _ in range(5):
            assert await get(http, target_of(f"https://127.0.0.1:{port}/k")) == b"x"


async def test_a_receiver_that_pauses_gets_exactly_the_body(authority: Authority) -> None:
    async with over_tls(authority, answering(ok(LARGE), ok(b"next"))) as (http, port):
        target = target_of(f"https://127.0.0.1:{port}/k")
        taker = PausingTaker(50_000, resumes_after=50)
        await http.fetch(target, b"", taker)
        assert taker.content() == LARGE
        assert taker.pauses > 1
        assert await get(http, target) == b"next"
