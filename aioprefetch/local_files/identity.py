"""The identity of paths: two spellings of one file, or of one free name, are known as one.

What exists is its device and inode. A free name is the nearest directory above it and the names below that, folded
where the file system takes ``A`` for ``a``.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import unicodedata
from itertools import islice
from typing import Literal

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import InvalidPath, IsSameFile
from aioprefetch.local_files.files import ConfinedRoot
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Identity

# The store of all files of this machine.
FILES = ("file",)
Kind = Literal["file", "directory", "link", "other"]
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_CASE_SENSITIVE = 11  # A number for ``pathconf`` on macOS; Python has no name for it.
_PROBES_MAX = 64


def local_identity(path: str, *, follow: bool = True) -> Identity:
    """The identity of a local path. It blocks. Raises ``OSError``, and ``InvalidPath`` for links that lead in circles.

    Links on the way are followed, and with ``follow`` a link as the last name, too.
    """
    above, name = os.path.split(path.rstrip("/"))
    if follow or name in ("", ".", ".."):
        return _identity_of(os.path.realpath(path))
    return _identity_of(os.path.join(os.path.realpath(above), name))


async def refuse_same_file(accessor: Accessor, runtime: Runtime, path: str, file: str, operation: str) -> None:
    """Raise ``IsSameFile`` if an object is the local file itself, under the one name or the other."""
    found = await accessor.identity(path)
    if found.store != FILES or found.kind == "none":
        return
    try:
        is_same = found == await runtime.run_blocking(local_identity, file)
    except OSError:  # The verb says what is wrong with the file.
        return
    if is_same:
        raise IsSameFile("the object is this local file itself", operation=operation, path=path)


def identity_below(root: ConfinedRoot, names: tuple[str, ...]) -> Identity:
    """The identity of a key. It blocks. Raises ``OSError``, and ``InvalidPath`` where links are refused."""
    return _identity_of(os.path.join(os.path.realpath(root.root), *root.resolved(names)))


def _identity_of(path: str) -> Identity:
    """The identity of an absolute path, without following links."""
    rest = [name for name in path.split("/") if name]
    place, status = "/", os.lstat("/")
    within = []
    while rest and not stat.S_ISLNK(status.st_mode):
        try:
            below = os.lstat(os.path.join(place, rest[0]))
        except (FileNotFoundError, NotADirectoryError):
            break
        within.append((status.st_dev, status.st_ino))
        place, status = os.path.join(place, rest.pop(0)), below
    own = status.st_dev, status.st_ino
    if not rest:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
        return Identity(store=FILES, name=own, kind=kind, within=tuple(within), path=path)
    if stat.S_ISLNK(status.st_mode):
        raise InvalidPath(f"{place!r} on the way is a symbolic link, and links are not followed")
    if stat.S_ISDIR(status.st_mode):
        within.append(own)
    else:  # A file is in the way.
        place, rest = os.path.dirname(place), [os.path.basename(place), *rest]
    if _folds(place):
        rest = [unicodedata.normalize("NFC", name.casefold()) for name in rest]
    free = (*within[-1], *rest)
    return Identity(store=FILES, name=free, kind="none", within=tuple(within), path=path)


def _folds(directory: str) -> bool:
    """Whether names in a directory look case-insensitive."""
    with contextlib.suppress(OSError, ValueError):
        if sys.platform == "darwin":
            return os.pathconf(directory, _CASE_SENSITIVE) == 0
        with os.scandir(directory) as entries:
            paths = [entry.path for entry in islice(entries, _PROBES_MAX)]
        if os.lstat(directory).st_dev == os.lstat(os.path.dirname(directory)).st_dev:
            paths.append(directory)
        for path in paths:
            above, name = os.path.split(path)
            status = os.lstat(path)
            # The other name of a file with two may be an entry of its own.
            if name.isascii() and name.swapcase() != name and (status.st_nlink == 1 or stat.S_ISDIR(status.st_mode)):
                return os.path.samestat(status, os.lstat(os.path.join(above, name.swapcase())))
    return False
