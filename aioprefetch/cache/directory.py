"""The directory of entries: private, held by a descriptor, entered through no link that others could plant.

Below the configured directory lies a private one, ``aioprefetch-blocks-<uid>``. It belongs to our user and is closed
to all others (0700), so the configured one may be shared (``/tmp``) or belong to another user. Everything happens
relative to its descriptor: renaming or replacing a directory on the way moves nothing.

An entry that is being made is **claimed** by a file of its name with ``.claim`` behind it, on which its maker holds a
lock (``flock``) from before its data are fetched until they are written into it and it is renamed. The kernel takes the
lock from a process that dies, at any moment: no time limit and no number of a process decides whether a claim
holds, and it works between containers, and between two runtimes of one process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
import weakref
from collections.abc import Sequence
from pathlib import PurePosixPath

from aioprefetch.cache.entry import BadEntry
from aioprefetch.errors import ConfigInvalid
from aioprefetch.runtime.page_cache import KNOWS_NOWAIT, NOWAIT, answers, can_open, open_below

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
# The end of the name of a claim.
CLAIM = ".claim"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# We may lack permission to list the configured directory.
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
# O_NONBLOCK: a FIFO under the name of an entry must not make us wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_CLAIM = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
# The errors of opening a link, a socket or a device without a driver, and of a directory to be written.
_NO_FILE = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP, errno.EISDIR)
# The file of a claim may be renamed or removed after it was opened and before it is locked.
_CLAIM_TRIES = 8


class SystemCalls:
    """The system calls of the files in one place, so that a test may let any of them fail, short-write or hang.

    Every call may raise ``OSError``, and blocks, except for those on what is cached.
    """

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    make_directory = staticmethod(os.mkdir)
    change_mode = staticmethod(os.fchmod)
    status = staticmethod(os.fstat)
    status_of = staticmethod(os.stat)
    write = staticmethod(os.writev)
    truncate = staticmethod(os.ftruncate)
    read = staticmethod(os.preadv)
    lock = staticmethod(fcntl.flock)
    touch = staticmethod(os.utime)
    rename = staticmethod(os.rename)
    remove = staticmethod(os.unlink)
    remove_directory = staticmethod(os.rmdir)
    space = staticmethod(os.fstatvfs)
    seconds = staticmethod(time.monotonic)
    open_cached = staticmethod(open_below)

    def names(self, directory: int) -> list[str]:
        """The names in an open directory."""
        return os.listdir(directory)

    def read_cached(self, descriptor: int, parts: Sequence[bytearray | memoryview], position: int) -> int:
        """Read what the kernel has in memory; ``BlockingIOError`` for nothing. Never waits."""
        return os.preadv(descriptor, parts, position, NOWAIT)

    def answers_from_memory(self, descriptor: int) -> bool:
        """Whether the calls on what is cached may succeed on the file system of an open file. May wait."""
        read = self.read_cached
        return KNOWS_NOWAIT and can_open() and answers(descriptor, lambda number, part, at: read(number, [part], at))


class Descriptor:
    """An open descriptor, closed with the last reference to it: an abandoned thread may hold that."""

    __slots__ = ("__weakref__", "_calls", "number")

    def __init__(self, number: int, calls: SystemCalls) -> None:
        self.number = number
        self._calls = calls

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._calls.close(self.number)


_claims: weakref.WeakSet[Descriptor] = weakref.WeakSet()


def _close_in_child() -> None:
    """A process that is forked keeps no lock of its parent."""
    for claim in tuple(_claims):
        number, claim.number = claim.number, -1
        os.close(number)


os.register_at_fork(after_in_child=_close_in_child)


class GuardedDirectory:
    """The private directory below ``path``, created if it is missing. All methods block, except ``open_now``.

    ``answers`` says whether its files may be read without waiting, from the memory of the kernel; ``None`` before
    ``learn`` has looked at one of them.

    Raises ``ConfigInvalid`` for a directory that others could change, ``OSError`` for an unusable directory.
    """

    def __init__(self, path: str, calls: SystemCalls) -> None:
        self.path = path
        self.calls = calls
        self.answers: bool | None = None
        above = self._open(path, _SEARCH | os.O_NOFOLLOW)
        try:
            self._held = Descriptor(self._enter(above, f"aioprefetch-blocks-{os.geteuid()}", _ENTER), calls)
        finally:
            calls.close(above)
        self._number = self._held.number
        self._check_private()

    def _open(self, path: str, flags: int) -> int:
        """A descriptor of the directory; missing ones are created. Links are followed, except for the last name."""
        try:
            return self.calls.open(path, flags)
        except FileNotFoundError:
            whole = PurePosixPath(path)
        except OSError as error:
            raise self._refused(path, error) from error
        above = self._open(str(whole.parent), _SEARCH)
        try:
            return self._enter(above, whole.name, flags)
        finally:
            self.calls.close(above)

    def _enter(self, above: int, name: str, flags: int) -> int:
        is_new = True
        try:
            self.calls.make_directory(name, DIRECTORY_MODE, dir_fd=above)
        except FileExistsError:
            is_new = False
        try:
            below = self.calls.open(name, _ENTER if is_new else flags | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            raise self._refused(name, error) from error
        if is_new:
            try:
                self.calls.change_mode(below, DIRECTORY_MODE)  # Regardless of the umask.
            except BaseException:
                self.calls.close(below)
                raise
        return below

    def _refused(self, name: str, error: OSError) -> Exception:
        # For a link Linux says ENOTDIR here and others ELOOP.
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            return error
        return self._invalid(f"{name!r} is a symbolic link or not a directory; give the directory itself")

    def _invalid(self, why: str) -> ConfigInvalid:
        return ConfigInvalid(f"disk_cache={self.path!r}: {why}", operation="configure")

    def _check_private(self) -> None:
        status = self.calls.status(self._number)
        if status.st_uid != os.geteuid():
            raise self._invalid(
                f"the directory for blocks in it belongs to user {status.st_uid}, not to user {os.geteuid()}; remove"
                " it, or give another directory"
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & _WRITABLE_BY_OTHERS:
            raise self._invalid(
                f"others may write into the directory for blocks in it (mode {mode:o}); what is in it cannot be"
                " trusted, remove it"
            )
        if mode != DIRECTORY_MODE:
            self.calls.change_mode(self._number, DIRECTORY_MODE)

    # --- names and files ------------------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """Whether the directory was removed: open files in it live on, but none can be created."""
        return self.calls.status(self._number).st_nlink == 0

    @property
    def changed_at(self) -> int:
        """When a name was last added or removed, in nanoseconds of the file system's clock."""
        return self.calls.status(self._number).st_mtime_ns

    def space(self) -> tuple[int, int]:
        """Bytes free to our user on the file system, and bytes in all."""
        status = self.calls.space(self._number)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def names(self) -> list[str]:
        """The names in it."""
        return self.calls.names(self._number)

    def status_of(self, name: str) -> os.stat_result | None:
        """The status of a name in it, not of a link's target; ``None`` if it is missing."""
        try:
            return self.calls.status_of(name, dir_fd=self._number, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str) -> tuple[Descriptor, int]:
        """A regular file of our user, open for reading, and its size. ``BadEntry`` for anything else of that name."""
        return self._checked(self._opened(name, _READ))

    def open_now(self, name: str) -> tuple[Descriptor, int] | None:
        """``open`` without waiting; ``None`` if the name is not in the memory of the kernel or cannot be opened."""
        number = self.calls.open_cached(self._number, name)
        return None if number is None else self._checked(Descriptor(number, self.calls))

    def _opened(self, name: str, flags: int) -> Descriptor:
        try:
            return Descriptor(self.calls.open(name, flags, FILE_MODE, dir_fd=self._number), self.calls)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise BadEntry(f"it is not a regular file: {error.strerror}") from error
            raise

    def _checked(self, held: Descriptor) -> tuple[Descriptor, int]:
        status = self.calls.status(held.number)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise BadEntry("it is not a regular file of this user")
        return held, status.st_size

    def learn(self, descriptor: Descriptor) -> None:
        """Find out by an open file whether files here may be read without waiting, unless that is known."""
        if self.answers is None:
            with contextlib.suppress(OSError):
                self.answers = self.calls.answers_from_memory(descriptor.number)

    def touch(self, name: str, seconds: float) -> None:
        """Set the times of a file. Does nothing if the file is missing, or its times cannot be set."""
        with contextlib.suppress(OSError):  # On a read-only file system only this process knows the order.
            self.calls.touch(name, (seconds, seconds), dir_fd=self._number, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a name. Does nothing if it is missing or cannot be removed."""
        with contextlib.suppress(FileNotFoundError):
            try:
                self.calls.remove(name, dir_fd=self._number)
            except (IsADirectoryError, PermissionError):  # For a directory Linux says EISDIR, others EPERM.
                with contextlib.suppress(OSError):
                    self.calls.remove_directory(name, dir_fd=self._number)

    # --- claims -----------------------------------------------------------------------------------------------------

    def claim(self, name: str) -> Descriptor | None:
        """Claim an entry: its file, locked as long as the descriptor lives; ``None`` if another one has it."""
        claim_name = name + CLAIM
        for _ in range(_CLAIM_TRIES):
            try:
                claim = self._opened(claim_name, _CLAIM)
                self._checked(claim)
            except BadEntry:  # Something else of that name.
                self.remove(claim_name)
                continue
            _claims.add(claim)
            try:
                self.calls.lock(claim.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                named, held = self.status_of(claim_name), self.calls.status(claim.number)
                if named is not None and named.st_ino == held.st_ino:
                    self.calls.change_mode(claim.number, FILE_MODE)  # Regardless of the umask.
                    return claim
            except BlockingIOError:
                return None
            except OSError:
                self.remove(claim_name)
                raise
        return None

    def fulfil(self, name: str) -> None:
        """Make the file of a claim that is held the entry."""
        self.calls.rename(name + CLAIM, name, src_dir_fd=self._number, dst_dir_fd=self._number)
