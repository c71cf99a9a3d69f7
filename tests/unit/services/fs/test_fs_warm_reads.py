"""Reads of a reader of local files: past the blocks, pinned, and in the call itself where the kernel has the bytes."""

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aioprefetch import Operator, errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.reader.policy import PolicyName
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.page_cache import PageCache
from aioprefetch.runtime.runtime import TURN_BYTES, Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.services.fs.accessor import FsAccessor
from aioprefetch.testing.fault_layer import FaultLayer
from tests.probes.calls import counted_calls
from tests.probes.turns import OtherTask
from tests.stores.layer_stack import was_cancelled

BLOCK_BYTES = 64 << 10
DATA = random.Random(5).randbytes(4 << 20)


class ScriptedCache(PageCache):
    """A page cache that has every byte, on any file system. ``on_read`` is called after each read of it.

    It returns ``None`` for all bytes, the number of bytes, or the negative errno of a failure.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), follow_symlinks=False)
        self.root = root
        self.reads = 0
        self.opens = 0
        self.on_read: Callable[[int], int | None] = lambda number: None

    @property
    def can_open(self) -> bool:
        return True

    def open(self, path: str) -> int | None:
        self.opens += 1
        return os.open(self.root / path, os.O_RDONLY) if (self.root / path).is_file() else None

    def read(self, descriptor: int, buffer: memoryview, position: int) -> int:
        self.reads += 1
        count = os.preadv(descriptor, [buffer], position)
        answer = self.on_read(self.reads)
        if answer is not None and answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return count if answer is None else min(count, answer)


@dataclass(frozen=True)
class WarmFs(Fs):
    """The file service over a scripted page cache."""

    cache: ScriptedCache | None = None

    def build(self, runtime: Runtime) -> Accessor:
        return FsAccessor(self, runtime, cache=self.cache)


@pytest.fixture
def cache(root: Path) -> ScriptedCache:
    """A page cache over a root with one file."""
    (root / "k").write_bytes(DATA)
    return ScriptedCache(root)


@pytest.fixture
def operator(root: Path, cache: ScriptedCache) -> Operator:
    """An operator with the default layers and small blocks."""
    return Operator(WarmFs(str(root), cache=cache), block_bytes=BLOCK_BYTES)


async def opened(operator: Operator, cache: ScriptedCache, policy: PolicyName = "random") -> RangeReader:
    """A reader that has read its first byte."""
    reader = operator.reader("k", policy=policy)
    assert await reader.read_at(0, 1) == DATA[:1]
    cache.reads = cache.opens = 0
    return reader


def counts(reader: RangeReader) -> tuple[int, int, int]:
    """Requests, calls of the service, and blocks in memory."""
    found = reader.statistics
    return found["stream_read_block_read"], found["action_http_get_request"], found["stream_read_blocks_in_cache"]


@pytest.mark.parametrize("policy", ["random", "vector", "hbase"])
async def test_a_miss_is_one_call_of_the_kernel_and_keeps_nothing(
    operator: Operator, cache: ScriptedCache, policy: PolicyName
) -> None:
    """Neither a descriptor is opened again nor a block made; the reader counts a request that brought its bytes."""
    async with operator, await opened(operator, cache, policy) as reader:
        before = counts(reader)
        for number in range(1, 11):
            start = 3 * number * BLOCK_BYTES
            assert await reader.read_at(start, 4096) == DATA[start : start + 4096]
            assert (cache.reads, cache.opens) == (number, 0)
            assert counts(reader) == (before[0] + number, before[1] + number, before[2])
        found = reader.statistics
        assert (found["stream_read_block_misses"], found["stream_read_bytes"]) == (11, 1 + 10 * 4096)
        assert found["stream_read_total_bytes"] >= 10 * 4096
        assert found["hits_network"] == 11


@pytest.mark.cost
async def test_a_miss_takes_few_calls_of_functions(operator: Operator, cache: ScriptedCache) -> None:
    """Of the package: 98 when this was written, those of the layers included."""
    async with operator, await opened(operator, cache) as reader:
        starts = [3 * number * BLOCK_BYTES for number in range(1, 17)]
        with counted_calls(of_package=True) as calls:
            for start in starts:
                await reader.read_at(start, 4096)
        assert cache.reads == len(starts)
        assert calls.number / len(starts) < 104


async def test_every_way_to_read(operator: Operator, cache: ScriptedCache) -> None:
    async with operator, await opened(operator, cache) as reader:
        assert await reader.view_at(BLOCK_BYTES, 100) == DATA[BLOCK_BYTES : BLOCK_BYTES + 100]
        assert (await reader.view_at(BLOCK_BYTES + 500, 100)).readonly
        reader.seek(3 * BLOCK_BYTES)
        assert await reader.read(50) == DATA[3 * BLOCK_BYTES : 3 * BLOCK_BYTES + 50]
        buffer = bytearray(70)
        assert await reader.readinto(buffer) == 70
        assert buffer == DATA[3 * BLOCK_BYTES + 50 : 3 * BLOCK_BYTES + 120]
        assert (
            await reader.read_exactly_at(5 * BLOCK_BYTES - 10, 20) == DATA[5 * BLOCK_BYTES - 10 : 5 * BLOCK_BYTES + 10]
        )
        assert cache.reads == 5
        assert await reader.read_at(len(DATA) - 3, 10) == DATA[-3:]
        assert cache.reads == 6


async def test_a_range_that_is_read_again_is_not_kept_either(operator: Operator, cache: ScriptedCache) -> None:
    async with operator, await opened(operator, cache) as reader:
        blocks = counts(reader)[2]
        for number in range(1, 4):
            assert await reader.read_at(2 * BLOCK_BYTES, 4096) == DATA[2 * BLOCK_BYTES : 2 * BLOCK_BYTES + 4096]
            assert (cache.reads, counts(reader)[2]) == (number, blocks)


@pytest.mark.parametrize("policy", ["random", "adaptive"])
async def test_local_files_evict_nothing(root: Path, policy: PolicyName) -> None:
    """However much of them is read at random, and of however many: by reads, views, ranges and into buffers."""
    for number in range(8):
        (root / f"k{number}").write_bytes(DATA)
    operator = Operator(Fs(str(root)), block_bytes=BLOCK_BYTES, memory_bytes=4 * BLOCK_BYTES)
    async with operator:
        for number in range(8):
            places = random.Random(number).sample(range(BLOCK_BYTES - 100, 56 * BLOCK_BYTES, 4 * BLOCK_BYTES), 12)
            async with operator.reader(f"k{number}", policy=policy) as reader:
                for size in (1000, BLOCK_BYTES, 3 * BLOCK_BYTES // 2):
                    first, second, third, fourth = (places.pop() for _ in range(4))
                    assert await reader.read_at(first, size) == DATA[first : first + size]
                    assert await reader.view_at(second, size) == DATA[second : second + size]
                    assert await reader.read_ranges([(third, third + size)]) == [DATA[third : third + size]]
                    buffer = bytearray(size)
                    reader.seek(fourth)
                    assert (await reader.readinto(buffer), bytes(buffer)) == (size, DATA[fourth : fourth + size])
                assert reader.statistics["stream_read_bytes_in_cache"] <= BLOCK_BYTES  # Of its first request.
        found = operator.statistics
        assert (found["stream_evict_blocks_from_cache"], found["stream_read_bytes_in_cache"]) == (0, 0)


async def test_what_the_caller_wants_kept_is_kept(operator: Operator) -> None:
    async with operator, operator.reader("k", policy="random", keep_behind=True) as reader:
        for start in (0, BLOCK_BYTES, BLOCK_BYTES):  # The first request keeps its bytes in any case.
            assert await reader.read_at(start, 100) == DATA[start : start + 100]
        assert (reader.statistics["stream_read_block_hits"], counts(reader)[0]) == (1, 2)


@pytest.mark.parametrize(("blocks_before", "step"), [([0], 4096), ([24, 22], -4096)])
async def test_the_rest_of_a_block_is_fetched_beside_a_read(
    operator: Operator, blocks_before: list[int], step: int
) -> None:
    """By one request, in the direction of the reads: those that follow in the block are hits."""
    block = range(20 * BLOCK_BYTES, 21 * BLOCK_BYTES, 4096)
    async with operator, operator.reader("k", policy="sequential", prefetch_blocks=0) as reader:
        for start in (*(number * BLOCK_BYTES for number in blocks_before), *block[:: step // 4096]):
            assert await reader.read_at(start, 4096) == DATA[start : start + 4096]
        assert counts(reader)[0] == 1 + 2 * len(blocks_before)


async def test_bytes_in_memory_or_in_flight_are_not_read_again(operator: Operator, cache: ScriptedCache) -> None:
    """What ``will_need`` has requested is waited for."""
    async with operator, await opened(operator, cache) as reader:
        before = counts(reader)
        reader.will_need([(BLOCK_BYTES, BLOCK_BYTES + 4096)])
        assert await reader.read_at(BLOCK_BYTES, 4096) == DATA[BLOCK_BYTES : BLOCK_BYTES + 4096]
        assert await reader.read_at(BLOCK_BYTES + 96, 4000) == DATA[BLOCK_BYTES + 96 : BLOCK_BYTES + 4096]
        assert counts(reader)[0] == before[0] + 1


@pytest.mark.parametrize("policy", ["adaptive", "sequential"])
@pytest.mark.parametrize("size", [1000, 4096, BLOCK_BYTES + 5])
async def test_a_run_is_fetched_ahead(operator: Operator, cache: ScriptedCache, policy: PolicyName, size: int) -> None:
    """Into blocks, of which the reads in order are hits: there are far fewer requests than reads."""
    async with operator, await opened(operator, cache, policy) as reader:
        for start in range(1, 40 * BLOCK_BYTES, size):
            assert await reader.read_at(start, size) == DATA[start : start + size]
        found = reader.statistics
        assert found["stream_read_prefetch_operations"] > 0
        assert found["stream_read_block_hits"] > 0
        assert counts(reader)[0] < 90


async def test_the_end_of_a_file_is_kept(operator: Operator, cache: ScriptedCache) -> None:
    """Its layout may be learnt from it."""
    async with operator, await opened(operator, cache, "adaptive") as reader:
        before = counts(reader)
        assert await reader.read_at(len(DATA) - 100, 100) == DATA[-100:]
        assert counts(reader)[2] == before[2] + 1


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO, 0, 1, 4095])
@pytest.mark.parametrize("policy", ["random", "adaptive"])
async def test_whatever_the_kernel_refuses_comes_by_a_request(
    operator: Operator, cache: ScriptedCache, code: int, policy: PolicyName
) -> None:
    """For the n-th call, for every n: a failure, or a short answer."""
    starts = [number * 5 * BLOCK_BYTES + 17 for number in (3, 9, 1, 7, 4, 8)]
    answer = code if code in (0, 1, 4095) else -code
    for failing in range(1, 9):
        reader = await opened(operator, cache, policy)
        first = cache.reads
        cache.on_read = lambda number, failing=failing, first=first: answer if number == first + failing else None  # type: ignore[misc]
        async with reader:
            for start in starts:
                assert await reader.read_at(start, 4096) == DATA[start : start + 4096]
        cache.on_read = lambda number: None
    await operator.aclose()


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"n" * len(DATA))
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    (path.parent / "new").write_bytes(b"n" * len(DATA))
    os.replace(path.parent / "new", path)


def truncate(path: Path) -> None:
    os.truncate(path, 100)


@pytest.mark.parametrize("policy", ["random", "adaptive"])
@pytest.mark.parametrize("change", [overwrite, replace, truncate, os.unlink])
async def test_a_change_before_or_during_any_read_is_seen(
    operator: Operator, cache: ScriptedCache, root: Path, change: Callable[[Path], None], policy: PolicyName
) -> None:
    """The n-th copy of the kernel is followed by a change of the file, for every n: its bytes are not delivered."""
    starts = [number * 5 * BLOCK_BYTES + 17 for number in (3, 9, 1, 7, 4, 8)]
    for changing in range(1, 7):
        (root / "k").unlink(missing_ok=True)
        (root / "k").write_bytes(DATA)
        reader = await opened(operator, cache, policy)
        changed = False

        def on_read(number: int, changing: int = changing) -> None:
            nonlocal changed
            if number == changing:
                change(root / "k")
                changed = True

        cache.on_read = on_read
        async with reader:
            with pytest.raises(errors.ObjectChanged):  # noqa: PT012 - one of them
                for start in starts:
                    was_changed = changed
                    data = await reader.read_at(start, 4096)
                    assert data == DATA[start : start + 4096]
                    assert not was_changed
                raise AssertionError("no read has seen the change")
            assert changed
            assert reader.statistics["stream_read_exceptions"] == 1
        cache.on_read = lambda number: None
    await operator.aclose()


async def test_layers_that_do_something_to_reads_are_not_passed_by(root: Path, cache: ScriptedCache) -> None:
    """Each read is a request that they see."""
    layer = FaultLayer()
    operator = Operator(WarmFs(str(root), cache=cache), block_bytes=BLOCK_BYTES).layer(layer)
    async with operator, operator.reader("k", policy="random") as reader:
        accessor = operator.accessor()
        for number in range(8):
            start = 3 * number * BLOCK_BYTES
            assert await reader.read_at(start, 100) == DATA[start : start + 100]
            assert len(accessor.requests) == number + 1  # type: ignore[attr-defined]


async def test_events_tell_of_them(operator: Operator, cache: ScriptedCache) -> None:
    """As of every other request whose bytes stay in no block."""
    async with operator, await opened(operator, cache) as reader:
        seen: list[tuple[str, object]] = []
        names = "block.fetched", "range.fetched"
        operator.events.subscribe(lambda event: seen.append((event.name, event.facts.get("received"))), *names)
        await reader.read_at(BLOCK_BYTES, 10)
        assert seen == [("range.fetched", 10)]


@pytest.fixture
def starts() -> Iterator[int]:
    """Places that were not read before."""
    return iter(range(BLOCK_BYTES, len(DATA) - 4096, 4096))


async def test_other_tasks_get_turns(operator: Operator, cache: ScriptedCache, starts: Iterator[int]) -> None:
    """While a task reads one range after another, a second one runs."""
    async with operator, await opened(operator, cache) as reader, OtherTask() as other:
        for start in [next(starts) for _ in range(200)]:
            await reader.read_at(start, 10)
        assert cache.reads == 200
        assert other.turns >= 200 * 4096 // TURN_BYTES


async def test_cancelled_at_every_suspension(operator: Operator, cache: ScriptedCache, starts: Iterator[int]) -> None:
    """The reader stays usable, and a reader that is closed meanwhile delivers nothing."""
    async with operator, await opened(operator, cache) as reader:

        async def read_on(count: int) -> None:
            for start in [next(starts) for _ in range(count)]:
                assert await reader.read_at(start, 10) == DATA[start : start + 10]

        suspension, cancelled = 0, True
        while cancelled:
            suspension += 1
            cancelled = await was_cancelled(read_on(40), suspension)
            await read_on(1)
        assert suspension > 2
        task = asyncio.ensure_future(read_on(100))
        await asyncio.sleep(0)
        await reader.aclose()
        with pytest.raises(errors.Closed):
            await task


class HeldThreads:
    """Reads of threads wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()
        preadv, main = os.preadv, threading.get_ident()

        def held(*arguments: Any) -> int:
            if threading.get_ident() != main:
                self.entered.set()
                assert self.gate.wait(30)
            return preadv(*arguments)

        monkeypatch.setattr(os, "preadv", held)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_reader_that_is_closed_ends_its_reads(
    operator: Operator, cache: ScriptedCache, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """With ``Closed``; one that was cancelled before stays cancelled. Others are not disturbed."""
    async with operator, await opened(operator, cache) as other:
        reader = await opened(operator, cache)
        cache.on_read = lambda number: -errno.EAGAIN
        held = HeldThreads(monkeypatch)
        reads = [asyncio.ensure_future(one.read_at(BLOCK_BYTES, 100)) for one in (reader, other)]
        assert await asyncio.to_thread(held.entered.wait, 30)
        if is_cancelled:
            reads[0].cancel()
        await reader.aclose()
        held.gate.set()
        with pytest.raises(asyncio.CancelledError if is_cancelled else errors.Closed):
            await reads[0]
        assert await reads[1] == DATA[BLOCK_BYTES : BLOCK_BYTES + 100]
        assert reads[0].cancelling() == is_cancelled


async def test_a_reader_counts_its_own_reads_alone(operator: Operator, cache: ScriptedCache) -> None:
    """Not those that its caller makes afterwards."""
    async with operator, await opened(operator, cache) as reader:
        assert await reader.read_at(BLOCK_BYTES, 100) == DATA[BLOCK_BYTES : BLOCK_BYTES + 100]
        before = counts(reader)
        assert await operator.read("k", size=5) == DATA[:5]
        assert counts(reader) == before


async def test_the_first_request_is_small(root: Path, cache: ScriptedCache) -> None:
    """Also where blocks are large."""
    async with Operator(WarmFs(str(root), cache=cache)) as operator, operator.reader("k") as reader:
        assert await reader.read_at(5, 10) == DATA[5:15]
        assert reader.statistics["stream_read_bytes_in_cache"] == TURN_BYTES
