"""How much of a scan may be in memory, and in what pieces it is read so that it stays so. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from aioprefetch.parquet.byte_plan import Plan

# A scan that was given no budget takes this share of the runtime's memory: readers and another scan find some.
_BUDGET_SHARE = 2

# Where a given budget is short, this share of it is for pages on their way. The rest is for what pyarrow takes to
# decode them: a decompressed page of each column, and what its allocator keeps of batches that are gone.
_PAGES_SHARE = 2

# So many row groups must fit: the one that is decoded and the next one. Larger ones stream through the memory in
# segments, of which a leaf holds two at once; twice as many are on their way.
_ROW_GROUPS_HELD = 2
_SEGMENTS_HELD = 6

# Where not everything fits, so many requests must: a few large ones would come one after the other.
_REQUESTS_HELD = 8

# Smaller segments would cost more time in requests than they save in memory.
_SEGMENT_BYTES_MIN = 256 << 10


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
    """The limits for a plan, with the budget that was given, if any, in a runtime of ``memory_bytes``."""
    segment_bytes = plan.request_bytes_max
    # What is held is cut: it is copied on the loop, piece by piece, and may be as large as the runtime's memory.
    largest = max((end - start for start, end in plan.requests), default=0)
    largest = max(largest, segment_bytes)
    if budget_bytes == 0:
        return MemoryLimits(0, segment_bytes, largest, is_short=False)
    budget = memory_bytes // _BUDGET_SHARE if budget_bytes is None else min(budget_bytes, memory_bytes)
    if plan.projected_bytes <= budget:
        return MemoryLimits(budget, segment_bytes, largest, is_short=False)
    held = budget if budget_bytes is None else max(budget // _PAGES_SHARE, 1)
    if _largest_row_group(plan) * _ROW_GROUPS_HELD <= held:
        request_bytes_max = max(segment_bytes, min(largest, held // _REQUESTS_HELD))
        return MemoryLimits(held, segment_bytes, request_bytes_max, is_short=True)
    smaller = min(max(held // (_SEGMENTS_HELD * len(plan.columns)), _SEGMENT_BYTES_MIN), segment_bytes)
    return MemoryLimits(held, smaller, smaller, is_short=True, is_cut=True)


def _largest_row_group(plan: Plan) -> int:
    groups = groupby(plan.chunks, key=lambda planned: planned.chunk.row_group)
    return max((sum(high - low for one in group for low, high in one.ranges) for _, group in groups), default=0)
