"""The proxy of a request: the one of the options for its scheme, or that of the environment."""

from __future__ import annotations

import base64
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid
from aioprefetch.services.http.urls import origin_of
from aioprefetch.transport import Origin, Proxy

SCHEMES = ("http", "https")


class Proxies:
    """The proxies by scheme. ``None``: those of the environment, as it is now, and without the hosts of ``NO_PROXY``.

    Raises ``ConfigInvalid`` where one is not known in this process.
    """

    def __init__(self, given: tuple[tuple[str, str | Secret], ...] | None) -> None:
        self._is_ambient = given is None
        self._urls: dict[str, str] = {}
        if given is None:
            found = getproxies()
            self._urls = {scheme: found[scheme] for scheme in SCHEMES if found.get(scheme)}
            return
        for scheme, one in given:
            url = one.reveal() if isinstance(one, Secret) else one
            if url is None:
                raise _invalid(f"the proxy for {scheme} is not known in this process; give it as env:NAME")
            self._urls[scheme] = url

    def of(self, origin: Origin) -> Proxy | None:
        """The proxy for requests to an origin, ``None`` for none. ``ConfigInvalid`` for a URL that is none."""
        url = self._urls.get(origin.scheme)
        if url is None or (self._is_ambient and proxy_bypass(origin.host)):
            return None
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            proxy = origin_of(parts)
        except ValueError:
            raise _invalid(f"the proxy for {origin.scheme} is not a URL like http://host:3128") from None
        if parts.username is None:
            return Proxy(proxy)
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return Proxy(proxy, f"Basic {base64.b64encode(pair.encode()).decode()}")


def _invalid(message: str) -> ConfigInvalid:
    return ConfigInvalid(message, operation="configure")
