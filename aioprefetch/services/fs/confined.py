"""Keys as names of files, and the walk to them that nothing escapes.

Runs of ``/`` in a key count as one and a leading ``/`` as none, so ``/a//b`` is ``a/b``. A trailing ``/`` stays: it
means the directory. Every other character is kept. ``.`` and ``..`` segments and NUL are refused, and so are the names
under which files are hidden while they are written.

A walk goes name by name, by directory descriptors, through no link.
``O_NOFOLLOW`` guards only the last name of a path, and a check of the path before its use loses against a rename in
between. So each name is opened relative to the directory before it, and a link on any of them is refused. The root
itself is the user's own configuration: links in it are followed. Hard links cannot be distinguished from files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

from aioprefetch.errors import InvalidPath

_SLASHES = re.compile(r"/{2,}")
_PARTIAL = re.compile(r"\.aioprefetch-[0-9a-f]{16}\.(?:tmp|part|done)")

# O_PATH asks for the right to search a directory, not to list it; only Linux has it.
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# How often a name may change between its opening and the look at it.
SWAPS_MAX = 3
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ConfinedRoot:
    """The root and the walk below it. All methods block: call them in a thread.

    With ``follow_symlinks`` a path is first resolved, must then lie under the resolved root, and the resolved path is
    walked as strictly as any other. That is weaker: a user who can make links below the root chooses which file under
    the root a key means.
    """

    def __init__(self, root: str, *, follow_symlinks: bool) -> None:
        self.root = root
        self.follow_symlinks = follow_symlinks

    def resolved(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """``names`` with links replaced by their targets, if links are followed. ``InvalidPath`` if outside."""
        if not self.follow_symlinks:
            return names
        base = os.path.realpath(self.root)
        try:
            target = os.path.realpath(os.path.join(base, *names))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise InvalidPath("a symbolic link on the way was replaced while it was resolved") from error
        if os.path.commonpath((base, target)) != base:
            raise InvalidPath("a symbolic link on the way leads out of the root")
        return tuple(name for name in target[len(base) :].split("/") if name)

    @contextlib.contextmanager
    def directory(self, names: Sequence[str], *, create: bool = False) -> Iterator[int]:
        """A descriptor of the directory that ``names`` lead to, for use as ``dir_fd``; closed at the end.

        With ``create`` the root and all that is missing below it are made. Raises ``OSError`` or ``InvalidPath``.
        """
        descriptor = self._open_root(create=create)
        try:
            for name in names:
                below = _enter(descriptor, name, create=create)
                descriptor, above = below, descriptor
                os.close(above)
            yield descriptor
        finally:
            os.close(descriptor)

    def device(self) -> int | None:
        """The device that the root lies on, ``None`` without a root."""
        try:
            return os.stat(self.root).st_dev
        except OSError:
            return None

    def _open_root(self, *, create: bool) -> int:
        try:
            return os.open(self.root, _SEARCH)
        except FileNotFoundError:
            if not create:
                raise
            os.makedirs(self.root, exist_ok=True)
            return os.open(self.root, _SEARCH)


def listable(directory: int) -> int:
    """Another descriptor of the same directory, with which it can be listed and synchronised."""
    return os.open(".", _LIST, dir_fd=directory)


def link_status(directory: int, name: str) -> os.stat_result | None:
    """The status of ``name`` in the directory, of a link itself; ``None`` if there is no such name."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def refuse_unless_regular(status: os.stat_result, name: str) -> None:
    """Raise unless it is a regular file: ``EISDIR`` for a directory, ``InvalidPath`` for all else."""
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(status.st_mode):
        raise InvalidPath(
            f"{name!r} is a symbolic link, and links below the root are not followed: read the file that it leads to,"
            " or give follow_symlinks=True"
        )
    raise InvalidPath(f"{name!r} is a FIFO, socket or device, not a regular file")


def _enter(directory: int, name: str, *, create: bool) -> int:
    try:
        return _open_directory(directory, name)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):  # Made by another writer in between.
        os.mkdir(name, dir_fd=directory)
    return _open_directory(directory, name)


def _open_directory(directory: int, name: str) -> int:
    for _ in range(SWAPS_MAX):
        try:
            return os.open(name, _SEARCH | os.O_NOFOLLOW, dir_fd=directory)
        except OSError as error:
            # For a link Linux says ENOTDIR here and others ELOOP.
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            status = link_status(directory, name)
            if status is not None and stat.S_ISLNK(status.st_mode):
                raise InvalidPath(f"{name!r} on the way is a symbolic link, and links are not followed") from error
            if status is not None and not stat.S_ISDIR(status.st_mode):
                raise
        # The name has changed meanwhile: look again.
    raise InvalidPath(f"{name!r} on the way keeps being replaced by something that is not a directory")


def is_partial(name: str) -> bool:
    """Whether a name is of a file that is still being written, or was left by a crash."""
    return _PARTIAL.fullmatch(name) is not None


def partial_name(token: str) -> str:
    """The name of a file being written; ``token`` is 16 hexadecimal digits."""
    return f".aioprefetch-{token}.tmp"


def resumable_name(token: str) -> str:
    """The name of a file that is received over several runs; ``token`` is 16 hexadecimal digits."""
    return f".aioprefetch-{token}.part"


def done_name(token: str) -> str:
    """The name of the note beside it: of which version it is, and which ranges it has."""
    return f".aioprefetch-{token}.done"


def is_resumable(name: str, others: Collection[str]) -> bool:
    """Whether a partial file waits for a next run to go on with it: both of a pair are there."""
    stem, _, end = name.rpartition(".")
    return end != "tmp" and f"{stem}.part" in others and f"{stem}.done" in others


def normalised(path: str) -> str:
    """A key or prefix with its slashes collapsed."""
    return _SLASHES.sub("/", path).lstrip("/")


@lru_cache(maxsize=1024)
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
