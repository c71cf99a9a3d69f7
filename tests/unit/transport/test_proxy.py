"""Proxies: http in the absolute form, https through a tunnel, and proxies that refuse, hang, or talk nonsense."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConfigInvalid, Error, PermissionDenied, ProtocolError, TimedOut, Unavailable, Unsupported
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http import Http
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.transport.origin import Origin, Proxy, Target
from aioprefetch.transport.pool import HttpClient
from aioprefetch.values import ReadRequest
from tests.profile import each_of
from tests.stores.certificates import Authority
from tests.stores.raw_server import PATIENCE_SECONDS, client_of, get
from tests.stores.tls_servers import Serve, get_with_pauses, ok, serving, target_of

Way = Callable[[HttpClient, Target], Awaitable[bytes]]

CANARY = "canary-4be2"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
LARGE = bytes(range(256)) * (1 << 14)  # 4 MiB


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority for one test."""
    return Authority(tmp_path)


# For proxies that hang, and long enough for a busy machine to reach them before.
QUICK_SECONDS = 1


class ScriptedProxy:
    """Answers each CONNECT as the script says, and other requests by ``ok``. ``heads`` has what it was asked.

    ``upstream`` is the port to which tunnels lead, whatever they are asked for. ``gone`` is set when a
    client left, at whatever point.
    """

    def __init__(self, response: bytes | None = ESTABLISHED, *, upstream: int = 0, then: str = "tunnel") -> None:
        self.heads: list[tuple[str, Mapping[str, str]]] = []
        self.gone = asyncio.Event()
        self.asked = asyncio.Event()
        self._response = response
        self.upstream = upstream
        self._then = then

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            await self._serve(reader, writer)
        finally:
            self.gone.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            headers = dict(field.lower().split(": ", 1)[:1] + field.split(": ", 1)[1:] for field in fields)
            self.heads.append((line, headers))
            self.asked.set()
            if line.startswith("CONNECT "):
                break
            writer.write(ok(line.encode()))
        if self._response is not None:
            writer.write(self._response)
            await writer.drain()
        if self._then == "tunnel":
            await self._tunnel(reader, writer)
        elif self._then == "hang":
            with contextlib.suppress(OSError):
                while await reader.read(1000):
                    pass

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, up_writer))
                group.create_task(_copy(up_reader, writer))
        finally:
            up_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()


def proxy_at(port: int, authorization: str = "", scheme: str = "http") -> Proxy:
    """The proxy on loopback."""
    return Proxy(Origin(scheme, "127.0.0.1", port), authorization)


@asynccontextmanager
async def behind(
    authority: Authority, serve: Serve, proxy: ScriptedProxy | None = None
) -> AsyncIterator[ScriptedProxy]:
    """A proxy that leads to a TLS server with a certificate for ``inner.example``."""
    async with serving(serve, ssl=authority.context("inner.example")) as port:
        made = proxy or ScriptedProxy()
        made.upstream = port
        yield made


def log_and_answer(log: list[bytes], *bodies: bytes) -> Serve:
    """Answer the requests of a connection with these bodies."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in bodies:
            log.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(ok(body))
            await writer.drain()
        await reader.read()

    return serve


@each_of("authorization", ["", "Basic dXNlcjpwdw=="])
@each_of("way", [get, get_with_pauses])
async def test_http_goes_in_the_absolute_form(authorization: str, way: Way) -> None:
    """The name of the server is the proxy's to resolve; the connection is kept."""
    proxy = ScriptedProxy()
    async with serving(proxy.serve) as port, client_of() as http:
        for path in ("k?x=1", "other"):
            target = target_of(f"http://nowhere.invalid:81/{path}", proxy_at(port, authorization))
            assert await way(http, target) == f"GET http://nowhere.invalid:81/{path} HTTP/1.1".encode()
        assert http.snapshot().open == 1
    for _, headers in proxy.heads:
        assert headers["host"] == "nowhere.invalid:81"
        assert headers.get("proxy-authorization", "") == authorization


async def test_https_goes_through_a_tunnel(authority: Authority) -> None:
    """Made once for all requests of a connection; the proxy's credentials stay outside of it."""
    log: list[bytes] = []
    async with (
        behind(authority, log_and_answer(log, b"small", LARGE)) as proxy,
        serving(proxy.serve) as port,
        client_of(ca_bundle=str(authority.bundle)) as http,
    ):
        target = target_of("https://inner.example:8443/k", proxy_at(port, f"Basic {CANARY}"))
        assert await get(http, target) == b"small"
        assert await get_with_pauses(http, target) == LARGE
    ((line, headers),) = proxy.heads
    assert line == "CONNECT inner.example:8443 HTTP/1.1"
    assert headers == {"host": "inner.example:8443", "proxy-authorization": f"Basic {CANARY}"}
    assert len(log) == 2
    assert CANARY.encode() not in b"".join(log)
    assert log[0].startswith(b"GET /k HTTP/1.1\r\nHost: inner.example:8443\r\n")


async def test_a_tunnel_to_an_ipv6_address() -> None:
    proxy = ScriptedProxy(b"HTTP/1.1 502 x\r\n\r\n", then="close")
    async with serving(proxy.serve) as port, client_of() as http:
        with pytest.raises(Unavailable):
            await get(http, target_of("https://[::1]:8443/k", proxy_at(port)))
    assert proxy.heads[0][0] == "CONNECT [::1]:8443 HTTP/1.1"


async def test_a_connection_of_one_identity_is_not_used_for_another() -> None:
    """What a proxy let one user do is nothing to another."""
    proxy = ScriptedProxy()
    async with serving(proxy.serve) as port, client_of() as http:
        for user in ("a", "b", "a"):
            await get(http, target_of("http://nowhere.invalid:80/k", proxy_at(port, f"Basic {user}")))
        assert http.snapshot().open == 2


PAGE = b"<html>" + b"x" * 10_000
REFUSALS: list[tuple[bytes, type[Error], str]] = [
    (
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
        PermissionDenied,
        "407: give its user",
    ),
    (b"HTTP/1.1 407 x\r\nContent-Length: 10006\r\n\r\n" + PAGE, PermissionDenied, "407: give its user"),
    (b"HTTP/1.0 407 x\r\n\r\n" + PAGE, PermissionDenied, "407: give its user"),
    (b"HTTP/1.1 403 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", PermissionDenied, "403"),
    (b"HTTP/1.1 502 Bad Gateway\r\n\r\n" + PAGE, Unavailable, "responded 502"),
    (b"HTTP/1.1 302 x\r\nLocation: http://login.example/\r\n\r\n", Unavailable, "responded 302"),
    (b"HTTP/1.1 100 Continue\r\n\r\n", Unavailable, "responded 100"),
    (b"", Unavailable, "closed the connection"),
    (b"HTTP/1.1 200 OK\r\nX-Half: ", Unavailable, "closed the connection"),
    (ESTABLISHED + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", ProtocolError, "more than a head"),
    (ESTABLISHED + b"\x16\x03\x03", ProtocolError, "more than a head"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", ProtocolError, "not valid HTTP"),
    (b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n", ProtocolError, "not valid HTTP"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (80 << 10), ProtocolError, "endless response"),
]


@each_of(("response", "kind", "words"), REFUSALS)
async def test_no_tunnel(response: bytes, kind: type[Error], words: str) -> None:
    """No request goes out, the connection is closed, and the error has no secret."""
    proxy = ScriptedProxy(response, then="close")
    async with serving(proxy.serve) as port, client_of() as http:
        target = target_of(f"https://inner.example:443/k?{CANARY}", proxy_at(port, f"Basic {CANARY}"))
        for way in (get, get_with_pauses):
            with pytest.raises(kind, match=re.escape(words)) as caught:
                await way(http, target)
            assert type(caught.value) is kind
            assert CANARY not in repr(caught.value) + repr(vars(caught.value)) + repr(target.route)
        assert http.snapshot().open == 0
    assert len(proxy.heads) == 2


@each_of("response", [None, b"HTTP/1.1 200 OK\r\nX-Half: ", ESTABLISHED], at_once=True)
async def test_a_proxy_that_hangs(response: bytes | None) -> None:
    """Within the time for a connection it is given up, wherever it hangs."""
    proxy = ScriptedProxy(response, then="hang")
    async with serving(proxy.serve) as port, client_of(connect_timeout_seconds=QUICK_SECONDS) as http:
        with pytest.raises(TimedOut, match="connect_timeout_seconds"):
            await get(http, target_of("https://inner.example:443/k", proxy_at(port)))
        assert http.snapshot().open == 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            await proxy.gone.wait()


async def test_a_tunnel_that_is_cancelled_closes_its_socket() -> None:
    proxy = ScriptedProxy(None, then="hang")
    async with serving(proxy.serve) as port, client_of() as http:
        task = asyncio.ensure_future(get(http, target_of("https://inner.example:443/k", proxy_at(port))))
        await proxy.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert http.snapshot().open == 0
        await proxy.gone.wait()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_refuses_connections(scheme: str) -> None:
    async with serving(ScriptedProxy().serve) as port:
        pass
    async with client_of() as http:
        with pytest.raises(Unavailable, match=f"no connection to the proxy http://127.0.0.1:{port} .ECONNREFUSED"):
            await get(http, target_of(f"{scheme}://inner.example:443/k", proxy_at(port)))


async def test_a_certificate_behind_a_proxy_is_the_servers(authority: Authority) -> None:
    """And it is what the error speaks of."""
    async with behind(authority, log_and_answer([])) as proxy, serving(proxy.serve) as port:
        for host, bundle in (("inner.example", None), ("outer.example", str(authority.bundle))):
            async with client_of(ca_bundle=bundle) as http:
                with pytest.raises(ConfigInvalid, match=f"certificate of https://{host} is not trusted"):
                    await get(http, target_of(f"https://{host}:443/k", proxy_at(port)))


async def test_a_proxy_over_tls(authority: Authority) -> None:
    """For http; TLS within TLS is refused before anything is sent."""
    proxy = ScriptedProxy()
    async with serving(proxy.serve, ssl=authority.context("127.0.0.1")) as port:
        async with client_of(ca_bundle=str(authority.bundle)) as http:
            target = target_of("http://nowhere.invalid:80/k", proxy_at(port, "Basic x", "https"))
            assert await get(http, target) == b"GET http://nowhere.invalid/k HTTP/1.1"
            with pytest.raises(Unsupported, match="TLS within TLS"):
                await get(http, target_of("https://inner.example:443/k", proxy_at(port, "Basic x", "https")))
        async with client_of() as http:
            with pytest.raises(ConfigInvalid, match=f"certificate of the proxy https://127.0.0.1:{port} is not"):
                await get(http, target)
    assert len(proxy.heads) == 1


# --- as the http service uses them -------------------------------------------------------------------------------


async def read(recipe: Http) -> bytes:
    """The object ``k``, read by the service."""
    runtime = Runtime(RuntimeOptions())
    try:
        sink = CollectSink()
        await recipe.build(runtime).read(ReadRequest(path="k"), sink)
        return sink.to_bytes()
    finally:
        await runtime.aclose()


@pytest.mark.parametrize("ambient", [False, True])
async def test_the_service_through_a_tunnel(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, ambient: bool
) -> None:
    """By an option or by the environment; our own credentials are for the server alone, the proxy's for the proxy."""
    log: list[bytes] = []
    async with behind(authority, log_and_answer(log, b"found")) as proxy, serving(proxy.serve) as port:
        url = f"http://us%40er:p%3Aw@127.0.0.1:{port}"
        monkeypatch.setenv("https_proxy", url if ambient else "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "other.example")
        proxies = None if ambient else {"https": url}
        recipe = Http("https://inner.example/", proxies=proxies, ca_bundle=authority.bundle, auth=CANARY)
        assert await read(recipe) == b"found"
    ((line, headers),) = proxy.heads
    assert (line, headers["proxy-authorization"]) == ("CONNECT inner.example:443 HTTP/1.1", "Basic dXNAZXI6cDp3")
    assert CANARY not in repr(headers)
    assert f"Authorization: Bearer {CANARY}".encode() in log[0]
    assert b"Proxy-Authorization" not in log[0]


async def test_a_server_that_is_excepted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """By NO_PROXY, which counts for the environment's proxies alone."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    async with serving(log_and_answer([], b"found"), ssl=authority.context("127.0.0.1")) as port:
        url = f"https://127.0.0.1:{port}/"
        assert await read(Http(url, ca_bundle=authority.bundle)) == b"found"
        with pytest.raises(Unavailable, match="the proxy") as caught:
            await read(Http(url, ca_bundle=authority.bundle, proxies={"https": "http://127.0.0.1:1"}))
        assert (caught.value.operation, caught.value.path) == ("read", "k")


@checks("reliability:K11")
@pytest.mark.parametrize(
    "url", [f"socks5://{CANARY}@127.0.0.1:1", f"http://{CANARY}:x", f"http://u:{CANARY}#@h:1", "//"]
)
async def test_an_environment_that_names_no_proxy(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """It is not shown: there may be a password in it."""
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ConfigInvalid, match="not a URL like") as caught:
        await read(Http("http://inner.example/"))
    assert CANARY not in repr(caught.value)
