"""The events of requests to a store, reported where they are sent. Nothing here runs without a listener.

A service whose requests are not the calls that it gets (one call may send several, and a transport knows the head and
the connection) reports them itself: its live accessor has an attribute ``reports_requests``, the operations of which it
does. ErrorContext, next to the service, reports the others: one request for each call.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any, TypeVar

from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error
from aioprefetch.runtime.events import EventBus, redacted
from aioprefetch.values import Lane, ReadRequest, Request, WriteRequest

R = TypeVar("R", bound=Request)
T = TypeVar("T")

# The number of the attempt that the running task makes: Retry sets it from the second one on.
attempt_number: ContextVar[int] = ContextVar("aioprefetch_attempt", default=1)

# All operations that ask a store; ``presign`` does not.
OPERATIONS = frozenset(
    (
        *("read", "stat", "list", "write", "copy", "delete", "create_dir"),
        *("begin_upload", "complete_upload", "abort_upload", "list_uploads"),
    )
)

_request_ids = itertools.count(1)


def reports_requests_of(accessor: object) -> Collection[str]:
    """The operations whose requests an accessor reports itself. A layer passes on what the accessor within it says."""
    reported: Collection[str] = getattr(accessor, "reports_requests", ())
    return reported


def reporting(bus: EventBus, forward: Callable[[R], Awaitable[T]], **facts: Any) -> Callable[[R], Awaitable[T]]:
    """``forward``, as one request that is reported; ``facts`` are those of ``ReportedRequest``."""

    async def call(request: R) -> T:
        reported = ReportedRequest(bus, request, **facts)
        try:
            result = await forward(request)
        except BaseException as error:
            reported.failed(error)
            raise
        reported.finished()
        return result

    return call


def _shown(url: str, path: str) -> str:
    """A URL without secrets: its origin alone, where the path of the object has one, which may be encoded there."""
    if redacted(path) == path:
        return redacted(url)
    scheme, separator, rest = url.partition("://")
    return scheme + separator + redacted(rest.partition("/")[0])


class ReportedRequest:
    """One request, from ``request.started`` to ``request.finished`` or ``request.failed``, of which one comes, once.

    ``sink`` is that of a read. ``method`` is the HTTP method where there is one, ``url`` its URL without the query.
    ``operation`` replaces that of the request, where its name says less.

    ``sent_bytes`` and ``received_bytes`` are those of the two bodies. A transport counts what it receives; without one
    (-1) it is what the sink got.
    """

    __slots__ = (
        "_bus",
        "_connection",
        "_facts",
        "_first_byte_at",
        "_has_ended",
        "_path",
        "_received_before",
        "_sink",
        "_started_at",
        "_status",
        "received_bytes",
        "sent_bytes",
    )

    def __init__(
        self,
        bus: EventBus,
        request: Request,
        sink: Sink | None = None,
        *,
        operation: str = "",
        method: str | None = None,
        url: str | None = None,
        sent_bytes: int = 0,
    ) -> None:
        start: int | None = None
        end: int | None = None
        lane: Lane | str = "control"
        reader_id = None
        if isinstance(request, ReadRequest):
            first = request if request.first_bytes is None else request.first_part()
            start = first.offset if first.suffix is None else -first.suffix
            end = None if first.size is None else first.offset + first.size
            lane = "demand" if sink is not None and sink.is_promoted else request.lane
            reader_id = None if request.session is None else request.session.reader_id
        elif sent_bytes:
            lane = "demand"
            if isinstance(request, WriteRequest):
                start, end = 0, sent_bytes
        self._bus = bus
        self._path = request.path
        self._sink = sink
        self._received_before = 0 if sink is None else sink.received
        self._has_ended = False
        self._status: int | None = None
        self._connection: int | None = None
        self._first_byte_at: float | None = None
        self._facts: dict[str, object] = {
            "request_id": next(_request_ids),
            "operation": operation or request.operation,
            "method": method,
            "url": url and _shown(url, request.path),
            "start": start,
            "end": end,
            "lane": lane,
            "attempt": attempt_number.get(),
            "reader_id": reader_id,
        }
        self.sent_bytes = sent_bytes
        self.received_bytes = -1
        self._started_at = bus.clock()
        bus.publish_facts("request.started", self._path, self._facts)

    @property
    def is_counted_by_sink(self) -> bool:
        """Whether the sink gets all bytes of a body, as it does those of a range."""
        return self._sink is not None

    def send_again(self, error: Error) -> None:
        """The request was lost, and is sent another time, as another one."""
        self.failed(error)
        self._has_ended, self._status, self._connection, self._first_byte_at = False, None, None, None
        self._facts = {**self._facts, "request_id": next(_request_ids)}
        self._started_at = self._bus.clock()
        self._bus.publish_facts("request.started", self._path, self._facts)

    def responded(self, status: int | None, connection: int | None) -> None:
        """The head of the response is here."""
        self._first_byte_at = self._bus.clock()
        self._status, self._connection = status, connection
        facts = {"request_id": self._facts["request_id"], "status": status, "connection": connection}
        self._bus.publish_facts("request.first_byte", self._path, facts)

    def finished(self) -> None:
        """The response has ended well."""
        if self._has_ended:
            return
        head = None if self._sink is None else self._sink.head
        if head is None:
            self._end("request.finished", {})
        else:
            start = head.start
            self._end("request.finished", {"start": start + self._received_before, "end": start + head.size})

    def failed(self, error: BaseException) -> None:
        """The request has ended by an error, whose message is shown if it is one of ours: those hold no secret."""
        if not self._has_ended:
            kind = error.kind if isinstance(error, Error) else type(error).__name__
            message = error.message if isinstance(error, Error) else ""
            self._end("request.failed", {"error": kind, "message": message})

    def refused(self, error: Error, request: Request) -> None:
        """The response is an error, or says what was expected of it: that nothing has changed."""
        if is_unmodified(request, error):
            self.finished()
        else:
            self.failed(error)

    def _end(self, name: str, facts: dict[str, object]) -> None:
        self._has_ended = True
        count = self.received_bytes
        if count < 0:
            count = 0 if self._sink is None else self._sink.received - self._received_before
        if name == "request.finished" or self._status is not None:
            count += self.sent_bytes
        now, first = self._bus.clock(), self._first_byte_at
        ended = {
            **self._facts,
            **facts,
            "bytes": count,
            "status": self._status,
            "connection": self._connection,
            "seconds": now - self._started_at,
            "first_byte_seconds": None if first is None else first - self._started_at,
        }
        self._bus.publish_facts(name, self._path, ended)
