"""The fault server over TLS: as large as over TCP, to any client."""

import asyncio
import ssl
from pathlib import Path

import pytest

from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.oracle import content
from tests.stores.certificates import Authority

DATA = content(6_000_000)


@pytest.mark.parametrize(
    "fault", [Fault(), Fault(chunked=True), Fault(close_after_reply=True)], ids=["kept", "chunked", "closed"]
)
async def test_bodies_of_any_size_arrive(tmp_path: Path, fault: Fault) -> None:
    """On one connection after the other, and on one that is kept."""
    authority = Authority(tmp_path)
    trusted = ssl.create_default_context(cafile=str(authority.bundle))
    objects = {"b/k": DATA}
    async with (
        asyncio.timeout(20),
        FaultServer(objects, [Rule(fault=fault, times=None)], tls=authority.context("127.0.0.1")) as server,
    ):
        for size in (10, 70_000, 300_000, len(DATA)):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusted)
            for _ in range(1 if fault.close_after_reply else 2):
                writer.write(b"GET /b/k HTTP/1.1\r\nHost: x\r\nRange: bytes=0-%d\r\n\r\n" % (size - 1))
                await reader.readuntil(b"\r\n\r\n")
                assert await body_of(reader, size, is_chunked=fault.chunked) == DATA[:size]
            writer.close()
            await writer.wait_closed()


async def body_of(reader: asyncio.StreamReader, size: int, *, is_chunked: bool) -> bytes:
    """One body, by its length or its chunks."""
    if not is_chunked:
        return await reader.readexactly(size)
    body = b""
    while count := int(await reader.readline(), 16):
        body += (await reader.readexactly(count + 2))[:-2]
    await reader.readline()
    return body
