"""Pages of a listing from sorted keys, for services that hold all their names in memory. Pure, no I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from aioprefetch.values import Entry, ListPage, ListRequest

PAGE_ENTRIES = 1000


def fold_page(keys: Sequence[str], request: ListRequest, entry_of: Callable[[str], Entry]) -> ListPage:
    """One page of the keys that begin with ``request.path``, in order, with deeper keys folded into directories.

    A key that ends with ``/`` is a directory made by hand; the directory that is listed does not list itself. The
    page token is the last path of the page.
    """
    prefix = request.path
    after = max(request.start_after or "", request.page_token or "")
    limit = request.page_entries_max or PAGE_ENTRIES
    position = bisect_right(keys, after) if after > prefix else bisect_left(keys, prefix)
    entries: list[Entry] = []
    has_marker = False
    while position < len(keys) and keys[position].startswith(prefix):
        key = keys[position]
        slash = -1 if request.recursive else key.find("/", len(prefix))
        if slash >= 0:
            path = key[: slash + 1]
            position = bisect_left(keys, path[:-1] + "0", position)  # "0" is the character after "/"
        else:
            path = key
            position += 1
        if path == prefix and path.endswith("/"):
            has_marker = True
            continue
        if path <= after:
            continue
        if len(entries) == limit:
            return ListPage(entries=tuple(entries), next_token=entries[-1].path, has_marker=has_marker)
        entries.append(Entry(path=path, kind="directory") if path.endswith("/") else entry_of(path))
    return ListPage(entries=tuple(entries), next_token=None, has_marker=has_marker)
