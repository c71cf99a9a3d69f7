"""Buffers: small ones and mapped ones behave alike, and give back what they were charged exactly once."""

import asyncio
import gc
import os
import threading

import pytest

from aioprefetch.blocks.block import Segment
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.runtime.buffers import MAPPED_BYTES_MIN, SmallBuffer, new_buffer, view_of
from tests.stores.gated_reader import MIB, bench, settle

SIZES = (1, 100, MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN, MAPPED_BYTES_MIN + 4097)


async def charged(size: int) -> MemoryBudget:
    """A budget with that much in use."""
    budget = MemoryBudget(64 * MIB, asyncio.get_running_loop())
    budget.charge(size)
    return budget


@pytest.mark.parametrize("size", SIZES)
async def test_a_buffer_is_writable_and_of_its_size(size: int) -> None:
    buffer = new_buffer(size, await charged(size))
    assert isinstance(buffer, SmallBuffer) is (size < MAPPED_BYTES_MIN)
    view = view_of(buffer)
    assert (len(buffer), len(view), view.format, view.readonly) == (size, size, "B", False)
    view[-1:] = b"x"
    assert bytes(view_of(buffer)[-1:]) == b"x"


@pytest.mark.parametrize("size", SIZES)
async def test_its_bytes_come_back_with_the_last_slice_in_any_thread(size: int) -> None:
    budget = await charged(size)
    held = [view_of(new_buffer(size, budget))[:1]]
    gc.collect()
    assert budget.used_bytes == size
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    await settle()
    assert budget.used_bytes == 0


@pytest.mark.parametrize("size", SIZES[1:])
async def test_a_segment_knows_whether_it_is_viewed(size: int) -> None:
    segment = Segment(0, size, new_buffer(size, await charged(size)), prefetched=False)
    segment.filled = size
    seen = [segment.is_viewed]
    view = segment.export(1, 3)
    assert view.readonly
    seen.append(segment.is_viewed)
    del view
    seen.append(segment.is_viewed)
    assert seen == [False, True, False]


@pytest.mark.parametrize("size", SIZES[1:])
async def test_what_had_arrived_moves_to_memory_of_its_size(size: int) -> None:
    budget = await charged(size)
    segment = Segment(0, size, new_buffer(size, budget), prefetched=False)
    segment.view[:7] = b"arrived"
    segment.filled = 7
    segment.keep_prefix()
    assert (segment.end, bytes(segment.view), budget.used_bytes) == (7, b"arrived", 7)
    del segment
    assert budget.used_bytes == 0


async def test_no_memory_is_a_memory_error_and_charges_nothing() -> None:
    budget = await charged(0)
    with pytest.raises(MemoryError):
        new_buffer(1 << 62, budget)
    assert budget.used_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_to_memory_of_its_own() -> None:
    size = MAPPED_BYTES_MIN
    view = view_of(new_buffer(size, asyncio.run(charged(size))))
    view[:1] = b"p"
    child = os.fork()
    if child == 0:
        view[:1] = b"c"
        os._exit(0)
    os.waitpid(child, 0)
    assert bytes(view[:1]) == b"p"


async def test_large_blocks_through_a_reader() -> None:
    async with bench(8 * MIB, memory_bytes=16 * MIB, block_bytes=4 * MIB) as b:
        async with b.reader() as reader:
            view = await reader.view_at(MIB, 2 * MIB)
            assert await reader.read_at(3 * MIB, 3 * MIB) == b.data[3 * MIB : 6 * MIB]
            assert view == b.data[MIB : 3 * MIB]
            await reader.unbuffer()
            assert b.runtime.budget.used_bytes == 4 * MIB
            del view
        await settle()
        assert b.runtime.budget.used_bytes == 0
