"""Short reads of what the store itself has in memory, as a file system has the files that were read before.

Such bytes are delivered in the same call, without a request in flight, and nothing of them is kept: the block store
would hold a copy of a copy, and evict blocks for it that cost a request each. Only a range that is read again later is
kept in blocks, where a hit costs less still.
"""

from __future__ import annotations

from aioprefetch.accessor.protocols import Accessor, read_now_of
from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.blocks.file import BlockFile
from aioprefetch.reader.opening import OpenObject
from aioprefetch.reader.policy import TAIL_BYTES
from aioprefetch.runtime.loop_turn import TURN_BYTES
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import count_as_before, count_for
from aioprefetch.values import ReadHead, ReadRequest

# The number of reads that are remembered, by their starts, to find those that are made again.
_STARTS_MAX = 256


class WarmReads:
    """The reads of one open object from the memory of its store. Bound to the runtime's loop.

    ``is_possible`` is false where the bytes come from a network, and behind every layer that does something to reads.
    """

    def __init__(self, opened: OpenObject, accessor: Accessor, runtime: Runtime) -> None:
        self._opened = opened
        self._runtime = runtime
        self._read_now = read_now_of(accessor)
        self.is_possible = self._read_now is not None
        self._starts: set[int] = set()

    def read(self, file: BlockFile, start: int, end: int, *, keeps_end: bool) -> memoryview | None:
        """``[start, end)`` of the pinned version, counted as one request.

        ``None`` if the bytes are not in memory at the store, or are in a block or in flight already; also for every
        failure, whose error a request finds again. ``keeps_end``: neither for the end of the file, which is kept in
        blocks because the layout of the file may be learnt from it. Raises ``ObjectChanged``.
        """
        read_now = self._read_now
        if read_now is None or end - start > TURN_BYTES or file.at(start) is not None:
            return None
        if keeps_end and end > file.size - TAIL_BYTES:
            return None
        if (file.fetches and file.in_flight(start, end)) or self._is_repeated(start):
            return None
        opened, runtime = self._opened, self._runtime
        pin, account = opened.pin, opened.account
        size = end - start
        request = ReadRequest(
            path=opened.path, offset=start, size=size, if_match=pin.etag, version=pin.version, session=opened.session
        )
        sink = _WarmSink(opened, file)
        started = runtime.loop.time()
        token = count_for(account)
        try:
            if read_now(request, sink) is None:
                return None
        finally:
            count_as_before(token)
        runtime.turn.spend(size)
        account.counters["stream_read_block_read"] += 1
        account.counters.succeeded("stream_read_block_read", runtime.loop.time() - started)
        events = runtime.events
        if events.wants_requests:
            reported = ReportedRequest(runtime, request)
            reported.received_bytes = size
            reported.finished()
        if events.listeners:
            opened.publish_range(start, end, size, "demand", None)
        return sink.to_view()

    def _is_repeated(self, start: int) -> bool:
        starts = self._starts
        if start in starts:
            return True
        if len(starts) == _STARTS_MAX:
            starts.clear()
        starts.add(start)
        return False


class _WarmSink(CollectSink):
    """Collects bytes of the pinned version."""

    __slots__ = ("_file", "_opened")

    def __init__(self, opened: OpenObject, file: BlockFile) -> None:
        CollectSink.__init__(self)
        self._opened = opened
        self._file = file

    def _begun(self, head: ReadHead) -> None:
        self._opened.check_head(self._file, head)
