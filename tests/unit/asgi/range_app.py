"""An application that serves ranges, over an object in memory, and clients of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

import aioprefetch as ap
from aioprefetch.testing import FaultLayer, Injection, content
from aioprefetch.values import Metadata

DATA = content(100_000)


@asynccontextmanager
async def client_of(op: ap.Operator, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, in this process."""
    transport = httpx.ASGITransport(ap.asgi.RangeApp(op, **options))
    async with httpx.AsyncClient(transport=transport, base_url="http://service/") as client:
        yield client


@asynccontextmanager
async def served(
    plan: tuple[Injection, ...] = (), data: bytes = DATA, **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, ap.Operator, Metadata]]:
    """A client, the operator under the application, and the metadata of the only object, ``dir/a b.bin``."""
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("dir/a b.bin", data)
        metadata = await op.stat("dir/a b.bin")
        async with client_of(op.layer(FaultLayer(plan)), **options) as client:
            yield client, op, metadata


PATH = "/dir/a%20b.bin"


async def never() -> Any:
    """A client that stays."""
    await asyncio.get_running_loop().create_future()


def collector(sent: list[Any]) -> Any:
    async def send(message: Any) -> None:
        sent.append(message)

    return send
