"""The requests of a service, counted, timed, and reported if anybody listens: for all services, in one place.

ErrorContext, next to the service, does it for each call as one request. A service whose requests are not the calls that
it gets (one call may send several, and a transport knows the head and the connection) does it itself: its live accessor
has an attribute ``reports_requests``, the operations of which it does, and may use ``counted`` and ``counted_read``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioprefetch.accessor.protocols import ReadNow
from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import ForwardingSink, Sink
from aioprefetch.errors import Closed
from aioprefetch.runtime.events import DURATIONS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, ReadReply, ReadRequest, Request

R = TypeVar("R", bound=Request)
T = TypeVar("T")

# What a request of each operation counts as.
_COUNTERS = {
    "read": "action_http_get_request",
    "stat": "action_http_head_request",
    "list": "object_list_request",
    "write": "object_put_request",
    "copy": "object_copy_request",
    "delete": "object_delete_request",
    "begin_upload": "object_multipart_initiated",
    "complete_upload": "multipart_upload_completed",
    "abort_upload": "object_multipart_aborted",
    "list_uploads": "object_multipart_list",
}
# All operations that ask a store; ``presign`` does not.
OPERATIONS = frozenset((*_COUNTERS, "create_dir"))


class CountedRequest(ForwardingSink):
    """One request, and the sink of its response if it is a read into ``sink``: that tells when the head is there.

    ``sent_bytes``, those of its body, count once they have arrived. ``operation`` replaces that of the request, where
    its name says less.
    """

    __slots__ = ("_before", "_counters", "_head_at", "_name", "_now", "_reported", "_request", "_started")

    def __init__(
        self, runtime: Runtime, request: Request, sink: Sink | None = None, sent_bytes: int = 0, operation: str = ""
    ) -> None:
        self._before = 0
        if sink is not None:
            self.target = sink
            self._before = sink.received
        counters = self._counters = runtime.ledger.current
        name = self._name = _COUNTERS.get(operation or request.operation)
        if name is not None:
            counters[name] += 1
        self._request: Request | None = request
        self._reported = None
        if runtime.events.wants_requests:
            self._reported = ReportedRequest(runtime, request, sink, operation=operation, sent_bytes=sent_bytes)
        self._head_at: float | None = None
        self._now = runtime.loop.time
        self._started = self._now()

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        self._head_at = self._now()
        self.target.begin(head, path=path)

    def ended(self, error: BaseException | None = None, sent_bytes: int = 0) -> None:
        """The request has ended, well or by ``error``; with its head it has not failed. A second call does nothing."""
        request, self._request = self._request, None
        if request is None:
            return
        counters, name, reported, head_at = self._counters, self._name, self._reported, self._head_at
        if head_at is not None:
            counters["stream_read_total_bytes"] += self.target.received - self._before
        if sent_bytes and error is None:
            counters["stream_write_bytes"] += sent_bytes
        if name is not None and name in DURATIONS:
            if head_at is None and (error is None or (isinstance(error, Exception) and is_unmodified(request, error))):
                head_at = self._now()
            if head_at is not None:
                counters.succeeded(name, head_at - self._started)
            elif isinstance(error, Exception) and not isinstance(error, Closed):
                counters.failed(name)
        if reported is not None:
            reported.sent_bytes = sent_bytes
            if error is None:
                reported.finished()
            else:
                reported.failed(error)


async def counted(
    runtime: Runtime, request: R, forward: Callable[[R], Awaitable[T]], sent_bytes: int = 0, operation: str = ""
) -> T:
    """Forward a request that is not a read, with a body of ``sent_bytes``, as one request."""
    one = CountedRequest(runtime, request, None, sent_bytes, operation)
    try:
        result = await forward(request)
    except BaseException as error:
        one.ended(error, sent_bytes)
        raise
    one.ended(sent_bytes=sent_bytes)
    return result


async def counted_read(
    runtime: Runtime, request: ReadRequest, sink: Sink, read: Callable[[ReadRequest, Sink], Awaitable[ReadReply]]
) -> ReadReply:
    """Read into a sink, as one request."""
    one = CountedRequest(runtime, request, sink)
    try:
        reply = await read(request, one)
    except BaseException as error:
        one.ended(error)
        raise
    one.ended()
    return reply


def counted_now(runtime: Runtime, read_now: ReadNow) -> ReadNow:
    """``read_now``, of which each read that it makes is one request; what it leaves to ``read`` is none."""
    ledger, events, now = runtime.ledger, runtime.events, runtime.loop.time

    def read(request: ReadRequest, sink: Sink) -> ReadReply | None:
        started = now()
        try:
            reply = read_now(request, sink)
        except BaseException as error:  # The sink refuses the response.
            CountedRequest(runtime, request, sink).ended(error)
            raise
        if reply is not None:
            counters, size = ledger.current, reply.head.size
            counters["action_http_get_request"] += 1
            counters.succeeded("action_http_get_request", now() - started)
            counters["stream_read_total_bytes"] += size
            if events.wants_requests:
                reported = ReportedRequest(runtime, request)
                reported.received_bytes = size
                reported.finished()
        return reply

    return read
