"""The resident blocks of one version of one object, and the requests for more of it.

Everything runs on the runtime's loop except the methods marked "any thread", which only read.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Protocol

from aioprefetch.accessor.counted_requests import latest_change
from aioprefetch.blocks.block import Block, Segment, SegmentState
from aioprefetch.blocks.fetch import Fetch, FetchSource, Wait, count_first_read, count_ready, settle
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import BlockGrid, Range, subtract
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Account
from aioprefetch.values import Lane, ReadHead

# A view of less than one part in _VIEW_SHARE of the memory it would keep alive is a copy instead.
_VIEW_SHARE = 8

# Version id and ETag; without a strong version, two times ``None`` and an object that equals no other.
Version = tuple[str | None, str | None] | tuple[None, None, object]


class ReaderPosition:
    """The position of a reader in a file, for eviction.

    Its ``position`` in bytes (``None`` while it only reads at offsets), and the positions of its ``runs``.
    ``keeps_behind``: the blocks behind its runs stay, because it went back once, or because the caller asked for it.
    ``waits`` counts its waiting reads: such a read is not past the bytes that it waits for. ``reference``
    stands for it while it has a file open.
    """

    __slots__ = ("__weakref__", "keeps_behind", "position", "reference", "runs", "waits")

    def __init__(self) -> None:
        self.keeps_behind = False
        self.position: int | None = None
        self.runs: tuple[int, ...] = ()
        self.waits: set[Wait] = set()
        self.reference: weakref.ref[ReaderPosition] | None = None

    @property
    def positions(self) -> tuple[int, ...]:
        """The cursor and the runs; an empty tuple means that the reader may be anywhere."""
        return self.runs if self.position is None else (self.position, *self.runs)


@dataclass(slots=True)
class Survey:
    """The state of a range at one moment: every byte of a read before ``resident_end`` is resident.

    ``gaps`` are the parts of ``[start, end)`` that are neither resident nor in flight; ``fetches`` are the requests in
    flight that bring bytes of it.
    """

    start: int
    end: int
    resident_end: int
    gaps: list[Range]
    fetches: list[Fetch]

    def missing_in(self, start: int, end: int) -> list[Range] | None:
        """The gaps within ``[start, end)``; ``None`` if it leaves the range that was looked at."""
        if (start, end) == (self.start, self.end):
            return self.gaps
        if start < self.start or end > self.end:
            return None
        return [(max(low, start), min(high, end)) for low, high in self.gaps if low < end and start < high]


@dataclass(frozen=True, slots=True)
class Residency:
    """The resident bytes of one version of an object at one moment: a probe for tests and tools.

    ``ranges`` are resident, in order, neighbours joined; ``requested`` are in flight. ``unread`` were prefetched, and
    no byte of their pieces of memory was read yet. ``blocks`` are the numbers of the blocks of ``block_bytes`` that
    hold any of it.
    """

    etag: str | None
    size: int
    block_bytes: int
    blocks: frozenset[int]
    ranges: tuple[Range, ...]
    requested: tuple[Range, ...]
    unread: tuple[Range, ...]


class FileStore(Protocol):
    """The part of a block store that its files and their eviction use.

    ``readers`` have a file open, ``tick`` counts uses of blocks, ``fetches`` counts requests. ``spent_bytes`` is the
    memory of the segments that are ``is_spent``.
    """

    runtime: Runtime
    files: dict[Hashable, BlockFile]
    keeps_fetched: bool
    readers: set[weakref.ref[ReaderPosition]]
    tick: int
    fetches: int
    spent_bytes: int

    def start(self, fetch: Fetch) -> None:
        """Start a request."""

    def abandon(self, fetch: Fetch) -> None:
        """End a fetch that was cancelled."""

    def filled(self, segment: Segment) -> None:
        """The last byte of a segment has arrived."""

    def keep(self, fetch: Fetch, segment: Segment) -> None:
        """A segment is complete: write its block to the disk if all of that is there."""

    def opened(self, fetch: Fetch) -> None:
        """The response of a fetch has named the file that it fills."""

    def forget(self, file: BlockFile) -> None:
        """An empty file leaves the store."""

    def arrived(self, file: BlockFile, starts: list[int]) -> None:
        """A request has ended that has filled the segments which begin at ``starts``."""


class BlockFile:
    """The blocks and requests of one version of one object of ``size`` bytes.

    ``divide`` cuts gaps where blocks on the disk and others meet.
    """

    def __init__(
        self,
        store: FileStore,
        name: Hashable,
        version: Version,
        *,
        size: int,
        block_bytes: int,
        divide: Callable[[BlockFile, list[Range]], list[Range]] | None = None,
    ) -> None:
        self._store = store
        self._runtime = store.runtime
        self._divide = divide
        # The store's key for this file. It is kept even if the size turns out to be another.
        self.key = (name, version, size, block_bytes)
        self.name = name
        self.version = version
        self.label = ""
        self.on_disk: object = None  # What the disk tier knows of it.
        self.size = size
        self.grid = BlockGrid(size, block_bytes)
        self.blocks: dict[int, Block] = {}
        self.fetches: list[Fetch] = []  # In the order of their starts,
        self._fetch_starts: tuple[int, ...] = ()  # which are these.
        self._fetch_bytes_max = 0
        self.facts: tuple[float, object] | None = None
        self.head: ReadHead | None = None  # Of the first response of this version.
        self.evicted_unread_bytes = 0
        self.footer_start = size  # Blocks from here on are evicted last.
        # Weakly, so that a reader that was dropped without closing does not keep the file open. A dictionary, because
        # an empty one is small: most files that are held are open nowhere.
        self.readers: dict[weakref.ref[ReaderPosition], None] = {}

    @property
    def has_facts(self) -> bool:
        """Whether a reader may begin with size and version: for the time in ``facts``, if nothing was changed since."""
        until, change = self.facts or (0.0, None)
        return change is latest_change() and self._runtime.loop.time() < until and self.version[1] is not None

    def find(self, start: int, end: int) -> Segment | None:
        """The segment that holds all of ``[start, end)``, else ``None``. Counts as a read of it. Any thread."""
        block = self.blocks.get(start // self.grid.block_bytes)
        if block is None:
            return None
        segments = block.segments  # As in ``Block.at``, whose call would cost a hit as much as the look-up.
        segment = segments[0] if len(segments) == 1 else block.at(start)
        if segment is None or start < segment.start or segment.start + segment.filled < end:
            return None
        store = self._store
        store.tick += 1
        block.touched = store.tick
        block.touched_fetch = store.fetches
        # A skip shorter than the read itself does not end a run. The first read of a prefetched segment always counts
        # as a run, so that the reader's windows are notified.
        skip = start - segment.next
        if 0 <= skip <= end - start or segment.unused_prefetch:
            segment.run_bytes += end - start
            if segment.unused_prefetch:
                count_first_read(self._runtime, segment)
        else:
            segment.run_bytes = 0
            if skip < 0:
                segment.is_reread = True
        segment.next = end
        return segment

    @property
    def is_whole(self) -> bool:
        """Whether one segment holds all of the object."""
        block = self.blocks.get(0)
        return block is not None and len(block.segments) == 1 and block.segments[0].filled == self.size

    def holds(self, start: int, end: int) -> bool:
        """Whether every byte of ``[start, end)`` is resident. Counts as no use."""
        while start < end:
            segment = self.at(start)
            if segment is None:
                return False
            start = segment.start + segment.filled
        return True

    def find_pieces(self, start: int, end: int) -> list[memoryview] | None:
        """``[start, end)`` in pieces of memory, or ``None`` if a byte is missing. Any thread."""
        pieces = self.find_prefix(start, end)
        return pieces if sum(map(len, pieces)) == end - start else None

    def find_prefix(self, start: int, end: int) -> list[memoryview]:
        """The bytes from ``start`` towards ``end`` in pieces of memory, up to the first missing byte. Any thread."""
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
        """The segment that holds the byte at ``position``. Counts as no use."""
        block = self.blocks.get(position // self.grid.block_bytes)
        segment = None if block is None else block.at(position)
        return segment if segment is not None and position < segment.start + segment.filled else None

    def end_of_hits(self, position: int, *, is_random: bool) -> int:
        """The end of the hits in resident bytes that continue a read which ended at ``position``.

        Under random access a read further on continues nothing, unless half of the way to it was read in order.
        """
        while True:
            segment = self.at(position)
            if segment is None or segment.next <= position:
                return position
            in_order = 2 * segment.run_bytes >= segment.next - max(position, segment.start)
            if is_random and not in_order and segment.next < segment.end:
                return position
            position = segment.next

    def view(self, segment: Segment, start: int, end: int) -> memoryview:
        """``[start, end)`` of a segment as a read-only view for a caller. Any thread.

        It lies on the segment itself, whose memory stays accounted until the last slice of the view is gone. It is a
        copy, which is not accounted, if it is small against the segment or if views hold half of the budget already.
        """
        is_small = (end - start) * _VIEW_SHARE < len(segment.buffer)
        if is_small or self._runtime.budget.is_mostly_viewed:
            return memoryview(bytes(segment.view[start - segment.start : end - segment.start]))
        return segment.export(start, end)

    def missing(self, start: int, end: int, fetches: list[Fetch] | None = None) -> list[Range]:
        """The parts of ``[start, end)`` neither resident nor in flight, cut where blocks on the disk end.

        ``fetches`` are the requests for bytes of this range, if they are known already.
        """
        present: list[Range] = []
        block_bytes = self.grid.block_bytes
        for index in range(start // block_bytes, -(-end // block_bytes)):
            block = self.blocks.get(index)
            if block is not None:
                present += block.bounds(start, end)
        for fetch in self.in_flight(start, end) if fetches is None else fetches:
            if fetch.head is None:
                present.append((fetch.start, fetch.end))
        whole = [(start, end)] if start < end else []
        gaps = subtract((start, end), sorted(present)) if present else whole
        return gaps if self._divide is None or not gaps else self._divide(self, gaps)

    def in_flight(self, start: int, end: int) -> list[Fetch]:
        """The requests for bytes of ``[start, end)`` that have not ended, in the order of their starts."""
        starts = self._fetch_starts
        if not starts:
            return []
        low = bisect_left(starts, start - self._fetch_bytes_max)
        high = bisect_left(starts, end, low)
        return [fetch for fetch in self.fetches[low:high] if fetch.end > start] if low < high else []

    def survey(self, start: int, end: int, low: int, high: int) -> Survey:
        """The end of the resident part of ``[start, end)`` and, if that is not all, the gaps of ``[low, high)``."""
        position = start
        while position < end:
            segment = self.at(position)
            if segment is None:
                fetches = self.in_flight(low, high)
                return Survey(low, high, position, self.missing(low, high, fetches), fetches)
            position = segment.start + segment.filled
        return Survey(start, start, end, [], [])

    def has_near(self, start: int, end: int) -> bool:
        """Whether a byte of ``[start, end)``, a short range, is resident or arriving. Counts as no use."""
        block_bytes = self.grid.block_bytes
        for index in range(start // block_bytes, (end - 1) // block_bytes + 1):
            block = self.blocks.get(index)
            segment = None if block is None else block.at(end - 1)
            if segment is not None and segment.end > start:
                return True
        return False

    def resident_ranges(self) -> list[Range]:
        """The ranges that are resident, in order, neighbours joined. Any thread."""
        ranges: list[Range] = []
        for _, block in sorted(self.blocks.copy().items()):
            for segment in block.segments:
                start, end = segment.start, segment.start + segment.filled
                if start == end:
                    continue
                if ranges and ranges[-1][1] == start:
                    start = ranges.pop()[0]
                ranges.append((start, end))
        return ranges

    @property
    def bytes_in_cache(self) -> int:
        """The bytes that are resident in blocks, or reserved for requests in flight. From any thread."""
        resident = sum(block.resident_bytes for block in list(self.blocks.values()))
        return resident + sum(fetch.reserved_bytes for fetch in tuple(self.fetches))

    def residency(self) -> Residency:
        """The resident and the requested bytes now. Any thread."""
        etag = self.version[1]
        return Residency(
            etag=etag if isinstance(etag, str) else None,
            size=self.size,
            block_bytes=self.grid.block_bytes,
            blocks=frozenset(self.blocks),
            ranges=tuple(self.resident_ranges()),
            requested=tuple(sorted((fetch.start, fetch.end) for fetch in tuple(self.fetches))),
            unread=tuple(
                sorted(
                    (segment.start, segment.start + segment.filled)
                    for block in list(self.blocks.values())
                    for segment in block.segments
                    if segment.unused_prefetch and segment.filled
                )
            ),
        )

    def start_fetch(
        self, start: int, end: int, source: FetchSource, *, lane: Lane, account: Account | None = None
    ) -> Fetch:
        """Start a request for ``[start, end)``; no byte of it may be resident or in flight.

        ``source`` sends it, may cancel it by ``cancel_prefetches``, and checks its response. It is counted for
        ``account``.
        """
        store = self._store
        fetch = Fetch(store, source, start, end, lane=lane, label=self.label, account=account)
        fetch.file = self
        self.add(fetch)
        store.start(fetch)
        return fetch

    def divide_fetch(self, fetch: Fetch, stop: int) -> None:
        """End a request that was not sent yet at ``stop``, and start another one for the rest."""
        end = fetch.end
        fetch.shorten(stop)
        self.start_fetch(stop, end, fetch.source, lane=fetch.lane, account=fetch.account)

    def add(self, fetch: Fetch) -> None:
        """A fetch brings bytes of this file."""
        start, starts = fetch.start, self._fetch_starts
        if fetch.end - start > self._fetch_bytes_max:
            self._fetch_bytes_max = fetch.end - start
        index = bisect_left(starts, start)
        self._fetch_starts = (*starts[:index], start, *starts[index:])
        self.fetches.insert(index, fetch)

    def cancel_prefetches(self, source: FetchSource, start: int, end: int, *, keep: Range = (0, 0)) -> None:
        """Cancel the prefetches of ``source`` in ``[start, end)`` that no read awaits, except within ``keep``."""
        for fetch in tuple(self.fetches):
            theirs = fetch.source is source and fetch.prefetched and not fetch.has_waiters
            far = fetch.end <= keep[0] or fetch.start >= keep[1]
            if theirs and far and start < fetch.end and fetch.start < end:
                fetch.give_up()

    def place(self, fetch: Fetch, head: ReadHead) -> None:
        """Make the segments that a response fills: the parts of its range that are not resident."""
        store, blocks = self._store, self.blocks
        block_bytes = self.grid.block_bytes
        position, stop = head.start, head.start + head.size
        while position < stop:
            index = position // block_bytes
            block = blocks.get(index) or Block(index)
            high = min((index + 1) * block_bytes, stop)
            present = block.bounds(position, high) if block.segments else None
            for start, end in subtract((position, high), present) if present else ((position, high),):
                block.add(fetch.new_segment(start, end))
                blocks[index] = block  # Now, since no block is empty, also if there is no memory for the segment.
            store.tick += 1
            block.touched = store.tick
            block.touched_fetch = store.fetches
            position = high

    def settle(self, fetch: Fetch) -> None:
        """End a fetch: unfinished segments keep the bytes that arrived, and empty ones go."""
        fetches, starts = self.fetches, self._fetch_starts
        if fetch in fetches:
            index = fetches.index(fetch)
            del fetches[index]
            self._fetch_starts = starts[:index] + starts[index + 1 :]
        arrived: list[int] = []
        for segment in fetch.segments:
            if segment.filled == segment.end - segment.start:  # As ``Segment.complete``.
                arrived.append(segment.start)
                continue
            if segment.filled:
                segment.keep_prefix()
                segment.become(SegmentState.READY)
                count_ready(self._runtime, segment)
                arrived.append(segment.start)
                continue
            segment.become(SegmentState.EVICTED)
            block = self.blocks.get(self.grid.index(segment.start))
            if block is not None:
                block.discard(segment)
                if not block.segments:
                    del self.blocks[block.index]
        if arrived:
            self._store.arrived(self, arrived)

    def drop(self, block: Block) -> None:
        """Evict a block; its memory is released with its last view."""
        self.blocks.pop(block.index, None)
        for segment in block.segments:
            self._release(segment)
            segment.become(SegmentState.EVICTED)

    def _release(self, segment: Segment) -> None:
        """Count a segment as gone."""
        settle(self._runtime, segment)
        if segment.is_spent:
            segment.is_spent = False
            self._store.spent_bytes -= len(segment.buffer)

    @property
    def passed(self) -> int:
        """The position that every reader of the file has passed; the end of the file if no reader has it open."""
        return min((min(reader.positions, default=0) for reader in self.open_readers()), default=self.size)

    @property
    def waited_from(self) -> int:
        """The start of the first request that a read waits for; the end of the file if no read waits."""
        waits = (wait for reader in self.open_readers() for wait in reader.waits)
        return min((wait.fetch.start for wait in waits), default=self.size)

    def drop_segment(self, block: Block, segment: Segment) -> None:
        """Evict one segment of a block; its memory is released with its last view."""
        block.discard(segment)
        self._release(segment)
        segment.become(SegmentState.EVICTED)
        if not block.segments:
            self.blocks.pop(block.index, None)

    def forget(self) -> None:
        """Drop every block, because no later reader can find this file."""
        self.clear()
        self.forget_if_empty()

    def forget_if_empty(self) -> None:
        """Leave the store if nothing is resident, in flight or open."""
        if not (self.blocks or self.fetches or self.readers):
            self._store.forget(self)

    def unbuffer_if_alone(self) -> None:
        """Drop blocks and requests that no read needs now, unless several readers have the file open."""
        if len(self.readers) != 1:
            return
        for fetch in tuple(self.fetches):
            if not fetch.has_waiters:
                fetch.cancel()
        for block in tuple(self.blocks.values()):
            if block.is_evictable:
                self.drop(block)

    def clear(self) -> None:
        """Drop every block, even those in use. Views stay valid."""
        for block in self.blocks.values():
            for segment in block.segments:
                self._release(segment)
        self.blocks.clear()

    def settle_for(self, account: Account) -> None:
        """The reader of an account was closed: count bytes that were prefetched for it and never read as wasted."""
        if not account.counters["stream_read_prefetch_operations"]:
            return
        for block in self.blocks.values():
            for segment in block.segments:
                if segment.account is account.reference and segment.state is not SegmentState.FILLING:
                    settle(self._runtime, segment)

    def shorten(self, size: int) -> None:
        """The object turned out to end at ``size``, before the size that a caller declared."""
        self.size = size
        self.grid = BlockGrid(size, self.grid.block_bytes)
        self.footer_start = min(self.footer_start, size)

    def open(self, reader: ReaderPosition) -> None:
        """Register a reader."""
        reader.reference = reference = weakref.ref(reader, self._dropped)
        self._store.readers.add(reference)
        self.readers[reference] = None

    def _dropped(self, reference: weakref.ref[ReaderPosition]) -> None:
        """A reader is gone that was not closed. This may run on any thread, at any point."""
        self._store.readers.discard(reference)
        self.readers.pop(reference, None)
        if not (self.blocks or self.fetches or self.readers):
            with suppress(RuntimeError):  # The loop is closed, and with it the store.
                self._runtime.loop.call_soon_threadsafe(self.forget_if_empty)

    def open_readers(self) -> list[ReaderPosition]:
        """The readers that have the file open."""
        # The list is made in one step, so that a reader which is dropped meanwhile does not disturb it.
        return [reader for reference in list(self.readers) if (reader := reference()) is not None]

    def close(self, reader: ReaderPosition) -> None:
        """Remove a reader. With the last one, requests that no read awaits are cancelled; blocks stay."""
        reference, reader.reference = reader.reference, None
        if reference is not None:
            self._store.readers.discard(reference)
            self.readers.pop(reference, None)
        if not self.readers:
            self.readers.clear()  # An emptied dictionary keeps its table.
            for fetch in tuple(self.fetches):
                if not fetch.has_waiters:
                    fetch.give_up()
            if not self.blocks:
                self.forget_if_empty()
