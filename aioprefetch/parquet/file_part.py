"""One planned file as a part of a scan: its columns for the scheduling loop, its windows for the decode loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import pyarrow as pa

from aioprefetch.parquet.byte_plan import Plan
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.page_header import PageOptions
from aioprefetch.parquet.projection import Projection
from aioprefetch.parquet.row_groups import LeafScheduler, WindowsDecoder
from aioprefetch.parquet.sparse_file import SparseFile
from aioprefetch.parquet.windows import WindowMaker
from aioprefetch.scheduler.io_service import IoService
from aioprefetch.scheduler.pages import ScanPart

Finish = Callable[[pa.RecordBatch], "pa.RecordBatch | None"]


def file_part(
    footer: Footer,
    plan: Plan,
    projection: Projection,
    service: IoService,
    limits: MemoryLimits,
    *,
    batch_rows: int,
    pages: PageOptions,
    finish: Finish | None = None,
    rank: int = 0,
    on_close: Callable[[], None] | None = None,
) -> ScanPart:
    """The part of a planned file. Files with a smaller ``rank`` are needed before it.

    ``finish`` is applied to its batches; ``on_close`` is called when all its pages are released.
    """
    memory = SparseFile(footer.size, path=footer.path)
    windows, units = WindowMaker(footer, plan, projection, memory, pages, segment_bytes=limits.segment_bytes).make(
        batch_rows
    )
    return ScanPart(
        columns=[LeafScheduler(unit, plan.row_count) for unit in units],
        root=WindowsDecoder(
            windows,
            projection.read,
            on_loop=partial(_on_loop, service.runtime.loop),
            is_memory_short=limits.is_short,
            on_close=on_close,
        ),
        io=service.file(
            footer.pinned,
            rank=rank,
            memory=memory,
            planned=(*plan.requests, *plan.held_ranges),
            wanted=plan.wanted_ranges(footer.pinned.tail_start),
            gap_bytes=plan.gap_bytes,
        ),
        rows=plan.row_count,
        finish=finish,
    )


def _on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed, and with it the scan.
        loop.call_soon_threadsafe(work)


# --- memory -----------------------------------------------------------------------------------------------------------


# A scan without a budget takes 1/2 of the runtime's memory, so that readers and another scan have some.
BUDGET_SHARE = 2

# If a scan's own budget is short, 1/2 of it is for received pages. The rest is for pyarrow's decoding: a decompressed
# page of each column, and the memory of dropped batches that its allocator keeps.
_PAGES_SHARE = 2

# The number of row groups that must fit: the current one and the next. Larger ones stream through the memory in
# segments, of which a leaf holds two at once while four are in flight.
_ROW_GROUPS_HELD = 2
_SEGMENTS_HELD = 6

# If not everything fits, at least this number of requests must: a few large ones would arrive one after the other.
REQUESTS_HELD = 8

# Smaller segments would cost more time in requests than they save in memory.
SEGMENT_BYTES_MIN = 256 << 10


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """``held_bytes`` of pages at once (0: no bound), of which chunks are read in pieces of ``segment_bytes`` at most.

    No request has more than ``request_bytes_max``. ``is_short``: not everything fits, so that a slow consumer stops the
    reads. ``is_cut``: row groups do not fit, and their chunks are cut into smaller segments than were planned.
    """

    held_bytes: int
    segment_bytes: int
    request_bytes_max: int
    is_short: bool
    is_cut: bool = False


def memory_limits(plan: Plan, budget_bytes: int | None, memory_bytes: int) -> MemoryLimits:
    """The limits for a plan with the scan's own budget, if it has one, in a runtime of ``memory_bytes``."""
    segment_bytes = plan.request_bytes_max
    # Held ranges are cut: they are copied on the loop in pieces, and may be as large as the runtime's memory.
    largest = max((end - start for start, end in plan.requests), default=0)
    largest = max(largest, segment_bytes)
    if budget_bytes == 0:
        return MemoryLimits(0, segment_bytes, largest, is_short=False)
    budget = memory_bytes // BUDGET_SHARE if budget_bytes is None else min(budget_bytes, memory_bytes)
    if plan.projected_bytes <= budget:
        return MemoryLimits(budget, segment_bytes, largest, is_short=False)
    held = budget if budget_bytes is None else max(budget // _PAGES_SHARE, 1)
    if _largest_row_group(plan) * _ROW_GROUPS_HELD <= held:
        request_bytes_max = max(segment_bytes, min(largest, held // REQUESTS_HELD))
        return MemoryLimits(held, segment_bytes, request_bytes_max, is_short=True)
    smaller = min(max(held // (_SEGMENTS_HELD * len(plan.columns)), SEGMENT_BYTES_MIN), segment_bytes)
    return MemoryLimits(held, smaller, smaller, is_short=True, is_cut=True)


def _largest_row_group(plan: Plan) -> int:
    groups = groupby(plan.chunks, key=lambda planned: planned.chunk.row_group)
    return max((sum(high - low for chunk in group for low, high in chunk.ranges) for _, group in groups), default=0)
