"""Directories: the entries below a prefix in the order of their keys; directories made, files and directories removed.

All of it blocks: call it in a thread. A listing goes one directory at a time.

Memory holds the names of the directories between the prefix and the current entry, and of no other. Only files and
directories appear: no FIFOs, sockets or devices, and no file that is still being written; those that a
killed writer left behind are removed. Where reads follow links, those that lead to a file below the root appear as that
file. Other links are counted and passed over, those to directories always: they may lead in circles. With ``recursive``
the entries are the files, and the directories that are empty: like a directory made by hand in a store without real
ones, they would be lost otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from itertools import islice

from aioprefetch.errors import InvalidPath
from aioprefetch.services.fs.confined import (
    ConfinedRoot,
    is_partial,
    link_status,
    listable,
    names_of,
    refuse_unless_regular,
)
from aioprefetch.services.fs.open_file import etag_of, modified_at
from aioprefetch.services.fs.writer import remove_abandoned
from aioprefetch.values import Entry

STAT_BATCH = 256

Names = tuple[str, ...]
_GONE = (FileNotFoundError, NotADirectoryError)


class Scan:
    """An iterator over the entries whose key begins with ``prefix`` and is above ``after``. It blocks.

    ``prefix`` has its slashes collapsed already. Between two entries it holds no descriptor, so it may be left
    anywhere. Raises ``OSError`` or ``InvalidPath``.
    """

    # The first entry of the rest, once it was asked whether there is a rest.
    _following: Entry | None = None

    def __init__(self, root: ConfinedRoot, prefix: str, *, recursive: bool, after: str) -> None:
        folder, _, self._beginning = prefix.rpartition("/")
        self._root = root
        self._base = names_of(folder, operation="list")
        self._recursive = recursive
        self._after = after
        self._stack = [self._directory(self._base)]
        self._links: list[str] = []

    def page(self, limit: int) -> tuple[tuple[Entry, ...], tuple[str, ...], bool]:
        """The next entries, the links that were passed over on the way, and whether there are more entries."""
        entries = tuple(islice(self, limit))
        self._following = next(self, None)
        links, self._links = tuple(self._links), []
        return entries, links, self._following is not None

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        following, self._following = self._following, None
        if following is not None:
            return following
        while self._stack:
            item = next(self._stack[-1], None)
            if isinstance(item, Entry):
                return item
            if item is None:
                self._stack.pop()
            else:
                self._stack.append(self._directory(item))
        raise StopIteration

    def _directory(self, names: Names) -> Iterator[Entry | Names]:
        """The entries of one directory, and in their place the directories to go into."""
        is_base = names == self._base
        key = "".join(f"{name}/" for name in names)
        try:
            children, is_empty = self._children(names, self._beginning if is_base else "")
        except _GONE:
            return
        except InvalidPath:  # A link has taken the place of the directory.
            if is_base:
                raise
            return
        if is_empty and not is_base and key > self._after:
            yield Entry(path=key, kind="directory")
        wanted = (child for child in children if self._is_wanted(key + child))
        while batch := list(islice(wanted, STAT_BATCH)):
            for child, status in zip(batch, self._statuses(names, batch), strict=True):
                if status is not None and stat.S_ISLNK(status.st_mode):
                    status = self._status_of_target((*names, child))
                    if status is None:
                        self._links.append(key + child)
                if child.endswith("/"):
                    yield (*names, child[:-1]) if self._recursive else Entry(path=key + child, kind="directory")
                elif status is not None and stat.S_ISREG(status.st_mode):
                    yield Entry(
                        path=key + child,
                        size=status.st_size,
                        etag=etag_of(status),
                        last_modified=modified_at(status),
                    )

    def _is_wanted(self, key: str) -> bool:
        return key > self._after or (self._recursive and key.endswith("/") and self._after.startswith(key))

    def _children(self, names: Names, beginning: str) -> tuple[list[str], bool]:
        """The names in a directory in the order of their keys, and whether it counts as empty: links are passed over.

        The names of directories end with ``/``.
        """
        children: list[str] = []
        links = 0
        partial: list[str] = []
        with self._root.directory(self._resolved(names)) as directory:
            descriptor = listable(directory)
        try:
            with os.scandir(descriptor) as scanned:
                for child in scanned:
                    if is_partial(child.name):
                        partial.append(child.name)
                    elif child.is_dir(follow_symlinks=False):
                        children.append(f"{child.name}/")
                    elif child.is_symlink():
                        children.append(child.name)
                        links += not self._root.follow_symlinks
                    elif child.is_file(follow_symlinks=False):
                        children.append(child.name)
            if partial:
                remove_abandoned(descriptor, partial)
        finally:
            os.close(descriptor)
        return sorted(child for child in children if child.startswith(beginning)), len(children) == links

    def _statuses(self, names: Names, batch: list[str]) -> list[os.stat_result | None]:
        """The status of each file of a batch, ``None`` for directories and for files that were deleted."""
        if all(child.endswith("/") for child in batch):
            return [None] * len(batch)
        with contextlib.suppress(InvalidPath, *_GONE), self._root.directory(self._resolved(names)) as directory:
            return [None if child.endswith("/") else link_status(directory, child) for child in batch]
        return [None] * len(batch)

    def _status_of_target(self, names: Names) -> os.stat_result | None:
        """The status of the file that a link leads to, ``None`` if it is not followed, or leads to no file."""
        if not self._root.follow_symlinks:
            return None
        with contextlib.suppress(InvalidPath, OSError):
            target = self._root.resolved((*self._root.resolved(self._base), *names[len(self._base) :]))
            with self._root.directory(target[:-1]) as directory:
                status = link_status(directory, target[-1]) if target else None
            return status if status is not None and stat.S_ISREG(status.st_mode) else None
        return None

    def _resolved(self, names: Names) -> Names:
        # Only the prefix of the caller may lead through a link; the directories below were found to be none.
        base = self._root.resolved(self._base)
        return (*base, *names[len(self._base) :])


def make_directories(root: ConfinedRoot, names: Names) -> None:
    """Make a directory and its parents. An existing directory is kept; an existing file is an error."""
    names = root.resolved(names)
    with root.directory(names[:-1], create=True) as directory:
        if not names:
            return
        try:
            os.mkdir(names[-1], dir_fd=directory)
        except FileExistsError:
            status = link_status(directory, names[-1])
            if status is not None and stat.S_ISDIR(status.st_mode):
                return
            if status is not None and stat.S_ISLNK(status.st_mode):
                raise InvalidPath(f"{names[-1]!r} is a symbolic link, and links are not followed") from None
            raise


def remove(root: ConfinedRoot, names: Names, *, directory: bool) -> None:
    """Remove a file, or a directory without files. A missing one is ignored.

    A link is refused, or with ``follow_symlinks`` removed itself.
    """
    try:
        # The last name is never resolved: a link itself is removed, not its target.
        with root.directory(root.resolved(names[:-1])) as parent:
            status = link_status(parent, names[-1])
            if status is None:
                return
            is_directory = stat.S_ISDIR(status.st_mode)
            if not directory:
                if not (root.follow_symlinks and stat.S_ISLNK(status.st_mode)):
                    refuse_unless_regular(status, names[-1])
                os.unlink(names[-1], dir_fd=parent)
                return
            if not is_directory:
                return
            try:
                os.rmdir(names[-1], dir_fd=parent)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        _remove_empty_directories(root, names)
    except (FileNotFoundError, NotADirectoryError):
        return


def _remove_empty_directories(root: ConfinedRoot, names: Names) -> None:
    """Remove a directory that holds nothing but directories: elsewhere those are gone with their last object."""
    below = {names}
    for entry in Scan(root, "".join(f"{name}/" for name in names), recursive=True, after=""):
        if not entry.is_directory:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        file_names = names_of(entry.path)
        below |= {file_names[:length] for length in range(len(names) + 1, len(file_names) + 1)}
    for directory in sorted(below, key=len, reverse=True):
        with contextlib.suppress(FileNotFoundError), root.directory(root.resolved(directory[:-1])) as parent:
            os.rmdir(directory[-1], dir_fd=parent)
