"""What clients are asked to do, and how it is timed: each function makes a contestant of the name of a client."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import CLIENTS
from tests.benchmarks.content import MIB, PAGE_BYTES, check, expected, write_object
from tests.benchmarks.job import CHECK_OBJECT, OBJECT, WARM_BYTES, WARM_OBJECT, Contestant, Sample, Target
from tests.benchmarks.meter import Meter
from tests.benchmarks.seam import Client

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# A quick sample sends one request of this number, as does a contestant that would otherwise take most of the time.
QUICK_DIVISOR = 10
SLOW_DIVISOR = 8
CHECKED_BYTES = 32 << 20
CHECKED_REQUESTS = 128
# No request that is made larger than what is read, up to this size, reaches the place of another read.
STRIDE_BYTES = 512 << 10
SMALL_BYTES = 2048
KEYS = 8000

Verify = Callable[["ReadableBuffer", int], None]


async def each(call: Callable[[Any], Any], items: Iterable[Any], at_once: int, *, in_threads: bool = False) -> None:
    """Make a call with every item once, ``at_once`` at a time: in tasks, or in threads where it holds its own."""
    # Threads may share the iterator of a list: each gets items of its own.
    remaining = iter(list(items))
    if in_threads:

        def work_through() -> None:
            for item in remaining:
                call(item)

        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(work_through) for _ in range(at_once)]:
                done.result()
        return

    async def work() -> None:
        for item in remaining:
            await call(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


async def awaited(result: Any) -> Any:
    """What a call gave, awaited where it must be."""
    return await result if inspect.isawaitable(result) else result


def iterated(client: Client, key: str, read_bytes: int = MIB, threads: Executor | None = None) -> AsyncGenerator[Any]:
    """The chunks of an object; of a client that blocks in ``threads``, or on this loop, where nothing else runs."""
    chunks: Any = client.chunks(key, read_bytes)
    return _in_turns(chunks, threads) if client.is_blocking else chunks


async def _in_turns(chunks: Any, threads: Executor | None) -> AsyncGenerator[Any]:
    loop = asyncio.get_running_loop()
    with contextlib.closing(chunks):
        while True:
            yield next(chunks) if threads is None else await loop.run_in_executor(threads, next, chunks)


async def read_through(
    chunks: AsyncGenerator[Any], size_bytes: int, look: Callable[[ReadableBuffer, int], int] | None = None
) -> None:
    """Read an object to its end; ``look`` compares each chunk at its offset, and gives its length."""
    offset = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            count = look(chunk, offset) if look else len(memoryview(chunk))
            assert count, f"no bytes at {offset} of {size_bytes}"
            offset += count
            del chunk  # readers that hold a chunk each would be our memory, not the library's
            if offset >= size_bytes:
                break
    assert offset == size_bytes, f"read {offset} bytes of {size_bytes}"


# --- ranges -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """Ranges of ``range_bytes``, ``in_flight`` at once, ``requests`` a sample, adjacent or ``stride_bytes`` apart."""

    range_bytes: int
    in_flight: int
    requests: int
    stride_bytes: int = 0

    def __str__(self) -> str:
        size, unit = (self.range_bytes >> 20, "MiB") if self.range_bytes >= 1 << 20 else (self.range_bytes >> 10, "KiB")
        return f"{size} {unit} × {self.in_flight}"

    @property
    def slug(self) -> str:
        """The same as a part of a name."""
        return str(self).replace(" × ", "-x").replace(" ", "").lower()

    def places(self, size_bytes: int, count: int) -> list[int]:
        """Where ``count`` ranges start: every one of the object once, in an order of no order, then again."""
        whole = list(range(0, size_bytes - self.range_bytes + 1, self.stride_bytes or self.range_bytes))
        random.Random(4).shuffle(whole)
        return (whole * -(-count // len(whole)))[:count]

    def count(self, *, is_quick: bool, is_slow: bool) -> int:
        """How many requests a sample sends: at least four for each that is in flight."""
        divisor = (QUICK_DIVISOR if is_quick else 1) * (SLOW_DIVISOR if is_slow else 1)
        return max(self.requests // divisor, 4 * self.in_flight)

    def checked_count(self) -> int:
        """How many ranges are compared byte for byte."""
        return max(min(CHECKED_BYTES // self.range_bytes, CHECKED_REQUESTS), self.in_flight)


def compare_all(part: ReadableBuffer, start: int) -> None:
    """Every byte."""
    check(part, start, every_byte=True)


def look_at(part: ReadableBuffer, start: int) -> None:
    """The offsets that the first and the last page begin with."""
    view = memoryview(part)
    assert int.from_bytes(view[:8], "big") == start, f"not the bytes at {start}"
    length = len(view)
    if length > PAGE_BYTES:
        assert int.from_bytes(view[-PAGE_BYTES : 8 - PAGE_BYTES], "big") == start + length - PAGE_BYTES


async def read_ranges(client: Client, key: str, length: int, places: Iterable[int], verify: Verify | None) -> None:
    """Read ranges of one length, as many at once as the client is made for.

    Looking at length and offsets is all that is done with a range while the clock runs: at 4 KiB the harness takes part
    of a microsecond of the 15 or more.
    """
    get = client.get

    def look(part: ReadableBuffer, start: int) -> None:
        assert len(memoryview(part)) == length, f"{len(memoryview(part))} bytes at {start}"
        if verify is not None:
            verify(part, start)

    async def one(start: int) -> None:
        look(await get(key, start, start + length), start)

    blocking = client.is_blocking
    call: Callable[[int], Any] = (lambda start: look(get(key, start, start + length), start)) if blocking else one
    await each(call, places, client.in_flight, in_threads=blocking)


def ranges(name: str, shape: Shape) -> Contestant:
    """Ranges all over the object: first of the small one, to open connections; some that are compared; then all."""

    async def run(target: Target) -> Sample:
        length = shape.range_bytes
        async with CLIENTS[name](target, shape.in_flight, length) as client:
            small = replace(shape, range_bytes=min(length, WARM_BYTES), stride_bytes=0)
            warming = small.places(WARM_BYTES, 4 * shape.in_flight)
            if not target.is_local:
                await read_ranges(client, WARM_OBJECT, small.range_bytes, warming, None)
            checked = shape.places(target.size_bytes, shape.checked_count())
            await read_ranges(client, CHECK_OBJECT, length, checked, compare_all)
            count = shape.count(is_quick=target.every_byte, is_slow=client.is_slow)
            places = shape.places(target.size_bytes, count)
            meter = Meter(target.server_pid)
            await read_ranges(client, target.key, length, places, look_at)
            usage = meter.stop()
        return {**usage, "items": count, "received_bytes": count * length, "workers": shape.in_flight}

    return run


def late_ranges(name: str, shape: Shape, prefix: str) -> Contestant:
    """Ranges of which each is timed, after as many as a layer that learns has to know."""

    async def run(target: Target) -> Sample:
        seconds: list[float] = []
        async with CLIENTS[name](target, shape.in_flight, shape.range_bytes) as client:

            async def timed(start: int) -> None:
                begun = time.perf_counter()
                part = await client.get(prefix + OBJECT, start, start + shape.range_bytes)
                seconds.append(time.perf_counter() - begun)
                check(part, start, every_byte=target.every_byte)

            await read_ranges(
                client, prefix + CHECK_OBJECT, shape.range_bytes, shape.places(target.size_bytes, 200), None
            )
            count = shape.count(is_quick=target.every_byte, is_slow=False)
            meter = Meter(target.server_pid)
            await each(timed, shape.places(target.size_bytes, count), shape.in_flight)
            usage = meter.stop()
        seconds.sort()
        shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
        return {**usage, "items": count, **{name: seconds[int(share * count)] for name, share in shares.items()}}

    return run


def write_pages(path: Path, size_bytes: int) -> None:
    """A file of this size whose first page of each stride is that of every object; the rest are holes."""
    with path.open("wb") as file:
        for start in range(0, size_bytes, STRIDE_BYTES):
            file.seek(start)
            file.write(expected(start, start + PAGE_BYTES))
        file.truncate(size_bytes)


def check_pages(chunk: ReadableBuffer, offset: int) -> int:
    """The length of a chunk, after a look at the pages in it that have bytes."""
    with memoryview(chunk).cast("B") as view:
        length = len(view)
        for start in range(-offset % STRIDE_BYTES, length, STRIDE_BYTES):
            page, at = bytes(view[start : start + PAGE_BYTES]), offset + start
            assert page == expected(at, at + len(page)), f"wrong bytes at {at}"
    return length


# --- whole objects, streams, readers ----------------------------------------------------------------------------------


def objects(name: str, count: int, at_once: int, *, by_range: bool = False) -> Contestant:
    """Small objects, each read for the first time; the last ones before the clock starts."""

    async def run(target: Target) -> Sample:
        whole = expected(0, SMALL_BYTES)
        async with CLIENTS[name](target, at_once, SMALL_BYTES) as client:

            def compare(data: ReadableBuffer, key: str) -> None:
                assert memoryview(data) == whole, f"other bytes in {key}"

            read = (lambda key: client.get(key, 0, SMALL_BYTES)) if by_range else client.read

            async def one(key: str) -> None:
                compare(await read(key), key)

            blocking = client.is_blocking
            call: Callable[[str], Any] = (lambda key: compare(read(key), key)) if blocking else one
            keys = [f"{target.key}-{number}" for number in range(count + 2 * at_once)]
            await each(call, keys[count:], at_once, in_threads=blocking)
            measured = count // (QUICK_DIVISOR if target.every_byte else 4 if client.is_slow else 1)
            meter = Meter(target.server_pid)
            await each(call, keys[:measured], at_once, in_threads=blocking)
            return {**meter.stop(), "items": measured}

    return run


async def cache_hits(target: Target) -> Sample:
    """``Operator.read`` of objects that a ``LruCacheLayer`` holds in files, and that are taken for current."""
    import aioprefetch as ap
    from tests.benchmarks.our_clients import recipe_of

    whole = expected(0, SMALL_BYTES)
    keys = [f"{target.key}-{number}" for number in range(1000)]
    async with recipe_of(target) as operator, ap.Operator.from_uri(f"file://{target.scratch}") as files:
        cached = operator.layer(ap.layers.LruCacheLayer(cache=files, revalidate_seconds=None))
        async with cached:

            async def one(key: str) -> None:
                assert await cached.read(key) == whole, f"other bytes in {key}"

            for _ in range(2):  # what is not in the cache after the first time is after the second
                await each(one, keys, 32)
            meter = Meter(target.server_pid)
            await each(one, keys, 32)
            return {**meter.stop(), "items": len(keys)}


def whole(name: str, by: str = "read") -> Contestant:
    """One object by the one call that gives all of it, compared when the clock has stopped."""

    async def run(target: Target) -> Sample:
        async with CLIENTS[name](target) as client:
            call = getattr(client, by)
            await awaited(call(WARM_OBJECT))
            meter = Meter(target.server_pid)
            data = await awaited(call(target.key))
            usage = meter.stop()
        length = check(data, 0, every_byte=target.every_byte)
        assert length == target.size_bytes, f"read {length} bytes of {target.size_bytes}"
        return {**usage, "items": 1, "received_bytes": length}

    return run


def stream(name: str, *, has_holes: bool = False) -> Contestant:
    """One object in order in reads of 1 MiB, measured from the opening to the last byte."""

    async def run(target: Target) -> Sample:
        look = check_pages if has_holes else partial(check, every_byte=target.every_byte)
        async with CLIENTS[name](target) as client:
            await read_through(iterated(client, WARM_OBJECT), WARM_BYTES)
            meter = Meter(target.server_pid)
            await read_through(iterated(client, target.key), target.size_bytes, look)
            usage = meter.stop()
        return {**usage, "items": 1, "received_bytes": target.size_bytes}

    return run


def readers(name: str, count: int, read_bytes: int = MIB, **options: Any) -> Contestant:
    """Many readers at once, each through an object of its own in order. Where one blocks, each has a thread."""

    async def run(target: Target) -> Sample:
        ends: list[float] = []
        async with CLIENTS[name](target, count, read_bytes, **options) as client:
            with ThreadPoolExecutor(count) as threads:
                await read_through(iterated(client, WARM_OBJECT, MIB, threads), WARM_BYTES)
                look = partial(check, every_byte=target.every_byte)
                meter, began = Meter(target.server_pid), time.perf_counter()

                async def read(number: int) -> None:
                    chunks = iterated(client, f"{target.key}-{number}", read_bytes, threads)
                    await read_through(chunks, target.size_bytes, look)
                    ends.append(time.perf_counter() - began)

                await each(read, range(count), count)
                usage = meter.stop()
        return {
            **usage,
            "received_bytes": count * target.size_bytes,
            "slowest_over_median": max(ends) / sorted(ends)[len(ends) // 2],
        }

    return run


# --- where the bytes are ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def local_store() -> Iterator[str]:
    """The URL of a directory of files that are in the page cache, and no longer to be written."""
    with tempfile.TemporaryDirectory(prefix="aioprefetch-bench-") as directory:
        path = Path(directory, OBJECT)
        write_object(path, 256 * MIB)
        write_object(Path(directory, WARM_OBJECT), WARM_BYTES)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        os.link(path, Path(directory, CHECK_OBJECT))
        yield f"file://{directory}"


async def from_disk(target: Target) -> Sample:
    """One pass over an object, of which an operator with less memory has put every block on disk.

    Writing is behind reading, and gives way: more than one pass puts all of them there.
    """

    def made(memory_bytes: int) -> Client:
        return CLIENTS["aioprefetch reader"](target, memory_bytes=memory_bytes, disk_cache=target.scratch)

    async with made(96 * MIB) as filling:
        for _ in range(3):
            await read_through(iterated(filling, target.key), target.size_bytes)
    async with made(1024 * MIB) as client:
        await read_through(iterated(client, WARM_OBJECT), WARM_BYTES)
        look = partial(check, every_byte=target.every_byte)
        meter = Meter(target.server_pid)
        await read_through(iterated(client, target.key), target.size_bytes, look)
        return {**meter.stop(), "received_bytes": target.size_bytes}


def hits(name: str) -> Contestant:
    """Reads of 4 KiB of an object in memory, one after another, at places that wander over it; some are compared."""

    async def run(target: Target) -> Sample:
        data, count = expected(0, MIB), 20_000
        places = [(number * 7919) % (MIB - PAGE_BYTES) for number in range(count)]
        async with CLIENTS[name](target) as client:
            await client.put(OBJECT, data)
            get = client.get
            for place in places[:500]:
                part = memoryview(await get(OBJECT, place, place + PAGE_BYTES))
                assert part == data[place : place + PAGE_BYTES], f"other bytes at {place}"
            meter = Meter()
            for place in places:
                await get(OBJECT, place, place + PAGE_BYTES)
            return {**meter.stop(), "items": count}

    return run


# --- small requests, an object of the user's --------------------------------------------------------------------------


def key_names(count: int) -> list[str]:
    """The first keys of moto's bucket."""
    return [f"keys/{number:05}" for number in range(count)]


def requests(name: str, verb: str, count: int, at_once: int) -> Contestant:
    """The size of every object, or an object written beside it, once."""

    async def run(target: Target) -> Sample:
        measured = count // (QUICK_DIVISOR if target.every_byte else 1)
        async with CLIENTS[name](target, at_once) as client:

            async def size(key: str) -> None:
                assert await client.size(key) == 2, key

            def size_in_thread(key: str) -> None:
                assert client.size(key) == 2, key

            async def put(key: str) -> None:
                await client.put(f"put/{key}", bytes(SMALL_BYTES))

            call = put if verb == "put" else size_in_thread if client.is_blocking else size
            await each(call, key_names(2 * at_once), at_once, in_threads=client.is_blocking)
            meter = Meter()
            await each(call, key_names(measured), at_once, in_threads=client.is_blocking)
            return {**meter.stop(), "items": measured}

    return run


def listings(name: str) -> Contestant:
    """All keys listed: once before the clock starts, then some times."""

    async def run(target: Target) -> Sample:
        times = 1 if target.every_byte else 3
        async with CLIENTS[name](target) as client:
            assert await awaited(client.count("keys/")) == KEYS
            meter = Meter()
            for _ in range(times):
                assert await awaited(client.count("keys/")) == KEYS
            return {**meter.stop(), "items": times * KEYS}

    return run


def of_the_user(name: str, shape: Shape, length: int) -> Contestant:
    """The beginning of an object that is not ours in one range, and ranges at random; nothing can be compared."""

    async def run(target: Target) -> Sample:
        size = target.size_bytes
        async with CLIENTS[name](target, shape.in_flight, shape.range_bytes) as client:
            await awaited(client.get(target.key, 0, 1))
            began = time.perf_counter()
            data = await awaited(client.get(target.key, 0, min(length, size)))
            seconds = time.perf_counter() - began
            assert len(memoryview(data)) == min(length, size)
            places = shape.places(size, shape.requests)
            meter = Meter()
            await read_ranges(client, target.key, shape.range_bytes, places, None)
            usage = meter.stop()
        return {**usage, "items": len(places), "in_order_per_second": min(length, size) / seconds}

    return run
