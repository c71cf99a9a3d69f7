"""The directory of the block files: private, held by a descriptor, entered through no link that others could plant.

Below the directory that was configured lies one of our own, ``aioprefetch-blocks-<uid>``. It is ours and closed to
all others (0700), so the configured one may be shared (``/tmp``) or belong to somebody else. Everything happens
relative to its descriptor: whoever renames or replaces a directory on the way moves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from aioprefetch.blocks.spill.entry import BadEntry
from aioprefetch.errors import ConfigInvalid

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_ENTER = os.O_RDONLY | os.O_DIRECTORY
# A directory that was configured may be one that we may not list.
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
# O_NONBLOCK: a FIFO under the name of a block must not make us wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
# What opening a link, a socket or a device without a driver ends in.
_NO_FILE = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class SystemCalls:
    """What the operating system is asked for. Every method blocks and may raise ``OSError``."""

    def open(self, name: str, flags: int, mode: int = 0o600, *, directory: int | None = None) -> int:
        """A new descriptor, of a path or of a name in a directory."""
        return os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=directory)

    def close(self, descriptor: int) -> None:
        """Close; may tell of a write that failed late."""
        os.close(descriptor)

    def make_directory(self, name: str, mode: int, *, directory: int) -> None:
        """Make a directory in a directory."""
        os.mkdir(name, mode, dir_fd=directory)

    def change_mode(self, descriptor: int, mode: int) -> None:
        """Set the permissions, whatever the umask said."""
        os.fchmod(descriptor, mode)

    def status(self, descriptor: int) -> os.stat_result:
        """What is open."""
        return os.fstat(descriptor)

    def status_of(self, name: str, *, directory: int) -> os.stat_result:
        """What a name in a directory is, a link itself included."""
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
        """Write what it can of the parts; returns how many bytes those were."""
        return os.writev(descriptor, parts)

    def read(self, descriptor: int, buffer: memoryview, position: int) -> int:
        """Read what it can into the buffer; returns how many bytes came, 0 at the end."""
        return os.preadv(descriptor, [buffer], position)

    def touch(self, descriptor: int) -> None:
        """Say that a file was used now."""
        os.utime(descriptor)

    def rename(self, old: str, new: str, *, directory: int) -> None:
        """Give a file in a directory another name, in place of what has it."""
        os.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)

    def remove(self, name: str, *, directory: int) -> None:
        """Remove a name from a directory."""
        os.unlink(name, dir_fd=directory)

    def remove_directory(self, name: str, *, directory: int) -> None:
        """Remove an empty directory from a directory."""
        os.rmdir(name, dir_fd=directory)

    def space(self, directory: int) -> tuple[int, int]:
        """Bytes that are free to us on the file system of a directory, and bytes in all."""
        found = os.fstatvfs(directory)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def is_alive(self, process: int) -> bool:
        """Whether a process of this number exists."""
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True
        return True


def drop_written(parts: Iterable[bytes | memoryview], count: int) -> list[memoryview]:
    """What is left of ``parts`` after ``count`` bytes of them were written."""
    left: list[memoryview] = []
    for part in parts:
        if count < len(part):
            left.append(memoryview(part)[count:])
        count = max(0, count - len(part))
    return left


class Descriptor:
    """An open descriptor, closed when nobody holds it any more: a thread that is left behind may be the last."""

    __slots__ = ("_calls", "number")

    def __init__(self, number: int, calls: SystemCalls) -> None:
        self.number = number
        self._calls = calls

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._calls.close(self.number)


class GuardedDirectory:
    """The directory of our own below ``path``, made where it is missing. All methods block.

    Raises ``ConfigInvalid`` for a directory that others could change, ``OSError`` for one that cannot be had.
    """

    def __init__(self, path: str, calls: SystemCalls) -> None:
        self.path = path
        self.calls = calls
        above = self._open(path, _SEARCH)
        try:
            self._held = Descriptor(self._enter(above, f"aioprefetch-blocks-{os.geteuid()}", _ENTER), calls)
        finally:
            calls.close(above)
        self._check_private()

    def _open(self, path: str, flags: int) -> int:
        """A descriptor of the directory; those that are missing are made. Links lead on, but for the last name."""
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
        made = True
        try:
            self.calls.make_directory(name, DIRECTORY_MODE, directory=above)
        except FileExistsError:
            made = False
        try:
            below = self.calls.open(name, (_ENTER if made else flags) | os.O_NOFOLLOW, directory=above)
        except OSError as error:
            raise self._refused(name, error) from error
        if made:
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
            f"disk_cache={self.path!r}: {name!r} is a symbolic link or no directory; give the directory itself",
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

    # --- what is in it ------------------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """Whether somebody removed the directory; what is open of it lives on, but nothing new can be made in it."""
        return self.calls.status(self._held.number).st_nlink == 0

    @property
    def changed_at(self) -> int:
        """When a name was last added or removed, in nanoseconds of the file system's clock."""
        return self.calls.status(self._held.number).st_mtime_ns

    def space(self) -> tuple[int, int]:
        """Bytes free to us, and bytes in all, of the file system."""
        return self.calls.space(self._held.number)

    def names(self) -> list[str]:
        """The names in it."""
        return self.calls.names(self._held.number)

    def status_of(self, name: str) -> os.stat_result:
        """What a name in it is."""
        return self.calls.status_of(name, directory=self._held.number)

    def open(self, name: str) -> Descriptor:
        """A regular file of ours, open for reading. ``BadEntry`` for anything else under that name."""
        try:
            descriptor = Descriptor(self.calls.open(name, _READ, directory=self._held.number), self.calls)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise BadEntry(f"it is no regular file: {error.strerror}") from error
            raise
        status = self.calls.status(descriptor.number)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise BadEntry("it is no regular file of this user")
        return descriptor

    def create(self, name: str) -> int:
        """A descriptor of a new file. ``FileExistsError`` for a name that is taken, whatever it is."""
        return self.calls.open(name, _CREATE, FILE_MODE, directory=self._held.number)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        self.calls.rename(old, new, directory=self._held.number)

    def remove(self, name: str) -> None:
        """Remove a name. One that is gone already is no error, nor is one that is not to be removed."""
        with contextlib.suppress(FileNotFoundError):
            try:
                self.calls.remove(name, directory=self._held.number)
            except (IsADirectoryError, PermissionError):  # For a directory Linux says EISDIR, others EPERM.
                with contextlib.suppress(OSError):
                    self.calls.remove_directory(name, directory=self._held.number)
