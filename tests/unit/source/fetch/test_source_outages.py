"""Stores that throttle, or do not respond, for minutes: a source waits for them, and loses nothing."""

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest

from aioprefetch.errors import (
    BudgetExhausted,
    Error,
    PermissionDenied,
    StateConflict,
    Throttled,
    TimedOut,
    Unavailable,
)
from aioprefetch.layers import RetryLayer
from aioprefetch.source.fetch.source import FileSource, StateLocation
from aioprefetch.source.options import AdmissionOptions, FormatOptions, ListOptions, PartitionOptions
from aioprefetch.source.polling import outlast, patient
from aioprefetch.source.reading import plan_batch
from aioprefetch.source.values import FetchItem, Offset
from aioprefetch.values import ListRequest, Request
from tests.profile import chosen
from tests.stores.verb_layer import Forward, VerbLayer
from tests.unit.source.fetch.source_scene import ALL, Scene, items_of

pytestmark = pytest.mark.virtual
# Of the virtual clock.
TRIGGER_SECONDS = 0.1
PATIENT = ListOptions(interval_seconds=0, retry_seconds=600.0)


class Outage(VerbLayer):
    """Between two moments every request fails. ``times`` are those of the requests that failed."""

    def __init__(self, kind: type[Error] = Throttled, *, status: str | None = None) -> None:
        self.kind = kind
        self.status = status
        self.until: float | None = None
        self.times: list[float] = []

    def begin(self, seconds: float) -> None:
        self.until = now() + seconds

    async def around(self, request: Request, forward: Forward) -> Any:
        if self.until is not None and now() < self.until:
            self.times.append(now())
            raise self.kind("no", operation=request.operation, status=self.status)  # type: ignore[arg-type]
        return await forward(request)


def now() -> float:
    return asyncio.get_running_loop().time()


async def keys_until(source: FileSource, start: Offset, seconds: float) -> tuple[Offset, list[str]]:
    """The keys that an engine reads in repeated triggers, as a running query does."""
    keys: list[str] = []
    deadline = now() + seconds
    while now() < deadline:
        end = await source.latest_offset(start, AdmissionOptions(files_max=3))
        if end is not start:
            keys += [item.file.key for item in items_of(await source.partitions(start, end))]
            await source.commit(end)
        start = end
        await asyncio.sleep(TRIGGER_SECONDS)
    return start, keys


KINDS: list[tuple[type[Error], str | None]] = [
    (Throttled, "persistent"),
    (Unavailable, None),
    (TimedOut, "persistent"),
    (BudgetExhausted, "persistent"),
    (BudgetExhausted, None),
]
# Each store fails, and each kind of failure is met, in every profile.
OUTAGES = chosen(
    quick=[(*kind, which) for kind, which in zip(KINDS, ["bucket", "state", "both", "bucket", "state"], strict=True)],
    full=[(*kind, which) for kind in KINDS for which in ("bucket", "state", "both")],
)


@pytest.mark.parametrize(("kind", "status", "which"), OUTAGES)
async def test_an_outage_of_minutes_ends_no_query_and_loses_nothing(
    scene: Scene, kind: type[Error], status: str | None, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(kind, status=status)
    source = await scene.open(
        operator=scene.operator.layer(outage) if which != "state" else scene.operator,
        state_operator=scene.state_operator.layer(outage) if which != "bucket" else scene.state_operator,
        list_options=PATIENT,
    )
    first, second, third = ([f"{letter}{number}.gz" for number in range(7)] for letter in "abc")
    scene.put(*first)
    start, keys = await keys_until(source, source.initial_offset(), 5)
    assert sorted(keys) == first
    outage.begin(300)
    scene.put(*second)
    start, keys = await keys_until(source, start, 290)
    assert keys == []
    is_waiting = source.is_waiting
    assert is_waiting
    assert "a store failed, and is asked again for 600 s more" in caplog.text
    scene.put(*third)
    start, keys = await keys_until(source, start, 30)
    assert sorted(keys) == second + third
    assert start.files == 21
    assert not source.is_waiting
    pauses = [later - earlier for earlier, later in pairwise(outage.times)]
    assert len(outage.times) < 100
    assert max(pauses) <= 10.2


async def test_an_endless_outage_is_raised_with_its_duration(scene: Scene) -> None:
    outage = Outage()
    source = await scene.open(operator=scene.operator.layer(outage), list_options=PATIENT)
    scene.put("a.gz")
    outage.begin(10_000)
    started = now()
    with pytest.raises(Throttled) as caught:
        await keys_until(source, source.initial_offset(), 10_000)
    assert 600 <= now() - started <= 620
    assert 600 <= int(str(caught.value.context["failing_seconds"])) <= 620
    outage.until = None
    assert (await source.latest_offset(source.initial_offset())).files == 1


async def test_each_of_two_outages_is_tolerated_for_itself(scene: Scene) -> None:
    outage = Outage()
    source = await scene.open(operator=scene.operator.layer(outage), list_options=PATIENT)
    start = source.initial_offset()
    for number in range(4):
        outage.begin(400)
        scene.put(f"{number}.gz")
        start, keys = await keys_until(source, start, 420)
        assert keys == [f"{number}.gz"]


@pytest.mark.parametrize("retry_seconds", [0.0, 600.0])
async def test_permanent_errors_are_raised_at_once_and_all_errors_without_retry_seconds(
    scene: Scene, retry_seconds: float
) -> None:
    options = ListOptions(interval_seconds=0, retry_seconds=retry_seconds)
    for kind in (PermissionDenied, StateConflict, *([Throttled] if not retry_seconds else [])):
        outage = Outage(kind)
        source = await scene.open(operator=scene.operator.layer(outage), list_options=options)
        outage.begin(60)
        started = now()
        with pytest.raises(kind):
            await source.latest_offset(source.initial_offset())
        assert now() == started


@pytest.mark.parametrize("way", ["available now", "everything"])
async def test_a_run_that_ends_does_not_end_because_of_an_outage(scene: Scene, way: str) -> None:
    """``start`` would say that there is no more."""
    outage = Outage()
    source = await scene.open(operator=scene.operator.layer(outage), list_options=PATIENT)
    keys = [f"{number:02}.gz" for number in range(20)]
    scene.put(*keys, modified_ms=0)
    start = source.initial_offset()
    if way == "available now":
        source.prepare_available_now()
    outage.begin(200)
    started = now()
    end = await source.latest_offset(start, ALL)
    assert now() - started >= 200
    assert sorted(item.file.key for item in items_of(await source.partitions(start, end))) == keys
    if way == "available now":
        assert await source.latest_offset(end, ALL) is end


async def test_the_work_of_a_batch_is_requested_until_the_state_responds(scene: Scene) -> None:
    """After a restart it is read from the log, and there is nothing to give in its place."""
    outage = Outage(Unavailable)
    scene.put(*"abc")
    first = await scene.open()
    start = first.initial_offset()
    end = await first.latest_offset(start)
    await first.aclose()
    source = await scene.open(state_operator=scene.state_operator.layer(outage), list_options=PATIENT)
    outage.begin(100)
    await source.commit(end)
    parts = await source.partitions(start, end)
    assert sorted(item.file.key for item in items_of(parts)) == list("abc")


async def test_attempts_of_the_layers_come_first(scene: Scene) -> None:
    """A single failure is not even seen here."""
    outage = Outage()
    operator = scene.operator.layer(outage).layer(RetryLayer(attempts_max=6))
    source = await scene.open(operator=operator, list_options=PATIENT)
    scene.put("a.gz")
    outage.begin(0.5)
    assert (await source.latest_offset(source.initial_offset())).files == 1
    assert not source.is_waiting


class Half(VerbLayer):
    """Every other request fails, by chance; every listing within the first ``list_seconds``."""

    def __init__(self, seed: int = 0, *, share: float = 0.5, list_seconds: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.share = share
        self.lists_from = now() + list_seconds

    async def around(self, request: Request, forward: Forward) -> Any:
        is_early = isinstance(request, ListRequest) and now() < self.lists_from
        if is_early or self.random.random() < self.share:
            raise Throttled("no", operation=request.operation)
        return await forward(request)


async def test_a_start_survives_a_store_that_throttles_half_of_all_requests(scene: Scene) -> None:
    scene.put("a.gz")
    for number in range(10):
        half = Half(number)
        options: dict[str, Any] = {
            "state_operator": scene.state_operator.layer(half),
            "operator": scene.operator.layer(half),
        }
        source = await scene.open(f"s{number}/", list_options=PATIENT, **options)
        _, keys = await keys_until(source, source.initial_offset(), 300)
        assert keys == ["a.gz"]


async def test_a_start_survives_five_minutes_in_which_nothing_is_listed(scene: Scene) -> None:
    scene.put("a.gz")
    layer = Half(share=0, list_seconds=300)
    started = now()
    operators = (scene.operator.layer(layer), scene.state_operator.layer(layer))
    source = await scene.open(list_options=PATIENT, operator=operators[0], state_operator=operators[1])
    assert 300 <= now() - started <= 400
    _, keys = await keys_until(source, source.initial_offset(), 30)
    assert keys == ["a.gz"]
    follower = await scene.open("f/", attach_to=StateLocation(operators[1], "s/"), list_options=PATIENT)
    assert (await keys_until(follower, follower.initial_offset(), 30))[1] == ["a.gz"]


@pytest.mark.parametrize(("kind", "status", "seconds"), [(Throttled, "persistent", 600), (PermissionDenied, None, 0)])
async def test_an_opening_ends_with_an_outage_that_does_not(
    scene: Scene, kind: type[Error], status: str | None, seconds: int
) -> None:
    outage = Outage(kind, status=status)
    outage.begin(10_000)
    started = now()
    with pytest.raises(kind):
        await scene.open(state_operator=scene.state_operator.layer(outage), list_options=PATIENT)
    assert seconds <= now() - started <= seconds + 20


async def test_a_plan_is_made_while_half_of_all_requests_are_refused(scene: Scene) -> None:
    """Of many pages, each of which is listed at the first attempt or a later one: no page begins the listing again."""
    scene.put(*(f"{number:05}.bin" for number in range(5000)))
    operator = patient(scene.operator.layer(Half()), 600)

    async def plan() -> list[list[FetchItem]]:
        return await plan_batch(operator, PATIENT, PartitionOptions(), FormatOptions(format="binary"))

    assert len(items_of(await outlast(plan, 600))) == 5000


async def test_a_server_that_was_never_there_is_not_waited_for() -> None:
    given: list[dict[str, object]] = [{"reason": "dns"}, {"errno": "ECONNREFUSED"}]
    for facts in given:

        async def call(facts: dict[str, object] = facts) -> None:
            raise Unavailable("no", status="persistent", context=facts)

        started = now()
        with pytest.raises(Unavailable):
            await outlast(call, 600)
        assert now() == started
