"""URIs, keyword options and environment variables into a service and the options of an Operator.

A service is found by the scheme of its URI: one of ``aioprefetch.services``, or one registered by a distribution
under the entry point group ``aioprefetch.services``, with the scheme as the entry's name. Keywords win over
``AIOPREFETCH_*`` variables (``AIOPREFETCH_ENDPOINT_URL``, ``AIOPREFETCH_MEMORY_BYTES``, ...), which win over the
defaults. Secrets from the environment stay references to it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from aioprefetch import services
from aioprefetch.accessor.protocols import Service
from aioprefetch.errors import ConfigInvalid, printable, redact
from aioprefetch.layers import RetryLayer
from aioprefetch.options import OBJECT, PREFIX, Option, given, invalid, table_of
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.verbs.requests import READ_OPTIONS, WRITE_OPTIONS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

Made = TypeVar("Made")


def split_url(url: str, *, path_required: bool = True, at_origin: bool = False) -> tuple[str, str]:
    """The URL of a store, and the path of one object in it: ``s3://bucket`` and ``a/b.parquet``.

    An http(s) URL is decoded, and its query stays with the store; the rest of a URL of another scheme is a path as it
    stands. The store of a file, and of an object over http(s), is its directory; ``at_origin`` makes it the root of the
    machine's files, or the host. ``ConfigInvalid`` when there is no scheme, or no path although one is required.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme:
        raise ConfigInvalid(
            f"{printable(redact(url))!r} is not a URL such as s3://bucket/key; a local file is pathlib.Path('…') or"
            " file:///…, and with operator= a path is enough",
            operation="open",
        )
    if scheme in ("http", "https"):
        store, path = _split_http(url, at_origin=at_origin)
    elif scheme == "file":
        store, path = ("file:///", rest.lstrip("/")) if at_origin else split_local(rest)
    else:
        name, _, path = rest.partition("/")
        store = f"{scheme}://{name}"
    if not path and path_required:
        shown = printable(redact(url))
        raise ConfigInvalid(f"the URL {shown!r} names no object, but a store or a directory", operation="open")
    return store, path


def split_local(path: str, wildcard_at: int | None = None) -> tuple[str, str]:
    """The URL of a directory of this machine, and the path in it, of an absolute path.

    The directory is the parent, since a root may lie behind links and a path in it may not. Of a path that ends with
    ``/`` it is the path itself, of a glob the one above its first wildcard, which stands at ``wildcard_at``.
    """
    directory = path[:wildcard_at].rpartition("/")[0]
    return f"file://{directory or '/'}", path[len(directory) :].lstrip("/")


def _split_http(url: str, *, at_origin: bool) -> tuple[str, str]:
    from urllib.parse import unquote, urlsplit, urlunsplit

    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigInvalid(f"{printable(redact(url))!r} is not a URL: {error}", operation="open") from None
    if parts.fragment:
        raise ConfigInvalid(
            f"{printable(redact(url))!r} has a fragment; encode the character # as %23", operation="open"
        )
    directory, _, name = parts.path.rpartition("/")
    if at_origin and "%2f" not in parts.path.lower():  # Decoded, it would be another path.
        directory, name = "", parts.path.lstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, directory + "/", parts.query, "")), unquote(name)


# --- recipes and options ----------------------------------------------------------------------------------------------

ENTRY_POINTS = "aioprefetch.services"


def _keywords(owner: type) -> dict[str, Option]:
    return {name: row for name, row in table_of(owner).items() if row.given == "keyword"}


OPERATOR_OPTIONS: Mapping[str, Option] = MappingProxyType(_keywords(RuntimeOptions) | _keywords(RetryLayer))


class UriRecipe(Protocol):
    """A recipe that is found by the scheme of a URI."""

    # The options that ``from_uri`` takes beside the URI are the rows of its fields (``aioprefetch.options``), or, of a
    # recipe without rows, named by ``uri_options``: a field with a text form can also be a variable.
    schemes: ClassVar[tuple[str, ...]]

    @classmethod
    def from_uri(cls, uri: str, **options: Any) -> Service:
        """The recipe for a URI, whose scheme is in lower case. Raises ``ConfigInvalid``."""
        ...


# Credentials of one principal: some from keywords and others from variables would be mixed up.
CREDENTIALS = frozenset({"access_key_id", "secret_access_key", "session_token", "credentials", "profile", "anonymous"})
# Variables that are for the process and for no operator.
_OF_PROCESS = frozenset({"log", "trace", "trace_since"})

# Hints for schemes of others.
_ELSEWHERE = {
    "hf": "files of the Hugging Face hub are read by https://huggingface.co/OWNER/NAME/resolve/main/FILE",
}

BUILT_IN = tuple(services.BY_SCHEME)
# Recipes of entry points, by scheme. A recipe that fails to load is tried again.
_loaded: dict[str, type[UriRecipe]] = {}


def local_uri(place: str | os.PathLike[str]) -> str:
    """A URI as it is, and ``file://`` for a local path that is an object, such as a ``pathlib.Path``.

    A relative one is made absolute here: another process may work in another directory.
    """
    if isinstance(place, str) or not isinstance(place, os.PathLike):
        return place
    path = os.fspath(place)
    if not isinstance(path, str):
        raise invalid(f"a path must be text, not {path!r}")
    if "://" in path:
        return path
    check_local(path, "configure")
    return f"file://{os.path.abspath(path)}"


def followed(path: str) -> str:
    """A path with its last name replaced by the target, if that name is a link: tools follow the links that users name.

    The directories on the way need no help: links on the way to a root are followed. It blocks.
    """
    return os.path.realpath(path) if os.path.islink(path) else path


def check_local(path: str, operation: str) -> None:
    """``ConfigInvalid`` for a local path that was meant as a URL: ``pathlib`` makes one slash of two."""
    meant = _meant_as_url(path)
    if meant:
        raise ConfigInvalid(
            f"{printable(redact(path))!r} has one slash after its scheme, as Path leaves it: give the URL as a string,"
            f" {printable(redact(meant))!r}, and a local file of such a name by its absolute path",
            operation=operation,
        )


def _meant_as_url(text: str) -> str:
    """The URL of a text in which a slash is missing, ``""`` for any other text."""
    scheme, separator, rest = text.partition(":/")
    is_meant = separator and scheme.lower() in BUILT_IN and not rest.startswith("/")
    slashes = ":///" if scheme.lower() == "file" else "://"
    return f"{scheme}{slashes}{rest}" if is_meant else ""


def split_uri(uri: str) -> tuple[str, str]:
    """Scheme and the rest of a URI. ``ConfigInvalid`` for an unknown scheme, with the supported ones."""
    scheme, separator, rest = str(uri).partition("://")
    scheme = scheme.lower()
    if separator and (scheme in BUILT_IN or _entry_point(scheme) is not None):
        return scheme, rest
    raise _unknown_scheme(str(uri), scheme if separator else "")


def _unknown_scheme(uri: str, scheme: str) -> ConfigInvalid:
    supported = f"supported: {', '.join(supported_schemes())}"
    if not scheme:
        message = f"the URI {redact(uri)!r} has no scheme; {supported}"
        meant = f"file://{uri}" if uri.startswith("/") else _meant_as_url(uri)
        if meant:
            message += f"; {printable(redact(meant))!r} may be meant"
        elif uri and ":" not in uri:
            message += f"; {f's3://{printable(redact(uri))}'!r} may be meant, or a local directory: pathlib.Path(...)"
    elif scheme in _ELSEWHERE:
        message = f"unknown scheme {scheme!r}: {_ELSEWHERE[scheme]}; {supported}"
    else:
        message = f"unknown scheme {printable(redact(scheme))!r}; {supported}"
    return ConfigInvalid(message, operation="configure")


def supported_schemes() -> tuple[str, ...]:
    """The schemes of the built-in services, then the schemes of entry points."""
    others = {entry.name for entry in _entry_points()}
    return (*BUILT_IN, *sorted(others.difference(BUILT_IN)))


@functools.cache
def _options_of(recipe: type[UriRecipe]) -> Mapping[str, Option]:
    return MappingProxyType({**OPERATOR_OPTIONS, **_keywords(recipe)})


def store_options(scheme: str) -> Mapping[str, Option]:
    """The options that ``Operator.from_uri`` takes for a scheme."""
    return _options_of(recipe_of(scheme))


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
    missing = [name for name in ("schemes", "from_uri") if not hasattr(recipe, name)]
    if missing or entry.name not in recipe.schemes:
        why = f"it has no {missing[0]}" if missing else f"its schemes are {', '.join(recipe.schemes)}"
        raise ConfigInvalid(f"{source} is not a recipe for that scheme: {why}", operation="configure", context=facts)
    loaded: type[UriRecipe] = recipe
    return loaded


def unknown_option(name: str, names: Collection[str], *, of: str, operation: str, path: str = "") -> ConfigInvalid:
    """The error for an unknown option of ``of``, which has ``names``, with the option that was probably meant."""
    from aioprefetch.options.words import advice_for

    advice = advice_for(name, names, elsewhere())
    listed = f"there are {', '.join(sorted(names)) or 'none'}"
    message = f"unknown option {name!r} for {of}{advice}{'' if advice.endswith('?') else ';'} {listed}"
    return ConfigInvalid(message, operation=operation, path=path)


def elsewhere() -> list[tuple[str, Mapping[str, Option]]]:
    """All options of ours, by what has them: stores, readers, reads and writes."""
    from aioprefetch.options.words import WRITE_ROWS
    from aioprefetch.reader.options import ReaderRows

    stores = [(f"{scheme}://", _keywords(recipe_of(scheme))) for scheme in BUILT_IN]
    read, write = ({name: Option(name, OBJECT) for name in sorted(names)} for names in (READ_OPTIONS, WRITE_OPTIONS))
    calls = [("Operator.reader", table_of(ReaderRows)), ("Operator.write", {**write, **WRITE_ROWS})]
    return [*calls, *stores, ("an operator", OPERATOR_OPTIONS), ("Operator.read", read)]


def configure(uri: str | os.PathLike[str], options: Mapping[str, Any]) -> tuple[Service, dict[str, Any]]:
    """The service of a URI or a local path, and the options left for the Operator."""
    return configured(uri, options, lambda service, others: (service, others))


def configured(
    uri: str | os.PathLike[str], options: Mapping[str, Any], make: Callable[[Service, dict[str, Any]], Made]
) -> Made:
    """Call ``make`` with the service of a URI or a local path and the options left for the Operator; its result.

    An error about an option tells the variable that the option came from.
    """
    scheme, rest = split_uri(local_uri(uri))
    recipe, rows = recipe_of(scheme), store_options(scheme)
    keywords = given(options)
    own_credentials = any(keywords.get(name) for name in CREDENTIALS)
    of_variables: dict[str, Any] = {}
    for variable in [name for name in os.environ if name.startswith(PREFIX)]:
        name = variable.removeprefix(PREFIX).lower()
        row = rows.get(name)
        if row is None or not row.has_variable or row.variable != variable:
            if name not in _OF_PROCESS:
                _check_variable(variable)
        elif not (own_credentials and name in CREDENTIALS) and (text := os.environ[variable]):
            of_variables[name] = f"env:{variable}" if row.kind.is_secret else row.read(text, variable, is_checked=False)
    for name in options:
        if name not in rows:
            raise _not_for_a_uri(name, scheme, rows)
    values = {**of_variables, **keywords}
    own = {name: values.pop(name) for name in tuple(values) if rows[name] is not OPERATOR_OPTIONS.get(name)}
    try:
        return make(recipe.from_uri(f"{scheme}://{rest}", **own), values)
    except ConfigInvalid as error:
        named = re.findall(r"\w+", error.message)
        found = [rows[name].variable for name in of_variables if name in named and name not in keywords]
        if found:
            error.add_context(variables=", ".join(found))
        raise


def _not_for_a_uri(name: str, scheme: str, allowed: Mapping[str, Option]) -> ConfigInvalid:
    recipe = recipe_of(scheme)
    row = table_of(recipe).get(name)
    if row is not None and row.given == "recipe":
        return invalid(
            f"{name!r} is not an option for {scheme}:// but of ap.services.{recipe.__name__}, which Operator(...)"
            f" takes; there are {', '.join(sorted(allowed))}"
        )
    return unknown_option(name, allowed, of=f"{scheme}://", operation="configure")


def option_from_text(scheme: str, name: str, text: str) -> Any:
    """The value of an option of a scheme that was written as text, as on a command line.

    A secret is given by the name of a variable alone, ``env:NAME``, since other users can read command lines.
    ``ConfigInvalid`` for an unknown name, a text that is not a value, and an option that has no text form.
    """
    rows = store_options(scheme)
    if name not in rows:
        raise unknown_option(name, rows, of=f"{scheme}://", operation="configure")
    row = rows[name]
    if not row.has_variable:
        raise invalid(f"the option {name} cannot be written as text")
    if not row.kind.is_secret:
        return row.read(text, name, is_checked=False)
    variable = text.removeprefix("env:")
    if variable == text or variable not in os.environ:
        problem = "other users can read a command line" if variable == text else "there is no such variable"
        raise invalid(f"the option {name} must be the name of an environment variable, env:NAME: {problem}")
    return text


@functools.cache
def _check_variable(variable: str) -> None:
    """Warn once of a variable that no scheme reads: it is probably misspelt, or has to be an option.

    A variable that is like no option may belong to another program, such as a test suite.
    """
    from aioprefetch.options.words import answer_of, nearest

    name = variable.removeprefix(PREFIX).lower()
    # One scheme after the other: to look at all of them imports all services, and takes a tenth of a second.
    if any(name in (rows := store_options(scheme)) and rows[name].has_variable for scheme in BUILT_IN):
        return
    rows = {row.name: row for scheme in BUILT_IN for row in store_options(scheme).values()}
    readable = [row.name for row in rows.values() if row.has_variable]
    answer = answer_of(name, (), elsewhere())
    plain = answer.option if answer else name
    near = plain if plain in readable else "" if name in rows else nearest(plain, readable)
    if near or name in rows:
        hint = f"did you mean {PREFIX}{near.upper()}?" if near else f"give {name}= as an option"
        logger.warning("the environment variable %s is read by nothing; %s", printable(variable), hint)
