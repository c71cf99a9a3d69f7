"""Seeks, closing, failures and cancellations while eight requests are on their way in front of a reader."""

import asyncio
import threading

import pytest

from aioprefetch.errors import Closed, Unavailable, WrongLoop
from aioprefetch.reader.policy import PolicyName
from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen, each_of
from tests.stores.gated_reader import MIB, Call, reads_of, settle
from tests.unit.reader.ahead import (
    AHEAD,
    BLOCK,
    READS,
    ahead_bench,
    answer_all,
    assert_all_given_back,
    demands,
    fetch_tasks,
    fetching_ahead,
    turns,
)


def starts(calls: list[Call]) -> list[int]:
    """The numbers of the blocks at which requests begin."""
    return [one.request.offset // BLOCK for one in calls]


# --- seeks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["sequential", "adaptive"])
async def test_after_a_seek_away_the_read_starts_its_request_in_the_same_turn(policy: PolicyName) -> None:
    """It waits for none of the eight, which are broken off with it."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b, policy="sequential")
        reader.set_policy(policy)
        reader.seek(40 * BLOCK)
        reading = asyncio.create_task(reader.read(10))
        await turns(2)  # In the first the read takes its step, in the second the store has its request.
        assert starts(demands(b)) == [40]
        assert all(one.cancelled for one in ahead)
        demands(b)[0].finish()
        assert await reading == b.data[40 * BLOCK : 40 * BLOCK + 10]
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_seek_away_starts_its_request_at_once_also_when_memory_is_full() -> None:
    """What the eight have reserved is the memory that is missing."""
    async with ahead_bench(memory_bytes=16 * BLOCK) as b:
        reader, ahead = await fetching_ahead(b)
        others = b.runtime.budget.request(8 * BLOCK, "demand")
        assert b.runtime.budget.used_bytes > b.runtime.budget.limit_bytes - BLOCK
        reader.seek(40 * BLOCK)
        reading = asyncio.create_task(reader.read(10))
        await turns(2)
        assert starts(demands(b)) == [40]
        assert all(one.cancelled for one in ahead)
        demands(b)[0].finish()
        await reading
        b.runtime.budget.cancel(others)
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_seek_away_keeps_what_lies_near_the_new_position() -> None:
    """Five blocks back from what was fetched ahead: its first half is what comes next, its second half is far."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b, at=20 * BLOCK, size=10)
        assert starts(ahead) == list(range(21, 29))
        reader.seek(15 * BLOCK)
        reading = asyncio.create_task(reader.read(10))
        await settle()
        assert [one.cancelled for one in ahead] == [False] * 3 + [True] * 5
        assert starts(demands(b)) == [15]
        for one in b.calls:
            one.finish()
        assert await reading == b.data[15 * BLOCK : 15 * BLOCK + 10]
        await settle()
        asked = len(b.calls)
        assert await reader.read_at(21 * BLOCK, 3 * BLOCK) == b.data[21 * BLOCK : 24 * BLOCK]
        assert len(b.calls) == asked
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_seek_away_keeps_what_another_task_waits_for() -> None:
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        async with reader.clone() as twin:
            waiting = asyncio.create_task(twin.read_at(5 * BLOCK, 10))
            await settle()
            reader.seek(40 * BLOCK)
            reading = asyncio.create_task(reader.read(10))
            await settle()
            assert [one.cancelled for one in ahead] == [number != 5 for number in range(1, AHEAD + 1)]
            for one in b.calls:
                one.finish()
            assert await waiting == b.data[5 * BLOCK : 5 * BLOCK + 10]
            await reading
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_seek_away_and_back_without_reading_disturbs_nothing() -> None:
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        for target in (40 * BLOCK, 0, 2 * MIB, BLOCK):
            reader.seek(target)
            await settle()
        assert [one.ended for one in ahead] == [False] * AHEAD
        for one in ahead:
            one.finish()
        assert await reader.read(AHEAD * BLOCK) == b.data[BLOCK : (1 + AHEAD) * BLOCK]
        assert demands(b) == []
        await reader.aclose()
        await assert_all_given_back(b)


async def test_reads_by_position_elsewhere_break_nothing_off() -> None:
    """Only the cursor leaves a run: a task that reads elsewhere says nothing about the one that streams."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        elsewhere = [asyncio.create_task(reader.read_at(start * BLOCK, 10)) for start in (30, 45, 60)]
        await settle()
        assert [one.ended for one in ahead] == [False] * AHEAD
        for one in b.calls:
            one.finish()
        await asyncio.gather(*elsewhere)
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_stream_looks_ahead_from_its_first_chunk_on_also_where_that_is_resident() -> None:
    async with ahead_bench() as b:
        reader = b.reader(policy="adaptive", prefetch_growth="step")
        await reader.read(10)
        b.gate.open = False
        async with reader.stream(1000) as chunks:
            assert await anext(chunks) == b.data[10:1010]
            await settle()
            assert starts(b.calls[1:]) == list(range(1, 1 + AHEAD))
        await reader.aclose()


# --- closing --------------------------------------------------------------------------------------------------------


@checks("reliability:C12")
async def test_aclose_waits_for_no_response() -> None:
    """It ends in its first step, with eight requests under way that will never be answered."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        reading = asyncio.create_task(reader.read_at(30 * BLOCK, 10))
        await settle()
        closing = reader.aclose()
        with pytest.raises(StopIteration):
            closing.send(None)
        assert b.runtime.budget.used_bytes == BLOCK  # The block that was read: it stays, for the next reader.
        with pytest.raises(Closed):
            await reading
        await settle()
        assert all(one.cancelled for one in b.calls[1:])
        assert len(ahead) == AHEAD
        await assert_all_given_back(b)


@checks("reliability:C12")
async def test_aclose_of_the_operator_waits_for_no_response_either() -> None:
    async with ahead_bench() as b:
        reader, _ = await fetching_ahead(b)
        reading = asyncio.create_task(reader.read_at(3 * BLOCK, 10))
        await settle()
        before = asyncio.all_tasks()
        runtime = b.runtime
        await b.operator.aclose()
        with pytest.raises(Closed):
            await reading
        assert all(one.cancelled for one in b.calls[1:])
        assert {task for task in before if not task.done()} == {asyncio.current_task()}
        assert runtime.budget.used_bytes == 0
        await reader.aclose()


async def test_unbuffer_breaks_off_what_is_fetched_ahead() -> None:
    """The cursor stays, and the next reads open a new window."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        await reader.unbuffer()
        await settle()
        assert all(one.cancelled for one in ahead)
        assert fetch_tasks() == []
        assert b.runtime.budget.used_bytes == 0
        assert reader.tell() == BLOCK
        b.calls.clear()
        reading = asyncio.create_task(reader.read(BLOCK))
        await settle()
        assert starts(demands(b)) == [1]
        assert starts(b.calls[1:]) == list(range(2, 2 + AHEAD))
        b.calls[0].finish()
        assert await reading == b.data[BLOCK : 2 * BLOCK]
        await reader.aclose()
        await assert_all_given_back(b)


async def test_unbuffer_beside_another_reader_breaks_off_its_own_requests_alone() -> None:
    """Blocks may be the other's, requests ahead of this reader are not, unless the other waits for one."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        async with reader.clone() as other:
            waiting = asyncio.create_task(other.read_at(2 * BLOCK, 10))
            await settle()
            await reader.unbuffer()
            await settle()
            assert [one.cancelled for one in ahead] == [number != 2 for number in range(1, AHEAD + 1)]
            ahead[1].finish()
            assert await waiting == b.data[2 * BLOCK : 2 * BLOCK + 10]
            assert reads_of(other).hit(0, 10) == b.data[:10]
        await reader.aclose()
        await assert_all_given_back(b)


# --- failures -------------------------------------------------------------------------------------------------------


def break_off(call: Call, moment: str) -> int:
    """Fail a request; how many bytes had come."""
    arrived = {"before its head": None, "after its head": 0, "in the middle": BLOCK // 2}[moment]
    if arrived is not None:
        call.deliver(arrived)
    call.fail(Unavailable("what was fetched ahead broke"))
    return arrived or 0


MOMENTS = ["before its head", "after its head", "in the middle"]


@checks("reliability:C11")
@pytest.mark.parametrize("awaited", [False, True], ids=["failed before", "failed while awaited"])
@pytest.mark.parametrize(
    ("moment", "way"),
    chosen(
        quick=[(MOMENTS[index % 3], way) for index, way in enumerate(READS)],
        full=[(moment, way) for moment in MOMENTS for way in READS],
    ),
)
async def test_a_failed_prefetch_becomes_a_demand_read(way: str, moment: str, awaited: bool) -> None:
    """Which asks for the missing bytes only, and succeeds."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        reading = asyncio.ensure_future(READS[way](reader, 3 * BLOCK, BLOCK)) if awaited else None
        await settle()
        arrived = break_off(ahead[2], moment)
        await settle()
        reading = reading or asyncio.ensure_future(READS[way](reader, 3 * BLOCK, BLOCK))
        await settle()
        (demand,) = demands(b)
        assert (demand.request.offset, demand.request.size) == (3 * BLOCK + arrived, BLOCK - arrived)
        demand.finish()
        assert await reading == b.data[3 * BLOCK : 4 * BLOCK]
        assert reader.statistics["stream_read_exceptions"] == 0
        await reader.aclose()
        await assert_all_given_back(b)


@checks("reliability:C10")
@each_of("way", READS)
async def test_only_the_failure_of_a_demand_read_reaches_the_caller(way: str) -> None:
    """And leaves a reader that reads on."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        reading = asyncio.ensure_future(READS[way](reader, 3 * BLOCK, BLOCK))
        await settle()
        break_off(ahead[2], "in the middle")
        await settle()
        demands(b)[0].fail(Unavailable("the read itself broke"))
        with pytest.raises(Unavailable, match="the read itself broke"):
            await reading
        assert reader.statistics["stream_read_exceptions"] == 1
        answer_all(b)
        assert await READS[way](reader, 3 * BLOCK, BLOCK) == b.data[3 * BLOCK : 4 * BLOCK]
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_read_over_a_failed_prefetch_does_not_wait_for_the_next_one() -> None:
    """It asks for what failed while the following block is still on its way."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b, prefetch_growth="stall", blocks=7)
        reading = asyncio.create_task(reader.read(2 * BLOCK))
        await settle()
        break_off(ahead[0], "before its head")
        await settle()
        assert starts(demands(b)) == [1]
        answer_all(b)
        assert await reading == b.data[BLOCK : 3 * BLOCK]
        await reader.aclose()


# --- cancellation ---------------------------------------------------------------------------------------------------


@each_of("way", READS)
async def test_a_cancelled_read_leaves_what_is_fetched_ahead_alone(way: str) -> None:
    """Also the request it waited for: the next read finds it, and nothing is asked for again."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        reading = asyncio.ensure_future(READS[way](reader, 3 * BLOCK, BLOCK))
        await settle()
        reading.cancel()
        await asyncio.wait({reading})
        await settle()
        assert reading.cancelled()
        assert [one.ended for one in ahead] == [False] * AHEAD
        for one in b.calls:
            one.finish()
        await settle()
        asked = [one.request.offset for one in b.calls]
        assert await READS[way](reader, 3 * BLOCK, BLOCK) == b.data[3 * BLOCK : 4 * BLOCK]
        assert len(set(asked)) == len(asked)
        assert demands(b) == []
        await reader.aclose()
        await assert_all_given_back(b)


# --- another loop ---------------------------------------------------------------------------------------------------


@checks("reliability:C18")
async def test_another_loop_is_refused_and_disturbs_nothing() -> None:
    """Every way to read, with eight requests on their way."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        refused: list[str] = []

        async def abroad() -> None:
            for way, read in READS.items():
                with pytest.raises(WrongLoop):
                    await read(reader, 3 * BLOCK, BLOCK)
                refused.append(way)
            with pytest.raises(WrongLoop):
                reader.will_need([(0, 10)])

        thread = threading.Thread(target=lambda: asyncio.run(abroad()))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert refused == list(READS)
        assert reader.tell() == BLOCK
        await settle()
        assert [one.ended for one in ahead] == [False] * AHEAD
        await reader.aclose()
        await assert_all_given_back(b)
