"""A request to the base's server, along its redirects; and what this runtime has learned of that server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aioprefetch.errors import Closed, Error, RedirectRefused, excerpt
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Counters
from aioprefetch.services.http.fields import location_of
from aioprefetch.services.http.proxies import Proxies
from aioprefetch.services.http.urls import encoded_key, redirect_target
from aioprefetch.services.keys import checked_key
from aioprefetch.transport import (
    Connection,
    Destination,
    HttpClient,
    Origin,
    ResponseHead,
    StreamedAnswer,
    Target,
)
from aioprefetch.values import Request

if TYPE_CHECKING:
    from aioprefetch.services.http.recipe import Http

Method = Literal["GET", "HEAD"]
# Called with the head of a response: where its body goes, or ``None`` for a body that is read piece by piece.
Take = Callable[[ResponseHead], Destination | None]

# The headers and the query by which a request says who we are.
Said = tuple[Mapping[str, str], str]

REDIRECTS_MAX = 5
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
# No store's limit, but that of many servers for a request line, after percent-encoding.
KEY_BYTES_MAX = 2048
# Objects whose encoded requests are kept for their next range.
TARGETS_MAX = 256

_COUNTER = {"GET": "action_http_get_request", "HEAD": "action_http_head_request"}


@dataclass(slots=True)
class ServerTraits:
    """What the server of one origin was seen to do; ``None``: not seen yet."""

    obeys_range: bool | None = None
    refuses_head: bool = False


class Response:
    """A response whose head is there.

    ``redirected_to`` is the origin that sent it, if that is not the base's. ``stream`` is its body, to be closed by
    whoever has the response; ``None``: ``Take`` has said where it goes, and it is there.
    """

    __slots__ = ("head", "redirected_to", "stream")

    def __init__(self, head: ResponseHead, stream: StreamedAnswer | None, redirected_to: Origin | None) -> None:
        self.head = head
        self.stream = stream
        self.redirected_to = redirected_to

    @property
    def status(self) -> int:
        """Its status."""
        return self.head.status

    def close(self) -> None:
        """Give the connection back at once, broken off when the body was not read to its end. May be called twice."""
        if self.stream is not None:
            self.stream.close()


class Exchange:
    """Sends requests for keys.

    Credentials, headers and query go to the base's origin alone, and not even there after a redirect has left it.
    They are part of each request and never of a connection, so identities may share connections.
    """

    def __init__(self, recipe: Http, runtime: Runtime, client: HttpClient) -> None:
        self._recipe = recipe
        self._runtime = runtime
        self._client = client
        self._proxies = Proxies(recipe.proxies)
        self._targets: dict[tuple[Method, str], tuple[Said, str, Target]] = {}
        self.traits = runtime.shared(("http traits", recipe.origin), ServerTraits)

    async def send(self, request: Request, method: Method, fields: bytes, take: Take | None = None) -> Response:
        """The response at the end of the redirects, whatever its status. The caller closes it.

        ``fields`` are the headers of this request alone, encoded. What ``take`` raises refuses the response; it is not
        asked about redirects.
        """
        try:
            return await self._send(request, method, fields, take)
        except Error as error:
            # The frames below hold the headers of the request, and with them the credentials.
            failed = error.add_context(operation=request.operation, path=request.path).with_traceback(None)
            raise failed from failed.__cause__

    async def _send(self, request: Request, method: Method, fields: bytes, take: Take | None) -> Response:
        recipe = self._recipe
        origin, ours = recipe.origin, recipe.identity.request_headers()
        url, target = self._target(request, method, ours)
        for _ in range(REDIRECTS_MAX + 1):
            head, stream = await self._fetch(target, fields, take)
            if head.status not in REDIRECT_STATUSES:
                return Response(head, stream, None if origin == recipe.origin else origin)
            origin, url = redirect_target(url, location_of(head), recipe.origin)
            if not recipe.follow_redirects:
                raise RedirectRefused(f"the server redirects to {excerpt(url)}, and follow_redirects is False")
            if origin != recipe.origin:
                ours = {}
            target = self._made(method, origin, url, ours)
        raise RedirectRefused(f"more than {REDIRECTS_MAX} redirects, the last one to {excerpt(url)}")

    async def _fetch(
        self, target: Target, fields: bytes, take: Take | None
    ) -> tuple[ResponseHead, StreamedAnswer | None]:
        counters, name = self._runtime.counters, _COUNTER[target.method]
        counters[name] += 1
        receiver = _Receiver(self._client, take, counters, name, self._runtime.loop.time)
        try:
            await self._client.fetch(target, fields, receiver)
        except BaseException as error:
            if receiver.stream is not None:
                receiver.stream.close()
            if receiver.head is None and isinstance(error, Error):
                error.context.setdefault("host", target.origin.netloc)
                if not isinstance(error, Closed):
                    counters.failed(name)
            raise
        assert receiver.head is not None
        return receiver.head, receiver.stream

    def _target(self, request: Request, method: Method, ours: Mapping[str, str]) -> tuple[str, Target]:
        """URL and target for a key; kept for its other ranges, until what we say of ourselves changes."""
        recipe = self._recipe
        said = ours, recipe.identity.request_query()
        known = self._targets.get((method, request.path))
        if known is not None and known[0] == said:
            return known[1], known[2]
        key = checked_key(request.path, operation=request.operation, bytes_max=KEY_BYTES_MAX)
        url = f"{recipe.origin}{recipe.path}/{encoded_key(key)}{said[1]}"
        target = self._made(method, recipe.origin, url, ours)
        if len(self._targets) >= TARGETS_MAX:
            del self._targets[next(iter(self._targets))]
        self._targets[method, request.path] = said, url, target
        return url, target

    def _made(self, method: Method, origin: Origin, url: str, ours: Mapping[str, str]) -> Target:
        # Headers beyond ASCII go out as UTF-8, whose bytes the transport is given as the characters of their numbers.
        sent = {name: value.encode().decode("latin-1") for name, value in ours.items()}
        path = url.removeprefix(str(origin))
        return Target(origin, path, method=method, headers=sent, proxy=self._proxies.of(origin))


class _Receiver:
    """Send the body of a response to where ``take`` says, or make a stream of it; drop the body of a redirect."""

    __slots__ = ("_client", "_counters", "_name", "_now", "_started", "_take", "head", "stream")

    def __init__(
        self, client: HttpClient, take: Take | None, counters: Counters, name: str, now: Callable[[], float]
    ) -> None:
        self.head: ResponseHead | None = None
        self.stream: StreamedAnswer | None = None
        self._client = client
        self._take = take
        self._counters = counters
        self._name = name
        self._now = now
        self._started = now()

    def begin(self, head: ResponseHead, connection: Connection) -> Destination | None:
        self.head = head
        if head.status >= 400:
            self._counters.failed(self._name)
        else:
            self._counters.succeeded(self._name, self._now() - self._started)
        if head.status in REDIRECT_STATUSES:
            return None
        destination = None if self._take is None else self._take(head)
        if destination is None:
            self.stream = self._client.stream(connection)
            destination = self.stream.take_over(head)
        return destination
