"""Hits of another thread, which the loop hears of when later ones were made already."""

import asyncio
import threading

import pytest

from aioprefetch.reader.reader import RangeReader
from tests.stores.gated_reader import KIB, bench, reads_of, settle

BLOCK = 64 * KIB
BLOCKS = 40
AHEAD = 8


def read_on_a_thread(reader: RangeReader, start: int, stop: int, step: int) -> int:
    """Hits from ``start`` to ``stop`` on a thread, while the loop has no turn. Returns the end of the last one."""
    reads = reads_of(reader)
    position = start

    def read() -> None:
        nonlocal position
        while position < stop:
            view = reads.resident(position, step)
            if view is None:
                return
            position += len(view)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return position


@pytest.mark.parametrize("step", [4 * KIB, 16 * KIB, BLOCK])
@pytest.mark.parametrize("policy", ["sequential", "adaptive"])
async def test_marks_that_come_late_move_the_window_to_where_the_reads_are(policy: str, step: int) -> None:
    async with bench(BLOCKS * BLOCK, memory_bytes=2 * BLOCKS * BLOCK, prefetch_blocks=AHEAD) as b:
        reader = b.reader(policy=policy)
        position = 0
        while position < 2 * BLOCK * AHEAD:  # On the loop, until the window is as wide as it gets.
            position += len(await reader.read_at(position, BLOCK))
            await settle()
        windows = reads_of(reader).ahead.windows
        ahead = windows.runs[0].blocks
        assert ahead >= 1
        stop = read_on_a_thread(reader, position, BLOCKS * BLOCK, step)
        assert stop == position + ahead * BLOCK  # Nothing more can be resident: the loop had no turn.
        await settle()
        assert [run.position for run in windows.runs] == [stop]
        assert [run.blocks for run in windows.runs] == [ahead]
        assert not windows.has_gone_back
        starts = [start for start, _ in b.ranges]
        assert starts == sorted(set(starts))  # Each byte once, and nothing behind the reads.
        assert max(end or 0 for _, end in b.ranges) == stop + ahead * BLOCK
        assert read_on_a_thread(reader, stop, BLOCKS * BLOCK, step) == stop + ahead * BLOCK
        await asyncio.sleep(0)
        await reader.aclose()


async def test_a_mark_of_a_block_that_was_recycled_meanwhile_is_dropped() -> None:
    """The run of an endless stream has left the block behind before the loop hears of its first read."""
    size = 4 * BLOCKS * BLOCK
    async with bench(size, memory_bytes=BLOCKS * BLOCK, prefetch_blocks=AHEAD) as b:
        reader = b.reader(keep_behind=False)
        position = 0
        while position < 2 * BLOCK * AHEAD:
            position += len(await reader.read_at(position, BLOCK))
            await settle()
        for _ in range(6):
            position = read_on_a_thread(reader, position, size, 4 * KIB)
            await settle()
        windows = reads_of(reader).ahead.windows
        assert [run.position for run in windows.runs] == [position]
        assert not windows.has_gone_back
        starts = [start for start, _ in b.ranges]
        assert starts == sorted(set(starts))
        assert len(reads_of(reader).opened.open_file().blocks) <= 3 * AHEAD
        assert bytes(await reader.read_at(position - BLOCK, BLOCK)) == b.data[position - BLOCK : position]
        await reader.aclose()
