"""The vocabulary of counters, durations, gauges and events, and the bus to which layers, blocks and readers publish.

Names that Hadoop's S3A streams have keep them (``stream_read_*``, ``action_*``, ``object_*``); the others are ours.
Counters only grow. Gauges are read from the parts that own them. ``aioprefetch.runtime.statistics`` keeps them.

``AIOPREFETCH_LOG=requests`` asks for a line for each request to a store, by the logger ``aioprefetch.requests``. Where
the program has configured no logging, the lines go to the standard error.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, printable, redact
from aioprefetch.runtime.forks import free_in_child

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
    "object_multipart_initiated": "uploads in parts begun",
    "uploads_unnamed": "failed requests to begin an upload, which may have left one whose name is not known",
    "multipart_upload_completed": "uploads asked of the store to be completed",
    "object_multipart_aborted": "uploads asked of the store to be aborted",
    "object_multipart_list": "pages of listings of uploads requested",
    "object_copy_request": "copies asked of the store",
    "object_rename_request": "renames asked of the store",
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
    "stream_read_block_misses": "reads, or such requests, that had to wait for a fetch",
    "hits_memory": "the hits",
    "hits_disk": "the misses that block files served alone",
    "hits_network": "the misses that needed the store",
    "demand_wait_microseconds": "how long reads waited for bytes",
    "memory_waits": "fetches that waited for memory",
    "stream_read_prefetch_operations": "fetches in the prefetch lane",
    "prefetch_bytes_used": "bytes prefetched, in pieces of memory that were read from",
    "prefetch_bytes_wasted": "bytes prefetched, in pieces that were evicted unread or whose reader closed before",
    "prefetch_lead": "pieces of memory that were prefetched and then read",
    "stream_evict_blocks_from_cache": "blocks, or parts of them, evicted from memory",
    "stream_read_block_disk_hits": "blocks, or parts of blocks, that came from their block files",
    "stream_file_cache_blocks_written": "block files written",
    "stream_file_cache_blocks_skipped": "blocks not written, because such files were evicted before they were read",
    "stream_file_cache_eviction": "block files removed to make room for others",
    "stream_file_cache_failures": "failures of the disk with the block files; no read failed by them",
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
    "hedges": "reads that HedgeLayer requested a second time, because their first byte was late",
    "hedges_won": "those whose second request was answered first",
    "transport_requests": "requests for object bytes that our own transport sent",
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
    "cache_failures": "failures of the cache store; no read failed by them",
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
    "transport_connections_idle": "the idle ones, which wait for a request",
    "stream_read_active_prefetch_operations": "prefetches in flight",
    "stream_read_blocks_in_cache": "blocks in memory with bytes that are resident or in flight",
    "stream_read_bytes_in_cache": "bytes of these blocks, and those reserved for requests that fill blocks",
    "stream_read_active_memory_in_use": "bytes of an operator's memory_bytes in use or reserved, for whatever purpose",
    "slots_withheld": "slots that may not be used because the store asked for fewer requests",
    "stream_read_gauge_input_policy": "a reader's policy: its place in the list of policies, from 1; 0 for an operator",
}

# What each event tells beside its name, time and path: docs/reference/events.md.
EVENTS: Mapping[str, str] = {
    "request.started": "a request to the store begins: each attempt is one, and each of a hedge",
    "request.first_byte": "the head of its response is here",
    "request.finished": "its response has ended, with what was asked for",
    "request.failed": "it ended otherwise: an error, a refusal of the store, a cancellation",
    "request.retried": "an operation failed and will be tried again after a pause",
    "request.hedged": "the first byte of a read is late, and it is requested a second time",
    "read.served": "a caller got the bytes of a range",
    "reader.opened": "a reader is used for the first time, or again after reopen()",
    "reader.closed": "a reader that was used is closed",
    "block.fetched": "a request of readers for bytes of blocks has ended, well or not",
    "block.evicted": "bytes left the memory of the blocks",
    "range.fetched": "a request of a reader for bytes that stay in no block has ended",
    "window.grown": "a reader looks further ahead",
    "window.shrunk": "a reader looks less far ahead",
    "budget.waited": "a fetch has waited for memory",
    "budget.closed": "an operator gave up its memory on a loop: closed or collected, or the loop ended",
    "limit.lowered": "the store asked for fewer requests, and fewer slots may be used",
    "limit.restored": "more slots may be used again",
    "cache.hit": "the cache layer served a read",
    "cache.missed": "the cache layer had to ask the store",
    "cache.filled": "an object was written to the cache",
    "cache.revalidated": "the store said that the cached version is the current one",
    "cache.evicted": "an entry left the cache",
    "cache.failed": "a call of the cache's store failed, and no read with it",
    "cache.bypassed": "the cache's store fails, and is left alone for a while",
    "disk.failed": "a call for block files failed, and no read with it",
    "http.encoded": "a server sends objects encoded, although it is asked not to",
    "http.range_ignored": "a server sends whole objects for ranges",
    "s3.upload_unnamed": "a request to begin an upload has failed, and may have left one whose name is not known",
    "s3.endpoint_asked": "botocore was asked for the endpoint, once for a recipe",
}
REQUEST_EVENTS = tuple(name for name in EVENTS if name.startswith("request."))
# The ``error`` of a request that was cancelled: mostly no read needed it any more.
CANCELLED = "CancelledError"
_OF_EACH_REQUEST = frozenset(REQUEST_EVENTS) - {"request.retried", "request.hedged"}


class Event(NamedTuple):
    """Something that happened: its dotted name, when, the path of the object, facts, and the store. Never a secret.

    ``at_seconds`` is a time of ``time.monotonic()``. ``store`` is a URL. Events are immutable, and pickle. A tuple,
    because nothing else that has names is made in so little time.
    """

    name: str
    at_seconds: float
    path: str = ""
    facts: Mapping[str, Any] = MappingProxyType({})
    store: str = ""

    def __repr__(self) -> str:
        facts = "".join(f" {name}={value!r}" for name, value in self.facts.items())
        return f"<Event {self.name} {self.path!r}{facts}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Event, (self.name, self.at_seconds, self.path, dict(self.facts), self.store)


# Bytes that a caller got, as followers take them: path, start, end, tier, seconds of its wait (``None`` where another
# read of the same call has it), when, and the store. A plain tuple: nothing is made faster, and the collector does not
# visit it.
ServedRead: TypeAlias = tuple[str, int, int, str, float | None, float, str]

redacted = lru_cache(maxsize=1024)(redact)  # Many events have the same path, and a search takes microseconds.
_new_event = tuple.__new__  # As ``Event`` does, in one call less.

Listener = Callable[[Event], object]
# Lists of requests and of reads, and what looks at them when one holds more than this many: some 10 MB of both. Most
# recordings are shorter, and are looked at when they have ended.
Follower: TypeAlias = tuple[list[Any], list[ServedRead], Callable[[], object]]
FOLLOWED_MAX = 20_000


class EventBus:
    """The events of an operator and of those made from it, on all loops of this process.

    Who publishes looks at ``listeners`` first, or at one of the flags: without a listener, that is all an event costs.
    ``clock`` gives the times of events; a runtime on a loop with a virtual clock sets the loop's.
    ``store`` is the URL of the operators' store, once there is one.
    ``followers`` get each request when it begins and each read that was served. ``hears_requests``
    tells whether anybody listens to the events of requests; ``wants_requests`` and ``wants_reads``, whether to anything
    of them.
    """

    __slots__ = (
        *("__weakref__", "_change_id", "_chosen", "_complained", "_following", "_lock", "_subscriptions"),
        *("_hears_reads", "clock", "followers", "hears_requests", "listeners", "store"),
        *("wants_reads", "wants_requests"),
    )

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[Any], object], ...] = ()
        self.followers: tuple[Follower, ...] = ()
        self.hears_requests = self.wants_requests = self._hears_reads = self.wants_reads = False
        self.clock: Callable[[], float] = time.monotonic
        self.store = ""
        self._subscriptions: dict[object, tuple[Callable[[Any], object], frozenset[str] | None]] = {}
        self._following: dict[object, Follower] = {}
        self._chosen: dict[str, tuple[Listener, ...]] = {}
        self._change_id = object()
        self._complained = False
        # The collector may run while it is held, and a finalizer may end a subscription: on this thread, in the middle.
        self._lock = free_in_child(threading.RLock())
        _process.join(self)

    def subscribe(self, listener: Listener, *names: str) -> Callable[[], None]:
        """Call ``listener`` with each event from now on, or with events of ``names``; the function returned ends that.

        It is called in the middle of a read, on the thread where the event happens (mostly the event loop's; a hit of
        a blocking reader is its caller's): let it be short, and wait for nothing. A raising one is logged once and
        disturbs no read; only ``KeyboardInterrupt`` and ``SystemExit`` go on, as a signal that arrives while it runs.
        ``InvalidArgument`` for an unknown name, ``InvalidType`` for a listener that cannot
        be called or is a coroutine function.
        """
        _check_subscription(listener, names)
        token = object()
        self.add(token, listener, names)
        return lambda: self.remove(token)

    def follow(self, requests: list[Any], reads: list[ServedRead], look: Callable[[], object]) -> Callable[[], None]:
        """Append each ``ReportedRequest``, when it begins, and each ``ServedRead`` to lists.

        For who keeps them and looks at them later: it costs a fraction of their events. With more than
        ``FOLLOWED_MAX`` in one of the lists ``look`` is called, which must not raise. The function returned ends that.
        """
        token = object()
        self.add_follower(token, (requests, reads, look))
        return lambda: self.remove(token)

    def add_follower(self, token: object, follower: Follower) -> None:
        """``follow`` under a token, which ``remove`` takes."""
        self._change(lambda: self._following.update({token: follower}))

    def add(self, token: object, listener: Callable[[Any], object], names: Iterable[str]) -> None:
        """Subscribe under a token, which ``remove`` takes."""
        self._change(lambda: self._subscriptions.update({token: (listener, frozenset(names) or None)}))

    def remove(self, token: object) -> None:
        """End a subscription, or nothing."""
        self._change(lambda: (self._subscriptions.pop(token, None), self._following.pop(token, None)))

    def publish(self, name: str, path: str = "", **facts: object) -> None:
        """Call the listeners of an event. Ask for ``listeners`` before, where making the facts costs anything."""
        if self.listeners:
            self.publish_facts(name, path, facts)

    def publish_served(
        self,
        path: str,
        start: int,
        end: int,
        tier: str,
        waited_seconds: float | None = None,
        reader_id: int | None = None,
        at_seconds: float | None = None,
    ) -> None:
        """Publish that a caller got ``[start, end)`` of an object, from where, and how long the read took.

        ``at_seconds`` is now, where the caller has asked the clock already.
        """
        if followers := self.followers:
            at_seconds = self.clock() if at_seconds is None else at_seconds
            read = (path, start, end, tier, waited_seconds, at_seconds, self.store)
            for _, reads, look in followers:
                reads.append(read)
                if len(reads) > FOLLOWED_MAX:
                    look()
        if self._hears_reads:
            facts = {"start": start, "end": end, "tier": tier, "waited_seconds": waited_seconds}
            self.publish("read.served", path, reader_id=reader_id, **facts)

    def publish_facts(self, name: str, path: str, facts: dict[str, object]) -> None:
        """``publish`` with a dictionary, which belongs to the event from now on. For what happens often."""
        listeners = self._chosen.get(name)
        if listeners is None:
            listeners = self._choose(name)
        if not listeners:
            return
        event = _new_event(Event, (name, self.clock(), redacted(path), MappingProxyType(facts), self.store))
        for listener in listeners:
            try:
                listener(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # A CancelledError of a listener would look like the read's.
                if not self._complained:
                    self._complained = True
                    logger.exception("a listener failed at event %s; further failures are not logged", name)

    def leave_process(self) -> None:
        """Be none of the buses of the process any more, for who listens to all: its store is a cache of another one."""
        _process.leave(self)

    def _choose(self, name: str) -> tuple[Listener, ...]:
        with self._lock:
            kept = self._chosen  # A change in the middle replaces it, and what is chosen here is not kept.
            subscriptions = tuple(self._subscriptions.values())
            chosen = tuple(listener for listener, names in subscriptions if names is None or name in names)
            kept[name] = chosen
        return chosen

    def _change(self, change: Callable[[], object]) -> None:
        with self._lock:
            change()
            self._chosen = {}
            change_id = None
            while change_id is not self._change_id:  # Until there was no other change in the middle.
                change_id = self._change_id = object()
                subscriptions = tuple(self._subscriptions.values())
                self.listeners = tuple(listener for listener, _ in subscriptions)
                self.followers = tuple(self._following.values())
                self.hears_requests = any(names is None or names & _OF_EACH_REQUEST for _, names in subscriptions)
                self._hears_reads = any(names is None or "read.served" in names for _, names in subscriptions)
                self.wants_requests = self.hears_requests or bool(self.followers)
                self.wants_reads = self._hears_reads or bool(self.followers)


class _Process:
    """The buses of this process, and the listeners to all of them, of operators to come, too."""

    def __init__(self) -> None:
        # The collector may run meanwhile, and code of its own with it.
        self._lock = free_in_child(threading.RLock())
        self._buses: weakref.WeakSet[EventBus] = weakref.WeakSet()
        self._listeners: dict[object, Callable[[EventBus, object], None]] = {}

    def join(self, bus: EventBus) -> None:
        """Count a new bus, and let those listen to it who listen to all."""
        with self._lock:
            self._buses.add(bus)
            for token, join in tuple(self._listeners.items()):
                join(bus, token)
                if token not in self._listeners:  # It ended in the middle, by a finalizer.
                    bus.remove(token)

    def leave(self, bus: EventBus) -> None:
        """Count a bus no more."""
        with self._lock:
            self._buses.discard(bus)
            for token in tuple(self._listeners):
                bus.remove(token)

    def listen(self, join: Callable[[EventBus, object], None]) -> Callable[[], None]:
        """Call ``join`` with each bus, now or when it is made, and a token to subscribe by; the function returned ends.

        It ends the subscriptions under that token.
        """
        token = object()
        with self._lock:
            self._listeners[token] = join
            for bus in tuple(self._buses):
                join(bus, token)
        return lambda: self._end(token)

    def _end(self, token: object) -> None:
        with self._lock:
            self._listeners.pop(token, None)
            for bus in tuple(self._buses):
                bus.remove(token)


_process = _Process()


def subscribe_to_all(listener: Listener, *names: str) -> Callable[[], None]:
    """``EventBus.subscribe`` for all operators of this process, those to come included."""
    _check_subscription(listener, names)
    return _process.listen(lambda bus, token: bus.add(token, listener, names))


def follow_all(requests: list[Any], reads: list[ServedRead], look: Callable[[], object]) -> Callable[[], None]:
    """``EventBus.follow`` for all operators of this process, those to come included."""
    return _process.listen(lambda bus, token: bus.add_follower(token, (requests, reads, look)))


def _check_subscription(listener: Listener, names: Iterable[str]) -> None:
    if not callable(listener) or any(map(inspect.iscoroutinefunction, (listener, type(listener).__call__))):
        raise InvalidType(f"a listener is a plain function of one event, not {listener!r}", operation="subscribe")
    unknown = [name for name in names if name not in EVENTS]
    if unknown:
        raise InvalidArgument(f"there is no event {unknown[0]!r}; there are {', '.join(EVENTS)}", operation="subscribe")


def clock_of(loop_time: Callable[[], float]) -> Callable[[], float]:
    """The clock of events on a loop with this clock: the machine's, unless the loop has one of its own, as in tests.

    A loop that follows the machine may do so in whole milliseconds.
    """
    return time.monotonic if abs(loop_time() - time.monotonic()) < 1.0 else loop_time


# --- the log of requests ----------------------------------------------------------------------------------------------

requests_logger = logging.getLogger("aioprefetch.requests")
_LOGGED_EVENTS = ("request.finished", "request.failed", "request.retried")


def log_requests(bus: EventBus, setting: str) -> None:
    """Log the requests of a bus from now on, where the variable says so. ``ConfigInvalid`` for another setting."""
    if setting != "requests":
        raise ConfigInvalid(f"AIOPREFETCH_LOG={setting!r} must be 'requests'", operation="configure")
    if not requests_logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        requests_logger.addHandler(handler)
    if not requests_logger.isEnabledFor(logging.INFO):
        requests_logger.setLevel(logging.INFO)
    bus.subscribe(lambda event: requests_logger.info("%s", line_of(event)), *_LOGGED_EVENTS)


def line_of(event: Event) -> str:
    """The line of an event: what was requested, what came of it, and how long head and all of it took."""
    facts, path = event.facts, printable(event.path)
    if event.name == "request.retried":
        return f"{facts['operation']} {path} again in {facts['wait_seconds']:.3f} s after {facts['error']}"
    start, end = facts["start"], facts["end"]
    words = [facts["operation"], facts["method"], facts["url"] or path]
    words.append(None if start is None else f"[{start}, {'end' if end is None else end})")
    words += [facts["status"], facts.get("error"), f"{facts['bytes']} bytes"]
    seconds = [value for value in (facts["first_byte_seconds"], facts["seconds"]) if value is not None]
    words.append("/".join(f"{value * 1e3:.1f}" for value in seconds) + " ms")
    words += [facts["lane"], f"attempt {facts['attempt']}" if facts["attempt"] > 1 else None]
    return " ".join(str(word) for word in words if word is not None)
