"""A regular file that is open for positioned reads, and the identity that is checked after each of them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from aioprefetch.errors import NotFound, ObjectChanged
from aioprefetch.runtime.page_cache import PageCache, answers
from aioprefetch.services.fs.confined import ConfinedRoot, link_status, refuse_unless_regular
from aioprefetch.values import Metadata

# One call of the kernel reads at most this much, so that a job can end early.
PIECE_BYTES = 4 << 20
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
    """An open file. ``close`` may be called at any time, from any thread: the last who uses it then closes it.

    ``read_now`` and ``is_current`` belong on the loop where the file system answers from memory; the other reads block,
    and raise once the file is closed.
    """

    __slots__ = ("__weakref__", "_closing", "_descriptor", "_lock", "_users", "etag", "modified", "status")

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False
        self.status = status
        self.etag = etag_of(status)
        self.modified = modified_at(status)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called: nothing may begin to use it."""
        return self._closing

    def read_now(self, cache: PageCache, buffer: memoryview, position: int) -> int:
        """Fill the beginning of ``buffer`` with bytes that are cached; returns how many, 0 if a thread has to read.

        That is also so if the file is not current (``is_current``) any more, which is looked at after the bytes were
        copied. Raises ``OSError`` with ``EOPNOTSUPP`` as ``PageCache.read`` does.
        """
        with self._lock:
            if self._closing:
                return 0
            try:
                count = cache.read(self._descriptor, buffer, position)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    raise
                return 0  # A thread waits for the bytes, or finds the same error.
            return count if count > 0 and self._is_untouched(os.fstat(self._descriptor)) else 0

    def is_current(self) -> bool:
        """Whether its name still leads to the file, unchanged, as far as the file itself shows.

        A file that was renamed, deleted, replaced or linked since it was opened counts as not current, and so does one
        whose mode was changed.
        """
        with self._lock:
            if self._closing:
                return False
            return self._is_untouched(os.fstat(self._descriptor))

    def read_into(self, buffer: memoryview, position: int, *, until: Callable[[], bool] | None = None) -> int:
        """Fill ``buffer`` with the bytes from ``position`` on; returns how many were read.

        It ends early after a piece of ``PIECE_BYTES`` at which ``until`` says so. Raises ``ObjectChanged`` if the file
        was replaced, or changed: truncated, grown, modified. One limit: a modification in place within one tick of the
        file system's clock that keeps the size is not seen.
        """
        filled = 0
        with self.used() as descriptor:
            while filled < len(buffer):
                count = os.preadv(descriptor, [buffer[filled : filled + PIECE_BYTES]], position + filled)
                if count == 0:
                    break
                filled += count
                if until is not None and until():
                    break
            now = os.fstat(descriptor)
        self._check(now, is_short=count == 0)
        return filled

    def read(self, position: int, size: int) -> bytearray:
        """``size`` bytes from ``position`` on, in memory of their own; raises as ``read_into``."""
        data = bytearray(size)
        self.read_into(memoryview(data), position)
        return data

    def answers_from_memory(self, cache: PageCache) -> bool:
        """Whether its file system can tell what is cached; a file without a byte says no."""
        with self.used() as descriptor:
            return answers(descriptor, cache.read)

    def hold(self) -> bool:
        """Use the file, which stays open until ``release``; ``False`` if it is closed."""
        with self._lock:
            if self._descriptor < 0:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """The end of a use that ``hold`` began."""
        with self._lock:
            self._users -= 1
            self._close_if_due()

    @contextlib.contextmanager
    def used(self) -> Iterator[int]:
        """Use the file, which stays open until the block ends; the descriptor. ``ValueError`` if it is closed."""
        if not self.hold():
            raise ValueError("the file is closed")
        try:
            yield self._descriptor
        finally:
            self.release()

    def close(self) -> None:
        """Close the file, or let the last who uses it do so: its descriptor must not be reused yet."""
        with self._lock:
            self._closing = True
            self._close_if_due()

    def __del__(self) -> None:
        self.close()

    def _is_untouched(self, now: os.stat_result) -> bool:
        before = self.status
        return (
            now.st_ctime_ns == before.st_ctime_ns
            and now.st_mtime_ns == before.st_mtime_ns
            and now.st_size == before.st_size
            and now.st_nlink == before.st_nlink
        )

    def _is_same(self, now: os.stat_result) -> bool:
        before = self.status
        return now.st_mtime_ns == before.st_mtime_ns and now.st_size == before.st_size

    def _check(self, now: os.stat_result, *, is_short: bool = False) -> None:
        replaced = now.st_nlink == 0 and self.status.st_nlink > 0
        if is_short or replaced or not self._is_same(now):
            raise ObjectChanged(
                "the file was replaced or deleted while it was read"
                if replaced
                else "the file was modified while it was read",
                expected_etag=self.etag,
                actual_etag=None if replaced else etag_of(now),
            )

    def _close_if_due(self) -> None:
        if self._closing and self._users == 0 and self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def open_cached(cache: PageCache, names: tuple[str, ...]) -> OpenedFile | None:
    """Open a regular file below the root without waiting; ``None`` if a thread has to open it, for any reason."""
    descriptor = cache.open("/".join(names))
    if descriptor is None:
        return None
    try:
        status = os.fstat(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    opened = OpenedFile(descriptor, status)
    if stat.S_ISREG(status.st_mode):
        return opened
    opened.close()
    return None


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
