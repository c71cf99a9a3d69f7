"""The disk tier behind a reader: what leaves memory comes back without a request, and only the rest is asked for."""

import asyncio
import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.cache.entry import PIECE_BYTES_MIN
from aioprefetch.errors import Unavailable
from aioprefetch.reader.reader import RangeReader
from aioprefetch.testing.conformance.suite import checks
from tests.stores.disk_tier import (
    BLOCK,
    counts,
    disk_bench,
    key_in,
    on_disk,
    read_block,
    reader_of,
    tier_of,
    written,
)
from tests.stores.failing_disk import FailingCalls, Halted, cache_in, files_in, read_until_on_disk, until
from tests.stores.gated_reader import Bench, settle


@pytest.mark.parametrize("memory_blocks", [1, 2, 3])
@pytest.mark.parametrize("policy", ["adaptive", "sequential"])
async def test_the_example_of_s3a_comes_back_from_its_block_file(
    tmp_path: Path, memory_blocks: int, policy: str
) -> None:
    """An object of five blocks: five eighths of block 0, on into block 1, and back into block 0 without a GET."""
    eighth = BLOCK // 8
    async with disk_bench(tmp_path, blocks=5, memory_blocks=memory_blocks) as b:
        reader = b.reader(policy=policy)
        assert await reader.read(5 * eighth) == b.data[: 5 * eighth]
        await written(b)
        reader.seek(10 * eighth)
        assert await reader.read(4 * eighth) == b.data[10 * eighth : 14 * eighth]
        await written(b)
        reader.seek(2 * eighth)
        assert await reader.read(4 * eighth) == b.data[2 * eighth : 6 * eighth]
        assert b.ranges == [(0, BLOCK), (BLOCK, 2 * BLOCK)]
        assert b.runtime.statistics()["stream_read_block_disk_hits"] == (1 if memory_blocks == 1 else 0)
        await reader.aclose()


async def test_each_block_is_asked_of_the_store_once(tmp_path: Path) -> None:
    async with disk_bench(tmp_path, blocks=6, memory_blocks=2) as b:
        reader = reader_of(b)
        for _ in range(3):
            for index in range(6):
                await read_block(b, reader, index)
                await written(b)
        assert sorted(b.ranges) == [(index * BLOCK, (index + 1) * BLOCK) for index in range(6)]
        assert counts(b)[0] >= 8
        assert counts(b)[1:] == (6, 0)
        assert b.runtime.budget.peak_bytes <= 3 * BLOCK
        await reader.aclose()


async def test_nothing_is_written_before_memory_is_half_full(tmp_path: Path) -> None:
    async with disk_bench(tmp_path, memory_blocks=8) as b:
        reader = reader_of(b)
        for index in range(4):
            await read_block(b, reader, index)
        await settle()
        assert counts(b)[1] == 0
        for index in range(4, 8):
            await read_block(b, reader, index)
        await written(b)
        assert 1 <= counts(b)[1] <= 5
        assert b.runtime.statistics()["stream_evict_blocks_from_cache"] == 0
        await reader.aclose()


async def test_another_runtime_finds_what_was_written(tmp_path: Path) -> None:
    store = "memory://disk-tier-restart"
    options: dict[str, Any] = {
        "block_bytes": BLOCK,
        "memory_bytes": 2 * BLOCK,
        "disk_cache": tmp_path,
        "prefetch_blocks": 0,
    }
    data = os.urandom(6 * BLOCK)
    async with ap.Operator.from_uri(store, **options) as first:
        etag = (await first.write("k", data)).etag
        async with first.reader("k", policy="sequential") as reader:
            await read_until_on_disk(reader, data, tmp_path, 6)
    for _ in range(20):  # A disk that a busy machine makes slow is asked less often.
        async with ap.Operator.from_uri(store, **options) as second:
            async with second.reader("k", policy="sequential", etag=etag, size=len(data)) as reader:
                assert await reader.read_at(0, len(data)) == data
            counts = second.statistics
            if counts["action_http_get_request"] == 0:
                break
    assert (counts["action_http_get_request"], counts["stream_read_block_disk_hits"]) == (0, 6)


async def test_what_another_process_writes_is_found_at_the_next_look(tmp_path: Path) -> None:
    async with disk_bench(tmp_path, look_seconds=0.0) as b:
        reader = reader_of(b)
        await read_block(b, reader, 0)
        key = key_in(b, reader, 7)
        cache_in(tmp_path).put(key, [memoryview(b.data)[7 * BLOCK :]])
        await read_block(b, reader, 1)
        await until(lambda: key.name in tier_of(b).cache)
        b.calls.clear()
        await read_block(b, reader, 7)
        assert b.calls == []
        await reader.aclose()


async def test_before_the_directory_was_looked_at_files_are_found_by_name(tmp_path: Path) -> None:
    async with disk_bench(tmp_path) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 1)
        tier_of(b).cache = new = cache_in(tmp_path)
        assert (new.looked, len(new)) == (False, 0)
        await read_block(b, reader, 1)
        assert b.calls == []
        await reader.aclose()


async def test_only_what_the_disk_lacks_is_asked_for(tmp_path: Path) -> None:
    """One long read: requests span blocks, but none that the disk has."""
    async with disk_bench(tmp_path, memory_blocks=64) as b:
        reader = reader_of(b)
        await read_block(b, reader, 7)
        for index in (2, 3, 5):
            key, start = key_in(b, reader, index), index * BLOCK
            cache_in(tmp_path).put(key, [memoryview(b.data)[start : start + BLOCK]])
        tier_of(b).cache.look()
        b.calls.clear()
        assert await reader.read_at(0, 8 * BLOCK) == b.data
        assert sorted(b.ranges) == [(0, 2 * BLOCK), (4 * BLOCK, 5 * BLOCK), (6 * BLOCK, 7 * BLOCK)]
        assert counts(b)[0] == 3
        await reader.aclose()


async def test_a_part_of_a_block_comes_from_its_file(tmp_path: Path) -> None:
    """Exact ranges too: the pieces that hold them are verified, and no more is read."""
    piece, block_bytes = PIECE_BYTES_MIN, 48 * PIECE_BYTES_MIN - 100
    calls = FailingCalls()
    async with disk_bench(
        tmp_path,
        calls=calls,
        block_bytes=block_bytes,
        memory_bytes=block_bytes,
        blocks=96 * piece // BLOCK,
        disk={"capacity_bytes": 1 << 30},
    ) as b:
        reader = reader_of(b)
        await reader.read_at(0, 10)
        await reader.read_at(block_bytes, 10)
        await written(b)
        reader.set_policy("random")
        b.calls.clear()
        calls.made.clear()
        for start, end in ((piece + 5, piece + 50), (47 * piece - 5, 47 * piece + 5)):
            assert await reader.read_at(start, end - start) == b.data[start:end]
        assert b.calls == []
        assert calls.made.count("read") == 2 + 1  # Tail and pieces; those at the end at once.
        await reader.aclose()


@checks("reliability:D24")
async def test_a_new_version_never_meets_the_blocks_of_the_old(tmp_path: Path) -> None:
    async with disk_bench(tmp_path) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0, 1)
        old = [key_in(b, reader, index).name for index in range(8)]
        b.data = bytes(reversed(b.data))
        b.put(b.data)
        await reader.reopen()
        for index in (0, 1, 2, 3, 0, 1):
            await read_block(b, reader, index)
        await written(b)
        assert not {key_in(b, reader, index).name for index in range(8)} & set(old)
        await reader.aclose()


async def test_what_has_no_strong_version_stays_off_the_disk(tmp_path: Path) -> None:
    async with disk_bench(tmp_path) as b:
        stored = b.store.objects["k"]
        for weak in (None, 'W/"x"'):
            b.store.objects["k"] = replace(stored, metadata=replace(stored.metadata, etag=weak))
            async with reader_of(b) as reader:
                for index in (0, 1, 2, 0):
                    await read_block(b, reader, index)
        assert files_in(tmp_path) == []
        assert counts(b) == (0, 0, 0)


@checks("reliability:D32")
async def test_a_block_that_is_not_whole_is_never_written(tmp_path: Path) -> None:
    """One whose fetch broke off, was cancelled, or was asked for in part."""
    async with disk_bench(tmp_path, memory_blocks=3) as b:
        reader = await b.opened(policy="sequential")
        broken = asyncio.create_task(reader.read_at(BLOCK, 10_000))
        call = await b.next_call()
        call.deliver(5000)
        call.fail(Unavailable("broke"))
        with pytest.raises(Unavailable):
            await broken
        cancelled = asyncio.create_task(reader.read_at(2 * BLOCK, BLOCK))
        (await b.next_call()).deliver(BLOCK - 1)
        await settle()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        b.gate.open = True
        reader.set_policy("random")
        await reader.read_at(3 * BLOCK, BLOCK - 1)
        reader.set_policy("sequential")
        partial = {key_in(b, reader, index).name for index in (1, 2, 3)}
        for index in (4, 5, 6, 7, 4):
            await read_block(b, reader, index)
            await written(b)
        assert counts(b)[1] > 0
        assert not partial & set(files_in(tmp_path))
        await reader.aclose()


async def test_a_block_that_is_being_written_is_still_read_from_memory(tmp_path: Path) -> None:
    halted = Halted("write")
    async with disk_bench(tmp_path, calls=FailingCalls(halted)) as b:
        reader = reader_of(b)
        await read_block(b, reader, 0)
        await read_block(b, reader, 1)
        await until(halted.reached.is_set)
        b.calls.clear()
        for index in (0, 1, 0):
            await read_block(b, reader, index)
        assert b.calls == []
        assert counts(b) == (0, 0, 0)
        halted.go_on.set()
        await written(b)
        await read_block(b, reader, 0)
        await reader.aclose()


async def test_memory_comes_back_when_blocks_are_written(tmp_path: Path) -> None:
    """No buffer is held by a queue, a frame or an error, and none twice."""
    async with disk_bench(tmp_path, memory_blocks=4) as b:
        reader = reader_of(b)
        for index in (0, 1, 2, 3, 4, 5, 0, 1):
            await read_block(b, reader, index)
        await written(b)
        gc.collect()
        gc.disable()
        try:
            for index in (2, 3, 4, 5, 6, 7):
                await read_block(b, reader, index)
            await written(b)
            await reader.unbuffer()
            await reader.aclose()
            # The thread that wrote last may still hold its views for a moment.
            await until(lambda: b.runtime.budget.used_bytes == 0)
        finally:
            gc.enable()


async def test_unbuffer_gives_back_what_is_being_written(tmp_path: Path) -> None:
    halted = Halted("write")
    async with disk_bench(tmp_path, calls=FailingCalls(halted)) as b:
        reader = reader_of(b)
        await read_block(b, reader, 0)
        await read_block(b, reader, 1)
        await until(halted.reached.is_set)
        await reader.unbuffer()
        assert b.runtime.budget.used_bytes == BLOCK
        halted.go_on.set()
        await written(b)
        await until(lambda: b.runtime.budget.used_bytes == 0)
        assert len(files_in(tmp_path)) == 1
        await reader.aclose()


async def test_a_read_that_is_cancelled_while_the_disk_reads_leaves_all_well(tmp_path: Path) -> None:
    halted, calls = Halted("read"), FailingCalls()
    async with disk_bench(tmp_path, calls=calls) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0)
        calls.before = halted
        task = asyncio.create_task(reader.read_at(0, 10))
        await until(halted.reached.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settle()
        assert not tier_of(b).calls.is_off
        halted.go_on.set()
        await read_block(b, reader, 0)
        assert b.calls == []
        assert counts(b)[2] == 0
        await reader.aclose()


async def test_many_reads_of_one_block_read_its_file_once(tmp_path: Path) -> None:
    async with disk_bench(tmp_path) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0)
        found = await asyncio.gather(*(reader.read_at(offset, 100) for offset in range(0, 5000, 100)))
        assert b"".join(found) == b.data[:5000]
        assert b.calls == []
        assert counts(b)[0] == 1
        await reader.aclose()


async def test_prefetch_comes_from_the_disk_too(tmp_path: Path) -> None:
    async with disk_bench(tmp_path, memory_blocks=6, prefetch_blocks=2) as b:
        reader = reader_of(b)
        await reader.read_at(0, 8 * BLOCK)
        await written(b)
        b.calls.clear()
        reader.will_need([(0, 2 * BLOCK)])
        await settle()
        await until(lambda: counts(b)[0] > 0)
        await read_block(b, reader, 0)
        assert b.calls == []
        await reader.aclose()


# --- more than the disk holds ---------------------------------------------------------------------------------------


async def sweep(b: Bench, reader: RangeReader, blocks: range, times: int) -> None:
    """Read blocks in order, again and again, with time for each to be written."""
    for _ in range(times):
        for index in blocks:
            await read_block(b, reader, index)
            await written(b)


async def test_a_scan_round_and_round_over_more_than_the_disk_holds_writes_little(tmp_path: Path) -> None:
    """All of it would be written and evicted in vain. A part stays instead, and is read in every round."""
    blocks, rounds = 24, 12
    disk = {"capacity_bytes": 4 * BLOCK}
    async with disk_bench(tmp_path, blocks=blocks, disk=disk) as b, reader_of(b) as reader:
        await sweep(b, reader, range(blocks), rounds)
        counters = b.runtime.statistics()
        assert counters["stream_file_cache_blocks_written"] <= blocks * rounds // 4
        assert counters["stream_file_cache_eviction"] <= counters["stream_file_cache_blocks_written"]
        assert counters["stream_file_cache_blocks_skipped"] >= blocks * rounds // 2
        assert counters["stream_read_block_disk_hits"] >= rounds
        assert counters["stream_file_cache_failures"] == 0


async def test_what_fits_after_a_scan_that_did_not_comes_to_the_disk(tmp_path: Path) -> None:
    """A block that is not written now is offered again when it is read again."""
    disk = {"capacity_bytes": 6 * BLOCK}
    async with disk_bench(tmp_path, blocks=24, disk=disk) as b, reader_of(b) as reader:
        await sweep(b, reader, range(24), 3)
        assert b.runtime.statistics()["stream_file_cache_blocks_skipped"] > 0
        await sweep(b, reader, range(10, 14), 60)
        b.calls.clear()
        await sweep(b, reader, range(10, 14), 2)
        assert b.calls == []
