"""Retry in the middle of a body: exact bytes, none fetched twice, never those of two versions."""

from typing import Any

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConditionNotMatch, NotFound, ObjectChanged, ProtocolError, Unavailable
from aioprefetch.layers.concurrent_limit import ConcurrentLimitLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.layers.timeout import TimeoutLayer
from aioprefetch.runtime.events import Event
from aioprefetch.testing.fault_layer import Injection
from aioprefetch.values import ReadRequest
from tests.profile import chosen, combinations
from tests.stores.layer_stack import KIB, MIB, Stack, open_stack, pattern, was_cancelled

pytestmark = pytest.mark.virtual

CHUNK = 64 * KIB
SIZE = 8 * CHUNK + 100
DATA = pattern(SIZE)
NO_ETAG = Injection(times=None, etag="")
CUTS = chosen(quick=[0, 1, CHUNK, SIZE - 1], full=[*range(0, SIZE, CHUNK), 1, CHUNK - 1, SIZE - 1])


def replace_at_retry(stack: Stack, data: bytes | None) -> None:
    """Overwrite (or delete) the object while Retry pauses."""

    def change(event: Event) -> None:
        if data is None:
            stack.store.remove("k")
        else:
            stack.put(data)

    stack.runtime.events.subscribe(change, "request.retried")


@pytest.mark.parametrize(
    "cut", chosen(quick=[0, 1, CHUNK, SIZE - 1], full=[*range(0, SIZE, CHUNK), 1, CHUNK - 1, SIZE - 1])
)
async def test_a_body_cut_anywhere_is_resumed_at_that_byte(cut: int) -> None:
    async with open_stack(RetryLayer(), plan=[Injection(at=cut, error=Unavailable)], data=DATA) as stack:
        assert await stack.fetch() == DATA
        assert stack.ranges() == [(0, None), (cut, SIZE - cut)]
        assert stack.runtime.counters["retries_resumed"] == (cut > 0)
        resumed = stack.faults.requests[1]
        assert isinstance(resumed, ReadRequest)
        assert resumed.if_match == stack.store.objects["k"].metadata.etag


@pytest.mark.parametrize("truncate", [False, True])
async def test_many_cuts_of_one_body_cost_one_request_each(truncate: bool) -> None:
    """A cut after every MiB: each starts the count again, so 8 cuts do not end it."""
    data = pattern(8 * MIB + 5)
    cut = Injection(at=MIB, times=None, truncate=truncate, error=None if truncate else Unavailable)
    async with open_stack(RetryLayer(attempts_max=2, tokens=28), plan=[cut], data=data) as stack:
        assert await stack.fetch() == data
        assert [offset for offset, _ in stack.ranges()] == [MIB * index for index in range(9)]


async def test_progress_resets_the_time() -> None:
    """Three attempts of 40 seconds each: together beyond total_seconds, but each brought a MiB."""
    slow_cut = Injection(at=MIB, times=None, delay_seconds=40.0, error=Unavailable)
    async with open_stack(RetryLayer(), plan=[slow_cut], data=pattern(3 * MIB + 5)) as stack:
        assert await stack.fetch() == pattern(3 * MIB + 5)
        assert stack.runtime.loop.time() >= 120.0


@pytest.mark.parametrize("step", [1, 100 * KIB, MIB // 3 + 1, MIB, MIB + 1])
async def test_a_hostile_server_causes_a_bounded_number_of_requests(step: int) -> None:
    layer = RetryLayer(tokens=10**9)
    data = pattern(5 * MIB)
    async with open_stack(layer, plan=[Injection(at=step, times=None, error=Unavailable)], data=data) as stack:
        if step * layer.attempts_max < MIB:
            with pytest.raises(Unavailable, match="persistent"):
                await stack.fetch()
        else:
            assert await stack.fetch() == data
        assert len(stack.faults.requests) <= layer.attempts_max * (len(data) // MIB + 1)


@pytest.mark.parametrize("at", ["call", "head", 0, 1, CHUNK, 3 * CHUNK + 7])
async def test_the_nth_call_failing_costs_one_more_call(at: Any) -> None:
    """Three block reads; whichever call fails, wherever, the bytes are exact and one request is added."""
    data = pattern(3 * SIZE)
    for occurrence in range(3):
        plan = [Injection(occurrence=occurrence, at=at, error=Unavailable)]
        async with open_stack(RetryLayer(), plan=plan, data=data) as stack:
            parts = [await stack.fetch(offset=index * SIZE, size=SIZE) for index in range(3)]
            assert b"".join(parts) == data, f"call {occurrence}"
            assert len(stack.faults.requests) == 4, f"call {occurrence}"


@pytest.mark.parametrize("occurrence", range(4))
async def test_from_the_nth_call_on_everything_failing_ends_in_one_error(occurrence: int) -> None:
    plan = [
        Injection(at=CHUNK, error=Unavailable, times=occurrence),
        Injection(occurrence=occurrence, error=Unavailable, times=None),
    ]
    async with open_stack(RetryLayer(), plan=plan, data=DATA) as stack:
        with pytest.raises(Unavailable) as caught:
            await stack.fetch()
        assert caught.value.received in (0, occurrence * CHUNK)
        assert caught.value.context["attempts"] == len(stack.faults.requests) == 4


async def test_suffix_and_open_ranges_resume_as_exact_ranges() -> None:
    plan = [Injection(at=10, error=Unavailable)]
    async with open_stack(RetryLayer(), plan=plan, data=DATA) as stack:
        assert await stack.fetch(suffix=1000) == DATA[-1000:]
        assert stack.ranges()[1] == (SIZE - 990, 990)
    async with open_stack(RetryLayer(), plan=plan, data=DATA) as stack:
        assert await stack.fetch(offset=SIZE - 50, if_none_match="other") == DATA[-50:]
        assert stack.ranges()[1] == (SIZE - 40, 40)


async def test_nothing_left_to_receive_is_a_success_without_another_request() -> None:
    plan = [Injection(at=100, error=Unavailable, times=None)]
    async with open_stack(RetryLayer(), plan=plan, data=pattern(100)) as stack:
        assert await stack.fetch() == pattern(100)
        assert len(stack.faults.requests) == 1


async def test_an_error_after_the_last_byte_of_a_read_is_a_success() -> None:
    """Also where a service reports it although all bytes were delivered; a wrong count of them stays an error."""
    async with open_stack(RetryLayer(), data=b"abc") as stack:
        inner = stack.faults.read

        async def complain(request: ReadRequest, sink: CollectSink) -> None:
            await inner(request, sink)
            raise error

        stack.faults.read = complain  # type: ignore[assignment, method-assign]
        error: Exception = Unavailable("the connection broke", operation="read", path="k")
        assert await stack.fetch() == b"abc"
        error = ProtocolError("more came than was announced", operation="read", path="k")
        with pytest.raises(ProtocolError) as caught:
            await stack.fetch()
        assert caught.value.status == "persistent"
        assert len(stack.faults.requests) == 2


@pytest.mark.parametrize("new", [DATA[::-1], b"", b"short", DATA + b"more", None])
@pytest.mark.parametrize("cut", [0, CHUNK])
async def test_an_object_that_changes_in_between_is_object_changed(new: bytes | None, cut: int) -> None:
    async with open_stack(RetryLayer(), plan=[Injection(at=cut, error=Unavailable)], data=DATA) as stack:
        etag = stack.store.objects["k"].metadata.etag
        replace_at_retry(stack, new)
        with pytest.raises(ObjectChanged) as caught:
            await stack.fetch()
        error = caught.value
        assert (error.status, error.operation, error.path, error.received) == ("permanent", "read", "k", cut)
        assert error.expected_etag == etag
        assert error.actual_etag == (stack.store.objects["k"].metadata.etag if new is not None else None)
        assert len(stack.faults.requests) <= 3


async def test_a_store_that_ignores_if_match_is_caught_by_comparison() -> None:
    plan = [Injection(at=CHUNK, error=Unavailable), Injection(occurrence=1, etag="other")]
    async with open_stack(RetryLayer(), plan=plan, data=DATA) as stack:
        with pytest.raises(ObjectChanged) as caught:
            await stack.fetch()
        assert caught.value.actual_etag == "other"


async def test_a_response_that_goes_on_elsewhere_is_refused_and_asked_for_once_more() -> None:
    plan = [Injection(at=CHUNK, error=Unavailable), Injection(occurrence=1, start_delta_bytes=1, times=1)]
    async with open_stack(RetryLayer(), plan=plan, data=DATA) as stack:
        assert await stack.fetch() == DATA
        assert [offset for offset, _ in stack.ranges()] == [0, CHUNK, CHUNK]


@pytest.mark.parametrize("etag", ["", 'W/"1"'])
@pytest.mark.parametrize("new", [DATA, DATA[::-1], DATA + b"more", b"short"])
async def test_without_a_strong_etag_the_read_begins_again(new: bytes, etag: str) -> None:
    plan = [Injection(times=None, etag=etag), Injection(at=CHUNK, error=Unavailable)]
    async with open_stack(RetryLayer(), plan=plan, data=DATA) as stack:
        replace_at_retry(stack, new)
        assert await stack.fetch() == new
        assert stack.ranges() == [(0, None), (0, None)]


async def test_a_read_begins_again_as_often_as_there_are_attempts() -> None:
    """The bytes that were dropped are no progress."""
    data = pattern(8 * MIB)
    plan = [NO_ETAG, *(Injection(occurrence=n, at=(n + 1) * MIB, error=Unavailable) for n in range(8))]
    async with open_stack(RetryLayer(attempts_max=3), plan=plan, data=data) as stack:
        with pytest.raises(Unavailable) as caught:
            await stack.fetch()
        assert caught.value.context["gave_up"] == "attempts_max=3"
        assert stack.ranges() == [(0, None)] * 3


class UsedSink(CollectSink):
    """A sink that has passed its bytes on."""

    async def begin_again(self) -> bool:
        return False


@pytest.mark.parametrize("etag", ["", 'W/"1"'])
async def test_bytes_in_use_are_not_continued_without_a_strong_etag(etag: str) -> None:
    unproven = Injection(times=None, etag=etag)
    async with open_stack(RetryLayer(), plan=[unproven, Injection(at=CHUNK, error=Unavailable)], data=DATA) as stack:
        with pytest.raises(Unavailable, match="neither a strong ETag nor a version id") as caught:
            await stack.accessor.read(ReadRequest(path="k"), UsedSink())
        assert caught.value.status == "persistent"
        assert len(stack.faults.requests) == 1
    async with open_stack(RetryLayer(), plan=[NO_ETAG, Injection(at=0, error=Unavailable)], data=DATA) as stack:
        sink = UsedSink()
        await stack.accessor.read(ReadRequest(path="k"), sink)
        assert sink.to_bytes() == DATA


async def test_a_precondition_that_never_held_stays_one() -> None:
    """ObjectChanged is for a version that had begun to arrive."""
    async with open_stack(RetryLayer(), plan=[Injection(error=Unavailable)], data=DATA) as stack:
        with pytest.raises(ConditionNotMatch):
            await stack.fetch(if_match="other")
    async with open_stack(RetryLayer(), plan=[Injection(error=Unavailable)], data=DATA) as stack:
        stack.store.remove("k")
        with pytest.raises(NotFound):
            await stack.fetch()


async def test_a_slot_is_given_back_before_the_pause_and_the_new_request() -> None:
    """With a single slot the resumed request could never start if the broken response kept it."""
    plan = [Injection(at=CHUNK, error=Unavailable), Injection(occurrence=1, at=CHUNK, error=Unavailable)]
    layer = ConcurrentLimitLayer(1)
    async with open_stack(layer, RetryLayer(), plan=plan, data=DATA) as stack:
        in_flight_in_pause = []
        slots = layer.slots(stack.runtime)
        stack.runtime.events.subscribe(
            lambda _: in_flight_in_pause.append((slots.in_flight, stack.faults.in_flight)), "request.retried"
        )
        assert await stack.fetch() == DATA
        assert in_flight_in_pause == [(0, 0), (0, 0)]
        assert stack.faults.in_flight_peak == 1
        assert stack.runtime.counters["action_executor_acquired"] == 0


@pytest.mark.parametrize(
    ("fault", "at", "is_proven"), combinations(["none", "error", "hang"], ["call", "head", CHUNK], [True, False])
)
async def test_a_cancellation_at_any_point_leaves_nothing_open(fault: str, at: Any, is_proven: bool) -> None:
    """Cancelled at the k-th suspension for every k: slots, bodies and tasks are back, and a later read is whole.

    Also where the read begins again, since no strong ETag proves the version.
    """
    plan = [Injection(at=at, error=Unavailable if fault == "error" else None, hang=fault == "hang")]
    if not is_proven:
        plan.append(NO_ETAG)
    suspension, cancelled = 0, True
    while cancelled:
        suspension += 1
        layers = (TimeoutLayer(stall_seconds=1.0), ConcurrentLimitLayer(2), RetryLayer())
        async with open_stack(*layers, plan=plan, data=DATA) as stack:
            slots = layers[1].slots(stack.runtime)
            cancelled = await was_cancelled(stack.fetch(), suspension)
            assert (slots.in_flight, slots.prefetch_in_flight, slots.queued) == (0, 0, 0)
            assert await stack.fetch() == DATA
    assert suspension > 5


async def test_random_faults_give_exact_bytes_or_a_typed_error() -> None:
    """Two cuts at every pair of points, with the whole default stack."""
    layers = (TimeoutLayer(), ConcurrentLimitLayer(), RetryLayer())
    for first in range(0, SIZE, 3 * CHUNK // 2):
        for second in range(0, SIZE - first, 2 * CHUNK):
            plan = [
                Injection(occurrence=0, at=first, error=Unavailable),
                Injection(occurrence=1, at=second, hang=True),
            ]
            async with open_stack(*layers, plan=plan, data=DATA) as stack:
                assert await stack.fetch() == DATA
                assert stack.ranges()[1:] == [
                    (first, SIZE - first),
                    (first + second, SIZE - first - second),
                ]


async def test_a_read_that_was_resumed_reports_the_first_head() -> None:
    async with open_stack(RetryLayer(), plan=[Injection(at=CHUNK, error=Unavailable)], data=DATA) as stack:
        reply = await stack.accessor.read(ReadRequest(path="k", offset=10, size=2 * CHUNK), CollectSink())
        assert (reply.head.start, reply.head.size, reply.head.total) == (10, 2 * CHUNK, SIZE)
        assert reply.received == 2 * CHUNK
