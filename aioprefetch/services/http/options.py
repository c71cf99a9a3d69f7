"""The options of the http service, and their checks: the base URL, and the identity that a server sees.

The identity is authentication, the user's headers and the query of the base URL. All of it may be secret: no repr shows
it, a pickle carries references, and texts of servers are scrubbed of it before a person sees them. Every URL that is
sent is put together here from checked parts, so no two parsers can disagree about its host.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit

from aioprefetch.credentials import Secret, digest, frameless
from aioprefetch.errors import ConfigInvalid, RedirectRefused, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import ByteCount, byte_count
from aioprefetch.runtime.options import checked_file, checked_seconds
from aioprefetch.services.proxies import ProxyUrls, ambient_network
from aioprefetch.transport import ClientOptions, Origin, is_link_local_or_metadata, origin_of
from aioprefetch.values import Capability, ServiceInfo

# Characters that stay as they are in a path or query that is percent-encoded already.
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_QUERY_SAFE = _PATH_SAFE + "?"


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
        origin = origin_of(parts)
    except ValueError as error:
        raise _invalid(f"base_url {_shown(text)!r} is not an http(s) URL: {error}") from None
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
    """The origin and the URL of a redirect's target.

    Raises ``RedirectRefused`` for a redirect that must not be followed.
    """
    if not location:
        raise RedirectRefused("the server redirects without saying where (no Location)")
    try:
        parts = urlsplit(urljoin(current, location))
        origin = origin_of(parts)
    except ValueError as error:
        raise RedirectRefused(f"the server redirects to {_shown(location)!r}: {error}") from None
    shown = excerpt(str(origin))
    if parts.username is not None or parts.password is not None:
        raise RedirectRefused(f"the server redirects to {shown} with credentials in the URL")
    if urlsplit(current).scheme == "https" and origin.scheme == "http":
        raise RedirectRefused(f"the server redirects from https to {shown}: the bytes would come unprotected")
    if is_link_local_or_metadata(origin.host) and origin.host != base.host:
        raise RedirectRefused(f"the server redirects to {shown}, a link-local or metadata address")
    path = quote(parts.path, safe=_PATH_SAFE) or "/"
    query = f"?{quote(parts.query, safe=_QUERY_SAFE)}" if parts.query else ""
    return origin, f"{origin}{path}{query}"


def _shown(text: str) -> str:
    """A URL that could not be parsed, without the parts that may be secret."""
    scheme, slashes, rest = text.partition("//")  # A password may hold a slash or a question mark.
    return excerpt(f"{scheme}{slashes}{rest.rpartition('@')[2]}".split("?", 1)[0])


# --- identity ---------------------------------------------------------------------------------------------------------

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SENSITIVE = re.compile(r"auth|cookie|tok|secret|pass|cred|sign|sess|key|jwt|bearer", re.IGNORECASE)
_OUR_HEADERS = {
    *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "range", "te", "trailer"),
    *("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"),
    *("transfer-encoding", "upgrade"),
}
# A shorter text may stand in a response by chance.
_SCRUB_LENGTH_MIN = 4


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """``user`` is set for basic authentication; ``secret`` is the password then, or else a bearer token."""

    user: str | None = None
    secret: Secret | None = None
    headers: tuple[tuple[str, str | Secret], ...] = ()
    query: Secret | None = None

    @property
    def kind(self) -> str:
        """``basic``, ``bearer`` or ``none``."""
        return "none" if self.secret is None else "bearer" if self.user is None else "basic"

    def principal_at(self, origin: str) -> str:
        """A digest that distinguishes identities at an origin without revealing them; ``anonymous`` without one.

        It is the same in every process. Caches keep it where others may read it, so secrets are in it by their slow
        fingerprints.
        """
        parts = [self.user or "", self.secret.fingerprint() if self.secret else ""]
        parts += [
            f"{name.lower()}:{value.fingerprint() if isinstance(value, Secret) else value}"
            for name, value in self.headers
        ]
        parts.append(self.query.fingerprint() if self.query else "")
        return digest(origin, *parts) if any(parts) else "anonymous"

    def request_headers(self) -> dict[str, str]:
        """The headers for the base's own origin. Raises as ``Secret.known`` for a secret that is not known here."""
        headers = {name: _known(value, f"headers[{name!r}]") for name, value in self.headers}
        if self.secret is not None:
            secret = self.secret.known("the token of auth" if self.user is None else "the password of auth")
            if self.user is None:
                headers["Authorization"] = f"Bearer {secret}"
            else:
                pair = base64.b64encode(f"{self.user}:{secret}".encode()).decode()
                headers["Authorization"] = f"Basic {pair}"
        for name, value in headers.items():
            if _UNPRINTABLE.search(value):
                raise _invalid(f"the value of the header {name} holds a control character")
        return headers

    def request_query(self) -> str:
        """``?query`` for each request to the base, or nothing."""
        return f"?{self.query.known('the query of base_url').lstrip('?')}" if self.query else ""

    def scrub(self, text: str) -> str:
        """``text`` with every secret of ours replaced."""
        for secret in sorted(self._secret_texts(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secret_texts(self) -> set[str]:
        values = [value for _, value in self.headers] + [self.secret]
        texts = {value.reveal() or "" for value in values if isinstance(value, Secret)}
        if self.user is not None and self.secret is not None:
            texts.add(base64.b64encode(f"{self.user}:{self.secret.reveal()}".encode()).decode())
        query = (self.query.reveal() if self.query else None) or ""
        texts |= {query, *(value for _, value in parse_qsl(query))}
        texts |= {pair.partition("=")[2] for pair in query.split("&")}
        return {text for text in texts if len(text) >= _SCRUB_LENGTH_MIN}


def checked_headers(headers: Mapping[str, str | Secret] | None) -> tuple[tuple[str, str | Secret], ...]:
    """The user's headers, the values of those that look sensitive as secrets. Raises ``ConfigInvalid``."""
    if headers is None:
        return ()
    if not isinstance(headers, Mapping):
        raise _invalid(f"headers must be a mapping of names to values, not a {type(headers).__name__}")
    return tuple(_checked_header(name, value) for name, value in headers.items())


def _checked_header(name: object, value: object) -> tuple[str, str | Secret]:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise _invalid(f"{name!r} is not a valid header name")
    if name.lower() in _OUR_HEADERS:
        raise _invalid(f"the header {name} is set by aioprefetch itself and cannot be given")
    if isinstance(value, Secret):
        return name, value
    if not isinstance(value, str):
        raise _invalid(f"the value of the header {name} must be text, not a {type(value).__name__}")
    if _UNPRINTABLE.search(value):
        raise _invalid(f"the value of the header {name} holds a control character")
    return name, Secret(value) if _SENSITIVE.search(name) and value else value


def checked_auth(auth: object) -> tuple[str | None, Secret | None]:
    """``(user, password)``, or a token, as user and secret. Raises ``ConfigInvalid`` that shows neither."""
    if auth is None:
        return None, None
    if isinstance(auth, str | Secret):
        token = Secret.of(auth)
        if token is None:
            raise _invalid("auth is an empty text; give a token, a (user, password) pair, or None")
        return None, token
    if isinstance(auth, tuple | list) and len(auth) == 2:
        user, password = auth
        if isinstance(user, str) and ":" not in user and isinstance(password, str | Secret):
            return user, password if isinstance(password, Secret) else Secret(password)
    raise _invalid("auth must be a bearer token or a pair (user, password) of texts, without ':' in the user's name")


def _known(value: str | Secret, option: str) -> str:
    return value.known(option) if isinstance(value, Secret) else value


# --- options ----------------------------------------------------------------------------------------------------------

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
    decode: bool
    ca_bundle: str | None
    proxies: ProxyUrls | None
    connect_timeout_seconds: float
    read_timeout_seconds: float
    skip_bytes_max: int
    stat_method: StatMethod

    @frameless
    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str | Secret] | None = None,
        auth: tuple[str, str | Secret] | str | Secret | None = None,
        follow_redirects: bool = True,
        decode: bool = False,
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
        for name, flag in (("follow_redirects", follow_redirects), ("decode", decode)):
            if type(flag) is not bool:
                raise _invalid(f"{name} must be True or False, not {flag!r}")
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
            "decode": decode,
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

    def file_states(self) -> object:
        """Nothing: no file decides about the recipe."""
        return ()

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
