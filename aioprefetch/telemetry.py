"""Counters and events: one vocabulary for readers, blocks, layers and services. Always on, nearly free.

Names that Hadoop's S3A streams have keep them (``stream_read_*``, ``action_http_*``, ``object_*``); the others are
ours. Counters only grow; gauges (bytes in use, requests in flight) are read from the parts that own them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

logger = logging.getLogger("aioprefetch")

COUNTERS: Mapping[str, str] = {
    "action_http_get_request": "GET requests sent for object bytes",
    "action_http_head_request": "HEAD requests sent",
    "object_list_request": "pages of listings requested",
    "object_put_request": "objects or parts of objects sent",
    "object_copy_request": "copies asked of the store",
    "object_delete_request": "delete requests sent",
    "stream_read_total_bytes": "bytes of object bodies received, wanted or not",
    "stream_write_bytes": "bytes of objects sent",
    "stream_read_opened": "readers opened",
    "stream_read_closed": "readers closed",
    "stream_read_unbuffered": "calls of unbuffer()",
    "stream_read_operations": "reads by the caller, any method",
    "stream_read_bytes": "bytes given to the caller",
    "stream_read_exceptions": "reads that ended in an error",
    "stream_read_version_mismatches": "reads that met another version of the object",
    "stream_read_seek_operations": "seeks that moved the cursor",
    "stream_read_seek_forward_operations": "seeks forward",
    "stream_read_seek_backward_operations": "seeks backward",
    "stream_read_vectored_operations": "calls with several ranges",
    "stream_read_vectored_incoming_ranges": "ranges in those calls",
    "stream_read_vectored_combined_ranges": "pieces they were merged into",
    "stream_read_vectored_read_bytes_discarded": "gap bytes read only to merge ranges",
    "stream_read_prefetch_operations": "fetches in the prefetch lane",
    "stream_read_block_hits": "reads, or requests of a read of several ranges, served from resident bytes alone",
    "stream_read_block_misses": "those that had to wait for a fetch",
    "stream_read_block_fetches": "fetches started by the block store",
    "stream_read_block_joins": "reads that joined a fetch already in flight",
    "stream_evict_blocks_from_cache": "blocks evicted from memory",
    "prefetch_bytes_wasted": "bytes prefetched and evicted unread",
    "retries": "attempts after the first",
    "retries_resumed": "retries that went on in the middle of a body",
    "retries_exhausted": "operations given up after their last attempt",
    "throttled": "answers that asked for fewer requests",
    "concurrency_waits": "requests that had to wait for a slot",
    "cache_hits": "reads served by the cache layer",
    "cache_misses": "reads of the cache layer that went to the store",
    "cache_fills": "objects written to the cache",
    "cache_revalidations": "conditional requests that proved an entry fresh",
    "cache_evictions": "entries evicted from the cache",
    "cache_failures": "failures of the cache store, none of which failed a read",
}


class Counters(dict[str, int]):
    """A count for every name of ``COUNTERS``; an unknown name is a ``KeyError``, so that the vocabulary stays one."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(COUNTERS, 0))

    def merge(self, other: Mapping[str, int]) -> None:
        """Add every count of ``other``."""
        for name, count in other.items():
            if count:
                self[name] += count


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a dotted name (``request.finished``), the path, and facts. Never a secret."""

    name: str
    path: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


Listener = Callable[[Event], None]


class EventBus:
    """Where layers, blocks and readers publish. Without a listener a publication costs one truth test."""

    __slots__ = ("_complained", "listeners")

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self._complained = False

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` for each event from now on; the function returned ends that."""
        self.listeners = (*self.listeners, listener)

        def unsubscribe() -> None:
            self.listeners = tuple(one for one in self.listeners if one is not listener)

        return unsubscribe

    def publish(self, name: str, path: str = "", **facts: object) -> None:
        """Tell every listener. A listener that raises is logged once and never disturbs a read."""
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
