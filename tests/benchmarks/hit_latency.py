"""The job ``hits``: reads of bytes that are in memory already, 4 KiB each out of 1 MiB, one after another."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tests.benchmarks.job import Column, Job, Numbers, Sample, Target

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

OBJECT_BYTES = 1 << 20
READ_BYTES = 4096
READS = 20_000

COMPARED_READS = 500

Read = Callable[[int], Awaitable["ReadableBuffer"]]


async def measure(read: Read, data: bytes) -> Numbers:
    """Microseconds per read of ``data``, one after another, at positions that wander over it; first some to compare."""
    positions = [(number * 7919) % (OBJECT_BYTES - READ_BYTES) for number in range(READS)]
    for position in positions[:COMPARED_READS]:
        assert memoryview(await read(position)) == data[position : position + READ_BYTES], f"other bytes at {position}"
    wall, cpu = time.perf_counter(), time.process_time()
    for position in positions:
        await read(position)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_us": wall / READS * 1e6, "cpu_us": cpu / READS * 1e6}


async def run_reader(target: Target) -> Sample:
    """Our RangeReader: ``read_at`` on resident blocks."""
    import aioprefetch as ap

    async with ap.Operator.from_uri("memory://bench") as operator:
        data = os.urandom(OBJECT_BYTES)
        await operator.write("k", data)
        async with operator.reader("k") as reader:
            return await measure(lambda position: reader.read_at(position, READ_BYTES), data)


async def run_operator(target: Target) -> Sample:
    """Our Operator over its memory store, through the default layers: no block cache is involved."""
    import aioprefetch as ap

    async with ap.Operator.from_uri("memory://bench") as operator:
        data = os.urandom(OBJECT_BYTES)
        await operator.write("k", data)
        return await measure(lambda position: operator.read("k", offset=position, size=READ_BYTES), data)


async def run_sync_file(target: Target) -> Sample:
    """Our file for code without an event loop: hits are served on the caller's thread."""
    import aioprefetch as ap

    with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://bench")) as operator:
        data = os.urandom(OBJECT_BYTES)
        operator.write("k", data)
        with operator.open("k") as file:
            return await measure(blocking(lambda position: file.read_at(position, READ_BYTES)), data)


async def run_fsspec_cache(target: Target) -> Sample:
    """fsspec's ``readahead`` cache with all of the object in it: what a file of s3fs asks for each read."""
    from fsspec.caching import ReadAheadCache

    data = os.urandom(OBJECT_BYTES)
    cache = ReadAheadCache(OBJECT_BYTES, lambda start, end: data[start:end], OBJECT_BYTES)
    cache._fetch(0, OBJECT_BYTES)
    return await measure(blocking(lambda position: cache._fetch(position, position + READ_BYTES)), data)


def blocking(read: Callable[[int], ReadableBuffer]) -> Read:
    """A read that blocks, awaited like the others: the few tenths of a microsecond for that are in its numbers."""

    async def awaited(position: int) -> ReadableBuffer:
        return read(position)

    return awaited


async def run_obstore(target: Target) -> Sample:
    """obstore's memory store, ``get_range_async``."""
    import obstore
    from obstore.store import MemoryStore

    store, data = MemoryStore(), os.urandom(OBJECT_BYTES)
    await obstore.put_async(store, "k", data)
    return await measure(lambda position: obstore.get_range_async(store, "k", start=position, length=READ_BYTES), data)


async def run_opendal(target: Target) -> Sample:
    """OpenDAL's memory service, ``read(offset=, size=)``."""
    import opendal

    operator, data = opendal.AsyncOperator("memory"), os.urandom(OBJECT_BYTES)
    await operator.write("k", data)
    return await measure(lambda position: operator.read("k", offset=position, size=READ_BYTES), data)


HITS = Job(
    name="hits",
    title="4 KiB reads of bytes in memory, one after another",
    quick_contestants=("aioprefetch reader", "aioprefetch sync file", "fsspec readahead cache", "obstore"),
    contestants={
        "aioprefetch reader": run_reader,
        "aioprefetch sync file": run_sync_file,
        "aioprefetch operator": run_operator,
        "fsspec readahead cache": run_fsspec_cache,
        "obstore": run_obstore,
        "opendal": run_opendal,
    },
    columns=(
        Column(name="wall_us", heading="wall µs", ratio=True),
        Column(name="cpu_us", heading="CPU µs", ratio=True),
    ),
)
