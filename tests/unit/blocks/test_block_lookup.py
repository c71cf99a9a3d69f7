"""Finding bytes in a block of many segments: against the plain way, which looks at each of them in turn."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.blocks.block import Block, Segment
from aioprefetch.blocks.store import BlockStore
from aioprefetch.ranges import Range, subtract
from aioprefetch.runtime.buffers import new_buffer
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import run_virtual

BLOCK = 64
SIZE = 3 * BLOCK - 10

positions = st.integers(0, SIZE + 5)
steps = st.tuples(st.sampled_from(["add", "add", "add", "discard"]), positions, st.integers(1, 20), st.integers(0, 20))


def plain_at(blocks: dict[int, Block], position: int) -> Segment | None:
    """The segment that holds a byte now."""
    for block in blocks.values():
        for one in block.segments:
            if one.start <= position < one.start + one.filled:
                return one
    return None


def plain_bounds(blocks: dict[int, Block], start: int, end: int) -> list[Range]:
    """What is resident or on its way, of all blocks that ``[start, end)`` touches."""
    everything = [(one.start, one.end) for block in blocks.values() for one in block.segments]
    return sorted(one for one in everything if one[0] < end and start < one[1])


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40), st.lists(st.tuples(positions, st.integers(1, 90)), max_size=20))
def test_many_segments_are_found_as_by_looking_at_each(
    script: list[tuple[str, int, int, int]], reads: list[tuple[int, int]]
) -> None:
    async def run() -> None:
        runtime = Runtime(RuntimeOptions(memory_bytes=1 << 20, block_bytes=BLOCK))
        file = BlockStore(runtime).file("k", ("v", None), size=SIZE, block_bytes=BLOCK)
        for verb, position, length, filled in script:
            index = position // BLOCK
            block = file.blocks.setdefault(index, Block(index))
            if verb == "discard" and block.segments:
                block.discard(block.segments[position % len(block.segments)])
            elif verb == "add":
                wanted = (position, min(position + length, (index + 1) * BLOCK))
                for start, end in subtract(wanted, sorted((one.start, one.end) for one in block.segments)):
                    runtime.budget.charge(end - start)
                    segment = Segment(start, end, new_buffer(end - start, runtime.budget), prefetched=False)
                    segment.filled = min(filled, end - start)
                    block.add(segment)
            order = [one.start for one in block.segments]
            assert order == sorted(set(order))
        for position in range(SIZE + 6):
            assert file.at(position) is plain_at(file.blocks, position)
        for start, length in reads:
            end = start + length
            held = plain_at(file.blocks, start)
            whole = held if held is not None and end <= held.start + held.filled else None
            assert file.find(start, end) is whole
            inside = (start, min(end, SIZE))
            if inside[0] < inside[1]:
                assert file.missing(*inside) == subtract(inside, plain_bounds(file.blocks, *inside))
            for block in file.blocks.values():
                assert block.bounds(start, end) == plain_bounds({0: block}, start, end)
        await runtime.aclose()

    run_virtual(run)


async def test_files_without_blocks_cost_an_eviction_nothing() -> None:
    """A store that knows many objects of which nothing is resident looks at none of their readers."""

    class Untouchable:
        def __iter__(self) -> None:
            raise AssertionError("the cursors of a file without blocks were looked at")

    runtime = Runtime(RuntimeOptions(memory_bytes=1 << 20, block_bytes=BLOCK))
    store = BlockStore(runtime)
    for number in range(10):
        file = store.file(number, ("v", None), size=SIZE, block_bytes=BLOCK)
        file.readers = Untouchable()  # type: ignore[assignment]
    assert list(store.eviction.evictable("demand")) == []
    await asyncio.sleep(0)
    await runtime.aclose()
