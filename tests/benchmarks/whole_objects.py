"""The job ``whole-object``: 256 MiB at a distance, by the one call of each library that gives all of it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import (
    aiobotocore_client,
    aioprefetch_operator,
    boto3_client,
    mountpoint_client,
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
    OTHERS,
    PEAK_RATIO,
    SENT,
    WALL,
    WARM_OBJECT,
    Contestant,
    Job,
    Sample,
    Target,
)
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READ = "aioprefetch read"
OBSTORE = "obstore get"
MOUNTPOINT = "s3torchconnectorclient"
MOUNTPOINT_PARTS = f"{MOUNTPOINT}, in parts"

# The parts of an object in order; most libraries give one.
Get = Callable[[str], "Awaitable[list[ReadableBuffer]]"]
Client = Callable[[Target], AbstractAsyncContextManager[Get]]


def timed_whole(client: Client) -> Contestant:
    """Read it once, and compare it when the clock has stopped."""

    async def run(target: Target) -> Sample:
        async with client(target) as get:
            await get(WARM_OBJECT)
            meter = Meter()
            parts = await get(target.key)
            usage = meter.stop()
        offset = 0
        for part in parts:
            offset += check(part, offset, every_byte=target.every_byte)
        assert offset == target.size_bytes, f"read {offset} bytes of {target.size_bytes}"
        return {**usage, "bytes_per_second": offset / usage["wall_seconds"]}

    return run


def aioprefetch_by(method: str) -> Client:
    """``Operator.read`` or ``Operator.view``."""

    @contextlib.asynccontextmanager
    async def client(target: Target) -> AsyncIterator[Get]:
        async with aioprefetch_operator(target) as operator:
            call = getattr(operator, method)

            async def get(key: str) -> list[ReadableBuffer]:
                return [await call(key)]

            yield get

    return client


@contextlib.asynccontextmanager
async def aioprefetch_reader(target: Target) -> AsyncIterator[Get]:
    """``read()`` of a reader."""
    async with aioprefetch_operator(target) as operator:

        async def get(key: str) -> list[ReadableBuffer]:
            async with operator.reader(key) as reader:
                return [await reader.read()]

        yield get


@contextlib.asynccontextmanager
async def obstore(target: Target) -> AsyncIterator[Get]:
    """``get_async`` and its ``bytes_async``."""
    from obstore import get_async

    store = obstore_store(target)

    async def get(key: str) -> list[ReadableBuffer]:
        return [await (await get_async(store, key)).bytes_async()]

    yield get


def mountpoint(*, joined: bool) -> Client:
    """``get_object``, whose parts a client that wants bytes must join."""

    @contextlib.asynccontextmanager
    async def client(target: Target) -> AsyncIterator[Get]:
        client = mountpoint_client(target)

        async def get(key: str) -> list[ReadableBuffer]:
            parts = client.get_object(target.bucket, key)
            return [b"".join(parts)] if joined else list(parts)

        yield get

    return client


@contextlib.asynccontextmanager
async def opendal(target: Target) -> AsyncIterator[Get]:
    """``AsyncOperator.read``."""
    operator = opendal_operator(target)

    async def get(key: str) -> list[ReadableBuffer]:
        return [await operator.read(key)]

    yield get


@contextlib.asynccontextmanager
async def aiobotocore(target: Target) -> AsyncIterator[Get]:
    """``get_object``."""
    async with aiobotocore_client(target) as client:

        async def get(key: str) -> list[ReadableBuffer]:
            async with (await client.get_object(Bucket=target.bucket, Key=key))["Body"] as body:
                return [await body.read()]

        yield get


@contextlib.asynccontextmanager
async def s3fs(target: Target) -> AsyncIterator[Get]:
    """``cat_file``."""
    filesystem = s3fs_filesystem(target)

    async def get(key: str) -> list[ReadableBuffer]:
        return [filesystem.cat_file(f"{target.bucket}/{key}")]

    yield get


@contextlib.asynccontextmanager
async def s3transfer(target: Target) -> AsyncIterator[Get]:
    """``download_fileobj`` of boto3, in its own parts and threads."""
    client = boto3_client(target)

    async def get(key: str) -> list[ReadableBuffer]:
        kept = io.BytesIO()
        client.download_fileobj(target.bucket, key, kept)
        return [kept.getbuffer()]

    yield get


@contextlib.asynccontextmanager
async def pyarrow(target: Target) -> AsyncIterator[Get]:
    """``read`` of an open file."""
    filesystem = pyarrow_filesystem(target)

    async def get(key: str) -> list[ReadableBuffer]:
        file: Any
        with filesystem.open_input_file(f"{target.bucket}/{key}") as file:
            return [file.read()]

    yield get


WHOLE_OBJECT = Job(
    name="whole-object",
    title="all of an object of 256 MiB",
    conditions=AT_A_DISTANCE,
    size_bytes=256 * MIB,
    quick_size_bytes=48 * MIB,
    contestants={
        OBSTORE: timed_whole(obstore),
        READ: timed_whole(aioprefetch_by("read")),
        "aioprefetch view": timed_whole(aioprefetch_by("view")),
        "aioprefetch reader": timed_whole(aioprefetch_reader),
        MOUNTPOINT: timed_whole(mountpoint(joined=True)),
        MOUNTPOINT_PARTS: timed_whole(mountpoint(joined=False)),
        "opendal": timed_whole(opendal),
        "aiobotocore": timed_whole(aiobotocore),
        "s3fs": timed_whole(s3fs),
        "s3transfer": timed_whole(s3transfer),
        "pyarrow": timed_whole(pyarrow),
    },
    quick_contestants=(OBSTORE, READ, "aioprefetch view", "aioprefetch reader", MOUNTPOINT),
    columns=(WALL, CPU, PEAK_RATIO, GETS, OTHERS, SENT, IN_FLIGHT),
    bars=(
        Bar(
            shape="whole 256 MiB, op.read, wall", ours=READ, bases=(OBSTORE,), number="wall_seconds", bar=0.25, aim=0.18
        ),
        Bar(
            shape="whole 256 MiB, op.read, wall",
            ours=READ,
            bases=(MOUNTPOINT, MOUNTPOINT_PARTS),
            number="wall_seconds",
            bar=1.15,
            aim=1.0,
        ),
        Bar(
            shape="whole 256 MiB, op.read, peak RSS",
            ours=READ,
            bases=(OBSTORE,),
            number="memory_peak_bytes",
            bar=1.2,
            aim=1.05,
        ),
    ),
)
