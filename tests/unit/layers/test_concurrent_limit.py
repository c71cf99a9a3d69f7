"""ConcurrentLimit: how many are in flight, who goes first, who gives up, and that no slot is ever lost."""

import asyncio
import pickle
from typing import Any

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConfigInvalid, TimedOut, Unavailable
from aioprefetch.layers.concurrent_limit import ConcurrentLimitLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.services.memory import Memory
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import Injection
from aioprefetch.values import Lane, ReadRequest, StatRequest, WriteRequest
from tests.stores.layer_stack import KIB, open_stack, pattern, settle, slots_of, take_slots, was_cancelled

pytestmark = pytest.mark.virtual

CHUNK = 64 * KIB
DATA = pattern(4 * CHUNK)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1"])
async def test_a_concurrency_that_cannot_work_is_refused(value: Any) -> None:
    with pytest.raises(ConfigInvalid, match="concurrency"):
        ConcurrentLimitLayer(value)


@pytest.mark.parametrize("value", [0, -1, float("inf"), None])
async def test_a_wait_that_cannot_work_is_refused(value: Any) -> None:
    with pytest.raises(ConfigInvalid, match="wait_seconds"):
        ConcurrentLimitLayer(wait_seconds=value)


async def test_the_recipe_pickles_and_prints() -> None:
    layer = pickle.loads(pickle.dumps(ConcurrentLimitLayer(3, wait_seconds=2.0)))
    assert (layer.concurrency, layer.wait_seconds) == (3, 2.0)
    assert "concurrency=3" in repr(layer)


async def test_the_default_is_the_option_of_the_runtime() -> None:
    async with open_stack(ConcurrentLimitLayer(), concurrency=5) as stack:
        assert slots_of(stack).limit == 5


async def test_slots_belong_to_the_layer_object_and_the_runtime() -> None:
    """Two stacks with one layer object share; a layer object of its own has slots of its own."""
    layer = ConcurrentLimitLayer(1)
    async with open_stack(layer, data=DATA) as stack:
        other = layer.wrap(Memory().build(stack.runtime), stack.runtime)
        assert other.slots is slots_of(stack)  # type: ignore[attr-defined]
        assert ConcurrentLimitLayer(1).slots(stack.runtime) is not slots_of(stack)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_a_reader_of_four_blocks_finishes_with_any_limit(limit: int) -> None:
    async with open_stack(ConcurrentLimitLayer(limit), RetryLayer(), data=DATA) as stack:
        parts = await asyncio.gather(*(stack.fetch(offset=at, size=CHUNK) for at in range(0, len(DATA), CHUNK)))
        assert b"".join(parts) == DATA
        assert stack.faults.in_flight_peak == min(limit, 4)
        assert stack.runtime.counters["action_executor_acquired"] == max(0, 4 - limit)


async def test_a_queue_that_stands_still_is_given_up() -> None:
    layer = ConcurrentLimitLayer(3)
    plan = [Injection(at=CHUNK, delay_seconds=100.0, times=3)]
    async with open_stack(layer, RetryLayer(), plan=plan, data=DATA) as stack:
        held = [asyncio.create_task(stack.fetch()) for _ in range(3)]
        await settle()
        with pytest.raises(
            TimedOut, match=r"no slot became free for 60 seconds: 3 of 3 requests in flight, 1 queued"
        ) as caught:
            await stack.fetch()
        assert stack.runtime.loop.time() == 60.0
        error = caught.value
        assert (error.status, error.operation, error.path) == ("persistent", "read", "k")
        assert (error.context["concurrency"], error.context["in_flight"], error.context["queued"]) == (3, 3, 1)
        assert len(stack.faults.requests) == 3
        assert await asyncio.gather(*held) == [DATA] * 3
        assert await stack.fetch() == DATA


@checks("reliability:C22")
async def test_a_wait_for_a_slot_ends_at_the_deadline_permanently() -> None:
    async with open_stack(ConcurrentLimitLayer(1), RetryLayer(), data=DATA) as stack:
        take_slots(slots_of(stack), 1)
        with pytest.raises(TimedOut, match="no slot before the caller's deadline") as caught:
            await stack.accessor.stat(StatRequest(path="k", deadline=9.0))
        assert stack.runtime.loop.time() == 9.0
        assert caught.value.status == "permanent"
        slots_of(stack).release("demand")


@pytest.mark.parametrize("at", ["call", "head"])
async def test_a_failed_request_gives_its_slot_back(at: Any) -> None:
    async with open_stack(
        ConcurrentLimitLayer(1), plan=[Injection(at=at, error=Unavailable, times=None)], data=DATA
    ) as stack:
        with pytest.raises(Unavailable):
            await stack.fetch()
        assert slots_of(stack).in_flight == 0


async def test_demand_goes_before_prefetch_and_first_come_first_served_within_a_lane() -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        take_slots(slots_of(stack), 1)
        lanes: list[Lane] = ["prefetch", "demand"] * 3
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(lanes):
                group.create_task(stack.fetch(lane=lane, offset=number, size=1))
                await settle()
            assert slots_of(stack).queued == 6
            slots_of(stack).release("demand")
        assert [offset for offset, _ in stack.ranges()] == [1, 3, 5, 0, 2, 4]


async def test_a_demand_read_does_not_wait_behind_a_wall_of_prefetches() -> None:
    plan = [Injection(at="call", delay_seconds=1.0, times=20)]
    async with open_stack(ConcurrentLimitLayer(4), plan=plan, data=DATA) as stack:
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(stack.fetch(lane="prefetch"))
            await settle()
            assert (slots_of(stack).in_flight, slots_of(stack).queued) == (3, 17)
            await stack.accessor.open_write(WriteRequest(path="other"))
            assert stack.runtime.counters["action_executor_acquired"] == 17
        assert slots_of(stack).in_flight == 0


async def test_a_promoted_prefetch_goes_with_the_demand() -> None:
    async with open_stack(ConcurrentLimitLayer(1), RetryLayer(), data=DATA) as stack:
        take_slots(slots_of(stack), 1)
        sinks = [CollectSink() for _ in range(4)]

        lanes: list[Lane] = ["prefetch", "prefetch", "prefetch", "demand"]
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(lanes):
                group.create_task(stack.accessor.read(ReadRequest(path="k", offset=number, lane=lane), sinks[number]))
                await settle()
            sinks[2].promote()
            slots_of(stack).release("demand")
        assert [offset for offset, _ in stack.ranges()] == [3, 2, 0, 1]
        sinks[2].promote()
        assert sinks[2].on_promote is None


async def test_an_uncontended_read_makes_no_future() -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        made: list[object] = []
        loop = stack.runtime.loop
        create_future = loop.create_future
        loop.create_future = lambda: made.append(1) or create_future()  # type: ignore[method-assign, func-returns-value]
        try:
            await stack.fetch()
        finally:
            del loop.create_future
        assert made == []


async def test_a_promoted_prefetch_gives_its_slot_back_in_the_lane_it_was_taken_in() -> None:
    """Promoted before the read began or while it waited: no lane ends with a slot too few or too many."""
    async with open_stack(ConcurrentLimitLayer(4), data=DATA) as stack:
        for _ in range(3):
            sink = CollectSink()
            sink.promote()
            await stack.accessor.read(ReadRequest(path="k", lane="prefetch"), sink)
        slots = slots_of(stack)
        assert (slots.in_flight, slots.prefetch_in_flight) == (0, 0)
        take_slots(slots, 4)
        sink = CollectSink()
        reading = asyncio.create_task(stack.accessor.read(ReadRequest(path="k", lane="prefetch"), sink))
        await settle()
        sink.promote()
        for _ in range(4):
            slots.release("demand")
        await reading
        assert (slots.in_flight, slots.prefetch_in_flight) == (0, 0)


async def test_a_queue_that_moves_is_waited_for() -> None:
    """The last of ten waits far longer than ``wait_seconds``, which is for a queue that stands still."""
    plan = [Injection(at="call", delay_seconds=1.0, times=None)]
    async with open_stack(ConcurrentLimitLayer(1, wait_seconds=2.0), plan=plan, data=DATA) as stack:
        assert await asyncio.gather(*(stack.fetch(offset=number, size=1) for number in range(10))) == [
            DATA[number : number + 1] for number in range(10)
        ]
        assert stack.runtime.loop.time() == 10.0


@checks("reliability:C03")
async def test_a_cancelled_waiter_leaves_the_queue_and_changes_no_count() -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        take_slots(slots_of(stack), 1)
        waiting = [asyncio.create_task(stack.fetch(lane=lane)) for lane in ("demand", "prefetch")]
        last = asyncio.create_task(stack.fetch(lane="prefetch"))
        await settle()
        for task in waiting:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (slots_of(stack).in_flight, slots_of(stack).queued) == (1, 1)
        slots_of(stack).release("demand")
        assert await last == DATA
        assert (slots_of(stack).in_flight, slots_of(stack).queued) == (0, 0)


@checks("reliability:C07")
@pytest.mark.parametrize("lane", ["demand", "prefetch"])
async def test_cancel_and_grant_in_one_tick_lose_no_slot(lane: Lane) -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        take_slots(slots_of(stack), 1)
        first = asyncio.create_task(stack.fetch(lane=lane))
        second = asyncio.create_task(stack.fetch(lane=lane))
        await settle()
        slots_of(stack).release("demand")
        assert slots_of(stack).in_flight == 1
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second == DATA
        assert (slots_of(stack).in_flight, slots_of(stack).prefetch_in_flight, slots_of(stack).queued) == (0, 0, 0)


async def test_grant_in_the_tick_in_which_the_wait_ends_is_taken() -> None:
    async with open_stack(ConcurrentLimitLayer(1, wait_seconds=5.0), data=DATA) as stack:
        slots = slots_of(stack)
        assert slots.try_acquire("demand")
        reading = asyncio.create_task(stack.fetch())
        await settle()
        stack.runtime.loop.call_at(5.0, slots.release, "demand")
        assert await reading == DATA
        assert slots.in_flight == 0


async def test_a_streaming_write_holds_a_slot_only_during_its_calls() -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        body = await stack.accessor.open_write(WriteRequest(path="new"))
        assert await stack.fetch() == DATA
        await body.write(b"piece")
        assert slots_of(stack).in_flight == 0
        take_slots(slots_of(stack), 1)
        with pytest.raises(TimedOut, match="no slot"):
            await body.write(b"more")
        with pytest.raises(TimedOut, match="no slot"):
            await body.close()
        await body.abort()
        slots_of(stack).release("demand")


async def test_a_cancellation_at_any_point_loses_no_slot() -> None:
    """Every suspension, queued behind another read and then granted."""
    suspension, cancelled = 0, True
    while cancelled:
        suspension += 1
        async with open_stack(ConcurrentLimitLayer(1), RetryLayer(), data=DATA) as stack:
            slots = stack.accessor.inner.slots  # type: ignore[attr-defined]
            ahead = asyncio.create_task(stack.fetch())
            await asyncio.sleep(0)
            behind = asyncio.create_task(was_cancelled(stack.fetch(lane="prefetch"), suspension))
            await asyncio.sleep(0)
            last = asyncio.create_task(stack.fetch())
            cancelled = await behind
            assert await ahead == DATA
            assert await last == DATA
            assert (slots.in_flight, slots.prefetch_in_flight, slots.queued) == (0, 0, 0)
    assert suspension > 5
