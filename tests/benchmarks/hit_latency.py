"""The job ``hits``: reads of bytes that are in memory already, 4 KiB each out of 1 MiB, one after another."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable

from tests.benchmarks.job import Column, Job, Numbers, Sample, Target

OBJECT_BYTES = 1 << 20
READ_BYTES = 4096
READS = 20_000

Read = Callable[[int], Awaitable[object]]


async def measure(read: Read) -> Numbers:
    """Microseconds per read, one after another, at positions that wander over the object."""
    positions = [(number * 7919) % (OBJECT_BYTES - READ_BYTES) for number in range(READS)]
    for position in positions[:500]:
        await read(position)
    wall, cpu = time.perf_counter(), time.process_time()
    for position in positions:
        await read(position)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_us": wall / READS * 1e6, "cpu_us": cpu / READS * 1e6}


async def run_reader(target: Target) -> Sample:
    """Our RangeReader: ``read_at`` on resident blocks."""
    import aioprefetch as ap

    async with ap.Operator.from_uri("memory://bench") as operator:
        await operator.write("k", os.urandom(OBJECT_BYTES))
        async with operator.reader("k") as reader:
            return await measure(lambda position: reader.read_at(position, READ_BYTES))


async def run_operator(target: Target) -> Sample:
    """Our Operator over its memory store, through the default layers: no block cache is involved."""
    import aioprefetch as ap

    async with ap.Operator.from_uri("memory://bench") as operator:
        await operator.write("k", os.urandom(OBJECT_BYTES))
        return await measure(lambda position: operator.read("k", offset=position, size=READ_BYTES))


async def run_obstore(target: Target) -> Sample:
    """obstore's memory store, ``get_range_async``."""
    import obstore
    from obstore.store import MemoryStore

    store = MemoryStore()
    await obstore.put_async(store, "k", os.urandom(OBJECT_BYTES))
    return await measure(lambda position: obstore.get_range_async(store, "k", start=position, length=READ_BYTES))


async def run_opendal(target: Target) -> Sample:
    """OpenDAL's memory service, ``read(offset=, size=)``."""
    import opendal

    operator = opendal.AsyncOperator("memory")
    await operator.write("k", os.urandom(OBJECT_BYTES))
    return await measure(lambda position: operator.read("k", offset=position, size=READ_BYTES))


HITS = Job(
    name="hits",
    title="4 KiB reads of bytes in memory, one after another",
    contestants={
        "aioprefetch reader": run_reader,
        "aioprefetch operator": run_operator,
        "obstore": run_obstore,
        "opendal": run_opendal,
    },
    columns=(
        Column(name="wall_us", heading="wall µs", ratio=True),
        Column(name="cpu_us", heading="CPU µs", ratio=True),
    ),
)
