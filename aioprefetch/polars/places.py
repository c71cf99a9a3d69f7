"""The store and the paths that URLs name: one operator, and paths of it as ``parquet.scan`` takes them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aioprefetch.errors import ConfigInvalid, InvalidType, printable, redact
from aioprefetch.operator.from_uri import local_uri, split_uri
from aioprefetch.operator.listing import wildcard_at
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import shared_twin
from aioprefetch.operator.urls import split_local, split_url

Place = str | os.PathLike[str]
Paths = str | list[str]


def place_of(source: Place | Sequence[Place], options: Mapping[str, Any]) -> tuple[Operator, Paths]:
    """The operator of URLs that name one store, and their paths in it. Local paths are of this machine's files.

    The operator shares its runtime with all of the same options and principal in the process. ``ConfigInvalid`` for
    anything but URLs, for URLs of several stores, and for unknown options.
    """
    is_list = not isinstance(source, str | os.PathLike)
    urls = [_url(place) for place in _listed(source)]
    if {split_uri(url)[0] for url in urls} == {"file"}:
        store, paths = _local(urls)
    else:
        splits = [_split(url) for url in urls]
        store, paths = splits[0][0], [path for _, path in splits]
        others = {each for each, _ in splits} - {store}
        if others:
            shown = " and ".join(printable(redact(each)) for each in (store, min(others)))
            raise ConfigInvalid(
                f"one scan reads one store, not {shown}; scan each, and put them together by polars.concat",
                operation="scan_parquet",
            )
    alone = Operator.from_uri(store, **options)
    return shared_twin(alone) or alone, paths if is_list else paths[0]


def _listed(source: object) -> list[object]:
    if isinstance(source, str | os.PathLike):
        return [source]
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise InvalidType(f"a source is a URL or a list of URLs, not {source!r}", operation="scan_parquet")
    places = list(source)
    if not places:
        raise InvalidType("a list of URLs must name at least one", operation="scan_parquet")
    return places


def _url(place: object) -> str:
    if not isinstance(place, str | os.PathLike):
        raise InvalidType(f"a URL must be a string, not {place!r}", operation="scan_parquet")
    place = local_uri(place)
    if "://" not in place:
        raise ConfigInvalid(
            f"{printable(redact(place))!r} is not a URL such as s3://bucket/t/*.parquet; a file of this machine is"
            " given as pathlib.Path or file:///path, and with operator= a path is enough",
            operation="scan_parquet",
        )
    return place


def _split(url: str) -> tuple[str, str]:
    """The URL of a store, and a path in it. Over HTTP there is nothing to list: a path is what it says."""
    if split_uri(url)[0] not in ("http", "https"):
        return split_url(url, path_required=False)
    split_url(url)  # Refuses the URL of a directory.
    store, path = split_url(url, at_origin=True)
    return store, glob.escape(path)


def _local(urls: Sequence[str]) -> tuple[str, list[str]]:
    """The directory that all paths share, above wildcards and partitions, and what is left of each path below it."""
    texts = [split_uri(url)[1] for url in urls]
    for text in texts:
        if not text.startswith("/"):
            raise ConfigInvalid(
                f"file://{printable(text)} names a host; a file of this machine has three slashes: file:///path",
                operation="scan_parquet",
            )
    root = os.path.commonpath([_directory_above_partitions(text) for text in texts])
    return f"file://{root}", [text[len(root) :].lstrip("/") for text in texts]


def _directory_above_partitions(path: str) -> str:
    directory = split_uri(split_local(path, wildcard_at(path))[0])[1]
    names = directory.split("/")
    first = next((number for number, name in enumerate(names) if "=" in name), len(names))
    return "/".join(names[:first]) or "/"
