"""One object read from its start to its end in reads of 1 MiB, by us and by each peer.

A stream yields ``b""`` when its client is set up and warm, then the object.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import (
    aiobotocore_client,
    aioprefetch_operator,
    boto3_client,
    mountpoint_client,
    opendal_operator,
    pyarrow_filesystem,
    s3fs_filesystem,
    warm_obstore_store,
)
from tests.benchmarks.content import MIB, check
from tests.benchmarks.floor import FloorClient
from tests.benchmarks.job import WARM_OBJECT, Chunks, Contestant, Sample, Target
from tests.benchmarks.process_usage import Meter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    import aioprefetch as ap

Stream = AsyncGenerator["ReadableBuffer"]
BLOCK_BYTES = 8 * MIB


def timed(chunks: Chunks) -> Contestant:
    """Read it all, check it, and measure from the opening to the last byte."""

    async def run(target: Target) -> Sample:
        offset = 0
        timeline: list[tuple[float, int]] = []
        async with contextlib.aclosing(chunks(target)) as stream:
            await anext(stream)
            meter = Meter(target.server_pid)
            async for chunk in stream:
                offset += check(chunk, offset, every_byte=target.every_byte)
                timeline.append((time.time(), offset))
                if offset >= target.size_bytes:
                    break
            usage = meter.stop()
        assert offset == target.size_bytes, f"read {offset} bytes of {target.size_bytes}"
        rate = offset / usage["wall_seconds"]
        cpu_per_gib = usage["cpu_seconds"] * (1 << 30) / offset
        return {**usage, "bytes_per_second": rate, "cpu_per_gib": cpu_per_gib, "timeline": timeline}

    return run


async def warm_reader(operator: ap.Operator) -> None:
    """Read the warm object by a reader, whose modules load at its first use; imports are not what is measured."""
    async with operator.reader(WARM_OBJECT) as reader:
        await reader.read()


def aioprefetch_reader(**options: Any) -> Chunks:
    """Our reader; ``options`` go to ``operator.reader``."""

    async def chunks(target: Target) -> Stream:
        async with aioprefetch_operator(target) as operator:
            await warm_reader(operator)
            yield b""
            async with operator.reader(target.key, **options) as reader:
                while chunk := await reader.read(MIB):
                    yield chunk

    return chunks


async def aioprefetch_stream(target: Target) -> Stream:
    """The iterator of our reader, in its own chunks of 1 MiB."""
    async with aioprefetch_operator(target) as operator:
        await warm_reader(operator)
        yield b""
        async with operator.reader(target.key) as reader, reader.stream(chunk_bytes=MIB) as stream:
            async for chunk in stream:
                yield chunk


async def obstore_reader(target: Target) -> Stream:
    """``open_reader_async``; its buffer is 1 MiB by default."""
    import obstore

    store = await warm_obstore_store(target)
    yield b""
    reader = await obstore.open_reader_async(store, target.key)
    while len(chunk := await reader.read(MIB)):
        yield chunk


async def obstore_stream(target: Target) -> Stream:
    """One GET, its body as a stream."""
    import obstore

    store = await warm_obstore_store(target)
    yield b""
    response = await obstore.get_async(store, target.key)
    async for chunk in response.stream(min_chunk_size=MIB):
        yield chunk


def opendal_file(**options: Any) -> Chunks:
    """``open``; ``options`` are its ``chunk``, ``concurrent`` and ``prefetch``."""

    async def chunks(target: Target) -> Stream:
        operator = opendal_operator(target)
        await operator.read(WARM_OBJECT)
        yield b""
        file: Any = await operator.open(target.key, "rb", **options)
        async with file:
            while chunk := await file.read(MIB):
                yield chunk

    return chunks


def s3fs_file(cache_type: str, **cache_options: int) -> Chunks:
    """``open`` with one of fsspec's caches, otherwise by its defaults."""

    async def chunks(target: Target) -> Stream:
        filesystem = s3fs_filesystem(target)
        filesystem.cat_file(f"{target.bucket}/{WARM_OBJECT}")
        yield b""
        path = f"{target.bucket}/{target.key}"
        with filesystem.open(path, "rb", cache_type=cache_type, cache_options=cache_options) as file:
            while chunk := file.read(MIB):
                yield chunk

    return chunks


async def smart_open_file(target: Target) -> Stream:
    """``smart_open.open``."""
    import smart_open

    parameters = {"client": boto3_client(target)}
    with smart_open.open(f"s3://{target.bucket}/{WARM_OBJECT}", "rb", transport_params=parameters) as file:
        file.read()
    yield b""
    with smart_open.open(f"s3://{target.bucket}/{target.key}", "rb", transport_params=parameters) as file:
        while chunk := file.read(MIB):
            yield chunk


async def boto3_body(target: Target) -> Stream:
    """One GET by boto3, its body read piece by piece."""
    client = boto3_client(target)
    client.get_object(Bucket=target.bucket, Key=WARM_OBJECT)["Body"].read()
    yield b""
    with client.get_object(Bucket=target.bucket, Key=target.key)["Body"] as body:
        while chunk := body.read(MIB):
            yield chunk


async def aiobotocore_body(target: Target) -> Stream:
    """One GET by aiobotocore, its body read piece by piece."""
    async with aiobotocore_client(target) as client:
        async with (await client.get_object(Bucket=target.bucket, Key=WARM_OBJECT))["Body"] as body:
            await body.read()
        yield b""
        async with (await client.get_object(Bucket=target.bucket, Key=target.key))["Body"] as body:
            while chunk := await body.read(MIB):
                yield chunk


async def aiohttp_body(target: Target) -> Stream:
    """One GET by aiohttp, its body as it comes."""
    from aiohttp import ClientSession

    async with ClientSession(f"{target.endpoint_url}/{target.bucket}/", auto_decompress=False) as session:
        async with session.get(WARM_OBJECT) as response:
            await response.read()
        yield b""
        async with session.get(target.key) as response:
            async for chunk in response.content.iter_any():
                yield chunk


async def floor_blocks(target: Target) -> Stream:
    """The bare protocol: a GET for each 8 MiB, one after another, into one buffer."""
    client = await FloorClient.connect(target, 1, BLOCK_BYTES)
    await client.get(WARM_OBJECT, 0, 1)
    yield b""
    for start in range(0, target.size_bytes, BLOCK_BYTES):
        yield await client.get(target.key, start, min(start + BLOCK_BYTES, target.size_bytes))
    client.close()


async def pyarrow_stream(target: Target) -> Stream:
    """``open_input_stream``, without a buffer as by default."""
    filesystem = pyarrow_filesystem(target)
    with filesystem.open_input_stream(f"{target.bucket}/{WARM_OBJECT}") as file:
        file.read()
    yield b""
    with filesystem.open_input_stream(f"{target.bucket}/{target.key}") as file:
        while chunk := file.read(MIB):
            yield chunk


async def pyarrow_file(target: Target) -> Stream:
    """``open_input_file``, read in order."""
    filesystem = pyarrow_filesystem(target)
    with filesystem.open_input_file(f"{target.bucket}/{WARM_OBJECT}") as file:
        file.read()
    yield b""
    with filesystem.open_input_file(f"{target.bucket}/{target.key}") as file:
        while chunk := file.read(MIB):
            yield chunk


async def mountpoint_parts(target: Target) -> Stream:
    """``get_object`` of mountpoint-s3's client, in the parts that it gives: nothing is joined or cut."""
    client = mountpoint_client(target)
    for _ in client.get_object(target.bucket, WARM_OBJECT):
        pass
    yield b""
    for part in client.get_object(target.bucket, target.key):
        yield part


PEERS: dict[str, Callable[[Target], Stream]] = {
    "obstore reader": obstore_reader,
    "obstore stream": obstore_stream,
    "s3torchconnectorclient": mountpoint_parts,
    "opendal": opendal_file(),
    "s3fs none": s3fs_file("none"),
    "s3fs bytes": s3fs_file("bytes"),
    "s3fs readahead": s3fs_file("readahead"),
    "s3fs background": s3fs_file("background"),
    "s3fs adaptive": s3fs_file("adaptive"),
    "smart_open": smart_open_file,
    "pyarrow input stream": pyarrow_stream,
    "pyarrow input file": pyarrow_file,
    "boto3 body": boto3_body,
    "aiobotocore body": aiobotocore_body,
    "aiohttp body": aiohttp_body,
}
# Tuned by hand: the number and the size of requests, which our reader finds by itself.
TUNED_PEERS: dict[str, Callable[[Target], Stream]] = {
    "opendal 8 × 8 MiB (tuned)": opendal_file(chunk=BLOCK_BYTES, concurrent=8),
    "s3fs adaptive 8 (tuned)": s3fs_file("adaptive", concurrency=8),
}
