"""The options of the http service, and their checks: the base URL, and the identity that a server sees.

The identity is authentication, the user's headers and the query of the base URL. All of it may be secret: no repr shows
it, a pickle carries references, and texts of servers are scrubbed of it before a person sees them. Every URL that is
sent is put together here from checked parts, so no two parsers can disagree about its host.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, field, replace
from typing import Any, Literal, cast, get_args
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit

from aioprefetch.credentials import Secret, digest, frameless
from aioprefetch.errors import RedirectRefused, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import FLAG, SIZE_OR_ZERO, Checked, Choice, Secrets, check, in_uri, invalid, option
from aioprefetch.ranges import ByteCount
from aioprefetch.services.proxies import ConnectionOptions, ambient_network
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Origin, is_link_local_or_metadata, origin_of
from aioprefetch.values import Capability, ServiceInfo

# Characters that stay as they are in a path or query that is percent-encoded already.
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_QUERY_SAFE = _PATH_SAFE + "?"


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """A base URL in its parts. ``path`` is percent-encoded and does not end with ``/``."""

    origin: Origin
    path: str
    query: Secret | None
    user: str | None
    password: Secret | None


def parse_base_url(text: object, name: str = "base_url") -> BaseUrl:
    """The parts of a base URL. Raises ``ConfigInvalid``, whose message shows neither query nor user information."""
    if isinstance(text, BaseUrl):
        return text
    if not isinstance(text, str):
        raise invalid(f"{name} must be text, not a {type(text).__name__}")
    try:
        parts = urlsplit(text)
        origin = origin_of(parts)
    except ValueError as error:
        raise invalid(f"{name} {_shown(text)!r} is not an http(s) URL: {error}") from None
    if parts.fragment:
        raise invalid(f"{name} {_shown(text)!r} has a fragment; encode the character # as %23")
    if any(unquote(segment) in (".", "..") for segment in parts.path.split("/")):
        raise invalid(f"{name} {_shown(text)!r} has '.' or '..' segments; write the path that is meant")
    return BaseUrl(
        origin=origin,
        path=quote(parts.path, safe=_PATH_SAFE).rstrip("/"),
        query=Secret.of(quote(parts.query, safe=_QUERY_SAFE)),
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.username is None else Secret(unquote(parts.password or "")),
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


def checked_headers(headers: object, name: str = "headers") -> dict[str, str | Secret]:
    """The user's headers, sensitive values as secrets. Raises ``ConfigInvalid``."""
    if not isinstance(headers, Mapping):
        raise invalid(f"{name} must be a mapping of names to values, not a {type(headers).__name__}")
    return dict(_checked_header(name, value) for name, value in headers.items())


def _checked_header(name: object, value: object) -> tuple[str, str | Secret]:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise invalid(f"{name!r} is not a valid header name")
    if name.lower() in _OUR_HEADERS:
        raise invalid(f"the header {name} is set by aioprefetch itself and cannot be given")
    if isinstance(value, Secret):
        return name, value
    if not isinstance(value, str):
        raise invalid(f"the value of the header {name} must be text, not a {type(value).__name__}")
    if _UNPRINTABLE.search(value):
        raise invalid(f"the value of the header {name} holds a control character")
    return name, Secret(value) if _SENSITIVE.search(name) and value else value


def checked_auth(auth: object, name: str = "auth") -> tuple[str, Secret] | Secret:
    """``(user, password)``, or a token, with the secret as one. Raises ``ConfigInvalid`` that shows neither."""
    if isinstance(auth, str | Secret):
        token = Secret.of(auth)
        if token is None:
            raise invalid(f"{name} is an empty text; give a token, a (user, password) pair, or None")
        return token
    if isinstance(auth, tuple | list) and len(auth) == 2:
        user, password = auth
        if isinstance(user, str) and ":" not in user and isinstance(password, str | Secret):
            return user, password if isinstance(password, Secret) else Secret(password)
    raise invalid(f"{name} must be a bearer token or a pair (user, password) of texts, without ':' in the user's name")


def _known(value: str | Secret, option: str) -> str:
    return value.known(option) if isinstance(value, Secret) else value


# --- options ----------------------------------------------------------------------------------------------------------

StatMethod = Literal["auto", "head", "get"]
# The minimum of connections to one host.
CONNECTIONS_MIN = 128

_CAN = (
    *("read", "read_range", "read_suffix", "read_if_match", "read_if_none_match"),
    *("read_if_modified_since", "read_if_unmodified_since", "stat"),
)
CAPABILITY = Capability(**dict.fromkeys(_CAN, True))


@dataclass(frozen=True, slots=True, repr=False)
class HttpOptions(ConnectionOptions):
    """The fields of the recipe ``Http``, which documents them. Raises ``ConfigInvalid`` for invalid options."""

    base_url: str | BaseUrl = field(metadata=in_uri(Checked(parse_base_url)))
    _: KW_ONLY
    headers: Mapping[str, str | Secret] | None = option(
        None,
        Secrets(checked_headers),
        also="obstore:default_headers spark:secretHeaders other:extra_headers,cookies",
        hint="headers={'Cookie': 'name=value'}",
        has_variable=False,
        hash=False,
    )
    auth: tuple[str, str | Secret] | str | Secret | None = option(
        None,
        Checked(checked_auth, is_secret=True),
        also="spark:authToken other:bearer_token,basic_auth,username,user,password,token",
        hint="auth=(user, password), or a bearer token",
        has_variable=False,
    )
    follow_redirects: bool = option(True, FLAG, also="fsspec:allow_redirects")
    decode: bool = option(False, FLAG)
    skip_bytes_max: ByteCount = option(8 << 20, SIZE_OR_ZERO, given="recipe")
    stat_method: StatMethod = option("auto", Choice(*get_args(StatMethod)), given="recipe")

    @frameless
    def __post_init__(self) -> None:
        check(self)
        if self.base.user is not None:
            if self.auth is not None:
                raise invalid("base_url has a user already; give auth or the user in the URL, not both")
            object.__setattr__(self, "auth", checked_auth((self.base.user, self.base.password)))
            object.__setattr__(self, "base_url", replace(self.base, user=None, password=None))
        if self.auth is not None and any(name.lower() == "authorization" for name in self.headers or ()):
            raise invalid("auth and the header Authorization are both given; leave one out")

    @property
    def base(self) -> BaseUrl:
        """The base URL in its parts."""
        return cast("BaseUrl", self.base_url)

    @property
    def origin(self) -> Origin:
        """The origin of the base URL."""
        return self.base.origin

    @property
    def user_and_secret(self) -> tuple[str | None, Secret | None]:
        """The user of basic authentication and the password, or ``None`` and a bearer token, if there is one."""
        auth: Any = self.auth
        return auth if isinstance(auth, tuple) else (None, auth)

    def __repr__(self) -> str:
        user, secret = self.user_and_secret
        auth = "none" if secret is None else "bearer" if user is None else "basic"
        url, query = f"{self.origin}{self.base.path}/", ", query=***" if self.base.query else ""
        return f"Http({url!r}{query}, auth={auth}, headers=[{', '.join(self.headers or ())}])"

    @property
    def principal(self) -> str:
        """A digest that distinguishes identities at an origin without revealing them; ``anonymous`` without one.

        It is the same in every process. Caches keep it where others may read it, so secrets are in it by their slow
        fingerprints.
        """
        user, secret = self.user_and_secret
        parts = [user or "", secret.fingerprint() if secret else ""]
        parts += [
            f"{name.lower()}:{value.fingerprint() if isinstance(value, Secret) else value}"
            for name, value in (self.headers or {}).items()
        ]
        parts.append(self.base.query.fingerprint() if self.base.query else "")
        return digest(str(self.origin), *parts) if any(parts) else "anonymous"

    def request_headers(self) -> dict[str, str]:
        """The headers for the base's own origin. Raises as ``Secret.known`` for a secret that is not known here."""
        headers = {name: _known(value, f"headers[{name!r}]") for name, value in (self.headers or {}).items()}
        user, token = self.user_and_secret
        if token is not None:
            secret = token.known("the token of auth" if user is None else "the password of auth")
            pair = base64.b64encode(f"{user}:{secret}".encode()).decode()
            headers["Authorization"] = f"Bearer {secret}" if user is None else f"Basic {pair}"
        for name, value in headers.items():
            if _UNPRINTABLE.search(value):
                raise invalid(f"the value of the header {name} holds a control character")
        return headers

    def request_query(self) -> str:
        """``?query`` for each request to the base, or nothing."""
        return f"?{self.base.query.known('the query of base_url').lstrip('?')}" if self.base.query else ""

    def scrub(self, text: str) -> str:
        """``text`` with every secret of ours replaced."""
        for secret in sorted(self._secret_texts(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secret_texts(self) -> set[str]:
        user, own = self.user_and_secret
        texts = {value.reveal() or "" for value in (*(self.headers or {}).values(), own) if isinstance(value, Secret)}
        if user is not None and own is not None:
            texts.add(base64.b64encode(f"{user}:{own.reveal()}".encode()).decode())
        query = (self.base.query.reveal() if self.base.query else None) or ""
        texts |= {query, *(value for _, value in parse_qsl(query))}
        texts |= {pair.partition("=")[2] for pair in query.split("&")}
        return {text for text in texts if len(text) >= _SCRUB_LENGTH_MIN}

    @property
    def info(self) -> ServiceInfo:
        return ServiceInfo(
            scheme=self.origin.scheme,
            name=self.origin.netloc,
            root=self.base.path.lstrip("/"),
            principal=self.principal,
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
            ca_bundle=self.ca_file,
            link_local_host=self.origin.host,
        )
