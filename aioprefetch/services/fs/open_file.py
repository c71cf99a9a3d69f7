"""A regular file that is open for positioned reads, and the identity that is checked after each of them."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

from aioprefetch.errors import NotFound, ObjectChanged
from aioprefetch.services.fs.confined import ConfinedRoot, link_status, refuse_unless_regular
from aioprefetch.values import Metadata

# O_NONBLOCK: should a FIFO take the file's place after the look at it, opening must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def etag_of(status: os.stat_result) -> str:
    """The version of a file: inode, size and time of modification, in hexadecimal."""
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def modified_at(status: os.stat_result) -> datetime | None:
    """The time of modification, ``None`` for a time beyond the calendar."""
    try:
        return datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def metadata_of(path: str, status: os.stat_result) -> Metadata:
    """A file's metadata."""
    return Metadata(path=path, size=status.st_size, etag=etag_of(status), last_modified=modified_at(status))


class OpenedFile:
    """An open file. Its reads block and belong in threads; ``close`` may be called at any time, from any thread."""

    __slots__ = ("_closing", "_descriptor", "_lock", "_reads", "etag", "status")

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._reads = 0
        self._closing = False
        self.status = status
        self.etag = etag_of(status)

    def read_into(self, buffer: memoryview, position: int) -> None:
        """Fill ``buffer`` with the bytes from ``position`` on. ``ObjectChanged`` if the file was replaced or changed.

        A file that was truncated, grown, modified or replaced counts as changed. One limit: a modification in place
        within one tick of the file system's clock that keeps the size is not seen.
        """
        filled = 0
        with self._in_use() as descriptor:
            while filled < len(buffer):
                count = os.preadv(descriptor, [buffer[filled:]], position + filled)
                if count == 0:
                    break
                filled += count
            now = os.fstat(descriptor)
        replaced = now.st_nlink == 0 and self.status.st_nlink > 0
        if filled < len(buffer) or replaced or etag_of(now) != self.etag:
            raise ObjectChanged(
                "the file was replaced or deleted while it was read"
                if replaced
                else "the file was modified while it was read",
                expected_etag=self.etag,
                actual_etag=None if replaced else etag_of(now),
            )

    def read(self, position: int, size: int) -> bytearray:
        """``size`` bytes from ``position`` on, in memory of their own; raises as ``read_into``."""
        data = bytearray(size)
        self.read_into(memoryview(data), position)
        return data

    def close(self) -> None:
        """Close the file, or let the last read that still runs do it: its descriptor must not be reused yet."""
        with self._lock:
            self._closing = True
            self._close_if_due()

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[int]:
        with self._lock:
            if self._closing:
                raise ValueError("the file is closed")
            self._reads += 1
        try:
            yield self._descriptor
        finally:
            with self._lock:
                self._reads -= 1
                self._close_if_due()

    def _close_if_due(self) -> None:
        if self._closing and self._reads == 0 and self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def open_file(root: ConfinedRoot, names: tuple[str, ...]) -> OpenedFile:
    """Open a regular file below the root. Raises ``OSError`` or ``InvalidPath``; never waits for a FIFO."""
    names = root.resolved(names)
    if not names:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with root.directory(names[:-1]) as directory:
        # Looked at before it is opened, since opening some devices is an act of its own.
        before = link_status(directory, names[-1])
        if before is None:
            raise NotFound("there is no such file")
        refuse_unless_regular(before, names[-1])
        descriptor = os.open(names[-1], _READ, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        refuse_unless_regular(status, names[-1])
    except BaseException:
        os.close(descriptor)
        raise
    return OpenedFile(descriptor, status)
