"""The system calls of the disk tier in one place, so that a test may let any of them fail, short-write or hang."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence


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
