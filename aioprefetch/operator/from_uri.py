"""URIs, keyword options and environment variables into a service and the options of an Operator.

Keywords win over ``AIOPREFETCH_*`` variables (``AIOPREFETCH_ENDPOINT_URL``, ``AIOPREFETCH_MEMORY_BYTES``, ...), which
win over the defaults. Secrets from the environment stay references to it.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aioprefetch.accessor.protocols import Service
from aioprefetch.errors import ConfigInvalid, printable, redact
from aioprefetch.reader.options import reader_options
from aioprefetch.runtime.events import logger

OPERATOR_OPTIONS = (
    "memory_bytes",
    "block_bytes",
    "prefetch_blocks",
    "concurrency",
    "disk_cache",
    "budget_wait_seconds",
)

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

READER_OPTIONS = frozenset(inspect.signature(reader_options).parameters) - {"path", "limits"}

# The classes of `services` by scheme. They have options that a URI does not.
_CLASSES = {"s3": "S3", "s3a": "S3", "http": "Http", "https": "Http", "file": "Fs", "memory": "Memory"}
# Schemes of stores that come in through obspec, and obstore's class for each.
_OBSTORE_CLASSES = {
    **dict.fromkeys(("gs", "gcs"), "GCSStore"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), "AzureStore"),
}

# What boto3, s3fs, obstore and others call an option of ours.
_OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("anon", "skip_signature", "no_sign_request"), "anonymous"),
    **dict.fromkeys(("key", "access_key", "aws_access_key", "aws_access_key_id"), "access_key_id"),
    **dict.fromkeys(("secret", "secret_key", "aws_secret_key", "aws_secret_access_key"), "secret_access_key"),
    **dict.fromkeys(("token", "aws_session_token", "security_token"), "session_token"),
    **dict.fromkeys(("endpoint", "endpoint_override", "aws_endpoint", "aws_endpoint_url", "host"), "endpoint_url"),
    **dict.fromkeys(("region_name", "aws_region", "default_region", "aws_default_region"), "region"),
    **dict.fromkeys(("profile_name", "aws_profile"), "profile"),
    **dict.fromkeys(("virtual_hosted_style_request", "force_path_style", "path_style"), "addressing_style"),
    **dict.fromkeys(("verify", "ssl_verify", "verify_ssl", "cert"), "ca_bundle"),
    **dict.fromkeys(("use_ssl", "scheme"), "allow_http"),
    **dict.fromkeys(("requester_pays", "request_payer_enabled"), "request_payer"),
    **dict.fromkeys(("default_block_size", "block_size", "blocksize", "buffer_size"), "block_bytes"),
    **dict.fromkeys(("max_concurrency", "max_connections", "max_pool_connections"), "concurrency"),
    **dict.fromkeys(("default_cache_type", "cache_type", "caching"), "policy"),
    **dict.fromkeys(("username", "user", "password", "bearer_token"), "auth"),
}
_HINTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("client_kwargs", "config_kwargs", "s3_additional_kwargs", "storage_options", "client_options"),
        "what it would hold are options of their own, such as endpoint_url and region",
    ),
    **dict.fromkeys(
        ("retries", "max_retries", "max_attempts", "attempts_max", "retry_config", "retry_seconds"),
        "retries belong to a layer: operator.layer(ap.layers.RetryLayer(attempts_max=...))",
    ),
    **dict.fromkeys(
        ("timeout", "timeout_seconds", "connect_timeout", "read_timeout", "request_timeout"),
        "ap.services.S3 and ap.services.Http have connect_timeout_seconds and read_timeout_seconds, each attempt has"
        " ap.layers.TimeoutLayer, each read timeout_seconds",
    ),
}

# Options that have no text form, and so no variable.
_NO_VARIABLE = frozenset({"proxies", "headers", "auth"})
_SECRETS = frozenset({"access_key_id", "secret_access_key", "session_token", "sse_customer_key"})
_CREDENTIALS = frozenset({"access_key_id", "secret_access_key", "session_token", "profile", "anonymous"})
_FLAGS = frozenset({"anonymous", "allow_http", "follow_redirects", "request_payer", "follow_symlinks"})
_NUMBERS = frozenset({"memory_bytes", "block_bytes", "prefetch_blocks", "concurrency"})
_SECONDS = frozenset({"budget_wait_seconds"})

_PREFIX = "AIOPREFETCH_"
_OPTIONS_WITH_VARIABLE = frozenset(OPERATOR_OPTIONS).union(*SERVICE_OPTIONS.values()) - _NO_VARIABLE


def split_uri(uri: str) -> tuple[str, str]:
    """Scheme and the rest of a URI. ``ConfigInvalid`` for an unknown scheme, with those there are."""
    scheme, separator, rest = str(uri).partition("://")
    scheme = scheme.lower()
    if separator and scheme in SERVICE_OPTIONS:
        return scheme, rest
    known = ", ".join(f"{name}://" for name in SERVICE_OPTIONS)
    message = f"the URI {redact(str(uri))!r} begins with none of {known}"
    if separator and scheme in _OBSTORE_CLASSES:
        message += (
            f"; a store of obstore's is put under an Operator with ap.services.ObspecStore:"
            f" Operator(ObspecStore(obstore.store.{_OBSTORE_CLASSES[scheme]}(...)))"
        )
    elif str(uri).startswith("/"):
        message += f"; files are at file://{uri}"
    raise ConfigInvalid(message, operation="configure")


def store_options(scheme: str) -> tuple[str, ...]:
    """The options that ``Operator.from_uri`` takes for a scheme."""
    return (*SERVICE_OPTIONS[scheme], *OPERATOR_OPTIONS)


def unknown_option(name: str, known: Collection[str], *, of: str, operation: str, path: str = "") -> ConfigInvalid:
    """The error for an option that nobody knows, with the one that was most likely meant; ``of`` is whose it is not."""
    hint = _hint(name, known)
    listed = f"there are {', '.join(sorted(known))}"
    message = f"unknown option {name!r} for {of}{hint}{'' if hint.endswith('?') else ';'} {listed}"
    return ConfigInvalid(message, operation=operation, path=path)


def _hint(name: str, known: Collection[str]) -> str:
    plain = name.lower().replace("-", "_").strip()
    meant = _OTHER_NAMES.get(plain)
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.7)
    if plain in _HINTS and plain not in known:
        return f": {_HINTS[plain]}"
    if meant in known:
        return f": it is called {meant!r} here"
    if meant in READER_OPTIONS or plain in READER_OPTIONS:
        return f": {meant or plain!r} is an option of Operator.reader"
    return f"; did you mean {near[0]!r}?" if near else ""


def check_bytes(**sizes: object) -> None:
    """``ConfigInvalid`` for a size that is text, as other libraries take it, with the number that it may mean."""
    for name, value in sizes.items():
        if isinstance(value, str):
            raise ConfigInvalid(f"{name}={value!r} must be a number of bytes{_in_bytes(value)}", operation="configure")


def _in_bytes(text: str) -> str:
    """How a size such as ``1GB`` is written in Python, for a message."""
    match = re.fullmatch(r"(\d+)\s*([kmgt])i?b?", text.strip(), re.IGNORECASE)
    if match is None:
        return ""
    shift = {"k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]
    return f", such as {match[1]} << {shift}, which is {int(match[1]) << shift}"


def configure(uri: str, options: Mapping[str, Any]) -> tuple[Service, dict[str, Any]]:
    """The service a URI names, and the options left for the Operator."""
    scheme, rest = split_uri(uri)
    allowed = store_options(scheme)
    for variable in tuple(os.environ):
        if variable.startswith(_PREFIX):
            _check_variable(variable)
    for name in options:
        if name not in allowed:
            raise _unknown_to_a_uri(name, scheme, allowed)
    keywords = {name: value for name, value in options.items() if value is not None}
    # Credentials come as one: a key from here with a secret or a profile from there would be nobody's.
    own_credentials = any(keywords.get(name) for name in _CREDENTIALS)
    variables = [name for name in allowed if not (own_credentials and name in _CREDENTIALS)]
    given = {**_from_environment(variables), **keywords}
    own = {name: given.pop(name) for name in SERVICE_OPTIONS[scheme] if name in given}
    return _service(scheme, rest, own), given


def _unknown_to_a_uri(name: str, scheme: str, allowed: Collection[str]) -> ConfigInvalid:
    services = importlib.import_module("aioprefetch.services")
    if name in inspect.signature(getattr(services, _CLASSES[scheme])).parameters:
        return ConfigInvalid(
            f"{name!r} is no option for {scheme}:// but of ap.services.{_CLASSES[scheme]}, which Operator(...) takes;"
            f" there are {', '.join(sorted(allowed))}",
            operation="configure",
        )
    return unknown_option(name, allowed, of=f"{scheme}://", operation="configure")


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


@functools.cache
def _check_variable(variable: str) -> None:
    """Warn once of a variable that no scheme reads and that is meant for one: it is misspelt, or has to be an option.

    What is like none may belong to somebody else, such as the settings of a test suite.
    """
    name = variable.removeprefix(_PREFIX).lower()
    if name in _OPTIONS_WITH_VARIABLE:
        return
    plain = _OTHER_NAMES.get(name, name)
    if plain in _OPTIONS_WITH_VARIABLE:
        near = [plain]
    else:
        near = difflib.get_close_matches(plain, _OPTIONS_WITH_VARIABLE, n=1, cutoff=0.7)
    if near or name in _NO_VARIABLE:
        hint = f"did you mean {_PREFIX}{near[0].upper()}?" if near else f"give {name}= as an option"
        logger.warning("the environment variable %s is read by nothing; %s", printable(variable), hint)


def _from_environment(names: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        variable = f"{_PREFIX}{name.upper()}"
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
            raise ConfigInvalid(
                f"{variable}={text!r} is not an integer{_in_bytes(text)}", operation="configure"
            ) from None
    if name in _SECONDS:
        try:
            return float(text)
        except ValueError:
            raise ConfigInvalid(f"{variable}={text!r} is not a number of seconds", operation="configure") from None
    return text
