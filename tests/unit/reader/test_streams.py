"""A long run lives in its window: it recycles the blocks behind it, and nothing that a reader may come back to."""

import asyncio
import mmap
import os
import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import InvalidType
from aioprefetch.reader.growth import GROWTHS
from aioprefetch.reader.policy import POLICIES
from aioprefetch.reader.reader import RangeReader
from aioprefetch.reader.window import Windows
from aioprefetch.testing import run_virtual
from aioprefetch.testing.oracle import assert_same_bytes
from aioprefetch.values import ReadReply, ReadRequest
from tests.probes.search import scenario_seeds
from tests.profile import chosen, each_of
from tests.stores.gated_reader import KIB, MIB, Bench, bench, resident_blocks
from tests.stores.verb_layer import VerbLayer

BLOCK = 64 * KIB
MEMORY_BLOCKS = 32
AHEAD = 4
STEP = 16 * KIB


def a_bench(blocks: int, **options: Any) -> Any:
    """A store with one object of that many blocks, and memory for 32."""
    return bench(blocks * BLOCK, memory_bytes=MEMORY_BLOCKS * BLOCK, prefetch_blocks=AHEAD, **options)


async def by_cursor(b: Bench, reader: RangeReader) -> AsyncIterator[bytes]:
    """By ``read``."""
    while chunk := await reader.read(STEP):
        yield chunk


async def by_position(b: Bench, reader: RangeReader) -> AsyncIterator[bytes]:
    """By ``read_at``."""
    for start in range(0, len(b.data), STEP):
        yield await reader.read_at(start, STEP)


async def by_stream(b: Bench, reader: RangeReader) -> AsyncIterator[bytes]:
    """By ``stream``."""
    async with reader.stream(chunk_bytes=STEP) as chunks:
        async for chunk in chunks:
            yield chunk


async def read_through(b: Bench, reader: RangeReader, way: Callable[..., AsyncIterator[bytes]] = by_cursor) -> int:
    """Read and check the whole object; the most blocks that were in memory."""
    position = most = 0
    async for chunk in way(b, reader):
        assert_same_bytes(chunk, b.data[position : position + len(chunk)], offset=position, what="the stream")
        position += len(chunk)
        most = max(most, len(resident_blocks(reader)))
    assert position == len(b.data)
    return most


@each_of("way", [by_cursor, by_position, by_stream])
@each_of("policy", ["adaptive", "sequential", "whole-file"])
async def test_a_long_stream_holds_its_window_and_little_more(
    policy: str, way: Callable[..., AsyncIterator[bytes]]
) -> None:
    async with a_bench(4 * MEMORY_BLOCKS) as b, b.reader(policy=policy) as reader:
        assert await read_through(b, reader, way) <= AHEAD + 6
        assert sum(call.request.size or 0 for call in b.calls) == len(b.data)
        assert b.runtime.budget.peak_bytes <= (AHEAD + 7) * BLOCK


async def test_its_blocks_are_received_into_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = mmap.mmap

    def noting(descriptor: int, size_bytes: int, **options: int) -> mmap.mmap:
        sizes.append(size_bytes)
        return real(descriptor, size_bytes, **options)

    block = 2 * MIB
    async with bench(24 * block, block_bytes=block, memory_bytes=16 * block, prefetch_blocks=2) as b, b.reader() as r:
        monkeypatch.setattr(mmap, "mmap", noting)
        while await r.read(MIB):
            pass
    assert 3 <= len(sizes) <= 8


@pytest.mark.parametrize("policy", ["adaptive", "sequential", "whole-file"])
async def test_an_object_that_fits_into_half_of_memory_stays(policy: str) -> None:
    """As 100 MiB in 256."""
    async with a_bench(MEMORY_BLOCKS * 100 // 256) as b, b.reader(policy=policy) as reader:
        await read_through(b, reader)
        calls = len(b.calls)
        reader.seek(0)
        await read_through(b, reader)
        assert len(b.calls) == calls


@each_of("policy", ["adaptive", "sequential", "whole-file"])
@each_of("first_blocks", [1, 3, 12])
async def test_after_one_seek_backward_what_fits_into_memory_stays(first_blocks: int, policy: str) -> None:
    """As 200 MiB in 256. What had been recycled before the seek is fetched once more by the next pass."""
    async with a_bench(MEMORY_BLOCKS * 200 // 256) as b, b.reader(policy=policy) as reader:
        await reader.read(first_blocks * BLOCK)
        reader.seek(0)
        await read_through(b, reader)
        calls = len(b.calls)
        reader.seek(0)
        await read_through(b, reader)
        assert len(b.calls) == calls


async def test_100_and_200_mib_in_the_default_memory() -> None:
    """The same with the default block and memory. Quick: an eighth of it all."""
    scale = chosen(quick=8, full=1)
    block, memory = 8 * MIB // scale, 256 * MIB // scale
    for size, seeks_first in ((100 * MIB // scale, False), (200 * MIB // scale, True)):
        async with bench(size, block_bytes=block, memory_bytes=memory) as b, b.reader() as reader:
            if seeks_first:
                await reader.read(MIB)
                reader.seek(0)
            for _ in range(2):
                reader.seek(0)
                while await reader.read(MIB):
                    pass
            assert sum(call.request.size or 0 for call in b.calls) == size


async def test_the_first_and_the_last_block_stay() -> None:
    async with a_bench(2 * MEMORY_BLOCKS) as b, b.reader() as reader:
        await read_through(b, reader)
        calls = len(b.calls)
        assert await reader.read_at(0, BLOCK) == b.data[:BLOCK]
        assert await reader.read_at(len(b.data) - BLOCK, BLOCK) == b.data[-BLOCK:]
        assert len(b.calls) == calls


async def test_blocks_that_were_read_twice_stay() -> None:
    async with a_bench(2 * MEMORY_BLOCKS) as b, b.reader() as reader:
        for start in range(0, 12 * BLOCK, STEP):
            await reader.read_at(start, STEP)
            if start == 3 * BLOCK:
                async with reader.clone() as other:
                    await other.read_at(start, STEP)
        assert 3 in resident_blocks(reader)
        assert not {1, 2, 4, 5} & resident_blocks(reader)


async def test_viewed_blocks_stay_as_they_are() -> None:
    async with a_bench(2 * MEMORY_BLOCKS) as b, b.reader() as reader:
        views = []
        for start in range(0, len(b.data), BLOCK):
            if start == 5 * BLOCK:
                views.append((start, await reader.view_at(start, BLOCK)))
            else:
                await reader.read_at(start, BLOCK)
        assert 5 in resident_blocks(reader)
        assert all(view == b.data[start : start + BLOCK] for start, view in views)


async def test_blocks_ahead_of_another_cursor_stay() -> None:
    async with a_bench(MEMORY_BLOCKS - 6) as b, b.reader() as reader, reader.clone() as behind:
        behind.seek(2 * BLOCK)
        assert await behind.read(10) == b.data[2 * BLOCK : 2 * BLOCK + 10]
        await read_through(b, reader)
        calls = len(b.calls)
        behind.seek(4 * BLOCK)
        while await behind.read(STEP):
            pass
        assert len(b.calls) == calls


@pytest.mark.parametrize("first", [0, STEP])
async def test_a_seek_that_leads_behind_no_read_ends_nothing(first: int) -> None:
    """The size is found out by a seek to the end and back; nothing was read in between."""
    async with a_bench(4 * MEMORY_BLOCKS) as b, b.reader(size=4 * MEMORY_BLOCKS * BLOCK) as reader:
        start = len(await reader.read(first))
        assert reader.seek(0, os.SEEK_END) == reader.tell() == len(b.data)
        reader.seek(start + BLOCK)
        reader.seek(start)
        most = 0
        while await reader.read(STEP):
            most = max(most, len(resident_blocks(reader)))
        assert most <= AHEAD + 6


async def test_a_seek_drops_nothing() -> None:
    async with a_bench(4 * MEMORY_BLOCKS) as b, b.reader() as reader:
        await reader.read(9 * BLOCK)
        for target in (60 * BLOCK, 2 * BLOCK, 0):
            before = resident_blocks(reader)
            reader.seek(target)
            assert resident_blocks(reader) == before


@pytest.mark.parametrize(
    ("blocks", "keep_behind", "stays"),
    [(MEMORY_BLOCKS - 6, None, False), (MEMORY_BLOCKS - 6, True, True), (12, None, True), (12, False, False)],
)
async def test_keep_behind_decides_in_objects_of_any_size(blocks: int, keep_behind: bool | None, stays: bool) -> None:
    async with a_bench(blocks) as b, b.reader(keep_behind=keep_behind) as reader:
        await read_through(b, reader)
        assert (len(resident_blocks(reader)) == blocks) is stays


async def test_a_reader_that_goes_back_by_position_keeps_what_is_behind() -> None:
    async with a_bench(MEMORY_BLOCKS - 6) as b, b.reader() as reader:
        await reader.read_at(8 * BLOCK, STEP)
        await read_through(b, reader, by_position)
        assert len(resident_blocks(reader)) == MEMORY_BLOCKS - 6


async def test_keep_behind_of_the_wrong_type_is_refused() -> None:
    async with a_bench(1) as b:
        with pytest.raises(InvalidType, match="keep_behind"):
            b.reader(keep_behind="no")


def test_a_late_report_is_one_of_the_last_hit_of_its_run() -> None:
    """Another thread made the hit, and 20 more bytes were read meanwhile, at which the run stands already."""
    windows = Windows(
        POLICIES["adaptive"], GROWTHS["stall"], block_bytes=8, blocks_max=4, last_end=lambda end: max(end, 36)
    )
    windows.stop = 1000
    windows.on_read(0, 4, missing=True, stalled=True)
    windows.on_read(36, 38, missing=True, stalled=True)
    for start in (4, 12, 18, 36):
        decision = windows.on_read(start, start + 2, missing=False, stalled=False, is_late=True)
        assert decision.continues
        assert [run.position for run in windows.runs] == [38]
    assert not windows.has_gone_back
    windows.on_read(30, 32, missing=False, stalled=False)
    assert windows.has_gone_back


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=30))
def test_nothing_is_behind_a_reader_that_goes_back(reads: list[tuple[int, int]]) -> None:
    """And the end of the blocks behind a run is never after the read."""
    windows = Windows(POLICIES["adaptive"], GROWTHS["stall"], block_bytes=8, blocks_max=4)
    windows.stop = 100
    went_back, front = False, 0
    for start, length in reads:
        went_back = went_back or start + 8 < front - length
        decision = windows.on_read(start, start + length, missing=True, stalled=True)
        assert decision.behind <= start
        if decision.behind:
            assert not windows.has_gone_back
        front = max(front, start + length)


class SlowReads(VerbLayer):
    """Each request takes another time, so that responses overtake each other."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        await asyncio.sleep(self.chance.choice([0.001, 0.002, 0.003, 0.02]))
        return await inner.read(request, sink)


@pytest.mark.scenario
@pytest.mark.parametrize("policy", ["adaptive", "sequential"])
@pytest.mark.parametrize(("workers", "step"), [(4, 8 * BLOCK), (3, 16 * BLOCK), (8, 4 * BLOCK), (5, 5 * BLOCK // 2)])
def test_workers_that_read_in_order_fetch_each_byte_once(workers: int, step: int, policy: str) -> None:
    """Reads of one reader end in another order than they began; what one of them waits for is behind none.

    While a slow read waits, all that the others read behind it stays. When it has ended, the next reads recycle that.
    """

    async def check(seed: int) -> None:
        layer = SlowReads(random.Random(seed))
        memory_bytes = 320 * BLOCK
        async with (
            bench(192 * BLOCK, memory_bytes=memory_bytes, prefetch_blocks=16, layers=[layer]) as b,
            b.reader(policy=policy) as reader,
        ):
            alone = len(b.data) - 32 * BLOCK
            starts = iter(range(0, alone, step))

            async def work() -> None:
                for start in starts:
                    chunk = await reader.read_at(start, step)
                    assert_same_bytes(chunk, b.data[start : start + step], offset=start, what="a worker's read")

            await asyncio.gather(*(work() for _ in range(workers)))
            starts = iter(range(alone, len(b.data), step))
            await work()
            assert sum(call.request.size or 0 for call in b.calls) == len(b.data)
            assert len(resident_blocks(reader)) <= 16 + 8

    for seed in scenario_seeds(quick=3, full=30):
        run_virtual(partial(check, seed))
