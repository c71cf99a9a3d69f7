"""Pages of version 2.1 and 2.2 as the physical schedulers that ``LoadingPage`` loads: what to read, in one step or two.

What is read whole: every page of which nearly all rows are wanted, and every small page, since a second round trip
costs more than its bytes. All buffers go in one submit; they lie next to each other and become one request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.lance.structural.constant import ConstantPlan
from aioprefetch.lance.structural.full_zip import FullZipPage, FullZipPlan
from aioprefetch.lance.structural.layouts import Constant, FullZip, Layout, MiniBlock
from aioprefetch.lance.structural.mini_block import MiniBlockPlan
from aioprefetch.lance.structural.segment import Segment, Span, divided
from aioprefetch.ranges import Range, total_length

# Pages up to this size are read whole, whatever is wanted of them.
WHOLE_PAGE_BYTES = 64 << 10
# Of larger ones, those of which at most one row in so many is not wanted.
_UNWANTED_SHARE = 8


class Page(Protocol):
    """A page that is loaded. Stateless: batches decode different rows of it on several threads."""

    def breaks(self, ranges: Sequence[Range], rows: int) -> Sequence[int]:
        """Rows, ascending, before which decoding is best divided: pieces take about what ``rows`` rows do.

        None where values are not copied anyway.
        """
        ...

    def decode(self, ranges: Sequence[Range]) -> Segment:
        """The rows of ``ranges``: ascending, disjoint, not empty, and loaded."""
        ...


class PageScheduler(Protocol):
    """See ``PhysicalPageScheduler``."""

    @property
    def rows(self) -> int:
        """How many rows the page has."""
        ...

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The bytes that are needed first."""
        ...

    def is_indirect(self, ranges: RowRanges) -> bool:
        """Whether the rest can only be planned when those have come."""
        ...

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """The rest of the bytes."""
        ...

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        """The rows of ``ranges``, from all reads in order."""
        ...


class LoadedRows:
    """The wanted rows of a page, loaded. The page itself is made of its bytes by the first batch that decodes it.

    Where batches are small, rows of several are decoded at once and kept until the next ones are needed.
    """

    def __init__(self, ranges: RowRanges, page: Page | Deferred) -> None:
        self.rows = ranges.rows
        self._ranges = ranges
        self._page = page
        self._lock = threading.Lock()
        self._span: Span | None = None

    def segments(self, skip: int, rows: int, together: int) -> Iterator[Segment]:
        """``rows`` of the wanted rows behind the first ``skip``, one after the other; on any thread.

        ``together``: how many rows are decoded at once, where there are so many: fewer are decoded with those behind
        them, more in pieces, whose temporary memory is small beside what comes of them.
        """
        ahead = min(together, self.rows - skip)
        with self._lock:
            span = self._span
            if span is None or not span.first <= skip <= skip + rows <= span.end:
                if ahead < 2 * rows:
                    span = None
                else:
                    span = self._span = Span(self._decode(self._rows(skip, ahead)), skip, ahead)
        if span is not None:
            return iter([span.cut(skip, skip + rows)])
        ranges = self._rows(skip, rows)
        parts = [ranges] if rows <= together else divided(ranges, self._made().breaks(ranges, together))
        return (self._decode(part) for part in parts)

    def _rows(self, skip: int, rows: int) -> list[Range]:
        first, last = self._ranges.row_at(skip), self._ranges.row_at(skip + rows - 1) + 1
        part = self._ranges.within(first, last)
        return [(first + start, first + end) for start, end in part.bytes_at(0, 1)]

    def _made(self) -> Page:
        return self._page.get() if isinstance(self._page, Deferred) else self._page

    def _decode(self, ranges: Sequence[Range]) -> Segment:
        return self._made().decode(ranges)


class Deferred:
    """A page whose making takes time (dictionaries, levels): made once, on the thread that needs it first."""

    def __init__(self, make: Callable[[], Page]) -> None:
        self._make: Callable[[], Page] | None = make
        self._lock = threading.Lock()
        self._page: Page | None = None

    def get(self) -> Page:
        """The page. Raises what its making does."""
        with self._lock:
            if self._page is None:
                assert self._make is not None
                self._page = self._make()
                self._make = None
            return self._page


def page_scheduler(layout: Layout, rows: int, buffers: Sequence[Range]) -> PageScheduler:
    """The scheduler of a page of ``rows`` rows. ``UntrustedMetadata`` when its buffers do not fit its layout."""
    match layout:
        case MiniBlock():
            return MiniBlockScheduler(MiniBlockPlan(layout, rows, buffers))
        case FullZip():
            return FullZipScheduler(FullZipPlan(layout, rows, buffers))
        case Constant():
            return ConstantScheduler(ConstantPlan(layout, rows, buffers))


def _is_whole(ranges: RowRanges, rows: int, buffers: Sequence[Range]) -> bool:
    size_bytes = total_length(buffers)
    return size_bytes <= WHOLE_PAGE_BYTES or (rows - ranges.rows) * _UNWANTED_SHARE <= rows


class MiniBlockScheduler:
    """All buffers at once, or chunk metadata with dictionary and repetition index, then chunks."""

    def __init__(self, plan: MiniBlockPlan) -> None:
        self._plan = plan

    @property
    def rows(self) -> int:
        """How many rows the page has."""
        return self._plan.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        """See ``PageScheduler``."""
        return list(self._plan.index_buffers if self.is_indirect(ranges) else self._plan.buffers)

    def is_indirect(self, ranges: RowRanges) -> bool:
        """See ``PageScheduler``."""
        return not _is_whole(ranges, self._plan.rows, self._plan.buffers)

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """See ``PageScheduler``."""
        return self._plan.chunk_ranges(self._plan.page(reads), ranges.bytes_at(0, 1))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        """See ``PageScheduler``."""
        views = list(reads)
        if self.is_indirect(ranges):
            return LoadedRows(ranges, Deferred(lambda: self._plan.loaded(ranges.bytes_at(0, 1), views)))
        return LoadedRows(ranges, Deferred(lambda: self._plan.loaded_whole(views)))


class FullZipScheduler:
    """Rows of equal width are read directly, others whole or by their positions."""

    def __init__(self, plan: FullZipPlan) -> None:
        self._plan = plan

    @property
    def rows(self) -> int:
        """How many rows the page has."""
        return self._plan.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        """See ``PageScheduler``."""
        if not self._plan.zip.has_index:
            return self._plan.data_ranges(ranges.bytes_at(0, 1))
        if self.is_indirect(ranges):
            return self._plan.index_ranges(ranges.bytes_at(0, 1))
        return list(self._plan.buffers)

    def is_indirect(self, ranges: RowRanges) -> bool:
        """See ``PageScheduler``."""
        return self._plan.zip.has_index and not _is_whole(ranges, self._plan.rows, self._plan.buffers)

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """See ``PageScheduler``."""
        base = self._plan.buffers[0][0]
        found = [self._plan.positions(view) for view in reads]
        return [(base + int(one[0]), base + int(one[-1])) for one in found]

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        """See ``PageScheduler``."""
        views, pairs = list(reads), ranges.bytes_at(0, 1)
        if not self._plan.zip.has_index:
            return LoadedRows(ranges, self._plan.page(pairs, views, None))
        if self.is_indirect(ranges):
            positions = [self._plan.positions(view) for view in views[: len(pairs)]]
            return LoadedRows(ranges, self._plan.page(pairs, views[len(pairs) :], positions))
        positions = [self._plan.positions(views[1])]
        whole = views[0][int(positions[0][0]) :]
        page: FullZipPage = self._plan.page([(0, self._plan.rows)], [whole], positions)
        return LoadedRows(ranges, page)


class ConstantScheduler:
    """All buffers, which are few and small."""

    def __init__(self, plan: ConstantPlan) -> None:
        self._plan = plan

    @property
    def rows(self) -> int:
        """How many rows the page has."""
        return self._plan.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        """See ``PageScheduler``."""
        return list(self._plan.buffers)

    def is_indirect(self, ranges: RowRanges) -> bool:
        """See ``PageScheduler``."""
        return False

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """Never called."""
        return []

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        """See ``PageScheduler``."""
        views = list(reads)
        return LoadedRows(ranges, Deferred(lambda: self._plan.page(views)))
