"""Retry: what is tried again, how often, and what the error says in the end."""

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import (
    AlreadyExists,
    BudgetExhausted,
    ConfigInvalid,
    Error,
    NotFound,
    PermissionDenied,
    ProtocolError,
    Stalled,
    Throttled,
    TimedOut,
    Unavailable,
)
from aioprefetch.layers import WrappedAccessor
from aioprefetch.layers.retry import RetryLayer, TokenBucket, backoff_seconds
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import Injection
from aioprefetch.values import (
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListRequest,
    Metadata,
    ReadRequest,
    RenameRequest,
    StatRequest,
    WriteRequest,
)
from tests.stores.layer_stack import open_stack, pattern

pytestmark = pytest.mark.virtual

DOWN = Injection(error=Unavailable, times=None)


@pytest.mark.parametrize("option", ["attempts_max", "tokens", "progress_bytes"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, None])
async def test_a_count_that_cannot_work_is_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigInvalid, match=option):
        RetryLayer(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["base_seconds", "throttle_base_seconds", "cap_seconds", "total_seconds"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1", True])
async def test_a_time_that_cannot_work_is_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigInvalid, match=option):
        RetryLayer(**{option: value})  # type: ignore[arg-type]


async def test_the_recipe_pickles_compares_and_prints() -> None:
    layer = RetryLayer(attempts_max=7)
    assert pickle.loads(pickle.dumps(layer)) == layer
    assert "attempts_max=7" in repr(layer)


CAUSES = {
    Unavailable: "retries_unavailable",
    TimedOut: "retries_timed_out",
    Stalled: "retries_timed_out",
    Throttled: "retries_throttled",
    ProtocolError: "retries_protocol",
}


@pytest.mark.parametrize("error", CAUSES)
async def test_a_temporary_error_is_tried_again(error: type[Error]) -> None:
    async with open_stack(RetryLayer(), plan=[Injection(error=error)], data=b"abc") as stack:
        assert await stack.fetch() == b"abc"
        assert len(stack.faults.requests) == 2
        assert stack.runtime.counters["retries"] == 1
        assert stack.runtime.counters["retries_resumed"] == 0
        assert stack.runtime.counters["throttled"] == (error is Throttled)
        assert stack.runtime.counters[CAUSES[error]] == 1


async def test_a_permanent_error_is_not_tried_again() -> None:
    async with open_stack(RetryLayer(), plan=[Injection(error=PermissionDenied)], data=b"abc") as stack:
        with pytest.raises(PermissionDenied) as caught:
            await stack.fetch()
        assert caught.value.status == "permanent"
        assert len(stack.faults.requests) == 1
        assert stack.runtime.loop.time() == 0


async def test_giving_up_keeps_the_kind_and_says_persistent() -> None:
    async with open_stack(RetryLayer(), plan=[DOWN], data=b"abc") as stack:
        with pytest.raises(Unavailable) as caught:
            await stack.fetch()
        error = caught.value
        assert error.status == "persistent"
        assert (error.operation, error.path, error.context["attempts"]) == ("read", "k", 4)
        assert error.context["elapsed_seconds"] == round(stack.runtime.loop.time(), 3)
        assert len(stack.faults.requests) == 4
        assert stack.runtime.counters["retries"] == 3
        assert stack.runtime.counters["retries_exhausted"] == 1


async def test_each_retry_is_published_before_its_pause() -> None:
    async with open_stack(RetryLayer(), plan=[Injection(error=Unavailable, times=2)], data=b"abc") as stack:
        await stack.fetch()
        assert [(one.name, one.path, one.facts["attempt"], one.facts["error"]) for one in stack.events] == [
            ("request.retried", "k", 2, "Unavailable"),
            ("request.retried", "k", 3, "Unavailable"),
        ]
        delays = [one.facts["wait_seconds"] for one in stack.events]
        assert sum(delay for delay in delays if isinstance(delay, float)) == pytest.approx(stack.runtime.loop.time())


async def test_pauses_are_jittered_below_an_exponential_bound() -> None:
    draws = random.Random(1)
    for retry, bound in [(1, 0.05), (2, 0.1), (3, 0.2), (10, 20.0), (5000, 20.0)]:
        pauses = [backoff_seconds(draws, retry, 0.05, 20.0) for _ in range(2000)]
        assert 0 <= min(pauses) < bound * 0.01
        assert bound * 0.99 < max(pauses) <= bound


async def test_throttled_has_a_longer_base() -> None:
    layer = RetryLayer(attempts_max=2, base_seconds=0.0, throttle_base_seconds=8.0)
    async with open_stack(layer, plan=[Injection(error=Throttled)], data=b"abc") as stack:
        await stack.fetch()
        assert 0 < stack.runtime.loop.time() <= 8.0


async def test_retry_after_is_kept() -> None:
    plan = [Injection(error=Throttled, retry_after_seconds=30.0)]
    async with open_stack(RetryLayer(), plan=plan, data=b"abc") as stack:
        assert await stack.fetch() == b"abc"
        assert stack.runtime.loop.time() == 30.0


async def test_a_retry_after_beyond_the_time_allowed_is_not_waited_for() -> None:
    plan = [Injection(error=Throttled, retry_after_seconds=61.0)]
    async with open_stack(RetryLayer(), plan=plan, data=b"abc") as stack:
        with pytest.raises(Throttled) as caught:
            await stack.fetch()
        assert caught.value.status == "persistent"
        assert caught.value.context["gave_up"] == "total_seconds=60"
        assert stack.runtime.loop.time() == 0


async def test_no_attempt_starts_after_total_seconds() -> None:
    slow = Injection(delay_seconds=25.0, error=Unavailable, times=None)
    async with open_stack(RetryLayer(attempts_max=100), plan=[slow], data=b"abc") as stack:
        with pytest.raises(Unavailable) as caught:
            await stack.fetch()
        assert caught.value.context["attempts"] == len(stack.faults.requests) == 3
        assert 75 <= stack.runtime.loop.time() < 76


async def test_no_attempt_starts_after_the_deadline() -> None:
    slow = Injection(delay_seconds=4.0, error=Unavailable, times=None)
    async with open_stack(RetryLayer(attempts_max=100), plan=[slow], data=b"abc") as stack:
        with pytest.raises(Unavailable) as caught:
            await stack.fetch(deadline=10.0)
        assert len(stack.faults.requests) == 3
        assert caught.value.context["gave_up"] == "the caller's deadline"


@pytest.mark.parametrize(("deadline", "requests"), [(5.0, 1), (5.001, 2)])
async def test_an_attempt_that_would_start_at_the_deadline_is_not_made(deadline: float, requests: int) -> None:
    """Nor one after it; a millisecond before it the attempt is made."""
    plan = [Injection(error=Unavailable, retry_after_seconds=5.0, times=None)]
    async with open_stack(RetryLayer(base_seconds=0), plan=plan, data=b"abc") as stack:
        with pytest.raises(Unavailable) as caught:
            await stack.fetch(deadline=deadline)
        assert len(stack.faults.requests) == requests
        assert caught.value.context["gave_up"] == "the caller's deadline"


@checks("reliability:C34")
async def test_a_full_outage_ends_in_budget_exhausted_without_new_requests() -> None:
    """The bucket bounds the retries of all operations of a runtime together; the first requests are still sent."""
    async with open_stack(RetryLayer(), plan=[DOWN], data=b"abc") as stack:
        kinds = []
        for _ in range(40):
            with pytest.raises((Unavailable, BudgetExhausted)) as caught:
                await stack.fetch()
            kinds.append(caught.value.kind)
        retries = len(stack.faults.requests) - 40
        assert retries == stack.runtime.counters["retries"] == 1000 // 14 == 71
        assert kinds == ["Unavailable"] * 23 + ["BudgetExhausted"] * 17
        error = caught.value
        assert (error.status, error.operation, error.path) == ("persistent", "read", "k")
        assert isinstance(error.__cause__, Unavailable)
        assert error.context["last_error"] == "Unavailable"
        before = stack.runtime.loop.time()
        with pytest.raises(BudgetExhausted):
            await stack.accessor.stat(StatRequest(path="k"))
        assert stack.runtime.loop.time() == before


@checks("reliability:C34")
async def test_success_fills_the_bucket_again() -> None:
    layer = RetryLayer(tokens=30)
    plan = [Injection(occurrence=1, times=2, error=Unavailable), Injection(occurrence=7, error=Throttled)]
    async with open_stack(layer, plan=plan, data=b"abc") as stack:
        bucket = layer.bucket(stack.runtime)
        seen = []
        for _ in range(5):
            await stack.fetch()
            seen.append(bucket.tokens)
        # Two retries cost 28, of which the one that succeeded brings 14 back; then one for each clean success.
        assert seen == [30, 16, 17, 18, 19]
        await stack.fetch()
        assert bucket.tokens == 19


async def test_the_bucket_is_one_for_a_runtime_and_never_overfull() -> None:
    async with open_stack() as stack:
        assert RetryLayer().bucket(stack.runtime) is RetryLayer(attempts_max=9).bucket(stack.runtime)
    bucket = TokenBucket(10)
    assert bucket.take(10)
    assert not bucket.take(1)
    bucket.put(11)
    assert bucket.tokens == 10


async def test_a_response_against_the_protocol_gets_one_retry() -> None:
    async with open_stack(RetryLayer(), plan=[Injection(error=ProtocolError, times=None)], data=b"abc") as stack:
        with pytest.raises(ProtocolError) as caught:
            await stack.fetch()
        assert caught.value.status == "persistent"
        assert len(stack.faults.requests) == 2


def name_failure(seconds: float) -> Callable[..., Awaitable[object]]:
    """A call that fails after so long, because the name of the host is not known."""

    async def fail(*arguments: object) -> object:
        await asyncio.sleep(seconds)
        raise Unavailable("the name could not be resolved", context={"reason": "dns"})

    return fail


@pytest.mark.parametrize(
    ("seconds", "attempts", "gave_up"),
    [
        (0.0, 2, "2 failures to resolve the name"),
        (2.4, 2, "2 failures to resolve the name"),
        (2.6, 1, "5 seconds to resolve the name"),
        (9.0, 1, "5 seconds to resolve the name"),
    ],
)
async def test_a_name_that_is_not_known_is_asked_for_twice_within_five_seconds(
    seconds: float, attempts: int, gave_up: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stack(RetryLayer(), data=b"abc") as stack:
        monkeypatch.setattr(stack.faults, "read", name_failure(seconds))
        with pytest.raises(Unavailable) as caught:
            await stack.fetch()
        error = caught.value
        assert (error.status, error.context["gave_up"]) == ("persistent", gave_up)
        assert error.context["attempts"] == attempts
        assert stack.runtime.loop.time() <= max(5.0, seconds)


async def test_a_name_that_is_known_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the attempt before took, that failed for another reason."""
    plan = [Injection(delay_seconds=30.0, error=Unavailable)]
    async with open_stack(RetryLayer(), plan=plan, data=b"abc") as stack:
        real, failing, calls = stack.faults.read, name_failure(0.1), 0

        async def read(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return await (failing(*arguments) if calls == 2 else real(*arguments))

        monkeypatch.setattr(stack.faults, "read", read)
        assert await stack.fetch() == b"abc"
        assert calls == 3


@pytest.mark.parametrize("at", ["call", "reply"])
@pytest.mark.parametrize("operation", ["stat", "list", "delete", "copy", "create_dir", "write"])
async def test_control_operations_are_repeated(operation: str, at: str) -> None:
    plan = [Injection(operation=operation, at=at, error=Unavailable, times=3)]  # type: ignore[arg-type]
    async with open_stack(RetryLayer(), plan=plan, data=b"abc") as stack:
        top = stack.accessor
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "stat": lambda: top.stat(StatRequest(path="k")),
            "list": lambda: top.list_page(ListRequest(path="")),
            "delete": lambda: top.delete(DeleteRequest(path="k", paths=("k",))),
            "copy": lambda: top.copy(CopyRequest(path="k", target="copied")),
            "create_dir": lambda: top.create_dir(CreateDirRequest(path="d/")),
            "write": lambda: top.write(WriteRequest(path="k"), b"new"),
        }
        await calls[operation]()
        assert len(stack.faults.requests) == 4
        assert ("k" in stack.store.objects) == (operation != "delete")


@checks("reliability:W04")
@pytest.mark.parametrize("error", [Unavailable, TimedOut, ProtocolError])
@pytest.mark.parametrize("condition", [{"if_not_exists": True}, {"if_none_match": "another"}], ids=str)
async def test_a_conditional_write_that_may_have_happened_is_not_repeated(
    error: type[Unavailable], condition: dict[str, Any]
) -> None:
    plan = [Injection(operation="write", at="reply", error=error)]
    async with open_stack(RetryLayer(), plan=plan) as stack:
        with pytest.raises(error) as caught:
            await stack.accessor.write(WriteRequest(path="new", **condition), b"1")
        assert caught.value.status == "persistent"
        assert "conditional" in str(caught.value.context["gave_up"])
        assert len(stack.faults.requests) == 1
        etag = stack.store.objects["new"].metadata.etag
        assert await stack.accessor.write(WriteRequest(path="new", if_match=etag), b"2")


@checks("reliability:W06")
async def test_a_copy_that_must_not_replace_and_may_have_happened_is_not_repeated() -> None:
    plan = [Injection(operation="copy", at="reply", error=Unavailable)]
    async with open_stack(RetryLayer(), plan=plan, data=b"1") as stack:
        with pytest.raises(Unavailable) as caught:
            await stack.accessor.copy(CopyRequest(path="k", target="new", if_not_exists=True))
        assert "conditional" in str(caught.value.context["gave_up"])
        assert stack.store.objects["new"].data == b"1"


class LosingAccessor(WrappedAccessor):
    """Its renames are done, and their responses are lost."""

    renamed = 0

    async def rename(self, request: RenameRequest) -> Metadata:
        self.renamed += 1
        raise Unavailable("lost", operation="rename", path=request.path)


@checks("reliability:W06")
async def test_a_rename_that_may_have_happened_is_not_repeated() -> None:
    async with open_stack() as stack:
        losing = LosingAccessor(stack.accessor)
        with pytest.raises(Unavailable) as caught:
            await RetryLayer().wrap(losing, stack.runtime).rename(RenameRequest(path="k", target="new"))
        assert "conditional" in str(caught.value.context["gave_up"])
        assert losing.renamed == 1


async def test_a_conditional_write_that_was_throttled_is_repeated() -> None:
    async with open_stack(RetryLayer(), plan=[Injection(operation="write", error=Throttled)]) as stack:
        await stack.accessor.write(WriteRequest(path="new", if_not_exists=True), b"1")
        with pytest.raises(AlreadyExists):
            await stack.accessor.write(WriteRequest(path="new", if_not_exists=True), b"1")


async def test_the_opening_of_a_streaming_write_is_repeated() -> None:
    plan = [Injection(operation="write", error=Unavailable, times=2)]
    async with open_stack(RetryLayer(), plan=plan) as stack:
        body = await stack.accessor.open_write(WriteRequest(path="new", if_not_exists=True))
        await body.write(b"piece")
        await body.close()
        assert stack.store.objects["new"].data == b"piece"
        assert len(stack.faults.requests) == 3


async def test_a_missing_object_is_not_tried_again() -> None:
    async with open_stack(RetryLayer()) as stack:
        with pytest.raises(NotFound):
            await stack.accessor.read(ReadRequest(path="missing"), CollectSink())
        assert len(stack.faults.requests) == 1


@checks("reliability:C05")
async def test_a_cancellation_in_a_pause_ends_it_at_once() -> None:
    plan = [Injection(error=Throttled, retry_after_seconds=50.0)]
    async with open_stack(RetryLayer(), plan=plan, data=pattern(100)) as stack:
        pausing = asyncio.Event()
        stack.runtime.events.subscribe(lambda _: pausing.set(), "request.retried")
        reading = asyncio.create_task(stack.fetch())
        await pausing.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert stack.runtime.loop.time() == 0
        assert len(stack.faults.requests) == 1
