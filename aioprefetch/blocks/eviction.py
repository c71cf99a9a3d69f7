"""Eviction of blocks while memory is short, and the share of it that a miss may take.

Prefetched blocks that readers passed without reading them go first. Then come blocks that were read to their end: the
furthest from a cursor first, and at equal distance the one used longest ago. A block just ahead of a cursor counts as
distance 0, because it is about to be read. Blocks with bytes still to be read go last.

With many blocks in memory it would take too long to put them in order for each reservation. So every part that arrives
joins a queue. A few parts at its front are looked at whenever another one arrives: parts that were read to their end,
or were not read for long, become **spent**. Beyond ``ORDERED_PARTS`` parts the spent ones go in the order of that
queue. The bytes that are spent also tell how much memory is spare, without a look at each block.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from aioprefetch.blocks.block import Block, Segment, SegmentState
from aioprefetch.blocks.fetch import count_eviction
from aioprefetch.blocks.file import BlockFile, FileStore
from aioprefetch.values import Lane

if TYPE_CHECKING:
    from aioprefetch.blocks.write_behind import WriteBehind

# While less than one part in _SPARE_SHARE of the budget is spare, a miss brings less than a block. It never brings less
# than _CELL_BYTES_MIN: below that a request costs more than its bytes.
_SPARE_SHARE = 2
_CELL_BYTES_MIN = 128 << 10

# A miss takes at most one part in _SHARES of the spare memory, or in the number of readers if they are fewer.
_SHARES = 16

# Bytes that stayed unread during _ROUNDS requests for each reader may be evicted like bytes that were read.
_ROUNDS = 4

# Eviction frees at least one part in _RECLAIM_SHARE of the budget, because it has to put the blocks in order first.
_RECLAIM_SHARE = 16

# The most parts of blocks that eviction puts in order.
ORDERED_PARTS = 256

# Parts that are gone leave the queues when memory is needed, or beyond this many parts with as many again as are there.
_PARTS_KEPT = 64

# The parts to look at for each arriving one. Parts that are spent or gone do not count.
_LOOKS = 2
# And those to look at where memory is needed and nothing is spent.
_LOOKS_FOR_SPENT = 32


# A segment by its file and start, because the queue must not keep its memory.
_Arrived = tuple[BlockFile, int]
# A spent part, with the last use of its block before.
_Spent = tuple[BlockFile, int, int]


def _find(file: BlockFile, start: int) -> tuple[Block, Segment] | None:
    """The segment and its block, or ``None`` if it is gone."""
    block = file.blocks.get(start // file.grid.block_bytes)
    segment = None if block is None else block.at(start)
    return None if block is None or segment is None or segment.start != start else (block, segment)


class Eviction:
    """The eviction of a block store. ``writer`` saves blocks to the disk before they go."""

    def __init__(self, store: FileStore) -> None:
        self.writer: WriteBehind | None = None
        self._store = store
        self._runtime = store.runtime
        self._budget = store.runtime.budget
        self._limit_bytes = store.runtime.budget.limit_bytes
        self._active: dict[int, int] = {}  # Readers and the numbers of their last misses, the oldest first.
        self._misses = 0
        self._arrived: deque[_Arrived] = deque()
        self._spent: dict[bool, deque[_Spent]] = {False: deque(), True: deque()}  # By whether they are of a footer.
        self._spent_parts_max = _PARTS_KEPT

    # --- how much a miss brings ---------------------------------------------------------------------------------

    def cell_bytes(self, block_bytes: int, *, opening: int = 0, reader: int | None = None) -> int:
        """The bytes that a miss brings: a block, or while memory is short a half of it, a quarter, and so on.

        The fetched bytes of many readers must fit into memory until they are read. Each reader takes a share of the
        memory that is neither in flight nor still to be read, and so their requests become equally long. A reader
        alone is not limited. No share is larger than the budget divided by the readers that miss: more of them would
        evict each other's bytes before they are read. ``opening`` is the number of objects being opened besides those
        that are open, ``reader`` the identity of the reader whose miss it is.
        """
        budget = self._budget
        free_bytes = self._limit_bytes - budget.used_bytes - budget.queued_bytes
        if free_bytes >= self._limit_bytes // _SPARE_SHARE:
            return block_bytes
        readers = opening + len(self._store.readers)
        if readers <= 1:
            return block_bytes
        self._look(_LOOKS)
        spent_bytes = max(0, self._store.spent_bytes - budget.exports.size_bytes)
        shares = max(self._limit_bytes // _SPARE_SHARE // block_bytes, min(_SHARES, readers))
        fair_bytes = self._limit_bytes // max(1, self._active_readers(reader))
        return cell_of(min((free_bytes + spent_bytes) // shares, fair_bytes), block_bytes)

    def _active_readers(self, reader: int | None) -> int:
        """The number of readers with a miss lately, after one more of ``reader``: idle ones need no share of memory."""
        active = self._active
        if reader is not None:
            self._misses += 1
            active.pop(reader, None)
            active[reader] = self._misses
        oldest = self._misses - _ROUNDS * max(_ROUNDS, len(active))
        while active and next(iter(active.values())) < oldest:
            del active[next(iter(active))]
        return len(active)

    def is_short(self, block_bytes: int) -> bool:
        """Whether memory is too short to fetch ahead, because reads of other readers need it now."""
        return self.cell_bytes(block_bytes) < block_bytes // 2

    # --- streams ------------------------------------------------------------------------------------------------

    def recycle(self, file: BlockFile, stop: int) -> None:
        """Drop the blocks before ``stop`` that were read once and in order, so that the next ones get their memory.

        Reads of one reader may end in another order than they began: blocks that were not read to their end stay, and
        the parts behind the first request that a read waits for. So do blocks that a reader mostly skips: it may come
        back for the rest. The first and the last block of the object stay too, and what lies ahead of a cursor. With a
        cache on disk a block goes after it was written.
        """
        bounds, last = file.grid.bounds, file.grid.index(file.size - 1)
        stop = min(stop, file.passed, file.waited_from)
        for block in tuple(file.blocks.values()):
            is_between = 0 < block.index < last and bounds(block.index)[1] <= stop
            if not is_between or not block.is_evictable or block.is_spilling or block.is_viewed:
                continue
            if not all(segment.was_read_once for segment in block.segments):
                continue
            if self.writer is None or not self.writer.spare(file, block):
                self.evict(file, block)

    # --- the queue ----------------------------------------------------------------------------------------------

    def arrived(self, file: BlockFile, starts: Sequence[int]) -> None:
        """A request has ended that has filled the segments which begin at ``starts``."""
        self._look(_LOOKS * len(starts))
        for start in starts:  # Last: nothing of them was read yet.
            self._arrived.append((file, start))

    def _look(self, looks: int) -> None:
        """Look at the front of the queue for parts that are spent, and pass over at most ``looks`` that are not."""
        arrived = self._arrived
        looks = min(looks, len(arrived))
        fresh_from: int | None = None
        passed: dict[BlockFile, int] = {}
        while arrived and looks:
            file, start = part = arrived.popleft()
            found = _find(file, start)
            if found is None or found[1].is_spent:
                continue
            block, segment = found
            is_unread = segment.pins > 0  # A read is about to take its bytes.
            if not is_unread and segment.next < segment.end:
                if fresh_from is None:
                    fresh_from = self._fresh_from()
                if file not in passed:
                    passed[file] = file.passed
                is_unread = block.touched_fetch >= fresh_from and segment.end > passed[file]
            if is_unread:
                arrived.append(part)
                looks -= 1
                continue
            segment.is_spent = True
            self._store.spent_bytes += len(segment.buffer)
            spent = self._spent[segment.end > file.footer_start]
            spent.append((file, start, block.touched))
            if len(spent) > self._spent_parts_max:
                self._forget_gone()

    def _forget_gone(self) -> None:
        """Forget spent parts that are gone without an eviction: they would keep their files."""
        for is_footer, parts in self._spent.items():
            self._spent[is_footer] = deque(part for part in parts if (found := _find(*part[:2])) and found[1].is_spent)
        self._spent_parts_max = max(_PARTS_KEPT, 2 * max(map(len, self._spent.values())))

    # --- eviction -----------------------------------------------------------------------------------------------

    def reclaim(self, need_bytes: int, lane: Lane) -> None:
        """Evict blocks until ``need_bytes`` are free or no block can go; beyond that only blocks that were read.

        Prefetch does not evict other prefetched blocks that are about to be read.
        """
        writer = self._sparing_writer(lane)
        if len(self._arrived) + sum(map(len, self._spent.values())) > ORDERED_PARTS:
            freed = self._reclaim_in_turn(need_bytes, lane, writer)
        else:
            freed = self._reclaim_in_order(need_bytes, lane, writer)
        if freed < need_bytes and lane == "demand":
            freed += self._end_drains(need_bytes - freed)
        if freed < need_bytes and writer is not None and not self._may_overdraw(lane):
            writer.wait()

    def _end_drains(self, need_bytes: int) -> int:
        """Cancel as many drained responses as needed; returns the bytes freed."""
        budget, drains = self._budget, self._runtime.drains
        used_bytes = budget.used_bytes
        while used_bytes - budget.used_bytes < need_bytes and drains.cancel_one():
            pass
        return used_bytes - budget.used_bytes

    def _reclaim_in_turn(self, need_bytes: int, lane: Lane, writer: WriteBehind | None) -> int:
        """Evict parts in the order of the queue: spent ones, and for demand then by their arrival."""
        freed = self._drop_spent(need_bytes, of_footer=False, writer=writer)
        if freed < need_bytes:
            self._look(_LOOKS_FOR_SPENT)
            freed += self._drop_spent(need_bytes - freed, of_footer=False, writer=writer)
        if freed < need_bytes and lane == "demand":
            freed += self._drop_first(need_bytes - freed, writer)
        if freed < need_bytes:
            freed += self._drop_spent(need_bytes - freed, of_footer=True, writer=writer)
        return freed

    def _reclaim_in_order(self, need_bytes: int, lane: Lane, writer: WriteBehind | None) -> int:
        """Evict whole blocks in the order of their rank, and spent parts before blocks that are still to be read."""
        more_bytes = max(need_bytes, self._limit_bytes // _RECLAIM_SHARE)
        order = self.evictable(lane)
        heapq.heapify(order)
        freed, trimmed = 0, False
        while order and freed < (need_bytes if order[0][0].is_unread else more_bytes):
            if order[0][0].is_unread and not trimmed:
                trimmed = True
                freed += self._trim(more_bytes - freed, of_footer=False)
                continue
            _, _, file, block = heapq.heappop(order)
            if file.blocks.get(block.index) is block and (writer is None or not writer.spare(file, block)):
                freed += block.resident_bytes
                self.evict(file, block)
        if freed < need_bytes and not trimmed:
            freed += self._trim(more_bytes - freed, of_footer=False)
        if freed < need_bytes:
            freed += self._trim(need_bytes - freed, of_footer=True)
        return freed

    def _trim(self, need_bytes: int, *, of_footer: bool) -> int:
        """Free as many spent parts of blocks in use as needed; returns the bytes freed."""
        self._look(len(self._arrived))
        return self._drop_spent(need_bytes, of_footer=of_footer, is_of_several=True)

    def _drop_spent(
        self, need_bytes: int, *, of_footer: bool, writer: WriteBehind | None = None, is_of_several: bool = False
    ) -> int:
        """Evict as many spent parts as needed, in the order in which they became so; returns the bytes freed.

        With ``is_of_several`` only parts of blocks that have others.
        """
        queue = self._spent[of_footer]
        freed = 0
        for _ in range(len(queue)):
            if freed >= need_bytes:
                break
            file, start, touched = part = queue.popleft()
            found = _find(file, start)
            if found is None or not found[1].is_spent:
                continue
            block, segment = found
            is_alone = len(block.segments) == 1
            if is_alone and block.touched > touched:  # It was used again.
                self._renew(file, segment)
            elif (is_alone and is_of_several) or not self._drop(file, block, segment, writer):
                queue.append(part)
            else:
                freed += len(segment.buffer)
        return freed

    def _renew(self, file: BlockFile, segment: Segment) -> None:
        """A spent part was used again: look at it again."""
        segment.is_spent = False
        self._store.spent_bytes -= len(segment.buffer)
        self._arrived.append((file, segment.start))

    def _drop_first(self, need_bytes: int, writer: WriteBehind | None) -> int:
        """Evict parts that are still to be read, in the order of their arrival; returns the bytes freed."""
        arrived = self._arrived
        freed = 0
        for _ in range(len(arrived)):
            if freed >= need_bytes:
                break
            file, start = part = arrived.popleft()
            found = _find(file, start)
            if found is None or found[1].is_spent:
                continue
            if self._drop(file, *found, writer):
                freed += len(found[1].buffer)
            else:
                arrived.append(part)
        return freed

    def _drop(self, file: BlockFile, block: Block, segment: Segment, writer: WriteBehind | None) -> bool:
        """Evict one part, and its block with the last one. Returns whether that frees its memory now."""
        if segment.pins or segment.is_viewed or segment.state is not SegmentState.READY:
            return False
        if len(block.segments) > 1:
            self._evict_segment(file, block, segment)
        elif writer is not None and writer.spare(file, block):
            return False
        else:
            self.evict(file, block)
        file.forget_if_empty()
        return True

    def _evict_segment(self, file: BlockFile, block: Block, segment: Segment) -> None:
        unused = segment.unused_prefetch
        count_eviction(self._runtime, segment)
        self._runtime.events.publish("block.evicted", file.label, start=segment.start, end=segment.end, unused=unused)
        if unused:
            file.evicted_unread_bytes += len(segment.buffer)
        file.drop_segment(block, segment)

    def _sparing_writer(self, lane: Lane) -> WriteBehind | None:
        """The writer that saves blocks before they are evicted, if the lane may wait for it or need not wait."""
        writer = self.writer
        return writer if writer is not None and (not writer.spill_wait_exhausted or self._may_overdraw(lane)) else None

    def _may_overdraw(self, lane: Lane) -> bool:
        """Whether a reservation in this lane is granted although no memory is free."""
        return lane == "demand" and self._budget.used_bytes <= self._limit_bytes

    def evict(self, file: BlockFile, block: Block) -> None:
        """Drop a block because its memory is needed."""
        unused = block.is_unused_prefetch
        count_eviction(self._runtime, block.segments[0])
        start, end = file.grid.bounds(block.index)
        self._runtime.events.publish("block.evicted", file.label, start=start, end=end, unused=unused)
        if unused:
            file.evicted_unread_bytes += block.resident_bytes
        file.drop(block)
        file.forget_if_empty()

    def evictable(self, lane: Lane) -> list[Candidate]:
        """The blocks that may be dropped for a lane, each with its rank; the smallest in a heap of them goes first."""
        fresh_from = self._fresh_from()
        found: list[Candidate] = []
        for file in self._store.files.values():
            if file.blocks:
                self._add_evictable(found, file, fresh_from, is_demand=lane == "demand")
        return found

    def _add_evictable(self, found: list[Candidate], file: BlockFile, fresh_from: int, *, is_demand: bool) -> None:
        """Add the segments of one file, in one pass over its segments: memory that is short is looked through often."""
        block_bytes, size = file.grid.block_bytes, file.size
        cursors: list[int] = []
        passed, is_anywhere = size, False
        for reader in file.open_readers():
            positions = reader.positions
            passed = min(passed, min(positions, default=0))
            is_anywhere = is_anywhere or not positions
            cursors += [position // block_bytes for position in positions]
        ahead_blocks = self._runtime.options.prefetch_blocks
        # Without a footer nothing ends behind it, also if the last block is cut off by the end of the object.
        footer_start = file.footer_start if file.footer_start < size else FAR
        for block in file.blocks.values():
            behind = passed if block.touched_fetch >= fresh_from else size
            is_viewed = is_unread = False
            is_unused = True
            for segment in block.segments:
                end = segment.end
                if segment.pins or segment.filled != end - segment.start or segment.state is SegmentState.SPILLING:
                    break  # It is in use, or being filled, or dropping it would free memory only later.
                is_viewed = is_viewed or (segment.exported is not None and segment.is_viewed)
                is_unused = is_unused and segment.unused_prefetch
                is_unread = is_unread or (segment.next < end and end > behind)
            else:
                away = 0 if is_anywhere else distance(block.index, cursors, ahead_blocks=ahead_blocks)
                is_wasted = is_unused and away > 0
                if is_demand or is_wasted or not is_unused:
                    is_footer = (block.index + 1) * block_bytes > footer_start
                    is_unread = is_unread and not is_wasted
                    rank = Rank(is_viewed, is_footer, not is_wasted, is_unread, -away, block.touched)
                    found.append((rank, len(found), file, block))

    def _fresh_from(self) -> int:
        """The number of the request after which a block must have been read to count as still being read."""
        readers = min(len(self._store.readers), len(self._arrived))
        return self._store.fetches - _ROUNDS * max(_ROUNDS, readers)


def cell_of(share_bytes: int, block_bytes: int) -> int:
    """The part of a block, a half of it, a quarter and so on, that a share holds, unless that is very small. Pure."""
    cell = block_bytes
    while cell > share_bytes and cell // 2 >= _CELL_BYTES_MIN:
        cell //= 2
    return cell


# The distance of blocks in a file that no reader has open: further than any within an open file.
FAR = 1 << 62


def distance(index: int, cursors: Sequence[int], *, ahead_blocks: int) -> int:
    """The number of blocks between ``index`` and the nearest cursor; 0 within ``ahead_blocks`` after a cursor."""
    nearest = FAR
    for cursor in cursors:
        gap = index - cursor
        nearest = min(nearest, 0 if 0 <= gap <= ahead_blocks else abs(gap))
    return nearest


class Rank(NamedTuple):
    """The sort key of a block: the smallest is evicted first. ``touched`` grows with every use.

    A viewed block is evicted last: dropping it frees no memory before the last view is gone. A footer that a policy
    keeps is evicted just before those, since every later reader of the file begins with it.
    """

    is_viewed: bool
    is_footer: bool
    is_not_wasted: bool
    is_unread: bool
    nearness: int  # Minus the number of blocks to the nearest cursor.
    touched: int


# A block and its rank; the number keeps the heap from comparing blocks.
Candidate = tuple[Rank, int, BlockFile, Block]
