"""Keys, for services that keep them as they are: the names that an object may have, and pages of sorted names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioprefetch.errors import InvalidPath, IsADirectory
from aioprefetch.options import invalid
from aioprefetch.values import Entry, ListPage, ListRequest

KEY_BYTES_MAX = 1024
LIST_ADVICE = "list() shows those below it"


def is_directory_bucket(bucket: str) -> bool:
    """Whether a bucket of S3 lists in no order, from no key on, and below prefixes that end with a slash alone."""
    return bucket.endswith(("--x-s3", "--xa-s3"))


def no_object(path: str, operation: str, advice: str = LIST_ADVICE) -> IsADirectory:
    """The error for a path that is empty or a directory's, where an object is needed."""
    what = f"the path names a directory, an object is needed; {advice}"
    root = (
        "the path is empty: a URI is the root of the paths, so Operator.from_uri('s3://bucket/dir') reads 'a.bin' of it"
    )
    return IsADirectory(what if path else root, operation=operation, path=path)


def checked_key(path: str, *, operation: str, bytes_max: int = KEY_BYTES_MAX, dots_allowed: bool = False) -> str:
    """``path`` itself, kept as it is: spaces, ``//``, a leading slash and unicode all count.

    Raises ``InvalidPath`` for a key that some client or server on the way would change or cut: segments ``.`` and
    ``..``, a NUL character, text that is not UTF-8 (a lone surrogate), and more than ``bytes_max`` bytes of UTF-8.
    ``dots_allowed`` is for keys that are not sent in the path of a URL: prefixes of listings, deletions of many.
    """
    # The usual case, decided by searches in C: only a segment that begins with a dot can be a wrong one.
    if path.isascii() and len(path) <= bytes_max and "/." not in path and path[:1] != "." and "\0" not in path:
        return path
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        why = "the path holds a lone surrogate and has no UTF-8"
        raise InvalidPath(why, operation=operation, path=path) from None
    if size > bytes_max:
        raise InvalidPath(
            f"the path has {size} bytes of UTF-8, more than the {bytes_max} there is room for",
            operation=operation,
            path=path,
        )
    if "\0" in path:
        raise InvalidPath("a path cannot hold a NUL character", operation=operation, path=path)
    if not dots_allowed and (segment := dot_segment(path)):
        raise InvalidPath(
            f"the segment {segment!r} is not allowed: URLs resolve it to another object",
            operation=operation,
            path=path,
        )
    return path


def checked_prefix(prefix: object, name: str = "prefix") -> str:
    """A prefix of keys without the slashes at its ends. ``ConfigInvalid`` for a prefix that no key can have."""
    if not isinstance(prefix, str):
        raise invalid(f"{name} must be text, not {prefix!r}")
    try:
        return checked_key(prefix.strip("/"), operation="configure")
    except InvalidPath as error:
        raise invalid(f"{name}={prefix!r} cannot be used: {error.message}") from None


def dot_segment(path: str) -> str:
    """The first segment of a path that is ``.`` or ``..``, empty without any."""
    return next((segment for segment in path.split("/") if segment in (".", "..")), "")


PAGE_ENTRIES = 1000


def listed(entry: Entry) -> Entry:
    """The entry of a key. A key that ends with ``/`` and has no bytes was made by hand, to stand for a directory."""
    is_marker = not entry.size and (not entry.path or entry.path.endswith("/"))
    return Entry(path=entry.path, kind="directory") if is_marker else entry


def fold_page(keys: Sequence[str], request: ListRequest, entry_of: Callable[[str], Entry]) -> ListPage:
    """One page of the keys that begin with ``request.path``, in order, with deeper keys folded into directories.

    The directory that is listed does not list itself, but an object with bytes under its name. The page token is the
    last path of the page.
    """
    from bisect import bisect_left, bisect_right

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
        entry = Entry(path=path, kind="directory") if slash >= 0 else listed(entry_of(path))
        if path == prefix and entry.is_directory:
            has_marker = True
            continue
        if path <= after:
            continue
        if len(entries) == limit:
            return ListPage(entries=tuple(entries), next_token=entries[-1].path, has_marker=has_marker)
        entries.append(entry)
    return ListPage(entries=tuple(entries), next_token=None, has_marker=has_marker)
