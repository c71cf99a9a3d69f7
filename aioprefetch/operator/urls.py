"""Places of objects, URLs and local paths: the store, which is the URL of an Operator, and the path in it. Pure."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit, urlunsplit

from aioprefetch.errors import ConfigInvalid, printable, redact


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
