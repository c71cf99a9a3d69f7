"""URLs: the base taken apart and checked, a key encoded into it, a redirect's target resolved. Pure, no I/O.

Every URL that is sent is put together here from checked parts, so no two parsers can disagree about its host.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from aioprefetch.errors import ConfigInvalid, RedirectRefused

DEFAULT_PORTS = {"http": 80, "https": 443}

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")
# What may stand unencoded in a path or query that somebody else has encoded already.
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_QUERY_SAFE = _PATH_SAFE + "?"


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what credentials belong to."""

    scheme: str
    host: str
    port: int

    @property
    def netloc(self) -> str:
        """Host and port as a URL has them; the scheme's own port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """A base URL in its parts. ``path`` is percent-encoded and does not end with ``/``."""

    origin: Origin
    path: str
    query: str
    user: str | None
    password: str | None


def parse_base_url(text: object) -> BaseUrl:
    """The parts of a base URL. Raises ``ConfigInvalid``, whose message shows neither query nor user information."""
    if not isinstance(text, str):
        raise _invalid(f"base_url must be text, not a {type(text).__name__}")
    try:
        parts = urlsplit(text)
        origin = _origin(parts)
    except ValueError as error:
        raise _invalid(f"base_url {_shown(text)!r} is no http(s) URL: {error}") from None
    if parts.fragment:
        raise _invalid(f"base_url {_shown(text)!r} has a fragment; encode the character # as %23")
    if any(unquote(segment) in (".", "..") for segment in parts.path.split("/")):
        raise _invalid(f"base_url {_shown(text)!r} has '.' or '..' segments; write the path that is meant")
    return BaseUrl(
        origin=origin,
        path=quote(parts.path, safe=_PATH_SAFE).rstrip("/"),
        query=quote(parts.query, safe=_QUERY_SAFE),
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )


def encoded_key(key: str) -> str:
    """A key as a path: every segment percent-encoded, so that it arrives to the byte."""
    return "/".join(quote(segment, safe="") for segment in key.split("/"))


def redirect_target(current: str, location: str | None, base: Origin) -> tuple[Origin, str]:
    """Where a redirect leads: origin and URL. Raises ``RedirectRefused`` for what must not be followed."""
    if not location:
        raise RedirectRefused("the server redirects without saying where (no Location)")
    try:
        parts = urlsplit(urljoin(current, location))
        origin = _origin(parts)
    except ValueError as error:
        raise RedirectRefused(f"the server redirects to {_shown(location)!r}: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise RedirectRefused(f"the server redirects to {origin} with credentials in the URL")
    if urlsplit(current).scheme == "https" and origin.scheme == "http":
        raise RedirectRefused(f"the server redirects from https to {origin}: the bytes would come unprotected")
    if is_link_local(origin.host) and origin.host != base.host:
        raise RedirectRefused(f"the server redirects to the link-local address {origin}")
    path = quote(parts.path, safe=_PATH_SAFE) or "/"
    query = f"?{quote(parts.query, safe=_QUERY_SAFE)}" if parts.query else ""
    return origin, f"{origin}{path}{query}"


def is_link_local(host: str) -> bool:
    """Whether a host is an address that only this machine's own network segment has (169.254/16, fe80::/10)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_link_local or (mapped is not None and mapped.is_link_local)


def _origin(parts: SplitResult) -> Origin:
    """Raises ``ValueError`` in words that can follow a colon."""
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise ValueError("the scheme must be http or https")
    host = parts.hostname or ""
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            raise ValueError("the host is no valid name") from None
    if ":" in host:
        ipaddress.IPv6Address(host)
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError("the host is missing or no valid name")
    return Origin(scheme, host, parts.port or DEFAULT_PORTS[scheme])


def _shown(text: str) -> str:
    """A URL that could not be taken apart, without what may be secret in it."""
    return re.sub(r"//[^/]*@", "//", text.split("?", 1)[0])


def _invalid(message: str) -> ConfigInvalid:
    return ConfigInvalid(message, operation="configure")
