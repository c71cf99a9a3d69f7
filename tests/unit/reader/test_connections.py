"""Readers in turn keep one connection: what they leave of a response is drained, or they ask for no more.

Where more than that is left, the response is broken off, and its connection goes with it.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.blocks import fetch
from aioprefetch.operator.operator import Operator
from aioprefetch.testing import FaultServer
from aioprefetch.testing.oracle import content
from aioprefetch.transport import pool
from tests.profile import chosen
from tests.stores.certificates import Authority

READERS = chosen(quick=16, full=200)
LARGE = 12 << 20
BLOCK_BYTES = 8 << 20
DRAIN_BYTES = 1 << 20


@pytest.fixture(params=["plain", "tls"])
def authority(request: pytest.FixtureRequest, tmp_path: Path) -> Authority | None:
    """Who signs the certificate of the server, if it has one."""
    return Authority(tmp_path) if request.param == "tls" else None


@asynccontextmanager
async def served(
    data: bytes, readers: int, authority: Authority | None, **options: Any
) -> AsyncIterator[tuple[FaultServer, Operator]]:
    """A server with an object for each reader, and an operator for it."""
    tls: ssl.SSLContext | None = None
    trust: dict[str, Any] = {}
    if authority is not None:
        tls, trust = authority.context("127.0.0.1"), {"ca_bundle": str(authority.bundle)}
    async with (
        FaultServer({f"k{number}": data for number in range(readers)}, tls=tls) as server,
        Operator.from_uri(server.url, **trust, **options) as operator,
    ):
        yield server, operator


async def read_a_little(operator: Operator, data: bytes, readers: int, *, tasks: int = 1, **options: Any) -> None:
    """``readers`` open an object each, read 500 bytes and close, in ``tasks`` tasks."""
    numbers = iter(range(readers))

    async def work() -> None:
        for number in numbers:
            async with operator.reader(f"k{number}", **options) as reader:
                assert await reader.read_at(0, 500) == data[:500]

    await asyncio.gather(*(work() for _ in range(tasks)))


@pytest.mark.parametrize("tasks", [1, 8])
@pytest.mark.parametrize(
    ("size", "options"),
    [
        (2048, {}),
        (30_000, {}),
        (300_000, {}),
        (LARGE, {"policy": "random"}),
        (LARGE, {"split": (0, 500)}),
        (LARGE, {"size": 500}),
    ],
    ids=["2 KiB", "30 KB", "300 KB", "random", "split", "declared"],
)
async def test_readers_in_turn_need_one_connection_for_each_task(
    authority: Authority | None, size: int, options: dict[str, Any], tasks: int
) -> None:
    data = content(size)
    async with served(data, READERS, authority) as (server, operator):
        await read_a_little(operator, data, READERS, tasks=tasks, **options)
        assert server.connections <= tasks
        assert len(server.requests) == READERS
        assert operator.statistics["stream_aborted"] == 0
        if size == LARGE:
            assert server.bytes_sent == READERS * 500


@pytest.mark.parametrize(
    ("size", "options", "request_bytes"),
    [(2 << 20, {}, 2 << 20), (LARGE, {"block_bytes": DRAIN_BYTES}, DRAIN_BYTES)],
    ids=["an object of at most a block", "blocks of 1 MiB"],
)
async def test_a_rest_that_is_drained_is_sent_whole_over_one_connection(
    authority: Authority | None,
    size: int,
    options: dict[str, Any],
    request_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of an object of at most a block, and up to 1 MiB of a larger one."""
    for module, name in ((fetch, "DRAIN_SECONDS_MAX"), (pool, "ENDING_SECONDS_MAX")):
        monkeypatch.setattr(module, name, 60.0)  # On a busy machine 2 MiB take long.
    data = content(size)
    async with served(data, READERS, authority) as (server, operator):
        await read_a_little(operator, data, READERS, **options)
        await server.wait_until_quiet()
        assert server.connections == 1
        assert len(server.requests) == READERS
        assert server.bytes_sent == READERS * request_bytes
        assert operator.statistics["stream_aborted"] == 0


async def test_a_larger_rest_is_broken_off_with_its_connection(authority: Authority | None) -> None:
    """500 bytes of 64 MiB: each reader asks for a block, and the server sends no more of it than is on its way."""
    data = content(1 << 20) * 64
    async with served(data, READERS, authority) as (server, operator):
        await read_a_little(operator, data, READERS)
        assert {request.range for request in server.requests} == {f"bytes=0-{BLOCK_BYTES - 1}"}
        assert len(server.requests) == server.connections == READERS
        assert operator.statistics["stream_aborted"] == READERS
        assert operator.statistics["stream_drained"] == 0
        assert operator.statistics["stream_read_bytes"] == READERS * 500
        await server.wait_until_idle()
        assert server.bytes_sent < READERS * BLOCK_BYTES


async def test_without_draining_every_rest_costs_its_connection(authority: Authority | None) -> None:
    data = content(LARGE)
    async with served(data, 1, authority, drain_bytes=0) as (server, operator):
        await read_a_little(operator, data, 1)
        assert operator.statistics["stream_aborted"] == 1
        assert operator.statistics["stream_drained"] == 0
        assert await operator.read("k0", offset=0, size=10) == data[:10]
        assert server.connections == 2
