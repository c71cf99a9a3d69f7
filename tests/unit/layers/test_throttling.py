"""ConcurrentLimit with a store that asks for fewer requests: half the slots, and back one by one."""

import asyncio

import pytest

from aioprefetch.errors import ConditionNotMatch, Error, NotFound, RangeNotSatisfied, Throttled, TimedOut, Unavailable
from aioprefetch.layers.concurrent_limit import ConcurrentLimitLayer
from aioprefetch.testing.fault_layer import Injection
from aioprefetch.values import Lane, StatRequest, WriteRequest
from tests.stores.layer_stack import KIB, BodyLayer, Stack, Step, open_stack, pattern, settle, slots_of, take_slots

pytestmark = pytest.mark.virtual

QUARTER_SECONDS = 0.25
DATA = pattern(256 * KIB)


def limits(stack: Stack) -> list[tuple[str, object]]:
    """The events that tell of slots withheld and given back."""
    return [(one.name, one.facts["limit"]) for one in stack.events if one.name.startswith("limit.")]


async def refuse(stack: Stack) -> None:
    """A request that the plan throttles."""
    with pytest.raises(Throttled):
        await stack.fetch()


async def test_throttled_halves_the_slots_and_answers_bring_them_back() -> None:
    plan = [Injection(error=Throttled, times=2)]
    async with open_stack(ConcurrentLimitLayer(8), plan=plan, data=DATA) as stack:
        slots = slots_of(stack)
        await refuse(stack)
        assert (slots.limit, slots.limit_max, stack.runtime.statistics()["slots_withheld"]) == (4, 8, 4)
        await refuse(stack)
        assert slots.limit == 4
        for limit in (4, 5, 6, 7):
            assert slots.limit == limit
            for _ in range(limit):
                await stack.fetch()
        assert (slots.limit, stack.runtime.statistics()["slots_withheld"]) == (8, 0)
        assert limits(stack) == [("limit.lowered", 4), ("limit.restored", 8)]


async def test_throttled_halves_at_most_once_a_second() -> None:
    plan = [Injection(error=Throttled, times=None)]
    async with open_stack(ConcurrentLimitLayer(64), plan=plan, data=DATA) as stack:
        seen = []
        for _ in range(24):
            await refuse(stack)
            seen.append(slots_of(stack).limit)
            await asyncio.sleep(QUARTER_SECONDS)
        assert seen[::4] == [32, 16, 8, 4, 2, 1]
        assert limits(stack) == [("limit.lowered", limit) for limit in (32, 16, 8, 4, 2, 1)]


async def test_no_more_requests_are_sent_at_once_than_the_store_lets() -> None:
    """The new limit holds for who waits already, and for prefetches."""
    plan = [Injection(error=Throttled), Injection(delay_seconds=5.0, times=None)]
    async with open_stack(ConcurrentLimitLayer(4), plan=plan, data=DATA) as stack:
        await refuse(stack)
        lanes: list[Lane] = ["demand", "prefetch"]
        reads = [asyncio.create_task(stack.fetch(lane=lane)) for lane in lanes * 3]
        await settle()
        slots = slots_of(stack)
        assert (slots.in_flight, slots.queued, slots.prefetch_max) == (2, 4, 1)
        await asyncio.gather(*reads)


@pytest.mark.parametrize("kind", [NotFound, ConditionNotMatch, RangeNotSatisfied])
async def test_a_response_that_says_no_is_a_response(kind: type[Error]) -> None:
    plan = [Injection(error=Throttled), Injection(error=kind, times=None)]
    async with open_stack(ConcurrentLimitLayer(4), plan=plan, data=DATA) as stack:
        await refuse(stack)
        for limit in (2, 3):
            assert slots_of(stack).limit == limit
            for _ in range(limit):
                with pytest.raises(kind):
                    await stack.accessor.stat(StatRequest(path="k"))
        assert slots_of(stack).limit == 4


async def test_other_failures_neither_lower_the_limit_nor_raise_it() -> None:
    plan = [
        Injection(occurrence=0, error=Unavailable, times=10),
        Injection(occurrence=10, error=Throttled),
        Injection(occurrence=11, error=Unavailable, times=None),
    ]
    async with open_stack(ConcurrentLimitLayer(4), plan=plan, data=DATA) as stack:
        for limit in (4, 2):
            for _ in range(10):
                with pytest.raises(Unavailable):
                    await stack.fetch()
                assert slots_of(stack).limit == limit
            if limit == 4:
                await refuse(stack)


async def test_writes_change_the_limit_too() -> None:
    """An opening counts as a response, and so does a closing; a piece does not, since most of them are not sent."""
    plan = [Injection(operation="write", error=Throttled)]
    async with open_stack(ConcurrentLimitLayer(8), plan=plan, data=DATA) as stack:
        with pytest.raises(Throttled):
            await stack.accessor.write(WriteRequest(path="new"), b"data")
        for limit in (4, 4, 5):
            assert slots_of(stack).limit == limit
            body = await stack.accessor.open_write(WriteRequest(path="new"))
            for _ in range(20):
                await body.write(b"x")
            await body.close()


@pytest.mark.parametrize("step", ["write", "close"])
async def test_a_streaming_write_that_is_throttled_halves_the_slots(step: str) -> None:
    async def throttled(called: Step) -> None:
        if called == step:
            raise Throttled("SlowDown")

    async with open_stack(BodyLayer(throttled), ConcurrentLimitLayer(8), data=DATA) as stack:
        body = await stack.accessor.open_write(WriteRequest(path="new"))
        with pytest.raises(Throttled):
            await (body.write(b"x") if step == "write" else body.close())
        assert (slots_of(stack).limit, slots_of(stack).in_flight) == (4, 0)
        await body.abort()


async def test_responses_without_end_do_not_hold_up_the_rest_for_ever() -> None:
    """They hold more than throttling has left, so that no response could bring a slot back."""
    plan = [Injection(error=Throttled)]
    async with open_stack(ConcurrentLimitLayer(8, wait_seconds=7.0), plan=plan, data=DATA) as stack:
        take_slots(slots_of(stack), 5)
        await refuse(stack)
        with pytest.raises(TimedOut, match=r"no slot before .* 4 slots are withheld") as caught:
            await stack.fetch(deadline=2.0)
        assert (caught.value.context["concurrency"], caught.value.context["slots_withheld"]) == (8, 4)
        assert await stack.fetch() == DATA
        assert stack.runtime.loop.time() == 9.0
        assert limits(stack) == [("limit.lowered", 4), ("limit.restored", 8)]
        for _ in range(5):
            slots_of(stack).release("demand")
