"""``ap.sync.open``: a file from one URL and one set of options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, Unsupported, printable, redact
from aioprefetch.operator.from_uri import BUILT_IN, READER_OPTIONS, split_uri, store_options, unknown_option
from aioprefetch.operator.operator import Operator
from aioprefetch.sync.file import SyncFile

# Both the operator and the reader know them; a file that has its operator to itself gives them to the operator.
SHARED_OPTIONS = frozenset({"block_bytes", "prefetch_blocks"})


def split_url(url: str, *, path_required: bool = True) -> tuple[str, str]:
    """The URL of a store, and the path of one object in it: ``s3://bucket`` and ``a/b.parquet``.

    An http(s) URL is decoded, and its query stays with the store; what is behind another scheme is a path as it
    stands. ``ConfigInvalid`` when there is no scheme, or no path although one is required.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme:
        raise ConfigInvalid(
            f"{printable(redact(url))!r} is not a URL such as s3://bucket/key; with operator= a path is enough",
            operation="open",
        )
    if scheme in ("http", "https"):
        store, path = _split_http(url)
    elif scheme == "file":
        # The parent is the root, since a root may lie behind links and a path in it may not.
        directory, _, path = rest.rpartition("/")
        store = f"file://{directory or '/'}"
    else:
        name, _, path = rest.partition("/")
        store = f"{scheme}://{name}"
    if not path and path_required:
        raise ConfigInvalid(f"the URL {printable(redact(url))!r} names no object", operation="open")
    return store, path


def _split_http(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigInvalid(f"{printable(redact(url))!r} is not a URL: {error}", operation="open") from None
    if parts.fragment:
        raise ConfigInvalid(
            f"{printable(redact(url))!r} has a fragment; encode the character # as %23", operation="open"
        )
    directory, _, name = parts.path.rpartition("/")
    return urlunsplit((parts.scheme, parts.netloc, directory + "/", parts.query, "")), unquote(name)


def checked_mode(mode: object, *, path: str) -> None:
    """``Unsupported`` for what is not reading bytes, ``InvalidArgument`` for what is no mode at all."""
    if not isinstance(mode, str):
        raise InvalidType(f"mode must be a string such as 'rb', not {mode!r}", operation="open", path=path)
    kinds = set(mode)
    if len(kinds) != len(mode) or not kinds <= set("rwxabt+") or len(kinds & set("rwxa")) != 1 or {"b", "t"} <= kinds:
        raise InvalidArgument(f"mode={mode!r} is not a mode of a file", operation="open", path=path)
    if kinds == {"r", "b"}:
        return
    hint = "to write an object, use write" if kinds & set("wxa+") else "for text, put io.TextIOWrapper around the file"
    raise Unsupported(f"mode={mode!r} is not supported, files are open in 'rb': {hint}", operation="open", path=path)


def open(  # noqa: A001 - what it stands in for
    url: str, mode: str = "rb", *, operator: Operator | None = None, **options: Any
) -> SyncFile:
    """Open an object for reading as a file. No request is sent before the first read.

    ``url`` is a URL (``s3://bucket/key``), or with ``operator`` a path in it. ``options`` are those of
    ``Operator.from_uri`` and of ``Operator.reader`` together; with ``operator`` only those of the reader. An operator
    that was made here is closed with the file. Raises ``ConfigInvalid`` for an option that neither knows, and
    ``Unsupported`` for any other ``mode`` than ``rb``.
    """
    if not isinstance(url, str):
        raise InvalidType(f"a URL or path must be a string, not {url!r}", operation="open")
    shown = printable(redact(url))
    checked_mode(mode, path=shown)
    if operator is not None:
        check_reader_options(options, path=url)
        return SyncFile(operator, url, options)
    store, path = split_url(url)
    scheme, _ = split_uri(store)
    known = READER_OPTIONS | set(store_options(scheme))
    for name in options.keys() - known:
        raise unknown_option(name, known, of=f"a file at {scheme}://", operation="open", path=shown)
    of_reader = {name: value for name, value in options.items() if name in READER_OPTIONS - SHARED_OPTIONS}
    of_store = {name: value for name, value in options.items() if name not in of_reader}
    made = Operator.from_uri(store, **of_store)
    return SyncFile(made, path, of_reader, name=redact(url), owns_operator=True)


def check_reader_options(options: Mapping[str, Any], *, path: str) -> None:
    """``ConfigInvalid`` for what is not an option of a reader."""
    for name in options.keys() - READER_OPTIONS:
        if any(name in store_options(scheme) for scheme in BUILT_IN):
            raise ConfigInvalid(
                f"{name!r} is not an option of a reader; options of a store belong to Operator.from_uri",
                operation="open",
                path=path,
            )
        raise unknown_option(name, READER_OPTIONS, of="a reader", operation="open", path=path)


__all__ = ["open", "split_url"]
