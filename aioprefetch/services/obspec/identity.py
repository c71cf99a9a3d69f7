"""Which store it is and who asks it, for the keys of caches; and what must not stand in a message. Pure, no I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from aioprefetch.credentials import Secret
from aioprefetch.errors import redact
from aioprefetch.services.obspec.traits import config_of, kind_of

_SENSITIVE = re.compile(r"auth|cookie|tok|secret|pass|cred|sign|sess|key|jwt|bearer|sas", re.IGNORECASE)
# obstore takes what is not configured from the variables of these names.
_VARIABLES = {"S3Store": "AWS_", "AzureStore": "AZURE_", "GCSStore": "GOOGLE_"}
# A shorter text may stand in a message by chance, and is no secret worth the name.
_SECRET_LENGTH_MIN = 4


def place_of(store: Any) -> tuple[str, str, str]:
    """Name, endpoint and region of an obstore store; three empty texts where the store tells nothing."""
    kind, config = kind_of(store), config_of(store)
    prefix = str(getattr(store, "prefix", None) or "")
    if kind == "LocalStore":
        return prefix or "/", "local", ""
    if kind == "HTTPStore":
        return redact(str(store.url)), "http", ""
    container = config.get("bucket") or config.get("container_name") or ""
    if not container:
        return "", "", ""
    name = f"{container}/{prefix.strip('/')}" if prefix.strip("/") else str(container)
    endpoint = config.get("endpoint") or config.get("account_name") or kind.removesuffix("Store").lower()
    return name, redact(str(endpoint)), str(config.get("region", ""))


def principal_of(store: Any) -> str | None:
    """A digest of all that a store was configured with; ``None`` where that does not tell who it is.

    The configuration of obstore's stores holds their keys, so that two tenants of one bucket have two digests. What
    they took from the environment they do not tell, so the variables that they look at are part of it.
    """
    if kind_of(store) in ("", "MemoryStore") or getattr(store, "credential_provider", None) is not None:
        return None
    parts = [f"{name}={value}" for name, value in sorted(config_of(store).items())]
    parts += [f"{name}: {value!r}" for name, value in sorted(_headers_of(store).items())]
    parts += [f"{name}={value}" for name, value in sorted(_variables_of(store).items())]
    parts.append(str(getattr(store, "url", "")))
    # Stored with what is cached, and there are secrets among the parts: a digest that is slow to guess by.
    return Secret(repr(parts)).fingerprint()


def known_secrets(store: Any) -> Iterator[str]:
    """The values that no message may hold, as far as the store tells its configuration; the longest first."""
    yield from sorted(set(_secret_values(store)), key=len, reverse=True)


def _secret_values(store: Any) -> Iterator[str]:
    configured = {**_variables_of(store), **config_of(store)}
    values = [str(value) for name, value in configured.items() if _SENSITIVE.search(name)]
    headers = _headers_of(store).values()
    values += [value.decode("latin-1") if isinstance(value, bytes) else str(value) for value in headers]
    for text in (str(getattr(store, "url", "")), str(_client_options(store).get("proxy_url", ""))):
        parts = urlsplit(text)
        values += [parts.query, parts.password or ""]
    for value in tuple(values):  # A shared access signature is a query: its parts are secrets too.
        values += [part for _, part in parse_qsl(value)] + [pair.partition("=")[2] for pair in value.split("&")]
    yield from (value for value in values if len(value) >= _SECRET_LENGTH_MIN)


def _variables_of(store: Any) -> Mapping[str, str]:
    prefix = _VARIABLES.get(kind_of(store))
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)} if prefix else {}


def _client_options(store: Any) -> Mapping[str, Any]:
    options = getattr(store, "client_options", None) if kind_of(store) else None
    return options if isinstance(options, Mapping) else {}


def _headers_of(store: Any) -> Mapping[str, Any]:
    headers = _client_options(store).get("default_headers")
    return headers if isinstance(headers, Mapping) else {}
