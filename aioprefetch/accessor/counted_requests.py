"""The requests of a service, counted, timed, and reported if anybody listens: for all services, in one place.

ErrorContext, next to the service, does it for each call as one request. A service whose requests are not the calls that
it gets (one call may send several, and a transport knows the head and the connection) does it itself: its live accessor
has an attribute ``reports_requests``, the operations that it reports.
"""

from __future__ import annotations

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import ForwardingSink, Sink
from aioprefetch.errors import Closed
from aioprefetch.runtime.events import DURATIONS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, Request

# What a request of each operation counts as.
COUNTERS = {
    "read": "action_http_get_request",
    "stat": "action_http_head_request",
    "list": "object_list_request",
    "write": "object_put_request",
    "copy": "object_copy_request",
    "rename": "object_rename_request",
    "delete": "object_delete_request",
    "begin_upload": "object_multipart_initiated",
    "complete_upload": "multipart_upload_completed",
    "abort_upload": "object_multipart_aborted",
    "list_uploads": "object_multipart_list",
}
# All operations that ask a store; ``presign`` does not.
OPERATIONS = frozenset((*COUNTERS, "create_dir"))
# Methods that may change an object.
CHANGING = frozenset({"write", "copy", "rename", "delete", "create_dir"})

_latest_change = object()


def note_change() -> None:
    """Something may have been changed in a store, also if the request has failed. From any thread."""
    global _latest_change
    _latest_change = object()


def latest_change() -> object:
    """A mark of this process: the same object as before, if no operator has changed anything since."""
    return _latest_change


class CountedRequest(ForwardingSink):
    """``with CountedRequest(...)``: one request. Of a read into ``sink`` it is the sink, and so notices the head.

    ``sent_bytes`` belong to a body, and count if they arrive. ``operation`` is for a request whose own says less.
    """

    __slots__ = ("_before", "_counters", "_head_at", "_name", "_now", "_reported", "_request", "_started", "sent_bytes")

    def __init__(
        self, runtime: Runtime, request: Request, sink: Sink | None = None, sent_bytes: int = 0, operation: str = ""
    ) -> None:
        counters = self._counters = runtime.ledger.current
        name = self._name = COUNTERS.get(operation or request.operation, "")
        if name:
            counters[name] += 1
        self._request: Request | None = request
        self._before = 0
        if sink is not None:
            self.target = sink
            self._before = sink.received
        self.sent_bytes = sent_bytes
        self._reported = None
        if runtime.events.wants_requests:
            self._reported = ReportedRequest(runtime, request, sink, operation=operation, sent_bytes=sent_bytes)
        self._head_at: float | None = None
        self._now = runtime.clock
        self._started = self._now()

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        self._head_at = self._now()
        self.target.begin(head, path=path)

    def __enter__(self) -> CountedRequest:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Count the end: no failure if the head came. A second end does nothing."""
        request, self._request = self._request, None
        if request is None:
            return
        counters, name, reported, head_at = self._counters, self._name, self._reported, self._head_at
        if head_at is not None:
            counters["stream_read_total_bytes"] += self.target.received - self._before
        if self.sent_bytes and error is None:
            counters["stream_write_bytes"] += self.sent_bytes
        if name in DURATIONS:
            if head_at is None and (error is None or is_unmodified(request, error)):
                head_at = self._now()
            if head_at is not None:
                counters.succeeded(name, head_at - self._started)
            elif isinstance(error, Exception) and not isinstance(error, Closed):
                counters.failed(name)
        if reported is not None:
            reported.sent_bytes = self.sent_bytes
            if error is None:
                reported.finished()
            else:
                reported.failed(error)
