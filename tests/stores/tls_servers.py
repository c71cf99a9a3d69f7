"""Certificates and TLS servers of our own, and short ways to send a request to one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aioprefetch.transport.origin import Origin, Proxy, Target
from aioprefetch.transport.pool import HttpClient
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


def target_of(url: str, proxy: Proxy | None = None, **options: Any) -> Target:
    """What a GET asks for, from ``scheme://host:port/path``."""
    scheme, _, rest = url.partition("://")
    netloc, _, path = rest.partition("/")
    host, _, port = netloc.rpartition(":")
    return Target(Origin(scheme, host.strip("[]"), int(port)), f"/{path}", proxy=proxy, **options)


async def get_with_pauses(client: HttpClient, target: Target, fields: bytes = b"") -> bytes:
    """The body of a response, whose receiver pauses the connection again and again."""
    taker = PausingTaker(50_000)
    await client.fetch(target, fields, taker)
    return taker.content()


def ok(body: bytes, *more: str) -> bytes:
    """A response with this body."""
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *more, "", ""]).encode() + body
