"""Hedge: which reads are requested twice, which response is received, and what is left behind."""

import asyncio
import pickle
import random
from collections.abc import Sequence
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConfigInvalid, NotFound, ObjectChanged, Throttled, Unavailable
from aioprefetch.layers import ConcurrentLimitLayer, HedgeLayer, RetryLayer, TimeoutLayer
from aioprefetch.layers.hedge import (
    HEDGE_SECONDS_MIN,
    HEDGES_IN_A_ROW_MAX,
    LATE_FACTOR,
    SAMPLES_MAX,
    SAMPLES_MIN,
    FirstByteTimes,
    HedgeAllowance,
)
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from aioprefetch.values import ReadRequest
from tests.profile import each_of
from tests.stores.layer_stack import KIB, Stack, open_stack, pattern, settle, slots_of, take_slots, was_cancelled

pytestmark = pytest.mark.virtual

DATA = pattern(64 * KIB)
USUAL_SECONDS = 0.05
LATE_SECONDS = LATE_FACTOR * USUAL_SECONDS
# What precedes the read that is looked at: enough to know what is late, and to have an allowance.
BEFORE = 40


def usual(times: int | None = BEFORE) -> Injection:
    """A store that responds after its usual time."""
    return Injection(operation="read", times=times, delay_seconds=USUAL_SECONDS)


def at(number: int, **fault: Any) -> Injection:
    """A fault of one read, counted from the first behind those that precede."""
    return Injection(operation="read", occurrence=BEFORE + number, **fault)


async def after_usual_reads(stack: Stack) -> None:
    for _ in range(BEFORE):
        await stack.fetch(size=10)


def hedges(stack: Stack) -> tuple[int, int]:
    counters = stack.runtime.counters
    return counters["hedges"], counters["hedges_won"]


@checks("reliability:S39")
async def test_a_late_read_is_requested_again_and_takes_what_is_answered_first() -> None:
    plan = [usual(), at(0, delay_seconds=10.0), at(1, delay_seconds=USUAL_SECONDS)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        before = stack.runtime.loop.time()
        assert await stack.fetch(offset=5, size=100) == DATA[5:105]
        assert stack.runtime.loop.time() - before == pytest.approx(LATE_SECONDS + USUAL_SECONDS)
        assert hedges(stack) == (1, 1)
        assert stack.ranges()[BEFORE:] == [(5, 100), (5, 100)]
        assert stack.faults.in_flight == 0
        (event,) = [event for event in stack.events if event.name == "request.hedged"]
        assert event.path == "k"
        assert event.facts["waited_seconds"] == pytest.approx(LATE_SECONDS)


async def test_a_second_request_that_is_slower_is_cancelled() -> None:
    plan = [usual(), at(0, delay_seconds=1.5 * USUAL_SECONDS), at(1, delay_seconds=10.0)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        before = stack.runtime.loop.time()
        assert await stack.fetch(size=100) == DATA[:100]
        assert stack.runtime.loop.time() - before == pytest.approx(1.5 * USUAL_SECONDS)
        assert hedges(stack) == (1, 0)
        assert stack.faults.in_flight == 0


@checks("reliability:S39")
async def test_the_tail_is_cut_for_few_requests() -> None:
    """One read in fifty is ten times as slow: the 99th percentile falls to a third, for at most 5 % more requests."""
    reads = 2000
    slow = random.Random(7).sample(range(reads), reads // 50)

    async def percentile_99(*layers: ap.Layer) -> tuple[float, int]:
        plan = [Injection(operation="read", occurrence=number, delay_seconds=9 * USUAL_SECONDS) for number in slow]
        async with open_stack(*layers, plan=[usual(None), *plan], data=DATA) as stack:
            taken = []
            for _ in range(reads):
                before = stack.runtime.loop.time()
                await stack.fetch(size=10)
                taken.append(stack.runtime.loop.time() - before)
            return sorted(taken)[reads * 99 // 100], len(stack.faults.requests)

    plain, requests = await percentile_99()
    hedged, hedged_requests = await percentile_99(HedgeLayer())
    assert requests == reads
    assert hedged <= plain / 3
    assert hedged_requests <= 1.05 * reads


@checks("reliability:S40")
@pytest.mark.parametrize("is_first_changed", [False, True])
async def test_a_response_of_another_version_does_not_continue_a_read(is_first_changed: bool) -> None:
    """That of the second request is refused, and the first one decides: it goes on, or the object has changed."""
    changed = {"etag": "another"} if is_first_changed else {}
    plan = [usual(), at(1, delay_seconds=10.0, **changed), at(2, etag="another")]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        whole = CollectSink()
        await stack.accessor.read(ReadRequest(path="k", size=200), whole)
        assert whole.head is not None
        rest = CollectSink()
        rest.begin(whole.head)
        rest.feed(DATA[:40])
        read = stack.accessor.read(ReadRequest(path="k", size=200).resume(whole.head, 40), rest)
        if is_first_changed:
            with pytest.raises(ObjectChanged):
                await read
        else:
            await read
        assert rest.to_bytes() == (DATA[:40] if is_first_changed else DATA[:200])
        assert hedges(stack) == (1, 0)


@checks("reliability:S40")
async def test_responses_of_two_versions_are_not_mixed() -> None:
    """The first response has begun when the other one comes, and gives all bytes."""
    plan = [usual(), at(0, delay_seconds=2 * USUAL_SECONDS), at(1, delay_seconds=USUAL_SECONDS, etag="another")]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        sink = CollectSink()
        reply = await stack.accessor.read(ReadRequest(path="k"), sink)
        assert sink.to_bytes() == DATA
        assert sink.head is not None
        assert reply.head.etag == sink.head.etag


@pytest.mark.parametrize("error", [Unavailable, NotFound, Throttled])
async def test_a_second_request_that_fails_does_not_fail_the_read(error: type[ap.Error]) -> None:
    plan = [usual(), at(0, delay_seconds=1.0), at(1, error=error)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        assert await stack.fetch(size=100) == DATA[:100]
        assert hedges(stack) == (1, 0)


async def test_a_first_request_that_fails_leaves_the_read_to_the_second() -> None:
    plan = [usual(), at(0, delay_seconds=1.0, error=Unavailable), at(1, delay_seconds=2.0)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        before = stack.runtime.loop.time()
        assert await stack.fetch(size=100) == DATA[:100]
        assert stack.runtime.loop.time() - before == pytest.approx(2.0 + LATE_SECONDS)
        assert hedges(stack) == (1, 1)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(Unavailable, NotFound, NotFound), (NotFound, Unavailable, NotFound), (Throttled, Unavailable, Throttled)],
)
async def test_a_read_fails_when_another_request_would_not_help(
    first: type[ap.Error], second: type[ap.Error], expected: type[ap.Error]
) -> None:
    plan = [usual(), at(0, delay_seconds=1.0, error=first), at(1, delay_seconds=2.0, error=second)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        with pytest.raises(expected):
            await stack.fetch(size=100)
        assert stack.faults.in_flight == 0


async def test_a_body_that_breaks_off_after_the_hedge_won_is_continued() -> None:
    """By Retry, from the byte that is missing."""
    plan = [usual(), at(0, delay_seconds=10.0), at(1, at=20 * KIB, error=Unavailable)]
    async with open_stack(HedgeLayer(), RetryLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        assert await stack.fetch() == DATA
        assert stack.ranges()[-1] == (20 * KIB, len(DATA) - 20 * KIB)


async def test_retry_may_lie_within() -> None:
    plan = [usual(), at(0, delay_seconds=10.0), at(1, at=20 * KIB, error=Unavailable)]
    async with open_stack(RetryLayer(), HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        assert await stack.fetch() == DATA
        assert hedges(stack) == (1, 1)


async def test_nothing_is_hedged_before_it_is_known_what_is_late() -> None:
    plan = [Injection(operation="read", times=None, delay_seconds=5.0)]
    async with open_stack(HedgeLayer(extra_max=1.0), plan=plan, data=DATA) as stack:
        for _ in range(SAMPLES_MIN):
            await stack.fetch(size=10)
        assert hedges(stack) == (0, 0)


async def test_a_store_that_has_become_slow_is_not_asked_twice_for_long() -> None:
    """What all reads take is not late; and no more than the share of them is hedged meanwhile."""
    plan = [usual(), Injection(operation="read", occurrence=BEFORE, times=None, delay_seconds=4 * USUAL_SECONDS)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        for _ in range(SAMPLES_MAX):
            await stack.fetch(size=10)
        early, _ = hedges(stack)
        for _ in range(SAMPLES_MAX):
            await stack.fetch(size=10)
        late, _ = hedges(stack)
        assert early <= 0.05 * (BEFORE + SAMPLES_MAX)
        assert late == early


async def test_throttling_takes_the_allowance_away() -> None:
    plan = [usual(), at(0, error=Throttled), at(1, delay_seconds=1.0)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        with pytest.raises(Throttled):
            await stack.fetch(size=10)
        await stack.fetch(size=10)
        assert hedges(stack) == (0, 0)


async def test_a_prefetch_is_hedged_when_a_reader_waits_for_it() -> None:
    plan = [usual(), at(0, delay_seconds=10.0), at(1, delay_seconds=10.0)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        sink = CollectSink()
        read = asyncio.create_task(stack.accessor.read(ReadRequest(path="k", size=10, lane="prefetch"), sink))
        await asyncio.sleep(100 * LATE_SECONDS)
        assert hedges(stack) == (0, 0)
        sink.promote()
        await settle()
        assert hedges(stack) == (1, 0)
        await read
        assert sink.on_promote is None


async def test_a_prefetch_that_waits_for_a_slot_is_promoted_through_the_layer() -> None:
    plan = [Injection(operation="read", times=None, delay_seconds=1.0)]
    async with open_stack(ConcurrentLimitLayer(2), HedgeLayer(), plan=plan, data=DATA) as stack:
        slots = slots_of(stack)
        assert slots.try_acquire("prefetch")
        sink = CollectSink()
        read = asyncio.create_task(stack.accessor.read(ReadRequest(path="k", size=10, lane="prefetch"), sink))
        await settle()
        assert slots.queued == 1
        sink.promote()
        await settle()
        assert slots.queued == 0
        await read
        slots.release("prefetch")


@pytest.mark.parametrize("taken", [2, 3])
async def test_no_read_is_hedged_without_a_slot_for_it(taken: int) -> None:
    """And the time that reads spend in the queue does not count."""
    plan = [usual(), at(0, times=12, delay_seconds=1.0), at(12, delay_seconds=9.0)]
    async with open_stack(ConcurrentLimitLayer(4), HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        await asyncio.gather(*(stack.fetch(size=10) for _ in range(12)))
        assert hedges(stack) == (0, 0)
        take_slots(slots_of(stack), taken)
        await stack.fetch(size=10)
        assert hedges(stack) == ((1, 1) if taken == 2 else (0, 0))
        for _ in range(taken):
            slots_of(stack).release("demand")


async def test_the_request_that_lost_has_received_nothing() -> None:
    plan = [usual(), at(0, delay_seconds=10.0)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        ended: list[tuple[str, object]] = []
        stack.runtime.events.subscribe(
            lambda event: ended.append((event.name, event.facts["bytes"])), "request.finished", "request.failed"
        )
        await stack.fetch()
        assert sorted(ended) == [("request.failed", 0), ("request.finished", len(DATA))]


async def test_cancelled_at_any_point_it_leaves_nothing() -> None:
    """The n-th suspension, for every n; the stack checks that nothing is in flight and no timer is armed."""
    suspension, cancelled = 1, True
    while cancelled:
        plan = [usual(), at(0, delay_seconds=1.0), at(1, delay_seconds=0.5)]
        async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
            await after_usual_reads(stack)
            cancelled = await was_cancelled(stack.fetch(), suspension)
            await settle()
            assert stack.faults.in_flight == 0
        suspension += 1
    assert suspension > 4


async def test_a_cancellation_at_the_moment_of_the_win_is_the_callers() -> None:
    plan = [usual(), at(0, delay_seconds=10.0), at(1, delay_seconds=1.0)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        read = asyncio.create_task(stack.fetch(size=10))
        stack.runtime.events.subscribe(lambda _: stack.runtime.loop.call_later(1.0, read.cancel), "request.hedged")
        with pytest.raises(asyncio.CancelledError):
            await read
        assert stack.faults.in_flight == 0


async def test_the_limit_of_a_request_holds_for_both() -> None:
    plan = [usual(), at(0, hang=True), at(1, hang=True)]
    async with open_stack(TimeoutLayer(stall_seconds=4.0), HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        with pytest.raises(ap.TimedOut):
            await stack.fetch(size=10)
        assert hedges(stack) == (1, 0)


async def test_readers_use_it_like_any_layer() -> None:
    plan = (usual(None), *(at(number, delay_seconds=9.0) for number in (5, 25, 45)))
    base = ap.Operator.from_uri("memory://hedged-reads").layer(FaultLayer(plan), inside=ap.layers.ErrorContextLayer)
    async with base.layer(HedgeLayer(), inside=RetryLayer) as op:
        await op.write("k", DATA)
        async with op.reader("k", policy="random", size=len(DATA)) as reader:
            for number in range(100):
                assert await reader.read_at(600 * number, 10) == DATA[600 * number : 600 * number + 10]
        assert op.statistics["hedges_won"] == 3


async def test_the_recipe_pickles_compares_and_prints() -> None:
    layer = ap.layers.HedgeLayer(percentile=0.9)
    assert pickle.loads(pickle.dumps(layer)) == layer == HedgeLayer(0.9, 0.05)
    assert "percentile=0.9" in repr(layer)


@each_of("percentile", [0.49, 1.0, 95, "0.95", True, float("nan")])
def test_a_percentile_that_is_none_is_refused(percentile: Any) -> None:
    with pytest.raises(ConfigInvalid, match="percentile"):
        HedgeLayer(percentile=percentile)


@each_of("extra_max", [0, 1.01, -0.1, "5 %", None, float("nan")])
def test_a_share_that_is_none_is_refused(extra_max: Any) -> None:
    with pytest.raises(ConfigInvalid, match="extra_max"):
        HedgeLayer(extra_max=extra_max)


def percentile_of(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def test_the_percentile_is_that_of_the_last_reads() -> None:
    source, times, values = random.Random(3), FirstByteTimes(), []
    for count in range(1, 3 * SAMPLES_MAX):
        values.append(source.choice([0.1, source.random()]))
        times.add(values[-1])
        for share in (0.5, 0.95, 0.99):
            expected = percentile_of(values[-SAMPLES_MAX:], share) if count >= SAMPLES_MIN else None
            assert times.percentile(share) == expected


def test_the_allowance_is_a_share_of_the_reads() -> None:
    source, allowance, taken = random.Random(5), HedgeAllowance(0.1), 0
    for reads in range(1, 5000):
        allowance.read()
        taken += source.random() < 0.3 and allowance.take()
        assert taken <= 0.1 * reads + 1e-6
    assert taken > 400
    for _ in range(1000):
        allowance.read()
    assert [allowance.take() for _ in range(HEDGES_IN_A_ROW_MAX + 1)] == [*[True] * HEDGES_IN_A_ROW_MAX, False]


async def test_waits_too_short_to_matter_are_not_hedged() -> None:
    quick = Injection(operation="read", times=BEFORE, delay_seconds=HEDGE_SECONDS_MIN / 10)
    plan = [quick, at(0, delay_seconds=HEDGE_SECONDS_MIN * 0.9), at(1, delay_seconds=10 * HEDGE_SECONDS_MIN)]
    async with open_stack(HedgeLayer(), plan=plan, data=DATA) as stack:
        await after_usual_reads(stack)
        await stack.fetch(size=10)
        assert hedges(stack) == (0, 0)
        await stack.fetch(size=10)
        assert hedges(stack) == (1, 1)
