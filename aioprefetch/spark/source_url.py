"""The URL of a source: the directory that its operator is rooted at, and the glob below it. Pure.

``s3://bucket/landing/2026/*.jsonl`` is the directory ``s3://bucket/landing/2026`` and the glob ``*.jsonl``: no
listing ever looks outside the longest part of the path that has no wildcard.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from aioprefetch.errors import ConfigInvalid, printable, redact
from aioprefetch.operator.from_uri import split_uri
from aioprefetch.operator.listing import has_wildcard, wildcard_at

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class SourceUrl:
    """The location of a source. ``root`` is the URL of a directory, ``glob`` filters paths below it (``None``: all).

    ``parent`` and ``name`` are set where the URL may also name one object: the directory it would lie in, and its
    name. Only the store can decide.
    """

    root: str
    glob: str | None = None
    parent: str | None = None
    name: str | None = None

    @property
    def bucket(self) -> str | None:
        """The bucket of an S3 URL."""
        scheme, rest = split_uri(self.root)
        return rest.partition("/")[0] if scheme in ("s3", "s3a") else None


def source_url(text: str, *, option: str = "path") -> SourceUrl:
    """Take a URL or a local path apart. Local paths become absolute.

    ``ConfigInvalid`` for an unknown scheme, for credentials in the URL, and for alternatives in braces.
    """
    url = directory_url(text, option=option)
    scheme, rest = split_uri(url)
    head, separator, path = _split_root(scheme, rest)
    _check_glob(path, option)
    if not has_wildcard(path):
        if not path or path.endswith("/"):
            return SourceUrl(f"{scheme}://{head}{separator}{path}".rstrip("/") if path else f"{scheme}://{head}/")
        parent, _, name = path.rpartition("/")
        return SourceUrl(f"{scheme}://{head}{separator}{path}", None, f"{scheme}://{head}{separator}{parent}", name)
    directory, _, _ = path[: wildcard_at(path)].rpartition("/")
    glob = path[len(directory) + 1 if directory else 0 :]
    return SourceUrl(f"{scheme}://{head}{separator}{directory}", glob)


def directory_url(text: str, *, option: str) -> str:
    """A URL as given, or ``file://`` for a local path, made absolute. ``ConfigInvalid`` where nothing could work."""
    if not text.strip():
        raise ConfigInvalid(
            f"the option {option} is empty; it names a URL such as s3://bucket/prefix", operation="configure"
        )
    if _has_credentials(text):
        # Spark shows paths in plans and logs, and they may have bearer credentials.
        raise ConfigInvalid(
            f"the option {option} has a user or a query in its URL; give credentials as options",
            operation="configure",
        )
    if "://" in text:
        scheme, rest = split_uri(text)
        return f"{scheme}://{rest}"
    if _SCHEME.match(text) and not text.startswith("file:"):
        shown = printable(redact(text))
        raise ConfigInvalid(f"{option}={shown!r} is neither a URL with :// nor a local path", operation="configure")
    path = os.path.abspath(text.removeprefix("file:"))
    return f"file://{path}/" if text.endswith("/") and path != "/" else f"file://{path}"


def _has_credentials(text: str) -> bool:
    """Whether a user, or over HTTP a query, is in a URL of any scheme, also one that is not written to the end."""
    url = _SCHEME.match(text)
    if url is None:
        return False
    scheme, rest = url[0].lower(), text[url.end() :].removeprefix("//")
    authority = rest.partition("/")[0]
    if scheme == "file:" and not text[url.end() :].startswith("//"):
        return False
    # A secret may have a slash in it, and no name of a bucket has a colon.
    return (
        "@" in authority
        or ("@" in rest and ":" in authority and scheme in ("s3:", "s3a:", "s3n:") and not authority.startswith("arn:"))
        or ("?" in rest and scheme in ("http:", "https:"))
    )


def name_filter(glob: str | None, file_name: str) -> str:
    """``glob`` (over paths) and a glob over file names as one. ``ConfigInvalid`` if one glob cannot say both."""
    _check_glob(file_name, "pathGlobFilter")
    if "/" in file_name:
        raise ConfigInvalid(
            f"pathGlobFilter={file_name!r} has a slash, but it is for names of files; put directories into the path",
            operation="configure",
        )
    if glob is None:
        return f"**/{file_name}"
    directory, separator, last = glob.rpartition("/")
    if last == "*":
        return f"{directory}{separator}{file_name}"
    if last == "**":
        return f"{directory}{separator}**/{file_name}"
    raise ConfigInvalid(
        f"the path ends with the glob {last!r} and pathGlobFilter={file_name!r} is another; give one of them",
        operation="configure",
    )


def _split_root(scheme: str, rest: str) -> tuple[str, str, str]:
    """The part without globs (a bucket, a host, the name of a memory store), the slash, and the path."""
    if scheme == "file":
        return "", "/", rest.lstrip("/")
    head, _, path = rest.partition("/")
    if has_wildcard(head):
        raise ConfigInvalid(f"there is a wildcard before the path of {scheme}://{head}", operation="configure")
    return head, "/", path


def _check_glob(glob: str, option: str) -> None:
    if re.search(r"\{[^{}]*,[^{}]*\}", glob):
        raise ConfigInvalid(
            f"{option}: alternatives in braces are not known in {glob!r}; there are * ? ** and sets such as [ab]",
            operation="configure",
        )
