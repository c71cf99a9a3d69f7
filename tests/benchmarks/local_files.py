"""The jobs ``local-*`` and ``cache-hit``: files in the page cache, and objects that a cache of ours holds in files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aioprefetch.reader.policy import PolicyName
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import aioprefetch_operator
from tests.benchmarks.content import MIB, PAGE_BYTES, check, expected, write_object
from tests.benchmarks.job import (
    CHECK_OBJECT,
    GETS,
    OBJECT,
    PEAK_RATIO,
    WALL,
    WARM_BYTES,
    WARM_OBJECT,
    Column,
    Contestant,
    Job,
    Sample,
    Target,
    costs_of,
)
from tests.benchmarks.new_objects import IN_FLIGHT as OBJECTS_IN_FLIGHT
from tests.benchmarks.new_objects import (
    OBJECT_BYTES,
    OBSTORE,
    obstore_get_range,
    obstore_threads,
    read_each,
    read_each_blocking,
)
from tests.benchmarks.new_objects import numbers_of as numbers_of_objects
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.range_clients import Client, Get
from tests.benchmarks.range_passes import Shape, timed_ranges
from tests.benchmarks.simulator import LOOPBACK

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FILE_BYTES = 256 * MIB
CACHED_OBJECTS = 1000
PAGES = Shape(range_bytes=PAGE_BYTES, in_flight=16, requests=16_000)

LOCAL_STORE = "obstore LocalStore"
LOCAL_STORE_BLOCKING = f"{LOCAL_STORE}, blocking"
# The public ways of obstore. Each is a base, so the faster one counts: a bar is judged beside the worst ratio.
LOCAL_STORE_WAYS = (LOCAL_STORE_BLOCKING, LOCAL_STORE)
OBSTORE_THREADS = f"obstore get_range, {OBJECTS_IN_FLIGHT} threads"
READ = "aioprefetch read"
READER = "aioprefetch reader, random"
OPEN = "open().read()"
WHOLE_READ = "aioprefetch read, whole"
STREAM = "aioprefetch reader, 1 MiB reads"
HIT = "aioprefetch, LruCacheLayer"

# Opens a file of a directory and gives it in order.
Chunks = Callable[[str, str], "AsyncGenerator[ReadableBuffer]"]


@contextlib.contextmanager
def local_store() -> Iterator[str]:
    """The URL of a directory of files that are in the page cache, and no longer to be written."""
    with tempfile.TemporaryDirectory(prefix="aioprefetch-bench-") as directory:
        for key, size_bytes in ((OBJECT, FILE_BYTES), (WARM_OBJECT, WARM_BYTES)):
            path = Path(directory, key)
            write_object(path, size_bytes)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        os.link(Path(directory, OBJECT), Path(directory, CHECK_OBJECT))
        yield f"file://{directory}"


def sized(contestant: Contestant) -> Contestant:
    """The contestant, with the size of the file."""

    async def run(target: Target) -> Sample:
        return await contestant(
            Target(endpoint_url=target.endpoint_url, size_bytes=FILE_BYTES, every_byte=target.every_byte)
        )

    return run


@contextlib.asynccontextmanager
async def obstore_ranges(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``get_range_async`` of a ``LocalStore``."""
    from obstore import get_range_async
    from obstore.store import LocalStore

    store = LocalStore(target.endpoint_url.removeprefix("file://"))
    yield lambda key, start, end: get_range_async(store, key, start=start, end=end)


@contextlib.asynccontextmanager
async def obstore_blocking(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``get_range`` of a ``LocalStore``, on the loop, which waits for the disk where it must."""
    from obstore import get_range
    from obstore.store import LocalStore

    store = LocalStore(target.endpoint_url.removeprefix("file://"))

    async def get(key: str, start: int, end: int) -> ReadableBuffer:
        return get_range(store, key, start=start, end=end)

    yield get


@contextlib.asynccontextmanager
async def operator_read(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``Operator.read`` of a range."""
    import aioprefetch as ap

    async with ap.Operator.from_uri(target.endpoint_url) as operator:
        yield lambda key, start, end: operator.read(key, offset=start, size=end - start)


def reader_read_at(policy: PolicyName) -> Client:
    """``read_at`` of one reader for each file."""

    @contextlib.asynccontextmanager
    async def client(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
        import aioprefetch as ap

        async with ap.Operator.from_uri(target.endpoint_url) as operator, contextlib.AsyncExitStack() as stack:
            readers: dict[str, ap.RangeReader] = {}

            async def get(key: str, start: int, end: int) -> bytes:
                reader = readers.get(key)
                if reader is None:
                    readers[key] = reader = operator.reader(key, policy=policy)
                    await stack.enter_async_context(reader)
                return await reader.read_at(start, end - start)

            yield get

    return client


def timed_chunks(chunks: Chunks) -> Contestant:
    """The whole file, after the small one."""

    async def run(target: Target) -> Sample:
        async for _ in chunks(target.endpoint_url, WARM_OBJECT):
            pass
        offset = 0
        meter = Meter()
        async for chunk in chunks(target.endpoint_url, OBJECT):
            offset += check(chunk, offset, every_byte=target.every_byte)
            del chunk
        usage = meter.stop()
        assert offset == FILE_BYTES, f"read {offset} bytes of {FILE_BYTES}"
        return dict(usage)

    return run


async def open_and_read(url: str, key: str) -> AsyncGenerator[bytes]:
    """The standard library."""
    with open(Path(url.removeprefix("file://"), key), "rb") as file:  # noqa: ASYNC230 - that is what is measured
        yield file.read()


async def whole_read(url: str, key: str) -> AsyncGenerator[bytes]:
    """``Operator.read``."""
    import aioprefetch as ap

    async with ap.Operator.from_uri(url) as operator:
        yield await operator.read(key)


async def whole_view(url: str, key: str) -> AsyncGenerator[memoryview]:
    """``Operator.view``."""
    import aioprefetch as ap

    async with ap.Operator.from_uri(url) as operator:
        yield await operator.view(key)


async def streamed(url: str, key: str) -> AsyncGenerator[bytes]:
    """A reader in reads of 1 MiB."""
    import aioprefetch as ap

    async with ap.Operator.from_uri(url) as operator, operator.reader(key) as reader:
        while chunk := await reader.read(MIB):
            yield chunk


async def obstore_whole(url: str, key: str) -> AsyncGenerator[ReadableBuffer]:
    """``get_async`` of a ``LocalStore`` and its ``bytes_async``."""
    from obstore import get_async
    from obstore.store import LocalStore

    yield await (await get_async(LocalStore(url.removeprefix("file://")), key)).bytes_async()


async def cache_hit(target: Target) -> Sample:
    """``Operator.read`` of objects that a ``LruCacheLayer`` holds in files, and that are taken for current."""
    import aioprefetch as ap

    whole = expected(0, OBJECT_BYTES)
    keys = [f"{target.key}-{number}" for number in range(CACHED_OBJECTS)]
    async with aioprefetch_operator(target) as operator, ap.Operator.from_uri(f"file://{target.scratch}") as files:
        cached = operator.layer(ap.layers.LruCacheLayer(cache=files, revalidate_seconds=None))
        async with cached:
            for _ in range(2):  # what is not in the cache after the first time is after the second
                await read_each(cached.read, keys, whole)
            meter = Meter(target.server_pid)
            await read_each(cached.read, keys, whole)
            return numbers_of_objects(meter.stop(), CACHED_OBJECTS)


async def remote_get(target: Target) -> Sample:
    """What the hit stands beside: the same objects from the store."""
    whole = expected(0, OBJECT_BYTES)
    keys = [f"{target.key}-{number}" for number in range(CACHED_OBJECTS)]
    async with obstore_get_range(target) as get:
        await read_each(get, keys[: 2 * OBJECTS_IN_FLIGHT], whole)
        meter = Meter(target.server_pid)
        await read_each(get, keys, whole)
        return numbers_of_objects(meter.stop(), CACHED_OBJECTS)


async def remote_get_blocking(target: Target) -> Sample:
    """The same by ``get_range`` in threads."""
    whole = expected(0, OBJECT_BYTES)
    keys = [f"{target.key}-{number}" for number in range(CACHED_OBJECTS)]
    with obstore_threads(target) as get:
        read_each_blocking(get, keys[: 2 * OBJECTS_IN_FLIGHT], whole)
        meter = Meter(target.server_pid)
        read_each_blocking(get, keys, whole)
        return numbers_of_objects(meter.stop(), CACHED_OBJECTS)


LOCAL_PAGES = Job(
    name="local-pages",
    title=f"4 KiB all over a file of 256 MiB in the page cache, {PAGES.in_flight} at once",
    store=local_store,
    contestants={
        LOCAL_STORE_BLOCKING: sized(timed_ranges(obstore_blocking, PAGES)),
        LOCAL_STORE: sized(timed_ranges(obstore_ranges, PAGES)),
        READ: sized(timed_ranges(operator_read, PAGES)),
        READER: sized(timed_ranges(reader_read_at("random"), PAGES)),
        "aioprefetch reader, adaptive": sized(timed_ranges(reader_read_at("adaptive"), PAGES)),
    },
    quick_contestants=(*LOCAL_STORE_WAYS, READ, READER),
    columns=(*costs_of("read", digits=1),),
    bars=(
        Bar(
            shape="local 4 KiB, op.read, CPU",
            ours=READ,
            bases=LOCAL_STORE_WAYS,
            number="cpu_per_request",
            bar=1.0,
            aim=0.6,
        ),
        Bar(
            shape="local 4 KiB, read_at miss, CPU",
            ours=READER,
            bases=LOCAL_STORE_WAYS,
            number="cpu_per_request",
            bar=0.6,
            aim=0.2,
        ),
    ),
)
LOCAL_WHOLE = Job(
    name="local-whole",
    title="a file of 256 MiB in the page cache, at once and in reads of 1 MiB",
    store=local_store,
    contestants={
        OPEN: timed_chunks(open_and_read),
        WHOLE_READ: timed_chunks(whole_read),
        "aioprefetch view, whole": timed_chunks(whole_view),
        STREAM: timed_chunks(streamed),
        f"{LOCAL_STORE} get": timed_chunks(obstore_whole),
    },
    quick_contestants=(OPEN, WHOLE_READ, STREAM),
    columns=(WALL, Column(name="cpu_seconds", heading="CPU s", ratio=True), PEAK_RATIO),
    bars=(
        Bar(
            shape="local 256 MiB, op.read, wall",
            ours=WHOLE_READ,
            bases=(OPEN,),
            number="wall_seconds",
            bar=1.6,
            aim=1.2,
        ),
        Bar(
            shape="local 256 MiB, 1 MiB reads, wall",
            ours=STREAM,
            bases=(OPEN,),
            number="wall_seconds",
            bar=2.5,
            aim=1.5,
        ),
    ),
)
CACHE_HIT = Job(
    name="cache-hit",
    title=f"objects of 2 KiB that a cache in files holds, {OBJECTS_IN_FLIGHT} at once, beside the store",
    conditions=LOOPBACK,
    size_bytes=OBJECT_BYTES,
    quick_size_bytes=OBJECT_BYTES,
    copies=CACHED_OBJECTS,
    compare_all=True,
    contestants={OBSTORE: remote_get, OBSTORE_THREADS: remote_get_blocking, HIT: cache_hit},
    columns=(
        *costs_of("object"),
        GETS,
    ),
    bars=(
        Bar(
            shape="hit of 2 KiB in LruCacheLayer over file://, CPU",
            ours=HIT,
            bases=(OBSTORE, OBSTORE_THREADS),
            number="cpu_per_request",
            bar=0.6,
            aim=0.3,
        ),
    ),
)
LOCAL_JOBS = (LOCAL_PAGES, LOCAL_WHOLE, CACHE_HIT)
