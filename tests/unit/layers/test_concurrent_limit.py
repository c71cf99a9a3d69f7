"""ConcurrentLimit: how many are in flight, who goes first, who gives up, and that no slot is ever lost."""

import asyncio
import pickle
from typing import Any

import pytest

from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.accessor.write_body import ReadBody
from aioprefetch.errors import ConfigInvalid, TimedOut, Unavailable
from aioprefetch.layers.concurrent_limit import ConcurrentLimitLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory
from aioprefetch.testing.fault_layer import Injection
from aioprefetch.values import Lane, ReadRequest, StatRequest, WriteRequest
from tests.unit.layers.layer_stack import KIB, open_bodies, open_stack, pattern, settle, slots_of, was_cancelled

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
        streams = await asyncio.gather(*(stack.stream(offset=at, size=CHUNK) for at in range(0, len(DATA), CHUNK)))
        assert b"".join(streams) == DATA
        assert stack.faults.in_flight_peak == min(limit, 4)
        assert stack.runtime.counters["action_executor_acquired"] == 2 * max(0, 4 - limit)


async def test_an_open_body_and_a_block_reader_do_not_deadlock_beside_each_other() -> None:
    """One of two slots is held by a stream that is not read; the other serves all blocks."""
    async with open_stack(ConcurrentLimitLayer(2), data=DATA) as stack:
        (body,) = await open_bodies(stack, 1)
        parts = await asyncio.gather(*(stack.fetch(offset=at, size=CHUNK) for at in range(0, len(DATA), CHUNK)))
        assert b"".join(parts) == DATA
        await body.aclose()


async def test_unread_streams_hold_their_slots_and_the_next_request_says_so() -> None:
    async with open_stack(ConcurrentLimitLayer(3), RetryLayer(), data=DATA) as stack:
        bodies = await open_bodies(stack, 3)
        with pytest.raises(
            TimedOut, match=r"no slot became free for 60 seconds: 3 of 3 requests in flight, 1 queued"
        ) as caught:
            await stack.fetch()
        assert stack.runtime.loop.time() == 60.0
        error = caught.value
        assert (error.status, error.operation, error.path) == ("persistent", "read", "k")
        assert (error.context["concurrency"], error.context["in_flight"], error.context["queued"]) == (3, 3, 1)
        assert len(stack.faults.requests) == 3
        for body in bodies:
            await body.aclose()
        assert await stack.fetch() == DATA


async def test_the_deadline_bounds_the_wait_for_good() -> None:
    async with open_stack(ConcurrentLimitLayer(1), RetryLayer(), data=DATA) as stack:
        (body,) = await open_bodies(stack, 1)
        with pytest.raises(TimedOut, match="no slot before the caller's deadline") as caught:
            await stack.accessor.stat(StatRequest(path="k", deadline=9.0))
        assert stack.runtime.loop.time() == 9.0
        assert caught.value.status == "permanent"
        await body.aclose()


async def test_a_body_read_to_its_end_gives_its_slot_back_without_being_closed() -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        (body,) = await open_bodies(stack, 1)
        while slots_of(stack).in_flight:
            assert await body.read_chunk()
        assert await stack.fetch() == DATA
        assert await body.read_chunk() == b""
        await body.aclose()
        await body.aclose()
        assert slots_of(stack).in_flight == 0


async def test_an_empty_body_holds_no_slot() -> None:
    async with open_stack(ConcurrentLimitLayer(1)) as stack:
        (body,) = await open_bodies(stack, 1)
        assert slots_of(stack).in_flight == 0
        await body.aclose()


@pytest.mark.parametrize("at", ["call", "head"])
async def test_a_failed_request_gives_its_slot_back(at: Any) -> None:
    async with open_stack(
        ConcurrentLimitLayer(1), plan=[Injection(at=at, error=Unavailable, times=None)], data=DATA
    ) as stack:
        for way in (stack.fetch, stack.stream):
            with pytest.raises(Unavailable):
                await way()
        assert slots_of(stack).in_flight == 0


async def test_demand_goes_before_prefetch_and_first_come_first_served_within_a_lane() -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        (body,) = await open_bodies(stack, 1)
        lanes: list[Lane] = ["prefetch", "demand"] * 3
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(lanes):
                group.create_task(stack.fetch(lane=lane, offset=number, size=1))
                await settle()
            assert slots_of(stack).queued == 6
            await body.aclose()
        assert [offset for offset, _ in stack.ranges()[1:]] == [1, 3, 5, 0, 2, 4]


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
        (body,) = await open_bodies(stack, 1)
        sinks = [CollectSink() for _ in range(4)]

        lanes: list[Lane] = ["prefetch", "prefetch", "prefetch", "demand"]
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(lanes):
                group.create_task(stack.accessor.read(ReadRequest(path="k", offset=number, lane=lane), sinks[number]))
                await settle()
            sinks[2].promote()
            await body.aclose()
        assert [offset for offset, _ in stack.ranges()[1:]] == [3, 2, 0, 1]
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


async def test_a_prefetch_that_became_urgent_gives_back_the_slot_that_it_took() -> None:
    """Hurried before it began or while it waited: no lane is left with a slot too few or too many."""
    async with open_stack(ConcurrentLimitLayer(4), data=DATA) as stack:
        for _ in range(3):
            sink = CollectSink()
            sink.promote()
            await stack.accessor.read(ReadRequest(path="k", lane="prefetch"), sink)
        slots = slots_of(stack)
        assert (slots.in_flight, slots.prefetch_in_flight) == (0, 0)
        bodies = await open_bodies(stack, 4)
        sink = CollectSink()
        reading = asyncio.create_task(stack.accessor.read(ReadRequest(path="k", lane="prefetch"), sink))
        await settle()
        sink.promote()
        for body in bodies:
            await body.aclose()
        await reading
        assert (slots.in_flight, slots.prefetch_in_flight) == (0, 0)


async def test_a_body_that_fails_to_close_gives_its_slot_back() -> None:
    """The connection may be gone; the slot is ours."""

    class FailingBody:
        def __init__(self, body: ReadBody) -> None:
            self._body = body
            self.head = body.head
            self.read_chunk = body.read_chunk

        async def aclose(self) -> None:
            await self._body.aclose()
            raise Unavailable("the connection was reset")

    class FailsToClose(Layer):
        def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
            return FailingAccessor(inner)

    class FailingAccessor(WrappedAccessor):
        async def open_read(self, request: ReadRequest) -> ReadBody:
            return FailingBody(await self.inner.open_read(request))

    async with open_stack(FailsToClose(), ConcurrentLimitLayer(1), data=DATA) as stack:
        (body,) = await open_bodies(stack, 1)
        with pytest.raises(Unavailable):
            await body.aclose()
        assert slots_of(stack).in_flight == 0


async def test_a_queue_that_moves_is_waited_for() -> None:
    """The last of ten waits far longer than ``wait_seconds``, which is for a queue that stands still."""
    plan = [Injection(at="call", delay_seconds=1.0, times=None)]
    async with open_stack(ConcurrentLimitLayer(1, wait_seconds=2.0), plan=plan, data=DATA) as stack:
        assert await asyncio.gather(*(stack.fetch(offset=number, size=1) for number in range(10))) == [
            DATA[number : number + 1] for number in range(10)
        ]
        assert stack.runtime.loop.time() == 10.0


async def test_a_cancelled_waiter_leaves_the_queue_and_changes_no_count() -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        (body,) = await open_bodies(stack, 1)
        waiting = [asyncio.create_task(stack.fetch(lane=lane)) for lane in ("demand", "prefetch")]
        last = asyncio.create_task(stack.fetch(lane="prefetch"))
        await settle()
        for task in waiting:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (slots_of(stack).in_flight, slots_of(stack).queued) == (1, 1)
        await body.aclose()
        assert await last == DATA
        assert (slots_of(stack).in_flight, slots_of(stack).queued) == (0, 0)


@pytest.mark.parametrize("lane", ["demand", "prefetch"])
async def test_cancel_and_grant_in_one_tick_lose_no_slot(lane: Lane) -> None:
    async with open_stack(ConcurrentLimitLayer(1), data=DATA) as stack:
        (body,) = await open_bodies(stack, 1)
        first = asyncio.create_task(stack.fetch(lane=lane))
        second = asyncio.create_task(stack.fetch(lane=lane))
        await settle()
        await body.aclose()
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
        reading = (await open_bodies(stack, 1))[0]
        with pytest.raises(TimedOut, match="no slot"):
            await body.write(b"more")
        with pytest.raises(TimedOut, match="no slot"):
            await body.close()
        await body.abort()
        await reading.aclose()


@pytest.mark.parametrize("way", ["fetch", "stream"])
async def test_a_cancellation_at_any_point_loses_no_slot(way: str) -> None:
    """Every suspension, queued behind another read and then granted."""
    suspension, cancelled = 0, True
    while cancelled:
        suspension += 1
        async with open_stack(ConcurrentLimitLayer(1), RetryLayer(), data=DATA) as stack:
            slots = stack.accessor.inner.slots  # type: ignore[attr-defined]
            ahead = asyncio.create_task(stack.fetch())
            await asyncio.sleep(0)
            behind = asyncio.create_task(was_cancelled(getattr(stack, way)(lane="prefetch"), suspension))
            await asyncio.sleep(0)
            last = asyncio.create_task(stack.stream())
            cancelled = await behind
            assert await ahead == DATA
            assert await last == DATA
            assert (slots.in_flight, slots.prefetch_in_flight, slots.queued) == (0, 0, 0)
    assert suspension > 5
