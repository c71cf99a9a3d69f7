"""Whether two URLs name one directory, and whether a directory lies in another one. Pure."""

from __future__ import annotations

from collections.abc import Callable

from aioprefetch.values import ServiceInfo

# Names such as a state has, and what is beside it.
WRITTEN = (
    "meta.json",
    "snapshot.json",
    "snapshot-000000000000.json",
    "schema.json",
    "stream.json",
    "cleaned.json",
    "log/000000000000.json.zst",
    "seen/run-000000000000-0000-0000.parquet",
    "dead/000000000000-0.jsonl",
)


def canonical_root(url: str) -> str:
    """One spelling of the URL of a directory: ``s3`` for ``s3a``, the host in lower case, no slashes at the end.

    A store in memory has a name, not a host. Slashes within a path stay: of keys they are a part.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url.rstrip("/")
    scheme = scheme.lower()
    scheme = "s3" if scheme == "s3a" else scheme
    host, slash, path = rest.partition("/")
    if scheme != "memory":
        host = host.lower()
    return f"{scheme}://{host}{slash}{path}".rstrip("/") if host or path.strip("/") else f"{scheme}:///"


def path_below(root: str, place: str) -> str | None:
    """The path of ``place`` below ``root``, with a slash at its end (empty: the same); ``None``: it lies elsewhere."""
    inner, outer = (one if one.endswith("/") else f"{one}/" for one in map(canonical_root, (place, root)))
    return inner.removeprefix(outer) if inner.startswith(outer) else None


def store_path_below(source: ServiceInfo, store: ServiceInfo, directory: str) -> str | None:
    """The same for a directory of an operator, and the root of another one: by what they say of their stores."""
    if (source.scheme, source.endpoint, source.name) != (store.scheme, store.endpoint, store.name):
        return None
    outer = source.root.strip("/")
    inner = f"{store.root.strip('/')}/{directory}".strip("/")
    return path_below(f"{source.scheme}:///{outer}", f"{source.scheme}:///{inner}")


def would_be_read(below: str | None, takes: Callable[[str], bool]) -> bool:
    """Whether a source that ``takes`` paths would read what is written in the directory ``below`` its root."""
    return below is not None and any(takes(f"{below}{name}") for name in WRITTEN)
