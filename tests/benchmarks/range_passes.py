"""Ranges all over an object, a fixed number at once: how a contestant is timed, and what is made of the numbers.

As many workers as there are requests in flight take the next range from one list. Every sample first opens as many
connections with reads of the small object, then reads ranges of the object's second key and compares every byte, and
then the clock starts. While it runs, a look at length and at the offsets in the first and the last page is all that is
done with a range: at 4 KiB the harness takes part of a microsecond of the 15 or more.
"""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.access_log import Request
from tests.benchmarks.clients import boto3_client
from tests.benchmarks.content import PAGE_BYTES, check
from tests.benchmarks.job import CHECK_OBJECT, WARM_BYTES, WARM_OBJECT, Contestant, Numbers, Sample, Target
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.range_clients import BlockingClient, BlockingGet, Client, Get
from tests.benchmarks.simulator import Conditions

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# A quick sample sends one request of this number, as does a contestant that would otherwise take most of the time.
QUICK_DIVISOR = 10
SLOW_DIVISOR = 8
CHECKED_BYTES = 32 << 20
CHECKED_REQUESTS = 128

Verify = Callable[["ReadableBuffer", int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Ranges of ``range_bytes``, ``in_flight`` at once, ``requests`` in a sample, ``stride_bytes`` apart at least.

    Without a stride they touch.
    """

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
        times = -(-count // len(whole))
        return (whole * times)[:count]

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


def ignore(part: ReadableBuffer, start: int) -> None:
    """Nothing: for what is not measured."""


async def read_all(get: Get, key: str, shape: Shape, places: Sequence[int], verify: Verify) -> None:
    """Every range, in as many tasks as there are requests in flight."""
    length = shape.range_bytes

    async def work(starts: Iterator[int]) -> None:
        for start in starts:
            part = await get(key, start, start + length)
            assert len(memoryview(part)) == length, f"{len(memoryview(part))} bytes at {start}"
            verify(part, start)
            del part

    starts = iter(places)
    async with asyncio.TaskGroup() as group:
        for _ in range(shape.in_flight):
            group.create_task(work(starts))


def read_all_blocking(get: BlockingGet, key: str, shape: Shape, places: Sequence[int], verify: Verify) -> None:
    """Every range, in as many threads as there are requests in flight."""
    length = shape.range_bytes

    def work(starts: Iterator[int]) -> None:
        for start in starts:
            part = get(key, start, start + length)
            assert len(memoryview(part)) == length, f"{len(memoryview(part))} bytes at {start}"
            verify(part, start)
            del part

    # Threads may share the iterator of a list: each gets items of its own.
    starts = iter(places)
    with ThreadPoolExecutor(shape.in_flight) as pool:
        for done in [pool.submit(work, starts) for _ in range(shape.in_flight)]:
            done.result()


def _warming(shape: Shape) -> tuple[Shape, list[int]]:
    small = min(shape.range_bytes, WARM_BYTES)
    warming = Shape(range_bytes=small, in_flight=shape.in_flight, requests=0)
    return warming, warming.places(WARM_BYTES, 4 * shape.in_flight)


def numbers_of(usage: dict[str, float], shape: Shape, count: int) -> Sample:
    """What follows from the usage of ``count`` requests."""
    received = count * shape.range_bytes
    return {
        **usage,
        "ranges": count,
        "received_bytes": received,
        "requests_per_second": count / usage["wall_seconds"],
        "bytes_per_second": received / usage["wall_seconds"],
        "cpu_per_request": usage["cpu_seconds"] / count,
        "cpu_per_gib": usage["cpu_seconds"] * (1 << 30) / received,
    }


def timed_ranges(client: Client, shape: Shape, *, slow: bool = False, verify: Verify = look_at) -> Contestant:
    """An asynchronous client. ``slow``: it sends fewer requests."""

    async def run(target: Target) -> Sample:
        count = shape.count(is_quick=target.every_byte, is_slow=slow)
        async with client(target, shape.in_flight, shape.range_bytes) as get:
            await read_all(get, WARM_OBJECT, *_warming(shape), ignore)
            checked = shape.places(target.size_bytes, shape.checked_count())
            await read_all(get, target.prefix + CHECK_OBJECT, shape, checked, compare_all)
            places = shape.places(target.size_bytes, count)
            meter = Meter(target.server_pid)
            await read_all(get, target.prefix + target.key, shape, places, verify)
            return numbers_of(meter.stop(), shape, count)

    return run


def timed_blocking_ranges(client: BlockingClient, shape: Shape, *, slow: bool = True) -> Contestant:
    """A client in threads. A slow one sends fewer requests."""

    async def run(target: Target) -> Sample:
        count = shape.count(is_quick=target.every_byte, is_slow=slow)
        with client(target, shape.in_flight, shape.range_bytes) as get:
            read_all_blocking(get, WARM_OBJECT, *_warming(shape), ignore)
            checked = shape.places(target.size_bytes, shape.checked_count())
            read_all_blocking(get, CHECK_OBJECT, shape, checked, compare_all)
            places = shape.places(target.size_bytes, count)
            meter = Meter(target.server_pid)
            read_all_blocking(get, target.key, shape, places, look_at)
            return numbers_of(meter.stop(), shape, count)

    return run


def timed_download(shape: Shape) -> Contestant:
    """s3transfer, boto3's own way to have several ranges at once: the whole object, in parts of the shape's ranges."""

    async def run(target: Target) -> Sample:
        from boto3.s3.transfer import TransferConfig

        client = boto3_client(target, connections=shape.in_flight)
        size = shape.range_bytes
        config = TransferConfig(multipart_threshold=size, multipart_chunksize=size, max_concurrency=shape.in_flight)
        client.download_fileobj(target.bucket, WARM_OBJECT, io.BytesIO(), Config=config)
        kept = io.BytesIO()
        client.download_fileobj(target.bucket, CHECK_OBJECT, kept, Config=config)
        check(kept.getbuffer(), 0, every_byte=True)
        kept.seek(0)
        meter = Meter(target.server_pid)
        client.download_fileobj(target.bucket, target.key, kept, Config=config)
        return numbers_of(meter.stop(), shape, target.size_bytes // size)

    return run


def per_range(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """Requests and bytes that the server saw for each range and byte asked for, and how many bodies it cut."""
    sent = sum(one.sent_bytes for one in requests)
    return {
        "requests_per_range": len(requests) / sample["ranges"],
        "sent_per_byte": sent / sample["received_bytes"],
        "cut": sum(one.is_cut for one in requests),
    }
