"""The jobs ``memory-*``: 1, 16 and 100 readers at once, each on an object of its own, and what memory they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import (
    aioprefetch_operator,
    boto3_client,
    obstore_store,
    opendal_operator,
    pyarrow_filesystem,
    s3fs_filesystem,
)
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    MEMORY,
    PEAK_RATIO,
    SENT,
    WALL,
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

READERS = (1, 16, 100)
MEMORY_BYTES = 256 * MIB
# Each peer goes in one of the quick runs.
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
    """How long readers waited: for their first bytes, and at most for any."""

    first: list[float] = field(default_factory=list)
    longest: float = 0.0


async def read_all(open_key: OpenKey, readers: int, target: Target, waits: Waits) -> None:
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
                del chunk  # readers that hold a mebibyte each would be our memory, not the library's
                if offset >= target.size_bytes:
                    break
        assert offset == target.size_bytes, f"read {offset} bytes of {target.size_bytes} of {key}"

    async with asyncio.TaskGroup() as group:
        for number in range(readers):
            group.create_task(read(f"{target.key}-{number}"))


async def measured(open_key: OpenKey, readers: int, target: Target) -> Sample:
    """The usage, the throughput of all together, and the waits."""
    waits = Waits()
    meter = Meter()
    await read_all(open_key, readers, target, waits)
    usage = meter.stop()
    return {
        **usage,
        "bytes_per_second": readers * target.size_bytes / usage["wall_seconds"],
        "first_seconds": max(waits.first),
        "longest_seconds": waits.longest,
        "peak_bytes": 0,
    }


def aioprefetch_readers(readers: int, memory_bytes: int) -> Contestant:
    """Readers of one operator, with this budget."""

    async def run(target: Target) -> Sample:
        async with aioprefetch_operator(target, memory_bytes=memory_bytes) as operator:
            await operator.read(WARM_OBJECT)

            async def open_key(key: str) -> AsyncGenerator[ReadableBuffer]:
                async with operator.reader(key) as reader:
                    while True:  # without a name for the chunk, which would hold it while the next one is read
                        yield await reader.read(MIB)

            sample = await measured(open_key, readers, target)
            return {**sample, "peak_bytes": operator.runtime().budget.peak_bytes}

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
                yield await reader.read(MIB)

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
        quick_contestants=QUICK[READERS.index(readers)],
        contestants={
            "aioprefetch, 256 MiB": aioprefetch_readers(readers, MEMORY_BYTES),
            "aioprefetch, 64 MiB": aioprefetch_readers(readers, MEMORY_BYTES // 4),
            "obstore reader": obstore_readers(readers),
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


MEMORY_JOBS = tuple(memory_job(readers) for readers in READERS)
