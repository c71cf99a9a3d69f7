"""The look-ahead of one reader: by its windows, or by the layout of its file where that is known.

Reads report here unless they are hits in the middle of a segment. The decision comes back to the read; its own requests
are sent first, and then ``apply`` sends the decision's, in the prefetch lane.

**Small reads.** Libraries that read a format in small pieces (a header of 30 bytes, then a name, then the data behind
it) wait for a first byte each time. A request that brings more takes no longer, as long as its body arrives in a small
part of that wait. So a read that is alone asks for the bytes behind it too: ``FREE_BYTES_MIN`` at first, and all that
is free once reads have used them. After a few requests whose additional bytes were not read, requests are exact again,
until a read continues the one before it. Where a request costs nearly nothing, as in local files, they are exact until
then from the start.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast
from weakref import WeakKeyDictionary

from aioprefetch.blocks.block import NO_MARK, Segment, SegmentState
from aioprefetch.blocks.file import BlockFile, Survey
from aioprefetch.blocks.store import FREE_BYTES_MIN
from aioprefetch.ranges import OFFSET_MAX, Range, overlaps
from aioprefetch.reader.layout import END_BYTES, FOOTER_BYTES_MAX, ColumnRuns, Format, Layout, LayoutModule, format_of
from aioprefetch.reader.opening import OpenObject
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.policy import MIB, Fill, extent
from aioprefetch.reader.window import NOTHING_AHEAD, RANDOM_AFTER, SKIP_BYTES, Run, WindowDecision, Windows
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Lane

# Small blocks are fetched several per request, so that a request is worth the wait for its first byte, but a window
# stays at least this many requests wide.
_SPAN_BYTES = MIB
_REQUESTS_MIN = 4

# One read sends requests of at most this size, side by side.
_DEMAND_BYTES = 8 * MIB

# The longest request in a file whose layout is known: a read of many chunks arrives by several connections.
LAYOUT_REQUEST_BYTES = 4 * MIB

# Blocks ahead are divided into requests of at least this size while connections are free. The same window arrives by
# more connections: docs/decisions/0012. Smaller parts would be quicker still, but a connection would wait longer for
# their first byte than it receives.
PART_BYTES_MIN = 4 * MIB

# Connections are free while less than one in _BUSY_SHARE of ``concurrency`` is used.
_BUSY_SHARE = 2

# An object of more than one part in _LARGE_SHARE of the memory is not kept while it is read through.
_LARGE_SHARE = 2

# A read of at most _SHORT_BLOCKS blocks always goes through blocks: it needs no more than two requests.
_SHORT_BLOCKS = 2

# The most reads that are remembered while the layout is being learnt.
_READS_MAX = 64


class Request(Protocol):
    """Sends requests for the bytes of a range that are neither resident nor in flight."""

    def __call__(self, start: int, end: int, *, lane: Lane, fill: Fill, request_bytes: int) -> object:
        """No request is longer than ``request_bytes``."""


class LookAhead:
    """The look-ahead of one reader of ``opened``. ``request`` sends its requests. Bound to the runtime's loop.

    ``windows`` are its runs of reads, and how far each looks ahead.
    """

    def __init__(self, opened: OpenObject, runtime: Runtime, options: ReaderOptions, request: Request) -> None:
        self.opened = opened
        self.windows = Windows(
            opened.policy,
            options.growth,
            block_bytes=options.block_bytes,
            blocks_max=min(options.prefetch_blocks, runtime.options.memory_bytes // (2 * options.block_bytes)),
            split_end=OFFSET_MAX if options.split is None else options.split[1],
            last_end=self._last_end,
            random_reads=RANDOM_AFTER if opened.passes_blocks else 0,
        )
        self._small_reads = SmallReads(options.block_bytes)
        self.layout = FileLayout(opened, runtime, self._use_layout)
        self._runs: ColumnRuns | None = None
        self._runtime = runtime
        self._request = request
        self._block_bytes = options.block_bytes
        self._part_bytes = part_of(options.block_bytes)
        self._by_block = options.growth.by_block
        self._recycles_any = options.keep_behind is False
        self._past_end = 0  # The end of the last read that went past the blocks.
        self._kept_bytes = max(_SHORT_BLOCKS * options.block_bytes, runtime.options.memory_bytes - options.block_bytes)
        self._wasted_bytes = 0
        self._published_blocks = 0
        self._read_bytes = 0  # The length of the last read that was reported.

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever fetched ahead: only the ranges of the reads are requested."""
        return self._runs is None and self.windows.policy.window == "none"

    @property
    def request_bytes(self) -> int:
        """The longest request of a window: whole blocks."""
        block, windows = self._block_bytes, self.windows
        if self._by_block:
            return block
        small = min(_SPAN_BYTES, windows.limit * block // _REQUESTS_MIN)
        blocks_max = self.opened.request_bytes_max // block
        return block * max(1, min(blocks_max, max(windows.policy.request_blocks, small // block)))

    @property
    def _may_divide(self) -> bool:
        """Whether blocks ahead may be requested in parts."""
        store, policy = self.opened.store, self.windows.policy
        return (
            self._part_bytes < self._block_bytes
            and not self._by_block
            and not store.keeps_fetched  # Whole blocks are claimed on the disk.
            and policy.request_blocks == 1
            and self._read_bytes <= self._part_bytes  # Otherwise a view of a whole block would be a copy.
            and store.in_flight < self._runtime.options.concurrency // _BUSY_SHARE
            and store.line.is_far
        )

    def step_bytes(self, fill: Fill) -> int:
        """The longest request of a read: whole blocks if misses bring blocks."""
        bytes_max = self.opened.request_bytes_max
        if fill == "exact":
            has_layout = self._runs is not None or self.layout.is_learning
            return min(bytes_max, LAYOUT_REQUEST_BYTES) if has_layout else bytes_max
        block = self._block_bytes
        return block if self._by_block else max(block, min(_DEMAND_BYTES, bytes_max) // block * block)

    def wide_end(self, survey: Survey, end: int, fill: Fill) -> int:
        """The end of the request for a small read that ends at ``end``, 0 if it ends there; see ``SmallReads``."""
        opened = self.opened
        if fill != "exact" or not opened.policy.widens or not survey.gaps:
            return 0
        file = opened.open_file()
        line = opened.store.line
        free_bytes = line.free_bytes(len(file.fetches))
        if not free_bytes or opened.store.eviction.is_short(self._block_bytes):
            return 0

        def is_used(position: int) -> bool | None:
            segment = file.at(position)
            return None if segment is None else segment.next != position

        return self._small_reads.end_of(
            survey.resident_end,
            end,
            free_bytes=free_bytes,
            is_near=line.is_near,
            is_used=is_used,
        )

    # --- reports of reads --------------------------------------------------------------------------------------

    def survey(self, file: BlockFile, start: int, end: int) -> Survey:
        """The resident part of the bytes that a miss of ``[start, end)`` is likely to request first."""
        # The first block's worth is enough for the decision: an object may claim any size, and a read all of it.
        low, high = start, min(end, start + self._block_bytes)
        if self.windows.fill == "block":
            low, high = extent(low, high, fill="block", grid=file.grid)
        return file.survey(start, end, low, high)

    def on_miss(self, survey: Survey, start: int, end: int, *, at_cursor: bool) -> WindowDecision:
        """Report a read of ``[start, end)`` that is not served by a hit. ``apply`` the decision after its requests."""
        missing = overlaps(survey.gaps, start, min(end, start + self._block_bytes))
        return self._on_read(start, end, missing=missing, stalled=survey.resident_end < end, at_cursor=at_cursor)

    def pass_mark(self, segment: Segment, start: int, end: int, at_cursor: bool, *, is_late: bool = False) -> None:
        """A read of resident bytes has reached the mark of their segment; ``is_late`` if another thread made it."""
        if self.opened.file is None or self.opened.closed:
            return
        if is_late and segment.state is SegmentState.EVICTED:  # The run has left it behind since.
            return
        decision = self._on_read(start, end, missing=False, stalled=False, at_cursor=at_cursor, is_late=is_late)
        rest = segment.end - end
        if (
            not decision.continues
        ):  # A random read in bytes that were fetched ahead of a run, which will still read them.
            segment.run_bytes, segment.mark_bytes = 0, 1
        elif decision.ahead is None and rest > 1:  # Too early: report again after half of the rest of the segment.
            segment.mark_bytes = segment.run_bytes + rest // 2
        else:
            segment.mark_bytes = NO_MARK
        self.apply(decision, start)

    def _on_read(
        self, start: int, end: int, *, missing: bool, stalled: bool, at_cursor: bool, is_late: bool = False
    ) -> WindowDecision:
        windows, opened = self.windows, self.opened
        self._read_bytes = end - start
        file = opened.open_file()
        size = opened.size
        windows.stop = file.size if size is None else min(file.size, size)
        is_memory_short = bool(self._runtime.budget.waiting) or opened.store.eviction.is_short(self._block_bytes)
        if is_memory_short or file.evicted_unread_bytes > self._wasted_bytes:
            windows.shrink()
        self._wasted_bytes = file.evicted_unread_bytes
        if windows.policy.window == "grown" and windows.blocks_max:
            if self._runs is not None:
                chunks = self._runs.on_read(start, end, missing=missing, stalled=stalled, may_grow=not is_memory_short)
                if chunks is not None:
                    return WindowDecision("exact", chunks=tuple(chunks))
            elif (
                file.size > self._block_bytes
                and self.layout.is_possible
                and self.layout.is_being_learnt(file, start, end)
            ):
                return NOTHING_AHEAD["exact"]
        length = end - start
        is_alone = (
            missing
            and windows.is_random
            and length <= self._block_bytes
            and not file.has_near(start - length - 1, end + 1)
        )
        return windows.on_read(
            start,
            end,
            missing=missing,
            stalled=stalled,
            at_cursor=at_cursor,
            may_grow=not is_memory_short,
            # Unknown of a hit: it may be reported by another thread, and later than the hit after it.
            backward=missing and not is_alone and self._goes_back(file, start, end),
            is_late=is_late,
            is_alone=is_alone,
        )

    def apply(self, decision: WindowDecision, start: int) -> None:
        """Cancel the requests ahead of an abandoned run, and send the next window's requests of this run.

        ``start`` is the start of the read.
        """
        file = self.opened.file
        if file is None:
            return
        if self.windows.runs or self._runs is not None:
            self.mark_positions()
        if decision.behind:
            self._recycle(file, decision.behind)
        abandoned, ahead = decision.abandoned, decision.ahead
        if abandoned is not None:
            stop = ahead[1] if ahead is not None else start + self._block_bytes
            file.cancel_prefetches(self.opened, *abandoned, keep=(start, stop))
        if ahead is not None:
            if decision.fill != "block":
                request_bytes = self.opened.request_bytes_max
            elif decision.in_parts and self._may_divide:
                request_bytes = self._part_bytes
            else:
                request_bytes = self.request_bytes
            self._request(*ahead, lane="prefetch", fill=decision.fill, request_bytes=request_bytes)
        for chunk in decision.chunks:
            self._request(*chunk, lane="prefetch", fill="exact", request_bytes=self.step_bytes("exact"))
        if self._runtime.events.listeners:
            self._publish_window()

    def learns_from(self, file: BlockFile, end: int) -> bool:
        """Whether a read up to ``end`` brings the end of the file, from which its layout may be learnt."""
        is_end = end > file.size - END_BYTES and file.size > self._block_bytes
        return is_end and self.windows.policy.window == "grown" and self.layout.is_possible

    def apply_beside(self, decision: WindowDecision, start: int, end: int) -> None:
        """``apply``, for a read of ``[start, end)`` past the blocks: the rest of its block is fetched ahead too."""
        opened = self.opened
        if decision.fill == "block" and not opened.store.eviction.is_short(self._block_bytes):
            low, high = extent(start, end, fill="block", grid=opened.open_file().grid)
            beside = (low, start) if self.windows.has_gone_back else (end, high)
            self._request(*beside, lane="prefetch", fill="exact", request_bytes=opened.request_bytes_max)
        self.apply(decision, start)

    def _publish_window(self) -> None:
        blocks = max((run.blocks for run in self.windows.runs), default=0)
        before, self._published_blocks = self._published_blocks, blocks
        if blocks != before:
            name = "window.grown" if blocks > before else "window.shrunk"
            opened = self.opened
            self._runtime.events.publish(name, opened.path, reader_id=opened.session.reader_id, blocks=blocks)

    def _recycle(self, file: BlockFile, stop: int) -> None:
        """Let the window of a long run have the memory of the blocks that the run has left behind, before ``stop``.

        Only in objects that would take most of the memory, unless ``keep_behind`` says otherwise: what fits is kept for
        reads that come back.
        """
        opened = self.opened
        is_small = file.size <= self._runtime.options.memory_bytes // _LARGE_SHARE
        if not (opened.position.keeps_behind or (is_small and not self._recycles_any)):
            opened.store.eviction.recycle(file, stop)

    def bypasses_blocks(self, start: int, end: int) -> bool:
        """Whether a read of ``[start, end)`` needs no blocks: they could not keep its bytes for a read that comes back.

        That is a read of about ``memory_bytes`` or more, behind which nothing is left to look ahead to, by a reader
        that has not gone back. A shorter one stays in memory, and a run that others may follow keeps its window.
        """
        if end - start <= self._kept_bytes:
            return False
        opened, block = self.opened, self._block_bytes
        if self._by_block or opened.total is None or opened.store.disk is not None:
            return False
        windows = self.windows
        if opened.position.keeps_behind or windows.has_gone_back or start < self._past_end:
            return False
        return self.is_off or end + block >= min(opened.end_of_reads(), windows.split_end)

    def on_bypass(self, end: int) -> None:
        """Report a read up to ``end`` that went past the blocks: a read that begins before its end goes back."""
        self._past_end = end

    def mark_positions(self) -> None:
        """Tell the block store where this reader looks ahead."""
        positions = self.windows.positions
        self.opened.position.runs = positions if self._runs is None else (*positions, *self._runs.positions)

    def _goes_back(self, file: BlockFile, start: int, end: int) -> bool:
        """Whether the bytes right behind a read were the last ones read there: then it continues towards the start.

        A short skip between the two makes no difference, unless access is random.
        """
        near = 0 if self.windows.is_random else min(SKIP_BYTES, self._block_bytes // 2)
        segment = file.at(end)
        edge = -(-end // self._block_bytes) * self._block_bytes
        if segment is None and edge - end <= near:
            segment = file.at(edge)
        # The ``next`` of an unread segment is its start.
        return segment is not None and max(end, segment.start) < segment.next <= end + near + 2 * (end - start)

    def _last_end(self, position: int) -> int:
        """The end of the hits that have continued a run since it stood at ``position``."""
        file = self.opened.file
        return position if file is None else file.end_of_hits(position, is_random=self.windows.is_random)

    # --- expected runs ------------------------------------------------------------------------------------------

    def expect_run(self, position: int) -> Run:
        """Begin a run at ``position``. Its first read is reported although its bytes may be resident."""
        run = self.windows.expect(position)
        file = self.opened.file
        segment = None if file is None else file.at(position)
        if segment is not None:
            segment.next, segment.run_bytes, segment.mark_bytes = position, 0, 1
        return run

    def leave_run(self, run: Run | None, position: int) -> None:
        """End an expected run at ``position``: cancel the requests ahead of it that no other run needs."""
        file = self.opened.file
        for start, end in self.windows.leave(run, position):
            if file is not None:
                file.cancel_prefetches(self.opened, start, end)
        self.mark_positions()

    def forget(self) -> None:
        """Forget all reads, as in a new reader."""
        self.windows.forget()
        if self._runs is not None:
            self._runs.forget()
        self.opened.position.runs = ()

    def _use_layout(self, layout: Layout, reads: list[Range]) -> None:
        """The layout of the file is known now; ``reads`` were made meanwhile."""
        windows = self.windows
        limit_bytes = windows.blocks_max * self._block_bytes
        self._runs = runs = ColumnRuns(layout, limit_bytes=limit_bytes, stop=min(windows.stop, windows.split_end))
        may_grow = not self._runtime.budget.waiting and not self.opened.store.eviction.is_short(self._block_bytes)
        for start, end in reads:
            chunks = runs.on_read(start, end, missing=False, stalled=True, may_grow=may_grow)
            if chunks:
                self.apply(WindowDecision("exact", chunks=tuple(chunks)), start)


def part_of(block_bytes: int) -> int:
    """The block cut in half as often as its parts are at least ``PART_BYTES_MIN`` long."""
    part = block_bytes
    while part % 2 == 0 and part // 2 >= PART_BYTES_MIN:
        part //= 2
    return part


# --- the layout of a file ---------------------------------------------------------------------------------------------


class FileLayout:
    """Finds the layout of an open file, once the bytes of its footer are resident.

    Nothing is requested for it, and nothing waits for it. A footer that is wrong, too large or not understood ends the
    search, with a line in the debug log. ``on_found`` is called with the layout and the reads made meanwhile.
    """

    def __init__(self, opened: OpenObject, runtime: Runtime, on_found: Callable[[Layout, list[Range]], None]) -> None:
        self.is_possible = True
        self._opened = opened
        self._runtime = runtime
        self._on_found = on_found
        self._known: WeakKeyDictionary[BlockFile, Layout] = runtime.shared("layouts", WeakKeyDictionary)
        self._module: LayoutModule | None = None
        self._footer: Range | None = None
        self._reads: list[Range] | None = None

    @property
    def is_learning(self) -> bool:
        """Whether the footer is being parsed."""
        return self._reads is not None

    def is_being_learnt(self, file: BlockFile, start: int, end: int) -> bool:
        """Report a read. Whether the layout is being learnt, so that the read is to bring no more than itself."""
        if self._reads is None:
            last = file.blocks.get((file.size - 1) // file.grid.block_bytes)
            if last is None or not last.segments or last.segments[-1].end < file.size or not self._begin(file):
                return False
            self._reads = []
        if len(self._reads) < _READS_MAX:
            self._reads.append((start, end))
        return True

    def _begin(self, file: BlockFile) -> bool:
        """Begin to learn the layout if the bytes for the next step are resident."""
        end = _resident(file, max(0, file.size - END_BYTES), file.size)
        if end is None:
            return False
        found = format_of(end)
        if found is None:
            self.is_possible = False
            return False
        if self._footer is not None and not file.holds(*self._footer):  # As before.
            return False
        self._runtime.supervisor.spawn(self._learn(file, found, end), name=f"layout of {self._opened.path}")
        return True

    async def _learn(self, file: BlockFile, found: Format, end: bytes) -> None:
        layout = None
        try:
            layout = self._known.get(file)
            if layout is None:
                layout = await self._parsed(file, found, end)
        except Exception as error:  # For any reason: no read fails because its file has no layout.
            self.is_possible = False
            logger.debug("%s is read without its %s layout: %s", self._opened.path, found.name, error)
        reads, self._reads = self._reads or [], None
        if layout is not None and self._opened.file is file:
            self._known[file] = layout
            self.is_possible = False
            self._on_found(layout, reads)

    async def _parsed(self, file: BlockFile, found: Format, end: bytes) -> Layout | None:
        """The layout from the footer, parsed on another thread; ``None`` if the footer is not resident."""
        run = self._runtime.run_blocking
        if self._module is None:
            self._module = cast("LayoutModule", await run(importlib.import_module, found.module))
        self._footer = start, stop = self._module.footer_range(end, file.size)
        if stop - start > FOOTER_BYTES_MAX:
            raise ValueError(f"a footer of {stop - start} bytes is larger than {FOOTER_BYTES_MAX}")
        footer = _resident(file, start, stop)
        return None if footer is None else await run(_layout_of, self._module, footer, file.size)


def _layout_of(module: LayoutModule, footer: bytes, size: int) -> Layout:
    return Layout(module.columns_of(footer, size), size=size)


def _resident(file: BlockFile, start: int, end: int) -> bytes | None:
    """``[start, end)`` if it is resident. Counts as no use."""
    pieces: list[memoryview] = []
    while start < end:
        segment = file.at(start)
        if segment is None:
            return None
        stop = min(end, segment.start + segment.filled)
        pieces.append(segment.view[start - segment.start : stop - segment.start])
        start = stop
    return b"".join(pieces)


# --- small reads ------------------------------------------------------------------------------------------------------

# The widened requests whose use is still open. Each is judged by the time this many others were sent.
_OPEN_MAX = 4
# Each widened request costs a credit if its additional bytes were not used, and otherwise earns one. Without credit
# requests are exact. A miss at most _NEAR_BYTES behind the end of the last exact read earns some.
_CREDIT_FIRST = 4
_CREDIT_MAX = 8
_NEAR_CREDIT = 2
_NEAR_BYTES = 4 << 10
# A widened request is at most this part of a block. With blocks of less than 512 KiB requests stay exact.
_BLOCK_SHARE = 8

_NOWHERE = -1 - _NEAR_BYTES


class SmallReads:
    """Decides for one reader how far its exact requests reach. ``block_bytes`` is the size of its blocks."""

    def __init__(self, block_bytes: int) -> None:
        self._bytes_max = block_bytes // _BLOCK_SHARE if block_bytes >= _BLOCK_SHARE * FREE_BYTES_MIN else 0
        self._credit: int | None = None
        self._is_used = False
        self._last_end = _NOWHERE
        self._open: deque[int] = deque()

    def end_of(
        self, start: int, end: int, *, free_bytes: int, is_near: bool, is_used: Callable[[int], bool | None]
    ) -> int:
        """The end of the request for a missing range ``[start, end)``; 0 if it stays exact.

        ``free_bytes`` is the size of a request that costs no more than a smaller one; ``is_near``: no byte is free at
        this store. ``is_used(end)`` tells whether bytes behind the read that ended at ``end`` were read since; ``None``
        if that is not known.
        """
        size = min(free_bytes, self._bytes_max)
        if end - start >= size:
            return 0
        while len(self._open) >= _OPEN_MAX:
            self._judge(is_used(self._open.popleft()))
        credit = self._credit
        if credit is None:
            credit = 0 if is_near else _CREDIT_FIRST
        if 0 <= start - self._last_end <= _NEAR_BYTES:
            credit, self._is_used = min(_CREDIT_MAX, credit + _NEAR_CREDIT), True
        self._credit = credit
        if not self._is_used:
            size = min(size, FREE_BYTES_MIN)
        if not credit or end - start >= size:
            self._last_end = end
            return 0
        self._last_end = _NOWHERE
        self._open.append(end)
        return start + size

    def _judge(self, is_used: bool | None) -> None:
        if is_used is not None and self._credit is not None:
            self._credit = max(0, min(_CREDIT_MAX, self._credit + (1 if is_used else -1)))
            self._is_used = self._credit > 0 and (self._is_used or is_used)
