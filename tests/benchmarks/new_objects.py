"""The jobs ``new-objects*``: objects of 2 KiB, each read for the first time, 32 at once, without delay.

What is known is the key. Peers whose fastest way is a range are given the size on top of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks.access_log import Request
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import (
    aiobotocore_client,
    aioprefetch_operator,
    boto3_client,
    mountpoint_client,
    obstore_store,
    opendal_operator,
    s3fs_filesystem,
)
from tests.benchmarks.content import expected
from tests.benchmarks.job import CONNECTION_COUNT, SHARE, Column, Contestant, Job, Numbers, Sample, Target, costs_of
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import LOOPBACK, LOOPBACK_TLS, Conditions

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

OBJECT_BYTES = 2048
OBJECTS = 4000
IN_FLIGHT = 32
# What a contestant reads that would otherwise take most of the time.
SLOW_OBJECTS = 1000
QUICK_OBJECTS = 400
# Read before the clock starts, from the end of the keys: a reader opened for the first time loads modules.
OPENED_BEFORE = 2 * IN_FLIGHT

READ = "aioprefetch read"
READER = "aioprefetch reader"
OBSTORE = "obstore get_range"
OBSTORE_THREADS = f"obstore get_range, {IN_FLIGHT} threads"
OBSTORE_WAYS = (OBSTORE, OBSTORE_THREADS)  # Which is the faster one depends on the machine: we stand beside both.
MOUNTPOINT = f"s3torchconnectorclient, {IN_FLIGHT} threads"

# Everything of the object of a key.
Get = Callable[[str], "Awaitable[ReadableBuffer]"]
BlockingGet = Callable[[str], "ReadableBuffer"]
Client = Callable[[Target], AbstractAsyncContextManager[Get]]
BlockingClient = Callable[[Target], AbstractContextManager[BlockingGet]]


@contextlib.asynccontextmanager
async def aioprefetch_read(target: Target) -> AsyncIterator[Get]:
    """``Operator.read``."""
    async with aioprefetch_operator(target) as operator:
        yield operator.read


@contextlib.asynccontextmanager
async def aioprefetch_reader(target: Target) -> AsyncIterator[Get]:
    """``async with op.reader(key)``, and one read of as much as there is."""
    async with aioprefetch_operator(target) as operator:

        async def get(key: str) -> bytes:
            async with operator.reader(key) as reader:
                return await reader.read_at(0, OBJECT_BYTES)

        yield get


@contextlib.asynccontextmanager
async def obstore_get_range(target: Target) -> AsyncIterator[Get]:
    """``get_range_async``: one call and one await, of a length that is known."""
    from obstore import get_range_async

    store = obstore_store(target)
    yield lambda key: get_range_async(store, key, start=0, end=OBJECT_BYTES)


@contextlib.asynccontextmanager
async def obstore_get(target: Target) -> AsyncIterator[Get]:
    """``get_async`` and its ``bytes_async``: two awaits, and no length is needed."""
    from obstore import get_async

    store = obstore_store(target)

    async def get(key: str) -> ReadableBuffer:
        return await (await get_async(store, key)).bytes_async()

    yield get


@contextlib.asynccontextmanager
async def opendal(target: Target) -> AsyncIterator[Get]:
    """``AsyncOperator.read``."""
    operator = opendal_operator(target)
    yield operator.read


@contextlib.asynccontextmanager
async def aiobotocore(target: Target) -> AsyncIterator[Get]:
    """``get_object``."""
    async with aiobotocore_client(target, connections=IN_FLIGHT) as client:

        async def get(key: str) -> bytes:
            async with (await client.get_object(Bucket=target.bucket, Key=key))["Body"] as body:
                found: bytes = await body.read()
                return found

        yield get


@contextlib.asynccontextmanager
async def s3fs(target: Target) -> AsyncIterator[Get]:
    """Its coroutine ``_cat_file``, without the loop thread that stands before it for everyone else."""
    filesystem = s3fs_filesystem(target, asynchronous=True, connections=IN_FLIGHT)
    session = await filesystem.set_session()
    yield lambda key: filesystem._cat_file(f"{target.bucket}/{key}")
    await session.close()


@contextlib.contextmanager
def obstore_threads(target: Target) -> Iterator[BlockingGet]:
    """``get_range``, which blocks."""
    from obstore import get_range

    store = obstore_store(target)
    yield lambda key: get_range(store, key, start=0, end=OBJECT_BYTES)


@contextlib.contextmanager
def mountpoint(target: Target) -> Iterator[BlockingGet]:
    """``get_object`` of a range, which saves it the look for further parts."""
    client = mountpoint_client(target)
    yield lambda key: b"".join(client.get_object(target.bucket, key, start=0, end=OBJECT_BYTES))


@contextlib.contextmanager
def boto3(target: Target) -> Iterator[BlockingGet]:
    """``get_object``."""
    client = boto3_client(target, connections=IN_FLIGHT)

    def get(key: str) -> bytes:
        found: bytes = client.get_object(Bucket=target.bucket, Key=key)["Body"].read()
        return found

    yield get


def keys_of(target: Target, *, slow: bool) -> list[str]:
    """The objects of a sample."""
    count = QUICK_OBJECTS if target.every_byte else SLOW_OBJECTS if slow else OBJECTS
    return [f"{target.key}-{number}" for number in range(count)]


def keys_before(target: Target) -> list[str]:
    """The objects that are opened before the clock starts."""
    return [f"{target.key}-{OBJECTS + number}" for number in range(OPENED_BEFORE)]


async def read_each(get: Get, keys: Sequence[str], whole: bytes) -> None:
    """Every object once, in as many tasks as there are requests in flight, and every byte compared."""

    async def work(keys: Iterator[str]) -> None:
        for key in keys:
            assert memoryview(await get(key)) == whole, f"other bytes in {key}"

    remaining = iter(keys)
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work(remaining))


def read_each_blocking(get: BlockingGet, keys: Sequence[str], whole: bytes) -> None:
    """The same in threads."""

    def work(keys: Iterator[str]) -> None:
        for key in keys:
            assert memoryview(get(key)) == whole, f"other bytes in {key}"

    remaining = iter(keys)
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for done in [pool.submit(work, remaining) for _ in range(IN_FLIGHT)]:
            done.result()


def numbers_of(usage: dict[str, float], count: int) -> Sample:
    """What follows from the usage of ``count`` objects."""
    return {
        **usage,
        "objects": count,
        "requests_per_second": count / usage["wall_seconds"],
        "cpu_per_request": usage["cpu_seconds"] / count,
    }


def timed_objects(client: Client, *, slow: bool = False) -> Contestant:
    """An asynchronous client."""

    async def run(target: Target) -> Sample:
        keys, whole = keys_of(target, slow=slow), expected(0, OBJECT_BYTES)
        async with client(target) as get:
            await read_each(get, keys_before(target), whole)
            meter = Meter(target.server_pid)
            await read_each(get, keys, whole)
            return numbers_of(meter.stop(), len(keys))

    return run


def timed_objects_blocking(client: BlockingClient, *, slow: bool = False) -> Contestant:
    """A client in threads."""

    async def run(target: Target) -> Sample:
        keys, whole = keys_of(target, slow=slow), expected(0, OBJECT_BYTES)
        with client(target) as get:
            read_each_blocking(get, keys_before(target), whole)
            meter = Meter(target.server_pid)
            read_each_blocking(get, keys, whole)
            return numbers_of(meter.stop(), len(keys))

    return run


def for_each_object(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """How many requests each object took, those before the clock started included."""
    return {"requests_per_object": len(requests) / (sample["objects"] + OPENED_BEFORE)}


def bars(shape: str, *, beside_mountpoint: bool) -> tuple[Bar, ...]:
    """What is wanted."""
    read = f"{shape}, op.read, CPU"
    found = (
        Bar(shape=read, ours=READ, bases=OBSTORE_WAYS, number="cpu_per_request", bar=0.45, aim=0.3),
        Bar(
            shape=f"{shape}, op.reader, CPU",
            ours=READER,
            bases=OBSTORE_WAYS,
            number="cpu_per_request",
            bar=1.0,
            aim=0.7,
        ),
    )
    if not beside_mountpoint:
        return found
    return (*found, Bar(shape=read, ours=READ, bases=(MOUNTPOINT,), number="cpu_per_request", bar=0.9, aim=0.6))


NEW_OBJECTS = Job(
    name="new-objects",
    title=f"new objects of 2 KiB, {IN_FLIGHT} at once",
    conditions=LOOPBACK,
    size_bytes=OBJECT_BYTES,
    quick_size_bytes=OBJECT_BYTES,
    copies=OBJECTS + OPENED_BEFORE,
    compare_all=True,
    contestants={
        OBSTORE: timed_objects(obstore_get_range),
        READ: timed_objects(aioprefetch_read),
        READER: timed_objects(aioprefetch_reader),
        MOUNTPOINT: timed_objects_blocking(mountpoint),
        "obstore get": timed_objects(obstore_get),
        OBSTORE_THREADS: timed_objects_blocking(obstore_threads),
        "opendal": timed_objects(opendal),
        "aiobotocore": timed_objects(aiobotocore, slow=True),
        "s3fs": timed_objects(s3fs, slow=True),
        f"boto3, {IN_FLIGHT} threads": timed_objects_blocking(boto3, slow=True),
    },
    quick_contestants=(*OBSTORE_WAYS, READ, READER, MOUNTPOINT),
    columns=(
        *costs_of("object"),
        Column(name="requests_per_object", heading="requests/object"),
        CONNECTION_COUNT,
        SHARE,
    ),
    bars=bars("new 2 KiB object", beside_mountpoint=True),
    derive=for_each_object,
)
NEW_OBJECTS_TLS = replace(
    NEW_OBJECTS,
    name="new-objects-tls",
    conditions=LOOPBACK_TLS,
    # Those that can be given a certificate to trust without a setting of the whole process.
    contestants={
        name: NEW_OBJECTS.contestants[name] for name in (*OBSTORE_WAYS, READ, READER, "obstore get", "aiobotocore")
    },
    quick_contestants=(*OBSTORE_WAYS, READ, READER),
    bars=bars("new 2 KiB object over TLS", beside_mountpoint=False),
)
NEW_OBJECT_JOBS = (NEW_OBJECTS, NEW_OBJECTS_TLS)
