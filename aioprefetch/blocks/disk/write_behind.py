"""Blocks on their way from memory to the disk, in the background.

Blocks are written before their memory is needed: once half of it is taken, those that would leave next. They stay
resident, and when they must go they go without loss. What is not in its file by then may wait for it a little. When
the disk is slower than the store it is dropped all the same: no disk holds memory back, and only so many bytes are in
writing at once.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aioprefetch.blocks.block import Block, SegmentState
from aioprefetch.blocks.disk.format import BlockKey
from aioprefetch.blocks.disk.guard import DiskFailed
from aioprefetch.blocks.disk.lru import WriteFilter
from aioprefetch.blocks.disk.patience import Patience
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work

if TYPE_CHECKING:
    from aioprefetch.blocks.block_file import BlockFile
    from aioprefetch.blocks.disk.tier import DiskTier
    from aioprefetch.blocks.store import BlockStore

# This share of the memory is kept free, or taken by blocks that are on the disk too: as much as readers may ask for
# at once without losing anything.
_CLEAN_SHARE = 2
# Writes under way hold this share of the memory at most, and at least a block.
_WRITING_SHARE = 8
# After so much of the memory was filled it is looked again for blocks to write: putting them in order is paid for.
_LOOK_SHARE = 16


@dataclass(frozen=True, slots=True)
class _Write:
    file: BlockFile
    block: Block
    key: BlockKey
    is_sample: bool


class WriteBehind:
    """What is being written. Everything here runs on the runtime's loop."""

    def __init__(self, tier: DiskTier, runtime: Runtime, options: DiskCache) -> None:
        self.writing_bytes = 0
        self.filter = WriteFilter()
        self._tier = tier
        self._runtime = runtime
        self._capacity_bytes = options.capacity_bytes
        self._cool_down_seconds = options.cool_down_seconds
        self._limit_bytes = runtime.options.memory_bytes
        self._queue: deque[_Write] = deque()
        self._work: Work | None = None
        self._filled_bytes = 0
        self._paused_until = float("-inf")
        self._patience = Patience(runtime.now())
        self._patience_ends: asyncio.TimerHandle | None = None
        self._is_impatient = False

    @property
    def is_off(self) -> bool:
        """Whether nothing is written now: the disk is left alone, or was found too full."""
        return self._tier.guard.is_writing_off or self._runtime.now() < self._paused_until

    def filled(self, store: BlockStore, count: int) -> None:
        """So many bytes came into memory: see whether blocks had better be written."""
        self._filled_bytes += count
        if self._filled_bytes >= self._limit_bytes // _LOOK_SHARE and self._work is None:
            self._filled_bytes = 0
            self._write_ahead(store)

    def _write_ahead(self, store: BlockStore) -> None:
        """Begin to write the blocks that would be evicted first."""
        want = self._runtime.budget.used_bytes - self._limit_bytes // _CLEAN_SHARE
        want = min(want, self._capacity_bytes // 2)  # Or blocks would push one another out of the disk for ever.
        if want <= 0 or self.is_off:
            return
        order = list(store.evictable("demand"))
        heapq.heapify(order)
        while want > 0 and order:
            _, _, file, block = heapq.heappop(order)
            want -= block.resident_bytes
            if self._dirty(file, block) is not None and not self.begin(file, block) and not block.stays_off_disk:
                return

    def begin(self, file: BlockFile, block: Block) -> bool:
        """Begin to write a block, if that is of use and there is room among the writes; whether it did."""
        key = self._dirty(file, block)
        most = max(key.data_bytes if key is not None else 0, self._limit_bytes // _WRITING_SHARE)
        if key is None or self.writing_bytes + key.data_bytes > most:
            return False
        cache = self._tier.cache
        if cache.is_full and not self.filter.admits(len(cache)):
            block.stays_off_disk = True
            self._runtime.counters["stream_file_cache_blocks_skipped"] += 1
            return False
        for segment in block.segments:
            segment.become(SegmentState.SPILLING)
        self.writing_bytes += key.data_bytes
        self._queue.append(_Write(file, block, key, is_sample=cache.is_full and self.filter.is_sampling))
        if self._work is None:
            self._work = self._runtime.supervisor.spawn(self._run(), name="write block files", on_end=self._ended)
        return True

    def spare(self, file: BlockFile, block: Block) -> bool:
        """Whether a block that is to leave had better stay a little, because it would be lost: it is written first."""
        if self._dirty(file, block) is None:
            return False
        return self.begin(file, block) or (self.writing_bytes > 0 and not block.stays_off_disk)

    @property
    def is_patient(self) -> bool:
        """Whether reservations may wait for what is being written."""
        return not self._is_impatient and self._patience.left(self._runtime.now()) > 0

    def wait(self) -> None:
        """A reservation waits for what is being written: it is looked at again after that, or without any patience."""
        if self.writing_bytes and self._patience_ends is None:
            now = self._runtime.now()
            self._patience.begin(now)
            self._patience_ends = self._runtime.loop.call_later(self._patience.left(now), self._run_out)

    def _run_out(self) -> None:
        self._is_impatient = True  # Whatever the clock says: a timer may be early by its resolution.
        self._runtime.budget.reconsider()

    def close(self) -> None:
        """Nobody waits any more."""
        self._waited()

    def _waited(self) -> None:
        if self._patience_ends is not None:
            self._patience_ends.cancel()
            self._patience_ends = None
            self._is_impatient = False
            self._patience.end(self._runtime.now())

    def _dirty(self, file: BlockFile, block: Block) -> BlockKey | None:
        if self.is_off or block.stays_off_disk or not is_whole(file, block):
            return None
        key = self._tier.key(file, block.index)
        return None if key is None or key.name in self._tier.cache or key.file_bytes > self._capacity_bytes else key

    async def _run(self) -> None:
        while self._queue:
            write = self._queue.popleft()
            wrote = False
            try:
                wrote = await self._write(write)
            finally:
                self._settle(write, wrote=wrote)
            if not self._queue:
                self._write_ahead(write.file.store)

    async def _write(self, write: _Write) -> bool:
        if self.is_off:
            return False
        cache, counters = self._tier.cache, self._runtime.counters
        evictions = cache.evictions
        try:
            wrote = await self._tier.guard.write(
                partial(
                    cache.put,
                    write.key,
                    [segment.view for segment in write.block.segments],
                    goes_first=write.is_sample,
                )
            )
        except DiskFailed:
            return False
        finally:
            counters["stream_file_cache_eviction"] += cache.evictions - evictions
        if not wrote:
            self._paused_until = self._runtime.now() + self._cool_down_seconds
        return wrote

    def _settle(self, write: _Write, *, wrote: bool) -> None:
        self._waited()
        self.writing_bytes -= write.key.data_bytes
        self._runtime.counters["stream_file_cache_blocks_written"] += wrote
        file, block = write.file, write.block
        if file.blocks.get(block.index) is not block:  # Dropped meanwhile.
            return
        for segment in block.segments:
            segment.become(SegmentState.READY)
        self._relieve(file.store)
        self._runtime.budget.reconsider()

    def _relieve(self, store: BlockStore) -> None:
        """Demand may have overdrawn the memory while it was held by writes: give that back."""
        over = self._runtime.budget.used_bytes - self._limit_bytes
        if over > 0:
            order = list(store.evictable("demand"))
            heapq.heapify(order)
            while over > 0 and order:
                _, _, file, block = heapq.heappop(order)
                if self._dirty(file, block) is None:
                    over -= block.resident_bytes
                    store.evict(file, block)

    def _ended(self) -> None:
        self._work = None
        while self._queue:
            self._settle(self._queue.popleft(), wrote=False)


def is_whole(file: BlockFile, block: Block) -> bool:
    """Whether every byte of a block is there."""
    position, end = file.grid.bounds(block.index)
    for segment in block.segments:
        if segment.start != position or not segment.complete:
            return False
        position = segment.end
    return position == end
