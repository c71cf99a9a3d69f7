"""URIs, keyword options and environment variables into a service and the options of an Operator.

Keywords win over ``AIOPREFETCH_*`` variables (``AIOPREFETCH_ENDPOINT_URL``, ``AIOPREFETCH_MEMORY_BYTES``, ...), which
win over the defaults. Secrets from the environment stay references to it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from aioprefetch.accessor import Service
from aioprefetch.errors import ConfigInvalid
from aioprefetch.redaction import redact

OPERATOR_OPTIONS = ("memory_bytes", "block_bytes", "prefetch_blocks", "concurrency", "disk_cache")

_S3_OPTIONS = (
    "endpoint_url",
    "region",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "profile",
    "anonymous",
    "addressing_style",
    "signing",
    "ca_bundle",
    "proxies",
    "allow_http",
    "sse_customer_key",
    "request_payer",
)
_HTTP_OPTIONS = ("headers", "auth", "follow_redirects", "ca_bundle", "proxies")

SERVICE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "s3": _S3_OPTIONS,
    "s3a": _S3_OPTIONS,
    "http": _HTTP_OPTIONS,
    "https": _HTTP_OPTIONS,
    "file": ("follow_symlinks",),
    "memory": (),
}

# Options that have no text form, and so no variable.
_NO_VARIABLE = frozenset({"proxies", "headers", "auth"})
_SECRETS = frozenset({"access_key_id", "secret_access_key", "session_token", "sse_customer_key"})
_CREDENTIALS = frozenset({"access_key_id", "secret_access_key", "session_token", "profile", "anonymous"})
_FLAGS = frozenset({"anonymous", "allow_http", "follow_redirects", "request_payer", "follow_symlinks"})
_NUMBERS = frozenset({"memory_bytes", "block_bytes", "prefetch_blocks", "concurrency"})


def split_uri(uri: str) -> tuple[str, str]:
    """Scheme and the rest of a URI. ``ConfigInvalid`` for an unknown scheme, with those there are."""
    scheme, separator, rest = str(uri).partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SERVICE_OPTIONS:
        known = ", ".join(f"{name}://" for name in SERVICE_OPTIONS)
        raise ConfigInvalid(f"the URI {redact(str(uri))!r} begins with none of {known}", operation="configure")
    return scheme, rest


def configure(uri: str, options: Mapping[str, Any]) -> tuple[Service, dict[str, Any]]:
    """The service a URI names, and the options left for the Operator."""
    scheme, rest = split_uri(uri)
    allowed = (*SERVICE_OPTIONS[scheme], *OPERATOR_OPTIONS)
    for name in options:
        if name not in allowed:
            raise ConfigInvalid(
                f"unknown option {name!r} for {scheme}://; there are {', '.join(sorted(allowed))}",
                operation="configure",
            )
    keywords = {name: value for name, value in options.items() if value is not None}
    # Credentials come as one: a key from here with a secret or a profile from there would be nobody's.
    own_credentials = any(keywords.get(name) for name in _CREDENTIALS)
    variables = [name for name in allowed if not (own_credentials and name in _CREDENTIALS)]
    given = {**_from_environment(variables), **keywords}
    own = {name: given.pop(name) for name in SERVICE_OPTIONS[scheme] if name in given}
    return _service(scheme, rest, own), given


def _service(scheme: str, rest: str, options: dict[str, Any]) -> Service:
    # By name, so that a scheme loads its own service and no other.
    services = importlib.import_module("aioprefetch.services")
    if scheme in ("s3", "s3a"):
        bucket, _, prefix = rest.partition("/")
        if "@" in bucket:  # Not shown: what stands before it are most likely credentials.
            raise ConfigInvalid(
                f"no bucket has an '@' in its name: credentials do not go into {scheme}:// but into options",
                operation="configure",
            )
        made = services.S3(bucket=bucket, prefix=prefix, **options)
    elif scheme == "file":
        made = services.Fs(rest, **options)
    elif scheme == "memory":
        name, _, root = rest.partition("/")
        made = services.Memory(name, root)
    else:
        made = services.Http(f"{scheme}://{rest}", **options)
    service: Service = made
    return service


def _from_environment(names: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        variable = f"AIOPREFETCH_{name.upper()}"
        text = os.environ.get(variable)
        if not text or name in _NO_VARIABLE:
            continue
        found[name] = f"env:{variable}" if name in _SECRETS else _parse(name, text, variable)
    return found


def _parse(name: str, text: str, variable: str) -> Any:
    if name in _FLAGS:
        value = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(text.lower())
        if value is None:
            raise ConfigInvalid(f"{variable}={text!r} is neither true nor false", operation="configure")
        return value
    if name in _NUMBERS:
        try:
            return int(text)
        except ValueError:
            raise ConfigInvalid(f"{variable}={text!r} is not an integer", operation="configure") from None
    return text
