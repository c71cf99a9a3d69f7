"""The way to a store: options of connections, proxies, packages that it needs, and whether it may be asked without TLS.

Proxies come from a recipe or from the environment. No name is resolved.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from aioprefetch.credentials import Secret, digest
from aioprefetch.errors import MissingDependency
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import FILE, SECONDS, Secrets, invalid, option
from aioprefetch.transport.origin import DEFAULT_PORTS, Origin, Proxy, is_link_local_or_metadata, origin_of

# Where OpenSSL finds the authorities of the system.
_TRUST = ("SSL_CERT_DIR", "SSL_CERT_FILE")

ProxyUrls = Mapping[str, str | Secret]


def checked_proxies(proxies: object, name: str) -> ProxyUrls:
    """Proxies by scheme. One with a user in it is kept as a secret, since it holds a password."""
    if not isinstance(proxies, Mapping):
        raise invalid(f"{name} must map 'http' and 'https' to URLs; it is a {type(proxies).__name__}")
    checked: dict[str, str | Secret] = {}
    for scheme, url in proxies.items():
        if scheme not in DEFAULT_PORTS:
            raise invalid(f"{name} has the key {scheme!r}; the keys are 'http' and 'https'")
        if isinstance(url, str) and not url.startswith("env:"):
            if not _is_proxy(url):  # It may hold a password: no message has it.
                raise invalid(f"{name}[{scheme!r}] must be a URL like http://host:3128")
        elif not isinstance(url, str | Secret):
            raise invalid(f"{name}[{scheme!r}] must be a URL like http://host:3128; it is a {type(url).__name__}")
        is_secret = isinstance(url, str) and ("@" in url or url.startswith("env:"))
        checked[scheme] = Secret(url) if is_secret else url
    return checked


def _is_proxy(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    return parts.scheme in DEFAULT_PORTS and bool(host) and not is_link_local_or_metadata(host)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of connections that a store has with others.

    Parameters
    ----------
    ca_bundle
        A PEM file of the authorities to trust instead of the system's. TLS is always verified.
    proxies
        URLs by scheme (``http``, ``https``). ``None``: from the environment (``HTTPS_PROXY``, ``NO_PROXY``, ...);
        ``{}``: none.
    connect_timeout_seconds
        The time for name resolution, connecting, proxy and TLS together.
    read_timeout_seconds
        The time for the head of a response. A body that brings less than 1 KiB a second for this time has stalled.
    """

    ca_bundle: str | os.PathLike[str] | None = option(
        None,
        FILE,
        also="boto3:verify obstore:root_certificate,proxy_ca_certificate"
        " other:ssl,ssl_verify,verify_ssl,cert,allow_invalid_certificates,cafile,ssl_ca_cert",
        hint="the file of the authorities to trust: certificates are always verified",
    )
    proxies: Mapping[str, str | Secret] | None = option(
        None,
        Secrets(checked_proxies),
        also="obstore:proxy_url spark:proxiesUrl other:proxy,proxies_config",
        hint="proxies={'https': 'http://host:3128'}",
        has_variable=False,
        hash=False,
    )
    connect_timeout_seconds: float = option(5.0, SECONDS, also="boto3:connect_timeout other:connection_timeout")
    read_timeout_seconds: float = option(20.0, SECONDS, also="boto3:read_timeout other:request_timeout")

    @property
    def ca_file(self) -> str | None:
        """``ca_bundle`` as text."""
        return None if self.ca_bundle is None else os.fspath(self.ca_bundle)


class Proxies:
    """The proxies of requests by scheme.

    Without ``urls`` they come from the environment, as it is now, except for the hosts of ``NO_PROXY``.
    """

    def __init__(self, urls: ProxyUrls | None) -> None:
        self._is_ambient = urls is None
        self._urls: dict[str, str | Secret] = dict(urls or {})
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
            raise invalid(f"the proxy for {origin.scheme} is not a URL like http://host:3128")
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
    # The module that reads them takes 10 ms to load. Only macOS has proxies besides variables.
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


def check_installed(service: str, extra: str, *packages: str) -> None:
    """``MissingDependency`` for a package of an extra that is missing, before a request and without an import."""
    for name in packages:
        try:
            found = find_spec(name)
        except ImportError:
            found = None
        if found is None:
            raise MissingDependency(
                f"{service} needs {name}: pip install 'aioprefetch[{extra}]'", operation="configure"
            )


def check_transport(endpoint: str, *, allow_http: bool | None, carries: str) -> None:
    """Refuse plain http where secrets would travel: ``allow_http=None`` allows it to this machine alone.

    ``carries`` describes the values that would be sent, and is empty for none.
    """
    parts = urlsplit(endpoint)
    if parts.scheme != "http" or not carries or allow_http:
        return
    if allow_http is None and _is_loopback(parts.hostname or ""):
        return
    raise invalid(
        f"endpoint_url={endpoint!r} would send {carries} without encryption; use https://, or allow_http=True "
        "where the network is trusted"
    )


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, judged by its name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
