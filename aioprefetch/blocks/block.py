"""A block of an object, its resident segments, and their memory.

A block is a cell of the grid. Its resident parts are **segments**, which are ordered and never overlap. A segment is
filled from its start by one fetch, and only that fetch writes to it. The earlier contents of its memory, for some other
segment, are still behind the bytes that have arrived: only received bytes are ever delivered.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from enum import Enum
from typing import TYPE_CHECKING

from aioprefetch.errors import Unexpected
from aioprefetch.ranges import Range
from aioprefetch.runtime.buffers import Buffer, export_buffer, new_buffer, view_of
from aioprefetch.runtime.statistics import Account

if TYPE_CHECKING:
    from aioprefetch.runtime.buffers import ExportedBuffer


class SegmentState(Enum):
    """The states of a segment; S3A's buffers are BLANK, PREFETCHING, CACHING, READY and DONE."""

    FILLING = "filling"
    READY = "ready"
    SPILLING = "spilling"
    EVICTED = "evicted"

    __hash__ = object.__hash__  # The one of ``Enum`` is a Python call, and each segment changes its state.


_FOLLOWING = {
    SegmentState.FILLING: {SegmentState.READY, SegmentState.EVICTED},
    SegmentState.READY: {SegmentState.SPILLING, SegmentState.EVICTED},
    SegmentState.SPILLING: {SegmentState.READY, SegmentState.EVICTED},
    SegmentState.EVICTED: set(),
}

# A mark that is beyond every run.
NO_MARK = 1 << 63


class Segment:
    """Bytes ``[start, end)`` of an object; the first ``filled`` have arrived.

    For the windows it keeps the run of reads in it: ``next`` is the end of the last read, ``run_bytes`` the bytes that
    were read in order up to there, and ``mark_bytes`` the length of the run at which the reader is notified.

    ``is_reread``: a read began before the end of another one, so its bytes may be wanted again.

    For the statistics it keeps the ``account`` of the reader it was fetched for, ``ready_at``, the time its last byte
    arrived, and ``is_unsettled``: whether its prefetch was not yet counted as used or wasted.

    ``exported``: its memory as callers view it, if that was ever so.

    ``is_spent``: it was found to be read to its end, or not read for long, and its memory counts as spare.
    """

    __slots__ = (
        "account",
        "buffer",
        "end",
        "exported",
        "filled",
        "is_reread",
        "is_spent",
        "is_unsettled",
        "mark_bytes",
        "next",
        "pins",
        "ready_at",
        "run_bytes",
        "start",
        "state",
        "unused_prefetch",
        "view",
    )

    def __init__(
        self,
        start: int,
        end: int,
        buffer: Buffer,
        *,
        prefetched: bool,
        account: weakref.ref[Account] | None = None,
    ) -> None:
        self.start = start
        self.end = end
        self.buffer = buffer
        self.view = view_of(buffer)
        self.exported: weakref.ref[ExportedBuffer] | None = None
        self.filled = 0
        self.pins = 0
        self.state = SegmentState.FILLING
        self.unused_prefetch = prefetched
        self.is_unsettled = prefetched
        self.is_reread = self.is_spent = False
        self.account = account
        self.ready_at = 0.0
        self.next = start
        self.run_bytes = 0
        # The first read of a prefetched segment moves the window on; in others a quarter read in order is a run.
        self.mark_bytes = 1 if prefetched else max(1, (end - start) // 4)

    def become(self, state: SegmentState) -> None:
        """Change the state. ``Unexpected`` for a change that is not allowed: the store has lost track of its memory."""
        if state not in _FOLLOWING[self.state]:
            legal = ", ".join(sorted(following.value for following in _FOLLOWING[self.state])) or "nothing"
            raise Unexpected(
                f"a segment that is {self.state.value} cannot become {state.value}; allowed are: {legal}",
                operation="read",
            )
        self.state = state

    @property
    def complete(self) -> bool:
        """Whether every byte has arrived."""
        return self.filled == self.end - self.start

    @property
    def is_viewed(self) -> bool:
        """Whether a caller holds a view, so that dropping the segment would free nothing."""
        return self.exported is not None and self.exported() is not None

    @property
    def was_read_once(self) -> bool:
        """Whether it was read to its end, in order, most of it and nothing twice."""
        return self.next >= self.end and not self.is_reread and 2 * self.run_bytes >= self.end - self.start

    def export(self, start: int, end: int) -> memoryview:
        """A read-only view of ``[start, end)``, counted as long as it or a slice of it lives. From any thread."""
        exported = None if self.exported is None else self.exported()
        if exported is None:  # Two threads at the same moment count the buffer twice, which does no harm.
            exported = export_buffer(self.buffer)
            self.exported = weakref.ref(exported)
        return view_of(exported).toreadonly()[start - self.start : end - self.start]

    def keep_prefix(self) -> None:
        """The fetch ended early: keep the bytes that arrived, in memory of that size unless a caller views the old."""
        kept = self.filled
        self.end = self.start + kept
        if self.is_viewed:
            return
        lease = self.buffer.lease
        buffer = new_buffer(kept, lease.owner)
        lease.charged_bytes -= kept
        view = view_of(buffer)
        view[:] = self.view[:kept]
        self.buffer, self.view, self.exported = buffer, view, None


class Block:
    """One cell of the grid with its segments. ``segments`` is replaced, never changed, so threads may read it.

    ``_starts`` are the starts of the segments, to look a position up in; another thread may find one of the two changed
    before the other.
    """

    __slots__ = ("_starts", "index", "segments", "stays_off_disk", "touched", "touched_fetch")

    def __init__(self, index: int) -> None:
        self.index = index
        self.segments: tuple[Segment, ...] = ()
        self._starts: tuple[int, ...] = ()
        self.stays_off_disk = False  # The write filter has refused it a block file.
        self.touched = 0
        self.touched_fetch = 0

    def add(self, segment: Segment) -> None:
        """Add a segment that overlaps no other."""
        segments, starts = self.segments, self._starts
        if not segments:
            self.segments, self._starts = (segment,), (segment.start,)
            return
        index = bisect_right(starts, segment.start)
        self.segments = (*segments[:index], segment, *segments[index:])
        self._starts = (*starts[:index], segment.start, *starts[index:])

    def discard(self, segment: Segment) -> None:
        """Forget a segment."""
        segments, starts = self.segments, self._starts
        index = bisect_left(starts, segment.start)
        if index < len(segments) and segments[index] is segment:
            self.segments = segments[:index] + segments[index + 1 :]
            self._starts = starts[:index] + starts[index + 1 :]

    def at(self, position: int) -> Segment | None:
        """The last segment that begins at ``position`` or before it: no other can hold that byte."""
        segments = self.segments
        index = bisect_right(self._starts, position)
        if 0 < index <= len(segments):
            segment = segments[index - 1]
            if segment.start <= position:
                return segment
        return None

    def bounds(self, start: int, end: int) -> list[Range]:
        """The ranges that are resident or in flight and touch ``[start, end)``, in order."""
        segments, starts = self.segments, self._starts
        first = bisect_right(starts, start)
        if first and segments[first - 1].end > start:
            first -= 1
        stop = bisect_left(starts, end, first)
        return [(segment.start, segment.end) for segment in segments[first:stop]] if first < stop else []

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory the block occupies."""
        return sum(len(segment.buffer) for segment in self.segments)

    @property
    def is_evictable(self) -> bool:
        """Whether it may be dropped now: no read has pinned it, and no fetch fills it."""
        return bool(self.segments) and not any(segment.pins or not segment.complete for segment in self.segments)

    @property
    def is_spilling(self) -> bool:
        """Whether it is being written to the disk, so that dropping it frees memory only later."""
        return any(segment.state is SegmentState.SPILLING for segment in self.segments)

    @property
    def is_viewed(self) -> bool:
        """Whether a caller holds a view of it, so that dropping it frees memory only later."""
        return any(segment.is_viewed for segment in self.segments)

    @property
    def is_unused_prefetch(self) -> bool:
        """Whether it was prefetched and no byte of it was read since."""
        return all(segment.unused_prefetch for segment in self.segments)
