"""Every request fails once, whichever it is, at its call, after its head and in its body; io.BytesIO is the oracle.

A fetch ahead that fails is reported to no caller. A read that fails is repeated by its caller, as callers do, and then
gives the right bytes; nothing is left behind, and the cursor is where it was.
"""

import asyncio
import io
import itertools
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aioprefetch import RangeReader
from aioprefetch.errors import Unavailable
from aioprefetch.testing import FaultLayer, Injection, run_virtual
from aioprefetch.testing.conformance.suite import RecordingLayer
from aioprefetch.testing.fault_layer import Point
from aioprefetch.testing.oracle import assert_same_bytes
from aioprefetch.values import Lane
from tests.profile import in_turns
from tests.stores.gated_reader import KIB, bench
from tests.unit.reader.ahead import assert_all_given_back

BLOCK = 4 * KIB
SIZE = 20 * BLOCK + 777
CHUNK = 10_000
POINTS: tuple[Point, ...] = ("call", "head", 3000)

# More requests than any of these programs needs: reaching it means that a program does not come to an end.
CALLS_MAX = 200


class Failures:
    """How often a caller had to repeat a call."""

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[weakref.ref[Unavailable]] = []

    async def repeated(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a call that may fail at first."""
        while True:
            try:
                return await call()
            except Unavailable as error:
                self.count += 1
                self.errors.append(weakref.ref(error))


Program = Callable[[RangeReader, io.BytesIO, Failures], Awaitable[None]]


async def by_read(reader: RangeReader, file: io.BytesIO, failures: Failures) -> None:
    """From front to back, back again, and from the end."""
    for target in (0, 5 * BLOCK + 1, SIZE - 100, 2 * BLOCK):
        assert reader.seek(target) == file.seek(target)
        for size in (CHUNK, 100, CHUNK, CHUNK, -1):
            before = reader.tell()
            found = await failures.repeated(lambda size=size: reader.read(size))  # type: ignore[misc]
            assert_same_bytes(found, file.read(size), offset=before)
            assert reader.tell() == file.tell()


async def by_readinto(reader: RangeReader, file: io.BytesIO, failures: Failures) -> None:
    """Into a buffer that keeps what a failed attempt left in it."""
    buffer, expected = bytearray(CHUNK), bytearray(CHUNK)
    while count := file.readinto(expected):
        before = reader.tell()
        assert await failures.repeated(lambda: reader.readinto(buffer)) == count
        assert_same_bytes(buffer[:count], bytes(expected[:count]), offset=before)
        assert reader.tell() == file.tell()


async def by_read_at(reader: RangeReader, file: io.BytesIO, failures: Failures) -> None:
    """In order, then scattered; the cursor stays."""
    for start in (*range(0, SIZE, CHUNK), 3, SIZE // 2, 10 * BLOCK - 5, SIZE + 5):
        found = await failures.repeated(lambda start=start: reader.read_at(start, CHUNK))  # type: ignore[misc]
        file.seek(start)
        assert_same_bytes(found, file.read(CHUNK), offset=start)
        assert reader.tell() == 0


async def by_view_at(reader: RangeReader, file: io.BytesIO, failures: Failures) -> None:
    """Views within a block and over its edges; all of them are held until the end."""
    views = []
    for start in range(0, SIZE, 3000):
        view = await failures.repeated(lambda start=start: reader.view_at(start, 2500))  # type: ignore[misc]
        views.append((start, view))
    for start, view in views:
        file.seek(start)
        assert_same_bytes(view, file.read(2500), offset=start)


async def by_stream(reader: RangeReader, file: io.BytesIO, failures: Failures) -> None:
    """A stream that failed is awaited again, or begun again where it stood."""
    chunks, again = reader.stream(CHUNK), False
    while True:
        try:
            chunk = await anext(chunks)
        except StopAsyncIteration:
            break
        except Unavailable:
            failures.count += 1
            chunks, again = (reader.stream(CHUNK), False) if again else (chunks, True)
            continue
        assert_same_bytes(chunk, file.read(CHUNK), offset=file.tell() - len(chunk))
        assert reader.tell() == file.tell()
    assert file.read() == b""


RANGES = [(SIZE - 10, SIZE), (5, 5), (0, 100), (7 * BLOCK, 10 * BLOCK), (50, 200), (30_000, 30_010), (31_000, 32_000)]


async def by_read_ranges(reader: RangeReader, file: io.BytesIO, failures: Failures) -> None:
    """All ranges or none."""
    for gap in (0, 2000):
        found = await failures.repeated(lambda gap=gap: reader.read_ranges(RANGES, gap_bytes=gap))  # type: ignore[misc]
        assert found == [file.getvalue()[start:end] for start, end in RANGES]
        await reader.unbuffer()


async def by_iter_ranges(reader: RangeReader, file: io.BytesIO, failures: Failures) -> None:
    """What a failure does not concern is given out once; the caller asks for the rest in another call."""
    missing = dict(enumerate(RANGES))
    while missing:
        numbers = list(missing)
        async with reader.iter_ranges([missing[one] for one in numbers], gap_bytes=2000) as parts:
            try:
                async for index, part in parts:
                    start, end = missing.pop(numbers[index])
                    assert_same_bytes(part, file.getvalue()[start:end], offset=start)
            except Unavailable:
                failures.count += 1


PROGRAMS: tuple[Program, ...] = (
    by_read,
    by_readinto,
    by_read_at,
    by_view_at,
    by_stream,
    by_read_ranges,
    by_iter_ranges,
)


async def run_once(program: Program, policy: str, growth: str, fault: Injection) -> tuple[list[Lane], int]:
    """Run a program with one fault; the lane of each request, and how many calls of the reader had to fail."""
    log, failures = RecordingLayer(), Failures()
    layers = [FaultLayer((fault,), chunk_bytes=1500), log]
    async with bench(SIZE, block_bytes=BLOCK, memory_bytes=16 * BLOCK, prefetch_blocks=4, layers=layers) as b:
        async with b.reader(policy=policy, prefetch_growth=growth) as reader:
            await program(reader, io.BytesIO(b.data), failures)
            assert reader.statistics["stream_read_exceptions"] == failures.count
            await asyncio.sleep(0)  # Until then the loop has the future of the last error.
            # Nothing of ours keeps an error, and with it the frames of callers, until the garbage is collected.
            assert [error() for error in failures.errors] == [None] * len(failures.errors)
        await assert_all_given_back(b)
        assert b.runtime.budget.peak_bytes <= b.runtime.budget.limit_bytes + 4 * BLOCK
    return [one.lane for one in log.reads], failures.count


WAYS = (("sequential", "step"), ("parquet", "stall"), ("columnar", "linear"), ("adaptive", "stall"))


@pytest.mark.parametrize(("program", "way"), in_turns(PROGRAMS, WAYS))
def test_the_nth_request_fails_for_every_n(program: Program, way: tuple[str, str]) -> None:
    """Until a run has fewer requests than that. At most one call of the reader fails for one request."""
    policy, growth = way
    failed = ahead = 0
    for point in POINTS:
        for number in itertools.count():
            assert number < CALLS_MAX
            fault = Injection(operation="read", occurrence=number, at=point, error=Unavailable)
            lanes, failures = run_virtual(lambda fault=fault: run_once(program, policy, growth, fault), seed=number)  # type: ignore[misc]
            assert failures <= 1
            failed += failures
            if number >= len(lanes):
                break
            ahead += lanes[number] == "prefetch" and not failures
    assert failed > 0
    assert ahead > 0 or program in (by_read_ranges, by_iter_ranges)  # Which look ahead of nothing.
