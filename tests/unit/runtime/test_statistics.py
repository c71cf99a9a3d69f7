"""Counters, timers, accounts and ledgers: nothing is lost, nothing is counted twice, no name is made up."""

import asyncio
import copy
import gc
import json
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioprefetch as ap
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


CHANGES: dict[str, Callable[[Any], object]] = {
    "item": lambda found: found.__setitem__(GET, 1),
    "delete": lambda found: found.__delitem__(GET),
    "clear": lambda found: found.clear(),
    "pop": lambda found: found.pop(GET),
    "popitem": lambda found: found.popitem(),
    "setdefault": lambda found: found.setdefault(GET, 1),
    "update": lambda found: found.update({GET: 1}),
    "or": lambda found: found.__ior__({GET: 1}),
}


def test_a_snapshot_never_changes() -> None:
    """It is a mapping that pickles, goes into JSON and is copied as it is; its plain copies can be changed."""
    counters = Counters({GET: 3})
    counters.succeeded(GET, 0.5)
    found = counters.snapshot({"stream_read_blocks_in_cache": 2})
    assert isinstance(found, ap.StatisticsSnapshot)
    assert isinstance(found, Mapping)
    whole = dict(found)
    for name, change in CHANGES.items():
        with pytest.raises(TypeError, match=r"dict\(snapshot\)"):
            change(found)
        assert found == whole, name
    assert json.loads(json.dumps(found)) == whole
    for same in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert (same, type(same), repr(same)) == (whole, ap.StatisticsSnapshot, repr(found))
        assert (same - Counters().snapshot({}))[f"{GET}.mean"] == 500_000
    assert (found | {GET: 4})[GET] == found.copy()[GET] + 1 == 4
    assert type(found.copy()) is dict


@given(st.lists(st.integers(0, 10**9), max_size=5), st.lists(st.integers(0, 10**9), max_size=5), st.integers(0, 9))
def test_a_difference_is_what_was_counted_in_between(first: list[int], second: list[int], gauge: int) -> None:
    """As if a counter had begun at the first moment; gauges, the shortest and the longest are those of the second."""
    counters, between, whole = Counters(), Counters(), Counters()
    for number, taken in enumerate((first, second)):
        for microseconds in taken:
            for kept in (counters, whole, *([between] if number else [])):
                kept[GET] += 1
                kept["stream_read_bytes"] += microseconds
                kept.succeeded(GET, microseconds / 1e6)
        if not number:
            counters.failed("object_list_request")
            before = counters.snapshot({"slots_withheld": 100})
    gauges = {"slots_withheld": gauge}
    after, expected = counters.snapshot(gauges), dict(between.snapshot(gauges))
    if second:
        expected |= {f"{GET}.{part}": whole.snapshot({})[f"{GET}.{part}"] for part in ("min", "max")}
    assert after - before == expected
    assert type(after - before) is ap.StatisticsSnapshot
    assert pickle.loads(pickle.dumps(after)) - pickle.loads(pickle.dumps(before)) == expected
    assert not any((after - after)[name] for name in after if name not in GAUGES)
    with pytest.raises(TypeError):
        after - dict(before)  # type: ignore[operator]


def test_a_snapshot_shows_what_is_not_zero() -> None:
    """In groups, with units; what is only known as a bound says so."""
    counters = Counters({"stream_read_bytes": 3 << 20, "demand_wait_microseconds": 1_500, GET: 12_345, "retries": 2})
    before = counters.snapshot({})
    counters.succeeded(GET, 0.002)
    counters.failed(GET)
    after = counters.snapshot({"stream_read_active_memory_in_use": 1536})
    assert (
        repr(after)
        == """\
<StatisticsSnapshot
  Reads
    stream_read_bytes                 3 MiB
  Blocks
    demand_wait_microseconds          1.5 ms
  Requests
    action_http_get_request           12,345, 1 failed, mean 2 ms, longest 2 ms
  Retries
    retries                           2
  Now
    stream_read_active_memory_in_use  1.5 KiB>"""
    )
    assert "between two moments" in repr(after - before)
    assert f"{GET}           0, 1 failed, mean 2 ms, at most 2 ms" in repr(after - before)
    assert repr(Counters().snapshot({})) == "<StatisticsSnapshot: nothing was counted>"


def test_every_name_is_shown_in_a_group() -> None:
    """Each counter and gauge once, none among the others."""
    counters = Counters({**dict.fromkeys(COUNTERS, 1), "stream_read_block_misses": 2})
    shown = repr(counters.snapshot(dict.fromkeys(GAUGES, 1))).splitlines()
    assert sorted(line.split()[0] for line in shown if line.startswith("    ")) == sorted([*COUNTERS, *GAUGES])
    assert "  Other" not in shown


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
