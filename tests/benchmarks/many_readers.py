"""The jobs ``memory-*`` and ``pressure``: many readers at once, each through an object of its own in order.

``memory-*`` have 1, 16 and 100 readers of a store at a distance, beside every peer, and what memory they take.
``pressure`` has 10, 100 and 1,000 readers without delay under one budget of ours.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.benchmarks.access_log import Request
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import (
    aioprefetch_operator,
    boto3_client,
    opendal_operator,
    pyarrow_filesystem,
    s3fs_filesystem,
    warm_obstore_store,
)
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CPU,
    CPU_PER_GIB,
    GETS,
    IN_FLIGHT,
    MEMORY,
    PEAK_RATIO,
    RATE,
    RATE_RATIO,
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
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, Conditions
from tests.benchmarks.streams import warm_reader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MEMORY_BYTES = 256 * MIB
FEW_READERS = (1, 16, 100)
MANY_READERS = (10, 100, 1000)
# Of a reader in the job ``pressure``.
PRESSURE_OBJECT_BYTES = 24 * MIB
PRESSURE_READ_BYTES = 256 << 10
# Each peer goes in one of the quick runs of ``memory-*``.
QUICK = (
    ("aioprefetch, 256 MiB", "obstore reader", "opendal", "smart_open"),
    ("aioprefetch, 256 MiB", "s3fs readahead", "s3fs adaptive", "pyarrow input stream"),
    ("aioprefetch, 64 MiB",),
)

# Opens the object of a key and reads it in order, without an end: who reads knows its size.
OpenKey = Callable[[str], "AsyncGenerator[ReadableBuffer]"]
# Opens a file of a library that blocks, by path (``bucket/key``), when its client is warm.
OpenFile = Callable[[str], Any]


@dataclass(slots=True)
class Waits:
    """How long readers waited: for their first bytes, at most for any, and until each was done, in seconds."""

    first: list[float] = field(default_factory=list)
    longest: float = 0.0
    ends: list[float] = field(default_factory=list)


async def read_all(open_key: OpenKey, readers: int, target: Target) -> Waits:
    """Every object from start to end, all at once."""
    waits = Waits()
    began = time.perf_counter()

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
                del chunk  # readers that hold a chunk each would be our memory, not the library's
                if offset >= target.size_bytes:
                    break
        assert offset == target.size_bytes, f"read {offset} bytes of {target.size_bytes} of {key}"
        waits.ends.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as group:
        for number in range(readers):
            group.create_task(read(f"{target.key}-{number}"))
    return waits


async def measured(open_key: OpenKey, readers: int, target: Target) -> Sample:
    """The usage, the throughput of all together, their waits, and how far behind the slowest reader was."""
    meter = Meter(target.server_pid)
    waits = await read_all(open_key, readers, target)
    usage = meter.stop()
    received = readers * target.size_bytes
    return {
        **usage,
        "received_bytes": received,
        "bytes_per_second": received / usage["wall_seconds"],
        "cpu_per_gib": usage["cpu_seconds"] * (1 << 30) / received,
        "first_seconds": max(waits.first),
        "longest_seconds": waits.longest,
        "slowest_over_median": max(waits.ends) / statistics.median(waits.ends),
        "peak_bytes": 0,
    }


def aioprefetch_readers(readers: int, memory_bytes: int, read_bytes: int) -> Contestant:
    """Readers of one operator, with this budget."""

    async def run(target: Target) -> Sample:
        async with aioprefetch_operator(target, memory_bytes=memory_bytes) as operator:
            await warm_reader(operator)

            async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
                async with operator.reader(key) as reader:
                    while True:  # without a name for the chunk, which would hold it while the next one is read
                        yield await reader.read(read_bytes)

            sample = await measured(open_key, readers, target)
            return {**sample, "peak_bytes": operator.runtime().budget.peak_bytes}

    return run


def obstore_readers(readers: int, read_bytes: int) -> Contestant:
    """obstore's readers: no budget, a buffer of 1 MiB each, no look-ahead."""

    async def run(target: Target) -> Sample:
        import obstore

        store = await warm_obstore_store(target)

        async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
            reader = await obstore.open_reader_async(store, key)
            while True:
                yield await reader.read(read_bytes)

        return await measured(open_key, readers, target)

    return run


def opendal_readers(readers: int) -> Contestant:
    """OpenDAL's asynchronous files: a stream each."""

    async def run(target: Target) -> Sample:
        operator = opendal_operator(target)
        await operator.read(WARM_OBJECT)

        async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
            file: Any = await operator.open(key, "rb")
            async with file:
                while True:
                    yield await file.read(MIB)

        return await measured(open_key, readers, target)

    return run


def files_in_threads(readers: int, opener: Callable[[Target], OpenFile]) -> Contestant:
    """Files of a library that blocks: a thread for each reader, which is how one has many of them at once."""

    async def run(target: Target) -> Sample:
        open_file = opener(target)
        with open_file(f"{target.bucket}/{WARM_OBJECT}") as file:
            file.read()
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(readers) as threads:

            async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
                file = await loop.run_in_executor(threads, open_file, f"{target.bucket}/{key}")
                with file:
                    while True:
                        yield await loop.run_in_executor(threads, file.read, MIB)

            return await measured(open_key, readers, target)

    return run


def s3fs_opener(cache_type: str, readers: int) -> Callable[[Target], OpenFile]:
    """s3fs with one of fsspec's caches, and a connection for each reader."""

    def opener(target: Target) -> OpenFile:
        filesystem = s3fs_filesystem(target, connections=readers)
        return lambda path: filesystem.open(path, "rb", cache_type=cache_type)

    return opener


def smart_open_opener(readers: int) -> Callable[[Target], OpenFile]:
    """smart_open, with a connection for each reader."""

    def opener(target: Target) -> OpenFile:
        import smart_open

        parameters = {"client": boto3_client(target, connections=readers)}
        return lambda path: smart_open.open(f"s3://{path}", "rb", transport_params=parameters)

    return opener


def pyarrow_opener(readers: int) -> Callable[[Target], OpenFile]:
    """Arrow's input stream, with a connection for each reader."""

    def opener(target: Target) -> OpenFile:
        filesystem = pyarrow_filesystem(target, connections=readers)
        return lambda path: filesystem.open_input_stream(path)

    return opener


def memory_job(readers: int) -> Job:
    """The job with ``readers`` readers at once."""
    return Job(
        name=f"memory-{readers}",
        title="one reader" if readers == 1 else f"{readers} readers at once, each through an object of its own",
        conditions=AT_A_DISTANCE,
        size_bytes=16 * MIB,
        quick_size_bytes=2 * MIB,
        copies=readers,
        rounds_max=3,
        quick_contestants=QUICK[FEW_READERS.index(readers)],
        contestants={
            "aioprefetch, 256 MiB": aioprefetch_readers(readers, MEMORY_BYTES, MIB),
            "aioprefetch, 64 MiB": aioprefetch_readers(readers, MEMORY_BYTES // 4, MIB),
            "obstore reader": obstore_readers(readers, MIB),
            "opendal": opendal_readers(readers),
            "s3fs readahead": files_in_threads(readers, s3fs_opener("readahead", readers)),
            "s3fs adaptive": files_in_threads(readers, s3fs_opener("adaptive", readers)),
            "smart_open": files_in_threads(readers, smart_open_opener(readers)),
            "pyarrow input stream": files_in_threads(readers, pyarrow_opener(readers)),
        },
        columns=(
            PEAK_RATIO,
            MEMORY,
            Column(name="peak_bytes", heading="gauge MiB", unit=MIB, digits=1),
            RATE,
            WALL,
            CPU,
            GETS,
            SENT,
            IN_FLIGHT,
            Column(name="first_seconds", heading="last first s"),
            Column(name="longest_seconds", heading="longest wait s"),
        ),
    )


MEMORY_JOBS = tuple(memory_job(readers) for readers in FEW_READERS)


def sent_over_read(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """The bytes that left the server for each that was read."""
    return {"sent_over_read": sum(one.sent_bytes for one in requests) / sample["received_bytes"]}


def ours(readers: int) -> str:
    """The name of our readers under one budget."""
    return f"aioprefetch, {readers} readers"


def pressure_bars() -> tuple[Bar, ...]:
    """What is wanted for each number of readers, and of many beside ten."""
    found = []
    for readers in MANY_READERS:
        what = f"{readers} readers × 24 MiB in 256 MiB"
        sent = Bar(shape=f"{what}, sent ÷ read", ours=ours(readers), number="sent_over_read", bar=1.15, aim=1.02)
        slowest = Bar(
            shape=f"{what}, slowest ÷ median", ours=ours(readers), number="slowest_over_median", bar=3.0, aim=1.5
        )
        found += [sent, slowest]
        if readers != MANY_READERS[0]:
            speed = Bar(
                shape=f"{what}, speed beside 10",
                ours=ours(readers),
                bases=(ours(MANY_READERS[0]),),
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
    size_bytes=PRESSURE_OBJECT_BYTES,
    quick_size_bytes=MIB,
    copies=MANY_READERS[-1],
    contestants={
        **{ours(readers): aioprefetch_readers(readers, MEMORY_BYTES, PRESSURE_READ_BYTES) for readers in MANY_READERS},
        **{f"obstore, {readers} readers": obstore_readers(readers, PRESSURE_READ_BYTES) for readers in MANY_READERS},
    },
    quick_contestants=tuple(map(ours, MANY_READERS)),
    columns=(
        RATE_RATIO,
        Column(name="sent_over_read", heading="sent ÷ read"),
        Column(name="slowest_over_median", heading="slowest ÷ median"),
        CPU_PER_GIB,
        WALL,
        GETS,
        SENT,
        IN_FLIGHT,
        PEAK_RATIO,
    ),
    compare_all=True,
    bars=pressure_bars(),
    derive=sent_over_read,
)
