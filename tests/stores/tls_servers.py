"""Certificates and TLS servers of our own, and short ways to send a request to one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport.connection import Connection
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Origin, Proxy, Target
from aioprefetch.transport.pool import HttpClient
from aioprefetch.transport.responses import ResponseHead
from tests.stores.wire import PausingTaker

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


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
