"""A bench with a disk tier: the gated store below it, and block files whose system calls may fail."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.blocks.disk_tier import LOOK_SECONDS, TOUCH_SECONDS, DiskTier
from aioprefetch.cache.directory import SystemCalls
from aioprefetch.cache.entry import EntryKey
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.options import DiskCache
from tests.stores.failing_disk import StillCalls, until
from tests.stores.gated_reader import KIB, Bench, bench, file_of

BLOCK = 64 * KIB
READ_TIMEOUT_SECONDS = 20.0
# A busy machine is no disk that hangs: what a test does not say itself is far away.
OPTIONS: dict[str, Any] = {
    "cool_down_seconds": 1000.0,
    "read_timeout_seconds": READ_TIMEOUT_SECONDS,
    "write": "evicted",
}


def tier_of(b: Bench) -> DiskTier:
    """The live disk tier."""
    tier = b.runtime.peek("disk_tier")
    assert isinstance(tier, DiskTier)
    return tier


@asynccontextmanager
async def disk_bench(
    path: Path,
    *,
    blocks: int = 8,
    memory_blocks: int = 2,
    calls: SystemCalls | None = None,
    look_seconds: float = LOOK_SECONDS,
    touch_seconds: float = TOUCH_SECONDS,
    disk: dict[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[Bench]:
    """A bench whose object "k" has ``blocks`` blocks and whose memory holds fewer; its disk is used from the start."""
    options = DiskCache(path, **{**OPTIONS, **(disk or {})})
    more = {"block_bytes": BLOCK, "prefetch_blocks": 0, "memory_bytes": memory_blocks * BLOCK, **more}
    async with bench(blocks * BLOCK, disk_cache=options, **more) as b:

        def make_tier() -> DiskTier:
            times = {"look_seconds": look_seconds, "touch_seconds": touch_seconds}
            return DiskTier(b.runtime, options, calls or StillCalls(), **times)

        tier = b.runtime.shared("disk_tier", make_tier)
        await until(lambda: tier.cache.looked or b.runtime.statistics()["stream_file_cache_failures"])
        yield b


def reader_of(b: Bench, **options: Any) -> RangeReader:
    """A reader that fills whole blocks and fetches nothing ahead."""
    return b.reader(policy="sequential", **options)


def key_in(b: Bench, reader: RangeReader, index: int) -> EntryKey:
    """The key on the disk of a block of the reader's object."""
    key = tier_of(b).key(file_of(reader), index)
    assert key is not None
    return key


async def read_block(b: Bench, reader: RangeReader, index: int) -> None:
    """Read a block in full and compare it, whatever serves it."""
    assert await reader.read_at(index * BLOCK, BLOCK) == b.data[index * BLOCK : (index + 1) * BLOCK]


async def written(b: Bench) -> None:
    """Wait until nothing is being written any more."""
    await until(lambda: tier_of(b).writer.writing_bytes == 0)


async def on_disk(b: Bench, reader: RangeReader, *indices: int) -> None:
    """Read blocks and then others, until these lie on the disk and not in memory."""
    for index in indices:
        await read_block(b, reader, index)
        await written(b)
    file = file_of(reader)
    others = [index for index in range(file.grid.count) if index not in indices]
    for index in others:
        await read_block(b, reader, index)
        await written(b)
        if not set(indices) & set(file.blocks):
            break
    assert not set(indices) & set(file.blocks)
    assert all(key_in(b, reader, index).name in tier_of(b).cache for index in indices)
    b.calls.clear()


def pass_time(seconds: float) -> None:
    """Move the clock of the loop on, so that deadlines of a hanging disk pass without waiting for them."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


def counts(b: Bench) -> tuple[int, int, int]:
    """Disk hits, blocks written, failures."""
    counters = b.runtime.statistics()
    return (
        counters["stream_read_block_disk_hits"],
        counters["stream_file_cache_blocks_written"],
        counters["stream_file_cache_failures"],
    )


async def read_all_over(b: Bench, times: int = 2) -> None:
    """Read every block in full, again and again."""
    async with reader_of(b) as reader:
        for _ in range(times):
            for index in range(8):
                await read_block(b, reader, index)
        await written(b)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that were logged."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
