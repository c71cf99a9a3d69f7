"""A request to the base's server, along its redirects; and the traits of that server that this runtime has observed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Closed, Error, RedirectRefused, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.error_body import ErrorBody
from aioprefetch.services.http.errors import failure_of, has_text
from aioprefetch.services.http.options import HttpOptions
from aioprefetch.services.http.responses import location_of
from aioprefetch.services.http.urls import encoded_key, redirect_target
from aioprefetch.services.keys import checked_key
from aioprefetch.services.proxies import Proxies
from aioprefetch.transport import Connection, Destination, HttpClient, Origin, ResponseHead, Target
from aioprefetch.values import Request

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
    refuses_head: bool = False


@dataclass(slots=True)
class Response:
    """A response that was received. ``redirected_to`` is the origin that sent it, if that is not the base's.

    ``error_text`` is the text of an error response, as far as it may be shown.
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
        ``receive`` is called for neither redirects nor errors. ``sink`` is that of a read, for its events.
        """
        try:
            return await self._send(request, method, fields, receive, sink)
        except Error as error:
            # The frames below hold the headers of the request, and with them the credentials.
            failed = error.add_context(operation=request.operation, path=request.path).with_traceback(None)
            raise failed from failed.__cause__

    def failure_of(self, request: Request, response: Response) -> Error:
        """The error that a response without success means."""
        return failure_of(request, response.head, response.error_text, response.redirected_to, self._options.identity)

    async def _send(
        self, request: Request, method: Method, fields: bytes, receive: Receive, sink: Sink | None
    ) -> Response:
        options = self._options
        origin, ours = options.origin, options.identity.request_headers()
        url, target = self._target(request, method, ours)
        for _ in range(REDIRECTS_MAX + 1):
            reported = None
            if self._runtime.events.wants_requests:
                reported = ReportedRequest(self._runtime, request, sink, method, target.url)
            head, error_text = await self._fetch(target, fields, receive, reported)
            redirected_to = None if origin == options.origin else origin
            if reported is not None and head.status < 400:
                reported.finished()
            elif reported is not None:
                reported.failed(failure_of(request, head, error_text, redirected_to, options.identity))
            if head.status not in REDIRECT_STATUSES:
                return Response(head, error_text, redirected_to)
            origin, url = redirect_target(url, location_of(head), options.origin)
            if not options.follow_redirects:
                raise RedirectRefused(f"the server redirects to {excerpt(url)}, and follow_redirects is False")
            if origin != options.origin:
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
        options = self._options
        credentials = ours, options.identity.request_query()
        cached = self._targets.get((method, request.path))
        if cached is not None and cached[0] == credentials:
            return cached[1], cached[2]
        key = checked_key(request.path, operation=request.operation, bytes_max=KEY_BYTES_MAX)
        url = f"{options.origin}{options.path}/{encoded_key(key)}{credentials[1]}"
        target = self._target_at(method, options.origin, url, ours)
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

    __slots__ = ("_limit", "_name", "_receive", "_runtime", "_started", "error_body", "head", "is_cut")

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
