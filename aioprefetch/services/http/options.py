"""The options of the http service, and their checks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import ByteCount, byte_count
from aioprefetch.runtime.options import checked_file, checked_seconds
from aioprefetch.services.http.identity import Identity, checked_auth, checked_headers
from aioprefetch.services.http.urls import parse_base_url
from aioprefetch.services.proxies import ProxyUrls, ambient_network
from aioprefetch.transport import ClientOptions, Origin
from aioprefetch.values import Capability, ServiceInfo

StatMethod = Literal["auto", "head", "get"]
SCHEMES = ("http", "https")
# The minimum of connections to one host.
CONNECTIONS_MIN = 128

CAPABILITY = Capability(
    read=True,
    read_range=True,
    read_suffix=True,
    read_if_match=True,
    read_if_none_match=True,
    read_if_modified_since=True,
    read_if_unmodified_since=True,
    stat=True,
)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class HttpOptions:
    """The fields of the recipe ``Http``, which documents them. Raises ``ConfigInvalid`` for invalid options."""

    origin: Origin
    path: str
    identity: Identity
    follow_redirects: bool
    ca_bundle: str | None
    proxies: ProxyUrls | None
    connect_timeout_seconds: float
    read_timeout_seconds: float
    skip_bytes_max: int
    stat_method: StatMethod

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str | Secret] | None = None,
        auth: tuple[str, str | Secret] | str | Secret | None = None,
        follow_redirects: bool = True,
        ca_bundle: str | os.PathLike[str] | None = None,
        proxies: Mapping[str, str | Secret] | None = None,
        connect_timeout_seconds: float = 5.0,
        read_timeout_seconds: float = 20.0,
        skip_bytes_max: ByteCount = 8 << 20,
        stat_method: StatMethod = "auto",
    ) -> None:
        base = parse_base_url(base_url)
        user, secret = checked_auth(auth)
        if base.user is not None:
            if auth is not None:
                raise _invalid("base_url has a user already; give auth or the user in the URL, not both")
            user, secret = checked_auth((base.user, base.password or ""))
        checked = checked_headers(headers)
        if secret is not None and any(name.lower() == "authorization" for name, _ in checked):
            raise _invalid("auth and the header Authorization are both given; leave one out")
        if type(follow_redirects) is not bool:
            raise _invalid(f"follow_redirects must be True or False, not {follow_redirects!r}")
        skip_bytes = byte_count(skip_bytes_max, "skip_bytes_max", operation="configure")
        if type(skip_bytes) is not int or skip_bytes < 0:
            raise _invalid(f"skip_bytes_max must be an integer of at least 0, not {skip_bytes_max!r}")
        if stat_method not in ("auto", "head", "get"):
            raise _invalid(f"stat_method must be 'auto', 'head' or 'get', not {stat_method!r}")
        values = {
            "origin": base.origin,
            "path": base.path,
            "identity": Identity(user, secret, checked, Secret.of(base.query)),
            "follow_redirects": follow_redirects,
            "ca_bundle": None if ca_bundle is None else checked_file("ca_bundle", ca_bundle),
            "proxies": _checked_proxies(proxies),
            "connect_timeout_seconds": checked_seconds("connect_timeout_seconds", connect_timeout_seconds),
            "read_timeout_seconds": checked_seconds("read_timeout_seconds", read_timeout_seconds),
            "skip_bytes_max": skip_bytes,
            "stat_method": stat_method,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.identity.headers)
        query = ", query=***" if self.identity.query else ""
        return f"Http({f'{self.origin}{self.path}/'!r}{query}, auth={self.identity.kind}, headers=[{names}])"

    @property
    def info(self) -> ServiceInfo:
        return ServiceInfo(
            scheme=self.origin.scheme,
            name=self.origin.netloc,
            root=self.path.lstrip("/"),
            principal=self.identity.principal_at(str(self.origin)),
        )

    @property
    def surroundings(self) -> str:
        """A digest of the variables that decide about connections. Operators share these where it is equal."""
        return ambient_network()

    @property
    def capability(self) -> Capability:
        return CAPABILITY

    def client_options(self, concurrency: int) -> ClientOptions:
        """The options of the client. Recipes with equal client options share their connections."""
        # ConcurrentLimit decides on the number of concurrent requests: a second queue here would interfere with it.
        # Twice as many, because a redirect leads to a second connection.
        connections = max(CONNECTIONS_MIN, 2 * concurrency)
        return ClientOptions(
            connect_timeout_seconds=self.connect_timeout_seconds,
            first_byte_timeout_seconds=self.read_timeout_seconds,
            stall_timeout_seconds=self.read_timeout_seconds,
            wait_timeout_seconds=max(self.connect_timeout_seconds, self.read_timeout_seconds),
            connections_max=2 * connections,
            connections_per_host_max=connections,
            ca_bundle=self.ca_bundle,
            link_local_host=self.origin.host,
        )


def _checked_proxies(proxies: Mapping[str, str | Secret] | None) -> ProxyUrls | None:
    if proxies is None:
        return None
    if not isinstance(proxies, Mapping):
        raise _invalid(f"proxies must be a mapping of schemes to URLs, not a {type(proxies).__name__}")
    checked: list[tuple[str, str | Secret]] = []
    for scheme, url in proxies.items():
        if scheme not in SCHEMES:
            raise _invalid(f"proxies has the key {scheme!r}; the keys are 'http' and 'https'")
        if isinstance(url, Secret) or (isinstance(url, str) and url.startswith("env:")):
            checked.append((scheme, url if isinstance(url, Secret) else Secret(url)))
        elif isinstance(url, str) and urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname:
            checked.append((scheme, Secret(url) if "@" in url else url))
        else:
            raise _invalid(f"the proxy for {scheme} must be a URL like http://host:3128")
    return tuple(checked)


def _invalid(message: str) -> ConfigInvalid:
    return ConfigInvalid(message, operation="configure")
