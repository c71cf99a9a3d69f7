"""Vectored reads beside sequential reads, beside each other, by several consumers, cancelled and closed half-way."""

import asyncio
import itertools
from collections.abc import Awaitable

import pytest

from aioprefetch.blocks import fetch
from aioprefetch.errors import Closed, ObjectChanged, RangeNotSatisfied, Unavailable, Unexpected
from aioprefetch.reader.iterators import RangeIterator
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.runtime.buffers import Buffer
from aioprefetch.testing.conformance.suite import checks
from tests.stores.gated_reader import KIB, Bench, settle
from tests.unit.reader.ahead import (
    AHEAD,
    BLOCK,
    SIZE,
    ahead_bench,
    answer_all,
    assert_all_given_back,
    demands,
    fetching_ahead,
)

# Four ranges in three requests: the first two are merged.
RANGES = [(30 * BLOCK, 30 * BLOCK + 100), (30 * BLOCK + 200, 30 * BLOCK + 300), (40 * BLOCK, 40 * BLOCK + 9), (5, 25)]
GAP = 4 * KIB


def parts_of(b: Bench, ranges: list[tuple[int, int]]) -> list[bytes]:
    """What must come of them."""
    return [b.data[start:end] for start, end in ranges]


async def collect(parts: RangeIterator, found: dict[int, bytes]) -> None:
    """Consume until nothing is left, beside others."""
    async for index, part in parts:
        assert index not in found
        found[index] = part


async def next_of(parts: RangeIterator) -> tuple[int, bytes]:
    """The next result, as a coroutine."""
    return await anext(parts)


async def outcome(read: Awaitable[object]) -> object:
    """What it gives, or the class of its error."""
    try:
        return await read
    except Exception as error:
        return type(error)


# --- beside other reads ---------------------------------------------------------------------------------------------


@checks("s3a:V14", "s3a:V15")
@pytest.mark.parametrize("as_completed", [False, True])
async def test_beside_a_sequential_read_with_eight_requests_ahead(as_completed: bool) -> None:
    """Before, during and after: the cursor is that of the sequential reads, and the window goes on."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        ranges = [(2 * BLOCK + 5, 4 * BLOCK), *RANGES]
        found: dict[int, bytes] = {}
        if as_completed:
            vectored: asyncio.Future[object] = asyncio.ensure_future(
                collect(reader.iter_ranges(ranges, gap_bytes=GAP), found)
            )
        else:
            vectored = asyncio.ensure_future(reader.read_ranges(ranges, gap_bytes=GAP))
        await settle()
        sequential = asyncio.create_task(reader.read(BLOCK))
        second = asyncio.create_task(reader.read_ranges(RANGES, gap_bytes=GAP))
        await settle()
        assert [(one.request.offset, one.request.size) for one in demands(b)] == [(30 * BLOCK, 300), (40 * BLOCK, 9)]
        ahead[0].finish()
        assert await sequential == b.data[BLOCK : 2 * BLOCK]
        assert not vectored.done()
        assert reader.tell() == 2 * BLOCK
        answer_all(b)
        result = await vectored
        assert (result or [found[index] for index in range(len(ranges))]) == parts_of(b, ranges)
        assert await second == parts_of(b, RANGES)
        assert await reader.read(AHEAD * BLOCK) == b.data[2 * BLOCK : (2 + AHEAD) * BLOCK]
        spans = sorted((start, end or SIZE) for start, end in b.ranges)
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
        await reader.aclose()
        await assert_all_given_back(b)


@checks("s3a:V15")
async def test_two_calls_at_once_share_the_requests_they_have_in_common() -> None:
    """Held back both, answered in reverse; each completes in its own order."""
    async with ahead_bench(prefetch_blocks=0) as b:
        reader = await b.opened(policy="random")
        one = reader.iter_ranges(RANGES, gap_bytes=GAP)
        two = reader.iter_ranges([RANGES[2], (50 * BLOCK, 50 * BLOCK + 7)], gap_bytes=GAP)
        first, second = asyncio.create_task(next_of(one)), asyncio.create_task(next_of(two))
        await settle()
        assert [low // BLOCK for low, _ in b.ranges] == [0, 30, 40, 50]
        b.calls[3].finish()
        assert await second == (1, b.data[50 * BLOCK : 50 * BLOCK + 7])
        b.calls[2].finish()
        assert await first == (2, b.data[40 * BLOCK : 40 * BLOCK + 9])
        assert await anext(two) == (0, b.data[40 * BLOCK : 40 * BLOCK + 9])
        answer_all(b)
        found: dict[int, bytes] = {}
        await collect(one, found)
        assert found == {index: part for index, part in enumerate(parts_of(b, RANGES)) if index != 2}
        assert len(b.calls) == 4
        await reader.aclose()
        await assert_all_given_back(b)


# --- several consumers ----------------------------------------------------------------------------------------------


@checks("s3a:V16")
@pytest.mark.parametrize("consumers", [2, 7])
async def test_several_tasks_consume_one_call(consumers: int) -> None:
    """Each range is given out once, to the task that asks first; all tasks end."""
    async with ahead_bench() as b:
        reader, _ = await fetching_ahead(b)
        ranges = [(start, start + 10) for start in range(3 * BLOCK, SIZE, BLOCK)]
        parts, found = reader.iter_ranges(ranges, gap_bytes=0), dict[int, bytes]()
        tasks = [asyncio.create_task(collect(parts, found)) for _ in range(consumers)]
        await settle()
        for one in reversed(b.calls):
            one.finish()
            await settle(3)
        answer_all(b)
        await asyncio.gather(*tasks)
        assert [found[index] for index in range(len(ranges))] == parts_of(b, ranges)
        assert reader.statistics["stream_read_vectored_operations"] == 1
        await reader.aclose()
        await assert_all_given_back(b)


@checks("s3a:V16")
async def test_several_tasks_consume_one_call_in_little_memory() -> None:
    """Ranges larger than what may be asked for at once, and pieces that are evicted before their turn."""
    async with ahead_bench(memory_bytes=4 * BLOCK, prefetch_blocks=2) as b, b.reader() as reader:
        ranges = [(start, start + 3 * BLOCK) for start in range(0, SIZE - 3 * BLOCK, BLOCK)]
        parts, found = reader.iter_ranges(ranges, gap_bytes=0), dict[int, bytes]()
        await asyncio.gather(*(collect(parts, found) for _ in range(5)))
        assert [found[index] for index in range(len(ranges))] == parts_of(b, ranges)
        assert b.runtime.budget.peak_bytes <= 5 * BLOCK


@checks("s3a:V16")
@pytest.mark.parametrize("size", [10, 6 * BLOCK], ids=["small ranges", "larger than a request may be"])
@pytest.mark.parametrize("rounds", [0, 1, 3, 10, 30])
async def test_a_cancelled_consumer_takes_nothing_with_it(rounds: int, size: int) -> None:
    """The next consumer gets what the cancelled one waited for: no range is lost, none comes twice."""
    async with ahead_bench(memory_bytes=16 * BLOCK) as b:
        reader, _ = await fetching_ahead(b)
        ranges = [(start, start + size) for start in range(20 * BLOCK, 40 * BLOCK, 7 * BLOCK)]
        parts, found = reader.iter_ranges(ranges, gap_bytes=0), dict[int, bytes]()
        for responses in range(6):
            consumer = asyncio.create_task(next_of(parts))
            await settle(rounds)
            if responses > 2:
                b.gate.open = True
            consumer.cancel()
            await asyncio.wait({consumer})
            if not consumer.cancelled():
                index, part = consumer.result()
                found[index] = part
        answer_all(b)
        await collect(parts, found)
        assert [found[index] for index in range(len(ranges))] == parts_of(b, ranges)
        await reader.aclose()
        await assert_all_given_back(b)


# --- closing half-way -----------------------------------------------------------------------------------------------


@checks("s3a:V17")
@pytest.mark.parametrize("how", ["aclose", "operator", "reopen"])
async def test_closing_the_reader_fails_what_is_pending(how: str) -> None:
    """Both kinds of call, without a response of the store; opening again works."""
    async with ahead_bench() as b:
        reader, _ = await fetching_ahead(b)
        parts = reader.iter_ranges(RANGES[:3], gap_bytes=GAP)
        pending = [asyncio.create_task(outcome(one)) for one in (reader.read_ranges(RANGES), next_of(parts))]
        await settle()
        if how == "reopen":
            reopening = asyncio.create_task(reader.reopen())
        else:
            await (reader.aclose() if how == "aclose" else b.operator.aclose())
        await settle()
        assert all(task.done() for task in pending)
        assert [task.result() for task in pending] == [ObjectChanged if how == "reopen" else Closed] * 2
        assert all(one.cancelled for one in b.calls[1:] if one.request.offset >= 30 * BLOCK)
        with pytest.raises(ObjectChanged if how == "reopen" else Closed):
            await anext(parts)
        answer_all(b)
        if how == "reopen":
            await reopening
            assert await reader.read_ranges(RANGES) == parts_of(b, RANGES)
        await reader.aclose()
        b.gate.open = True
        async with b.reader() as again:
            assert await again.read_ranges(RANGES) == parts_of(b, RANGES)
        await assert_all_given_back(b)


@checks("s3a:V17")
async def test_closing_the_iterator_breaks_off_its_requests_alone() -> None:
    """Requests ahead of the cursor go on, and so does another call that shares one of its requests."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        async with reader.iter_ranges(RANGES, gap_bytes=GAP) as parts:
            waiting = asyncio.create_task(outcome(next_of(parts)))
            other = asyncio.create_task(reader.read_ranges(RANGES[2:3]))
            await settle()
        await settle()
        assert waiting.done()
        assert [one.cancelled for one in b.calls[1 + AHEAD :]] == [True, False]
        assert [one.ended for one in ahead] == [False] * AHEAD
        answer_all(b)
        assert await other == parts_of(b, RANGES[2:3])
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_call_that_ends_with_its_reader_leaves_nothing_pinned() -> None:
    """The request it waited for goes on for another reader; its bytes may be evicted like any others."""
    async with ahead_bench(prefetch_blocks=0) as b:
        reader = await b.opened()
        parts = reader.iter_ranges(RANGES[2:3])
        mine = asyncio.create_task(outcome(next_of(parts)))
        await settle()
        async with reader.clone() as other:
            theirs = asyncio.create_task(other.read_at(40 * BLOCK, 9))
            await settle()
            call = b.calls[0]
            call.deliver(5)
            await settle()
            await reader.aclose()
            assert await mine is Closed
            assert await outcome(next_of(parts)) is not None
            answer_all(b)
            assert await theirs == b.data[40 * BLOCK : 40 * BLOCK + 9]
        await assert_all_given_back(b)


async def test_nothing_comes_of_an_iterator_that_was_closed_while_a_large_range_was_under_way() -> None:
    async with ahead_bench(memory_bytes=16 * BLOCK, prefetch_blocks=0) as b:
        reader = await b.opened()
        parts = reader.iter_ranges([(10 * BLOCK, 30 * BLOCK)])
        waiting = asyncio.create_task(outcome(next_of(parts)))
        await settle()
        await parts.aclose()
        answer_all(b)
        assert await waiting is StopAsyncIteration
        assert await outcome(next_of(parts)) is StopAsyncIteration
        await reader.aclose()
        await assert_all_given_back(b)


# --- failures -------------------------------------------------------------------------------------------------------


@checks("s3a:V19")
@pytest.mark.parametrize("prefetched", [False, True])
async def test_a_failed_request_fails_exactly_its_ranges(prefetched: bool) -> None:
    """Three of five ranges come of one request. The others are given out before and after its failure."""
    async with ahead_bench(prefetch_blocks=0) as b:
        reader = await b.opened()
        ranges = [(low, low + 50) for low in (50 * BLOCK, 20 * BLOCK, 20 * BLOCK + 70, 10 * BLOCK, 20 * BLOCK + 30)]
        if prefetched:
            reader.will_need([(20 * BLOCK, 21 * BLOCK)])
            await settle()
        parts = reader.iter_ranges(ranges, gap_bytes=GAP)
        found: dict[int, bytes] = {}
        consumer = asyncio.create_task(collect(parts, found))
        await settle()
        by_start = {one.request.offset: one for one in b.calls}
        by_start[10 * BLOCK].finish()
        await settle()
        assert set(found) == {3}
        by_start[20 * BLOCK].fail(Unavailable("the merged request broke"))
        await settle()
        if prefetched:  # Asked for again, as demand: only if that fails too it concerns the caller.
            assert not consumer.done()
            (again,) = [one for one in demands(b) if one.request.offset == 20 * BLOCK]
            again.fail(Unavailable("the merged request broke"))
        with pytest.raises(Unavailable, match="merged request"):
            await consumer
        answer_all(b)
        await collect(parts, found)
        assert found == {0: b.data[50 * BLOCK : 50 * BLOCK + 50], 3: b.data[10 * BLOCK : 10 * BLOCK + 50]}
        missing = [ranges[index] for index in (1, 2, 4)]
        assert await reader.read_ranges(missing) == parts_of(b, missing)
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_failed_allocation_gives_its_reservation_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is memory in the budget and none in the machine: the reads fail, and nothing is counted for ever."""
    async with ahead_bench() as b:
        reader, _ = await fetching_ahead(b)
        reading = asyncio.create_task(outcome(reader.read_ranges(RANGES)))
        await settle()

        def fail(size_bytes: int, budget: MemoryBudget) -> Buffer:
            raise MemoryError(size_bytes)

        monkeypatch.setattr(fetch, "new_buffer", fail)
        for one in b.calls:
            one.finish()
        assert await reading is Unexpected
        await settle()
        assert b.runtime.budget.used_bytes == BLOCK
        monkeypatch.undo()
        b.gate.open = True
        assert await reader.read_ranges(RANGES) == parts_of(b, RANGES)
        await reader.aclose()
        await assert_all_given_back(b)


@checks("s3a:V11")
@pytest.mark.parametrize("policy", ["sequential", "adaptive", "random", "parquet"])
@pytest.mark.parametrize("etag_known", [False, True])
async def test_a_declared_size_beyond_the_end_is_an_early_end(policy: str, etag_known: bool) -> None:
    """Never a short part, whether the store answers 416 or with fewer bytes."""
    async with ahead_bench(10 * BLOCK + 100) as b:
        stat = await b.operator.stat("k")
        etag = stat.etag if etag_known else None
        beyond = [(10 * BLOCK + 50, 10 * BLOCK + 150), (12 * BLOCK, 12 * BLOCK + 10)]
        for one in beyond:
            async with b.reader(policy=policy, size=20 * BLOCK, etag=etag) as reader:
                with pytest.raises(RangeNotSatisfied) as early:
                    await reader.read_ranges([one], gap_bytes=0)
                assert isinstance(early.value, EOFError)
                assert early.value.total == 10 * BLOCK + 100
                assert reader.size == 10 * BLOCK + 100
        await assert_all_given_back(b)


# --- how ranges are merged ------------------------------------------------------------------------------------------
