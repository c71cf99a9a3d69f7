"""Leaving a stream before its end: what was fetched ahead of it alone is broken off, and its memory is back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioprefetch.errors import WrongLoop
from aioprefetch.reader.growth import GROWTHS
from aioprefetch.reader.iterators import ChunkIterator
from aioprefetch.reader.policy import find_policy
from aioprefetch.reader.reader import RangeReader
from aioprefetch.reader.window import Run, Windows
from tests.stores.gated_reader import Bench, Call, settle
from tests.unit.reader.ahead import AHEAD, BLOCK, ahead_bench, answer_all, assert_all_given_back

CHUNK = 1000


def starts(calls: list[Call]) -> list[int]:
    """The blocks at which requests begin."""
    return [call.request.offset // BLOCK for call in calls]


def live(b: Bench) -> list[int]:
    """The blocks that are on their way."""
    return sorted(starts([call for call in b.calls if not call.ended]))


async def streaming(b: Bench, reader: RangeReader, *, at: int = 0) -> ChunkIterator:
    """A stream that has delivered its first chunk, with eight requests of a block before it that get no response."""
    b.gate.open = False
    before = len(b.calls)
    reader.seek(at)
    chunks = reader.stream(CHUNK)
    first = asyncio.create_task(anext(chunks))
    await settle()
    b.calls[before].finish()
    assert await first == b.data[at : at + CHUNK]
    await settle()
    block = at // BLOCK
    assert set(range(block + 1, block + 1 + AHEAD)) <= set(live(b))
    return chunks


@asynccontextmanager
async def stream_bench(**options: object) -> AsyncIterator[tuple[Bench, RangeReader]]:
    """A bench and a reader of it; in the end everything must have come back."""
    async with ahead_bench() as b:
        reader = b.reader(policy="adaptive", prefetch_growth="step", **options)
        yield b, reader
        await reader.aclose()
        await assert_all_given_back(b)


async def test_what_was_under_way_is_broken_off_and_its_memory_is_back() -> None:
    async with stream_bench() as (b, reader):
        chunks = await streaming(b, reader)
        assert b.runtime.budget.used_bytes == (1 + AHEAD) * BLOCK
        async with chunks:
            pass
        await settle()
        assert all(call.cancelled for call in b.calls[1:])
        assert b.runtime.budget.used_bytes == b.runtime.budget.held_bytes == BLOCK
        assert (reader.tell(), reader.closed) == (CHUNK, False)


async def test_memory_that_was_waited_for_is_not_waited_for_any_more() -> None:
    async with ahead_bench(memory_bytes=16 * BLOCK) as b:
        others = b.runtime.budget.request(10 * BLOCK, "demand")
        reader = b.reader(policy="adaptive", prefetch_growth="step")
        b.gate.open = False
        chunks = reader.stream(CHUNK)
        first = asyncio.create_task(anext(chunks))
        while not first.done():
            for call in b.calls:
                if call.request.offset == 0:
                    call.finish()
            await settle()
        assert b.runtime.budget.waiting > 0
        await chunks.aclose()
        assert b.runtime.budget.waiting == 0
        b.runtime.budget.cancel(others)
        await reader.aclose()
        await assert_all_given_back(b)


async def test_what_has_arrived_stays_and_reading_on_works() -> None:
    async with stream_bench() as (b, reader):
        chunks = await streaming(b, reader)
        b.calls[1].finish()
        b.calls[2].deliver(100)
        await settle()
        await chunks.aclose()
        await settle()
        asked = len(b.calls)
        assert await reader.read_at(BLOCK, BLOCK + 100) == b.data[BLOCK : 2 * BLOCK + 100]
        assert len(b.calls) == asked
        answer_all(b)
        assert b"".join([chunk async for chunk in reader.stream()]) == b.data[CHUNK:]


async def test_a_run_by_position_goes_on() -> None:
    """Two runs in one reader: the stream at the start, and a task that reads in order further on."""
    async with stream_bench() as (b, reader):
        b.gate.open = True
        await reader.read_at(30 * BLOCK, BLOCK)
        b.gate.open = False
        further = asyncio.create_task(reader.read_at(31 * BLOCK, BLOCK))
        await settle()
        chunks = await streaming(b, reader)
        ahead = [block for block in live(b) if block > 30]
        assert len(ahead) == 1 + AHEAD
        await chunks.aclose()
        await settle()
        assert live(b) == ahead
        answer_all(b)
        assert await further == b.data[31 * BLOCK : 32 * BLOCK]


async def test_where_two_windows_overlap_the_other_run_keeps_its_own() -> None:
    async with stream_bench() as (b, reader):
        chunks = await streaming(b, reader)
        far = asyncio.create_task(reader.read_at(5 * BLOCK, BLOCK))
        await settle()
        assert live(b) == list(range(1, 1 + AHEAD))  # Nothing that is under way is asked for again.
        await chunks.aclose()
        await settle()
        assert 5 in live(b)
        answer_all(b)
        assert await far == b.data[5 * BLOCK : 6 * BLOCK]


async def test_what_another_reader_waits_for_goes_on() -> None:
    async with stream_bench() as (b, reader):
        chunks = await streaming(b, reader)
        clone = reader.clone()
        theirs = asyncio.create_task(clone.read_at(3 * BLOCK, 10))
        await settle()
        await chunks.aclose()
        await settle()
        assert 3 in live(b)
        assert not {1, 2, 4, 5, 6, 7, 8} & set(live(b))
        answer_all(b)
        assert await theirs == b.data[3 * BLOCK : 3 * BLOCK + 10]
        await clone.aclose()


async def test_a_stream_that_was_left_by_a_seek_ends_no_other_stream() -> None:
    """The cursor streams elsewhere by now: closing the first stream late breaks off nothing of the second."""
    async with stream_bench() as (b, reader):
        first = await streaming(b, reader)
        second = await streaming(b, reader, at=30 * BLOCK)
        ahead = live(b)
        await first.aclose()
        await settle()
        assert live(b) == [block for block in ahead if block > 30]
        await second.aclose()
        await settle()
        assert live(b) == []


async def test_closed_while_a_chunk_is_waited_for() -> None:
    async with stream_bench() as (b, reader):
        chunks = await streaming(b, reader, at=BLOCK - CHUNK)
        waiting = asyncio.create_task(anext(chunks))
        await settle()
        await chunks.aclose()
        b.calls[1].finish()
        assert await waiting == b.data[BLOCK : BLOCK + CHUNK]
        await settle()
        assert live(b) == []
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)


async def test_a_new_stream_looks_ahead_again() -> None:
    async with stream_bench() as (b, reader):
        await (await streaming(b, reader)).aclose()
        asked = len(b.calls)
        async with reader.stream(CHUNK) as chunks:
            await anext(chunks)
            await settle()
            assert starts(b.calls[asked:]) == list(range(1, 1 + AHEAD // 2))  # Half as far: it was in vain once.


@pytest.mark.parametrize(("policy", "ahead"), [("random", False), ("sequential", True), ("whole-file", True)])
async def test_other_policies(policy: str, ahead: bool) -> None:
    async with ahead_bench() as b:
        reader = b.reader(policy=policy)
        await reader.read(10)
        b.gate.open = False
        async with reader.stream(10) as chunks:
            waiting = asyncio.create_task(anext(chunks))
            await settle()
            if not ahead:
                b.calls[-1].finish()
            assert await waiting == b.data[10:20]
            await settle()
            assert (live(b) != []) is ahead
        await settle()
        assert live(b) == []
        b.gate.open = True
        await reader.aclose()
        await assert_all_given_back(b)


async def test_after_the_reader_or_before_the_first_chunk_it_does_nothing() -> None:
    async with stream_bench() as (b, reader):
        unused = reader.stream()
        await unused.aclose()
        chunks = await streaming(b, reader)
        await reader.aclose()
        await chunks.aclose()
        await chunks.aclose()
        assert reader.closed


async def test_not_from_another_loop() -> None:
    async with stream_bench() as (b, reader):
        chunks = await streaming(b, reader)
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(lambda: asyncio.run(chunks.aclose()))
        assert len(live(b)) == AHEAD
        await chunks.aclose()
        await settle()
        assert live(b) == []


def two_runs() -> tuple[Windows, Run, Run]:
    """Blocks of 10 bytes: a run at 0 that has asked for all before 80, and one at 50 that has asked for [50, 70)."""
    policy = find_policy("adaptive", operation="reader", path="k")
    windows = Windows(policy, GROWTHS["stall"], block_bytes=10, blocks_max=8)
    windows.stop = 1000
    run = windows.expect(0)
    run.requested_end = 80
    other = Run(40, 50, 50, 70, 2, established=True)
    windows.runs.append(other)
    return windows, run, other


def test_what_two_runs_have_asked_for_is_the_other_ones_now() -> None:
    windows, run, other = two_runs()
    assert windows.leave(run, 0) == [(0, 50), (70, 80)]
    assert (run.requested_end, other.position, other.requested_end, windows.positions) == (0, 50, 70, (50,))


def test_runs_that_have_become_one_are_left_alone() -> None:
    windows, run, _ = two_runs()
    run.position = 50
    assert windows.leave(run, 50) == []
    assert windows.runs == [run]
    assert run.requested_end == 80
