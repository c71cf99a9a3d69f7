"""TLS: certificates are checked, a bundle of one's own is trusted, and a failure is the user's to mend."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aioprefetch import errors
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http import Http
from tests.stores.certificates import self_signed
from tests.unit.services.http.reading import Servers, read

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    return self_signed(tmp_path_factory.mktemp("tls"), "127.0.0.1", days=1)


@asynccontextmanager
async def tls_server(certificate: Path, response: bytes = ANSWER) -> AsyncIterator[str]:
    """A server that gives every request one response; its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def test_a_bundle_of_ones_own_is_trusted(certificate: Path, runtime: Runtime) -> None:
    async with tls_server(certificate) as address:
        accessor = Http(f"https://{address}/", ca_bundle=certificate, proxies={}).build(runtime)
        assert await read(accessor) == b"ok"
        await runtime.aclose()


async def test_an_unknown_authority_is_refused(certificate: Path, runtime: Runtime) -> None:
    """Permanently: no other attempt, and no attempt without TLS."""
    async with tls_server(certificate) as address:
        with pytest.raises(errors.ConfigInvalid, match="ca_bundle") as caught:
            await read(Http(f"https://{address}/", proxies={}).build(runtime))
        assert (caught.value.status, caught.value.operation, caught.value.path) == ("permanent", "read", "k")


async def test_a_certificate_for_another_host_is_refused(certificate: Path, runtime: Runtime) -> None:
    async with tls_server(certificate) as address:
        url = f"https://{address.replace('127.0.0.1', 'localhost')}/"
        with pytest.raises(errors.ConfigInvalid, match="certificate"):
            await read(Http(url, ca_bundle=certificate, proxies={}).build(runtime))


async def test_a_server_without_tls_is_a_wrong_option(servers: Servers, runtime: Runtime) -> None:
    """https where the server speaks http."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(errors.ConfigInvalid, match="scheme and port"):
            await read(Http(url, proxies={}).build(runtime))
    finally:
        server.close()
        await server.wait_closed()


async def test_a_redirect_to_plain_http_is_refused(certificate: Path, servers: Servers, runtime: Runtime) -> None:
    plain = await servers.start()
    response = f"HTTP/1.1 302 Found\r\nLocation: {plain.url}/base/k\r\nContent-Length: 0\r\n\r\n".encode()
    async with tls_server(certificate, response) as address:
        accessor = Http(f"https://{address}/", ca_bundle=certificate, proxies={}).build(runtime)
        with pytest.raises(errors.RedirectRefused, match="unprotected"):
            await read(accessor)
        assert plain.requests == []
        await runtime.aclose()


@pytest.mark.parametrize("content", [None, b"no certificate"])
async def test_a_bundle_that_cannot_be_read(tmp_path: Path, runtime: Runtime, content: bytes | None) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_bytes(content)
    with pytest.raises(errors.ConfigInvalid, match="ca_bundle") as caught:
        await read(Http("https://127.0.0.1:1/", ca_bundle=bundle, proxies={}).build(runtime))
    assert str(bundle) in str(caught.value)
