"""Certificates and TLS servers of our own, and short ways to send a request to one."""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport import ClientOptions, Connection, HttpClient, Origin, Proxy, ResponseHead, Target
from tests.stores.certificates import key_usage
from tests.stores.wire import PausingTaker

PEM = serialization.Encoding.PEM
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Authority:
    """Signs certificates; its own is at ``bundle``."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        own = (
            self._builder(self._name, self._key, days=1)
            .add_extension(constraints, critical=True)
            .add_extension(key_usage(signs_certificates=True), critical=True)
        )
        self.bundle = directory / "authority.pem"
        self.bundle.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=10))
            .not_valid_after(now + dt.timedelta(days=days))
            # From Python 3.13 on these are needed.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def context(self, *names: str, days: int = 1) -> ssl.SSLContext:
        """A server's context with a certificate for these names; it ended already for negative ``days``."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
        made = (
            self._builder(subject, key, days=days)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self._directory / "server.pem"
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path.write_bytes(private + made.public_bytes(PEM))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(path)
        return context


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@asynccontextmanager
async def serving(serve: Serve, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[int]:
    """A server that calls ``serve`` for each connection; its port. At the end they are all cut."""
    tasks: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(guarded, host, 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        # Handshakes that their clients have broken off end by themselves, as soon as the loop has noticed.
        tasks |= {one for one in asyncio.all_tasks() if "_accept_connection" in getattr(one.get_coro(), "__name__", "")}
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()


@asynccontextmanager
async def client(runtime: Runtime | None = None, **options: Any) -> AsyncIterator[HttpClient]:
    """A client of a runtime, by default of one of its own, which is closed with it; no connection is left."""
    runtime = runtime or Runtime(RuntimeOptions())
    made = HttpClient(runtime, ClientOptions(**options))
    try:
        yield made
    finally:
        await runtime.aclose()
        assert made.snapshot().open == 0


def target_of(url: str, proxy: Proxy | None = None, **options: Any) -> Target:
    """What a GET asks for, from ``scheme://host:port/path``."""
    scheme, _, rest = url.partition("://")
    netloc, _, path = rest.partition("/")
    host, _, port = netloc.rpartition(":")
    return Target(Origin(scheme, host.strip("[]"), int(port)), f"/{path}", proxy=proxy, **options)


class Collected:
    """The receiver of one response with a length, in memory of its own."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.received = 0
        self.head: ResponseHead | None = None

    def begin(self, head: ResponseHead, connection: Connection) -> "Collected":
        self.head = head
        self.data = bytearray(head.length or 0)
        return self

    def writable(self) -> memoryview:
        return memoryview(self.data)[self.received :]

    def advance(self, count: int) -> None:
        self.received += count

    def feed(self, chunk: memoryview) -> int:
        self.data[self.received : self.received + len(chunk)] = chunk
        self.received += len(chunk)
        return len(chunk)


async def get(client: HttpClient, target: Target, fields: bytes = b"") -> bytes:
    """The body of a response, received in place."""
    response = Collected()
    await client.fetch(target, fields, response)
    assert response.received == len(response.data)
    return bytes(response.data)


async def get_with_pauses(client: HttpClient, target: Target, fields: bytes = b"") -> bytes:
    """The body of a response, whose receiver pauses the connection again and again."""
    taker = PausingTaker(50_000)
    await client.fetch(target, fields, taker)
    return taker.content()


def ok(body: bytes, *more: str) -> bytes:
    """A response with this body."""
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *more, "", ""]).encode() + body


def self_signed(folder: Path, address: str, *, days: int) -> Path:
    """A certificate for an address that ends after ``days``, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=10))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path
