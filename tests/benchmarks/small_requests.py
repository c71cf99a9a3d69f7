"""The jobs ``stat``, ``put`` and ``list``: requests that carry little, on moto's server, which is slow but checks them.

Only the CPU of the client's process says something: the wall time is the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import (
    aiobotocore_client,
    aioprefetch_recipe,
    mountpoint_client,
    obstore_store,
    opendal_operator,
)
from tests.benchmarks.job import Column, Contestant, Job, Sample, Target
from tests.benchmarks.moto_store import CONTENT, key_names, moto_store
from tests.benchmarks.process_usage import Meter

KEYS = 8000
REQUESTS = 400
QUICK_REQUESTS = 64
IN_FLIGHT = 16
LISTINGS = 3
PUT_BYTES = 2048

OURS = "aioprefetch"
OBSTORE = "obstore"
MOUNTPOINT = f"s3torchconnectorclient, {IN_FLIGHT} threads"
BODY = bytes(PUT_BYTES)

# Does the request of a key, and gives a length that can be checked: of the object, or of nothing.
Act = Callable[[str], Awaitable[int]]
Client = Callable[[Target], AbstractAsyncContextManager[Act]]
# Lists the bucket once, and gives the number of keys.
Listing = Callable[[], Awaitable[int]]
ListingClient = Callable[[Target], AbstractAsyncContextManager[Listing]]


async def act_on_each(act: Act, keys: list[str], length: int) -> None:
    """The request of every key once, in as many tasks as there are requests in flight."""

    async def work(keys: Iterator[str]) -> None:
        for key in keys:
            found = await act(key)
            assert found == length, f"{found} bytes for {key}"

    remaining = iter(keys)
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work(remaining))


def timed_requests(client: Client, length: int) -> Contestant:
    """Warm, then measured."""

    async def run(target: Target) -> Sample:
        count = QUICK_REQUESTS if target.every_byte else REQUESTS
        async with client(target) as act:
            await act_on_each(act, key_names(2 * IN_FLIGHT), length)
            keys = key_names(count)
            meter = Meter()
            await act_on_each(act, keys, length)
            usage = meter.stop()
        return {**usage, "cpu_per_request": usage["cpu_seconds"] / count}

    return run


def timed_listings(client: ListingClient) -> Contestant:
    """One listing before the clock starts, and some that are measured."""

    async def run(target: Target) -> Sample:
        listings = 1 if target.every_byte else LISTINGS
        async with client(target) as listing:
            assert await listing() == KEYS
            meter = Meter()
            for _ in range(listings):
                assert await listing() == KEYS
            usage = meter.stop()
        return {**usage, "cpu_per_key": usage["cpu_seconds"] / (listings * KEYS)}

    return run


@contextlib.asynccontextmanager
async def stat(target: Target) -> AsyncIterator[Act]:
    """``Operator.stat``."""
    async with aioprefetch_recipe(target) as operator:

        async def act(key: str) -> int:
            size = (await operator.stat(key)).size
            assert size is not None
            return size

        yield act


@contextlib.asynccontextmanager
async def put(target: Target) -> AsyncIterator[Act]:
    """``Operator.write`` of bytes."""
    async with aioprefetch_recipe(target) as operator:

        async def act(key: str) -> int:
            await operator.write(f"put/{key}", BODY)
            return 0

        yield act


@contextlib.asynccontextmanager
async def listing(target: Target) -> AsyncIterator[Listing]:
    """``async for entry in Operator.list``."""
    async with aioprefetch_recipe(target) as operator:

        async def act() -> int:
            return len([entry async for entry in operator.list("keys/")])

        yield act


@contextlib.asynccontextmanager
async def obstore_stat(target: Target) -> AsyncIterator[Act]:
    """``head_async``."""
    import obstore

    store = obstore_store(target)

    async def act(key: str) -> int:
        return (await obstore.head_async(store, key))["size"]

    yield act


@contextlib.asynccontextmanager
async def obstore_put(target: Target) -> AsyncIterator[Act]:
    """``put_async`` of bytes, in one request."""
    import obstore

    store = obstore_store(target)

    async def act(key: str) -> int:
        await obstore.put_async(store, f"put/{key}", BODY, use_multipart=False)
        return 0

    yield act


@contextlib.asynccontextmanager
async def obstore_listing(target: Target) -> AsyncIterator[Listing]:
    """``list`` and its ``collect_async``."""
    import obstore

    store = obstore_store(target)

    async def act() -> int:
        return len(await obstore.list(store, "keys").collect_async())

    yield act


@contextlib.asynccontextmanager
async def opendal_stat(target: Target) -> AsyncIterator[Act]:
    """``AsyncOperator.stat``."""
    operator = opendal_operator(target)

    async def act(key: str) -> int:
        return (await operator.stat(key)).content_length

    yield act


@contextlib.asynccontextmanager
async def opendal_put(target: Target) -> AsyncIterator[Act]:
    """``AsyncOperator.write``."""
    operator = opendal_operator(target)

    async def act(key: str) -> int:
        await operator.write(f"put/{key}", BODY)
        return 0

    yield act


@contextlib.asynccontextmanager
async def aiobotocore_stat(target: Target) -> AsyncIterator[Act]:
    """``head_object``."""
    async with aiobotocore_client(target, connections=IN_FLIGHT) as client:

        async def act(key: str) -> int:
            length: int = (await client.head_object(Bucket=target.bucket, Key=key))["ContentLength"]
            return length

        yield act


@contextlib.asynccontextmanager
async def aiobotocore_put(target: Target) -> AsyncIterator[Act]:
    """``put_object``."""
    async with aiobotocore_client(target, connections=IN_FLIGHT) as client:

        async def act(key: str) -> int:
            await client.put_object(Bucket=target.bucket, Key=f"put/{key}", Body=BODY)
            return 0

        yield act


@contextlib.asynccontextmanager
async def aiobotocore_listing(target: Target) -> AsyncIterator[Listing]:
    """The paginator of ``list_objects_v2``."""
    async with aiobotocore_client(target) as client:

        async def act() -> int:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=target.bucket, Prefix="keys/")
            return sum([len(page["Contents"]) async for page in pages])

        yield act


@contextlib.asynccontextmanager
async def mountpoint_threads(target: Target, act_on: Callable[[Any, Target, str], int]) -> AsyncIterator[Act]:
    """mountpoint-s3's client, which blocks."""
    client, loop = mountpoint_client(target), asyncio.get_running_loop()
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        yield lambda key: loop.run_in_executor(threads, act_on, client, target, key)


def mountpoint_head(client: Any, target: Target, key: str) -> int:
    """``head_object``."""
    size: int = client.head_object(target.bucket, key).size
    return size


@contextlib.asynccontextmanager
async def mountpoint_listing(target: Target) -> AsyncIterator[Listing]:
    """``list_objects``, whose pages are of a thousand."""
    client = mountpoint_client(target)

    async def act() -> int:
        return sum(len(page.object_info) for page in client.list_objects(target.bucket, "keys/"))

    yield act


def request_job(name: str, title: str, shape: str, contestants: dict[str, Contestant]) -> Job:
    """A job of single requests."""
    return Job(
        name=name,
        title=f"{title}, {IN_FLIGHT} at once, on moto's server",
        store=partial(moto_store, KEYS),
        contestants=contestants,
        quick_contestants=(OBSTORE, OURS),
        columns=(Column(name="cpu_per_request", heading="CPU µs/request", unit=1e-6, digits=0, ratio=True),),
        bars=(
            Bar(
                shape=f"{shape} on moto's server, CPU",
                ours=OURS,
                bases=(OBSTORE,),
                number="cpu_per_request",
                bar=0.8,
                aim=0.5,
            ),
        ),
    )


STAT = request_job(
    "stat",
    "size and ETag of an object",
    "stat",
    {
        OBSTORE: timed_requests(obstore_stat, len(CONTENT)),
        OURS: timed_requests(stat, len(CONTENT)),
        "opendal": timed_requests(opendal_stat, len(CONTENT)),
        MOUNTPOINT: timed_requests(partial(mountpoint_threads, act_on=mountpoint_head), len(CONTENT)),
        "aiobotocore": timed_requests(aiobotocore_stat, len(CONTENT)),
    },
)
PUT = request_job(
    "put",
    "objects of 2 KiB written",
    "PUT of 2 KiB",
    {
        OBSTORE: timed_requests(obstore_put, 0),
        OURS: timed_requests(put, 0),
        "opendal": timed_requests(opendal_put, 0),
        "aiobotocore": timed_requests(aiobotocore_put, 0),
    },
)
LIST = Job(
    name="list",
    title="8,000 keys listed, on moto's server",
    store=partial(moto_store, KEYS),
    contestants={
        OBSTORE: timed_listings(obstore_listing),
        OURS: timed_listings(listing),
        "s3torchconnectorclient": timed_listings(mountpoint_listing),
        "aiobotocore": timed_listings(aiobotocore_listing),
    },
    quick_contestants=(OBSTORE, OURS),
    columns=(Column(name="cpu_per_key", heading="CPU µs/key", unit=1e-6, digits=1, ratio=True),),
    bars=(
        Bar(shape="LIST of 8,000 keys, CPU a key", ours=OURS, bases=(OBSTORE,), number="cpu_per_key", bar=1.25, aim=1),
    ),
)
SMALL_REQUEST_JOBS = (STAT, PUT, LIST)
