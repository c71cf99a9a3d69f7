"""How a key becomes names of directories and files. Pure, no I/O.

The rule: runs of ``/`` count as one and a leading ``/`` as none, so ``/a//b`` is ``a/b``. A trailing ``/`` stays: it
means the directory. Everything else is kept to the byte. ``.`` and ``..`` segments and NUL are refused, and so is the
form of name under which files that are still being written are hidden.
"""

from __future__ import annotations

import os
import re

from aioprefetch.errors import InvalidPath

_SLASHES = re.compile(r"/{2,}")
_PARTIAL = re.compile(r"\.aioprefetch-[0-9a-f]{16}\.tmp")


def is_partial(name: str) -> bool:
    """Whether a name is of a file that is still being written, or was left by a crash."""
    return _PARTIAL.fullmatch(name) is not None


def partial_name(token: str) -> str:
    """The name of a file being written; ``token`` is 16 hexadecimal digits."""
    return f".aioprefetch-{token}.tmp"


def normalised(path: str) -> str:
    """A key or prefix with its slashes collapsed."""
    return _SLASHES.sub("/", path).lstrip("/")


def names_of(path: str, *, operation: str = "") -> tuple[str, ...]:
    """The names on the way to a key below the root, ``()`` for the root itself. Raises ``InvalidPath``."""

    def invalid(why: str) -> InvalidPath:
        return InvalidPath(why, operation=operation, path=path)

    names = tuple(name for name in path.split("/") if name)
    if "\0" in path:
        raise invalid("a file name cannot hold a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise invalid("the key holds a character that the file system cannot encode") from error
    for name in names:
        if name in (".", ".."):
            raise invalid(f"the segment {name!r} could lead out of the root; name the object itself")
        if is_partial(name):
            raise invalid(f"names like {name!r} are reserved for files being written")
    return names
