"""A file, or a link itself, gets another name: by ``rename``, or by a copy to another file system.

Interrupted anywhere, it leaves the file whole under one of the two names or both, and a further run ends it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading

from aioprefetch.accessor.service_base import EXISTS_ALREADY
from aioprefetch.errors import AlreadyExists, IsSameFile, NotFound
from aioprefetch.local_files.errors import naming
from aioprefetch.local_files.files import (
    ConfinedRoot,
    OpenedFile,
    link_status,
    listable,
    metadata_of,
    open_entry,
    partial_name,
    refuse_unless_matching,
    refuse_unless_regular,
    sync_directory,
)
from aioprefetch.local_files.writer import PIECE_BYTES, PartialFile, link_new, machine_token
from aioprefetch.values import Metadata, RenameRequest, WriteRequest

Names = tuple[str, ...]
Place = tuple[int, str]  # A directory, and a name in it.
LINKS_MAX = 40  # Linux follows as many.


def rename(
    root: ConfinedRoot,
    names: Names,
    target_names: Names,
    request: RenameRequest,
    lock: threading.Lock,
    stop: threading.Event,
    *,
    fsync: bool,
) -> Metadata | None:
    """Rename a file or a link; ``None`` for a file that has to be copied to another file system. It blocks.

    ``lock`` makes it one step among the writers of this runtime. ``stop`` ends a comparison whose caller has gone.
    """
    with lock, contextlib.ExitStack() as stack:
        with naming("stat", request.path):
            source = stack.enter_context(root.directory(root.resolved(names[:-1]))), names[-1]
            status = link_status(*source)
            if status is None:
                raise NotFound("there is no such file")
            refuse_unless_regular(status, names[-1], may_be_link=True)
            refuse_unless_matching(request.if_match, *source)
        with naming("rename", request.target):
            above = root.directory(root.resolved(target_names[:-1]), create=True)
            target = stack.enter_context(above), target_names[-1]
            there, is_new = link_status(*target), request.if_not_exists
            if there is not None and not os.path.samestat(there, status):
                if _leads_to(*source, there):
                    raise IsSameFile("the link leads to the target, and would take its place")
                if not _is_moved_copy(source, status, target, there, stop):
                    refuse_unless_regular(there, target[1], may_be_link=root.follow_symlinks)
                    if is_new:
                        raise AlreadyExists(EXISTS_ALREADY)
                    there = None
            elif there is not None and _is_one_entry(source, target):
                there, is_new = None, False
            if there is not None:  # It has the name: one more of the file, or by a run that was killed before this.
                _remove(source, status)
            elif not _take_name(source, status, target, is_new=is_new):
                return None
            for directory in (target[0], source[0]) if fsync else ():
                sync_directory(directory)
    renamed = there or status
    return metadata_of(request.target, renamed) if stat.S_ISREG(renamed.st_mode) else Metadata(path=request.target)


def _take_name(source: Place, status: os.stat_result, target: Place, *, is_new: bool) -> bool:
    """Rename; ``False`` for a file of another file system. A link is made again there."""
    try:
        if not is_new:
            os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])
            return True
        link_new(*source, *target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if stat.S_ISREG(status.st_mode):
            return False
        _link_again(source, target, is_new=is_new)
    _remove(source, status)
    return True


def _remove(source: Place, status: os.stat_result) -> None:
    """Remove a name, unless another file was put there meanwhile."""
    now = link_status(*source)
    if now is not None and os.path.samestat(now, status):
        os.unlink(source[1], dir_fd=source[0])


def _link_again(source: Place, target: Place, *, is_new: bool) -> None:
    directory, hidden = target[0], partial_name(machine_token() + secrets.token_hex(4))
    os.symlink(os.readlink(source[1], dir_fd=source[0]), hidden, dir_fd=directory)
    try:
        made = os.stat(hidden, dir_fd=directory, follow_symlinks=False)
        _take_name((directory, hidden), made, target, is_new=is_new)
    except BaseException:
        os.unlink(hidden, dir_fd=directory)
        raise
    sync_directory(directory)


def _is_one_entry(source: Place, target: Place) -> bool:
    """Whether two names of a file, perhaps hard links, are two spellings of one entry. ``IsSameFile`` if they are one.

    If that cannot be seen they are: a rename does nothing to hard links.
    """
    if not os.path.samestat(os.fstat(source[0]), os.fstat(target[0])):
        return False
    if source[1] == target[1]:
        raise IsSameFile("source and target are one file")
    with contextlib.suppress(PermissionError), listable(source[0]) as descriptor:
        return not {source[1], target[1]} <= set(os.listdir(descriptor))
    return True


def _leads_to(directory: int, name: str, wanted: os.stat_result) -> bool:
    """Whether the name is of a link that leads to this file or link, perhaps by way of others."""
    with contextlib.suppress(OSError):
        for _ in range(LINKS_MAX):
            name = os.path.join(os.path.dirname(name), os.readlink(name, dir_fd=directory))
            if os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), wanted):
                return True
    return False


def _is_moved_copy(
    source: Place, status: os.stat_result, target: Place, there: os.stat_result, stop: threading.Event
) -> bool:
    """Whether the target is what a run that was killed has made of the source on another file system."""

    def kept(status: os.stat_result) -> tuple[int, int, int]:
        is_file = stat.S_ISREG(status.st_mode)
        return status.st_mode & 0o170777, status.st_size, is_file and status.st_mtime_ns

    if kept(there) != kept(status):
        return False
    try:  # It fails anyway, and says whether the directory is of another one.
        os.rename(source[1], ".", src_dir_fd=source[0], dst_dir_fd=target[0])
    except OSError as error:
        if error.errno != errno.EXDEV:
            return False
    sync_directory(target[0])
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(source[1], dir_fd=source[0]) == os.readlink(target[1], dir_fd=target[0])
    with contextlib.closing(open_entry(*source)) as one, contextlib.closing(open_entry(*target)) as other:
        for start in range(0, status.st_size, PIECE_BYTES):
            count = min(PIECE_BYTES, status.st_size - start)
            if stop.is_set() or one.read(start, count) != other.read(start, count):
                return False
    return True


class MovedFile(PartialFile):
    """The copy of a file on another file system, with its permissions and times; once in place it ends the old name."""

    def __init__(
        self, root: ConfinedRoot, names: Names, target: Names, request: WriteRequest, source: OpenedFile
    ) -> None:
        with root.directory(root.resolved(target[:-1]), create=True) as directory:
            super().__init__(os.dup(directory), target[-1], request, fsync=True)
        self._root, self._names, self._source = root, names, source
        self._replaces_links = root.follow_symlinks

    def place(self, lock: threading.Lock) -> os.stat_result:
        """As ``PartialFile.place``. ``ObjectChanged`` if the source was changed meanwhile: then both names stay."""
        read = self._source.status
        self._mode = read.st_mode & 0o777
        os.utime(self.descriptor, ns=(read.st_atime_ns, read.st_mtime_ns))
        placed = super().place(lock)
        above = self._root.directory(self._root.resolved(self._names[:-1]))
        with naming("rename", "/".join(self._names)), lock, above as directory:
            self._source.check(os.stat(self._names[-1], dir_fd=directory, follow_symlinks=False))
            os.unlink(self._names[-1], dir_fd=directory)
            sync_directory(directory)
        return placed
