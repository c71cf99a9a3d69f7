"""One request and one answer over aiohttp: no redirects, no cookies, no inflating, nothing from ~/.netrc.

The only module of the service that knows aiohttp. It is imported when the service is first built.

No exception of aiohttp gets out, not even as a cause: theirs hold the request's headers, and with them credentials.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import aiohttp.abc
import yarl

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, Error
from aioprefetch.runtime import Runtime
from aioprefetch.services.http.urls import Origin, is_link_local
from aioprefetch.services.http.wire_failures import LinkLocalRefused, translate

if TYPE_CHECKING:
    from aioprefetch.services.http.recipe import Http

# aiohttp pauses a connection at twice this much unread body: what an open, unread answer may hold in memory.
READ_BUFFER_BYTES = 256 << 10
HEADERS = {"Accept-Encoding": "identity", "User-Agent": "aioprefetch"}


class WireAnswer:
    """An ``Answer`` over aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.redirected_to: Origin | None = None

    async def read_chunk(self) -> bytes:
        """The next bytes of the body, ``b""`` at its end. When it fails or is cancelled the connection is closed."""
        failure: Error
        try:
            return await self._response.content.readany()
        except asyncio.CancelledError:
            self.close()
            raise
        except Exception as error:
            self.close()
            failure = translate(error, during_body=True)
        raise failure

    def close(self) -> None:
        """Give the connection back. May be called twice."""
        # When the body has come to its end aiohttp has taken the connection back already.
        self._response.close()


class WireSession:
    """The connections of one recipe in one runtime; made at the first request, closed with the runtime."""

    def __init__(self, runtime: Runtime, recipe: Http) -> None:
        self._runtime = runtime
        self._recipe = recipe
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._proxies = _proxies_of(recipe)

    async def request(self, method: str, origin: Origin, url: str, headers: Mapping[str, str]) -> WireAnswer:
        """Send a request and return when the head of its answer is there. Raises errors of ours alone."""
        session = self._session or await self._open()
        proxy, proxy_headers = self._proxy_for(origin)
        sent = {**HEADERS, **headers}
        if origin.scheme == "http":  # The proxy gets the request itself, and no CONNECT before it.
            sent |= proxy_headers
        failure: Error
        try:
            response = await session.request(
                method,
                yarl.URL(url, encoded=True),
                headers=sent,
                allow_redirects=False,
                proxy=proxy,
                proxy_headers=proxy_headers or None,
            )
            return WireAnswer(response)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            failure = translate(error, during_body=False)
        failure.context.setdefault("host", origin.netloc)
        raise failure

    async def _open(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is not None:
                return self._session
            context = await self._tls_context()
            recipe = self._recipe
            resolver = _GuardedResolver(self._runtime.loop, allowed=recipe.origin.host)
            connector = aiohttp.TCPConnector(
                # How many requests run at once is for ConcurrentLimit to say: a second queue here has no deadline.
                limit=0,
                ssl=context,
                resolver=cast("aiohttp.abc.AbstractResolver", resolver),
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                read_bufsize=READ_BUFFER_BYTES,
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=recipe.connect_timeout_seconds,
                    sock_connect=recipe.connect_timeout_seconds,
                    sock_read=recipe.read_timeout_seconds,
                ),
            )
            self._runtime.supervisor.on_close(self._session.close)
            return self._session

    async def _tls_context(self) -> ssl.SSLContext | bool:
        bundle = self._recipe.ca_bundle
        if bundle is None:
            return True
        try:
            return await self._runtime.run_blocking(lambda: ssl.create_default_context(cafile=bundle))
        except (OSError, ssl.SSLError) as error:
            raise ConfigInvalid(
                f"ca_bundle {bundle!r} cannot be read as a PEM file of certificates: {error.strerror}"
            ) from error

    def _proxy_for(self, origin: Origin) -> tuple[yarl.URL | None, dict[str, str]]:
        url = self._proxies.get(origin.scheme)
        if url is None or (self._recipe.proxies is None and proxy_bypass(origin.host)):
            return None, {}
        parts = urlsplit(url)
        plain = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if parts.username is None:
            return yarl.URL(plain), {}
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return yarl.URL(plain), {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _proxies_of(recipe: Http) -> dict[str, str]:
    """The proxies by scheme. ``ConfigInvalid`` where one is not known in this process."""
    if recipe.proxies is None:
        return {scheme: url if "//" in url else f"http://{url}" for scheme, url in getproxies().items()}
    proxies: dict[str, str] = {}
    for scheme, given in recipe.proxies:
        url = given.reveal() if isinstance(given, Secret) else given
        if url is None:
            raise ConfigInvalid(f"the proxy for {scheme} is not known in this process; give it as env:NAME")
        proxies[scheme] = url
    return proxies


class _GuardedResolver:
    """Name resolution that finds no link-local address, except for the base's own host.

    A redirect to a name may lead to the address of a metadata service just as well as one to the address itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, allowed: str) -> None:
        self._inner = aiohttp.ThreadedResolver(loop)
        self._allowed = allowed

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Any]:
        found = await self._inner.resolve(host, port, family)
        if host != self._allowed and any(is_link_local(one["host"].partition("%")[0]) for one in found):
            raise LinkLocalRefused(host)
        return cast("list[Any]", found)

    async def close(self) -> None:
        await self._inner.close()
