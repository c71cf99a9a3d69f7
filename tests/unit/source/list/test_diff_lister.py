"""Listing a store without order: every key looked up, deletions by comparison at the end of a listing."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from aioprefetch import Operator
from aioprefetch.errors import InvalidArgument, PermissionDenied, Unavailable
from aioprefetch.source.list.diff_lister import DiffLister, ListedKeys
from aioprefetch.source.options import ListOptions
from aioprefetch.source.values import REST_SECONDS_MAX, Change, Diff, KnownFile, TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ListRequest
from tests.stores.dict_index import Consumer, DictIndex
from tests.stores.simulated_bucket import SimulatedBucket, hurried

EAGER = ListOptions(interval_seconds=0.0, ahead_pages=0, sweep_pages=4)


@pytest.fixture
def bucket() -> SimulatedBucket:
    return SimulatedBucket(ordered=False, name="b--usw2-az1--x-s3")


@pytest.fixture
async def operator(bucket: SimulatedBucket) -> AsyncIterator[Operator]:
    async with bucket.operator() as operator:
        yield operator


def consumer(operator: Operator, options: ListOptions = EAGER) -> Consumer:
    known = DictIndex()
    return Consumer(DiffLister(operator, options, known), known)


@checks("source:L8", "source:L9")
@pytest.mark.parametrize("ahead_pages", [0, 3])
@pytest.mark.parametrize("room", [1, 4, 1 << 60])
async def test_each_file_once_and_nothing_of_an_unchanged_bucket(
    bucket: SimulatedBucket, operator: Operator, room: int, ahead_pages: int
) -> None:
    """With as many taken at a time as there is room for."""
    for number in range(50):
        bucket.put(f"k{number:02}")
    one = consumer(operator, ListOptions(interval_seconds=0.0, ahead_pages=ahead_pages, sweep_pages=4))
    await one.through(room=room)
    assert len(one.delivered) == one.delivered.total() == 50
    assert await one.through(3) == []
    await one.feed.aclose()  # type: ignore[attr-defined]


@checks("source:L5")
async def test_a_quiet_trigger_lists_its_share(bucket: SimulatedBucket, operator: Operator) -> None:
    for number in range(60):
        bucket.put(f"k{number:02}")
    one = consumer(operator)
    await one.through()
    for _ in range(30):
        before = len(bucket.requests)
        await one.trigger()
        assert len(bucket.requests) - before <= EAGER.sweep_pages


async def test_overwritten_gone_and_returned_files_are_reported(bucket: SimulatedBucket, operator: Operator) -> None:
    for number in range(40):
        bucket.put(f"k{number:02}")
    one = consumer(operator)
    await one.through()
    bucket.put("k03")
    kept = bucket.objects["k05"]
    bucket.delete("k05")
    bucket.put("a")
    reported = {change.file.key: change.kind for change in await one.through()}
    assert reported == {"k03": "overwritten", "k05": "gone", "a": "new"}
    assert await one.through() == []
    bucket.restore("k05", kept)
    assert [(change.file.key, change.kind) for change in await one.through()] == [("k05", "returned")]


async def test_another_process_starts_its_listing_again(bucket: SimulatedBucket, operator: Operator) -> None:
    """From a cursor in the middle of a listing; with what is known it tells nothing twice."""
    for number in range(50):
        bucket.put(f"k{number:02}")
    known = DictIndex()
    cursor = None
    delivered = 0
    for _ in range(12):
        one = Consumer(DiffLister(operator, EAGER, known), known, cursor=cursor)
        for _ in range(12):
            await one.trigger(room=1)
        cursor, delivered = one.cursor, delivered + one.delivered.total()
    assert delivered == len(known.files) == 50
    assert isinstance(cursor, Diff)
    assert cursor.taken == 50


@checks("source:L12")
async def test_a_failing_page_does_not_lose_the_position(bucket: SimulatedBucket) -> None:
    """By the same token after what may pass, from the beginning after what does not."""
    for number in range(40):
        bucket.put(f"k{number:02}")
    chance = random.Random(3)

    def fail(request: ListRequest) -> None:
        if chance.random() < 0.2:
            raise chance.choice([Unavailable, PermissionDenied])("no", operation="list")

    async with bucket.operator() as operator:
        known = DictIndex()
        lister = DiffLister(operator, EAGER, known, clock=hurried())
        one = Consumer(lister, known)
        bucket.on_request = fail
        for _ in range(300):
            try:
                await one.trigger(room=4)
            except (Unavailable, PermissionDenied):
                continue
        bucket.on_request = None
        await one.through()
    assert len(one.delivered) == one.delivered.total() == 40


async def test_cursors_of_another_kind_are_refused(operator: Operator) -> None:
    with pytest.raises(InvalidArgument, match="TailAndSweep"):
        await DiffLister(operator, EAGER, DictIndex()).page(TailAndSweep())


def test_missing_keys_are_found_among_the_listed_ones() -> None:
    """Keys with line ends, backslashes and halves of surrogates included."""
    chance = random.Random(7)
    alphabet = ["a", "b", "\n", "\\", "n", "\r", "é", "\U0001f600", "\udc80"]
    keys = {"".join(chance.choices(alphabet, k=chance.randint(1, 6))) for _ in range(500)}
    listed = {key for key in keys if chance.random() < 0.7}
    known = ListedKeys()
    assert known.missing(["a"]) == {"a"}
    known = ListedKeys()
    pages = sorted(listed, key=hash)
    for start in range(0, len(pages), 7):
        known.add(pages[start : start + 7])
    asked = sorted(keys)
    assert known.missing(asked[:200]) | known.missing(asked[200:]) == keys - listed


class FailingKnown(DictIndex):
    """One look-up fails, counted from the beginning."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        """As ``FileIndex`` has it."""
        self.at -= 1
        if self.at == 0:
            raise Unavailable("no", operation="read")
        return await super().find(keys)


@pytest.mark.parametrize("at", [2, 4])
async def test_a_page_whose_lookup_failed_is_reported_later(
    bucket: SimulatedBucket, operator: Operator, at: int
) -> None:
    """In a run that is to end too, and of the last page, behind which the store has nothing more."""
    for number in range(12):
        bucket.put(f"k{number:02}")
    known = FailingKnown(at)
    lister = DiffLister(operator, EAGER, known, clock=hurried())
    one = Consumer(lister, known)
    lister.finish_by(10**9)
    with pytest.raises(Unavailable):
        await one.trigger()
    await one.trigger()
    assert one.is_idle
    assert len(one.delivered) == one.delivered.total() == 12


async def test_a_cancelled_comparison_reports_no_deletion(
    bucket: SimulatedBucket, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may go on with it."""
    for number in range(12):
        bucket.put(f"k{number:02}")
    one = consumer(operator)
    await one.through()
    begun, go_on = threading.Event(), threading.Event()
    missing = ListedKeys.missing

    def slow(self: ListedKeys, keys: Sequence[str]) -> set[str]:
        found = missing(self, keys)
        begun.set()
        go_on.wait(10)
        return found

    monkeypatch.setattr(ListedKeys, "missing", slow)
    trigger = asyncio.create_task(one.through())
    await asyncio.to_thread(begun.wait, 10)
    trigger.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await trigger
    assert await one.through() == []


@pytest.mark.parametrize("ends", [False, True])
async def test_the_old_rest_of_a_page_is_listed_again(bucket: SimulatedBucket, operator: Operator, ends: bool) -> None:
    """By the next listing: an old page plans versions that are there no more. A run that is to end does not."""
    for number in range(3):
        bucket.put(f"k{number}")
    known, now = DictIndex(), 0.0
    one = Consumer(DiffLister(operator, EAGER, known, clock=lambda: now), known)
    if ends:
        one.feed.finish_by(10**9)
    await one.trigger(room=1)
    old = {key: found.etag for key, found in bucket.objects.items()}
    for number in range(3):
        bucket.put(f"k{number}")
    now += REST_SECONDS_MAX + 1
    await (one.until_idle() if ends else one.through())
    planned_again = {key for key, etag in one.delivered if etag != old[key]}
    assert len(planned_again) == (0 if ends else 3)
    assert len(one.delivered) == (3 if ends else 4)


async def test_the_rest_of_a_page_is_compared_with_changes_taken_meanwhile(
    bucket: SimulatedBucket, operator: Operator
) -> None:
    """A listing without order may show a key twice, in two versions; what is gone may be there again."""
    bucket.put("a")
    bucket.put("b")
    known = DictIndex()
    lister = DiffLister(operator, EAGER, known)
    page = await lister.page(Diff())
    (first, at), (second, _) = page.changes
    known.apply(first)
    known.apply(Change("new", replace(second.file, etag="another")))
    again = await lister.page(at)
    assert [(change.kind, change.file.key) for change, _ in again.changes] == [("overwritten", second.file.key)]
    known.apply(second)
    empty = await lister.page(at)
    assert empty.changes == ()
    assert empty.after.taken == at.taken == 1  # type: ignore[union-attr]
