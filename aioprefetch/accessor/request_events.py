"""The events of requests to a store, reported where they are sent, and the reads of a caller without a reader.

Nothing here runs without a listener or follower. ``accessor/counted_requests.py`` reports the requests of a service
that does not do so itself.
"""

from __future__ import annotations

import itertools
from contextvars import ContextVar
from copy import copy

from aioprefetch.accessor.protocols import Accessor, WrappedAccessor
from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error
from aioprefetch.runtime.callers import line, wanting
from aioprefetch.runtime.events import FOLLOWED_MAX, EventBus, redacted
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Lane, ReadReply, ReadRequest, Request, WriteRequest

# The number of the attempt that the running task makes: Retry sets it from the second one on.
attempt_number: ContextVar[int] = ContextVar("aioprefetch_attempt", default=1)

_request_ids = itertools.count(1)


def _shown(url: str, path: str) -> str:
    """A URL without secrets: its origin alone, where the path of the object has one, which may be encoded there."""
    if redacted(path) == path:
        return redacted(url)
    scheme, separator, rest = url.partition("://")
    return scheme + separator + redacted(rest.partition("/")[0])


class ReportedRequest:
    """One request, from ``request.started`` to ``request.finished`` or ``request.failed``: one of the two, once.

    The object itself is what followers of requests get (``EventBus.follow``): its attributes tell at any time
    how far the request has come. The facts of events are made of them for those who listen.

    ``sink``: of a read. ``method`` is the HTTP method where there is one, ``url`` its URL without the query.
    ``operation`` replaces the request's own, where its name says less.

    ``path`` is the key in ``store``, a URL. ``start`` and ``end`` are the bytes that were asked for, at the
    end the response's. ``begun_at_seconds``, ``first_byte_at_seconds`` and ``ended_at_seconds`` are times of the
    clock of the bus, ``None`` for what has not happened.
    Of ``memory_limit_bytes`` of memory ``memory_bytes`` were in use or reserved when it began, in the budget
    ``budget_id``: each operator has one on each loop.
    ``caller`` is the line of the program that it is for, where a recording wants to know it.
    ``error`` and ``message`` are empty unless it failed.
    ``sent_bytes`` and ``received_bytes`` count the two bodies. A transport counts what it receives; without one
    (-1) it is what the sink got. ``counted_bytes`` are both, once it has ended.
    """

    __slots__ = (
        *("_received_before", "_request", "_request_id", "_runtime", "_sink", "_url"),
        *("attempt", "begun_at_seconds", "budget_id", "caller", "connection", "counted_bytes"),
        *("end", "ended_at_seconds", "error", "first_byte_at_seconds", "lane", "memory_bytes"),
        *("memory_limit_bytes", "message", "method"),
        *("operation", "path", "reader_id", "received_bytes", "sent_bytes", "start", "status", "store"),
    )

    # Parameters of both kinds: passed by name, the first five cost a small read a percent.
    def __init__(
        self,
        runtime: Runtime,
        request: Request,
        sink: Sink | None = None,
        method: str | None = None,
        url: str | None = None,
        operation: str = "",
        sent_bytes: int = 0,
    ) -> None:
        self.lane: Lane | str
        self.start: int | None
        self.end: int | None
        self.reader_id: int | None = None
        if isinstance(request, ReadRequest):
            first = request if request.first_bytes is None else request.first_part()
            size = first.size
            self.start = start = first.offset if first.suffix is None else -first.suffix
            self.end = None if size is None else start + size
            self.lane = "demand" if sink is not None and sink.is_promoted else request.lane
            if request.session is not None:
                self.reader_id = request.session.reader_id
        else:
            self.start = self.end = None
            self.lane = "demand" if sent_bytes else "control"
            if sent_bytes and isinstance(request, WriteRequest):
                self.start, self.end = 0, sent_bytes
        bus, budget = runtime.events, runtime.budget
        clock = bus.clock  # A call of an attribute takes longer.
        self._runtime: Runtime | None = runtime
        self._request: Request | None = request
        self._sink = sink
        self._received_before = 0 if sink is None else sink.received
        self._url = url
        self._request_id = 0
        self.path = request.path
        self.store = bus.store
        self.budget_id = budget.budget_id
        self.memory_limit_bytes = budget.limit_bytes
        self.operation = operation or request.operation
        self.method = method
        self.attempt = attempt_number.get()
        self.caller = line() if wanting else ""
        self.sent_bytes = sent_bytes
        self.received_bytes = -1
        self.error = self.message = ""
        self.counted_bytes = 0
        self.memory_bytes = budget.used_bytes
        self.status: int | None = None
        self.connection: int | None = None
        self.first_byte_at_seconds: float | None = None
        self.ended_at_seconds: float | None = None
        self.begun_at_seconds = clock()
        if bus.hears_requests:
            bus.publish_facts("request.started", self.path, self._asked())
        for requests, _, look in bus.followers:
            requests.append(self)
            if len(requests) > FOLLOWED_MAX:
                look()

    def send_again(self, error: Error) -> None:
        """The request was lost, and is sent another time, as another one."""
        runtime = self._runtime
        if runtime is None:  # It has ended.
            return
        bus = runtime.events
        lost = copy(self)  # This object goes on as the other one, and followers have that already.
        for requests, _, _ in bus.followers:
            requests.append(lost)
        lost.failed(error)
        self._request_id = 0
        self.memory_bytes = runtime.budget.used_bytes
        self.status = self.connection = self.first_byte_at_seconds = None
        self.begun_at_seconds = bus.clock()
        if bus.hears_requests:
            bus.publish_facts("request.started", self.path, self._asked())

    def responded(self, status: int | None, connection: int | None) -> bool:
        """The head of the response is here. Whether the sink gets all bytes of its body: for a range it does."""
        runtime = self._runtime
        if runtime is None:  # It has ended.
            return False
        bus = runtime.events
        self.first_byte_at_seconds = bus.clock()
        self.status, self.connection = status, connection
        if bus.hears_requests:
            facts: dict[str, object] = {
                "request_id": self.request_id,
                "status": status,
                "connection": connection,
            }
            bus.publish_facts("request.first_byte", self.path, facts)
        return status == 206 and self._sink is not None

    def finished(self) -> None:
        """The response has ended well."""
        if self.ended_at_seconds is None:
            sink = self._sink
            if sink is not None and (head := sink.head) is not None:
                self.start = start = head.start
                self.end = start + head.size
                if before := self._received_before:
                    self.start = start + before
            self._end("request.finished", True)

    def failed(self, error: BaseException) -> None:
        """The request has ended by an error, whose message is shown if it is one of ours: those hold no secret.

        That nothing has changed is what a request with such a condition asks for: it has finished.
        """
        if self.ended_at_seconds is None:
            if isinstance(error, Error):
                if self._request is not None and is_unmodified(self._request, error):
                    self._end("request.finished", True)
                    return
                self.error, self.message = error.kind, error.message
            else:
                self.error = type(error).__name__
            self._end("request.failed", self.status is not None)  # It was answered.

    def _end(self, name: str, has_sent: bool) -> None:
        assert self._runtime is not None
        bus, sink = self._runtime.events, self._sink
        if self.received_bytes < 0:
            self.received_bytes = 0 if sink is None else sink.received - self._received_before
        self.counted_bytes = self.received_bytes + (self.sent_bytes if has_sent else 0)
        self.ended_at_seconds = bus.clock()  # Last: another thread may look at what is set before.
        if bus.hears_requests:
            bus.publish_facts(name, self.path, self._ended(name))
        # A follower that keeps this object keeps neither memory of the read nor listeners.
        self._sink = self._runtime = self._url = self._request = None

    def arrived(self) -> tuple[int | None, int]:
        """While it is in flight: where in the object the bytes of its response begin, and how many have come so far."""
        sink = self._sink  # Asked once: it may end meanwhile on another thread.
        if sink is None or (head := sink.head) is None:
            return self.start, 0
        before = self._received_before
        return head.start + before, max(0, sink.received - before)

    @property
    def request_id(self) -> int:
        """Its number in events."""
        if not self._request_id:
            self._request_id = next(_request_ids)
        return self._request_id

    def _asked(self) -> dict[str, object]:
        return {
            "request_id": self.request_id,
            "operation": self.operation,
            "method": self.method,
            "url": self._url and _shown(self._url, self.path),
            "start": self.start,
            "end": self.end,
            "lane": self.lane,
            "attempt": self.attempt,
            "reader_id": self.reader_id,
        }

    def _ended(self, name: str) -> dict[str, object]:
        first, ended = self.first_byte_at_seconds, self.ended_at_seconds
        assert ended is not None
        return {
            **self._asked(),
            **({} if name == "request.finished" else {"error": self.error, "message": self.message}),
            "bytes": self.counted_bytes,
            "status": self.status,
            "connection": self.connection,
            "seconds": ended - self.begun_at_seconds,
            "first_byte_seconds": None if first is None else first - self.begun_at_seconds,
        }


# --- reads of a caller without a reader -------------------------------------------------------------------------------


def publish_reply(
    events: EventBus, request: ReadRequest, reply: ReadReply, began: float, *, bytes_max: int | None = None
) -> None:
    """Publish ``read.served`` for a read that began then, without a reader: its first ``bytes_max`` bytes at most."""
    now = events.clock()
    head = reply.head
    start = head.start
    size = head.size if bytes_max is None else min(head.size, bytes_max)
    events.publish_served(request.path, start, start + size, reply.tier, now - began, None, now)


class ServedReads(WrappedAccessor):
    """Publishes ``read.served`` for each read that ends well, as a part of a larger one."""

    def __init__(self, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self._events = runtime.events

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        began = self._events.clock()
        reply = await self.inner.read(request, sink)
        publish_reply(self._events, request, reply, began)
        return reply


def served(accessor: Accessor, runtime: Runtime) -> Accessor:
    """An accessor whose reads are published, if anybody listens."""
    return ServedReads(accessor, runtime) if runtime.events.wants_reads else accessor
