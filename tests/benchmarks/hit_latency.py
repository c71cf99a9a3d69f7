"""One job: reads of bytes that are in memory already, 4 KiB each out of 1 MiB. One system a process.

``python -m tests.benchmarks.hit_latency NAME`` prints a JSON line: microseconds of wall and CPU per read.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

OBJECT_BYTES = 1 << 20
READ_BYTES = 4096
READS = 20_000

Read = Callable[[int], Awaitable[object]]


async def measure(read: Read) -> dict[str, float]:
    """Microseconds per read, one after another, at positions that wander over the object."""
    positions = [(number * 7919) % (OBJECT_BYTES - READ_BYTES) for number in range(READS)]
    for position in positions[:500]:
        await read(position)
    wall, cpu = time.perf_counter(), time.process_time()
    for position in positions:
        await read(position)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_us": wall / READS * 1e6, "cpu_us": cpu / READS * 1e6}


async def run_reader() -> dict[str, float]:
    """Our RangeReader: ``read_at`` on resident blocks."""
    import aioprefetch as ap

    async with ap.Operator.from_uri("memory://bench") as operator:
        await operator.write("k", os.urandom(OBJECT_BYTES))
        async with operator.reader("k") as reader:
            return await measure(lambda position: reader.read_at(position, READ_BYTES))


async def run_operator() -> dict[str, float]:
    """Our Operator over its memory store, through the default layers: no block cache is involved."""
    import aioprefetch as ap

    async with ap.Operator.from_uri("memory://bench") as operator:
        await operator.write("k", os.urandom(OBJECT_BYTES))
        return await measure(lambda position: operator.read("k", offset=position, size=READ_BYTES))


async def run_obstore() -> dict[str, float]:
    """obstore's memory store, ``get_range_async``."""
    import obstore
    from obstore.store import MemoryStore

    store = MemoryStore()
    await obstore.put_async(store, "k", os.urandom(OBJECT_BYTES))
    return await measure(lambda position: obstore.get_range_async(store, "k", start=position, length=READ_BYTES))


async def run_opendal() -> dict[str, float]:
    """OpenDAL's memory service, ``read(offset=, size=)``."""
    import opendal

    operator = opendal.AsyncOperator("memory")
    await operator.write("k", os.urandom(OBJECT_BYTES))
    return await measure(lambda position: operator.read("k", offset=position, size=READ_BYTES))


SYSTEMS: dict[str, Callable[[], Awaitable[dict[str, float]]]] = {
    "aioprefetch reader": run_reader,
    "aioprefetch operator": run_operator,
    "obstore": run_obstore,
    "opendal": run_opendal,
}


async def main(name: str) -> None:
    """Run one system and print its numbers."""
    print(json.dumps(await SYSTEMS[name]()), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    # OpenDAL's runtime sometimes aborts when the interpreter ends; the numbers are out by then.
    os._exit(0)
