"""Writes blocks from memory to the disk, in the background.

Either what was **fetched**, as soon as all of a block is there; or what will be **evicted**: once half of the memory is
taken, the blocks that would go next. Blocks stay resident meanwhile, and when they must go they go without loss. An
eviction may wait a little for a block that is not written yet. When the disk is slower than the store, blocks are
dropped unwritten: no disk holds memory back, and the bytes in writing at once are limited.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from aioprefetch.blocks.block import Block, SegmentState
from aioprefetch.blocks.file import BlockFile
from aioprefetch.cache.entry import EntryKey
from aioprefetch.cache.files import EntryFiles
from aioprefetch.cache.guard import CacheFailed, DiskCalls
from aioprefetch.cache.write_behind import SpillWaitBudget, WriteFilter
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import Lane

# One part in this many of the memory is kept free, or taken by blocks that are on the disk too: as much as readers may
# ask for at once without a loss.
_CLEAN_SHARE = 2
# Writes in progress hold at most one part in this many of the memory, and at least a block.
_WRITING_SHARE = 8
# After one part in this many of the memory was filled, blocks to write are looked for: ordering them costs time.
_LOOK_SHARE = 16

# The blocks in memory that may be evicted for a lane: rank, number, file and block; a heap has the next one first.
Evictable = Callable[[Lane], Iterable[tuple[Any, int, Any, Block]]]
Evict = Callable[[Any, Block], None]


@dataclass(frozen=True, slots=True)
class _Write:
    file: BlockFile
    block: Block
    key: EntryKey
    is_sample: bool


class WriteBehind:
    """The blocks that are being written. Everything here runs on the runtime's loop.

    ``names`` are those of the blocks that will be written; ``release`` gives up the claims of those that are not, after
    all.
    """

    def __init__(
        self,
        files: EntryFiles,
        calls: DiskCalls,
        key_of: Callable[[BlockFile, int], EntryKey | None],
        release: Callable[[Iterable[str]], None],
        runtime: Runtime,
        options: DiskCache,
    ) -> None:
        self.writing_bytes = 0
        self.filter = WriteFilter()
        self._files = files
        self._calls = calls
        self._key_of = key_of
        self._release = release
        self._evictable: Evictable = _no_blocks
        self._evict: Evict | None = None
        self.names: set[str] = set()
        self._runtime = runtime
        self._capacity_bytes = options.limit_bytes
        self._cool_down_seconds = options.cool_down_seconds
        self._writes_fetched = options.write == "fetched"
        self._limit_bytes = runtime.options.memory_bytes
        self._queue: deque[_Write] = deque()
        # Fetched blocks for which there was no room in writing. They may be evicted before there is.
        self._waiting: deque[tuple[BlockFile, int, str]] = deque()
        self._work: Work | None = None
        self._filled_bytes = 0
        self._paused_until = float("-inf")
        self._wait_budget = SpillWaitBudget(runtime.now())
        self._wait_ends: asyncio.TimerHandle | None = None
        self._has_waited_too_long = False
        self._has_settled = asyncio.Event()

    def serve(self, evictable: Evictable, evict: Evict) -> None:
        """Write the blocks of the store that these two belong to."""
        self._evictable, self._evict = evictable, evict

    @property
    def is_off(self) -> bool:
        """Whether nothing is written now: the disk is left alone, or was too full."""
        return self._calls.is_writing_off or self._runtime.now() < self._paused_until

    def filled(self, count: int) -> None:
        """``count`` bytes were added to memory: write blocks if their memory may soon be needed."""
        self._filled_bytes += count
        if not self._writes_fetched and self._filled_bytes >= self._limit_bytes // _LOOK_SHARE and self._work is None:
            self._filled_bytes = 0
            self._write_ahead()

    def fetched(self, file: BlockFile, block: Block) -> None:
        """Bytes of a block were fetched: if it is whole it is written, as soon as it may be."""
        key = self._dirty(file, block)
        if key is not None and (self._waiting or not self.begin(file, block)) and not block.stays_off_disk:
            self._waiting.append((file, block.index, key.name))
            self.names.add(key.name)

    def _write_waiting(self) -> None:
        """Begin to write the fetched blocks that there is room for now."""
        while self._waiting:
            file, index, name = self._waiting[0]
            block = file.blocks.get(index)
            begun = False
            if block is not None and self._dirty(file, block) is not None:
                begun = self.begin(file, block)
                if not begun and not block.stays_off_disk and self.writing_bytes:
                    return
            self._waiting.popleft()
            if not begun:
                self.names.discard(name)
                self._release([name])

    def _write_ahead(self) -> None:
        """Begin to write the blocks that would be evicted first."""
        ahead_bytes = self._runtime.budget.used_bytes - self._limit_bytes // _CLEAN_SHARE
        # At most half of the disk's capacity: with more, each block written would evict another one just written.
        ahead_bytes = min(ahead_bytes, self._capacity_bytes // 2)
        if ahead_bytes <= 0 or self.is_off:
            return
        order = list(self._evictable("demand"))
        heapq.heapify(order)
        while ahead_bytes > 0 and order:
            _, _, file, block = heapq.heappop(order)
            ahead_bytes -= block.resident_bytes
            if self._dirty(file, block) is not None and not self.begin(file, block) and not block.stays_off_disk:
                return

    def begin(self, file: BlockFile, block: Block) -> bool:
        """Begin to write a block if that is of use and the writes have room. Returns whether it was begun."""
        key = self._dirty(file, block)
        writing_bytes_max = max(key.data_bytes if key is not None else 0, self._limit_bytes // _WRITING_SHARE)
        if key is None or self.writing_bytes + key.data_bytes > writing_bytes_max:
            return False
        files = self._files
        if files.is_full and not self.filter.admits(len(files)):
            block.stays_off_disk = True
            self._runtime.counters["stream_file_cache_blocks_skipped"] += 1
            return False
        for segment in block.segments:
            segment.become(SegmentState.SPILLING)
        self.writing_bytes += key.data_bytes
        self.names.add(key.name)
        self._queue.append(_Write(file, block, key, is_sample=files.is_full and self.filter.is_sampling))
        if self._work is None:
            self._start()
        return True

    def _start(self) -> None:
        self._work = self._runtime.supervisor.spawn(self._run(), name="write block files", on_end=self._ended)

    def spare(self, file: BlockFile, block: Block) -> bool:
        """Whether a block should not be evicted yet, because it would be lost: it is written first."""
        if self._dirty(file, block) is None:
            return False
        return self.begin(file, block) or (self.writing_bytes > 0 and not block.stays_off_disk)

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
        while (self.writing_bytes or self._waiting) and self._writes_fetched and not self.is_off:
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
        return None if key is None or key.name in self._files or key.file_bytes > self._capacity_bytes else key

    async def _run(self) -> None:
        while self._queue:
            write = self._queue.popleft()
            wrote = False
            try:
                wrote = await self._write(write)
            finally:
                self._settle(write, wrote=wrote)
            if self._writes_fetched:
                self._write_waiting()
            elif not self._queue:
                self._write_ahead()

    async def _write(self, write: _Write) -> bool:
        files, counters = self._files, self._runtime.counters
        if self.is_off:
            self._release([write.key.name])
            return False
        evictions = files.evictions
        try:
            views = [segment.view for segment in write.block.segments]
            put = partial(files.put, write.key, views, goes_first=write.is_sample)
            del views
            wrote = await self._calls.call("write", put)
        except CacheFailed:
            return False
        finally:
            counters["stream_file_cache_eviction"] += files.evictions - evictions
        if not wrote:
            self._paused_until = self._runtime.now() + self._cool_down_seconds
        return wrote

    def _settle(self, write: _Write, *, wrote: bool) -> None:
        self._waited()
        self.writing_bytes -= write.key.data_bytes
        self.names.discard(write.key.name)
        self._has_settled.set()
        self._runtime.counters["stream_file_cache_blocks_written"] += wrote
        file, block = write.file, write.block
        if file.blocks.get(block.index) is not block:  # It was dropped meanwhile.
            return
        for segment in block.segments:
            segment.become(SegmentState.READY)
        self._relieve()
        self._runtime.budget.reconsider()

    def _relieve(self) -> None:
        """Release the memory that demand has overdrawn while writes held the rest."""
        over = self._runtime.budget.used_bytes - self._limit_bytes
        if over > 0 and self._evict is not None:
            order = list(self._evictable("demand"))
            heapq.heapify(order)
            while over > 0 and order:
                _, _, file, block = heapq.heappop(order)
                if self._dirty(file, block) is None:
                    over -= block.resident_bytes
                    self._evict(file, block)

    def _ended(self) -> None:
        self._work = None
        if self._queue and not self._runtime.closed:  # Something was added when all had been written.
            self._start()
            return
        while self._queue:
            self._settle(self._queue.popleft(), wrote=False)


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
