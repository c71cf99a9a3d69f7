"""Origins, and requests as they are sent: the fixed part is encoded once for all ranges of an object."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Literal
from urllib.parse import SplitResult

from aioprefetch.errors import InvalidPath
from aioprefetch.lean_dataclass import dataclass

DEFAULT_PORTS = {"http": 80, "https": 443}
# Headers of each request, beside ``Host``.
CLIENT_FIELDS = {"User-Agent": "aioprefetch", "Accept-Encoding": "identity"}

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")
# Valid request targets, header names and header values: without control characters, targets also without spaces.
_TARGET = re.compile(r"/[\x21-\x7e]*")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

# Addresses at which clouds hand out credentials and that are not link-local: AWS and Google by IPv6, Alibaba, the first
# one of Oracle, the agent of Azure.
_METADATA = ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
# NAT64 (RFC 6052, RFC 8215), and the form before the mapped one: IPv6 networks whose addresses end with an IPv4 one.
_IPV4_AT_THE_END = ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: the scope of credentials."""

    scheme: str
    host: str
    port: int

    @property
    def netloc(self) -> str:
        """Host and port as in a URL, without the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"


def origin_of(parts: SplitResult) -> Origin:
    """The origin of a URL in parts. Raises ``ValueError`` in words that can follow a colon and show nothing secret."""
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise ValueError("the scheme must be http or https")
    host = parts.hostname or ""
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            raise ValueError("the host is not a valid name") from None
    if ":" in host:
        ipaddress.IPv6Address(host)
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError("the host is missing or not a valid name")
    try:
        port = parts.port
    except ValueError:  # Its message shows the text, which may be half of a password.
        raise ValueError("the port is not a number below 65536") from None
    return Origin(scheme, host, port or DEFAULT_PORTS[scheme])


@dataclass(frozen=True, slots=True, repr=False)
class Proxy:
    """An HTTP proxy. ``authorization`` is the value of its header, a secret."""

    origin: Origin
    authorization: str = ""

    def __repr__(self) -> str:
        return f"<Proxy {self.origin}>"


class Route:
    """The way of a connection: an origin, perhaps through a proxy. Routes with equal ``key`` share connections.

    Requests on it begin their target with ``target_prefix`` and have the headers ``fields`` for the proxy.
    """

    __slots__ = ("fields", "key", "origin", "proxy", "target_prefix")

    def __init__(self, origin: Origin, proxy: Proxy | None) -> None:
        self.origin = origin
        self.proxy = proxy
        # A string caches its hash, and this is looked up for every request.
        self.key = str(origin) if proxy is None else f"{origin} {proxy.origin} {proxy.authorization}"
        is_plain = proxy is not None and origin.scheme == "http"
        self.target_prefix = str(origin) if is_plain else ""
        self.fields = b""
        if proxy is not None and is_plain and proxy.authorization:
            self.fields = encoded_fields({"Proxy-Authorization": proxy.authorization})

    def __repr__(self) -> str:
        return f"<Route {self.origin}{'' if self.proxy is None else f' through {self.proxy.origin}'}>"


Method = Literal["GET", "HEAD", "PUT", "POST", "DELETE"]


class Target:
    """The fixed part of a request, the same for all ranges of an object.

    ``path`` is the percent-encoded path with its query, which may hold a signature: repr and errors leave it out.
    Raises ``InvalidPath`` for a path, header name or header value that would break the lines of the request.
    """

    __slots__ = ("_path", "_url", "head", "is_head", "method", "origin", "route")

    def __init__(
        self,
        origin: Origin,
        path: str,
        *,
        method: Method = "GET",
        headers: Mapping[str, str] | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        fields = encoded_fields({"Host": origin.netloc, **CLIENT_FIELDS, **(headers or {})})
        self._fill(Route(origin, proxy), path, method, fields)

    @classmethod
    def on(cls, route: Route, path: str, method: Method, fields: bytes) -> Target:
        """A target on a route that exists, with all of its headers encoded, ``Host`` among them."""
        target = cls.__new__(cls)
        target._fill(route, path, method, fields)
        return target

    def _fill(self, route: Route, path: str, method: Method, fields: bytes) -> None:
        if not _TARGET.fullmatch(path):
            raise InvalidPath("the URL that the path makes is not valid")
        self.origin = route.origin
        self.method = method
        self.is_head = method == "HEAD"
        self.route = route
        self._path = path
        self._url: str | None = None
        # A proxy for plain http gets the whole URL, and its user with each request.
        self.head = f"{method} {route.target_prefix}{path} HTTP/1.1\r\n".encode("ascii") + fields + route.fields

    @property
    def url(self) -> str:
        """The URL without its query."""
        if self._url is None:
            self._url = f"{self.origin}{self._path.partition('?')[0]}"
        return self._url

    def __repr__(self) -> str:
        return f"<Target {self.method} {self.url}>"


def encoded_head(line: str, fields: Mapping[str, str]) -> bytes:
    """A request line and headers, without the empty line after them. Raises ``InvalidPath`` as ``encoded_fields``."""
    return f"{line}\r\n".encode("ascii") + encoded_fields(fields)


def encoded_fields(fields: Mapping[str, str]) -> bytes:
    """Headers as they are sent. Raises ``InvalidPath`` for a name or value that would break their lines."""
    for name, value in fields.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise InvalidPath(f"the header {name!r} cannot be sent: it holds a control character")
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode("latin-1")


def is_address(host: str) -> bool:
    """Whether a host is an IP address and no name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_link_local_or_metadata(host: str) -> bool:
    """Whether a host is a link-local address (169.254/16, fe80::/10), or one at which a cloud hands out credentials.

    No server of others has a reason to redirect there. All spellings are recognised: numbers that resolvers take for
    IPv4 (``2852039166``, ``0xA9FEA9FE``, ``0251.0376.0251.0376``), and IPv6 that stands for IPv4 (mapped, NAT64, 6to4).
    Names are not resolved.
    """
    address = _address_of(host.partition("%")[0].rstrip("."))
    if address is None:
        return False
    ipv4 = _embedded_ipv4(address) if isinstance(address, ipaddress.IPv6Address) else None
    return any(ip.is_link_local or str(ip) in _METADATA for ip in (address, ipv4) if ip is not None)


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    if any(address in ipaddress.IPv6Network(network) for network in _IPV4_AT_THE_END):
        return ipaddress.IPv4Address(address.packed[-4:])
    return None
