"""Memory: views keep bytes accounted, everything comes back, nothing waits for ever, no cycle keeps a buffer."""

import asyncio
import gc
import math
import threading
from collections.abc import Iterator

import pytest

from aioprefetch.blocks.block import Segment
from aioprefetch.errors import BudgetExhausted, Unavailable
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.runtime.buffers import new_buffer
from tests.stores.gated_reader import KIB, MIB, Bench, bench, reads_of, settle

BLOCK = 64 * KIB


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Without the cycle collector: what is freed is freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_view_keeps_its_bytes_accounted_until_the_last_slice_is_gone(no_collector: None) -> None:
    async with bench() as b:
        reader = b.reader()
        view = await reader.view_at(10, BLOCK // 2)
        assert view.readonly
        assert bytes(view) == b.data[10 : 10 + BLOCK // 2]
        inner = view[10:20][2:4]
        del view
        await reader.unbuffer()
        await reader.aclose()
        await settle()
        assert b.runtime.budget.used_bytes == BLOCK
        assert bytes(inner) == b.data[22:24]
        del inner
        assert b.runtime.budget.used_bytes == 0


async def test_a_view_may_die_in_another_thread(no_collector: None) -> None:
    async with bench() as b:
        reader = b.reader()
        held = [(await reader.view_at(0, BLOCK))[5:]]
        await reader.unbuffer()
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        await settle()
        assert b.runtime.budget.used_bytes == 0
        await reader.aclose()


async def test_a_view_never_changes_whatever_happens_to_the_store() -> None:
    async with bench(4 * MIB, memory_bytes=4 * BLOCK) as b:
        reader = b.reader()
        view = await reader.view_at(100, BLOCK // 2)
        b.put(bytes(4 * MIB))
        await reader.reopen()
        for offset in range(0, 4 * MIB, BLOCK):
            assert await reader.read_at(offset, BLOCK) == bytes(BLOCK)
        assert bytes(view) == b.data[100 : 100 + BLOCK // 2]
        await reader.aclose()


async def test_everything_comes_back(no_collector: None) -> None:
    async with bench() as b:
        readers = [b.reader(policy=policy) for policy in ("adaptive", "random", "parquet")]
        for reader in readers:
            await reader.read_at(3 * BLOCK + 5, 2 * BLOCK)
            await reader.read_ranges([(0, 10), (500_000, 500_100)])
        assert b.runtime.budget.used_bytes > 0
        for reader in readers:
            await reader.unbuffer()
            await reader.aclose()
        last = b.reader()
        await last.read_at(0, 1)
        await last.unbuffer()
        await last.aclose()
        await settle()
        assert b.runtime.budget.used_bytes == 0


@pytest.mark.virtual
async def test_the_error_of_a_read_without_memory_says_how_much_views_hold() -> None:
    async with bench(memory_bytes=4 * BLOCK, budget_wait_seconds=30.0) as b:
        reader = b.reader()
        views = [await reader.view_at(block * BLOCK, BLOCK) for block in range(2)]
        b.runtime.budget.charge(3 * BLOCK)  # As a scan does for what it cannot do without.
        began = b.runtime.now()
        with pytest.raises(BudgetExhausted) as caught:
            await reader.read_at(10 * BLOCK, 10)
        assert b.runtime.now() - began == pytest.approx(30.0)
        message = str(caught.value)
        assert f"{5 * BLOCK} of memory_bytes={4 * BLOCK} are in use: views hold {2 * BLOCK}," in message
        assert "blocks of 1 open readers and of closed ones 0, requests in flight 0," in message
        assert f"scans and views of blocks that are gone {5 * BLOCK};" in message
        assert "budget_wait_seconds=30:" in str(caught.value)
        assert caught.value.operation == "read"
        views.clear()
        assert await reader.read_at(10 * BLOCK, 10) == b.data[10 * BLOCK : 10 * BLOCK + 10]
        b.runtime.budget.release(3 * BLOCK)
        await reader.aclose()


@pytest.mark.virtual
async def test_memory_that_is_granted_in_the_turn_in_which_the_time_is_over_is_used() -> None:
    async with bench(memory_bytes=4 * BLOCK, budget_wait_seconds=30.0) as b:
        reader = b.reader()
        views = [await reader.view_at(block * BLOCK, BLOCK) for block in range(3)]
        b.runtime.budget.charge(2 * BLOCK)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + 30.0
        loop.call_at(math.nextafter(ends_at, 0), views.clear)  # Due in the same turn as the timeout, just before it.
        assert await reader.read_at(10 * BLOCK, 10) == b.data[10 * BLOCK : 10 * BLOCK + 10]
        assert loop.time() == pytest.approx(ends_at)
        counts = b.operator.statistics
        assert (counts["memory_waits"], counts["memory_waits.failures"]) == (1, 0)
        b.runtime.budget.release(2 * BLOCK)
        await reader.aclose()


@pytest.mark.virtual
async def test_a_read_that_waits_for_memory_goes_on_when_a_view_is_dropped() -> None:
    async with bench(memory_bytes=4 * BLOCK) as b:
        reader = b.reader()
        views = [await reader.view_at(block * BLOCK, BLOCK) for block in range(3)]
        b.runtime.budget.charge(2 * BLOCK)
        task = asyncio.create_task(reader.read_at(10 * BLOCK, 10))
        await settle()
        assert not task.done()
        views.clear()
        assert await task == b.data[10 * BLOCK : 10 * BLOCK + 10]
        assert b.runtime.now() < 1.0
        b.runtime.budget.release(2 * BLOCK)
        await reader.aclose()


@pytest.mark.virtual
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("size", [16, BLOCK // 8, BLOCK // 3, BLOCK])
async def test_views_never_make_a_read_wait_for_memory(size: int, blocks: int) -> None:
    """However many are held, and however little each shows of its block."""
    async with bench(4 * MIB, memory_bytes=blocks * BLOCK) as b:
        reader = b.reader()
        held = [(start, await reader.view_at(start, size)) for start in range(0, 4 * MIB - size, BLOCK // 2)]
        assert await reader.read_at(4 * MIB - 100, 100) == b.data[-100:]
        assert all(view.readonly and bytes(view) == b.data[start : start + len(view)] for start, view in held)
        assert b.runtime.now() == 0.0
        assert b.runtime.budget.peak_bytes <= (blocks + 1) * BLOCK
        await reader.aclose()


async def test_a_small_view_is_a_copy_and_holds_nothing(no_collector: None) -> None:
    async with bench() as b:
        reader = b.reader()
        await reader.read_at(0, 1)
        for read in (reader.view_at(0, BLOCK // 8 - 1), reader.view_at(BLOCK, BLOCK // 8 - 1)):  # A hit, and a miss.
            view = await read
            await reader.unbuffer()
            assert (b.runtime.budget.used_bytes, b.runtime.budget.exports.size_bytes) == (0, 0)
            assert view.readonly
        large = await reader.view_at(0, BLOCK // 8)
        await reader.unbuffer()
        assert b.runtime.budget.used_bytes == b.runtime.budget.exports.size_bytes == BLOCK
        del large
        assert b.runtime.budget.used_bytes == b.runtime.budget.exports.size_bytes == 0
        await reader.aclose()


async def test_views_are_copies_while_views_hold_more_than_half_of_the_budget(no_collector: None) -> None:
    async with bench(memory_bytes=8 * BLOCK) as b:
        reader = b.reader()
        exports = b.runtime.budget.exports
        held = [await reader.view_at(block * BLOCK, BLOCK) for block in range(5)]
        held.append(await reader.view_at(0, BLOCK))  # A second one of a block counts nothing more.
        assert exports.size_bytes == 5 * BLOCK
        copies = [await reader.view_at(5 * BLOCK, BLOCK), reads_of(reader).exported(5 * BLOCK, BLOCK)]
        assert exports.size_bytes == 5 * BLOCK
        held.clear()
        assert exports.size_bytes == 0
        view = await reader.view_at(6 * BLOCK, BLOCK)
        assert exports.size_bytes == BLOCK
        assert [bytes(view) for view in copies if view is not None] == [b.data[5 * BLOCK : 6 * BLOCK]] * 2
        assert view == b.data[6 * BLOCK : 7 * BLOCK]
        await reader.aclose()


@pytest.mark.virtual
async def test_more_tasks_than_memory_get_on_one_after_another() -> None:
    """No lost wake-up: what the first ones have used and left is evicted for the next."""
    async with bench(8 * MIB, memory_bytes=4 * BLOCK) as b:
        reader = b.reader()
        offsets = range(0, 8 * MIB, BLOCK)
        found = await asyncio.gather(*(reader.read_at(offset + 5, 100) for offset in offsets))
        assert found == [b.data[offset + 5 : offset + 105] for offset in offsets]
        assert b.runtime.now() == 0.0
        assert b.runtime.budget.peak_bytes <= 5 * BLOCK
        await reader.aclose()


async def failed_read(b: Bench) -> None:
    """A read whose fetch breaks off after some bytes."""
    reader = await b.opened()
    task = asyncio.create_task(reader.read_at(BLOCK, 2000))
    call = await b.next_call()
    call.deliver(1000)
    call.fail(Unavailable("broke"))
    with pytest.raises(Unavailable):
        await task
    await reader.unbuffer()
    await reader.aclose()


async def cancelled_read(b: Bench) -> None:
    """A read that is cancelled with bytes on the way."""
    reader = await b.opened()
    task = asyncio.create_task(reader.read_at(BLOCK, 2000))
    (await b.next_call()).deliver(1000)
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    await reader.unbuffer()
    await reader.aclose()


async def closed_read(b: Bench) -> None:
    """A read under way when its reader is closed."""
    reader = await b.opened()
    task = asyncio.create_task(reader.read_at(BLOCK, 2000))
    (await b.next_call()).deliver(1000)
    await settle()
    await reader.unbuffer()
    await reader.aclose()
    await asyncio.gather(task, return_exceptions=True)
    again = b.reader()
    b.gate.open = True
    await again.read_at(0, 1)
    await again.unbuffer()
    await again.aclose()


@pytest.mark.parametrize("story", [failed_read, cancelled_read, closed_read])
async def test_no_cycle_keeps_a_buffer_alive(story: object, no_collector: None) -> None:
    assert callable(story)
    async with bench() as b:
        await story(b)
        await settle()
        assert b.runtime.budget.used_bytes == 0


async def test_a_kept_prefix_moves_to_memory_of_its_own_size() -> None:
    budget = MemoryBudget(1000, asyncio.get_running_loop())
    budget.charge(100)
    segment = Segment(0, 100, new_buffer(100, budget), prefetched=False)
    segment.view[:30] = b"x" * 30
    segment.filled = 30
    segment.keep_prefix()
    assert (segment.end, segment.complete, budget.used_bytes) == (30, True, 30)
    view = segment.export(10, 20)
    assert bytes(view) == b"x" * 10
    assert segment.is_viewed
    del segment
    assert budget.used_bytes == 30
    del view
    assert budget.used_bytes == 0


async def test_a_viewed_prefix_stays_where_it_is() -> None:
    budget = MemoryBudget(1000, asyncio.get_running_loop())
    budget.charge(100)
    segment = Segment(0, 100, new_buffer(100, budget), prefetched=False)
    segment.filled = 30
    view = segment.export(0, 30)
    segment.keep_prefix()
    assert (segment.end, budget.used_bytes) == (30, 100)
    del view, segment
    assert budget.used_bytes == 0
