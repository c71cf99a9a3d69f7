"""URIs, keyword options and environment variables into a service and the options of an Operator.

A service is found by the scheme of its URI: one of ``aioprefetch.services``, or one that another distribution registers
under the entry point group ``aioprefetch.services``, with the scheme as the entry's name. Keywords win over
``AIOPREFETCH_*`` variables (``AIOPREFETCH_ENDPOINT_URL``, ``AIOPREFETCH_MEMORY_BYTES``, ...), which win over the
defaults. Secrets from the environment stay references to it.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Collection, Iterable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from aioprefetch import services
from aioprefetch.accessor.protocols import Service
from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, printable, redact
from aioprefetch.layers import RetryLayer
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

ENTRY_POINTS = "aioprefetch.services"

OPERATOR_OPTIONS = (
    "memory_bytes",
    "block_bytes",
    "prefetch_blocks",
    "concurrency",
    "disk_cache",
    "budget_wait_seconds",
    "drain_bytes",
    "attempts_max",
    "retry_seconds",
)


class UriRecipe(Protocol):
    """A recipe that is found by the scheme of a URI."""

    schemes: ClassVar[tuple[str, ...]]
    # The options that ``from_uri`` takes beside the URI. An option that is a field of the recipe, and has a text form,
    # can also be an environment variable.
    uri_options: ClassVar[tuple[str, ...]]

    @classmethod
    def from_uri(cls, uri: str, **options: Any) -> Service:
        """The recipe for a URI, whose scheme is in lower case. Raises ``ConfigInvalid``."""
        ...


# Schemes of stores that come in through obspec, and obstore's class for each.
_OBSTORE_CLASSES = {
    **dict.fromkeys(("gs", "gcs"), "GCSStore"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), "AzureStore"),
}

# Names of boto3, s3fs, obstore and others for an option of ours.
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
    **dict.fromkeys(("retries", "max_retries", "max_attempts"), "attempts_max"),
    **dict.fromkeys(("connect_timeout", "connection_timeout"), "connect_timeout_seconds"),
    **dict.fromkeys(("read_timeout", "request_timeout"), "read_timeout_seconds"),
    **dict.fromkeys(("multipart_chunksize", "part_size"), "part_bytes"),
    **dict.fromkeys(("username", "user", "password", "bearer_token"), "auth"),
}
_HINTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("client_kwargs", "config_kwargs", "s3_additional_kwargs", "storage_options", "client_options"),
        "what it would hold are options of their own, such as endpoint_url and region",
    ),
    **dict.fromkeys(
        ("retry_config", "retry"),
        "there are attempts_max and retry_seconds; for all settings: operator.layer(ap.layers.RetryLayer(...))",
    ),
    **dict.fromkeys(
        ("timeout", "timeout_seconds"),
        "s3:// and http(s):// have connect_timeout_seconds and read_timeout_seconds, each attempt has"
        " ap.layers.TimeoutLayer, each read timeout_seconds",
    ),
}

# Credentials of one principal: some from keywords and others from variables would be mixed up.
_CREDENTIALS = frozenset({"access_key_id", "secret_access_key", "session_token", "profile", "anonymous"})
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_PREFIX = "AIOPREFETCH_"

BUILT_IN = tuple(services.BY_SCHEME)
# Recipes of entry points, by scheme. A recipe that fails to load is tried again.
_loaded: dict[str, type[UriRecipe]] = {}


def split_uri(uri: str) -> tuple[str, str]:
    """Scheme and the rest of a URI. ``ConfigInvalid`` for an unknown scheme, with those that are supported."""
    scheme, separator, rest = str(uri).partition("://")
    scheme = scheme.lower()
    if separator and (scheme in BUILT_IN or _entry_point(scheme) is not None):
        return scheme, rest
    raise _unknown_scheme(str(uri), scheme if separator else "")


def _unknown_scheme(uri: str, scheme: str) -> ConfigInvalid:
    supported = f"supported: {', '.join(supported_schemes())}"
    if not scheme:
        message = f"the URI {redact(uri)!r} has no scheme; {supported}"
        if uri.startswith("/"):
            message += f"; files are at file://{uri}"
    else:
        message = f"unknown scheme {printable(redact(scheme))!r}; {supported}"
    if scheme in _OBSTORE_CLASSES:
        message += (
            f"; a store of obstore's is put under an Operator with ap.services.ObspecStore:"
            f" Operator(ObspecStore(obstore.store.{_OBSTORE_CLASSES[scheme]}(...)))"
        )
    return ConfigInvalid(message, operation="configure")


def supported_schemes() -> tuple[str, ...]:
    """The schemes of the built-in services, then those of entry points."""
    others = {entry.name for entry in _entry_points()}
    return (*BUILT_IN, *sorted(others.difference(BUILT_IN)))


def service_options(scheme: str) -> tuple[str, ...]:
    """The options of the service of a scheme that ``Operator.from_uri`` takes."""
    return recipe_of(scheme).uri_options


def store_options(scheme: str) -> tuple[str, ...]:
    """The options that ``Operator.from_uri`` takes for a scheme."""
    return (*service_options(scheme), *OPERATOR_OPTIONS)


def recipe_of(scheme: str) -> type[UriRecipe]:
    """The recipe class of a scheme. ``ConfigInvalid`` if an entry point cannot be loaded, or has none."""
    if scheme in services.BY_SCHEME:
        built_in: type[UriRecipe] = getattr(services, services.BY_SCHEME[scheme])
        return built_in
    recipe = _loaded.get(scheme)
    if recipe is None:
        entry = _entry_point(scheme)
        if entry is None:
            raise _unknown_scheme(f"{scheme}://", scheme)
        recipe = _loaded[scheme] = _load(entry)
    return recipe


def _entry_point(scheme: str) -> EntryPoint | None:
    entries = _entry_points()
    return entries[scheme] if scheme in entries.names else None


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS)


def _load(entry: EntryPoint) -> type[UriRecipe]:
    distribution = entry.dist.name if entry.dist is not None else "an unknown distribution"
    source = f"the service for {entry.name}:// of the distribution {distribution!r} ({entry.value})"
    facts: dict[str, object] = {"distribution": distribution, "entry_point": entry.value}
    try:
        recipe: Any = entry.load()
    except Exception as error:
        message = f"{source} cannot be loaded: {type(error).__name__}: {redact(str(error))}"
        raise ConfigInvalid(message, operation="configure", context=facts) from error
    missing = [name for name in ("schemes", "uri_options", "from_uri") if not hasattr(recipe, name)]
    if missing or entry.name not in recipe.schemes:
        why = f"it has no {missing[0]}" if missing else f"its schemes are {', '.join(recipe.schemes)}"
        raise ConfigInvalid(f"{source} is not a recipe for that scheme: {why}", operation="configure", context=facts)
    loaded: type[UriRecipe] = recipe
    return loaded


def unknown_option(name: str, names: Collection[str], *, of: str, operation: str, path: str = "") -> ConfigInvalid:
    """The error for an unknown option of ``of``, with the option that was probably meant."""
    hint = _hint(name, names)
    listed = f"there are {', '.join(sorted(names))}"
    message = f"unknown option {name!r} for {of}{hint}{'' if hint.endswith('?') else ';'} {listed}"
    return ConfigInvalid(message, operation=operation, path=path)


def _hint(name: str, names: Collection[str]) -> str:
    from aioprefetch.reader.options import READER_OPTIONS

    plain = name.lower().replace("-", "_").strip()
    meant = _OTHER_NAMES.get(plain)
    near = _nearest(plain, names)
    if plain in _HINTS and plain not in names:
        return f": {_HINTS[plain]}"
    if meant in names:
        return f": it is called {meant!r} here"
    if meant in READER_OPTIONS or plain in READER_OPTIONS:
        return f": {meant or plain!r} is an option of Operator.reader"
    return f"; did you mean {near[0]!r}?" if near else ""


def _nearest(name: str, names: Collection[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, names, n=1, cutoff=0.7)


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
    """The service of a URI, and the options left for the Operator."""
    scheme, rest = split_uri(uri)
    recipe = recipe_of(scheme)
    allowed = store_options(scheme)
    for variable in tuple(os.environ):
        if variable.startswith(_PREFIX) and variable.removeprefix(_PREFIX).lower() not in allowed:
            _check_variable(variable)
    for name in options:
        if name not in allowed:
            raise _not_for_a_uri(name, scheme, allowed)
    keywords = {name: value for name, value in options.items() if value is not None}
    own_credentials = any(keywords.get(name) for name in _CREDENTIALS)
    variables = [name for name in allowed if not (own_credentials and name in _CREDENTIALS)]
    values = {**from_environment(recipe, variables), **keywords}
    own = {name: values.pop(name) for name in recipe.uri_options if name in values}
    return recipe.from_uri(f"{scheme}://{rest}", **own), values


def _not_for_a_uri(name: str, scheme: str, allowed: Collection[str]) -> ConfigInvalid:
    recipe = recipe_of(scheme)
    if name in inspect.signature(recipe).parameters:
        return ConfigInvalid(
            f"{name!r} is not an option for {scheme}:// but of ap.services.{recipe.__name__}, which Operator(...)"
            f" takes; there are {', '.join(sorted(allowed))}",
            operation="configure",
        )
    return unknown_option(name, allowed, of=f"{scheme}://", operation="configure")


# --- environment variables ----------------------------------------------------------------------------------------


@functools.cache
def _check_variable(variable: str) -> None:
    """Warn once of a variable that no scheme reads: it is probably misspelt, or has to be an option.

    A variable that is like no option may belong to another program, such as a test suite.
    """
    name = variable.removeprefix(_PREFIX).lower()
    pairs = {(recipe_of(scheme), option) for scheme in BUILT_IN for option in store_options(scheme)}
    options = {option for _, option in pairs}
    readable = {option for recipe, option in pairs if _text_form(recipe, option) is not None}
    if name in readable:
        return
    plain = _OTHER_NAMES.get(name, name)
    near = [plain] if plain in readable else _nearest(plain, readable)
    if near or name in options:
        hint = f"did you mean {_PREFIX}{near[0].upper()}?" if near else f"give {name}= as an option"
        logger.warning("the environment variable %s is read by nothing; %s", printable(variable), hint)


def from_environment(recipe: type[UriRecipe], names: Iterable[str]) -> dict[str, Any]:
    """The values of the ``AIOPREFETCH_*`` variables for some options of a recipe and its Operator."""
    values: dict[str, Any] = {}
    for name in names:
        variable = f"{_PREFIX}{name.upper()}"
        text = os.environ.get(variable)
        form = _text_form(recipe, name) if text else None
        if text and form is not None:
            values[name] = f"env:{variable}" if form is Secret else _parse(form, name, text, variable)
    return values


@functools.cache
def _text_form(recipe: type[UriRecipe], name: str) -> type | None:
    """The type that the text of an option is parsed as, from its field; ``None`` if it has no text form."""
    hint = _operator_types().get(name) or get_type_hints(recipe).get(name)
    types = _members(hint)
    return next((form for form in (Secret, bool, int, float, str) if form in types), None)


@functools.cache
def _operator_types() -> Mapping[str, Any]:
    runtime, retry = get_type_hints(RuntimeOptions), get_type_hints(RetryLayer)
    own = {"disk_cache": str, "attempts_max": retry["attempts_max"], "retry_seconds": retry["total_seconds"]}
    return {name: own.get(name) or runtime[name] for name in OPERATOR_OPTIONS}


def _members(hint: Any) -> set[Any]:
    """The types of a union, of a ``Literal`` that of its values."""
    if get_origin(hint) in (Union, UnionType):
        return {member for part in get_args(hint) for member in _members(part)}
    return {type(value) for value in get_args(hint)} if get_origin(hint) is Literal else {hint}


def _parse(form: type, name: str, text: str, variable: str) -> Any:
    if form is bool:
        value = _FLAGS.get(text.lower())
        if value is None:
            raise ConfigInvalid(f"{variable}={text!r} is neither true nor false", operation="configure")
        return value
    try:
        return form(text)
    except ValueError:
        unit = " of seconds" if name.endswith("_seconds") else ""
        what = f"an integer{_in_bytes(text)}" if form is int else f"a number{unit}"
        raise ConfigInvalid(f"{variable}={text!r} is not {what}", operation="configure") from None
