"""The lister over a simulated bucket: what it finds, what it asks for, and when."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from aioprefetch import Operator
from aioprefetch.errors import InvalidArgument, ProtocolError
from aioprefetch.source.list.pages import UNUSED_SECONDS_MAX
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import ListOptions
from aioprefetch.source.values import Diff, TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from tests.stores.dict_index import Consumer, DictIndex, first_cursor
from tests.stores.simulated_bucket import SimulatedBucket

EAGER = ListOptions(interval_seconds=0.0, ahead_pages=0, sweep_pages=2)


@pytest.fixture
def bucket() -> SimulatedBucket:
    """Pages of three entries."""
    return SimulatedBucket()


@pytest.fixture
async def operator(bucket: SimulatedBucket) -> AsyncIterator[Operator]:
    async with bucket.operator() as operator:
        yield operator


def consumer(operator: Operator, options: ListOptions = EAGER) -> Consumer:
    """One that rereads what was overwritten."""
    known = DictIndex()
    return Consumer(TailSweepLister(operator, options, known), known)


def fill(bucket: SimulatedBucket, count: int, form: str = "k{:03}") -> list[str]:
    """Objects in the order of their numbers."""
    keys = [form.format(number) for number in range(count)]
    for key in keys:
        bucket.put(key)
    return keys


@checks("source:L2")
async def test_files_are_found_for_ever_without_a_restart(bucket: SimulatedBucket, operator: Operator) -> None:
    one = consumer(operator)
    for number in range(50):
        bucket.put(f"k{number:03}")
        assert [change.file.key for change in await one.trigger()] == [f"k{number:03}"]
        assert await one.trigger() == []


@checks("source:L3")
async def test_a_source_remembers_one_small_cursor_of_its_listing(bucket: SimulatedBucket, operator: Operator) -> None:
    """In place of page number and time: another lister goes on from it."""
    fill(bucket, 10)
    one = consumer(operator)
    await one.trigger(room=4)
    assert one.cursor == TailAndSweep(frontier="k003", high_modified_ms=0)
    two = Consumer(TailSweepLister(operator, EAGER, one.known), one.known, cursor=one.cursor)
    assert [change.file.key for change in await two.until_idle()] == [f"k{number:03}" for number in range(4, 10)]


@checks("source:L4")
async def test_a_name_once_dispatched_is_looked_up_by_its_key(bucket: SimulatedBucket, operator: Operator) -> None:
    """A new lister without a cursor lists everything again; its sweep does not report known files."""
    keys = fill(bucket, 7)
    one = consumer(operator)
    await one.until_idle()
    one.cursor = TailAndSweep(frontier="k006")
    assert await one.through() == []
    assert sorted(one.known.files) == keys


@checks("source:L5")
@pytest.mark.parametrize("ahead_pages", [0, 2])
async def test_one_trigger_never_lists_the_whole_bucket(
    bucket: SimulatedBucket, operator: Operator, ahead_pages: int
) -> None:
    """``n`` pages of new keys cost ``n`` requests, one for the sweep, and what is read ahead."""
    fill(bucket, 300)
    options = ListOptions(interval_seconds=0.0, ahead_pages=ahead_pages, sweep_pages=2)
    one = consumer(operator, options)
    before = 0
    for _ in range(20):
        await one.trigger(room=9)
        assert len(bucket.requests) - before <= 3 + 1 + 2 * ahead_pages
        before = len(bucket.requests)
    await one.feed.aclose()  # type: ignore[attr-defined]


@checks("source:L5")
async def test_a_quiet_trigger_requests_its_share(bucket: SimulatedBucket, operator: Operator) -> None:
    """One page of the tail and the pages of the sweep."""
    fill(bucket, 60)
    one = consumer(operator)
    await one.until_idle()
    for _ in range(30):
        before = len(bucket.requests)
        await one.trigger()
        assert len(bucket.requests) - before <= 1 + EAGER.sweep_pages


@checks("source:L6", "reliability:P09")
async def test_the_tail_needs_no_lookup_and_no_time_hides_a_file(bucket: SimulatedBucket, operator: Operator) -> None:
    """Above the frontier all is new; below it a file is found however old it says it is."""
    fill(bucket, 9)
    one = consumer(operator)
    one.feed.begin_trigger()
    cursor = first_cursor(one.feed)
    for _ in range(3):
        cursor = (await one.feed.page(cursor)).after
    assert one.known.calls.total() == 0

    two = consumer(operator)
    await two.until_idle()
    bucket.put("k0005", modified_ms=-(10**9))
    assert [change.file.key for change in await two.through()] == ["k0005"]


@checks("source:L7")
async def test_pages_are_listed_only_on_request(bucket: SimulatedBucket, operator: Operator) -> None:
    fill(bucket, 300)
    one = consumer(operator)
    assert bucket.requests == []
    await one.trigger(room=1)
    await one.trigger(room=1)
    assert len(bucket.requests) == 2  # one page of the tail, and one of the sweep


@checks("source:L8")
async def test_an_unchanged_bucket_reports_nothing(bucket: SimulatedBucket, operator: Operator) -> None:
    fill(bucket, 50)
    one = consumer(operator)
    assert len(await one.until_idle()) == 50
    sweeps = one.cursor.sweeps  # type: ignore[union-attr]
    for _ in range(100):
        assert await one.trigger() == []
    assert one.cursor.sweeps > sweeps + 5  # type: ignore[union-attr]


@checks("source:L9")
async def test_a_name_is_dispatched_at_most_once(bucket: SimulatedBucket, operator: Operator) -> None:
    """Deleted and put back unchanged included: then its mark goes away, and nothing is read."""
    fill(bucket, 12)
    one = consumer(operator)
    await one.until_idle()
    kept = bucket.objects["k004"]
    bucket.delete("k004")
    assert [(change.kind, change.file.key) for change in await one.through()] == [("gone", "k004")]
    for _ in range(20):
        assert await one.trigger() == []
    bucket.restore("k004", kept)
    assert [(change.kind, change.file.key) for change in await one.through()] == [("returned", "k004")]
    assert await one.through() == []
    assert set(one.delivered.values()) == {1}


@checks("source:Q1")
async def test_deleting_processed_files_hides_nothing(bucket: SimulatedBucket, operator: Operator) -> None:
    """Pages shift, keys do not."""
    keys = fill(bucket, 100)
    one = consumer(operator)
    for _ in range(60):
        done = [change.file.key for change in await one.trigger(room=5) if change.kind == "new"]
        for key in done[:3]:
            bucket.delete(key)
    await one.until_idle()
    assert sorted(key for key, _ in one.delivered) == keys


@checks("source:Q5")
async def test_an_overwritten_object_is_reported_once_for_each_version(
    bucket: SimulatedBucket, operator: Operator
) -> None:
    fill(bucket, 12)
    one = consumer(operator)
    await one.until_idle()
    version = bucket.put("k007").etag
    reported = await one.through()
    assert [(change.kind, change.file.key, change.file.etag) for change in reported] == [
        ("overwritten", "k007", version)
    ]
    bucket.delete("k007")
    await one.through()
    bucket.put("k007")
    assert [change.kind for change in await one.through()] == ["new"]  # another file of that name


@checks("source:Q8")
async def test_gone_files_are_reported_once_whatever_their_number(bucket: SimulatedBucket, operator: Operator) -> None:
    """The state follows the bucket, with bounded memory."""
    keys = fill(bucket, 3500)
    bucket.page_entries = 1000
    one = consumer(operator)
    await one.until_idle()
    for key in keys[10:3490]:
        bucket.delete(key)
    reported = await one.through()
    assert sorted(change.file.key for change in reported if change.kind == "gone") == sorted(keys[10:3490])
    assert one.known.rows_max <= 1100
    assert await one.through() == []


async def test_markers_and_other_keys_pass_without_a_change(bucket: SimulatedBucket, operator: Operator) -> None:
    """Also in pages without other entries; empty files are reported."""
    for key in ("d/", "d/a.csv", *(f"d/b{number}.txt" for number in range(10)), "d/c/", "d/c/x.csv"):
        bucket.put(key)
    bucket.put("e.csv", size=0)
    one = consumer(operator, ListOptions(glob="**/*.csv", interval_seconds=0.0, ahead_pages=0))
    assert [change.file.key for change in await one.until_idle()] == ["d/a.csv", "d/c/x.csv", "e.csv"]
    assert one.reported == {"new": 3}


async def test_the_literal_part_of_a_glob_narrows_what_is_listed(bucket: SimulatedBucket, operator: Operator) -> None:
    """Never to the root of the bucket."""
    fill(bucket, 30)
    for number in range(3):
        bucket.put(f"2026/a{number}.csv")
    one = consumer(operator, ListOptions(glob="2026/a*.csv", interval_seconds=0.0, ahead_pages=0))
    assert len(await one.until_idle()) == 3
    assert {request.path for request in bucket.requests} == {"2026/a"}


async def test_neither_half_starves(bucket: SimulatedBucket, operator: Operator) -> None:
    """New keys come faster than they are taken, and a late one is found all the same."""
    fill(bucket, 30)
    one = consumer(operator)
    await one.until_idle()
    bucket.put("a-late-one")
    for number in range(60):
        for more in range(4):
            bucket.put(f"l{number:03}-{more}")
        await one.trigger(room=3)
        if any(key == "a-late-one" for key, _ in one.delivered):
            break
    assert number < 40
    assert one.reported["new"] > 30 + number


async def test_a_sweep_ends_however_fast_the_frontier_moves(bucket: SimulatedBucket, operator: Operator) -> None:
    fill(bucket, 30)
    one = consumer(operator)
    await one.until_idle()
    before = one.cursor.sweeps  # type: ignore[union-attr]
    for number in range(40):
        for more in range(9):
            bucket.put(f"l{number:03}-{more}")
        await one.trigger(room=9)
    assert one.cursor.sweeps > before  # type: ignore[union-attr]


async def test_untaken_changes_come_from_memory(bucket: SimulatedBucket, operator: Operator) -> None:
    """A page taken in three triggers is asked for once."""
    fill(bucket, 3)
    one = consumer(operator, ListOptions(interval_seconds=0.0, ahead_pages=0, sweep_pages=0))
    for _ in range(3):
        assert len(await one.trigger(room=1)) == 1
    assert len(bucket.requests) == 1


async def test_pages_listed_ahead_are_used(bucket: SimulatedBucket, operator: Operator) -> None:
    """All keys once, and no request twice."""
    keys = fill(bucket, 100)
    one = consumer(operator, ListOptions(interval_seconds=0.0, ahead_pages=4, sweep_pages=0))
    assert [change.file.key for change in await one.until_idle(room=7)] == keys
    tokens = [(request.start_after, request.page_token) for request in bucket.requests]
    assert len(tokens) == len(set(tokens)) <= 35 + 2


async def test_another_cursor_drops_the_pages_listed_ahead(bucket: SimulatedBucket, operator: Operator) -> None:
    fill(bucket, 60)
    lister = TailSweepLister(operator, ListOptions(interval_seconds=0.0, ahead_pages=4, sweep_pages=0), DictIndex())
    for frontier, expected in (("", "k000"), ("k030", "k031"), ("k004", "k005"), ("k004", "k005"), ("k050", "k051")):
        page = await lister.page(TailAndSweep(frontier=frontier))
        assert page.changes[0][0].file.key == expected
    await lister.aclose()


@pytest.mark.virtual
async def test_after_a_listing_without_news_there_is_no_request_for_an_interval(
    bucket: SimulatedBucket, operator: Operator
) -> None:
    """However often it is asked; ``clock`` gives the time."""
    now = 100.0
    fill(bucket, 5)
    known = DictIndex()
    options = ListOptions(interval_seconds=5.0, ahead_pages=0)
    one = Consumer(TailSweepLister(operator, options, known, clock=lambda: now), known)
    await one.until_idle()
    before = len(bucket.requests)
    bucket.put("z")
    for _ in range(10):
        assert await one.trigger() == []
        assert one.is_idle
    assert len(bucket.requests) == before
    now += 5.0
    assert [change.file.key for change in await one.trigger()] == ["z"]
    assert await one.trigger() == []  # it was not at rest: there had been something


async def test_a_quiet_source_lists_once_an_interval_of_the_runtimes_clock(
    bucket: SimulatedBucket, operator: Operator
) -> None:
    known = DictIndex()
    one = Consumer(TailSweepLister(operator, ListOptions(interval_seconds=3600.0), known), known)
    for _ in range(20):
        assert await one.trigger() == []
    assert len(bucket.requests) == 1


@pytest.mark.virtual
@pytest.mark.parametrize("finishing", [False, True])
async def test_pages_that_waited_for_long_are_listed_again(
    bucket: SimulatedBucket, operator: Operator, finishing: bool
) -> None:
    """Pages taken in part, and pages listed ahead: files deleted meanwhile are not planned."""
    keys = fill(bucket, 12)
    one = consumer(operator, ListOptions(interval_seconds=0.0, ahead_pages=4, sweep_pages=0))
    if finishing:
        one.feed.finish_by(1)
    await one.trigger(room=10)
    await asyncio.sleep(0)
    bucket.delete("k010")
    await asyncio.sleep(UNUSED_SECONDS_MAX + 1)
    await one.until_idle(room=1)
    assert sorted(key for key, _ in one.delivered) == [key for key in keys if key != "k010"]


async def test_cursors_of_another_kind_are_refused(operator: Operator) -> None:
    with pytest.raises(InvalidArgument, match="Diff"):
        await TailSweepLister(operator, EAGER, DictIndex()).page(Diff())


async def test_a_store_without_order_is_refused(bucket: SimulatedBucket, operator: Operator) -> None:
    """And the message names what can list it."""
    bucket.ordered = False
    fill(bucket, 40)
    one = consumer(operator)
    with pytest.raises(ProtocolError, match="DiffLister"):
        await one.until_idle()


@pytest.mark.parametrize(
    "names", [["a", "a/", "a/b", "a-b", "a.b", "ab"], ["\uffee", "\U0001f600", "é", "z", "\u0080"]]
)
async def test_keys_are_in_the_order_of_their_bytes(
    bucket: SimulatedBucket, operator: Operator, names: list[str], random_name: Callable[[], str]
) -> None:
    for name in names:
        bucket.put(name)
    assert bucket.keys() == sorted(names, key=str.encode)
    one = consumer(operator)
    assert [change.file.key for change in await one.until_idle(room=2)] == [
        name for name in sorted(names, key=str.encode) if not name.endswith("/")
    ]


@checks("source:L5")
@pytest.mark.virtual
@pytest.mark.parametrize("interval_seconds", [1.0, UNUSED_SECONDS_MAX + 30.0])
async def test_no_page_is_listed_ahead_that_a_trigger_does_not_use(
    bucket: SimulatedBucket, operator: Operator, interval_seconds: float
) -> None:
    """After a long interval it would be listed again. A look is one page of the tail and those of the sweep."""
    fill(bucket, 300)
    one = consumer(operator, ListOptions(interval_seconds=interval_seconds, ahead_pages=4, sweep_pages=5))
    await one.until_idle()
    for _ in range(25):  # Two sweeps and more.
        before = len(bucket.requests)
        await asyncio.sleep(interval_seconds + 1.0)
        assert await one.trigger() == []
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(bucket.requests) - before <= 1 + 5
    await one.feed.aclose()  # type: ignore[attr-defined]
