"""URLs: the base taken apart and checked, a key encoded into it, a redirect's target resolved. Pure, no I/O.

Every URL that is sent is put together here from checked parts, so no two parsers can disagree about its host.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urljoin, urlsplit

from aioprefetch.errors import ConfigInvalid, RedirectRefused, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.transport import Origin, is_link_local_or_metadata, origin_of

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
    return excerpt(re.sub(r"//[^/]*@", "//", text.split("?", 1)[0]))


def _invalid(message: str) -> ConfigInvalid:
    return ConfigInvalid(message, operation="configure")
