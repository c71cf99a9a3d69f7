"""The vocabulary of counters, durations and gauges, and the bus of events, to which layers, blocks and readers publish.

Names that Hadoop's S3A streams have keep them (``stream_read_*``, ``action_*``, ``object_*``); the others are ours.
Counters only grow. Gauges are read from the parts that own them. ``aioprefetch.runtime.statistics`` keeps
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import field

from aioprefetch.lean_dataclass import dataclass

logger = logging.getLogger("aioprefetch")

COUNTERS: Mapping[str, str] = {
    "action_http_get_request": "GET requests sent for object bytes",
    "action_http_head_request": "HEAD requests sent",
    "action_executor_acquired": "requests that waited for a slot",
    "action_file_opened": "requests by which readers learned size and version",
    "object_list_request": "pages of listings requested",
    "list_duplicates": "entries of listings that came again with the next page, and were dropped",
    "list_strangers": "entries of listings that lay elsewhere than what was listed, for which it was given up",
    "object_put_request": "objects or parts of objects sent",
    "object_copy_request": "copies asked of the store",
    "object_delete_request": "delete requests sent",
    "stream_write_bytes": "bytes of objects sent",
    "stream_read_opened": "readers opened, by their first use",
    "stream_read_closed": "readers closed",
    "stream_read_close_operations": "calls of aclose(), also of a reader that was closed",
    "stream_leaks": "readers collected without having been closed",
    "stream_read_unbuffered": "calls of unbuffer()",
    "stream_aborted": "requests broken off",
    "stream_drained": "requests that no read needed to their end, and that were finished to keep their connection",
    "stream_read_bytes": "bytes that readers gave to their callers",
    "stream_read_total_bytes": "bytes of object bodies received, wanted or not",
    "stream_read_bytes_discarded_in_abort": "bytes that the requests broken off had not brought yet",
    "stream_read_seek_bytes_skipped": "bytes skipped by seeks forward",
    "stream_read_bytes_backwards_on_seek": "bytes gone back by seeks backward",
    "stream_read_operations": "reads by the caller, any method",
    "stream_read_operations_incomplete": "reads that met the end and brought less than was asked for",
    "stream_read_fully_operations": "calls of read_exactly_at()",
    "stream_read_exceptions": "reads that ended in an error",
    "stream_read_version_mismatches": "reads that met another version of the object",
    "stream_read_seek_operations": "seeks that moved the cursor",
    "stream_read_seek_forward_operations": "seeks forward",
    "stream_read_seek_backward_operations": "seeks backward",
    "stream_read_seek_policy_changed": "calls of set_policy() that changed it",
    "stream_read_vectored_operations": "calls with several ranges",
    "stream_read_vectored_incoming_ranges": "ranges in those calls",
    "stream_read_vectored_incoming_bytes": "bytes in those ranges",
    "stream_read_vectored_combined_ranges": "pieces they were merged into",
    "stream_read_vectored_read_bytes_discarded": "gap bytes read only to merge ranges",
    "stream_read_block_fetches": "fetches started by the block store",
    "stream_read_block_joins": "reads that joined a fetch already in flight",
    "stream_read_block_read": "requests of readers to the store: of fetches, and of bytes that stay in no block",
    "stream_read_block_acquire_read": "waits of reads for bytes, their memory included",
    "stream_read_block_hits": "reads, or requests of a read of several ranges, served from resident bytes alone",
    "stream_read_block_misses": "those that had to wait for a fetch",
    "hits_memory": "the hits",
    "hits_disk": "the misses that block files served alone",
    "hits_network": "the misses that needed the store",
    "demand_wait_microseconds": "how long reads waited for bytes",
    "memory_waits": "fetches that waited for memory",
    "stream_read_prefetch_operations": "fetches in the prefetch lane",
    "prefetch_bytes_used": "bytes prefetched, in pieces of memory of which something was read",
    "prefetch_bytes_wasted": "bytes prefetched, in pieces that were evicted unread or whose reader closed before",
    "prefetch_lead": "pieces of memory that were prefetched and then read",
    "stream_evict_blocks_from_cache": "blocks, or parts of them, evicted from memory",
    "stream_read_block_disk_hits": "blocks, or parts of blocks, that came from their block files",
    "stream_file_cache_blocks_written": "block files written",
    "stream_file_cache_blocks_skipped": "blocks not written, because such files were evicted before they were read",
    "stream_file_cache_eviction": "block files removed to make room for others",
    "stream_file_cache_failures": "failures of the disk with the block files, none of which failed a read",
    "scan_reads": "reads that column scans submitted: the buffers of a page, mostly",
    "scan_requests": "requests that scans made of them",
    "scan_bytes_wanted": "bytes in those reads, without what came with the tail of the file",
    "scan_bytes_requested": "bytes in those requests, gaps included",
    "scan_budget_overdrafts": "those requests that exceeded the budget, because a scan could not have gone on",
    "scan_waits": "reads that a decoder waited for before they had arrived",
    "retries": "attempts after the first",
    "retries_throttled": "those because the store asked for fewer requests",
    "retries_timed_out": "those because a response took too long",
    "retries_unavailable": "those because a connection or the store failed",
    "retries_protocol": "those because a response contradicted its request",
    "retries_other": "those for any other cause",
    "retries_resumed": "retries that went on in the middle of a body",
    "retries_exhausted": "operations given up after their last attempt",
    "throttled": "responses that asked for fewer requests",
    "transport_requests": "requests for object bytes that our own transport sent",
    "transport_fallbacks": "reads that took the slower way of the service's own library, because they had to",
    "transport_connections_opened": "connections that the transport opened",
    "transport_stale_connections": "requests sent again because the server had closed a kept connection meanwhile",
    "transport_signatures": "objects for which a signature was made that serves all their ranges",
    "cache_hits": "reads served by the cache layer",
    "cache_misses": "reads of the cache layer that went to the store for bytes",
    "cache_fills": "objects written to the cache",
    "cache_revalidations": (
        'conditional requests with the response "not modified": of the layer, or of callers with the bytes'
    ),
    "cache_evictions": "entries evicted from the cache",
    "cache_failures": "failures of the cache store, none of which failed a read",
}

# Events with a duration. Each is a counter too: the number of its starts.
DURATIONS: Mapping[str, str] = {
    "action_http_get_request": "from the request to the head of its response",
    "action_http_head_request": "from the request to its response",
    "object_list_request": "from the request for a page to the page",
    "action_executor_acquired": "in the queue of ConcurrentLimit",
    "action_file_opened": "from a reader's first request to the head of its response",
    "stream_read_block_read": "one request of a reader to the store: all attempts, to the last byte",
    "stream_read_block_acquire_read": "one wait of a read for bytes",
    "memory_waits": "one wait of a fetch for the budget",
    "stream_read_prefetch_operations": "one prefetch, its waits for memory and a slot included",
    "prefetch_lead": "from the last byte of what was prefetched to its first read; 0 when the read came before",
}

GAUGES: Mapping[str, str] = {
    "transport_connections_open": "connections of the transport that are open or being made",
    "transport_connections_idle": "those of them that wait for a request",
    "stream_read_active_prefetch_operations": "prefetches in flight",
    "stream_read_blocks_in_cache": "blocks in memory, of which something is resident or on its way",
    "stream_read_active_memory_in_use": "bytes of memory in use or reserved",
    "slots_withheld": "slots that may not be used because the store asked for fewer requests",
    "stream_read_gauge_input_policy": "a reader's policy: its place in the list of policies, from 1; 0 for an operator",
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a dotted name (``request.finished``), the path, and facts. Never a secret."""

    name: str
    path: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


Listener = Callable[[Event], None]


class EventBus:
    """The event bus of layers, blocks and readers. Without a listener a publication costs one truth test."""

    __slots__ = ("_complained", "listeners")

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self._complained = False

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` for each event from now on; the function returned ends that."""
        self.listeners = (*self.listeners, listener)

        def unsubscribe() -> None:
            self.listeners = tuple(other for other in self.listeners if other is not listener)

        return unsubscribe

    def publish(self, name: str, path: str = "", **facts: object) -> None:
        """Notify every listener. A listener that raises is logged once and never disturbs a read."""
        if not self.listeners:
            return
        event = Event(name, path, facts)
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:
                if not self._complained:
                    self._complained = True
                    logger.exception("a listener failed at event %s; further failures are not logged", name)
