"""What fetches and blocks count, and in whose name: each in that of the reader for which it was fetched."""

from __future__ import annotations

from collections.abc import Iterable

from aioprefetch.blocks.block import Segment, SegmentState
from aioprefetch.blocks.fetch import Fetch, Wait
from aioprefetch.errors import Closed
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Counters, Tier


def counters_of(runtime: Runtime, segment: Segment) -> Counters:
    """Where counts what happens to a segment: with the reader that had it fetched, as long as that is there."""
    return runtime.ledger.of(None if segment.account is None else segment.account())


def count_begin(runtime: Runtime, fetch: Fetch) -> None:
    """A fetch begins."""
    counters = runtime.ledger.of(fetch.account)
    counters["stream_read_block_fetches"] += 1
    counters["stream_read_prefetch_operations"] += fetch.prefetched
    fetch.started = runtime.now()


def count_end(runtime: Runtime, fetch: Fetch, error: Exception | None) -> None:
    """A fetch ends; ``Closed`` means that it was broken off."""
    counters = runtime.ledger.of(fetch.account)
    if isinstance(error, Closed):
        if fetch.ticket is None:  # It had its memory, so its request was on its way.
            counters["stream_aborted"] += 1
            size = fetch.end - fetch.start if fetch.head is None else fetch.head.size
            counters["stream_read_bytes_discarded_in_abort"] += size - fetch.received
    elif fetch.prefetched and error is not None:
        counters.failed("stream_read_prefetch_operations")
    elif fetch.prefetched:
        counters.succeeded("stream_read_prefetch_operations", runtime.now() - fetch.started)


def count_eviction(runtime: Runtime, first: Segment) -> None:
    """Count the eviction of a block, or a part, for the reader that had its ``first`` segment fetched."""
    counters_of(runtime, first)["stream_evict_blocks_from_cache"] += 1


def count_ready(runtime: Runtime, segment: Segment) -> None:
    """All that will come of a segment has come."""
    segment.ready_at = runtime.now()
    if not segment.unused_prefetch:
        settle(runtime, segment)


def count_first_read(runtime: Runtime, segment: Segment) -> None:
    """Something of a prefetched segment is read for the first time. From any thread."""
    segment.unused_prefetch = False
    counters = counters_of(runtime, segment)
    counters["prefetch_lead"] += 1
    filling = segment.state is SegmentState.FILLING
    counters.succeeded("prefetch_lead", 0.0 if filling else runtime.now() - segment.ready_at)
    if not filling:  # Else it is not known yet how much will come.
        settle(runtime, segment)


def settle(runtime: Runtime, segment: Segment) -> None:
    """Count what was prefetched as used or wasted, once: at its first read, or when there will be none."""
    if segment.is_unsettled:
        segment.is_unsettled = False
        name = "prefetch_bytes_wasted" if segment.unused_prefetch else "prefetch_bytes_used"
        counters_of(runtime, segment)[name] += segment.filled


def tier_of(waits: Iterable[Wait]) -> Tier:
    """The slowest tier that a read had to wait for; memory if all its blocks were resident when it began."""
    return max((wait.fetch.tier for wait in waits if wait.was_late), default=Tier.MEMORY)
