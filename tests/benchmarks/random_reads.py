"""The job ``random``: reads of 4 KiB all over an object; what they transfer beside plain ranged GETs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from aioprefetch.reader.policy import PolicyName
from tests.benchmarks import range_clients
from tests.benchmarks.access_log import Request, Traffic
from tests.benchmarks.clients import aioprefetch_operator, pyarrow_filesystem, s3fs_filesystem, warm_obstore_store
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CPU,
    GETS,
    OTHERS,
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
from tests.benchmarks.simulator import AT_A_DISTANCE, Conditions

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READ_BYTES = 4096
READS = 64
# The adaptive policy may take this many reads to see that they are scattered.
READS_TO_LEARN = 4

Read = Callable[[int], "Awaitable[ReadableBuffer]"]
Client = Callable[[Target], AbstractAsyncContextManager[Read]]


def timed_reads(client: Client) -> Contestant:
    """Read at the same random places as every other contestant, one after another."""

    async def run(target: Target) -> Sample:
        places = random.Random(4).sample(range(target.size_bytes - READ_BYTES), READS)
        learned = 0.0
        async with client(target) as read:
            meter = Meter()
            for number, start in enumerate(places, 1):
                length = check(await read(start), start, every_byte=True)
                assert length == READ_BYTES, f"{length} bytes at {start}"
                if number == READS_TO_LEARN:
                    learned = time.time()
            usage = meter.stop()
        return {**usage, "marks": [learned]}

    return run


def once_learned(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """What was asked for after the fourth read."""
    traffic = Traffic.of([one for one in requests if one.start >= sample["marks"][0]])
    return {"late_gets": traffic.gets, "late_bytes": traffic.sent_bytes}


@contextlib.asynccontextmanager
async def plain(target: Target) -> AsyncIterator[Read]:
    async with aioprefetch_operator(target) as operator:
        await operator.read(WARM_OBJECT)
        yield lambda start: operator.read(target.key, offset=start, size=READ_BYTES)


def reader(policy: PolicyName) -> Client:
    @contextlib.asynccontextmanager
    async def client(target: Target) -> AsyncIterator[Read]:
        async with aioprefetch_operator(target) as operator:
            await operator.read(WARM_OBJECT)
            async with operator.reader(target.key, policy=policy) as opened:
                yield lambda start: opened.read_at(start, READ_BYTES)

    return client


@contextlib.asynccontextmanager
async def obstore_get_range(target: Target) -> AsyncIterator[Read]:
    import obstore

    store = await warm_obstore_store(target)
    yield lambda start: obstore.get_range_async(store, target.key, start=start, length=READ_BYTES)


@contextlib.asynccontextmanager
async def pyarrow_read_at(target: Target) -> AsyncIterator[Read]:
    filesystem = pyarrow_filesystem(target)
    with filesystem.open_input_file(f"{target.bucket}/{target.key}") as file:
        yield lambda start: asyncio.to_thread(file.read_at, READ_BYTES, start)


def s3fs_file(cache_type: str) -> Client:
    @contextlib.asynccontextmanager
    async def client(target: Target) -> AsyncIterator[Read]:
        filesystem = s3fs_filesystem(target)
        with filesystem.open(f"{target.bucket}/{target.key}", "rb", cache_type=cache_type) as file:

            async def read(start: int) -> bytes:
                file.seek(start)
                found: bytes = file.read(READ_BYTES)
                return found

            yield read

    return client


@contextlib.asynccontextmanager
async def ranged(client: range_clients.Client, target: Target) -> AsyncIterator[Read]:
    """One of the clients of the range jobs."""
    async with client(target, 1, READ_BYTES) as get:
        await get(WARM_OBJECT, 0, 1)
        yield lambda start: get(target.key, start, start + READ_BYTES)


@contextlib.asynccontextmanager
async def threaded(client: range_clients.BlockingClient, target: Target) -> AsyncIterator[Read]:
    """One of those that block, in a thread."""
    with client(target, 1, READ_BYTES) as get:
        get(WARM_OBJECT, 0, 1)
        yield lambda start: asyncio.to_thread(get, target.key, start, start + READ_BYTES)


RANDOM = Job(
    name="random",
    title=f"{READS} random reads of 4 KiB, one after another; on the right the requests after the fourth read",
    conditions=AT_A_DISTANCE,
    size_bytes=256 * MIB,
    quick_size_bytes=256 * MIB,
    contestants={
        "aioprefetch plain GETs": timed_reads(plain),
        "aioprefetch random": timed_reads(reader("random")),
        "aioprefetch adaptive": timed_reads(reader("adaptive")),
        "obstore get_range": timed_reads(obstore_get_range),
        "pyarrow read_at": timed_reads(pyarrow_read_at),
        "s3fs adaptive": timed_reads(s3fs_file("adaptive")),
        "s3fs none": timed_reads(s3fs_file("none")),
        "opendal read": timed_reads(partial(ranged, range_clients.opendal)),
        "aiobotocore": timed_reads(partial(ranged, range_clients.aiobotocore)),
        "aiohttp": timed_reads(partial(ranged, range_clients.aiohttp)),
        "boto3": timed_reads(partial(threaded, range_clients.boto3)),
        "smart_open": timed_reads(partial(threaded, range_clients.smart_open)),
    },
    quick_contestants=("aioprefetch adaptive", "obstore get_range"),
    columns=(
        WALL,
        CPU,
        GETS,
        OTHERS,
        Column(name="sent_bytes", heading="KiB sent", unit=1024, digits=0, ratio=True),
        Column(name="late_gets", heading="late GETs", digits=0, ratio=True),
        Column(name="late_bytes", heading="late KiB", unit=1024, digits=0, ratio=True),
    ),
    derive=once_learned,
)
