"""Timeout: which wait is bounded by what, what is raised, and what is left behind."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConfigInvalid, Stalled, TimedOut, Unavailable
from aioprefetch.layers.complete import CompleteLayer
from aioprefetch.layers.error_context import ErrorContextLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.layers.timeout import WRITE_BYTES_PER_LIMIT, StallWatchdog, TimeoutLayer, Watch
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from aioprefetch.values import (
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListRequest,
    ReadRequest,
    StatRequest,
    WriteRequest,
)
from tests.stores.layer_stack import KIB, BodyLayer, Step, open_stack, pattern

pytestmark = pytest.mark.virtual

CHUNK = 64 * KIB
DATA = pattern(4 * CHUNK)


CONTROL: dict[str, Callable[[Accessor, float | None], Awaitable[object]]] = {
    "stat": lambda top, deadline: top.stat(StatRequest(path="k", deadline=deadline)),
    "list": lambda top, deadline: top.list_page(ListRequest(path="", deadline=deadline)),
    "delete": lambda top, deadline: top.delete(DeleteRequest(path="k", paths=("k",), deadline=deadline)),
    "copy": lambda top, deadline: top.copy(CopyRequest(path="k", target="copied", deadline=deadline)),
    "create_dir": lambda top, deadline: top.create_dir(CreateDirRequest(path="d/", deadline=deadline)),
    "write": lambda top, deadline: top.write(WriteRequest(path="k", deadline=deadline), b"new"),
}


@pytest.mark.parametrize("option", ["timeout_seconds", "stall_seconds"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", True])
async def test_a_limit_that_cannot_work_is_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigInvalid, match=option):
        TimeoutLayer(**{option: value})  # type: ignore[arg-type]


async def test_the_recipe_pickles_compares_and_prints() -> None:
    layer = TimeoutLayer(stall_seconds=None)
    assert pickle.loads(pickle.dumps(layer)) == layer
    assert "stall_seconds=None" in repr(layer)


@pytest.mark.parametrize("operation", sorted(CONTROL))
async def test_a_control_operation_ends_after_timeout_seconds(operation: str) -> None:
    async with open_stack(TimeoutLayer(), plan=[Injection(hang=True)], data=DATA) as stack:
        with pytest.raises(TimedOut) as caught:
            await CONTROL[operation](stack.accessor, None)
        error = caught.value
        assert stack.runtime.loop.time() == 60.0
        assert (error.status, error.operation, error.context["limit_seconds"]) == ("temporary", operation, 60.0)
        assert error.path == ("k" if operation in ("stat", "delete", "copy", "write") else error.path)
        await CONTROL[operation](stack.accessor, None)


@pytest.mark.parametrize("operation", sorted(CONTROL))
async def test_a_deadline_ends_a_control_operation_permanently(operation: str) -> None:
    async with open_stack(TimeoutLayer(), RetryLayer(), plan=[Injection(hang=True, times=None)], data=DATA) as stack:
        with pytest.raises(TimedOut, match="deadline") as caught:
            await CONTROL[operation](stack.accessor, 5.0)
        assert stack.runtime.loop.time() == 5.0
        assert caught.value.status == "permanent"
        assert len(stack.faults.requests) == 1


@pytest.mark.parametrize("at", ["call", "head"])
async def test_no_head_within_stall_seconds_is_timed_out(at: Any) -> None:
    async with open_stack(TimeoutLayer(), plan=[Injection(at=at, hang=True)], data=DATA) as stack:
        with pytest.raises(TimedOut) as caught:
            await stack.fetch()
        error = caught.value
        assert stack.runtime.loop.time() == 20.0
        assert not isinstance(error, Stalled)
        assert (error.status, error.operation, error.path, error.received) == ("temporary", "read", "k", 0)
        assert error.context["limit_seconds"] == 20.0
        assert await stack.fetch() == DATA


@pytest.mark.parametrize("at", [0, CHUNK, 3 * CHUNK + 5])
async def test_a_body_that_stops_is_stalled(at: int) -> None:
    async with open_stack(TimeoutLayer(), plan=[Injection(at=at, hang=True)], data=DATA) as stack:
        with pytest.raises(Stalled) as caught:
            await stack.fetch()
        error = caught.value
        assert 20.0 <= stack.runtime.loop.time() <= 25.0
        assert (error.status, error.received, error.context["received"]) == ("temporary", at, at)
        assert error.head is not None
        assert error.head.size == len(DATA)


async def test_a_slow_body_that_goes_on_is_not_stalled() -> None:
    plan = [Injection(at=CHUNK * index, delay_seconds=19.0) for index in range(4)]
    async with open_stack(TimeoutLayer(), plan=plan, data=DATA) as stack:
        assert await stack.fetch() == DATA
        assert stack.runtime.loop.time() == 4 * 19.0


@pytest.mark.parametrize("pause", [1.0, 4.0, 6.0, 11.0, 19.9])
async def test_the_limit_counts_from_the_last_byte(pause: float) -> None:
    """However late in the limit the last byte came: never too early, at most a quarter too late."""
    plan = [Injection(at=CHUNK, delay_seconds=pause), Injection(at=2 * CHUNK, hang=True)]
    async with open_stack(TimeoutLayer(), plan=plan, data=DATA) as stack:
        with pytest.raises(Stalled):
            await stack.fetch()
        assert pause + 20.0 <= stack.runtime.loop.time() <= pause + 25.0


@pytest.mark.parametrize("at", ["call", CHUNK])
@pytest.mark.parametrize("stall_seconds", [None, 20.0])
async def test_a_deadline_ends_a_read_permanently(at: Any, stall_seconds: float | None) -> None:
    layers = (TimeoutLayer(stall_seconds=stall_seconds), RetryLayer())
    async with open_stack(*layers, plan=[Injection(at=at, hang=True, times=None)], data=DATA) as stack:
        with pytest.raises(TimedOut, match="deadline") as caught:
            await stack.fetch(deadline=7.0)
        assert stack.runtime.loop.time() == 7.0
        assert (caught.value.status, caught.value.received) == ("permanent", 0 if at == "call" else CHUNK)
        with pytest.raises(TimedOut, match="deadline"):
            await stack.fetch(deadline=7.0)
        assert len(stack.faults.requests) == 1


async def test_the_deadline_bounds_a_body_that_always_goes_on() -> None:
    plan = [Injection(at=CHUNK * index, delay_seconds=3.0) for index in range(4)]
    async with open_stack(TimeoutLayer(), plan=plan, data=DATA) as stack:
        with pytest.raises(TimedOut, match="deadline"):
            await stack.fetch(deadline=8.0)
        assert stack.runtime.loop.time() == 8.0


async def test_retry_goes_on_where_a_body_stalled() -> None:
    async with open_stack(TimeoutLayer(), RetryLayer(), plan=[Injection(at=CHUNK, hang=True)], data=DATA) as stack:
        assert await stack.fetch() == DATA
        assert stack.ranges() == [(0, None), (CHUNK, 3 * CHUNK)]


async def test_nothing_is_armed_without_limits() -> None:
    layer = TimeoutLayer(timeout_seconds=None, stall_seconds=None)
    async with open_stack(layer, plan=[Injection(at=CHUNK, delay_seconds=100_000.0)], data=DATA) as stack:
        armed = []
        loop = stack.runtime.loop
        call_at = loop.call_at

        def spy(when: float, *arguments: Any, **keywords: Any) -> asyncio.TimerHandle:
            armed.append(when)
            return call_at(when, *arguments, **keywords)

        loop.call_at = spy  # type: ignore[method-assign, assignment]
        try:
            assert await stack.fetch() == DATA
            await stack.accessor.stat(StatRequest(path="k"))
        finally:
            del loop.call_at
        assert armed == [100_000.0]


class SaysItWatches(Layer):
    """A layer whose inner side says that it ends its own waits, whether it does or not."""

    def __init__(self, stall_seconds: object) -> None:
        self.stall_seconds = stall_seconds

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        accessor = WrappedAccessor(inner)
        accessor.stall_seconds = self.stall_seconds  # type: ignore[attr-defined]
        return accessor


async def test_what_watches_itself_closely_enough_is_left_to_itself() -> None:
    plan = [Injection(at=CHUNK, delay_seconds=500.0), Injection(at=CHUNK, occurrence=1, error=Stalled)]
    layers = (SaysItWatches(20.0), CompleteLayer(), ErrorContextLayer(), TimeoutLayer(stall_seconds=20.0))
    async with open_stack(*layers, plan=plan, data=DATA) as stack:
        assert await stack.fetch() == DATA
        assert stack.runtime.loop.time() == 500.0
        with pytest.raises(Stalled, match="injected"):
            await stack.fetch()


async def test_the_stat_of_a_directory_is_bounded_all_the_same() -> None:
    """It may be a listing, whose body comes slowly and so passes for progress."""
    layers = (SaysItWatches(20.0), TimeoutLayer())
    async with open_stack(*layers, plan=[Injection(hang=True)], data=DATA) as stack:
        with pytest.raises(TimedOut):
            await stack.accessor.stat(StatRequest(path="d/"))
        assert stack.runtime.loop.time() == 60.0


async def test_what_watches_itself_still_has_the_deadline() -> None:
    layers = (SaysItWatches(20.0), TimeoutLayer())
    async with open_stack(*layers, plan=[Injection(at=CHUNK, hang=True)], data=DATA) as stack:
        with pytest.raises(TimedOut, match="deadline"):
            await stack.fetch(deadline=7.0)
        assert stack.runtime.loop.time() == 7.0


@pytest.mark.parametrize(
    "layers",
    [
        (SaysItWatches(20.5), TimeoutLayer()),
        (SaysItWatches(None), TimeoutLayer()),
        (SaysItWatches("20"), TimeoutLayer()),
        # A layer in between may wait for something else: unless it says so too, it is watched.
        (SaysItWatches(20.0), FaultLayer(), TimeoutLayer()),
    ],
    ids=["too slow", "does not", "says nonsense", "not seen from outside"],
)
async def test_what_does_not_is_watched(layers: tuple[Layer, ...]) -> None:
    async with open_stack(*layers, plan=[Injection(at="call", hang=True)], data=DATA) as stack:
        with pytest.raises(TimedOut):
            await stack.fetch()
        assert stack.runtime.loop.time() == 20.0


async def test_many_reads_share_one_timer_that_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [Injection(at=CHUNK, delay_seconds=1.0, times=None)]
    async with open_stack(TimeoutLayer(), plan=plan, data=DATA) as stack:
        loop, timers = stack.runtime.loop, list[asyncio.TimerHandle]()
        call_at = loop.call_at

        def noted(when: float, callback: Callable[..., object], *arguments: Any, **more: Any) -> asyncio.TimerHandle:
            handle = call_at(when, callback, *arguments, **more)
            if isinstance(getattr(callback, "__self__", None), StallWatchdog):
                assert all(timer.when() < loop.time() + 0.001 for timer in timers)
                timers.append(handle)
            return handle

        monkeypatch.setattr(loop, "call_at", noted)
        await asyncio.gather(*(stack.fetch() for _ in range(50)))
        assert timers[-1].when() > loop.time()
        set_until_now = len(timers)
        await asyncio.sleep(TimeoutLayer().stall_seconds or 0.0)
        assert len(timers) == set_until_now


async def test_only_the_stalled_one_of_many_reads_ends() -> None:
    plan = [
        Injection(at=CHUNK, delay_seconds=19.0, times=None),
        Injection(at=2 * CHUNK, delay_seconds=19.0, times=None),
        Injection(at=3 * CHUNK, occurrence=3, hang=True),
    ]
    async with open_stack(TimeoutLayer(), plan=plan, data=DATA) as stack:
        results = await asyncio.gather(*(stack.fetch() for _ in range(8)), return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["Stalled"] + ["bytes"] * 7


@pytest.mark.parametrize("at", ["call", CHUNK])
@pytest.mark.parametrize("first", ["caller", "watchdog"])
async def test_a_cancellation_in_the_moment_of_expiry_passes_unchanged(
    at: Any, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either order within one tick: the caller's cancellation wins, and the task is not left cancelled twice."""
    async with open_stack(TimeoutLayer(), plan=[Injection(at=at, hang=True)], data=DATA) as stack:
        reading = asyncio.create_task(stack.fetch())
        expire = Watch.expire

        def both(watch: Watch, reason: Any) -> None:
            if first == "caller":
                reading.cancel("by the caller")
            expire(watch, reason)
            if first == "watchdog":
                reading.cancel("by the caller")

        monkeypatch.setattr(Watch, "expire", both)
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert reading.cancelled()
        assert reading.cancelling() == 1


async def test_an_expiry_leaves_no_cancellation_in_the_task() -> None:
    async with open_stack(TimeoutLayer(), plan=[Injection(at=CHUNK, hang=True, times=2)], data=DATA) as stack:
        for _ in range(2):
            with pytest.raises(Stalled):
                await stack.fetch()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
        assert await stack.fetch() == DATA


async def test_an_outer_timeout_of_the_caller_still_works() -> None:
    async with open_stack(TimeoutLayer(), plan=[Injection(at=CHUNK, hang=True)], data=DATA) as stack:
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(3.0):
                await stack.fetch()
        assert not isinstance(caught.value, TimedOut)


async def test_a_failure_of_the_inner_layer_passes_unchanged() -> None:
    async with open_stack(TimeoutLayer(), plan=[Injection(at=CHUNK, error=Unavailable)], data=DATA) as stack:
        with pytest.raises(Unavailable):
            await stack.fetch()


async def test_the_limit_of_a_write_grows_with_its_size() -> None:
    plan = [Injection(operation="write", delay_seconds=100.0, times=None)]
    async with open_stack(TimeoutLayer(), plan=plan) as stack:
        with pytest.raises(TimedOut):
            await stack.accessor.write(WriteRequest(path="k"), b"small")
        await stack.accessor.write(WriteRequest(path="k"), bytes(WRITE_BYTES_PER_LIMIT))
        assert len(stack.store.objects["k"].data) == WRITE_BYTES_PER_LIMIT


async def test_each_call_on_a_streaming_write_is_bounded() -> None:
    hangs = False

    async def hang(step: Step) -> None:
        if hangs:
            await asyncio.get_running_loop().create_future()

    async with open_stack(BodyLayer(hang), TimeoutLayer()) as stack:
        body = await stack.accessor.open_write(WriteRequest(path="k", deadline=50.0))
        await body.write(b"piece")
        hangs = True
        with pytest.raises(TimedOut, match="deadline"):
            await body.write(b"piece")
        with pytest.raises(TimedOut, match="deadline"):
            await body.close()
        with pytest.raises(TimedOut, match="60 seconds"):
            await body.abort()


async def test_a_sink_without_progress_counts_from_the_start_of_each_attempt() -> None:
    async with open_stack(TimeoutLayer(), plan=[Injection(hang=True)], data=DATA) as stack:
        sink = CollectSink()
        with pytest.raises(TimedOut):
            await stack.accessor.read(ReadRequest(path="k"), sink)
        assert sink.received == 0
        await stack.accessor.read(ReadRequest(path="k"), sink)
        assert sink.to_bytes() == DATA


async def test_a_read_that_meets_its_deadline_leaves_no_timer() -> None:
    """The stack itself asserts at its end that no timer is armed."""
    async with open_stack(TimeoutLayer(), data=DATA) as stack:
        assert await stack.fetch(deadline=100.0) == DATA
