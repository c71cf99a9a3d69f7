"""The identity that a server sees: authentication, the user's headers, the query of the base URL. Pure, no I/O.

All of it may be secret: no repr shows it, a pickle carries references, and texts of servers are scrubbed of it before a
person sees them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from aioprefetch.credentials import Secret, digest
from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SENSITIVE = re.compile(r"auth|cookie|tok|secret|pass|cred|sign|sess|key|jwt|bearer", re.IGNORECASE)
_OURS = {
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
        """The headers for the base's own origin. ``ConfigInvalid`` if a secret is not known in this process."""
        headers = {name: _reveal(value, f"the header {name}") for name, value in self.headers}
        if self.secret is not None:
            secret = _reveal(self.secret, "the password" if self.user is not None else "the token")
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
        return f"?{_reveal(self.query, 'the query of base_url').lstrip('?')}" if self.query else ""

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
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise _invalid(f"{name!r} is not a valid header name")
    if name.lower() in _OURS:
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


def _reveal(value: str | Secret, what: str) -> str:
    text = value.reveal() if isinstance(value, Secret) else value
    if text is None:
        raise _invalid(
            f"{what} is not known in this process: a literal stays where it was given; "
            "name an environment variable instead (env:NAME) and set it here"
        )
    return text


def _invalid(message: str) -> ConfigInvalid:
    return ConfigInvalid(message, operation="configure")
