"""The counters of fetches and blocks. Each segment counts for the reader that it was fetched for."""

from __future__ import annotations

from collections.abc import Iterable

from aioprefetch.blocks.block import Segment, SegmentState
from aioprefetch.blocks.fetch import Fetch, Wait
from aioprefetch.errors import Closed
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Counters, Tier


def counters_of(runtime: Runtime, segment: Segment) -> Counters:
    """The counters for the events of a segment: those of the reader that it was fetched for, as long as it exists."""
    return runtime.ledger.of(None if segment.account is None else segment.account())


def count_begin(runtime: Runtime, fetch: Fetch) -> None:
    """A fetch begins."""
    account = fetch.account
    counters = runtime.ledger.own if account is None else account.counters
    counters["stream_read_block_fetches"] += 1
    if fetch.prefetched:
        counters["stream_read_prefetch_operations"] += 1
        fetch.started = runtime.now()


def count_end(runtime: Runtime, fetch: Fetch, error: Exception | None) -> None:
    """A fetch ends; ``Closed`` means that it was cancelled."""
    counters = runtime.ledger.of(fetch.account)
    if fetch.is_drained and error is None:
        counters["stream_drained"] += 1
    if isinstance(error, Closed):
        if fetch.was_sent:
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
    """A segment is complete: no more of its bytes will arrive."""
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
    if not filling:  # Otherwise the number of bytes is not known yet.
        settle(runtime, segment)


def settle(runtime: Runtime, segment: Segment) -> None:
    """Count prefetched bytes as used or wasted, once: at their first read, or when no read can follow."""
    if segment.is_unsettled:
        segment.is_unsettled = False
        name = "prefetch_bytes_wasted" if segment.unused_prefetch else "prefetch_bytes_used"
        counters_of(runtime, segment)[name] += segment.filled


def tier_of(waits: Iterable[Wait]) -> Tier:
    """The slowest tier that a read had to wait for; memory if all its blocks were resident when it began."""
    return max((wait.fetch.tier for wait in waits if wait.was_late), default=Tier.MEMORY)
