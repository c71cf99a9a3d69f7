"""What is resident of one version of one object, and what is on its way.

Everything runs on the runtime's loop except ``find``, ``find_prefix`` and what they call, which only read and may be
called from any thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from aioprefetch.blocks.accounting import count_first_read, count_ready, settle
from aioprefetch.blocks.block import Block, Segment, SegmentState
from aioprefetch.blocks.fetch import Fetch, FetchCall, FetchStarter, Wait
from aioprefetch.ranges import BlockGrid, Range, subtract
from aioprefetch.runtime.statistics import Account
from aioprefetch.values import Lane, ReadHead

# A view of less than this share of the memory it would keep is a copy instead.
_VIEW_SHARE = 8

# Version id, ETag; and where neither tells anything, something that equals nothing else.
Version = tuple[str | None, str | None] | tuple[None, None, object]


class ReaderPosition:
    """Where a reader stands in a file, for eviction.

    Its ``position`` in bytes (``None`` while it only reads at offsets), and the positions of its ``runs``.
    """

    __slots__ = ("__weakref__", "position", "runs")

    def __init__(self) -> None:
        self.position: int | None = None
        self.runs: tuple[int, ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """The cursor and the runs; an empty tuple means that the reader may be anywhere."""
        return self.runs if self.position is None else (self.position, *self.runs)


@dataclass(slots=True)
class Survey:
    """One look at a range: every byte of a read before ``resident_end`` is resident.

    ``gaps`` are the parts of ``[start, end)`` that are neither resident nor on their way.
    """

    start: int
    end: int
    resident_end: int
    gaps: list[Range]

    def missing_in(self, start: int, end: int) -> list[Range] | None:
        """The gaps within ``[start, end)``; ``None`` if it leaves the range that was looked at."""
        if (start, end) == (self.start, self.end):
            return self.gaps
        if start < self.start or end > self.end:
            return None
        return [(max(low, start), min(high, end)) for low, high in self.gaps if low < end and start < high]


@dataclass(frozen=True, slots=True)
class Residency:
    """What memory holds of one version of an object: a probe for tests and tools, true for the moment it was made.

    ``ranges`` are resident, in order, neighbours joined; ``requested`` are on their way. ``blocks`` are the numbers of
    the blocks of ``block_bytes`` that hold any of it.
    """

    etag: str | None
    size: int
    block_bytes: int
    blocks: frozenset[int]
    ranges: tuple[Range, ...]
    requested: tuple[Range, ...]


class BlockFile:
    """The blocks and requests of one version of one object of ``size`` bytes.

    ``divide`` cuts gaps where blocks on the disk and others meet, ``forget`` takes an empty file out of the store.
    """

    def __init__(
        self,
        store: FetchStarter,
        name: Hashable,
        version: Version,
        *,
        size: int,
        block_bytes: int,
        forget: Callable[[BlockFile], None],
        divide: Callable[[BlockFile, list[Range]], list[Range]] | None = None,
    ) -> None:
        self._store = store
        self._runtime = store.runtime
        self._forget = forget
        self._divide = divide
        # The store's key for this file. It stays, also where the size turns out to be another.
        self.key = (name, version, size, block_bytes)
        self.name = name
        self.version = version
        self.label = ""
        self.size = size
        self.grid = BlockGrid(size, block_bytes)
        self.blocks: dict[int, Block] = {}
        self.fetches: list[Fetch] = []
        self.evicted_unread_bytes = 0
        self.footer_start = size  # Blocks from here on are kept as long as anything can be.
        # Weakly, so that a reader that was dropped without closing does not keep the file open.
        self.readers: weakref.WeakSet[ReaderPosition] = weakref.WeakSet()

    def find(self, start: int, end: int) -> Segment | None:
        """The one segment that holds all of ``[start, end)`` now, or ``None``; this is a read of it. Any thread."""
        block = self.blocks.get(start // self.grid.block_bytes)
        if block is None:
            return None
        segments = block.segments  # As ``Block.at`` does, whose call would cost a hit as much as the looking.
        segment = segments[0] if len(segments) == 1 else block.at(start)
        if segment is None or start < segment.start or segment.start + segment.filled < end:
            return None
        store = self._store
        store.tick += 1
        block.touched = store.tick
        block.touched_fetch = store.fetches
        # A skip shorter than the read itself does not end a run; the first read of a prefetched segment always counts
        # as one, so that the reader hears of it.
        if 0 <= start - segment.next <= end - start or segment.unused_prefetch:
            segment.run_bytes += end - start
            if segment.unused_prefetch:
                count_first_read(self._runtime, segment)
        else:
            segment.run_bytes = 0
        segment.next = end
        return segment

    def holds(self, start: int, end: int) -> bool:
        """Whether every byte of ``[start, end)`` is resident; this counts as no use of it."""
        while start < end:
            segment = self.at(start)
            if segment is None:
                return False
            start = segment.start + segment.filled
        return True

    def find_pieces(self, start: int, end: int) -> list[memoryview] | None:
        """Pieces of memory that together are ``[start, end)``, or ``None`` when a byte is missing. Any thread."""
        pieces = self.find_prefix(start, end)
        return pieces if sum(map(len, pieces)) == end - start else None

    def find_prefix(self, start: int, end: int) -> list[memoryview]:
        """Pieces of memory from ``start`` on, as far towards ``end`` as no byte is missing. From any thread."""
        pieces: list[memoryview] = []
        while start < end:
            segment = self.at(start)
            if segment is None:
                break
            stop = min(end, segment.start + segment.filled)
            self.find(start, stop)
            pieces.append(segment.view[start - segment.start : stop - segment.start])
            start = stop
        return pieces

    def at(self, position: int) -> Segment | None:
        """The segment that holds the byte at ``position``; this counts as no use of it."""
        block = self.blocks.get(position // self.grid.block_bytes)
        segment = None if block is None else block.at(position)
        return segment if segment is not None and position < segment.start + segment.filled else None

    def end_of_hits(self, position: int, *, is_random: bool) -> int:
        """How far reads have come in resident bytes that continue a read which ended at ``position``.

        Under random access a read further on continues nothing, unless half of the way to it was read in order.
        """
        while True:
            segment = self.at(max(0, position - 1))
            if segment is not None and segment.end == position:
                segment = self.at(position)
            if segment is None or segment.next <= position:
                return position
            in_order = 2 * segment.run_bytes >= segment.next - max(position, segment.start)
            if is_random and not in_order and segment.next < segment.end:
                return position
            position = segment.next

    def view(self, segment: Segment, start: int, end: int) -> memoryview:
        """``[start, end)`` of a segment for somebody outside, read-only. From any thread.

        On the segment itself, whose memory stays accounted until the last slice of the view is gone; or a copy, which
        is not accounted, where it is small against the segment or views hold more than half of the budget already.
        """
        is_small = (end - start) * _VIEW_SHARE < len(segment.buffer)
        if is_small or self._runtime.budget.is_mostly_viewed:
            return memoryview(bytes(segment.view[start - segment.start : end - segment.start]))
        return segment.export(start, end)

    def missing(self, start: int, end: int) -> list[Range]:
        """What of ``[start, end)`` is neither resident nor on its way, cut where what is on the disk begins or ends."""
        present: list[Range] = []
        for index in self.grid.indices(start, end):
            block = self.blocks.get(index)
            if block is not None:
                present += block.bounds(start, end)
        present += [(fetch.start, fetch.end) for fetch in self.fetches if fetch.head is None]
        gaps = subtract((start, end), sorted(present))
        return gaps if self._divide is None or not gaps else self._divide(self, gaps)

    def survey(self, start: int, end: int, low: int, high: int) -> Survey:
        """A read of ``[start, end)``: how far it is resident, and unless all of it is, the gaps of ``[low, high)``."""
        position = start
        while position < end:
            segment = self.at(position)
            if segment is None:
                return Survey(low, high, position, self.missing(low, high))
            position = segment.start + segment.filled
        return Survey(start, start, end, [])

    def resident_ranges(self) -> list[Range]:
        """The ranges that are resident, in order, neighbours joined."""
        ranges: list[Range] = []
        for index in sorted(self.blocks):
            for segment in self.blocks[index].segments:
                start, end = segment.start, segment.start + segment.filled
                if start == end:
                    continue
                if ranges and ranges[-1][1] == start:
                    start = ranges.pop()[0]
                ranges.append((start, end))
        return ranges

    def residency(self) -> Residency:
        """What is resident and on its way now."""
        etag = self.version[1]
        return Residency(
            etag=etag if isinstance(etag, str) else None,
            size=self.size,
            block_bytes=self.grid.block_bytes,
            blocks=frozenset(self.blocks),
            ranges=tuple(self.resident_ranges()),
            requested=tuple(sorted((fetch.start, fetch.end) for fetch in self.fetches)),
        )

    def start_fetch(
        self,
        start: int,
        end: int,
        call: FetchCall,
        *,
        lane: Lane,
        check: Callable[[ReadHead], None] | None = None,
        owner: object = None,
        account: Account | None = None,
    ) -> Fetch:
        """Start a request for ``[start, end)``, none of which may be resident or on its way.

        ``check`` sees the head of the response before anything is placed, and raises if it is of another object.
        ``owner`` may break it off by ``cancel_prefetches``. What it does counts for ``account``.
        """

        def file_of(head: ReadHead) -> BlockFile:
            if check is not None:
                check(head)
            return self

        fetch = self._store.start_fetch(
            start, end, call, file_of, file=self, lane=lane, label=self.label, account=account
        )
        fetch.owner = owner
        self.fetches.append(fetch)
        return fetch

    def cancel_prefetches(self, owner: object, start: int, end: int, *, keep: Range = (0, 0)) -> None:
        """Break off what ``owner`` fetches ahead in ``[start, end)``, but for what touches ``keep`` or is awaited."""
        for fetch in tuple(self.fetches):
            theirs = fetch.owner is owner and fetch.prefetched and not fetch.has_waiters
            far = fetch.end <= keep[0] or fetch.start >= keep[1]
            if theirs and far and start < fetch.end and fetch.start < end:
                fetch.give_up()

    def join(self, start: int, end: int) -> list[Wait]:
        """Join every fetch that will bring a byte of ``[start, end)``, in order; the caller closes the waits."""
        joined = [fetch for fetch in self.fetches if fetch.start < end and start < fetch.end and not fetch.is_past(end)]
        joined.sort(key=lambda fetch: fetch.start)
        return [fetch.join(min(end, fetch.end)) for fetch in joined]

    def place(self, fetch: Fetch, head: ReadHead) -> None:
        """Make the segments that the response fills: those parts of it that are not resident already."""
        for index in self.grid.indices(head.start, head.end):
            block = self.blocks.get(index)
            if block is None:
                block = self.blocks[index] = Block(index)
            low, high = self.grid.bounds(index)
            wanted = (max(low, head.start), min(high, head.end))
            for start, end in subtract(wanted, block.bounds(*wanted)):
                block.add(fetch.new_segment(start, end))
            store = self._store
            store.tick += 1
            block.touched = store.tick
            block.touched_fetch = store.fetches

    def settle(self, fetch: Fetch) -> None:
        """A fetch ended: segments it did not finish keep their beginning or go."""
        if fetch in self.fetches:
            self.fetches.remove(fetch)
        for segment in fetch.segments:
            if segment.complete:
                continue
            if segment.filled:
                segment.keep_prefix()
                segment.become(SegmentState.READY)
                count_ready(self._runtime, segment)
                continue
            segment.become(SegmentState.EVICTED)
            block = self.blocks.get(self.grid.index(segment.start))
            if block is not None:
                block.discard(segment)
                if not block.segments:
                    del self.blocks[block.index]

    def drop(self, block: Block) -> None:
        """Evict a block; its memory comes back as soon as nobody views it."""
        self.blocks.pop(block.index, None)
        for segment in block.segments:
            settle(self._runtime, segment)
            segment.become(SegmentState.EVICTED)

    @property
    def passed(self) -> int:
        """Every reader that has the file open stands at this position or behind it; the end where there is none."""
        readers = [reader.positions for reader in self.readers]
        return min((min(positions, default=0) for positions in readers), default=self.size)

    def spent_bytes(self, fresh_from: int) -> int:
        """The memory of what was read to its end, or passed, or was last read before ``fresh_from``."""
        passed, total = self.passed, 0
        for block in self.blocks.values():
            limit = passed if block.touched_fetch >= fresh_from else self.size
            total += sum(len(segment.buffer) for segment in block.segments if segment.is_spent(limit))
        return total

    def spent_segments(self, *, of_footer: bool) -> list[tuple[Block, Segment]]:
        """What was read to its end, or passed, of blocks in several segments; within the kept footer, or before it.

        A block in one segment is evicted as a whole, in its turn.
        """
        passed = self.passed
        return [
            (block, segment)
            for block in self.blocks.values()
            if len(block.segments) > 1
            for segment in block.segments
            if (segment.end > self.footer_start) == of_footer and segment.is_spent(passed)
        ]

    def drop_segment(self, block: Block, segment: Segment) -> None:
        """Evict a part of a block; its memory comes back as soon as nobody views it."""
        block.discard(segment)
        settle(self._runtime, segment)
        segment.become(SegmentState.EVICTED)
        if not block.segments:
            self.blocks.pop(block.index, None)

    def forget(self) -> None:
        """Drop every block: nobody will find this file again."""
        self.clear()
        self.forget_if_empty()

    def forget_if_empty(self) -> None:
        """Leave the store if nothing is resident, on its way or open."""
        if not (self.blocks or self.readers or self.fetches):
            self._forget(self)

    def unbuffer_if_alone(self) -> None:
        """Drop blocks and requests that nobody waits for, unless several readers have the file open."""
        if len(self.readers) != 1:
            return
        for fetch in tuple(self.fetches):
            if not fetch.has_waiters:
                fetch.cancel()
        for block in tuple(self.blocks.values()):
            if block.is_evictable:
                self.drop(block)

    def clear(self) -> None:
        """Drop every block, although somebody may still be using it."""
        for block in self.blocks.values():
            for segment in block.segments:
                settle(self._runtime, segment)
        self.blocks.clear()

    def settle_for(self, account: Account) -> None:
        """The reader of an account will read no more: what was fetched ahead for it and is unread was in vain."""
        if not account.counters["stream_read_prefetch_operations"]:
            return
        for block in self.blocks.values():
            for segment in block.segments:
                if segment.account is account.reference and segment.state is not SegmentState.FILLING:
                    settle(self._runtime, segment)

    def shorten(self, size: int) -> None:
        """The object ends before the size that a caller declared: at ``size``."""
        self.size = size
        self.grid = BlockGrid(size, self.grid.block_bytes)
        self.footer_start = min(self.footer_start, size)

    def open(self, reader: ReaderPosition) -> None:
        """A reader opened this file."""
        self.readers.add(reader)

    def close(self, reader: ReaderPosition) -> None:
        """A reader closed it. With the last one, requests that nobody waits for are broken off; blocks stay."""
        self.readers.discard(reader)
        if not self.readers:
            for fetch in tuple(self.fetches):
                if not fetch.has_waiters:
                    fetch.give_up()
            self.forget_if_empty()
