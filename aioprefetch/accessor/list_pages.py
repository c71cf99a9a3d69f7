"""The rules of the pages of a listing, which not every service keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Generic, TypeVar

from aioprefetch.errors import ProtocolError, excerpt
from aioprefetch.values import ListPage, ListRequest, ListUploadsRequest

R = TypeVar("R", ListRequest, ListUploadsRequest)
T = TypeVar("T")

# No path is longer, in characters: a directory that is, is one within itself.
PATH_LENGTH_MAX = 4096
# A store may send empty pages for keys that were deleted. A listing with this many in a row does not go on.
PAGES_IN_VAIN_MAX = 10_000


def checked_page(page: ListPage, request: ListRequest, *, is_walked: bool) -> ListPage:
    """A page without the listed directory itself, in which the names of directories end with a slash.

    Where directories are listed one by one (``is_walked``), ``.`` and ``..`` are skipped too. Raises
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


class Paging(Generic[R]):
    """One listing, page by page: ``request`` is that for the next page, ``None`` after the last one.

    A listing that does not go on is a ``ProtocolError``: its token was named before, or ``PAGES_IN_VAIN_MAX`` pages in
    a row brought nothing new. An item is not new if it came in this page or the one before, or if its page came before.
    """

    def __init__(self, request: R) -> None:
        self.request: R | None = request
        is_versioned = isinstance(request, ListRequest) and request.versions
        id_of = ("upload_id",) if isinstance(request, ListUploadsRequest) else ("version",) if is_versioned else ()
        self._name_of: Callable[[object], object] = attrgetter("path", *id_of)
        self._names: frozenset[object] = frozenset()
        # Tokens and pages that have been, as hashes: they may be long.
        self._tokens: set[int] = set()
        self._pages: set[int] = set()
        self._in_vain = 0

    def turn(self, items: Sequence[T], token: str | None, left_out: int = 0) -> list[T]:
        """Go on to the page that ``token`` names; returns its new items.

        ``left_out``: see ``ListPage``. After an error ``request`` is as it was before.
        """
        assert self.request is not None
        before, self._names = self._names, frozenset(map(self._name_of, items))
        page = hash((self._names, left_out))
        is_known = page in self._pages
        fresh = [] if is_known else [*items]
        if fresh and (len(self._names) < len(items) or not self._names.isdisjoint(before)):
            fresh = [item for name, item in {self._name_of(item): item for item in items}.items() if name not in before]
        self._in_vain = 0 if fresh or (left_out and not is_known) else self._in_vain + 1
        if token is not None:
            if hash(token) in self._tokens:
                raise self._endless("named the same page of a listing twice as the next one")
            if self._in_vain >= PAGES_IN_VAIN_MAX:
                raise self._endless(f"sent {self._in_vain} pages of a listing in a row that brought nothing new")
            self._pages.add(page)
            self._tokens.add(hash(token))
        self.request = None if token is None else replace(self.request, page_token=token)
        return fresh

    def _endless(self, what: str) -> ProtocolError:
        assert self.request is not None
        operation, path = self.request.operation, self.request.path
        return ProtocolError(f"the store {what}", operation=operation, path=path, status="permanent")
