"""`RangeApp` under uvicorn, and mounted in FastAPI: real sockets, clients that are slow or leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

import aioprefetch as ap
from aioprefetch.testing import FaultServer, content

MIB = 1 << 20
DATA = content(48 * MIB)


@asynccontextmanager
async def under_uvicorn(app: Any) -> AsyncIterator[str]:
    """The URL of a server of an application, on this loop."""
    config = uvicorn.Config(app, port=0, log_level="critical", ws="none", lifespan="on", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def store() -> AsyncIterator[FaultServer]:
    async with FaultServer({"big.bin": DATA, "bucket/big.bin": DATA}) as server:
        yield server


@pytest.mark.parametrize("scheme", ["http", "s3"])
async def test_ranges_of_a_store_through_two_servers(store: FaultServer, scheme: str) -> None:
    """Twenty small ranges move about their bytes, over one connection to the store; then all of it."""
    keys = {"access_key_id": store.access_key_id, "secret_access_key": store.secret_access_key}
    s3: dict[str, Any] = {"endpoint_url": store.url, "region": store.region, **keys}
    async with (
        ap.Operator.from_uri("s3://bucket", **s3) if scheme == "s3" else ap.Operator.from_uri(store.url) as op,
        under_uvicorn(ap.asgi.RangeApp(op)) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        for number in range(20):
            start = number * 2_000_003
            response = await client.get("/big.bin", headers={"Range": f"bytes={start}-{start + 499}"})
            assert (response.status_code, response.content) == (206, DATA[start : start + 500])
        assert (store.connections, store.bytes_sent, len(store.requests)) == (1, 10_000, 20)
        whole = await client.get("/big.bin")
        assert (whole.status_code, whole.content == DATA) == (200, True)
        assert store.bytes_sent == 10_000 + len(DATA)


async def test_a_client_that_reads_slowly_and_leaves(store: FaultServer) -> None:
    """What it does not take is not read from the store, and nothing is after it has left."""
    async with ap.Operator.from_uri(store.url) as op, under_uvicorn(app := ap.asgi.RangeApp(op)) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
        writer.write(b"GET /big.bin HTTP/1.1\r\nHost: here\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        async with httpx.AsyncClient(base_url=url) as other:
            for _ in range(50):  # Others are served meanwhile, and the slow one gets as far as the sockets hold.
                assert (await other.get("/big.bin", headers={"Range": "bytes=-9"})).content == DATA[-9:]
            assert store.bytes_sent < len(DATA) // 2
            writer.transport.abort()
            while app.operator.runtime().budget.used_bytes:  # noqa: ASYNC110 - the server notices it by itself
                await asyncio.sleep(0)
            sent = store.bytes_sent
            assert (await other.get("/big.bin", headers={"Range": "bytes=-9"})).content == DATA[-9:]
            assert store.bytes_sent <= sent + MIB


async def test_a_client_that_takes_nothing_is_sent_away(store: FaultServer) -> None:
    """What the sockets hold is all that it gets, and its connection ends."""
    async with (
        ap.Operator.from_uri(store.url) as op,
        under_uvicorn(app := ap.asgi.RangeApp(op, send_seconds=0.2)) as url,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1 << 12)
        writer.write(b"GET /big.bin HTTP/1.1\r\nHost: here\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert app.operator.runtime().budget.used_bytes > 0
        while app.operator.runtime().budget.used_bytes:  # noqa: ASYNC110 - the server notices it by itself
            await asyncio.sleep(0)
        assert len(await reader.read()) < len(DATA)
        writer.close()


async def test_mounted_in_fastapi(store: FaultServer) -> None:
    async with ap.Operator.from_uri(store.url) as op:
        app = FastAPI()
        app.mount("/objects", ap.asgi.RangeApp(op))
        async with under_uvicorn(app) as url, httpx.AsyncClient(base_url=url) as client:
            response = await client.get("/objects/big.bin", headers={"Range": "bytes=5-9"})
            assert (response.status_code, response.content) == (206, DATA[5:10])
            assert (await client.get("/objects/missing")).status_code == 404
            assert (await client.get("/objects/%2e%2e/objects/big.bin")).status_code == 404
