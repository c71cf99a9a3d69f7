"""A block of an object, its resident segments, and the memory they lie in.

A block is a cell of the grid; what is resident of it may be partial: **segments**, ordered and never overlapping. A
segment is filled from its start by one fetch, and only that fetch writes to it.
"""

from __future__ import annotations

import sys

from aioprefetch.budget import MemoryBudget
from aioprefetch.ranges import Range


class Buffer(bytearray):
    """Memory of one segment, charged to the budget until the last view of it is gone, whoever holds it.

    A buffer that was handed out as a view is never used again for other bytes.
    """

    __slots__ = ("_budget", "charged_bytes")

    def __init__(self, size_bytes: int, budget: MemoryBudget) -> None:
        self._budget = budget
        self.charged_bytes = 0  # If there is no memory, nothing is given back.
        super().__init__(size_bytes)
        self.charged_bytes = size_bytes

    def __del__(self) -> None:
        self._budget.release(self.charged_bytes)


# ``sys.getrefcount`` of a buffer that only its segment holds: the attribute, the segment's view, the argument.
_REFERENCES_OF_A_SEGMENT = 3


class Segment:
    """Bytes ``[start, end)`` of an object, of which the first ``filled`` have arrived."""

    __slots__ = ("buffer", "end", "filled", "pins", "start", "unused_prefetch", "view")

    def __init__(self, start: int, end: int, buffer: Buffer, *, prefetched: bool) -> None:
        self.start = start
        self.end = end
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.filled = 0
        self.pins = 0
        self.unused_prefetch = prefetched

    @property
    def complete(self) -> bool:
        """Whether every byte has arrived."""
        return self.filled == self.end - self.start

    @property
    def is_viewed(self) -> bool:
        """Whether somebody outside holds a view, so that dropping the segment would free nothing."""
        return sys.getrefcount(self.buffer) > _REFERENCES_OF_A_SEGMENT

    def export(self, start: int, end: int) -> memoryview:
        """A read-only view of ``[start, end)``, counted by ``is_viewed`` as long as it or a slice of it lives."""
        return memoryview(self.buffer).toreadonly()[start - self.start : end - self.start]

    def keep_prefix(self) -> None:
        """The fetch ended early: what has arrived stays, in memory of its own size unless somebody views the old."""
        kept = self.filled
        self.end = self.start + kept
        if self.is_viewed:
            return
        buffer = Buffer.__new__(Buffer)
        bytearray.__init__(buffer, self.view[:kept])
        buffer._budget, buffer.charged_bytes = self.buffer._budget, kept
        self.buffer.charged_bytes -= kept
        self.buffer, self.view = buffer, memoryview(buffer)


class Block:
    """One cell of the grid with its segments. ``segments`` is replaced, never changed, so threads may read it."""

    __slots__ = ("index", "segments", "touched")

    def __init__(self, index: int) -> None:
        self.index = index
        self.segments: tuple[Segment, ...] = ()
        self.touched = 0

    def add(self, segment: Segment) -> None:
        """Add a segment that overlaps no other."""
        self.segments = tuple(sorted((*self.segments, segment), key=lambda one: one.start))

    def discard(self, segment: Segment) -> None:
        """Forget a segment."""
        self.segments = tuple(one for one in self.segments if one is not segment)

    def bounds(self) -> list[Range]:
        """The ranges that are resident or on their way."""
        return [(one.start, one.end) for one in self.segments]

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory the block occupies."""
        return sum(len(one.buffer) for one in self.segments)

    @property
    def is_evictable(self) -> bool:
        """Whether dropping it now hurts nobody."""
        return bool(self.segments) and not any(one.pins or not one.complete for one in self.segments)

    @property
    def is_viewed(self) -> bool:
        """Whether somebody outside holds a view of it, so that dropping it frees memory only later."""
        return any(one.is_viewed for one in self.segments)

    @property
    def is_unused_prefetch(self) -> bool:
        """Whether nobody has read any of it since it was prefetched."""
        return all(one.unused_prefetch for one in self.segments)
