"""The options of stores for each location of a source: the files, its state, a state to follow, quarantine. Pure.

A location gets those options of the user that its service knows, and behind them the settings of the session for its
own bucket. Files are moved within the store that they are read from, with its options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from aioprefetch.errors import ConfigInvalid, redact
from aioprefetch.operator.from_uri import split_uri, store_options
from aioprefetch.spark.hadoop import Found
from aioprefetch.spark.option_names import CREDENTIALS, OPTIONS, find_option
from aioprefetch.spark.source_url import SourceUrl

# S3A's default endpoint.
_CENTRAL = "https://s3.amazonaws.com"
_PORTS = {"http": 80, "https": 443}


class Places:
    """The options of the user and of the session, for one location after another.

    ``given`` are texts by name in lower case, ``parsed`` the values of the operator's options among them by target.
    """

    def __init__(self, given: Mapping[str, str], parsed: Mapping[str, Any], found: Found | None) -> None:
        self._given = given
        self._parsed = parsed
        self._found = found

    def check(self, locations: Iterable[SourceUrl]) -> None:
        """``ConfigInvalid`` for an option that no location knows."""
        schemes = list(dict.fromkeys(_scheme(location) for location in locations))
        for name in self._given:
            option = OPTIONS[name]
            if option.group == "operator" and not any(option.target in _known(scheme) for scheme in schemes):
                named = " and ".join(f"{scheme}://" for scheme in schemes)
                raise ConfigInvalid(f"the option {option.name} means nothing for {named}", operation="configure")

    def options(self, url: str | None) -> dict[str, Any]:
        """The options of ``operator_at`` for a URL; none without a URL."""
        if url is None:
            return {}
        location = SourceUrl(url)
        known = _known(_scheme(location))
        behind = {} if self._is_elsewhere(location) else self._of_session(location)
        if CREDENTIALS & self._given.keys():
            behind = {name: text for name, text in behind.items() if name not in CREDENTIALS}
        found = {find_option(name): text for name, text in behind.items()}
        merged = {**{one.target: one.parse(one.name, text) for one, text in found.items()}, **self._parsed}
        return {name: value for name, value in merged.items() if name in known}

    def left_out(self, urls: Iterable[str | None]) -> str | None:
        """The reason why keys of the session are not used for one of the URLs; ``None`` if none are left out."""
        if CREDENTIALS & self._given.keys():
            return None
        for location in (SourceUrl(url) for url in urls if url is not None):
            texts = self._of_session(location)
            if CREDENTIALS & texts.keys() and self._is_elsewhere(location):
                theirs = redact(texts.get("endpointurl", _CENTRAL))
                return (
                    f"the session's fs.s3a settings are of the endpoint {theirs}, and endpointUrl is "
                    f"{redact(self._given['endpointurl'])}: their keys were not used. Give accessKeyId and "
                    "secretAccessKey, a profile, or no endpointUrl"
                )
        return None

    def _of_session(self, location: SourceUrl) -> Mapping[str, str]:
        bucket = location.bucket
        return {} if bucket is None or self._found is None else self._found.options(bucket)

    def _is_elsewhere(self, location: SourceUrl) -> bool:
        """Whether the user names another endpoint than the session, whose settings and keys do not count there."""
        endpoint = self._given.get("endpointurl")
        return endpoint is not None and not is_same_endpoint(endpoint, self._of_session(location).get("endpointurl"))


def is_same_endpoint(one: str, other: str | None) -> bool:
    """Whether two URLs are of one endpoint: case, a default port and a slash at the end do not count."""
    return _normal(one) == _normal(other or _CENTRAL)


def _normal(url: str) -> tuple[object, ...]:
    parts = urlsplit(url.strip())
    try:
        port = parts.port
    except ValueError:
        return (url,)
    return parts.scheme, parts.hostname, port or _PORTS.get(parts.scheme), parts.path.rstrip("/"), parts.query


def _scheme(location: SourceUrl) -> str:
    return split_uri(location.root)[0]


def _known(scheme: str) -> frozenset[str]:
    return frozenset(store_options(scheme))
