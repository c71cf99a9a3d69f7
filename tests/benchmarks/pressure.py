"""The job ``pressure``: 10, 100 and 1,000 readers under one budget, each through 24 MiB of its own in order."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from tests.benchmarks.access_log import Request
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import aioprefetch_operator, obstore_store
from tests.benchmarks.content import MIB
from tests.benchmarks.job import (
    GETS,
    IN_FLIGHT,
    PEAK_RATIO,
    SENT,
    WALL,
    WARM_OBJECT,
    Column,
    Contestant,
    Job,
    Numbers,
    Sample,
    Target,
)
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.range_passes import compare_all, look_at
from tests.benchmarks.simulator import LOOPBACK, Conditions
from tests.benchmarks.streaming import RATE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READERS = (10, 100, 1000)
OBJECT_BYTES = 24 * MIB
MEMORY_BYTES = 256 * MIB
READ_BYTES = 256 << 10

# Opens the object of a key and reads it in order, without an end: who reads knows its size.
OpenKey = Callable[[str], "AsyncGenerator[ReadableBuffer]"]


async def read_all(open_key: OpenKey, readers: int, target: Target) -> list[float]:
    """Every object from start to end, all at once; when each was done, in seconds."""
    verify = compare_all if target.every_byte else look_at
    began = time.perf_counter()

    async def read(key: str) -> float:
        offset = 0
        async with aclosing(open_key(key)) as chunks:
            async for chunk in chunks:
                verify(chunk, offset)
                offset += len(memoryview(chunk))
                del chunk
                if offset >= target.size_bytes:
                    break
        assert offset == target.size_bytes, f"read {offset} bytes of {target.size_bytes} of {key}"
        return time.perf_counter() - began

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(f"{target.key}-{number}")) for number in range(readers)]
    return [task.result() for task in tasks]


async def measured(open_key: OpenKey, readers: int, target: Target) -> Sample:
    """The usage, the throughput of all together, and how far behind the slowest reader was."""
    meter = Meter(target.server_pid)
    ends = await read_all(open_key, readers, target)
    usage = meter.stop()
    received = readers * target.size_bytes
    return {
        **usage,
        "received_bytes": received,
        "bytes_per_second": received / usage["wall_seconds"],
        "cpu_per_gib": usage["cpu_seconds"] * (1 << 30) / received,
        "slowest_over_median": max(ends) / statistics.median(ends),
    }


def aioprefetch_readers(readers: int) -> Contestant:
    """Readers of one operator, with this budget."""

    async def run(target: Target) -> Sample:
        async with aioprefetch_operator(target, memory_bytes=MEMORY_BYTES) as operator:
            await operator.read(WARM_OBJECT)

            async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
                async with operator.reader(key) as reader:
                    while True:  # without a name for the chunk, which would hold it while the next one is read
                        yield await reader.read(READ_BYTES)

            return await measured(open_key, readers, target)

    return run


def obstore_readers(readers: int) -> Contestant:
    """obstore's readers: no budget, a buffer of 1 MiB each, no look-ahead."""

    async def run(target: Target) -> Sample:
        import obstore

        store = obstore_store(target)
        await obstore.get_range_async(store, WARM_OBJECT, start=0, length=1)

        async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
            reader = await obstore.open_reader_async(store, key)
            while True:
                yield await reader.read(READ_BYTES)

        return await measured(open_key, readers, target)

    return run


def sent_over_read(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """The bytes that left the server for each that was read."""
    return {"sent_over_read": sum(one.sent_bytes for one in requests) / sample["received_bytes"]}


def ours(readers: int) -> str:
    """The name of our readers."""
    return f"aioprefetch, {readers} readers"


def bars() -> tuple[Bar, ...]:
    """What is wanted for each number of readers, and of many beside ten."""
    found = []
    for readers in READERS:
        what = f"{readers} readers × 24 MiB in 256 MiB"
        sent = Bar(shape=f"{what}, sent ÷ read", ours=ours(readers), number="sent_over_read", bar=1.15, aim=1.02)
        slowest = Bar(
            shape=f"{what}, slowest ÷ median", ours=ours(readers), number="slowest_over_median", bar=3.0, aim=1.5
        )
        found += [sent, slowest]
        if readers != READERS[0]:
            speed = Bar(
                shape=f"{what}, speed beside 10",
                ours=ours(readers),
                bases=(ours(READERS[0]),),
                number="bytes_per_second",
                bar=0.6,
                aim=0.9,
                at_least=True,
            )
            found.append(speed)
    return tuple(found)


PRESSURE = Job(
    name="pressure",
    title="readers of 24 MiB each in reads of 256 KiB, under a budget of 256 MiB; without one for obstore",
    conditions=LOOPBACK,
    size_bytes=OBJECT_BYTES,
    quick_size_bytes=MIB,
    copies=READERS[-1],
    contestants={
        **{ours(readers): aioprefetch_readers(readers) for readers in READERS},
        **{f"obstore, {readers} readers": obstore_readers(readers) for readers in READERS},
    },
    quick_contestants=tuple(map(ours, READERS)),
    columns=(
        Column(name="bytes_per_second", heading="MiB/s", unit=RATE.unit, digits=0, ratio=True),
        Column(name="sent_over_read", heading="sent ÷ read"),
        Column(name="slowest_over_median", heading="slowest ÷ median"),
        Column(name="cpu_per_gib", heading="CPU s/GiB"),
        WALL,
        GETS,
        SENT,
        IN_FLIGHT,
        PEAK_RATIO,
    ),
    compare_all=True,
    bars=bars(),
    derive=sent_over_read,
)
