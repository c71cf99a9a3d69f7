"""The names that an object may have, for services that keep keys as they are. Pure, no I/O."""

from __future__ import annotations

from aioprefetch.errors import InvalidPath

KEY_BYTES_MAX = 1024


def checked_key(path: str, *, operation: str, bytes_max: int = KEY_BYTES_MAX) -> str:
    """``path`` itself, kept as it is: spaces, ``//``, a leading slash and unicode all count.

    Raises ``InvalidPath`` for a key that some client or server on the way would change or cut: segments ``.`` and
    ``..``, a NUL character, text that is not UTF-8 (a lone surrogate), and more than ``bytes_max`` bytes of UTF-8.
    """
    # The usual case, decided by searches in C: only a segment that begins with a dot can be a wrong one.
    if path.isascii() and len(path) <= bytes_max and "/." not in path and path[:1] != "." and "\0" not in path:
        return path
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise InvalidPath("the path holds a lone surrogate and has no UTF-8", operation=operation) from None
    if size > bytes_max:
        raise InvalidPath(
            f"the path has {size} bytes of UTF-8, more than the {bytes_max} there is room for",
            operation=operation,
            path=path,
        )
    if "\0" in path:
        raise InvalidPath("a path cannot hold a NUL character", operation=operation, path=path)
    for segment in path.split("/"):
        if segment in (".", ".."):
            raise InvalidPath(
                f"the segment {segment!r} is not allowed: URLs resolve it to another object",
                operation=operation,
                path=path,
            )
    return path
