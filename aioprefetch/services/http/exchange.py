"""A request to the base's server, along its redirects; and what this runtime has learned of that server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from aioprefetch.errors import Error, RedirectRefused
from aioprefetch.runtime import Runtime
from aioprefetch.services.http.urls import Origin, encoded_key, redirect_target
from aioprefetch.services.http.wire_answer import Answer
from aioprefetch.services.keys import checked_key
from aioprefetch.values import Request

if TYPE_CHECKING:
    from aioprefetch.services.http.recipe import Http

REDIRECTS_MAX = 5
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
# No store's limit, but that of many servers for a request line, after percent-encoding.
KEY_BYTES_MAX = 2048

_COUNTER = {"GET": "action_http_get_request", "HEAD": "action_http_head_request"}


class Wire(Protocol):
    """The transport: sends one request, follows nothing, raises errors of ours alone."""

    async def request(self, method: str, origin: Origin, url: str, headers: Mapping[str, str]) -> Answer: ...


@dataclass(slots=True)
class ServerTraits:
    """What the server of one origin was seen to do; ``None``: not seen yet."""

    obeys_range: bool | None = None
    refuses_head: bool = False


class Exchange:
    """Sends requests for keys.

    Credentials, headers and query go to the base's origin alone, and not even there after a redirect has left it.
    """

    def __init__(self, recipe: Http, runtime: Runtime, wire: Wire) -> None:
        self._recipe = recipe
        self._runtime = runtime
        self._wire = wire
        self.traits = runtime.shared(("http traits", recipe.origin), ServerTraits)

    async def send(self, request: Request, method: Literal["GET", "HEAD"], headers: Mapping[str, str]) -> Answer:
        """The answer at the end of the redirects, whatever its status. The caller closes it."""
        try:
            return await self._send(request, method, headers)
        except Error as error:
            error.add_context(operation=request.operation, path=request.path)
            raise

    async def _send(self, request: Request, method: Literal["GET", "HEAD"], headers: Mapping[str, str]) -> Answer:
        recipe = self._recipe
        key = checked_key(request.path, operation=request.operation, bytes_max=KEY_BYTES_MAX)
        origin = recipe.origin
        ours = recipe.identity.request_headers()
        url = f"{origin}{recipe.path}/{encoded_key(key)}{recipe.identity.request_query()}"
        for _ in range(REDIRECTS_MAX + 1):
            with self._runtime.timer(_COUNTER[method]) as timer:
                answer = await self._wire.request(method, origin, url, {**ours, **headers})
                if answer.status >= 400:
                    timer.failed()
            if answer.status not in REDIRECT_STATUSES:
                answer.redirected_to = None if origin == recipe.origin else origin
                return answer
            answer.close()
            location = answer.headers.get("Location")
            origin, url = redirect_target(url, location, recipe.origin)
            if not recipe.follow_redirects:
                raise RedirectRefused(f"the server redirects to {url}, and follow_redirects is False")
            if origin != recipe.origin:
                ours = {}
        raise RedirectRefused(f"more than {REDIRECTS_MAX} redirects, the last one to {url}")
