"""Writes blocks from memory to the disk, in the background.

Blocks are written before their memory is needed: once half of it is taken, those that would be evicted next. They stay
resident, and when they must go they go without loss. An eviction may wait a little for a block that is not written
yet. When the disk is slower than the store, blocks are dropped unwritten: no disk holds memory back, and the bytes in
writing at once are limited.
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
from aioprefetch.blocks.spill.block_cache import BlockCache, BlockKey
from aioprefetch.blocks.spill.guard import DiskCalls, SpillFailed
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

# Evictions may wait for writes for this time at once, for instance for the first blocks that a disk gets.
SPILL_WAIT_SECONDS_MAX = 0.5
# And for this share of the time in the long run.
SPILL_WAIT_SHARE = 0.05

# While writing does not pay, one block in SAMPLE is written anyway.
SAMPLE = 16
# A round is as many blocks offered as there are files, and at least this many.
ROUND_BLOCKS_MIN = 8
# Writing pays as long as one file is read for every OFFERS_FOR_A_HIT blocks that are offered.
OFFERS_FOR_A_HIT = 4
# How many rounds pass before writing is tried again: the first pause, and the longest.
REST_ROUNDS_MIN, REST_ROUNDS_MAX = 4, 64


# The blocks in memory that may be evicted for a lane: rank, number, file and block; a heap has the next one first.
Evictable = Callable[[Lane], Iterable[tuple[Any, int, Any, Block]]]
Evict = Callable[[Any, Block], None]


class SpillWaitBudget:
    """How long evictions may wait for the disk, in all: a little at once, and a small share of the time. Pure.

    A disk that keeps up with the store costs nothing, and no block is lost to it. A slower one must not slow reads
    down: blocks are dropped unwritten then. Time is that of the caller's clock.
    """

    __slots__ = ("_at", "_seconds", "_waiting_since")

    def __init__(self, now: float) -> None:
        self._seconds = SPILL_WAIT_SECONDS_MAX
        self._at = now
        self._waiting_since: float | None = None

    def left(self, now: float) -> float:
        """The number of seconds left to wait; 0 or less if there is no time left."""
        seconds = min(SPILL_WAIT_SECONDS_MAX, self._seconds + (now - self._at) * SPILL_WAIT_SHARE)
        return seconds if self._waiting_since is None else seconds - (now - self._waiting_since)

    def begin(self, now: float) -> None:
        """A wait begins now, unless one is in progress."""
        if self._waiting_since is None:
            self._seconds, self._at, self._waiting_since = self.left(now), now, now

    def end(self, now: float) -> None:
        """The wait ends now."""
        if self._waiting_since is not None:
            self._seconds, self._at, self._waiting_since = self.left(now), now, None


class WriteFilter:
    """Whether a block is worth a file, now that other files must go for it.

    A scan that goes round and round over more than the disk holds would write every block and evict it before its turn
    comes again: all is written, and none is ever read. So when hardly any file was read in a round of writes, only a
    sample is written from then on. The files that are there stay: the share of the scan that the disk can hold.
    """

    def __init__(self) -> None:
        self.is_sampling = False
        self._offers = 0
        self._hits = 0
        self._rest = 0
        self._rest_rounds = REST_ROUNDS_MIN

    def hit(self) -> None:
        """A file was read."""
        self._hits += 1

    def admits(self, held: int) -> bool:
        """Whether to write one more block beside ``held`` files."""
        if self._offers >= max(ROUND_BLOCKS_MIN, held):
            self._begin_round(is_worth_it=OFFERS_FOR_A_HIT * self._hits >= self._offers)
        self._offers += 1
        return not self.is_sampling or self._offers % SAMPLE == 0

    def _begin_round(self, *, is_worth_it: bool) -> None:
        self._offers = self._hits = 0
        if not self.is_sampling:
            self.is_sampling = not is_worth_it
            self._rest = self._rest_rounds
            self._rest_rounds = REST_ROUNDS_MIN if is_worth_it else min(2 * self._rest_rounds, REST_ROUNDS_MAX)
        elif not is_worth_it:  # The files are of little use, so the block may be of more.
            self._rest -= 1
            self.is_sampling = self._rest > 0


@dataclass(frozen=True, slots=True)
class _Write:
    file: BlockFile
    block: Block
    key: BlockKey
    is_sample: bool


class WriteBehind:
    """The blocks that are being written. Everything here runs on the runtime's loop."""

    def __init__(
        self,
        cache: BlockCache,
        calls: DiskCalls,
        key_of: Callable[[BlockFile, int], BlockKey | None],
        runtime: Runtime,
        options: DiskCache,
    ) -> None:
        self.writing_bytes = 0
        self.filter = WriteFilter()
        self._cache = cache
        self._calls = calls
        self._key_of = key_of
        self._evictable: Evictable = _no_blocks
        self._evict: Evict | None = None
        self._runtime = runtime
        self._capacity_bytes = options.limit_bytes
        self._cool_down_seconds = options.cool_down_seconds
        self._limit_bytes = runtime.options.memory_bytes
        self._queue: deque[_Write] = deque()
        self._work: Work | None = None
        self._filled_bytes = 0
        self._paused_until = float("-inf")
        self._wait_budget = SpillWaitBudget(runtime.now())
        self._wait_ends: asyncio.TimerHandle | None = None
        self._has_waited_too_long = False

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
        if self._filled_bytes >= self._limit_bytes // _LOOK_SHARE and self._work is None:
            self._filled_bytes = 0
            self._write_ahead()

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
        cache = self._cache
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

    def close(self) -> None:
        """End the wait."""
        self._waited()

    def _waited(self) -> None:
        if self._wait_ends is not None:
            self._wait_ends.cancel()
            self._wait_ends = None
            self._has_waited_too_long = False
            self._wait_budget.end(self._runtime.now())

    def _dirty(self, file: BlockFile, block: Block) -> BlockKey | None:
        if self.is_off or block.stays_off_disk or not is_whole(file, block):
            return None
        key = self._key_of(file, block.index)
        return None if key is None or key.name in self._cache or key.file_bytes > self._capacity_bytes else key

    async def _run(self) -> None:
        while self._queue:
            write = self._queue.popleft()
            wrote = False
            try:
                wrote = await self._write(write)
            finally:
                self._settle(write, wrote=wrote)
            if not self._queue:
                self._write_ahead()

    async def _write(self, write: _Write) -> bool:
        if self.is_off:
            return False
        cache, counters = self._cache, self._runtime.counters
        evictions = cache.evictions
        try:
            wrote = await self._calls.write(
                partial(
                    cache.put,
                    write.key,
                    [segment.view for segment in write.block.segments],
                    goes_first=write.is_sample,
                )
            )
        except SpillFailed:
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
