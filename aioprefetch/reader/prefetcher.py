"""What a reader fetches ahead: the windows of its runs turned into requests, in the prefetch lane, as memory allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.blocks.block import NO_MARK, Segment
from aioprefetch.ranges import OFFSET_MAX, Range
from aioprefetch.reader.growth import Growth
from aioprefetch.reader.policy import MIB, Policy
from aioprefetch.reader.window import SKIP_BYTES, Look, Session, Windows

if TYPE_CHECKING:
    from aioprefetch.blocks.block_file import BlockFile
    from aioprefetch.reader.pinned_object import PinnedObject

# Small blocks are fetched several at once, so that a request is worth its first byte, but a window stays at least so
# many requests wide.
_SPAN_BYTES = MIB
_REQUESTS_MIN = 4

# What a read wants at once is asked for in requests of this size at most, side by side.
_DEMAND_BYTES = 8 * MIB


class Prefetcher:
    """The windows of one reader.

    ``split`` is what its caller means to read: nothing beyond it is fetched ahead before a block was read there.
    """

    def __init__(
        self,
        pinned: PinnedObject,
        policy: Policy,
        growth: Growth,
        *,
        block_bytes: int,
        blocks_max: int,
        split: Range | None,
    ) -> None:
        self.windows = Windows(
            policy,
            growth,
            block_bytes=block_bytes,
            blocks_max=blocks_max,
            split_end=OFFSET_MAX if split is None else split[1],
            last_end=self._last_end,
        )
        self._pinned = pinned
        self._block_bytes = block_bytes
        self._wasted_bytes = 0

    @property
    def by_block(self) -> bool:
        """Whether a read of several blocks goes block by block."""
        return self.windows.growth.by_block

    @property
    def demand_bytes(self) -> int:
        """How much one request of a read asks for: whole blocks."""
        block = self._block_bytes
        return (
            block if self.by_block else max(block, min(_DEMAND_BYTES, self._pinned.request_bytes_max) // block * block)
        )

    @property
    def ahead_bytes(self) -> int:
        """How much one request of a window asks for: whole blocks."""
        block, windows = self._block_bytes, self.windows
        if self.by_block:
            return block
        small = min(_SPAN_BYTES, windows.limit * block // _REQUESTS_MIN)
        most = self._pinned.request_bytes_max // block
        return block * max(1, min(most, max(windows.policy.request_blocks, small // block)))

    def observe(self, file: BlockFile, start: int, end: int, *, at_cursor: bool) -> Look:
        """A read of ``[start, end)`` that is not served from memory at once. Call ``follow`` once it has been asked."""
        # What comes first tells enough: an object may claim any size, and a read all of it.
        missing = bool(file.missing(start, min(end, start + self._block_bytes)))
        stalled = not file.holds(start, end)
        return self._observe(file, start, end, missing=missing, stalled=stalled, at_cursor=at_cursor)

    def expect(self, position: int) -> Session:
        """A run begins at ``position``; its first read is reported although what it reads may be resident."""
        run = self.windows.expect(position)
        file = self._pinned.file
        segment = None if file is None else file.at(position)
        if segment is not None:
            segment.next, segment.run_bytes, segment.mark_bytes = position, 0, 1
        return run

    def leave(self, run: Session | None, position: int) -> None:
        """The run that was expected ends at ``position``: break off what was fetched ahead for it alone."""
        pinned = self._pinned
        for start, end in self.windows.leave(run, position):
            if pinned.file is not None:
                pinned.file.cancel_prefetches(pinned, start, end)
        pinned.cursor.runs = self.windows.positions

    def reached(self, segment: Segment, start: int, end: int, *, at_cursor: bool) -> None:
        """A read of resident bytes has come to the mark of their segment."""
        file = self._pinned.file
        if file is None or self._pinned.closed:
            return
        look = self._observe(file, start, end, missing=False, stalled=False, at_cursor=at_cursor)
        left = segment.end - end
        if not look.continues:  # A stray read in what lies ahead of a run: the run itself is still to come.
            segment.run_bytes, segment.mark_bytes = 0, 1
        elif look.ahead is None and left > 1:  # Nothing yet: again after half of what is left of the segment.
            segment.mark_bytes = segment.run_bytes + left // 2
        else:
            segment.mark_bytes = NO_MARK
        self.follow(look, start)

    def follow(self, look: Look, start: int) -> None:
        """Break off what was fetched ahead in vain, and fetch ahead what comes next; the read began at ``start``."""
        pinned = self._pinned
        file = pinned.file
        if file is None:
            return
        if look.left is not None:
            stop = look.ahead[1] if look.ahead is not None else start + self._block_bytes
            file.cancel_prefetches(pinned, *look.left, keep=(start, stop))
        if look.ahead is not None:
            request = self.ahead_bytes if look.fill == "block" else pinned.request_bytes_max
            pinned.want(*look.ahead, lane="prefetch", fill=look.fill, request_bytes=request)
        pinned.cursor.runs = self.windows.positions

    def _observe(self, file: BlockFile, start: int, end: int, *, missing: bool, stalled: bool, at_cursor: bool) -> Look:
        windows = self.windows
        size = self._pinned.size
        windows.stop = file.size if size is None else min(file.size, size)
        pressed = bool(self._pinned.runtime.budget.waiting) or file.store.is_short(self._block_bytes)
        if pressed or file.evicted_unread_bytes > self._wasted_bytes:
            windows.shrink()
        self._wasted_bytes = file.evicted_unread_bytes
        return windows.observe(
            start,
            end,
            missing=missing,
            stalled=stalled,
            at_cursor=at_cursor,
            may_grow=not pressed,
            # Of a hit this cannot be told: it may be reported from another thread, and later than the one after it.
            backward=missing and self._goes_back(file, start, end),
        )

    def _goes_back(self, file: BlockFile, start: int, end: int) -> bool:
        """Whether the bytes right behind a read were read last where they lie: then it goes on towards the start.

        A short skip between the two makes no difference, unless reads are scattered.
        """
        near = 0 if self.windows.scattered else min(SKIP_BYTES, self._block_bytes // 2)
        segment = file.at(end)
        edge = -(-end // self._block_bytes) * self._block_bytes
        if segment is None and edge - end <= near:
            segment = file.at(edge)
        # One that nobody has read has its ``next`` at its start.
        return segment is not None and max(end, segment.start) < segment.next <= end + near + 2 * (end - start)

    def _last_end(self, position: int) -> int:
        """How far a run that stood at ``position`` has come since, by reads that found their bytes resident."""
        file = self._pinned.file
        while file is not None:
            segment = file.at(max(0, position - 1))
            if segment is not None and segment.end == position:
                segment = file.at(position)
            if segment is None or segment.next <= position:
                return position
            # Among scattered reads a stray one further on does not move the run: half of the way, or all, was in order.
            in_order = 2 * segment.run_bytes >= segment.next - max(position, segment.start)
            if self.windows.scattered and not in_order and segment.next < segment.end:
                return position
            position = segment.next
        return position
