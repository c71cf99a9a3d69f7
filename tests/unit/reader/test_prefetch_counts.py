"""How what was fetched ahead is counted as used or wasted, and how long things took."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from aioprefetch.blocks.store import BlockStore
from aioprefetch.errors import Unavailable
from aioprefetch.layers import ConcurrentLimitLayer
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.statistics import StatisticsSnapshot
from tests.stores.disk_tier import BLOCK as DISK_BLOCK
from tests.stores.disk_tier import disk_bench, key_in, on_disk, reader_of, tier_of
from tests.stores.gated_reader import Bench, bench, settle
from tests.unit.reader.ahead import BLOCK, READS, answer_all, fetching_ahead

PREFETCHED = ("prefetch_bytes_used", "prefetch_bytes_wasted", "prefetch_lead", "stream_aborted")
SECOND = 1_000_000


def counts_of(statistics: StatisticsSnapshot, names: Iterable[str] = PREFETCHED) -> list[int]:
    """The named counts, in order."""
    return [statistics[name] for name in names]


def spread(statistics: StatisticsSnapshot, name: str) -> tuple[int, ...]:
    """Everything of one duration: how often, failures, least, mean and most."""
    return (statistics[name], *(statistics[f"{name}.{part}"] for part in ("failures", "min", "mean", "max")))


async def ahead_of(b: Bench, blocks: int = 3) -> RangeReader:
    """A reader that has read block 0 and has ``blocks`` blocks ahead of it in memory."""
    reader, _ = await fetching_ahead(b, blocks=blocks)
    answer_all(b)
    await settle()
    return reader


# --- used or wasted -------------------------------------------------------------------------------------------------


async def test_what_is_read_of_was_of_use() -> None:
    """Any byte of a block counts all of it, once; for the reader that fetched it, also when another reads."""
    async with bench(block_bytes=BLOCK, prefetch_blocks=3) as b:
        async with await ahead_of(b) as reader:
            assert counts_of(reader.statistics) == [0, 0, 0, 0]
            for _ in range(2):
                await reader.read_at(BLOCK + 5, 1)
            async with reader.clone() as other:
                await other.read_at(2 * BLOCK, 10)
                assert counts_of(other.statistics) == [0, 0, 0, 0]
            assert counts_of(reader.statistics) == [2 * BLOCK, 0, 2, 0]
        assert counts_of(reader.statistics) == [2 * BLOCK, BLOCK, 2, 0]
        assert counts_of(b.operator.statistics) == [2 * BLOCK, BLOCK, 2, 0]


async def evict(b: Bench, reader: RangeReader) -> None:
    """Memory is needed."""
    reader.seek(15 * BLOCK)  # What was fetched ahead is not about to be read any more.
    await reader.read(1)
    BlockStore.of(b.runtime).eviction.reclaim(8 << 20, "demand")


async def unbuffer(b: Bench, reader: RangeReader) -> None:
    """The caller gives the memory back."""
    await reader.unbuffer()


async def close(b: Bench, reader: RangeReader) -> None:
    """The reader is closed."""
    await reader.aclose()


async def reopen(b: Bench, reader: RangeReader) -> None:
    """The reader goes on with another version."""
    b.put(b"new")
    await reader.reopen()


async def end(b: Bench, reader: RangeReader) -> None:
    """The operator is closed while the reader is open."""
    await b.operator.aclose()


@pytest.mark.parametrize("way", [evict, unbuffer, close, reopen, end], ids=lambda way: way.__name__)
async def test_bytes_that_no_reader_read_were_wasted(way: Callable[[Bench, RangeReader], Awaitable[None]]) -> None:
    """They are counted once, in each way of dropping them; blocks that were read are not counted."""
    async with bench(block_bytes=BLOCK, prefetch_blocks=3) as b:
        reader = await ahead_of(b)
        await reader.read_at(BLOCK, 1)
        await way(b, reader)
        assert counts_of(reader.statistics)[:3] == [BLOCK, 2 * BLOCK, 1]
        await reader.aclose()
        await b.operator.aclose()
        assert counts_of(reader.statistics)[:3] == counts_of(b.operator.statistics)[:3] == [BLOCK, 2 * BLOCK, 1]


async def test_what_was_wasted_for_its_reader_is_not_used_later() -> None:
    """The next reader finds it in memory: that is a hit, and no merit of the prefetch that was counted already."""
    async with bench(block_bytes=BLOCK, prefetch_blocks=3) as b:
        reader = await ahead_of(b)
        async with reader.clone() as other:
            await reader.aclose()
            assert counts_of(reader.statistics) == [0, 3 * BLOCK, 0, 0]
            await other.read_at(BLOCK, 10)
            BlockStore.of(b.runtime).eviction.reclaim(8 << 20, "demand")
            assert other.statistics["hits_memory"] == 1
        assert counts_of(b.operator.statistics)[:2] == [0, 3 * BLOCK]


@pytest.mark.parametrize("read_bytes", [0, 10])
async def test_what_was_broken_off_counts_as_far_as_it_came(read_bytes: int) -> None:
    """What has arrived is used if it was read before, and wasted if not; what was to come was never there."""
    async with bench(block_bytes=BLOCK, prefetch_blocks=3) as b:
        reader, ahead = await fetching_ahead(b, blocks=3)
        ahead[0].deliver(1000)
        ahead[1].finish()
        await settle()
        assert await reader.read_at(BLOCK, read_bytes) == b.data[BLOCK : BLOCK + read_bytes]
        await reader.aclose()
        await settle()
        used, wasted = (1000, 0) if read_bytes else (0, 1000)
        assert counts_of(reader.statistics) == [used, BLOCK + wasted, bool(read_bytes), 2]
        assert reader.statistics["stream_read_bytes_discarded_in_abort"] == 2 * BLOCK - 1000


async def test_a_prefetch_that_another_reader_awaits_outlives_its_own() -> None:
    """Its bytes are used, and still the first reader's."""
    async with bench(block_bytes=BLOCK, prefetch_blocks=3) as b:
        reader, _ = await fetching_ahead(b, blocks=3)
        async with reader.clone() as other:
            reading = asyncio.create_task(other.read_at(2 * BLOCK, 10))
            await settle()
            await reader.aclose()
            answer_all(b)
            await reading
            assert counts_of(reader.statistics) == [BLOCK, 0, 1, 2]
            assert other.statistics["stream_read_block_joins"] == 1


async def test_a_failed_prefetch_is_a_failure_and_no_error_of_a_read() -> None:
    async with bench(block_bytes=BLOCK, prefetch_blocks=3) as b:
        reader, ahead = await fetching_ahead(b, blocks=3)
        ahead[0].fail(Unavailable("down"))
        ahead[1].finish()
        await settle()
        counts = reader.statistics
        assert counts["stream_read_prefetch_operations"] == 3
        assert counts["stream_read_prefetch_operations.failures"] == 1
        assert counts["stream_read_exceptions"] == 0
        await reader.aclose()


# --- how long -------------------------------------------------------------------------------------------------------


@pytest.mark.virtual
@pytest.mark.parametrize("way", READS)
async def test_waits_of_reads_are_measured(way: str) -> None:
    """Each read that has to wait, however it reads; reads of resident bytes are not."""
    async with bench(block_bytes=BLOCK) as b:
        reader = await b.opened()
        before = reader.statistics["demand_wait_microseconds"]
        for index, seconds in ((4, 0.25), (5, 0.75)):
            reading = asyncio.ensure_future(READS[way](reader, index * BLOCK + 5, 1000))
            call = await b.next_call()
            b.runtime.loop.call_later(seconds, call.finish)
            b.gate.open = True
            await reading
            b.gate.open = False
            await READS[way](reader, index * BLOCK + 5, 1000)
        counts = reader.statistics
        assert counts["demand_wait_microseconds"] - before == 1 * SECOND
        assert counts["stream_read_block_acquire_read.max"] == 750_000
        assert counts["stream_read_block_read.max"] == 750_000
        await reader.aclose()


@pytest.mark.virtual
async def test_waits_that_fail_or_are_given_up_count_without_a_time() -> None:
    """But the time was lost all the same."""
    async with bench(block_bytes=BLOCK) as b:
        reader = await b.opened()
        before = reader.statistics
        failing = asyncio.create_task(reader.read_at(4 * BLOCK, 5))
        call = await b.next_call()
        b.runtime.loop.call_later(2.0, call.fail, Unavailable("down"))
        with pytest.raises(Unavailable):
            await failing
        given_up = asyncio.create_task(reader.read_at(5 * BLOCK, 5))
        b.runtime.loop.call_later(1.0, given_up.cancel)
        await asyncio.wait({given_up})
        counts = reader.statistics
        name = "stream_read_block_acquire_read"
        assert counts[name] - before[name] == 2
        assert (counts[f"{name}.failures"], counts[f"{name}.max"]) == (1, before[f"{name}.max"])
        assert counts["demand_wait_microseconds"] - before["demand_wait_microseconds"] == 3 * SECOND
        assert counts["stream_aborted"] == 1
        await reader.aclose()


@pytest.mark.virtual
async def test_opening_is_measured_to_the_head() -> None:
    """The body takes its own time."""
    async with bench(block_bytes=BLOCK) as b, b.reader() as reader:
        b.gate.open = False
        reading = asyncio.create_task(reader.read_at(0, 10))
        call = await b.next_call()
        b.runtime.loop.call_later(0.5, call.deliver, 0)
        b.runtime.loop.call_later(2.0, call.finish)
        await reading
        assert spread(reader.statistics, "action_file_opened") == (1, 0, 500_000, 500_000, 500_000)
        await settle()
        assert spread(reader.statistics, "stream_read_block_read") == (1, 0, 2 * SECOND, 2 * SECOND, 2 * SECOND)


@pytest.mark.virtual
async def test_prefetches_and_their_lead_are_measured() -> None:
    """A prefetch from its beginning, the lead from the last byte to the first read."""
    async with bench(block_bytes=BLOCK, prefetch_blocks=3) as b:
        loop = b.runtime.loop
        reader, ahead = await fetching_ahead(b, blocks=3)
        for call, seconds in zip(ahead, (1.0, 2.0, 3.0), strict=True):
            loop.call_later(seconds, call.finish)
        read = asyncio.Event()
        loop.call_later(4.0, read.set)
        await read.wait()
        name = "stream_read_prefetch_operations"
        assert spread(reader.statistics, name) == (3, 0, 1 * SECOND, 2 * SECOND, 3 * SECOND)
        await reader.read_at(BLOCK, 1)
        await reader.read_at(3 * BLOCK, 1)
        assert spread(reader.statistics, "prefetch_lead") == (2, 0, 1 * SECOND, 2 * SECOND, 3 * SECOND)
        await reader.aclose()


@pytest.mark.virtual
async def test_the_lead_of_what_came_too_late_is_nothing() -> None:
    """And what comes after its first read was of use as well."""
    async with bench(block_bytes=BLOCK, prefetch_blocks=3) as b:
        reader, ahead = await fetching_ahead(b, blocks=3)
        b.runtime.loop.call_later(1.0, ahead[0].deliver, 10)
        await reader.read_at(BLOCK, 10)
        ahead[0].finish()
        await settle()
        assert spread(reader.statistics, "prefetch_lead") == (1, 0, 0, 0, 0)
        assert reader.statistics["prefetch_bytes_used"] == BLOCK
        await reader.aclose()


@pytest.mark.virtual
async def test_waits_for_memory_and_for_slots_are_measured() -> None:
    """Where memory or slots are there nothing is counted."""
    limit = ConcurrentLimitLayer(1)
    async with bench(block_bytes=BLOCK, memory_bytes=4 * BLOCK, layers=[limit]) as b:
        reader = await b.opened()
        assert counts_of(reader.statistics, ["memory_waits", "action_executor_acquired"]) == [0, 0]
        reads = [asyncio.create_task(reader.read_at(index * BLOCK, 5)) for index in range(1, 7)]
        call = await b.next_call()
        await settle()
        b.runtime.loop.call_later(1.5, call.finish)
        b.gate.open = True
        await asyncio.gather(*reads)
        counts = reader.statistics
        assert counts["action_executor_acquired"] > 0
        assert counts["action_executor_acquired.max"] == 1_500_000
        assert counts["memory_waits"] > 0
        assert counts["memory_waits.max"] == 1_500_000
        await reader.aclose()


# --- tiers ----------------------------------------------------------------------------------------------------------


async def test_a_read_counts_for_the_slowest_tier_it_needed(tmp_path: Path) -> None:
    """Memory, the disk, the store; both of the latter count as the store."""
    async with disk_bench(tmp_path, memory_blocks=4, blocks=12) as b, reader_of(b) as reader:
        await on_disk(b, reader, 0, 1)
        await reader.unbuffer()
        edge = next(n for n in range(2, 12) if key_in(b, reader, n).name not in tier_of(b).cache) * DISK_BLOCK
        names = ("hits_memory", "hits_disk", "hits_network")
        before = counts_of(reader.statistics, names)
        for start, size in ((0, 10), (5, 10), (DISK_BLOCK, 10), (edge - 5, 10)):
            await reader.read_at(start, size)
        after = counts_of(reader.statistics, names)
        assert [now - then for now, then in zip(after, before, strict=True)] == [1, 2, 1]
        assert reader.statistics["stream_read_block_disk_hits"] >= 2
