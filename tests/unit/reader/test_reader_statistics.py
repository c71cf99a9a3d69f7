"""What is counted for a reader, and that an operator's counts are the sum of its readers'."""

import asyncio
import gc
import logging
import random
from collections.abc import Iterable

import pytest

from aioprefetch.errors import Error, NotFound, RangeNotSatisfied, Unavailable
from aioprefetch.layers import LruCacheLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.events import COUNTERS, DURATIONS, GAUGES
from aioprefetch.runtime.statistics import StatisticsSnapshot
from aioprefetch.services.memory import Memory
from aioprefetch.testing import FaultLayer, Injection, run_virtual
from aioprefetch.testing.conformance.suite import checks
from tests.probes.search import scenario_seeds
from tests.profile import combinations, each_of
from tests.stores.gated_reader import KIB, MIB, bench, in_case, settle
from tests.unit.reader.ahead import READS

BLOCK = 64 * KIB
COUNTED = [*COUNTERS, *(f"{name}.failures" for name in DURATIONS)]


def counts_of(statistics: StatisticsSnapshot, names: Iterable[str]) -> dict[str, int]:
    """The named counts, without those that are 0."""
    return {name: statistics[name] for name in names if statistics[name]}


def summed(readers: Iterable[RangeReader]) -> dict[str, int]:
    """The counts of all readers together."""
    listed = [reader.statistics for reader in readers]
    return {name: total for name in COUNTED if (total := sum(one[name] for one in listed))}


async def one_thing(reader: RangeReader, dice: random.Random) -> None:
    """One of the things that a caller may do."""
    start, size = dice.randrange(2 * MIB), dice.choice([1, 5000, 3 * BLOCK])
    what = dice.randrange(8)
    if what == 0:
        reader.seek(start)
    elif what == 1:
        await reader.unbuffer()
    elif what == 2:
        reader.will_need([(start, start + size)])
    elif what == 3:
        await reader.read_exactly_at(start, size)
    elif what == 4:
        for _ in range(5):
            await reader.read(size)
    else:
        await dice.choice(list(READS.values()))(reader, start, max(size, 12))


async def work(reader: RangeReader, seed: int) -> None:
    """Many of them, whatever they end in; then the reader is closed, or not."""
    dice = random.Random(seed)
    for _ in range(dice.randrange(2, 15)):
        try:
            await one_thing(reader, dice)
        except Error:
            continue
    if dice.random() < 0.5:
        await reader.aclose()


def the_operator_counts_what_its_readers_count(seed: int) -> None:
    async def run() -> None:
        dice = random.Random(seed)
        faults = FaultLayer((Injection(operation="read", error=Unavailable, times=3, at=dice.randrange(3 * BLOCK)),))
        async with bench(
            2 * MIB, memory_bytes=dice.choice([3, 8, 64]) * BLOCK, prefetch_blocks=4, layers=[faults]
        ) as b:
            readers = [b.reader(policy=dice.choice(["adaptive", "sequential", "random"])) for _ in range(5)]
            tasks = [asyncio.create_task(work(reader, dice.randrange(1 << 30))) for reader in readers]
            for task in dice.sample(tasks, 2):
                await settle(dice.randrange(40))
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert counts_of(b.operator.statistics, COUNTED) == summed(readers)
            for reader in readers:
                await reader.aclose()
            await b.operator.aclose()
            total = b.operator.statistics
            assert counts_of(total, COUNTED) == summed(readers)
            assert counts_of(total, GAUGES) == {}
            assert total["stream_read_opened"] == total["stream_read_closed"] >= 3
            for name in DURATIONS:
                assert total[f"{name}.max"] == max(reader.statistics[f"{name}.max"] for reader in readers)
            tiers = total["hits_memory"] + total["hits_disk"] + total["hits_network"]
            assert tiers == total["stream_read_block_hits"] + total["stream_read_block_misses"]
            del reader, readers, tasks, task
            gc.collect()
            assert b.operator.statistics == total

    run_virtual(run, seed=seed)


@pytest.mark.scenario
def test_the_operator_counts_what_its_readers_count() -> None:
    """Several readers at once over shared blocks, little memory, requests that fail and tasks that are cancelled."""
    for seed in scenario_seeds(quick=10, full=12):
        with in_case(seed=seed):
            the_operator_counts_what_its_readers_count(seed)


# --- bytes given ----------------------------------------------------------------------------------------------------


@each_of(("way", "size"), combinations(list(READS), [1, 7, BLOCK + 3]))
async def test_what_is_read_is_counted_once(way: str, size: int) -> None:
    """A byte read is a byte counted, whether it has to be fetched or is there, also by the operator."""
    async with bench(3 * BLOCK) as b, b.reader() as reader:
        for time in range(1, 4):
            assert await READS[way](reader, 100, size) == b.data[100 : 100 + size]
            assert reader.statistics["stream_read_bytes"] == time * size
            assert b.operator.statistics["stream_read_bytes"] == time * size
            assert reader.statistics["stream_read_operations"] == time
            assert (reader.statistics["hits_memory"] > 0) == (time > 1)
            assert reader.statistics["hits_network"] > 0


async def test_an_exact_read_that_is_short_gives_nothing() -> None:
    async with bench(1000) as b, b.reader() as reader:
        for size in (1, 10, 1000):
            assert len(await reader.read_exactly_at(0, size)) == size
        with pytest.raises(RangeNotSatisfied):
            await reader.read_exactly_at(990, 11)
        counts = reader.statistics
        assert (counts["stream_read_bytes"], counts["stream_read_fully_operations"]) == (1011, 4)
        assert counts["stream_read_exceptions"] == 1


async def test_reads_that_meet_the_end_are_incomplete() -> None:
    """Whether they are hits or not; a read to the end is not."""
    async with bench(1000) as b, b.reader() as reader:
        await reader.read_at(990, 20)
        for read in (reader.read_at, reader.view_at):
            await read(990, 20)
            await read(1000, 1)
            await read(900, 100)
            await read(900, None)
        reader.seek(999)
        assert await reader.readinto(bytearray(2)) == 1
        assert await reader.read() == b""
        assert reader.statistics["stream_read_operations_incomplete"] == 6


@each_of("way", READS)
async def test_a_read_that_fails_is_one_exception(way: str) -> None:
    """Opening, which is the first part of it, is no read of its own."""
    async with bench() as b:
        b.store.remove("k")
        async with b.reader() as reader:
            with pytest.raises(NotFound):
                await READS[way](reader, 0, 12)
            found = counts_of(reader.statistics, COUNTED)
    assert (found["stream_read_exceptions"], found["action_file_opened.failures"]) == (1, 1)
    assert "stream_read_operations" not in found


# --- what is not read -----------------------------------------------------------------------------------------------


async def test_seeks_say_how_far() -> None:
    async with bench(1000) as b, b.reader() as reader:
        reader.seek(-100, 2)  # Which the next read resolves.
        assert len(await reader.read(10)) == 10
        reader.seek(10)
        reader.seek(10)
        reader.seek(5, 1)
        counts = counts_of(reader.statistics, [name for name in COUNTERS if "seek" in name])
    assert counts == {
        "stream_read_seek_operations": 3,
        "stream_read_seek_forward_operations": 2,
        "stream_read_seek_backward_operations": 1,
        "stream_read_seek_bytes_skipped": 905,
        "stream_read_bytes_backwards_on_seek": 900,
    }


async def test_a_policy_that_is_set_again_has_not_changed() -> None:
    async with bench() as b, b.reader(policy="random") as reader:
        await reader.read_at(0, 1)
        assert (reader.policy, reader.statistics["stream_read_gauge_input_policy"]) == ("random", 4)
        for name in ("random", "parquet", "parquet"):
            reader.set_policy(name)
        assert (reader.policy, reader.statistics["stream_read_gauge_input_policy"]) == ("parquet", 8)
        assert reader.statistics["stream_read_seek_policy_changed"] == 1


@checks("reliability:C13")
async def test_a_reader_is_closed_once_however_often_it_is_asked_to() -> None:
    async with bench() as b:
        reader = b.reader()
        await reader.read_at(0, 1)
        await reader.reopen()
        await reader.aclose()
        await reader.aclose()
        names = ("stream_read_opened", "stream_read_closed", "stream_read_close_operations", "action_file_opened")
        for counts in (reader.statistics, b.operator.statistics):
            assert [counts[name] for name in names] == [1, 1, 2, 2]


async def test_a_reader_that_was_never_used_has_no_statistics() -> None:
    """It belongs to no loop yet, so the operator could not know of it."""
    async with bench() as b:
        async with b.reader() as reader:
            reader.seek(10)
        await reader.aclose()
        assert counts_of(reader.statistics, COUNTED) == counts_of(b.operator.statistics, COUNTED) == {}


async def test_a_reader_that_was_forgotten_is_a_leak_and_not_forgotten() -> None:
    async with bench() as b:
        await b.reader().read(10)
        await settle()
        gc.collect()
        found = counts_of(b.operator.statistics, ["stream_leaks", "stream_read_bytes", "stream_read_opened"])
    assert found == {"stream_leaks": 1, "stream_read_bytes": 10, "stream_read_opened": 1}


async def test_a_reader_that_outlives_its_operator_is_counted_still() -> None:
    """Also when the operator was started again on the same loop."""
    async with bench() as b:
        reader = b.reader()
        await reader.read_at(0, 10)
        await b.operator.aclose()
        async with b.reader() as second:
            await second.read_at(0, 5)
        await reader.aclose()
        counts = b.operator.statistics
        assert (counts["stream_read_bytes"], counts["stream_read_closed"]) == (15, 2)
        assert summed([reader, second]) == counts_of(counts, COUNTED)


# --- whose it is ----------------------------------------------------------------------------------------------------


async def test_requests_count_for_the_reader_that_sent_them() -> None:
    """And not for the one that joined them; requests without a reader count for the operator alone."""
    async with bench() as b, b.reader() as first, b.reader() as second:
        await first.read_at(0, 10)
        await second.read_at(5, 10)
        await b.operator.read("k", size=100)
        names = ("action_http_get_request", "stream_read_total_bytes", "stream_read_block_fetches")
        assert [first.statistics[name] for name in names] == [1, BLOCK, 1]
        assert [second.statistics[name] for name in names] == [1, 0, 1]  # The object is the same still: no body.
        assert [b.operator.statistics[name] for name in names] == [3, BLOCK + 100, 2]


async def test_a_fetch_counts_for_who_began_it_after_it_has_closed() -> None:
    """Another reader waits for it, so it goes on."""
    async with bench() as b:
        first = await b.opened()
        async with first.clone() as second:
            reading = asyncio.create_task(first.read_at(3 * BLOCK, 10))
            call = await b.next_call()
            waiting = asyncio.create_task(second.read_at(3 * BLOCK, 10))
            await settle()
            await first.aclose()
            call.finish()
            assert len(await waiting) == 10
            with pytest.raises(ValueError, match="closed"):
                await reading
            assert (first.statistics["stream_read_block_fetches"], first.statistics["stream_read_exceptions"]) == (2, 1)
            assert first.statistics["stream_read_total_bytes"] == 2 * BLOCK
            assert second.statistics["stream_read_block_joins"] == 1
            assert summed([first, second]) == counts_of(b.operator.statistics, COUNTED)


async def test_a_cache_operator_counts_its_own_requests() -> None:
    """Although they are sent while a fetch of a reader of another operator runs."""
    service, cache = Memory(), Operator(Memory())
    async with cache, Operator(service, block_bytes=BLOCK).layer(LruCacheLayer(cache=cache)) as operator:
        await operator.write("k", bytes(3 * BLOCK))
        async with operator.reader("k") as reader:
            filled = asyncio.Event()
            operator.runtime().events.subscribe(lambda event: filled.set() if event.name == "cache.filled" else None)
            await reader.read_at(0, 10)
            await filled.wait()
            await reader.unbuffer()
            before = cache.statistics["action_http_get_request"]
            await reader.read_at(0, 10)
            assert cache.statistics["action_http_get_request"] > before
        found = counts_of(reader.statistics, ["action_http_get_request", "cache_hits", "stream_read_bytes"])
        assert found == {"cache_hits": 1, "stream_read_bytes": 20}
        assert cache.statistics["cache_hits"] == cache.statistics["stream_read_bytes"] == 0


async def test_evictions_count_for_the_reader_that_had_the_block_fetched() -> None:
    async with bench(memory_bytes=2 * BLOCK) as b, b.reader() as first, b.reader() as second:
        await first.read_at(0, BLOCK)
        for index in range(1, 5):
            await second.read_at(index * BLOCK, BLOCK)
        assert first.statistics["stream_evict_blocks_from_cache"] == 1
        assert second.statistics["stream_evict_blocks_from_cache"] >= 2
        assert summed([first, second]) == counts_of(b.operator.statistics, COUNTED)


# --- now ------------------------------------------------------------------------------------------------------------


async def test_gauges_say_what_is_held_now() -> None:
    async with bench(prefetch_blocks=3) as b:
        reader = await b.opened(policy="sequential", prefetch_blocks=3)
        before = reader.statistics
        assert before["stream_read_blocks_in_cache"] == 4  # The first read of this policy opens the window.
        reader.will_need([(8 * BLOCK, 10 * BLOCK)])
        await settle()
        for counts in (reader.statistics, b.operator.statistics):
            assert counts["stream_read_active_prefetch_operations"] == 2
            assert counts["stream_read_bytes_in_cache"] == 6 * BLOCK
        assert reader.statistics["stream_read_active_memory_in_use"] == 0  # The budget is the operator's.
        assert b.operator.statistics["stream_read_active_memory_in_use"] == 6 * BLOCK
        assert b.operator.statistics["stream_read_gauge_input_policy"] == 0
        await reader.aclose()
        assert counts_of(reader.statistics, GAUGES) == {}
        assert b.operator.statistics["stream_read_active_prefetch_operations"] == 0
        await settle()
        assert b.operator.statistics["stream_read_active_memory_in_use"] == 4 * BLOCK
        assert b.operator.statistics["stream_read_bytes_in_cache"] == 4 * BLOCK
        await b.operator.aclose()
        assert counts_of(b.operator.statistics, GAUGES) == {}


async def test_an_operator_that_closes_takes_what_its_readers_held() -> None:
    async with bench() as b, b.reader() as reader:
        view = await reader.view_at(0, 10)
        assert reader.statistics["stream_read_bytes_in_cache"] == BLOCK
        await b.operator.aclose()
        assert counts_of(reader.statistics, GAUGES) == counts_of(b.operator.statistics, GAUGES) == {}
        assert bytes(view) == b.data[:10]


async def test_statistics_are_read_from_any_thread() -> None:
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 10)
        found = await asyncio.to_thread(lambda: (reader.statistics, b.operator.statistics))
        assert [one["stream_read_bytes"] for one in found] == [10, 10]


async def test_a_repr_shows_position_blocks_and_windows() -> None:
    async with bench(prefetch_blocks=3) as b:
        reader = await b.opened(prefetch_blocks=3)
        await reader.read(10)
        reader.will_need([(8 * BLOCK, 10 * BLOCK)])
        await settle()
        for part in (f"pos={10}", f"size={MIB}", "blocks=4", "fetching=2", "window="):
            assert part in repr(reader)
        reader.seek(-5, 2)
        assert f"pos={MIB - 5}" in repr(reader)
        await reader.aclose()
        assert "closed" in repr(reader)


async def test_closing_logs_what_was_counted(caplog: pytest.LogCaptureFixture) -> None:
    """One line, at DEBUG, with what is not zero; nothing when it is closed again."""
    caplog.set_level(logging.DEBUG, logger="aioprefetch")
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 10)
        await reader.aclose()
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert len(lines) == 1
    assert "stream_read_bytes=10" in lines[0]
    assert "/k closed" in lines[0]
    assert "=0" not in lines[0].replace("window=0", "")


async def test_nothing_is_described_without_a_log_at_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(statistics: StatisticsSnapshot) -> str:
        raise AssertionError("the log is not at DEBUG")

    monkeypatch.setattr(StatisticsSnapshot, "described", described)
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 10)
