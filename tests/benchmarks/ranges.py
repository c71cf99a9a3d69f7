"""The job ``ranges``: no delay, no limit of bandwidth; eight ranges of 8 MiB at once, and the sequential stream.

What is left is the CPU time of a client per byte. The eight ranges of a batch are far apart, because obstore makes one
request of ranges that touch. The stream announces nothing but the next 1 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from tests.benchmarks.clients import aioprefetch_operator, warm_obstore_store
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    MEMORY,
    RATE_RATIO,
    SERVER_CPU,
    WARM_OBJECT,
    Contestant,
    Job,
    Sample,
    Target,
)
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import LOOPBACK
from tests.benchmarks.streams import BLOCK_BYTES, aioprefetch_reader, aioprefetch_stream, timed

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BATCH = 8

Range = tuple[int, int]
Fetch = Callable[[Sequence[Range]], "Awaitable[Sequence[ReadableBuffer]]"]
Client = Callable[[Target], AbstractAsyncContextManager[Fetch]]


def batches(size_bytes: int) -> list[list[Range]]:
    """Every block of the object once, in batches whose blocks do not touch."""
    blocks = [(start, start + BLOCK_BYTES) for start in range(0, size_bytes, BLOCK_BYTES)]
    rows = len(blocks) // BATCH
    return [blocks[row::rows] for row in range(rows)]


def timed_batches(client: Client) -> Contestant:
    """One batch after another."""

    async def run(target: Target) -> Sample:
        received = 0
        async with client(target) as fetch:
            meter = Meter()
            for ranges in batches(target.size_bytes):
                for (start, _), part in zip(ranges, await fetch(ranges), strict=True):
                    received += check(part, start, every_byte=target.every_byte)
            usage = meter.stop()
        assert received == target.size_bytes, f"read {received} bytes of {target.size_bytes}"
        return {**usage, "bytes_per_second": received / usage["wall_seconds"]}

    return run


@contextlib.asynccontextmanager
async def obstore_get_ranges(target: Target) -> AsyncIterator[Fetch]:
    import obstore

    store = await warm_obstore_store(target)

    async def fetch(ranges: Sequence[Range]) -> Sequence[ReadableBuffer]:
        starts, ends = zip(*ranges, strict=True)
        return await obstore.get_ranges_async(store, target.key, starts=starts, ends=ends, coalesce=0)

    yield fetch


@contextlib.asynccontextmanager
async def obstore_gather(target: Target) -> AsyncIterator[Fetch]:
    import obstore

    store = await warm_obstore_store(target)

    async def fetch(ranges: Sequence[Range]) -> Sequence[ReadableBuffer]:
        reads = [obstore.get_range_async(store, target.key, start=start, end=end) for start, end in ranges]
        return await asyncio.gather(*reads)

    yield fetch


@contextlib.asynccontextmanager
async def aioprefetch_read_ranges(target: Target) -> AsyncIterator[Fetch]:
    async with aioprefetch_operator(target) as operator:
        await operator.read(WARM_OBJECT)
        yield lambda ranges: operator.read_ranges(target.key, ranges, gap_bytes=0)


@contextlib.asynccontextmanager
async def aioprefetch_view_ranges(target: Target) -> AsyncIterator[Fetch]:
    async with aioprefetch_operator(target) as operator:
        await operator.read(WARM_OBJECT)
        yield lambda ranges: operator.view_ranges(target.key, ranges, gap_bytes=0)


@contextlib.asynccontextmanager
async def aioprefetch_reader_ranges(target: Target) -> AsyncIterator[Fetch]:
    async with aioprefetch_operator(target) as operator:
        await operator.read(WARM_OBJECT)
        async with operator.reader(target.key) as reader:
            yield lambda ranges: reader.read_ranges(ranges, gap_bytes=0)


RANGES = Job(
    name="ranges",
    title="8 ranges of 8 MiB at once, and sequential reads of 1 MiB",
    conditions=LOOPBACK,
    size_bytes=512 * MIB,
    quick_size_bytes=128 * MIB,
    contestants={
        "obstore get_ranges": timed_batches(obstore_get_ranges),
        "obstore gather of get_range": timed_batches(obstore_gather),
        "aioprefetch read_ranges": timed_batches(aioprefetch_read_ranges),
        "aioprefetch view_ranges": timed_batches(aioprefetch_view_ranges),
        "aioprefetch reader.read_ranges": timed_batches(aioprefetch_reader_ranges),
        "aioprefetch reader, 1 MiB reads": timed(aioprefetch_reader()),
        "aioprefetch stream": timed(aioprefetch_stream),
    },
    quick_contestants=("obstore get_ranges", "aioprefetch view_ranges"),
    columns=(
        RATE_RATIO,
        CPU,
        GETS,
        IN_FLIGHT,
        SERVER_CPU,
        MEMORY,
    ),
)
