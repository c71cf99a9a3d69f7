"""Reads of parts of one object by the fewest requests: the parts that zarr names, and the chunks of one shard.

zarr has three forms of a part: a range, everything from an offset on, and the last bytes. A part that lies in another
one is cut out of it.

zarr reads the index of a shard, and then one chunk after the other, each by a request of its own and in no order. It
says neither how many there are nor which comes next, so what is fetched around a chunk follows from what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import Range, joined, subtract, total_length
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.runtime.buffers import Lease
from aioprefetch.scheduler.pinned_file import TAIL_BYTES, PinnedFile

Part: TypeAlias = RangeByteRequest | OffsetByteRequest | SuffixByteRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsPlan:
    """The reads of one object: of all bytes from ``offset`` on, of the last ``suffix``, and of ``ranges``.

    ``None`` and an empty list stand for no such read.
    """

    offset: int | None
    suffix: int | None
    ranges: list[Range]

    @property
    def is_one_read(self) -> bool:
        """Whether there is only one of the three."""
        return (self.offset is not None) + (self.suffix is not None) + bool(self.ranges) == 1

    def ranges_beside(self, size: int) -> list[Range]:
        """Ranges to be read beside the bytes from ``offset`` on, or beside the last ones, of an object of this size.

        ``ranges``, cut at its end, and then the part of the last bytes that lies before ``offset``, if any does.
        Raises ``RangeNotSatisfied`` for a range that starts beyond the end.
        """
        if beyond := [one for one in self.ranges if one[0] >= size]:
            raise RangeNotSatisfied(f"{beyond[0]} starts past the end of {size} bytes", total=size, operation="read")
        found = [(start, min(end, size)) for start, end in self.ranges]
        if self.offset is not None and self.suffix is not None and size - self.suffix < self.offset:
            found.append((max(0, size - self.suffix), min(size, self.offset)))
        return found

    def ends(self, first: memoryview, views: Sequence[memoryview]) -> tuple[memoryview, memoryview]:
        """The bytes from ``offset`` on and the last ones, out of the first read and the reads of ``ranges_beside``."""
        if self.offset is None or self.suffix is None:
            return first, first
        before = views[-1] if len(views) > len(self.ranges) else memoryview(b"")
        last = memoryview(b"".join((before, first))) if before else first
        return first, last

    def cut(self, part: Part, from_offset: memoryview, last: memoryview, ranged: dict[Range, memoryview]) -> memoryview:
        """The bytes of a part, out of what the reads brought."""
        if isinstance(part, SuffixByteRequest) and self.offset != 0:
            return last[max(0, len(last) - part.suffix) :]
        if isinstance(part, SuffixByteRequest):
            return from_offset[max(0, len(from_offset) - part.suffix) :]
        if isinstance(part, RangeByteRequest) and (self.offset is None or part.start < self.offset):
            return ranged[part.start, part.end]
        base = self.offset or 0
        if isinstance(part, RangeByteRequest):
            return from_offset[part.start - base : part.end - base]
        return from_offset[part.offset - base :] if part is not None else from_offset


def plan_parts(parts: Sequence[Part]) -> PartsPlan:
    """The reads for some parts of one object. ``TypeError`` for a part of another form."""
    offsets: list[int] = []
    suffixes: list[int] = []
    ranges: list[Range] = []
    for part in parts:
        if part is None:
            offsets.append(0)
        elif isinstance(part, OffsetByteRequest):
            offsets.append(part.offset)
        elif isinstance(part, SuffixByteRequest):
            suffixes.append(part.suffix)
        elif isinstance(part, RangeByteRequest):
            ranges.append((part.start, part.end))
        else:
            raise TypeError(f"Unexpected byte_range, got {part!r}")
    offset = min(offsets, default=None)
    return PartsPlan(
        offset=offset,
        suffix=None if offset == 0 else max(suffixes, default=None),
        ranges=sorted({one for one in ranges if offset is None or one[0] < offset}),
    )


# --- chunks of a shard ------------------------------------------------------------------------------------------------

# What may come with a chunk at least, since it costs less than another request, and at most as long as nothing of it
# has been read. The latter is the gap that merged reads bridge.
AROUND_BYTES_MIN = TAIL_BYTES
AROUND_BYTES_UNPROVEN = 1 << 20
# What may come along with indexes of shards in vain: this much, and a share of what is read. A chunk that came along
# saves a request, which is worth more than these bytes.
SURPLUS_BYTES_UNPROVEN = 8 * TAIL_BYTES
SURPLUS_SHARE = 8
SAVED_BYTES = 2 * TAIL_BYTES


class Surplus:
    """How much to ask for with the index of a shard, since its chunks may lie beside it. Pure.

    ``TAIL_BYTES`` as long as that saves requests, or is little: the chunk that is wanted of each of a thousand shards
    mostly lies elsewhere, and then indexes are asked for alone. Counted for all shards of a store.
    """

    def __init__(self) -> None:
        self._spent_bytes = 0
        self._read_bytes = 0

    def ask(self, index_bytes: int) -> int:
        """The size of the request for an index."""
        surplus_bytes = TAIL_BYTES - index_bytes
        allowed_bytes = SURPLUS_BYTES_UNPROVEN + self._read_bytes // SURPLUS_SHARE
        if surplus_bytes <= 0 or self._spent_bytes + surplus_bytes > allowed_bytes:
            return index_bytes
        self._spent_bytes += surplus_bytes
        return TAIL_BYTES

    def did_not_come(self, size_bytes: int) -> None:
        """Take back what was asked for: the shard is smaller, is not there, or the request failed."""
        self._spent_bytes -= size_bytes

    def read(self, size_bytes: int, *, came_along: bool) -> None:
        """Count a chunk that was read, and whether it came along with an index."""
        self._read_bytes += size_bytes
        if came_along:
            self._spent_bytes = max(0, self._spent_bytes - SAVED_BYTES)


class Surroundings:
    """How much to fetch around a missing range. Pure.

    The first range is fetched alone: it may be the only one. From the second on some of what is around a range comes
    with it. All that was fetched stays below twice of what was read, apart from ``AROUND_BYTES_MIN`` a request, and
    more than ``AROUND_BYTES_UNPROVEN`` come with one range only if earlier extra bytes were read.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._read_bytes = 0
        self._fetched_bytes = 0
        self._proven_bytes = 0

    def read(self, size_bytes: int, missing_bytes: int) -> None:
        """Count a read that has this much not in memory."""
        self._read_bytes += size_bytes
        self._proven_bytes += size_bytes - missing_bytes

    def window(self, missing: Range, free: Range) -> Range:
        """The range to fetch for ``missing``, within ``free``, around which all is in memory or beyond the object."""
        start, end = missing
        around = 0
        if self._fetched_bytes:
            spare_bytes = 2 * self._read_bytes - self._fetched_bytes - (end - start)
            proven_bytes = min(AROUND_BYTES_UNPROVEN + self._proven_bytes, self._bytes_max)
            around = min(max(AROUND_BYTES_MIN, spare_bytes), proven_bytes)
        before = min(start - free[0], around // 2)
        after = min(free[1] - end, around - before)
        before = min(start - free[0], around - after)
        self._fetched_bytes += before + end - start + after
        return start - before, end + after

    def did_not_come(self, size_bytes: int) -> None:
        """Take back what was to come around a range: there is no memory to keep it."""
        self._fetched_bytes -= size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of a shard that are kept, from ``start`` on. The ``lease`` has them charged to the budget meanwhile."""

    start: int
    view: memoryview
    lease: Lease | None = None

    @property
    def end(self) -> int:
        """The end of its range."""
        return self.start + len(self.view)


class ShardReads:
    """The reads of one task in one version of a shard.

    Bytes that came along are kept until they were read, or the task ends or reads another object: beside the first or
    last ones of the object at most ``around_bytes_max``, the newest ones, and what came with the last chunk. They
    are charged to ``budget`` as a prefetch is; while it has no memory to spare a chunk is fetched alone.

    ``used_at`` is the time of the last read, by the clock of the runtime. ``first`` are the first or last bytes of the
    object, where its index is (``has_index_first``), if they are kept. Of these ``beside_index`` came along.
    """

    def __init__(
        self,
        file: PinnedFile,
        surplus: Surplus,
        beside_index: Range,
        *,
        budget: MemoryBudget,
        around_bytes_max: int,
        first: Piece | None = None,
        has_index_first: bool = False,
    ) -> None:
        self.file = file
        self.used_at = 0.0
        self.has_index_first = has_index_first
        self._budget = budget
        self._surplus = surplus
        self._beside_index = beside_index
        self._surroundings = Surroundings(around_bytes_max)
        self._around_bytes_max = around_bytes_max
        # What the reads began with, and what is in memory beside that in the order in which it came; all disjoint.
        self._first = [first] if first is not None else []
        self._pieces: list[Piece] = []
        # What was fetched, and of that what was read. A chunk that was read is rarely read again by the same task.
        self._fetched = [(piece.start, piece.end) for piece in self._first]
        self._was_read: list[Range] = []

    async def read(self, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)``, cut at the end of the object.

        Raises ``UntrustedMetadata`` for a range beyond the end, and ``ObjectChanged`` when the shard was overwritten
        since its index was read. A cancelled read leaves nothing behind.
        """
        start, end = self.file.check_range(start, min(end, self.file.size))
        in_memory = sorted((piece.start, piece.end) for piece in (*self._first, *self._pieces))
        missing = subtract((start, end), in_memory)
        self._surroundings.read(end - start, total_length(missing))
        beside_start, beside_end = self._beside_index
        self._surplus.read(end - start, came_along=beside_start <= start < end <= beside_end)
        tier, waited_seconds = "memory", 0.0
        if missing:
            began = asyncio.get_running_loop().time()
            tier = await self._fetch((missing[0][0], missing[-1][1]))
            waited_seconds = asyncio.get_running_loop().time() - began
        self.file.publish_served(start, end, tier, waited_seconds)
        pieces = sorted([*self._first, *self._pieces], key=lambda piece: piece.start)
        cuts = (piece.view[max(0, start - piece.start) : max(0, end - piece.start)] for piece in pieces)
        parts = [part for part in cuts if part]
        self._forget_read(start, end)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    async def _fetch(self, missing: Range) -> str:
        """Bring what is missing and what is around it; the tier that had it."""
        start, end = missing
        # What was fetched before bounds what may come along, whether or not it is in memory still.
        free_start = max((min(high, start) for low, high in self._fetched if low < start), default=0)
        free_end = min((max(low, end) for low, high in self._fetched if high > end), default=self.file.size)
        first, last = self._surroundings.window(missing, (free_start, free_end))
        lease = None
        if (first, last) != missing:
            lease = self._budget.lease(last - first)
            if lease is None:
                self._surroundings.did_not_come(last - first - (end - start))
                first, last = missing
        sink = CollectSink(self._budget)
        tier = await self.file.bring(sink, first, last)
        # Pieces between two missing parts are fetched again: a chunk is rarely that long.
        self._pieces = [piece for piece in self._pieces if piece.end <= first or piece.start >= last]
        self._pieces.append(Piece(start=first, view=sink.to_view(), lease=lease))
        self._fetched = joined([*self._fetched, (first, last)])
        return tier

    def _forget_read(self, start: int, end: int) -> None:
        """Drop pieces with nothing left to read, and the oldest above the limit."""
        self._was_read = joined([*self._was_read, (start, end)])
        unread = [piece for piece in self._pieces if subtract((piece.start, piece.end), self._was_read)]
        room_bytes = self._around_bytes_max
        kept: list[Piece] = []
        for piece in reversed(unread):
            if kept and len(piece.view) > room_bytes:
                break
            kept.append(piece)
            room_bytes -= len(piece.view)
        self._pieces = kept[::-1]
