"""Runs that end: one tail, one whole sweep, then idle."""

import logging
from typing import Any

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.source.list.diff_lister import DiffLister
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import ListOptions
from aioprefetch.source.values import TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ListRequest
from tests.stores.dict_index import Consumer, DictIndex
from tests.stores.simulated_bucket import SimulatedBucket

OPTIONS = ListOptions(interval_seconds=5.0, ahead_pages=2, sweep_pages=2)
BOTH = pytest.mark.parametrize("kind", [TailSweepLister, DiffLister])
YOUNG_PAGES = 10
Kind = type[TailSweepLister] | type[DiffLister]


async def run_to_its_end(one: Consumer, room: int = 1 << 60, triggers_max: int = 2000) -> int:
    """Triggers until it is idle; how many there were."""
    for number in range(triggers_max):
        if not await one.trigger(room) and one.is_idle:
            return number
    raise AssertionError("it does not end")


async def finished(
    kind: Kind, operator: Operator, known: DictIndex, until_ms: int, *, cursor: Any = None, **options: Any
) -> Consumer:
    """A run that takes what is older, after its end."""
    one = Consumer(kind(operator, options.pop("options", OPTIONS), known), known, cursor=cursor)
    one.feed.finish_by(until_ms)
    await run_to_its_end(one, **options)
    await one.feed.aclose()  # type: ignore[attr-defined]
    return one


def bucket_of(kind: Kind, count: int = 0) -> SimulatedBucket:
    """In the order that the lister needs."""
    bucket = SimulatedBucket(ordered=kind is TailSweepLister)
    for number in range(count):
        bucket.put(f"k{number:04}", modified_ms=number)
    return bucket


@BOTH
@pytest.mark.virtual
@pytest.mark.parametrize("room", [1, 7, 1 << 60])
@pytest.mark.parametrize(("youngest_ms", "level"), [(101, logging.INFO), (7_200_000, logging.WARNING)])
async def test_the_number_of_left_files_is_logged_once_at_the_end(
    kind: Kind, room: int, youngest_ms: int, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Files dated in the future would wait unnoticed. A delivered version does not count."""
    caplog.set_level(logging.INFO, "aioprefetch")
    bucket = bucket_of(kind, 40)
    bucket.put("delivered", modified_ms=8_000_000)
    async with bucket.operator() as operator:
        one = await finished(kind, operator, known := DictIndex(), 9_000_000, room=room)
        assert "younger" not in caplog.text
        bucket.put("k0007", modified_ms=101)
        for number in range(5):
            bucket.put(f"k0005-{number}", modified_ms=101)
            bucket.put(f"z-{number}", modified_ms=youngest_ms)
        two = Consumer(kind(operator, OPTIONS, known), known, cursor=one.cursor)
        two.feed.finish_by(100)
        await run_to_its_end(two, room)
        await two.trigger()
        reported = [record for record in caplog.records if "younger than the start" in record.message]
        assert [record.levelno for record in reported] == [level]
        assert reported[0].message.startswith("11 files of ")
        assert ("times in the future" in reported[0].message) == (level == logging.WARNING)
        await two.feed.aclose()  # type: ignore[attr-defined]


@BOTH
async def test_an_empty_bucket_ends_at_once_and_stays_idle(kind: Kind) -> None:
    bucket = bucket_of(kind)
    async with bucket.operator() as operator:
        known = DictIndex()
        one = Consumer(kind(operator, OPTIONS, known), known)
        one.feed.finish_by(1000)
        assert await run_to_its_end(one) == 0
        requests = len(bucket.requests)
        bucket.put("a", modified_ms=0)
        for _ in range(5):
            assert await one.trigger() == []
            assert one.is_idle
        assert len(bucket.requests) == requests == 1


@BOTH
@pytest.mark.parametrize("room", [1, 7, 1 << 60])
async def test_existing_files_are_delivered_and_later_ones_are_left(kind: Kind, room: int) -> None:
    """Late and overwritten files too; the next run finds the rest."""
    bucket = bucket_of(kind, 40)
    async with bucket.operator() as operator:
        one = await finished(kind, operator, known := DictIndex(), 50, room=room)
        assert len(one.delivered) == 40
        bucket.put("a-late", modified_ms=60)
        bucket.put("k0003", modified_ms=60)
        bucket.put("k0005-young", modified_ms=101)
        bucket.put("k0007", modified_ms=101)
        bucket.put("z-young", modified_ms=101)
        bucket.delete("k0009")
        two = await finished(kind, operator, known, 100, cursor=one.cursor, room=room)
        assert sorted(key for key, _ in two.delivered) == ["a-late", "k0003"]
        assert two.reported["gone"] == 1
        three = await finished(kind, operator, known, 200, cursor=two.cursor, room=room)
        assert sorted(key for key, _ in three.delivered) == ["k0005-young", "k0007", "z-young"]


@BOTH
@pytest.mark.parametrize("form", ["z{:06}", "{:06}", "k{:06}"])
async def test_it_ends_while_files_are_added_with_every_request(
    kind: Kind, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind all others, before them, and in between."""
    monkeypatch.setattr("aioprefetch.source.polling.YOUNG_PAGES_MAX", YOUNG_PAGES)
    bucket = bucket_of(kind, 30)
    added = 0

    def add(request: ListRequest) -> None:
        nonlocal added
        for _ in range(bucket.page_entries):
            added += 1
            bucket.put(form.format(added), modified_ms=10_000 + added)

    async with bucket.operator() as operator:
        one = await finished(kind, operator, known := DictIndex(), 1000)
        bucket.on_request = add
        before = len(bucket.requests)
        two = await finished(kind, operator, known, 2000, cursor=one.cursor)
        assert two.delivered == {}
        # Each file that was there before is a sign that there may be more of them.
        assert len(bucket.requests) - before <= (30 + 2) * YOUNG_PAGES + 100
        bucket.on_request = None
        three = await finished(kind, operator, known, 1 << 40, cursor=two.cursor)
        assert len(three.delivered) == added


async def test_the_sweep_of_such_a_run_starts_at_the_first_key() -> None:
    """A late file behind the place that a sweep had come to is delivered in the run."""
    bucket = bucket_of(TailSweepLister, 60)
    async with bucket.operator() as operator:
        known = DictIndex()
        one = Consumer(TailSweepLister(operator, OPTIONS, known), known)
        await one.trigger()
        await one.trigger()
        while not (isinstance(one.cursor, TailAndSweep) and (one.cursor.sweep_key or "") > "k0008"):
            await one.trigger(pages_max=1)
            one.feed.finish_by(None)  # without a rest
        bucket.put("a-late", modified_ms=0)
        two = await finished(TailSweepLister, operator, known, 1000, cursor=one.cursor, room=1)
        assert sorted(key for key, _ in two.delivered) == ["a-late"]
        await one.feed.aclose()  # type: ignore[attr-defined]


async def test_a_first_run_lists_once() -> None:
    """Keys that the tail has listed in the run need no sweep."""
    bucket = bucket_of(TailSweepLister, 30)
    async with bucket.operator() as operator:
        await finished(TailSweepLister, operator, DictIndex(), 1000, room=4)
        assert len(bucket.requests) == 10


async def test_it_can_go_back_to_listing_for_ever() -> None:
    bucket = bucket_of(TailSweepLister, 3)
    async with bucket.operator() as operator:
        known = DictIndex()
        one = Consumer(TailSweepLister(operator, OPTIONS, known), known)
        one.feed.finish_by(1000)
        await run_to_its_end(one)
        bucket.put("a", modified_ms=10_000)
        one.feed.finish_by(None)
        assert [change.file.key for change in await one.trigger()] == ["a"]


@checks("source:L8")
@BOTH
@pytest.mark.parametrize("room", [1, 7, 1 << 60])
async def test_without_sweeps_late_files_of_a_run_are_found_by_the_next_one(kind: Kind, room: int) -> None:
    """The tail does not skip a younger file: no sweep would list it again below the frontier."""
    bucket = bucket_of(kind, 10)
    options = ListOptions(interval_seconds=0.0, ahead_pages=2, sweep_pages=0)
    bucket.put("k0003-young", modified_ms=150)
    bucket.put("m-young", modified_ms=150)
    async with bucket.operator() as operator:
        known = DictIndex()
        cursor = None
        delivered: set[str] = set()
        for until_ms in (100, 200, 300):
            one = await finished(kind, operator, known, until_ms, cursor=cursor, room=room, options=options)
            bucket.put(f"n{until_ms}", modified_ms=until_ms + 50)
            cursor = one.cursor
            assert not delivered & {key for key, _ in one.delivered}
            delivered |= {key for key, _ in one.delivered}
        assert delivered == {key for key in bucket.objects if key != "n300"}


@BOTH
async def test_without_sweeps_listing_for_ever_finds_files(kind: Kind) -> None:
    """A store without order has its listings, whatever is said of sweeps."""
    bucket = bucket_of(kind, 20)
    async with bucket.operator() as operator:
        known = DictIndex()
        one = Consumer(kind(operator, ListOptions(interval_seconds=0.0, sweep_pages=0), known), known)
        await one.trigger()
        bucket.put("z")
        for _ in range(20):
            await one.trigger()
        assert len(one.delivered) == 21
        await one.feed.aclose()  # type: ignore[attr-defined]


@BOTH
async def test_a_long_run_logs_its_progress(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """By the clock it is given; a run that goes on for ever tells nothing."""
    caplog.set_level("INFO", logger="aioprefetch")
    bucket = bucket_of(kind, 60)
    now = 0.0

    def later(request: ListRequest) -> None:
        nonlocal now
        now += 1.0

    bucket.on_request = later
    async with bucket.operator() as operator:
        known = DictIndex()
        one = Consumer(kind(operator, OPTIONS, known, clock=lambda: now), known)
        for _ in range(20):
            await one.trigger()
            now += 100.0
        assert not caplog.records
        one.feed.finish_by(1000)
        await run_to_its_end(one)
        reported = [record.getMessage() for record in caplog.records]
        assert 1 <= len(reported) <= 3
        assert all("listing all of s3://bucket" in text and "pages with" in text for text in reported)
        await one.feed.aclose()  # type: ignore[attr-defined]
