"""The directory of entries: private, held by a descriptor, entered through no link that others could plant.

Below the configured directory lies a private one, ``aioprefetch-blocks-<uid>``. It belongs to our user and is closed
to all others (0700), so the configured one may be shared (``/tmp``) or belong to another user. Everything happens
relative to its descriptor: renaming or replacing a directory on the way moves nothing.

A file that is being written has a temporary name, ``.tmp-<pid>-<process token>-<random>``. A killed process leaves its
file behind, and the next one that opens the directory removes it. The numbers of processes are used again, in
containers at once, hence the token; and they mean nothing in another container, hence the limit on the age.

An entry that is being made is **claimed** by a file of its name with ``.claim`` behind it, on which its maker holds a
lock (``flock``). The kernel takes the lock from a process that dies, at whatever moment, so no time limit and no number
of a process decides whether a claim holds; it works between containers, and between two runtimes of one process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from aioprefetch.cache.entry import BadEntry
from aioprefetch.errors import ConfigInvalid
from aioprefetch.runtime.page_cache import KNOWS_NOWAIT, NOWAIT, answers, can_open, open_below

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_ENTER = os.O_RDONLY | os.O_DIRECTORY
# The configured directory may be one that we may not list.
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
# O_NONBLOCK: a FIFO under the name of a block must not make us wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
# The errors of opening a link, a socket or a device without a driver.
_NO_FILE = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_CLAIM = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
# The end of the name of a claim.
CLAIM = ".claim"
# Another process may remove the file of a claim between the moment at which it is opened and that of the lock.
_CLAIM_TRIES = 8

# No write takes that long: an older temporary file is a leftover, even if a process has its number again.
ABANDONED_SECONDS = 3600.0

_NAME = re.compile(r"\.tmp-([1-9][0-9]{0,18})-([0-9a-f]{8})-[0-9a-f]{16}")
_token = secrets.token_hex(4)
_of_this_process: weakref.WeakSet[Descriptor] = weakref.WeakSet()


def _close_in_child() -> None:
    for descriptor in tuple(_of_this_process):
        number, descriptor.number = descriptor.number, -1
        os.close(number)


os.register_at_fork(after_in_child=_close_in_child)


class SystemCalls:
    """The system calls of the disk tier in one place, so that a test may let any of them fail, short-write or hang.

    Every method may raise ``OSError``, and blocks unless it says otherwise.
    """

    def open(self, name: str, flags: int, mode: int = 0o600, *, directory: int | None = None) -> int:
        """Open a path, or a name in a directory; returns the descriptor."""
        return os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=directory)

    def close(self, descriptor: int) -> None:
        """Close a descriptor. May raise the error of an earlier write."""
        os.close(descriptor)

    def make_directory(self, name: str, mode: int, *, directory: int) -> None:
        """Make a directory in a directory."""
        os.mkdir(name, mode, dir_fd=directory)

    def change_mode(self, descriptor: int, mode: int) -> None:
        """Set the permissions regardless of the umask."""
        os.fchmod(descriptor, mode)

    def status(self, descriptor: int) -> os.stat_result:
        """The status of an open file or directory."""
        return os.fstat(descriptor)

    def status_of(self, name: str, *, directory: int) -> os.stat_result:
        """The status of a name in a directory; of a link itself, not of its target."""
        return os.stat(name, dir_fd=directory, follow_symlinks=False)

    def names(self, directory: int) -> list[str]:
        """The names in a directory."""
        # Listed by a descriptor of its own: two listings of one would share their position.
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview]) -> int:
        """Write as much of the parts as possible; returns the number of bytes."""
        return os.writev(descriptor, parts)

    def read(self, descriptor: int, parts: Sequence[bytearray | memoryview], position: int) -> int:
        """Read as much as possible into the parts, in order; returns the number of bytes, 0 at the end."""
        return os.preadv(descriptor, parts, position)

    def open_cached(self, name: str, *, directory: int) -> int | None:
        """Open a name in our directory for reading if it is in the kernel's memory, else ``None``. Never waits."""
        return open_below(directory, name)

    def read_cached(self, descriptor: int, buffer: memoryview, position: int) -> int:
        """Read what the kernel has in memory; ``BlockingIOError`` for nothing. Never waits."""
        return os.preadv(descriptor, [buffer], position, NOWAIT)

    def answers_from_memory(self, descriptor: int) -> bool:
        """Whether ``open_cached`` and ``read_cached`` may succeed on the file system of an open file. May wait."""
        return KNOWS_NOWAIT and can_open() and answers(descriptor, self.read_cached)

    def touch(self, name: str, seconds: float, *, directory: int) -> None:
        """Set the times of a name in a directory, in seconds since 1970."""
        os.utime(name, (seconds, seconds), dir_fd=directory, follow_symlinks=False)

    def lock(self, descriptor: int) -> None:
        """Lock an open file for this descriptor alone; ``BlockingIOError`` if another one has it. Never waits."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def rename(self, old: str, new: str, *, directory: int) -> None:
        """Rename a file within a directory, replacing a file of the new name."""
        os.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)

    def remove(self, name: str, *, directory: int) -> None:
        """Remove a name from a directory."""
        os.unlink(name, dir_fd=directory)

    def remove_directory(self, name: str, *, directory: int) -> None:
        """Remove an empty directory from a directory."""
        os.rmdir(name, dir_fd=directory)

    def space(self, directory: int) -> tuple[int, int]:
        """Bytes free to our user on the file system of a directory, and bytes in all."""
        status = os.fstatvfs(directory)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def seconds(self) -> float:
        """A monotonic clock in seconds, for measuring durations only."""
        return time.monotonic()

    def is_alive(self, process: int) -> bool:
        """Whether a process of this number exists."""
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True
        return True


def drop_moved(parts: Iterable[bytes | bytearray | memoryview], count: int) -> list[memoryview]:
    """The rest of ``parts`` after ``count`` bytes of them were written or read."""
    left: list[memoryview] = []
    for part in parts:
        if count < len(part):
            left.append(memoryview(part)[count:])
        count = max(0, count - len(part))
    return left


class Descriptor:
    """An open descriptor, closed with the last reference to it: an abandoned thread may hold that.

    ``closes_in_children``: a process that is forked does not keep it open, and with it the lock on its file.
    """

    __slots__ = ("__weakref__", "_calls", "number")

    def __init__(self, number: int, calls: SystemCalls, *, closes_in_children: bool = False) -> None:
        self.number = number
        self._calls = calls
        if closes_in_children:
            _of_this_process.add(self)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._calls.close(self.number)


class GuardedDirectory:
    """The private directory below ``path``, created if it is missing. All methods block, except ``open_now``.

    ``answers`` says whether its files may be read without waiting, from the memory of the kernel; ``None`` before
    ``learn`` has looked at one of them.

    Raises ``ConfigInvalid`` for a directory that others could change, ``OSError`` for one that cannot be used.
    """

    def __init__(self, path: str, calls: SystemCalls) -> None:
        self.path = path
        self.calls = calls
        self.answers: bool | None = None
        above = self._open(path, _SEARCH)
        try:
            self._held = Descriptor(self._enter(above, f"aioprefetch-blocks-{os.geteuid()}", _ENTER), calls)
        finally:
            calls.close(above)
        self._check_private()

    def _open(self, path: str, flags: int) -> int:
        """A descriptor of the directory; missing ones are created. Links are followed, except for the last name."""
        try:
            return self.calls.open(path, flags | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._refused(path, error) from error
        whole = PurePosixPath(path)
        try:
            above = self.calls.open(str(whole.parent), _SEARCH)
        except FileNotFoundError:
            above = self._open(str(whole.parent), _SEARCH)
        try:
            return self._enter(above, whole.name, flags)
        finally:
            self.calls.close(above)

    def _enter(self, above: int, name: str, flags: int) -> int:
        is_new = True
        try:
            self.calls.make_directory(name, DIRECTORY_MODE, directory=above)
        except FileExistsError:
            is_new = False
        try:
            below = self.calls.open(name, (_ENTER if is_new else flags) | os.O_NOFOLLOW, directory=above)
        except OSError as error:
            raise self._refused(name, error) from error
        if is_new:
            try:
                self.calls.change_mode(below, DIRECTORY_MODE)
            except BaseException:
                self.calls.close(below)
                raise
        return below

    def _refused(self, name: str, error: OSError) -> Exception:
        # For a link Linux says ENOTDIR here and others ELOOP.
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            return error
        return ConfigInvalid(
            f"disk_cache={self.path!r}: {name!r} is a symbolic link or not a directory; give the directory itself",
            operation="configure",
        )

    def _check_private(self) -> None:
        status = self.calls.status(self._held.number)
        if status.st_uid != os.geteuid():
            raise ConfigInvalid(
                f"disk_cache={self.path!r}: the directory for blocks in it belongs to user {status.st_uid}, not to"
                f" user {os.geteuid()}; remove it, or give another directory",
                operation="configure",
            )
        if status.st_mode & _WRITABLE_BY_OTHERS:
            raise ConfigInvalid(
                f"disk_cache={self.path!r}: others may write into the directory for blocks in it"
                f" (mode {stat.S_IMODE(status.st_mode):o}); what is in it cannot be trusted, remove it",
                operation="configure",
            )
        if stat.S_IMODE(status.st_mode) != DIRECTORY_MODE:
            self.calls.change_mode(self._held.number, DIRECTORY_MODE)

    # --- names and files ------------------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """Whether the directory was removed: open files in it live on, but none can be created."""
        return self.calls.status(self._held.number).st_nlink == 0

    @property
    def changed_at(self) -> int:
        """When a name was last added or removed, in nanoseconds of the file system's clock."""
        return self.calls.status(self._held.number).st_mtime_ns

    def space(self) -> tuple[int, int]:
        """Bytes free to our user on the file system, and bytes in all."""
        return self.calls.space(self._held.number)

    def names(self) -> list[str]:
        """The names in it."""
        return self.calls.names(self._held.number)

    def status_of(self, name: str) -> os.stat_result:
        """The status of a name in it."""
        return self.calls.status_of(name, directory=self._held.number)

    def open(self, name: str) -> tuple[Descriptor, int]:
        """A regular file of our user, open for reading, and its size. ``BadEntry`` for anything else of that name."""
        try:
            descriptor = Descriptor(self.calls.open(name, _READ, directory=self._held.number), self.calls)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise BadEntry(f"it is not a regular file: {error.strerror}") from error
            raise
        return descriptor, self._checked_size(descriptor)

    def open_now(self, name: str) -> tuple[Descriptor, int] | None:
        """``open`` without waiting; ``None`` if the name is not in the memory of the kernel or cannot be opened."""
        number = self.calls.open_cached(name, directory=self._held.number)
        if number is None:
            return None
        descriptor = Descriptor(number, self.calls)
        return descriptor, self._checked_size(descriptor)

    def _checked_size(self, descriptor: Descriptor) -> int:
        status = self.calls.status(descriptor.number)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise BadEntry("it is not a regular file of this user")
        return status.st_size

    def learn(self, descriptor: Descriptor) -> None:
        """Find out by an open file whether files here may be read without waiting, unless that is known."""
        if self.answers is None:
            with contextlib.suppress(OSError):
                self.answers = self.calls.answers_from_memory(descriptor.number)

    def touch(self, name: str, seconds: float) -> None:
        """Set the times of a file; one that is missing, or whose times cannot be set, is ignored."""
        with contextlib.suppress(OSError):  # On a read-only file system the order is that of this process alone.
            self.calls.touch(name, seconds, directory=self._held.number)

    def create(self, name: str) -> int:
        """Create a file; returns the descriptor. ``FileExistsError`` if anything has that name."""
        return self.calls.open(name, _CREATE, FILE_MODE, directory=self._held.number)

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        self.calls.rename(old, new, directory=self._held.number)

    def remove(self, name: str) -> None:
        """Remove a name. A missing name, or one that cannot be removed, is ignored."""
        with contextlib.suppress(FileNotFoundError):
            try:
                self.calls.remove(name, directory=self._held.number)
            except (IsADirectoryError, PermissionError):  # For a directory Linux says EISDIR, others EPERM.
                with contextlib.suppress(OSError):
                    self.calls.remove_directory(name, directory=self._held.number)

    def claim(self, name: str) -> Descriptor | None:
        """Claim an entry: its lock, held as long as the descriptor lives; ``None`` if another one has it."""
        for _ in range(_CLAIM_TRIES):
            number = self.calls.open(name + CLAIM, _CLAIM, FILE_MODE, directory=self._held.number)
            claim = Descriptor(number, self.calls, closes_in_children=True)
            try:
                self.calls.lock(number)
            except BlockingIOError:
                return None
            if self.calls.status(number).st_nlink:
                return claim
        return None

    def size_of(self, name: str) -> int | None:
        """The size of a file, ``None`` if there is none."""
        try:
            return self.status_of(name).st_size
        except FileNotFoundError:
            return None


def temporary_name() -> str:
    """An unguessable name for a temporary file of this process."""
    return f".tmp-{os.getpid()}-{_token}-{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    """Whether a name is that of a temporary file."""
    return _NAME.fullmatch(name) is not None


def is_abandoned(name: str, status: os.stat_result, *, now: float, is_alive: Callable[[int], bool]) -> bool:
    """Whether to remove a temporary file: a regular file of our user whose writer is gone."""
    match = _NAME.fullmatch(name)
    if match is None or not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if abs(now - status.st_mtime) > ABANDONED_SECONDS:
        return True
    process, token = int(match[1]), match[2]
    return token != _token if process == os.getpid() else not is_alive(process)
