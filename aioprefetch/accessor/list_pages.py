"""The rules of the pages of a listing, which not every service keeps."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeVar

from aioprefetch.errors import ProtocolError, excerpt
from aioprefetch.values import ListPage, ListRequest, ListUploadsRequest, UploadPage

R = TypeVar("R", ListRequest, ListUploadsRequest)

# No path is longer, in characters: a directory that is, is one within itself.
PATH_LENGTH_MAX = 4096


def checked_page(page: ListPage, request: ListRequest, *, is_walked: bool) -> ListPage:
    """A page without the listed directory itself, in which the names of directories end with a slash.

    Where directories are listed one by one (``is_walked``), those named ``.`` and ``..`` are none either. Raises
    ``ProtocolError`` for an entry that lies elsewhere, and for directories within directories without end.
    """
    prefix, entries, has_marker = request.path, [], page.has_marker
    if all(entry.kind == "file" and entry.path.startswith(prefix) for entry in page.entries):
        return page
    begins = (prefix, re.sub("/+", "/", prefix).removeprefix("/"))  # Where a service takes several slashes for one.
    strangers: list[str] = []
    for entry in page.entries:
        path = entry.path
        if entry.is_directory:
            path = path if path.endswith("/") else f"{path}/"
            if path in begins or not entry.path:
                has_marker = True
                continue
            if is_walked and path[:-1].rpartition("/")[2] in (".", ".."):
                continue
            entry = replace(entry, path=path)
        if not path.startswith(begins) or len(path) > PATH_LENGTH_MAX:
            strangers.append(path)
        entries.append(entry)
    if strangers:
        raise ProtocolError(
            f"the listing of {excerpt(prefix)!r} holds {excerpt(strangers[0])!r}",
            status="permanent",
            context={"strangers": len(strangers)},
        )
    return replace(page, entries=tuple(entries), has_marker=has_marker)


def page_after(page: ListPage | UploadPage, request: R, tokens: set[int]) -> R | None:
    """The request for the page after one, ``None`` after the last. ``ProtocolError`` if it was named before.

    ``tokens`` are those that were, as hashes: one may be long.
    """
    token = page.next_token
    if token is None:
        return None
    if hash(token) in tokens:
        raise ProtocolError(
            "the store named the same page of a listing twice as the next one",
            operation=request.operation,
            path=request.path,
            status="permanent",
        )
    tokens.add(hash(token))
    return replace(request, page_token=token)
