"""The way to a store: its proxies, and whether it may be asked without TLS.

Proxies are those that a recipe names, or those of the environment. No name is resolved.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import sys
from urllib.parse import unquote, urlsplit

from aioprefetch.credentials import Secret, digest
from aioprefetch.errors import ConfigInvalid
from aioprefetch.transport import DEFAULT_PORTS, Origin, Proxy, origin_of

# Where OpenSSL finds the authorities of the system.
_TRUST = ("SSL_CERT_DIR", "SSL_CERT_FILE")

ProxyUrls = tuple[tuple[str, str | Secret], ...]


class Proxies:
    """The proxies of requests by scheme.

    Without ``urls`` they are those of the environment, as it is now, except for the hosts of ``NO_PROXY``.
    """

    def __init__(self, urls: ProxyUrls | None) -> None:
        self._is_ambient = urls is None
        self._urls: dict[str, str | Secret] = dict(urls or ())
        if urls is None:
            ambient = _ambient_proxies()
            self._urls = {scheme: ambient[scheme] for scheme in DEFAULT_PORTS if ambient.get(scheme)}

    def of(self, origin: Origin) -> Proxy | None:
        """The proxy for requests to an origin, ``None`` for none. ``ConfigInvalid`` for a proxy that is not a URL.

        Raises as ``Secret.known`` for one whose password is not known in this process.
        """
        if origin.scheme not in self._urls or (self._is_ambient and _is_bypassed(origin)):
            return None
        # The URL may hold a password: no frame of an error has it.
        given = self._urls[origin.scheme]
        proxy = _proxy_at(given.known(f"proxies[{origin.scheme!r}]") if isinstance(given, Secret) else given)
        if proxy is None:
            raise ConfigInvalid(
                f"the proxy for {origin.scheme} is not a URL like http://host:3128", operation="configure"
            )
        return proxy


def _proxy_at(url: str) -> Proxy | None:
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        proxy = origin_of(parts)
    except ValueError:
        return None
    if parts.username is None:
        return Proxy(proxy)
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(proxy, f"Basic {base64.b64encode(pair.encode()).decode()}")


def ambient_network() -> str:
    """A digest of the variables that decide how a service of this process connects: proxies, and whom TLS trusts."""
    names = sorted(name for name in os.environ if name.lower().endswith("_proxy") or name in _TRUST)
    return digest(*(f"{name}={os.environ[name]}" for name in names)) if names else ""


def _ambient_proxies() -> dict[str, str]:
    # The module that reads them takes 10 ms to load. Only macOS has proxies besides those of variables.
    if sys.platform != "darwin" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return {}
    from urllib.request import getproxies

    return getproxies()


def _is_bypassed(origin: Origin) -> bool:
    """Whether ``NO_PROXY`` names the host, with or without its port and the brackets of an IPv6 address.

    It may name a network of addresses (``10.0.0.0/8``), and the hosts below a name (``*.example.com``).
    """
    from urllib.request import getproxies_environment, proxy_bypass

    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    if any(map(proxy_bypass, {f"{host}:{origin.port}", origin.host})):
        return True
    names = [name.strip().lower() for name in getproxies_environment().get("no", "").split(",")]
    return any(
        _is_within(origin.host, name) if "/" in name else name[:2] == "*." and origin.host.lower().endswith(name[1:])
        for name in names
    )


def _is_within(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:  # A name is not resolved.
        return False


def check_transport(endpoint: str, *, allow_http: bool | None, carries: str) -> None:
    """Refuse plain http where secrets would travel: ``allow_http=None`` allows it to this machine alone.

    ``carries`` describes the values that would be sent, and is empty for none.
    """
    parts = urlsplit(endpoint)
    if parts.scheme != "http" or not carries or allow_http:
        return
    if allow_http is None and _is_loopback(parts.hostname or ""):
        return
    raise ConfigInvalid(
        f"endpoint_url={endpoint!r} would send {carries} without encryption; use https://, or allow_http=True "
        "where the network is trusted",
        operation="configure",
    )


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, judged by its name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
