"""A request to the base's server, along its redirects; and the traits of that server that this runtime has observed.

The receivers are for bodies that cannot be received in place: one with a prefix to skip, and one without a length.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import BudgetExhausted, Closed, Error, ProtocolError, RedirectRefused, Unsupported, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.services.http.errors import failure_of, has_text
from aioprefetch.services.http.options import HttpOptions, encoded_key, redirect_target
from aioprefetch.services.http.responses import location_of
from aioprefetch.services.keys import checked_key
from aioprefetch.services.proxies import Proxies
from aioprefetch.services.response_bodies import ErrorBody, receiver_of
from aioprefetch.transport.connection import Connection, Destination
from aioprefetch.transport.origin import Origin, Target
from aioprefetch.transport.pool import HttpClient
from aioprefetch.transport.responses import ResponseHead
from aioprefetch.values import ReadRequest, Request

Method = Literal["GET", "HEAD"]
# Called with the head of a success, or of any response to a HEAD. Returns where its body goes; ``None`` cancels it.
Receive = Callable[[ResponseHead, Connection], Destination | None]

# The headers and the query that identify the caller.
Credentials = tuple[Mapping[str, str], str]

REDIRECTS_MAX = 5
SUCCESS_STATUSES = frozenset({200, 206})
# The text of an error may fail or take this long without consequence.
ERROR_BODY_SECONDS_MAX = 2.0
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
# The limit of many servers for a request line, after percent-encoding.
KEY_BYTES_MAX = 2048
# Objects whose encoded requests are kept for their next range.
TARGETS_MAX = 256

_COUNTER = {"GET": "action_http_get_request", "HEAD": "action_http_head_request"}


@dataclass(slots=True)
class ServerTraits:
    """The observed behaviour of the server of one origin; ``None``: not observed yet."""

    obeys_range: bool | None = None
    encodes: bool = False
    refuses_head: bool = False


@dataclass(slots=True)
class Response:
    """A response that was received. ``redirected_to`` is the origin that sent it, if that is not the base's.

    ``error_text`` is the part of an error response that may be shown.
    """

    head: ResponseHead
    error_text: bytes
    redirected_to: Origin | None

    @property
    def status(self) -> int:
        """The status."""
        return self.head.status


class Exchange:
    """Sends requests for keys.

    Credentials, headers and query go to the base's origin alone, and not even there after a redirect has left it.
    They are part of each request and never of a connection, so identities may share connections.
    """

    def __init__(self, options: HttpOptions, runtime: Runtime, client: HttpClient) -> None:
        self._options = options
        self._base = options.base
        self._runtime = runtime
        self._client = client
        self._proxies = Proxies(options.proxies)
        self._targets: dict[tuple[Method, str], tuple[Credentials, str, Target]] = {}
        self.traits = runtime.shared(("http traits", options.origin), ServerTraits)

    async def send(
        self, request: Request, method: Method, fields: bytes, receive: Receive, sink: Sink | None = None
    ) -> Response:
        """The response at the end of the redirects, with any status, once its body has been received.

        ``fields`` are the headers of this request alone, encoded. An error of ``receive`` refuses the response.
        ``receive`` is called for neither redirects nor errors. ``sink`` is a read's, for its events.
        """
        try:
            return await self._send(request, method, fields, receive, sink)
        except Error as error:
            # The frames below hold the headers of the request, and with them the credentials.
            error.add_context(operation=request.operation, path=request.path)
            raise error.with_traceback(None) from error.__cause__

    def taken_coding(self, request: Request, head: ResponseHead) -> str:
        """The coding that has to be undone, taken out of the head. One left is reported once for a server."""
        coding, url = (head.text("content-encoding") or "").strip().lower(), self._options.info.url
        if self._options.decode:
            head.fields.pop(b"content-encoding", None)
            return coding.removeprefix("identity")
        if coding not in ("", "identity") and not self.traits.encodes:
            self.traits.encodes = True
            self._runtime.events.publish("http.encoded", request.path, service=url, coding=coding)
            logger.warning("%s sends objects in %s: decode=True gives them as they were", url, excerpt(coding))
        return ""

    def failure_of(self, request: Request, response: Response) -> Error:
        """The error that a response without success means."""
        return failure_of(request, response.head, response.error_text, response.redirected_to, self._options)

    async def _send(
        self, request: Request, method: Method, fields: bytes, receive: Receive, sink: Sink | None
    ) -> Response:
        options = self._options
        origin, ours = self._base.origin, self._options.request_headers()
        url, target = self._target(request, method, ours)
        for _ in range(REDIRECTS_MAX + 1):
            reported = None
            if self._runtime.events.wants_requests:
                reported = ReportedRequest(self._runtime, request, sink, method, target.url)
            head, error_text = await self._fetch(target, fields, receive, reported)
            redirected_to = None if origin == self._base.origin else origin
            if reported is not None and head.status < 400:
                reported.finished()
            elif reported is not None:
                reported.failed(failure_of(request, head, error_text, redirected_to, self._options))
            if head.status not in REDIRECT_STATUSES:
                return Response(head, error_text, redirected_to)
            origin, url = redirect_target(url, location_of(head), self._base.origin)
            if not options.follow_redirects:
                raise RedirectRefused(f"the server redirects to {excerpt(url)}, and follow_redirects is False")
            if origin != self._base.origin:
                ours = {}
            target = self._target_at(method, origin, url, ours)
        raise RedirectRefused(f"more than {REDIRECTS_MAX} redirects, the last one to {excerpt(url)}")

    async def _fetch(
        self, target: Target, fields: bytes, receive: Receive, reported: ReportedRequest | None
    ) -> tuple[ResponseHead, bytes]:
        counters, name = self._runtime.counters, _COUNTER[target.method]
        counters[name] += 1
        receiver = _CountingReceiver(receive, self._runtime, name)
        try:
            await self._client.fetch(target, fields, receiver, reported=reported)
        except Error as error:
            if receiver.error_body is not None and not isinstance(error, Closed):
                return receiver.checked_head, b""
            if receiver.head is None:
                error.context.setdefault("host", target.origin.netloc)
                if not isinstance(error, Closed):
                    counters.failed(name)
            raise
        finally:
            receiver.end()
        return receiver.checked_head, receiver.error_text

    def _target(self, request: Request, method: Method, ours: Mapping[str, str]) -> tuple[str, Target]:
        """URL and target for a key; kept for its other ranges, until the credentials change."""
        credentials = ours, self._options.request_query()
        cached = self._targets.get((method, request.path))
        if cached is not None and cached[0] == credentials:
            return cached[1], cached[2]
        key = checked_key(request.path, operation=request.operation, bytes_max=KEY_BYTES_MAX)
        url = f"{self._base.origin}{self._base.path}/{encoded_key(key)}{credentials[1]}"
        target = self._target_at(method, self._base.origin, url, ours)
        if len(self._targets) >= TARGETS_MAX:
            del self._targets[next(iter(self._targets))]
        self._targets[method, request.path] = credentials, url, target
        return url, target

    def _target_at(self, method: Method, origin: Origin, url: str, ours: Mapping[str, str]) -> Target:
        # Headers beyond ASCII go out as UTF-8, whose bytes the transport is given as the characters of their numbers.
        sent = {name: value.encode().decode("latin-1") for name, value in ours.items()}
        path = url.removeprefix(str(origin))
        return Target(origin, path, method=method, headers=sent, proxy=self._proxies.of(origin))


class _CountingReceiver:
    """Counts a response, and receives it: a success by ``receive``, the text of an error here."""

    def __init__(self, receive: Receive, runtime: Runtime, name: str) -> None:
        self.head: ResponseHead | None = None
        self.error_body: ErrorBody | None = None
        self.is_cut = False
        self._receive = receive
        self._runtime = runtime
        self._name = name
        self._started = runtime.now()
        self._limit: asyncio.TimerHandle | None = None

    @property
    def checked_head(self) -> ResponseHead:
        """The head, which is there once the request has ended."""
        assert self.head is not None
        return self.head

    @property
    def error_text(self) -> bytes:
        """The text of an error response, empty if it took too long."""
        return b"" if self.error_body is None or self.is_cut else bytes(self.error_body.body)

    def begin(self, head: ResponseHead, connection: Connection) -> Destination | None:
        self.head = head
        counters, status = self._runtime.counters, head.status
        if status >= 400:
            counters.failed(self._name)
        else:
            counters.succeeded(self._name, self._runtime.now() - self._started)
        if status in SUCCESS_STATUSES:
            return self._receive(head, connection)
        if status in REDIRECT_STATUSES or not has_text(head):
            return None
        self.error_body = ErrorBody(connection)
        self._limit = self._runtime.loop.call_later(ERROR_BODY_SECONDS_MAX, self._cut, connection)
        return self.error_body

    def _cut(self, connection: Connection) -> None:
        self.is_cut = True
        connection.stop()

    def end(self) -> None:
        """The request has ended: its connection may serve others."""
        if self._limit is not None:
            self._limit.cancel()


# --- receivers --------------------------------------------------------------------------------------------------------

_ANY_HEADER = zlib.MAX_WBITS + 32  # Of gzip or deflate.
# Memory is reserved in pieces of at least this size.
RESERVED_BYTES_MIN = 1 << 20
# The maximum that is received of a body without a length.
UNSIZED_BYTES_MAX = 64 << 20
# A prefix is received into one buffer of this size, again and again.
SKIP_BUFFER_BYTES = 64 << 10


class SkippingReceiver:
    """Drops the first ``skip_bytes`` of a body, receives the next ones in place, and stops the response after them."""

    def __init__(self, runtime: Runtime, sink: Sink, connection: Connection, skip_bytes: int) -> None:
        self._counters = runtime.counters
        self._sink = sink
        self._receiver = receiver_of(runtime, sink, connection)
        self._connection = connection
        self._skip_bytes = skip_bytes
        self._scratch = memoryview(bytearray(min(skip_bytes, SKIP_BUFFER_BYTES)))

    def writable(self) -> memoryview:
        """Memory for the next bytes: a buffer that is used again, then the sink's."""
        return self._scratch[: self._skip_bytes] if self._skip_bytes else self._receiver.writable()

    def advance(self, count: int) -> None:
        if self._skip_bytes:
            self._skip_bytes -= count
            self._counters["stream_read_total_bytes"] += count
            return
        self._receiver.advance(count)
        self._stop_if_complete()

    def feed(self, chunk: memoryview) -> int:
        """Drop or copy a chunk. Bytes after the wanted part are dropped too."""
        skipped = min(self._skip_bytes, len(chunk))
        self._skip_bytes -= skipped
        self._counters["stream_read_total_bytes"] += skipped
        if (head := self._sink.head) is not None and not self._sink.complete:
            self._receiver.feed(chunk[skipped : skipped + head.size - self._sink.received])
            self._stop_if_complete()
        return len(chunk)

    def _stop_if_complete(self) -> None:
        if self._sink.complete:
            self._connection.stop()


class UnsizedReceiver:
    """Collects the wanted bytes of a body without a length, in memory that the budget counts; a ``coding`` is undone.

    ``release`` returns the memory; it may be called twice. Only one body at a time may exceed the budget: if
    several did, none would find the memory to end. The others pause their connections until it is their turn, and are
    ``BudgetExhausted`` after ``budget_wait_seconds``.
    """

    def __init__(self, runtime: Runtime, request: ReadRequest, connection: Connection, coding: str = "") -> None:
        if coding not in ("", "gzip", "x-gzip", "deflate"):
            raise Unsupported(f"decode=True knows gzip and deflate, and the server sends {excerpt(coding)!r}")
        self._inflated = zlib.decompressobj(_ANY_HEADER) if coding else None
        self.received = 0
        self.is_complete = True
        self._runtime = runtime
        self._request = request
        self._connection = connection
        self._start = 0  # The position of the first byte of ``_data`` in the object.
        self._data = bytearray()
        self._room = memoryview(b"")
        self._reserved_bytes = 0
        self._turn: asyncio.Lock = runtime.shared("http bodies of unknown length", asyncio.Lock)
        self._has_turn = False
        self._waiting: Work | None = None

    def writable(self) -> memoryview:
        self._room = memoryview(bytearray(SKIP_BUFFER_BYTES))
        return self._room

    def advance(self, count: int) -> None:
        self.feed(self._room[:count])

    def feed(self, chunk: memoryview) -> int:
        """Keep the wanted part of a chunk, and stop the response after the last wanted byte.

        Raises ``Unsupported`` for a body of more than ``UNSIZED_BYTES_MAX``, ``ProtocolError`` for one in no coding.
        """
        self._runtime.counters["stream_read_total_bytes"] += len(chunk)
        for piece in (chunk,) if self._inflated is None else self._decoded(bytes(chunk)):
            self._take(piece)
        return len(chunk)

    def _decoded(self, data: bytes) -> Iterator[memoryview]:
        """The next bytes decoded, in pieces: few bytes may become millions."""
        piece = b""
        while self._inflated is not None and (data or len(piece) == RESERVED_BYTES_MIN):
            if self._inflated.eof:  # There may be several, one after the other.
                self._inflated = zlib.decompressobj(_ANY_HEADER)
            try:
                piece = self._inflated.decompress(data, RESERVED_BYTES_MIN)
            except zlib.error as error:
                raise ProtocolError(f"the body is not in the coding that it claims: {error}") from None
            yield memoryview(piece)
            data = self._inflated.unconsumed_tail or self._inflated.unused_data

    def check_end(self) -> None:
        """Raises ``ProtocolError`` for a body that has ended within its coding."""
        if self._inflated is not None and self.is_complete and not self._inflated.eof:
            raise ProtocolError("the encoded body ends early")

    def _take(self, chunk: memoryview) -> None:
        if not self.is_complete:
            return  # The rest of the chunk with the last wanted byte.
        self.received += len(chunk)
        if self.received > UNSIZED_BYTES_MAX:
            raise Unsupported(
                f"the server tells no length, and such objects are read up to {UNSIZED_BYTES_MAX} bytes only: "
                "copy the object to a store that tells lengths and has ranges",
                operation="read",
                path=self._request.path,
            )
        self._keep(chunk)
        request = self._request
        if request.size is None or request.suffix is not None or self._inflated is not None:
            return  # Of what is decoded nothing but its end tells the size.
        if self.received >= request.offset + request.size:
            self.is_complete = False
            self._connection.stop()

    def _keep(self, chunk: memoryview) -> None:
        suffix = self._request.suffix
        if suffix is None and not self._data:
            # Bytes before the offset are dropped.
            skipped = max(0, len(chunk) - max(0, self.received - self._request.offset))
            chunk = chunk[skipped:]
            self._start = self.received - len(chunk)
        missing_bytes = len(self._data) + len(chunk) - self._reserved_bytes
        if missing_bytes > 0:
            self._reserve(max(missing_bytes, RESERVED_BYTES_MIN))
        self._data += chunk
        if suffix is not None and len(self._data) > 2 * suffix + RESERVED_BYTES_MIN:
            self._start += len(self._data) - suffix
            del self._data[: len(self._data) - suffix]

    def view(self, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)`` of the object, which were wanted."""
        return memoryview(self._data)[start - self._start : end - self._start] if start < end else memoryview(b"")

    def release(self) -> None:
        """Release the memory and the turn."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._runtime.budget.release(self._reserved_bytes)
        self._reserved_bytes = 0
        self._data = bytearray()
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    def _reserve(self, size_bytes: int) -> None:
        """Reserve memory, or pause the connection until it is this body's turn to exceed the budget.

        A few KiB that the connection has received before it is paused are counted at the turn.
        """
        if self._waiting is not None and not self._has_turn:
            return
        budget = self._runtime.budget
        ticket = budget.request(size_bytes, "demand")
        if not ticket.granted:
            budget.cancel(ticket)
            if not self._has_turn:
                self._connection.pause()
                self._waiting = self._runtime.supervisor.spawn(self._take_turn(), name="http body waits for memory")
                return
            budget.charge(size_bytes)
        self._reserved_bytes += size_bytes

    async def _take_turn(self) -> None:
        limit_seconds = self._runtime.options.budget_wait_seconds
        try:
            with self._runtime.timer("memory_waits"):
                async with asyncio.timeout(limit_seconds):
                    await self._turn.acquire()
        except TimeoutError:
            self._connection.close(
                BudgetExhausted(
                    f"memory for a response without a length was not free within {limit_seconds} s; read fewer of "
                    "them at once, release views, close readers or raise memory_bytes",
                    operation="read",
                    path=self._request.path,
                )
            )
            return
        self._has_turn = True
        missing_bytes = max(len(self._data) - self._reserved_bytes, RESERVED_BYTES_MIN)
        self._runtime.budget.charge(missing_bytes)
        self._reserved_bytes += missing_bytes
        self._connection.resume()
