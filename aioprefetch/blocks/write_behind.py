"""Writes blocks from memory to the disk, in the background.

Either what was **fetched**, as soon as all of a block is there; or what will be **evicted**: once half of the memory is
taken, the blocks that would go next. They wait in one queue, stay resident meanwhile, and when they must go they go
without loss. An eviction may wait a little for a block that is not written yet. When the disk is slower than the store,
blocks are dropped unwritten: a disk holds no memory but for the block that is being written.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from aioprefetch.blocks.block import Block, SegmentState
from aioprefetch.blocks.file import BlockFile
from aioprefetch.blocks.host_claims import KeyOf
from aioprefetch.cache.entry import EntryKey
from aioprefetch.cache.files import EntryFiles
from aioprefetch.cache.guard import CacheFailed, DiskCalls
from aioprefetch.cache.write_behind import SpillWaitBudget, WriteFilter
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Lane

# One part in this many of the memory is kept free, or taken by blocks that are on the disk too: as much as readers may
# ask for at once without a loss.
_CLEAN_SHARE = 2
# Of what will be evicted at most one part in this many of the memory is queued at once, and at least a block.
_WRITING_SHARE = 8
# After one part in this many of the memory was filled, blocks to write are looked for: ordering them costs time.
_LOOK_SHARE = 16

# The blocks in memory that may be evicted for a lane: rank, number, file and block; a heap has the next one first.
Evictable = Callable[[Lane], Iterable[tuple[Any, int, Any, Block]]]


@dataclass(frozen=True, slots=True)
class _Write:
    file: BlockFile
    index: int
    key: EntryKey
    is_sample: bool


class WriteBehind:
    """The blocks that are to be written. Everything here runs on the runtime's loop.

    ``writing_bytes`` is their sum. ``release`` gives up the claims of blocks that are not written.
    """

    def __init__(
        self,
        files: EntryFiles,
        calls: DiskCalls,
        key_of: KeyOf,
        release: Callable[[Iterable[str]], None],
        runtime: Runtime,
        options: DiskCache,
    ) -> None:
        self.writing_bytes = 0
        self.filter = WriteFilter()
        # The blocks of the store in memory that could be evicted; set by it.
        self.evictable: Evictable = _no_blocks
        self._files = files
        self._calls = calls
        self._key_of = key_of
        self._release = release
        self._runtime = runtime
        self._capacity_bytes = options.limit_bytes
        self._cool_down_seconds = options.cool_down_seconds
        self._writes_fetched = options.write == "fetched"
        self._limit_bytes = runtime.options.memory_bytes
        # By the names of their files. The first one is being written; the others may be evicted before their turn.
        self._queue: dict[str, _Write] = {}
        self._is_running = False
        self._filled_bytes = 0
        self._paused_until = float("-inf")
        self._wait_budget = SpillWaitBudget(runtime.now())
        self._wait_ends: asyncio.TimerHandle | None = None
        self._has_waited_too_long = False
        self._has_settled = asyncio.Event()

    @property
    def names(self) -> Collection[str]:
        """The names of the files that will be written."""
        return self._queue.keys()

    @property
    def is_off(self) -> bool:
        """Whether nothing is written now: the disk is left alone, or was too full."""
        return self._calls.is_writing_off or self._runtime.now() < self._paused_until

    def filled(self, count: int) -> None:
        """``count`` bytes were added to memory: write blocks if their memory may soon be needed."""
        self._filled_bytes += count
        if self._writes_fetched or self._is_running:
            return
        if self._filled_bytes >= self._limit_bytes // _LOOK_SHARE:
            self._filled_bytes = 0
            self._write_ahead()

    def _write_ahead(self) -> None:
        """Begin to write the blocks that would be evicted first."""
        ahead_bytes = self._runtime.budget.used_bytes - self._limit_bytes // _CLEAN_SHARE
        # At most half of the disk's capacity: with more, each block written would evict another one just written.
        ahead_bytes = min(ahead_bytes, self._capacity_bytes // 2)
        if ahead_bytes <= 0 or self.is_off:
            return
        order = list(self.evictable("demand"))
        heapq.heapify(order)
        while ahead_bytes > 0 and order:
            _, _, file, block = heapq.heappop(order)
            ahead_bytes -= block.resident_bytes
            if not self.offer(file, block) and self._dirty(file, block) is not None:
                return

    def offer(self, file: BlockFile, block: Block) -> bool:
        """Whether a block will be written: it is queued, or it is whole and of use, and there is room in the queue."""
        key, files = self._dirty(file, block), self._files
        if key is None or key.name in self._queue:
            return key is not None
        is_much = self.writing_bytes + key.data_bytes > self._limit_bytes // _WRITING_SHARE
        if self.writing_bytes and is_much and not self._writes_fetched:
            return False
        if files.is_full and not self.filter.admits(len(files)):
            block.stays_off_disk = True
            self._runtime.counters["stream_file_cache_blocks_skipped"] += 1
            return False
        self.writing_bytes += key.data_bytes
        is_sample = files.is_full and self.filter.is_sampling
        self._queue[key.name] = _Write(file, block.index, key, is_sample)
        if not self._is_running:
            self._is_running = True
            self._runtime.supervisor.spawn(self._run(), name="write block files")
        return True

    def spare(self, file: BlockFile, block: Block) -> bool:
        """Whether a block should not be evicted yet, because it would be lost: it is written first."""
        return self.offer(file, block) or (self.writing_bytes > 0 and self._dirty(file, block) is not None)

    @property
    def spill_wait_exhausted(self) -> bool:
        """Whether evictions may wait no longer for blocks that are being written."""
        return self._has_waited_too_long or self._wait_budget.left(self._runtime.now()) <= 0

    def wait(self) -> None:
        """A reservation waits for a write: it is considered again after the write, or when the wait is exhausted."""
        if self.writing_bytes and self._wait_ends is None:
            now = self._runtime.now()
            self._wait_budget.begin(now)
            self._wait_ends = self._runtime.loop.call_later(self._wait_budget.left(now), self._run_out)

    def _run_out(self) -> None:
        self._has_waited_too_long = True  # Without a look at the clock: a timer may be early by its resolution.
        self._runtime.budget.reconsider()

    async def finish(self) -> None:
        """Wait until what was fetched is written, unless the disk is left alone."""
        while self._queue and self._writes_fetched and not self.is_off:
            self._has_settled.clear()
            await self._has_settled.wait()

    def close(self) -> None:
        """End the wait."""
        self._waited()

    def _waited(self) -> None:
        if self._wait_ends is not None:
            self._wait_ends.cancel()
            self._wait_ends = None
            self._has_waited_too_long = False
            self._wait_budget.end(self._runtime.now())

    def _dirty(self, file: BlockFile, block: Block) -> EntryKey | None:
        if self.is_off or block.stays_off_disk or block.is_spilling or not is_whole(file, block):
            return None
        key = self._key_of(file, block.index)
        return None if key is None or key.name in self._files else key

    async def _run(self) -> None:
        try:
            while self._queue:
                write = next(iter(self._queue.values()))
                wrote = False
                try:
                    wrote = await self._write(write)
                finally:
                    self._settle(write, wrote=wrote)
                if not self._queue and not self._writes_fetched:
                    self._write_ahead()
        finally:
            self._is_running = False

    async def _write(self, write: _Write) -> bool:
        files, counters, file = self._files, self._runtime.counters, write.file
        block = file.blocks.get(write.index)
        if block is None or self._dirty(file, block) is None:
            self._release([write.key.name])
            return False
        for segment in block.segments:
            segment.become(SegmentState.SPILLING)
        evictions = files.evictions
        try:
            views = [segment.view for segment in block.segments]
            put = partial(files.put, write.key, views, goes_first=write.is_sample)
            del views
            wrote = await self._calls.call("write", put)
        except CacheFailed:
            return False
        finally:
            counters["stream_file_cache_eviction"] += files.evictions - evictions
            if file.blocks.get(write.index) is block:  # It was not dropped meanwhile.
                for segment in block.segments:
                    segment.become(SegmentState.READY)
        if not wrote:
            self._paused_until = self._runtime.now() + self._cool_down_seconds
        return wrote

    def _settle(self, write: _Write, *, wrote: bool) -> None:
        self._waited()
        self.writing_bytes -= write.key.data_bytes
        del self._queue[write.key.name]
        self._has_settled.set()
        self._runtime.counters["stream_file_cache_blocks_written"] += wrote
        budget = self._runtime.budget
        budget.room(0, "demand")  # The memory that demand has overdrawn meanwhile.
        budget.reconsider()


def _no_blocks(_lane: Lane) -> Iterable[tuple[Any, int, Any, Block]]:
    return ()


def is_whole(file: BlockFile, block: Block) -> bool:
    """Whether every byte of a block is resident."""
    position, end = file.grid.bounds(block.index)
    for segment in block.segments:
        if segment.start != position or not segment.complete:
            return False
        position = segment.end
    return position == end
