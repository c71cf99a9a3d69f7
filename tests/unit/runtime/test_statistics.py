"""Counters, timers, accounts and ledgers: nothing is lost, nothing is counted twice, no name is made up."""

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest

from aioprefetch.errors import Closed, Unavailable
from aioprefetch.runtime.events import COUNTERS, DURATIONS, GAUGES
from aioprefetch.runtime.statistics import Counters, Ledger, Timer, count_for

GET = "action_http_get_request"


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_unknown_name_is_refused() -> None:
    """When it is counted and when it is looked up."""
    counters = Counters()
    with pytest.raises(KeyError):
        counters["stream_read_bites"] += 1
    with pytest.raises(KeyError):
        counters.failed("stream_read_bytes")
    assert (counters["stream_read_bytes"], dict(counters)) == (0, {})


def test_a_snapshot_has_every_name() -> None:
    """In the order of the vocabulary, zero until counted."""
    found = Counters().snapshot({})
    parts = [f"{name}.{part}" for name in DURATIONS for part in ("failures", "min", "mean", "max")]
    assert list(found) == [*COUNTERS, *parts, *GAUGES]
    assert set(found.values()) == {0}
    assert set(DURATIONS) <= set(COUNTERS)
    assert found.described() == ""


def test_a_snapshot_is_a_copy() -> None:
    counters = Counters()
    before = counters.snapshot({})
    counters["stream_read_bytes"] += 5
    assert before["stream_read_bytes"] == 0
    assert counters.snapshot({}).described() == "stream_read_bytes=5"


def test_hits_count_as_what_they_are() -> None:
    """They are kept apart, and shown where they belong; the tiers add up to the reads."""
    counters = Counters()
    counters.hits, counters.hit_bytes = 3, 300
    for name in ("stream_read_operations", "stream_read_block_misses"):
        counters[name] += 5
    counters["hits_disk"] += 2
    found = counters.snapshot({})
    assert (found["stream_read_operations"], found["stream_read_block_hits"], found["stream_read_bytes"]) == (8, 3, 300)
    assert (found["hits_memory"], found["hits_disk"], found["hits_network"]) == (3, 2, 3)


def test_durations_merge_as_if_measured_in_one_place() -> None:
    """Least of the least, most of the most, the mean weighted; where nothing was measured nothing is taken over."""
    apart = [Counters(), Counters(), Counters()]
    together, merged = Counters(), Counters()
    for counters, taken in ((apart[0], [0.003, 0.001, 0.008]), (apart[1], [0.002])):
        for seconds in taken:
            counters.succeeded(GET, seconds)
            together.succeeded(GET, seconds)
    for counters in apart:
        merged.merge(counters)
    found = merged.snapshot({})
    assert found == together.snapshot({})
    assert [found[f"{GET}.{part}"] for part in ("min", "mean", "max")] == [1000, 3500, 8000]
    assert found["stream_read_block_read.min"] == 0


@pytest.mark.parametrize(
    ("error", "failures", "mean"),
    [(None, 0, 2_000_000), (Unavailable("down"), 1, 0), (Closed("closed"), 0, 0), (asyncio.CancelledError(), 0, 0)],
    ids=["well", "failed", "closed", "cancelled"],
)
def test_a_timer_tells_how_it_ended(error: BaseException | None, failures: int, mean: int) -> None:
    """Each is counted, however it ends; what is broken off is no failure, and its time says nothing."""
    counters, clock = Counters(), Clock()
    timer = Timer(counters, GET, clock).begin()
    clock.now = 2.0
    timer.__exit__(None, error, None)
    clock.now = 5.0
    timer.end(None)
    found = counters.snapshot({})
    assert (found[GET], found[f"{GET}.failures"], found[f"{GET}.mean"]) == (1, failures, mean)


def test_a_timer_that_failed_without_raising() -> None:
    counters = Counters()
    with Timer(counters, GET, Clock()) as timer:
        timer.failed()
    found = counters.snapshot({})
    assert (found[GET], found[f"{GET}.failures"], counters.timings) == (1, 1, {})


def test_a_ledger_keeps_what_was_counted_by_those_who_are_gone() -> None:
    """While an account lives its counts are in the sum, afterwards too, and never twice."""
    ledger, counters = Ledger(), Counters()
    account = ledger.open(counters)
    account.closed = True
    counters["stream_read_bytes"] += 7
    counters.hits += 1
    ledger.own["stream_read_bytes"] += 1
    before = ledger.total().snapshot({})
    assert (before["stream_read_bytes"], before["stream_read_operations"]) == (8, 1)
    assert not ledger.is_settled()
    del account
    gc.collect()
    assert ledger.is_settled()
    assert ledger.total().snapshot({}) == before
    assert ledger.total().snapshot({}) == before


def test_an_account_that_was_not_closed_is_a_leak() -> None:
    ledger = Ledger()
    for closed in (True, False, False):
        account = ledger.open(Counters())
        account.closed = closed
        del account
    gc.collect()
    assert ledger.total()["stream_leaks"] == 2


async def test_a_task_counts_for_the_account_it_works_for() -> None:
    """In the ledger of that account alone: two operators may work for one another."""
    ledger, other = Ledger(), Ledger()
    account = ledger.open(Counters())
    account.closed = True

    async def work() -> None:
        count_for(account)
        ledger.current[GET] += 1
        other.current[GET] += 10

    await asyncio.create_task(work())
    ledger.current[GET] += 100
    assert (account.counters[GET], ledger.own[GET], other.own[GET]) == (1, 100, 10)
    assert (ledger.total()[GET], other.total()[GET]) == (101, 10)


def test_a_total_is_taken_from_any_thread() -> None:
    """While another thread counts names that were not there before, and accounts come and go."""
    ledger, failures = Ledger(), list[BaseException]()
    ended = threading.Event()

    def guarded(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                while not ended.is_set():
                    work()
            except BaseException as error:
                failures.append(error)

        return run

    readers = [threading.Thread(target=guarded(ledger.total)) for _ in range(2)]
    for thread in readers:
        thread.start()
    for _ in range(30):
        account = ledger.open(Counters())
        account.closed = True
        for name in COUNTERS:
            account.counters[name] += 1
            account.counters.succeeded(GET, 0.001)
    ended.set()
    for thread in readers:
        thread.join()
    del account
    assert failures == []
    total = ledger.total()
    assert {total[name] for name in COUNTERS} == {30}
    assert total.timings[GET][0] == 30 * len(COUNTERS)
