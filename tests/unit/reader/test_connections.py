"""Readers in turn keep one connection: what they leave of a response is drained, or they ask for no more."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.testing import FaultServer
from aioprefetch.testing.oracle import content
from tests.benches.tls_servers import Authority

READERS = 200
LARGE = 12 << 20


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("tasks", [1, 16])
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
    tmp_path: Path, size: int, options: dict[str, Any], tasks: int, secured: bool
) -> None:
    authority = Authority(tmp_path) if secured else None
    data = content(size)
    numbers = iter(range(READERS))
    trust = {} if authority is None else {"ca_bundle": str(authority.bundle)}
    async with (
        FaultServer(
            {f"k{n}": data for n in range(READERS)}, tls=None if authority is None else authority.context("127.0.0.1")
        ) as server,
        Operator.from_uri(server.url, **trust) as operator,
    ):

        async def work() -> None:
            for number in numbers:
                async with operator.reader(f"k{number}", **options) as reader:
                    assert await reader.read_at(0, 500) == data[:500]

        await asyncio.gather(*(work() for _ in range(tasks)))
        assert server.connections <= tasks
        assert len(server.requests) == READERS
        assert operator.statistics["stream_aborted"] == 0
        if size == LARGE:
            assert server.bytes_sent == READERS * 500


async def test_a_large_rest_costs_its_connection_and_is_not_received() -> None:
    data = content(LARGE)
    async with FaultServer({"k": data}) as server, Operator.from_uri(server.url, drain_bytes=0) as operator:
        async with operator.reader("k") as reader:
            assert await reader.read_at(0, 500) == data[:500]
        assert operator.statistics["stream_aborted"] == 1
        assert operator.statistics["stream_drained"] == 0
        assert await operator.read("k", offset=0, size=10) == data[:10]
        assert server.connections == 2
