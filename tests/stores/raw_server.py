"""A server that does on each connection what a test says, to the byte; and a client against it."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, Self

from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Origin, Target
from aioprefetch.transport.pool import HttpClient
from tests.stores.wire import Taker

LINGER_RESET = struct.pack("ii", 1, 0)
PATIENCE_SECONDS = 10.0


class Peer:
    """The server's end of one connection. ``number`` counts connections, ``requests`` what came on this one."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.requests: list[bytes] = []
        self._reader = reader
        self._writer = writer

    async def request(self) -> bytes | None:
        """The next request, or ``None`` when the client has hung up."""
        try:
            request = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.requests.append(request)
        return request

    async def send(self, data: bytes) -> None:
        """Give bytes to the kernel, as far as it takes them."""
        self._writer.write(data)
        await self._writer.drain()

    def send_now(self, data: bytes) -> None:
        """Give a few bytes to the kernel without a turn of the loop."""
        os.write(self._writer.get_extra_info("socket").fileno(), data)

    def reset(self) -> None:
        """Hang up with RST."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has hung up."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(1 << 16):
                pass


Handler = Callable[[Peer], Awaitable[None]]


class RawServer:
    """Runs ``handle`` for each connection, which is closed when that returns."""

    def __init__(self, handle: Handler) -> None:
        self.peers: list[Peer] = []
        self.open = 0
        self.open_max = 0
        self._handle = handle
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def origin(self) -> Origin:
        """Where it listens."""
        assert self._server is not None
        return Origin("http", "127.0.0.1", self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many connections were opened."""
        return len(self.peers)

    @property
    def requests(self) -> int:
        """How many requests came, on all connections."""
        return sum(len(peer.requests) for peer in self.peers)

    def target(self, path: str = "/k", method: Literal["GET", "HEAD"] = "GET") -> Target:
        """Something to ask for."""
        return Target(self.origin, path, method=method)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(len(self.peers), reader, writer)
        self.peers.append(peer)
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._handle(peer)
        except ConnectionError:
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            self.open -= 1
            self._tasks.discard(task)


def reply(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    """A response with a length."""
    head = b"".join(line + b"\r\n" for line in (b"Content-Length: %d" % len(body), *lines))
    return b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\n" + body


def answering(*replies: bytes) -> Handler:
    """Answer the requests of a connection with these, the last one again and again."""

    async def handle(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(replies[min(len(peer.requests), len(replies)) - 1])

    return handle


@asynccontextmanager
async def client_of(runtime: Runtime | None = None, **options: Any) -> AsyncIterator[HttpClient]:
    """A client of a runtime, by default of one of its own, which is closed with it; no connection is left."""
    runtime = runtime or Runtime(RuntimeOptions())
    client = HttpClient(runtime, ClientOptions(**options))
    try:
        yield client
    finally:
        await runtime.aclose()
        assert client.snapshot().open == 0


async def get(client: HttpClient, target: Target, fields: bytes = b"") -> bytes:
    """A whole body."""
    taker = Taker()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await client.fetch(target, fields, taker)
    return taker.content()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is so. It must come about by what is on its way already."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is looked at here sets no event
            await asyncio.sleep(0)
