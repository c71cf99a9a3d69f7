"""Listings that fail: the position stays, pauses grow, nothing runs on."""

import asyncio
import contextlib
import random
from itertools import pairwise

import pytest

from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import Error, PermissionDenied, ProtocolError, Throttled, TimedOut, Unavailable
from aioprefetch.layers import RetryLayer
from aioprefetch.source.fetch.planner import PlanOptions
from aioprefetch.source.list.diff_lister import DiffLister
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import ListOptions
from aioprefetch.source.values import TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ListPage, ListRequest
from tests.stores.dict_index import Consumer, DictIndex, first_cursor
from tests.stores.simulated_bucket import SimulatedBucket
from tests.stores.verb_layer import VerbLayer

OPTIONS = ListOptions(interval_seconds=0.0, ahead_pages=2, sweep_pages=2)


def failing(bucket: SimulatedBucket, *errors: type[Error]) -> list[float]:
    """The next requests fail; the times of all requests."""
    rest, times = list(errors), []

    def fail(request: ListRequest) -> None:
        times.append(asyncio.get_running_loop().time())
        if rest:
            raise rest.pop(0)("no", operation="list")

    bucket.on_request = fail
    return times


@checks("source:L12", "reliability:P16")
@pytest.mark.virtual
@pytest.mark.parametrize("error", [Throttled, Unavailable, TimedOut, PermissionDenied])
async def test_a_failing_page_does_not_lose_the_position(error: type[Error]) -> None:
    bucket = SimulatedBucket()
    keys = [f"k{number:02}" for number in range(30)]
    for key in keys:
        bucket.put(key)
    chance = random.Random(1)

    def sometimes(request: ListRequest) -> None:
        if chance.random() < 0.4:
            raise error("no", operation="list")

    bucket.on_request = sometimes
    async with bucket.operator() as operator:
        known = DictIndex()
        one = Consumer(TailSweepLister(operator, OPTIONS, known), known)
        for _ in range(400):
            with contextlib.suppress(error):
                await one.trigger(room=4)
        assert sorted(key for key, _ in one.delivered) == keys
        assert set(one.delivered.values()) == {1}
        assert one.cursor is not None
        assert one.passes > 3


@checks("source:L12")
@pytest.mark.virtual
async def test_pauses_grow_between_triggers_and_start_again_after_success() -> None:
    bucket = SimulatedBucket()
    bucket.put("a")
    times = failing(bucket, *[Unavailable] * 12)
    async with bucket.operator() as operator:
        lister = TailSweepLister(operator, OPTIONS, DictIndex())
        cursor = TailAndSweep()
        for _ in range(12):
            with pytest.raises(Unavailable):
                await lister.page(cursor)
        page = await lister.page(cursor)
        assert [change.file.key for change, _ in page.changes] == ["a"]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert all(2.0**number / 2 <= pause <= 2.0**number for number, pause in enumerate(pauses[:4]))
        assert all(5 <= pause <= PlanOptions().list_seconds_max for pause in pauses[4:])
        count = len(times)
        lister.begin_trigger()
        started = asyncio.get_running_loop().time()
        await lister.page(page.after)
        assert (len(times), asyncio.get_running_loop().time()) == (count + 1, started)
        await lister.aclose()


@checks("source:L12")
@pytest.mark.virtual
async def test_the_layers_of_the_operator_try_again_first() -> None:
    """Two failures are not even seen here."""
    bucket = SimulatedBucket()
    bucket.put("a")
    failing(bucket, Throttled, Unavailable)
    async with Operator(bucket).layer(RetryLayer()) as operator:
        page = await TailSweepLister(operator, OPTIONS, DictIndex()).page(TailAndSweep())
        assert (len(page.changes), len(bucket.requests)) == (1, 3)


@checks("reliability:P17")
@pytest.mark.virtual
async def test_after_a_failure_it_goes_on_behind_the_key_not_by_the_token() -> None:
    """A token may be what the store refuses."""
    bucket = SimulatedBucket()
    for number in range(9):
        bucket.put(f"k{number}")

    def refuse_tokens(request: ListRequest) -> None:
        if request.page_token is not None:
            raise PermissionDenied("no", operation="list")

    bucket.on_request = refuse_tokens
    async with bucket.operator() as operator:
        known = DictIndex()
        one = Consumer(TailSweepLister(operator, ListOptions(interval_seconds=0.0, ahead_pages=0), known), known)
        for _ in range(20):
            try:
                await one.trigger()
            except PermissionDenied:
                continue
        assert len(one.delivered) == 9


@pytest.mark.virtual
async def test_a_failure_of_reading_ahead_is_not_raised_if_the_page_can_be_read_later() -> None:
    bucket = SimulatedBucket()
    for number in range(9):
        bucket.put(f"k{number}")
    async with bucket.operator() as operator:
        lister = TailSweepLister(operator, OPTIONS, DictIndex())
        page = await lister.page(TailAndSweep())
        failing(bucket, Unavailable)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(bucket.requests) == 2
        assert len((await lister.page(page.after)).changes) == 3
        assert len(bucket.requests) >= 3
        await lister.aclose()


@pytest.mark.virtual
@pytest.mark.parametrize("kind", [TailSweepLister, DiffLister])
async def test_closing_ends_listing_ahead(kind: type[TailSweepLister] | type[DiffLister]) -> None:
    """In the middle of a request; it may be used again, and closed twice."""
    bucket = SimulatedBucket()
    for number in range(60):
        bucket.put(f"k{number:02}")
    async with bucket.operator() as operator:
        lister = kind(operator, OPTIONS, DictIndex())
        await lister.page(first_cursor(lister))
        await lister.aclose()
        await lister.aclose()
        count = len(bucket.requests)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(bucket.requests) == count
        assert (await lister.page(first_cursor(lister))).changes
        await lister.aclose()


@pytest.mark.virtual
async def test_a_cancelled_page_is_returned_by_the_next_call() -> None:
    bucket = SimulatedBucket()
    bucket.put("a")
    known = DictIndex()
    async with bucket.operator() as operator:
        lister = TailSweepLister(operator, OPTIONS, known)
        failing(bucket, Unavailable)
        with pytest.raises(Unavailable):
            await lister.page(TailAndSweep())
        waiting = asyncio.ensure_future(lister.page(TailAndSweep()))  # in the pause after the failure
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len((await lister.page(TailAndSweep())).changes) == 1


class CirclingLayer(VerbLayer):
    """Each page is empty and names the same next one."""

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        return ListPage(entries=(), next_token="t")


async def test_a_circular_listing_is_an_error() -> None:
    """The checks of ``Operator.list`` hold here; empty pages as such are none."""
    async with SimulatedBucket().operator().layer(CirclingLayer()) as operator:
        lister = TailSweepLister(operator, ListOptions(ahead_pages=0), DictIndex())
        page = await lister.page(TailAndSweep())
        assert (page.changes, page.is_idle) == ((), False)
        with pytest.raises(ProtocolError, match="twice"):
            await lister.page(page.after)
