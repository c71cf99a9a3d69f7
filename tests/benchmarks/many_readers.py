"""The job ``readers``: 200 readers at once on 200 objects, and what memory they take together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.benchmarks.clients import aioprefetch_operator, obstore_store
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    MEMORY,
    SENT,
    WARM_OBJECT,
    Column,
    Contestant,
    Job,
    Sample,
    Target,
)
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE
from tests.benchmarks.streaming import RATE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READERS = 200
MEMORY_BYTES = 256 * MIB

# Opens the object of a key and reads it in order, without an end: who reads knows its size.
OpenKey = Callable[[str], "AsyncGenerator[ReadableBuffer]"]


@dataclass(slots=True)
class Waits:
    """How long readers waited: for their first bytes, and at most for any."""

    first: list[float] = field(default_factory=list)
    longest: float = 0.0


async def read_all(open_key: OpenKey, target: Target, waits: Waits) -> None:
    """Every object from start to end, all at once."""

    async def read(key: str) -> None:
        offset, before = 0, time.perf_counter()
        async with aclosing(open_key(key)) as chunks:
            async for chunk in chunks:
                now = time.perf_counter()
                if offset == 0:
                    waits.first.append(now - before)
                waits.longest = max(waits.longest, now - before)
                offset += check(chunk, offset, every_byte=target.every_byte)
                before = now
                del chunk  # 200 readers that hold a mebibyte each would be our memory, not the library's
                if offset >= target.size_bytes:
                    break
        assert offset == target.size_bytes, f"read {offset} bytes of {target.size_bytes} of {key}"

    async with asyncio.TaskGroup() as group:
        for number in range(READERS):
            group.create_task(read(f"{target.key}-{number}"))


async def measured(open_key: OpenKey, target: Target) -> Sample:
    """The usage, the throughput of all together, and the waits."""
    waits = Waits()
    meter = Meter()
    await read_all(open_key, target, waits)
    usage = meter.stop()
    return {
        **usage,
        "bytes_per_second": READERS * target.size_bytes / usage["wall_seconds"],
        "first_seconds": max(waits.first),
        "longest_seconds": waits.longest,
        "peak_bytes": 0,
    }


def aioprefetch_readers(memory_bytes: int) -> Contestant:
    """Readers of one operator, with this budget."""

    async def run(target: Target) -> Sample:
        async with aioprefetch_operator(target, memory_bytes=memory_bytes) as operator:
            await operator.read(WARM_OBJECT)

            async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
                async with operator.reader(key) as reader:
                    while True:  # without a name for the chunk, which would hold it while the next one is read
                        yield await reader.read(MIB)

            sample = await measured(open_key, target)
            return {**sample, "peak_bytes": operator.runtime().budget.peak_bytes}

    return run


async def obstore_readers(target: Target) -> Sample:
    """obstore's readers: no budget, a buffer of 1 MiB each, no look-ahead."""
    import obstore

    store = obstore_store(target)
    await obstore.get_range_async(store, WARM_OBJECT, start=0, length=1)

    async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
        reader = await obstore.open_reader_async(store, key)
        while True:
            yield await reader.read(MIB)

    return await measured(open_key, target)


READERS_JOB = Job(
    name="readers",
    title=f"{READERS} readers at once, each through an object of its own, 1 MiB at a time",
    conditions=AT_A_DISTANCE,
    size_bytes=24 * MIB,
    quick_size_bytes=4 * MIB,
    copies=READERS,
    contestants={
        "aioprefetch, 256 MiB": aioprefetch_readers(MEMORY_BYTES),
        "aioprefetch, 64 MiB": aioprefetch_readers(MEMORY_BYTES // 4),
        "obstore reader": obstore_readers,
    },
    columns=(
        RATE,
        CPU,
        Column(name="peak_bytes", heading="gauge MiB", unit=MIB, digits=1),
        MEMORY,
        GETS,
        SENT,
        IN_FLIGHT,
        Column(name="first_seconds", heading="last first s"),
        Column(name="longest_seconds", heading="longest wait s"),
    ),
)
