"""Eviction: wasted prefetch first, then furthest from a cursor, then least recently used; never what is in use."""

import asyncio
import gc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioprefetch import RangeReader
from aioprefetch.blocks.eviction import FAR, Rank, distance
from aioprefetch.blocks.fetch import Fetch
from aioprefetch.blocks.file import BlockFile, ReaderPosition
from aioprefetch.blocks.store import BlockStore
from aioprefetch.errors import Error
from aioprefetch.runtime.events import Event
from aioprefetch.testing.oracle import content
from aioprefetch.values import ReadHead
from tests.probes.calls import counted_calls
from tests.stores.gated_reader import KIB, MIB, Bench, bench, file_of, resident_blocks, settle

BLOCK = 64 * KIB


class NeverSent:
    """A source whose requests bring nothing."""

    stall_seconds: float | None = None

    def __init__(self, file: BlockFile) -> None:
        self._file = file

    async def send(self, fetch: Fetch) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def refused(self, error: Error) -> Error:
        """The error itself."""
        return error

    def file_of(self, fetch: Fetch, head: ReadHead) -> BlockFile:
        """The file."""
        return self._file


def resident(reader: RangeReader) -> set[int]:
    """Which blocks are there."""
    return resident_blocks(reader)


@given(st.integers(0, 50), st.lists(st.integers(0, 50), max_size=4), st.integers(0, 10))
@example(5, [3], 2)
@example(6, [3], 2)
@example(3, [3], 0)
@example(2, [3], 2)
def test_distance_is_to_the_nearest_cursor(index: int, cursors: list[int], ahead: int) -> None:
    found = distance(index, cursors, ahead_blocks=ahead)
    if not cursors:
        assert found == FAR
    elif any(cursor <= index <= cursor + ahead for cursor in cursors):
        assert found == 0
    else:
        assert found == min(abs(index - cursor) for cursor in cursors) > 0


def test_rank_orders_as_the_design_says() -> None:
    order = [
        Rank(is_viewed=False, is_footer=False, is_not_wasted=False, is_unread=False, nearness=-1, touched=9),
        Rank(is_viewed=False, is_footer=False, is_not_wasted=True, is_unread=False, nearness=-5, touched=1),
        Rank(is_viewed=False, is_footer=False, is_not_wasted=True, is_unread=False, nearness=-5, touched=2),
        Rank(is_viewed=False, is_footer=False, is_not_wasted=True, is_unread=False, nearness=-1, touched=0),
        Rank(is_viewed=False, is_footer=False, is_not_wasted=True, is_unread=True, nearness=-9, touched=0),
        Rank(is_viewed=False, is_footer=True, is_not_wasted=True, is_unread=False, nearness=-9, touched=0),
        Rank(is_viewed=True, is_footer=False, is_not_wasted=False, is_unread=False, nearness=-99, touched=0),
    ]
    assert sorted(order) == order


async def filled(b: Bench, *blocks: int) -> RangeReader:
    """A reader that has read these blocks by position, and nothing ahead."""
    reader = b.reader(prefetch_blocks=0)
    for block in blocks:
        await reader.read_at(block * BLOCK, 10)
    await settle()
    return reader


async def test_the_least_recently_used_goes_first() -> None:
    async with bench(memory_bytes=4 * BLOCK) as b:
        reader = await filled(b, 0, 1, 2, 3)
        await reader.read_at(0, 10)
        await reader.read_at(9 * BLOCK, 10)
        assert resident(reader) == {0, 2, 3, 9}
        await reader.aclose()


async def test_the_furthest_from_the_cursor_goes_first() -> None:
    async with bench(memory_bytes=4 * BLOCK, prefetch_blocks=2) as b:
        reader = await filled(b, 10, 11, 3, 15)
        reader.seek(10 * BLOCK)
        await reader.read_at(12 * BLOCK, 10)
        assert resident(reader) == {10, 11, 15, 12}
        await reader.aclose()


async def test_prefetch_that_was_passed_unread_goes_before_all() -> None:
    async with bench(memory_bytes=4 * BLOCK, prefetch_blocks=2) as b:
        reader = await filled(b, 0, 10)
        reader.will_need([(12 * BLOCK, 14 * BLOCK)])
        await settle()
        assert resident(reader) == {0, 10, 12, 13}
        await reader.read_at(13 * BLOCK, 10)
        reader.seek(15 * BLOCK)
        await reader.read_at(15 * BLOCK, 10)
        assert resident(reader) == {0, 10, 13, 15}
        assert b.runtime.statistics()["prefetch_bytes_wasted"] == BLOCK
        await reader.aclose()


async def test_a_closed_file_goes_before_an_open_one() -> None:
    async with bench(memory_bytes=4 * BLOCK) as b:
        b.put(bytes(MIB), "other")
        async with b.operator.reader("other") as other:
            await other.read_at(0, 10)
            await settle()
        reader = await filled(b, 0, 1, 2)
        await b.operator.reader("other", size=None).aclose()
        reader.seek(0)
        await reader.read_at(8 * BLOCK, 10)
        assert resident(reader) == {0, 1, 2, 8}
        await reader.aclose()


async def test_what_is_in_flight_or_waited_for_stays() -> None:
    async with bench(memory_bytes=2 * BLOCK) as b:
        reader = await b.opened()
        slow = asyncio.create_task(reader.read_at(BLOCK, BLOCK))
        call = await b.next_call()
        call.deliver(BLOCK - 1)
        await settle()
        b.gate.open = True
        for block in (4, 5, 6, 7):
            assert await reader.read_at(block * BLOCK, 10) == b.data[block * BLOCK : block * BLOCK + 10]
            assert 1 in resident(reader)
        call.finish()
        assert await slow == b.data[BLOCK : 2 * BLOCK]
        assert b.ranges.count((BLOCK, 2 * BLOCK)) == 1
        await reader.aclose()


async def test_a_viewed_block_goes_last() -> None:
    async with bench(memory_bytes=4 * BLOCK) as b:
        reader = b.reader()
        view = await reader.view_at(0, BLOCK)
        for block in range(1, 8):
            await reader.read_at(block * BLOCK, 10)
            await settle()
        assert 0 in resident(reader)
        assert bytes(view) == b.data[:BLOCK]
        await reader.aclose()


async def test_prefetch_takes_no_room_from_what_is_about_to_be_read() -> None:
    """Of what was fetched ahead it may have what was passed unread; demand may have all of it."""
    async with bench(memory_bytes=16 * BLOCK) as b, b.reader() as reader:
        await reader.read_at(0, 1)
        reader.will_need([(start * BLOCK, (start + 1) * BLOCK) for start in (1, 4)])
        await settle()
        reader.seek(4 * BLOCK)
        store = BlockStore.of(b.runtime)
        for lane, found in (("prefetch", {0, 1}), ("demand", {0, 1, 4})):
            assert {block.index for _, _, _, block in store.eviction.evictable(lane)} == found  # type: ignore[arg-type]
        assert min(store.eviction.evictable("demand"))[3].index == 1


@pytest.mark.cost
async def test_putting_blocks_in_order_takes_two_calls_for_each() -> None:
    async with bench(memory_bytes=64 * BLOCK) as b:
        calls = {}
        for count in (4, 14):
            reader = await filled(b, *range(count))
            store = BlockStore.of(b.runtime)
            with counted_calls() as calls[count]:
                found = store.eviction.evictable("demand")
            assert len(found) == count
            await reader.aclose()
        assert calls[14].number - calls[4].number <= 10 * 2


def footer_is_held(b: Bench, path: str) -> bool:
    """Whether the last bytes of an object are still in memory."""
    files = [file for file in BlockStore.of(b.runtime).files.values() if file.label == path]
    return any(file.holds(file.footer_start, file.size) for file in files)


async def read_footers(b: Bench, *paths: str) -> None:
    """Read the end of each object and something before it, as readers of Parquet do, and close."""
    for path in paths:
        b.put(content(BLOCK), path)
        async with b.operator.reader(path, policy="parquet", footer_cache=8 * KIB) as reader:
            await reader.read_at(BLOCK - 8, 8)
            await reader.read_at(BLOCK - 4 * KIB, 4 * KIB)
            await reader.read_at(0, 8 * KIB)
            await reader.read_at(BLOCK - 20 * KIB, 12 * KIB)


async def test_footers_of_closed_files_stay_when_parts_of_blocks_go() -> None:
    paths = [f"{number}.parquet" for number in range(5)]
    async with bench(memory_bytes=16 * BLOCK) as b:
        await read_footers(b, *paths)
        async with b.reader() as reader:
            for block in range(14):  # Each of them is still to be read on.
                await reader.read_at(block * BLOCK, 10)
        await settle()
        assert [path for path in paths if not footer_is_held(b, path)] == []


async def test_the_block_before_the_footer_does_not_belong_to_it() -> None:
    async with (
        bench(3 * BLOCK, memory_bytes=16 * BLOCK) as b,
        b.operator.reader("k", policy="parquet", footer_cache=BLOCK) as reader,
    ):
        for block in (2, 1, 0):
            await reader.read_at(block * BLOCK, BLOCK)
        await settle()
        ranks = {block.index: rank for rank, _, _, block in BlockStore.of(b.runtime).eviction.evictable("demand")}
        assert {index: one.is_footer for index, one in ranks.items()} == {0: False, 1: False, 2: True}


async def test_a_file_whose_last_part_was_evicted_is_forgotten() -> None:
    paths = [f"{number}.parquet" for number in range(5)]
    async with bench(memory_bytes=2 * BLOCK) as b:
        store = BlockStore.of(b.runtime)
        await read_footers(b, *paths)
        files = list(store.files.values())
        async with b.reader() as reader:
            for block in range(16):
                await reader.read_at(block * BLOCK, 10)
            files.append(file_of(reader))
        await settle()
        store.eviction.reclaim(2 * BLOCK, "demand")
        assert store.files == {}
        assert [store.newest(file.name, file.grid.block_bytes) for file in files] == [None] * len(files)


async def test_an_evicted_part_of_a_block_counts_and_is_published() -> None:
    async with bench(memory_bytes=16 * BLOCK) as b, b.reader(policy="random") as reader:
        await reader.read_at(0, 16 * KIB)
        reader.will_need([(32 * KIB, BLOCK)])
        await settle()
        published: list[Event] = []
        b.runtime.events.subscribe(published.append)
        BlockStore.of(b.runtime).eviction.reclaim(1, "demand")
        (event,) = published
        assert (event.name, event.path) == ("block.evicted", "k")
        assert event.facts == {"start": 0, "end": 16 * KIB, "unused": False}
        assert reader.statistics["stream_evict_blocks_from_cache"] == 1
        assert await reader.read_at(32 * KIB, 32 * KIB) == b.data[32 * KIB : BLOCK]


async def test_a_small_first_fetch_does_not_pass_for_a_lack_of_memory() -> None:
    """What is spare is counted before what was asked for is taken off it."""

    async with bench(memory_bytes=256 * MIB) as b:
        store = BlockStore.of(b.runtime)
        b.runtime.budget.charge(130 * MIB)
        cursors = [ReaderPosition(), ReaderPosition()]
        for number, cursor in enumerate(cursors):
            store.file(("k", number), (None, "etag"), size=MIB, block_bytes=8 * MIB).open(cursor)
        file = next(iter(store.files.values()))
        fetch = file.start_fetch(0, 10, NeverSent(file), lane="demand")
        assert store.eviction.cell_bytes(8 * MIB) == 4 * MIB
        fetch.cancel()
        await settle()
        b.runtime.budget.release(130 * MIB)


async def test_a_miss_takes_the_fair_share_of_the_readers_that_miss() -> None:
    """Not of all that are open: of 256 of them one goes on alone, and its requests grow again."""
    async with bench(memory_bytes=256 * MIB) as b:
        store = BlockStore.of(b.runtime)
        b.runtime.budget.charge(130 * MIB)
        cursors = [ReaderPosition() for _ in range(256)]
        for number, cursor in enumerate(cursors):
            store.file(("k", number), (None, "etag"), size=MIB, block_bytes=8 * MIB).open(cursor)
        for cursor in cursors:
            share = store.eviction.cell_bytes(8 * MIB, reader=id(cursor))
        assert share == MIB
        for _ in range(1100):
            share = store.eviction.cell_bytes(8 * MIB, reader=id(cursors[0]))
        assert share == 4 * MIB
        b.runtime.budget.release(130 * MIB)


async def test_parts_that_were_read_and_dropped_do_not_keep_their_files() -> None:
    """Memory is never short here, so that no eviction looks for parts that are gone."""
    async with bench(BLOCK) as b:
        before = b.reader()
        for number in range(300):
            b.put(b.data, f"k{number}")
            reader = b.operator.reader(f"k{number}", policy="sequential")
            assert await reader.read_at(0, BLOCK) == b.data
            await before.unbuffer()
            await before.aclose()
            before = reader
        await before.aclose()
        gc.collect()
        assert sum(isinstance(found, BlockFile) for found in gc.get_objects()) < 150


async def test_a_file_that_has_left_takes_no_other_along() -> None:
    """The first request of a reader may hold one whose last block was evicted meanwhile."""
    async with bench(memory_bytes=MIB) as b:
        store = BlockStore.of(b.runtime)
        gone = store.file("k", (None, "etag"), size=MIB, block_bytes=BLOCK)
        gone.forget_if_empty()
        file = store.file("k", (None, "etag"), size=MIB, block_bytes=BLOCK)
        assert file is not gone
        gone.forget_if_empty()
        assert store.file("k", (None, "etag"), size=MIB, block_bytes=BLOCK) is file
