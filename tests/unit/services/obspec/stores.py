"""Stores of obstore's against a server of the test's that stands for a cloud."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from obstore.store import AzureStore, GCSStore, S3Store

SECRET = "do-not-tell-this-key"

Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def s3_store(port: int, **options: Any) -> S3Store:
    """An S3 store of obstore's at a port of this machine."""
    return S3Store(
        "bucket",
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="an-id",
        secret_access_key=SECRET,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
        **options,
    )


def azure_store(port: int) -> AzureStore:
    """A container of Azure's at a port of this machine, with a shared access signature."""
    return AzureStore(
        "container",
        account_name="account",
        sas_key=f"sv=2026&sig={SECRET}",
        endpoint=f"http://127.0.0.1:{port}",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def gcs_store(port: int) -> GCSStore:
    """A bucket of Google's at a port of this machine, without credentials."""
    return GCSStore(
        "bucket",
        config={"base_url": f"http://127.0.0.1:{port}", "skip_signature": True},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """A server that gives the head of each request to `handler`; its port. Handlers end with the block."""
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await handler(head, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tuple(tasks))


def response(status: str, body: bytes = b"", **headers: str) -> bytes:
    """A response of HTTP; underscores in the names of headers stand for dashes."""
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    if "Content_Length" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
