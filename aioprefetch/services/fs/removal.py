"""Directories made, and files and directories removed. Everything here blocks: call it in a thread."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from aioprefetch.errors import InvalidPath
from aioprefetch.services.fs.confined import ConfinedRoot, link_status, refuse_unless_regular
from aioprefetch.services.fs.keys import names_of
from aioprefetch.services.fs.scanning import Scan

Names = tuple[str, ...]


def make_directories(root: ConfinedRoot, names: Names) -> None:
    """Make a directory and its parents; what exists already is fine, a file in the way is not."""
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
    """Remove a file, or a directory below which no file is; what is missing is no error.

    A link is refused, or with ``follow_symlinks`` removed itself.
    """
    try:
        # The last name is never resolved: what is removed is a name, not what it leads to.
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
        found = names_of(entry.path)
        below |= {found[:length] for length in range(len(names) + 1, len(found) + 1)}
    for directory in sorted(below, key=len, reverse=True):
        with contextlib.suppress(FileNotFoundError), root.directory(root.resolved(directory[:-1])) as parent:
            os.rmdir(directory[-1], dir_fd=parent)
