"""Pages of version 2.1 and 2.2 as ``PhysicalPageScheduler``: their reads are planned in one step or two.

A page is read whole if nearly all its rows are wanted, or if it is small: a second round trip costs more than the
bytes. All buffers are submitted together; they are adjacent and become one request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.lance.structural.constant import ConstantPlan
from aioprefetch.lance.structural.decoded_rows import DecodedRows, DecodedSpan, divided
from aioprefetch.lance.structural.full_zip import FullZipPage, FullZipPlan
from aioprefetch.lance.structural.layouts import Constant, FullZip, MiniBlock, PageLayout
from aioprefetch.lance.structural.mini_block import MiniBlockPlan
from aioprefetch.ranges import Range, total_length

# Pages up to this size are always read whole.
WHOLE_PAGE_BYTES = 64 << 10
# Larger pages are read whole if at most one row out of this number is unwanted.
_UNWANTED_SHARE = 8


class Page(Protocol):
    """A loaded page. Stateless: batches decode different rows of it on several threads."""

    def breaks(self, ranges: Sequence[Range], rows: int) -> Sequence[int]:
        """Ascending rows before which to divide ``ranges`` into parts that take about the memory of ``rows`` rows.

        Empty if decoding copies no values.
        """
        ...

    def decode(self, ranges: Sequence[Range]) -> DecodedRows:
        """Decode ``ranges``: ascending, disjoint, not empty, and loaded."""
        ...


class StructuralPageScheduler(Protocol):
    """The ``PhysicalPageScheduler`` of a page of version 2.1 or 2.2."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        ...

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the first step."""
        ...

    def is_indirect(self, ranges: RowRanges) -> bool:
        """Whether there is a second step."""
        ...

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """The byte ranges of the second step."""
        ...

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        """The rows of ``ranges``, from the responses of both steps in order."""
        ...


class LoadedRows:
    """The loaded, wanted rows of a page. The page is parsed when the first batch is decoded.

    If batches are small, rows of several batches are decoded at once and kept for the next ones.
    """

    def __init__(self, ranges: RowRanges, page: Page | Deferred) -> None:
        self.rows = ranges.rows
        self._ranges = ranges
        self._page = page
        self._lock = threading.Lock()
        self._span: DecodedSpan | None = None

    def decoded_parts(self, skip: int, rows: int, together: int) -> Iterator[DecodedRows]:
        """Decode ``rows`` of the wanted rows after the first ``skip``, in order; on any thread.

        ``together`` is the number of rows to decode at once. A shorter request decodes the rows after it too; a longer
        one is decoded in parts, whose temporary memory is small compared with the result.
        """
        ahead = min(together, self.rows - skip)
        with self._lock:
            span = self._span
            if span is None or not span.first <= skip <= skip + rows <= span.end:
                if ahead < 2 * rows:
                    span = None
                else:
                    span = self._span = DecodedSpan(self._decode(self._rows(skip, ahead)), skip, ahead)
        if span is not None:
            return iter([span.cut(skip, skip + rows)])
        ranges = self._rows(skip, rows)
        parts = [ranges] if rows <= together else divided(ranges, self._parsed().breaks(ranges, together))
        return (self._decode(part) for part in parts)

    def _rows(self, skip: int, rows: int) -> list[Range]:
        first, last = self._ranges.row_at(skip), self._ranges.row_at(skip + rows - 1) + 1
        part = self._ranges.within(first, last)
        return [(first + start, first + end) for start, end in part.bytes_at(0, 1)]

    def _parsed(self) -> Page:
        return self._page.get() if isinstance(self._page, Deferred) else self._page

    def _decode(self, ranges: Sequence[Range]) -> DecodedRows:
        return self._parsed().decode(ranges)


class Deferred:
    """A page that takes time to parse (dictionaries, levels): it is parsed once, on the first thread that needs it."""

    def __init__(self, make: Callable[[], Page]) -> None:
        self._make: Callable[[], Page] | None = make
        self._lock = threading.Lock()
        self._page: Page | None = None

    def get(self) -> Page:
        """The page. Raises the errors of parsing."""
        with self._lock:
            if self._page is None:
                assert self._make is not None
                self._page = self._make()
                self._make = None
            return self._page


def page_scheduler(layout: PageLayout, rows: int, buffers: Sequence[Range]) -> StructuralPageScheduler:
    """The scheduler of a page of ``rows`` rows. ``UntrustedMetadata`` if its buffers do not fit its layout."""
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
    """Reads all buffers at once, or chunk metadata, dictionary and repetition index first and chunks second."""

    def __init__(self, plan: MiniBlockPlan) -> None:
        self._plan = plan

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._plan.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        return list(self._plan.index_buffers if self.is_indirect(ranges) else self._plan.buffers)

    def is_indirect(self, ranges: RowRanges) -> bool:
        return not _is_whole(ranges, self._plan.rows, self._plan.buffers)

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        return self._plan.chunk_ranges(self._plan.page(reads), ranges.bytes_at(0, 1))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        views = list(reads)
        if self.is_indirect(ranges):
            return LoadedRows(ranges, Deferred(lambda: self._plan.loaded(ranges.bytes_at(0, 1), views)))
        return LoadedRows(ranges, Deferred(lambda: self._plan.loaded_whole(views)))


class FullZipScheduler:
    """Reads rows of equal width directly, other rows as a whole page or by their positions."""

    def __init__(self, plan: FullZipPlan) -> None:
        self._plan = plan

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._plan.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        if not self._plan.zip.has_index:
            return self._plan.data_ranges(ranges.bytes_at(0, 1))
        if self.is_indirect(ranges):
            return self._plan.index_ranges(ranges.bytes_at(0, 1))
        return list(self._plan.buffers)

    def is_indirect(self, ranges: RowRanges) -> bool:
        return self._plan.zip.has_index and not _is_whole(ranges, self._plan.rows, self._plan.buffers)

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        base = self._plan.buffers[0][0]
        row_positions = [self._plan.positions(view) for view in reads]
        return [(base + int(positions[0]), base + int(positions[-1])) for positions in row_positions]

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
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
    """Reads all buffers, which are small."""

    def __init__(self, plan: ConstantPlan) -> None:
        self._plan = plan

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._plan.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        return list(self._plan.buffers)

    def is_indirect(self, ranges: RowRanges) -> bool:
        return False

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """Not called, since ``is_indirect`` is false."""
        return []

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> LoadedRows:
        views = list(reads)
        return LoadedRows(ranges, Deferred(lambda: self._plan.page(views)))
