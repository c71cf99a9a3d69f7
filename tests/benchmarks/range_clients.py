"""How each library gets a range of an object, fastest: asynchronously where it can, else in as many threads.

A client is a context; what it gives reads the bytes ``[start, end)`` of a key. Imports are inside: one library a
process. Whatever limits connections is set to the number of requests in flight, as a user who wants that number does.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

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
from tests.benchmarks.floor import FloorClient
from tests.benchmarks.job import Target

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    import aioprefetch as ap

# Of a key, from a start to an end.
Get = Callable[[str, int, int], "Awaitable[ReadableBuffer]"]
BlockingGet = Callable[[str, int, int], "ReadableBuffer"]
# Made of the target, the number of requests at once, and the length of a range.
Client = Callable[[Target, int, int], AbstractAsyncContextManager[Get]]
BlockingClient = Callable[[Target, int, int], AbstractContextManager[BlockingGet]]

# The default of our operator and of its peers; more where more are asked for.
CONCURRENCY = 64


@contextlib.asynccontextmanager
async def floor(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """The bare protocol."""
    client = await FloorClient.connect(target, in_flight, range_bytes)
    yield client.get
    client.close()


@contextlib.asynccontextmanager
async def aioprefetch_view(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``Operator.view``: the memory that the response was received into."""
    async with aioprefetch_operator(target, concurrency=max(in_flight, CONCURRENCY)) as operator:
        yield lambda key, start, end: operator.view(key, offset=start, size=end - start)


@contextlib.asynccontextmanager
async def aioprefetch_recorded(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """The same while a trace is recorded."""
    import aioprefetch as ap

    async with aioprefetch_operator(target, concurrency=max(in_flight, CONCURRENCY)) as operator:
        with ap.trace.record(operator):
            yield lambda key, start, end: operator.view(key, offset=start, size=end - start)


@contextlib.asynccontextmanager
async def aioprefetch_read(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``Operator.read``: bytes of one's own."""
    async with aioprefetch_operator(target, concurrency=max(in_flight, CONCURRENCY)) as operator:
        yield lambda key, start, end: operator.read(key, offset=start, size=end - start)


def reading_into(operator: ap.Operator, in_flight: int, range_bytes: int) -> Get:
    """``read_into`` with a buffer for each request in flight."""
    buffers = [memoryview(bytearray(range_bytes)) for _ in range(in_flight)]

    async def get(key: str, start: int, end: int) -> memoryview:
        buffer = buffers.pop()
        # The caller looks at it before anything else runs.
        length = await operator.read_into(key, start, buffer[: end - start])
        buffers.append(buffer)
        return buffer[:length]

    return get


@contextlib.asynccontextmanager
async def aioprefetch_read_into(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``Operator.read_into``: memory of the caller's, used again and again."""
    async with aioprefetch_operator(target, concurrency=max(in_flight, CONCURRENCY)) as operator:
        yield reading_into(operator, in_flight, range_bytes)


@contextlib.asynccontextmanager
async def obstore(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``get_range_async``; its Bytes are looked at where they are, not copied."""
    from obstore import get_range_async

    store = obstore_store(target)
    yield lambda key, start, end: get_range_async(store, key, start=start, end=end)


@contextlib.contextmanager
def obstore_blocking(target: Target, in_flight: int, range_bytes: int) -> Iterator[BlockingGet]:
    """``obstore.get_range``, which blocks."""
    from obstore import get_range

    store = obstore_store(target)
    yield lambda key, start, end: get_range(store, key, start=start, end=end)


@contextlib.asynccontextmanager
async def opendal(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``AsyncOperator.read`` with offset and size."""
    operator = opendal_operator(target)
    yield lambda key, start, end: operator.read(key, offset=start, size=end - start)


@contextlib.asynccontextmanager
async def aiohttp(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """A session and a URL that needs no signature here; nothing of S3."""
    from aiohttp import ClientSession, TCPConnector

    context = ssl.create_default_context(cafile=target.ca_bundle) if target.ca_bundle else True
    async with ClientSession(connector=TCPConnector(limit=in_flight, ssl=context), auto_decompress=False) as session:

        async def get(key: str, start: int, end: int) -> bytes:
            url = f"{target.endpoint_url}/{target.bucket}/{key}"
            async with session.get(url, headers={"Range": f"bytes={start}-{end - 1}"}) as response:
                assert response.status == 206, response.status
                return await response.read()

        yield get


@contextlib.asynccontextmanager
async def aiobotocore(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``get_object``, signed for each request."""
    async with aiobotocore_client(target, connections=in_flight) as client:

        async def get(key: str, start: int, end: int) -> bytes:
            answer = await client.get_object(Bucket=target.bucket, Key=key, Range=f"bytes={start}-{end - 1}")
            async with answer["Body"] as body:
                found: bytes = await body.read()
                return found

        yield get


@contextlib.asynccontextmanager
async def s3fs(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """Its coroutine ``_cat_file``, without the loop thread that stands before it for everyone else."""
    filesystem = s3fs_filesystem(target, asynchronous=True, connections=in_flight)
    session = await filesystem.set_session()
    yield lambda key, start, end: filesystem._cat_file(f"{target.bucket}/{key}", start=start, end=end)
    await session.close()


@contextlib.contextmanager
def boto3(target: Target, in_flight: int, range_bytes: int) -> Iterator[BlockingGet]:
    """``get_object`` of one client, which threads may share."""
    client = boto3_client(target, connections=in_flight)

    def get(key: str, start: int, end: int) -> bytes:
        answer = client.get_object(Bucket=target.bucket, Key=key, Range=f"bytes={start}-{end - 1}")
        found: bytes = answer["Body"].read()
        return found

    yield get


@contextlib.contextmanager
def mountpoint(target: Target, in_flight: int, range_bytes: int) -> Iterator[BlockingGet]:
    """``get_object`` of a range, of one client."""
    client = mountpoint_client(target)
    yield lambda key, start, end: b"".join(client.get_object(target.bucket, key, start=start, end=end))


@contextlib.contextmanager
def pyarrow(target: Target, in_flight: int, range_bytes: int) -> Iterator[BlockingGet]:
    """``read_at`` of one open file, which threads may share."""
    filesystem = pyarrow_filesystem(target, connections=in_flight)
    files: dict[str, Any] = {}
    opening = threading.Lock()

    def get(key: str, start: int, end: int) -> bytes:
        file = files.get(key)
        if file is None:
            with opening:
                file = files.setdefault(key, filesystem.open_input_file(f"{target.bucket}/{key}"))
        found: bytes = file.read_at(end - start, start)
        return found

    yield get
    for file in files.values():
        file.close()


@contextlib.contextmanager
def smart_open(target: Target, in_flight: int, range_bytes: int) -> Iterator[BlockingGet]:
    """A file for each thread, and a seek before each read; no request and no buffer is longer than a range."""
    import smart_open

    parameters = {
        "client": boto3_client(target, connections=in_flight),
        "defer_seek": True,
        # Otherwise each GET is open-ended, and its connection is thrown away with what is still on its way.
        "range_chunk_size": range_bytes,
        "buffer_size": range_bytes,
    }
    own = threading.local()

    def get(key: str, start: int, end: int) -> bytes:
        if getattr(own, "key", "") != key:
            own.key = key
            own.file = smart_open.open(f"s3://{target.bucket}/{key}", "rb", transport_params=parameters)
        own.file.seek(start)
        found: bytes = own.file.read(end - start)
        return found

    yield get
