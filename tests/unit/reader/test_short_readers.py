"""Readers that read a little and close: what they asked for arrives, and their connection serves the next one."""

from typing import Any

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.testing import FaultServer
from aioprefetch.testing.oracle import content


@pytest.mark.parametrize(
    "options",
    [{"policy": "random"}, {"prefetch_enabled": False}, {"split": (0, 500)}, {}],
    ids=["random", "plain", "split", "small object"],
)
async def test_short_readers_keep_their_connection(options: dict[str, Any]) -> None:
    """Each opens, reads 500 bytes and closes: what has arrived by then, or nearly, is not broken off."""
    data = content(30_000 if not options else 20 << 20)
    async with (
        FaultServer({"k": data}) as server,
        Operator.from_uri(server.url, block_bytes=4 << 20) as operator,
    ):
        for _ in range(20):
            async with operator.reader("k", **options) as reader:
                assert await reader.read_at(0, 500) == data[:500]
        assert operator.statistics["stream_aborted"] == 0
        # The rest of the small object may still be on its way on the first one when the next request is sent.
        assert server.connections <= (1 if options else 2)
        assert server.bytes_sent <= max(20 * 500, 30_000 if not options else 0)


async def test_a_short_reader_of_a_large_block_breaks_off_once() -> None:
    """What it got is kept, and those after it only ask whether it is still of the version there is."""
    data = content(64 << 20)
    async with (
        FaultServer({"k": data}) as server,
        Operator.from_uri(server.url, block_bytes=32 << 20, memory_bytes=64 << 20) as operator,
    ):
        for _ in range(20):
            async with operator.reader("k") as reader:
                assert await reader.read_at(0, 500) == data[:500]
        assert server.connections <= 2
        assert len(server.requests) == 20
        assert [request.headers.get("if-none-match") for request in server.requests[1:]].count(None) == 0
