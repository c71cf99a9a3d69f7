"""Keys as names of files, the walk to them that nothing escapes, and files that are open for positioned reads.

Runs of ``/`` in a key count as one and a leading ``/`` as none, so ``/a//b`` is ``a/b``. A trailing ``/`` stays: it
means the directory. Every other character is kept. ``.`` and ``..`` segments and NUL are refused, and so are the names
under which files are hidden while they are written.

A walk goes name by name, by directory descriptors, through no link. ``O_NOFOLLOW`` guards only the last name of a
path, and a check of the path before its use loses against a rename in between. So each name is opened relative to the
directory before it, and a link on any of them is refused. The root itself is the user's own configuration: links in it
are followed. Hard links cannot be distinguished from files.

An open file is a regular one, and its identity is checked after each read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from aioprefetch.errors import ConditionNotMatch, InvalidPath, NotFound, ObjectChanged
from aioprefetch.runtime.page_cache import PageCache, answers
from aioprefetch.values import Metadata

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


@contextlib.contextmanager
def listable(directory: int) -> Iterator[int]:
    """Another descriptor of the same directory, with which it can be listed and synchronised."""
    descriptor = os.open(".", _LIST, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(directory: int) -> None:
    """Force the names in a directory to the device."""
    with listable(directory) as descriptor:
        os.fsync(descriptor)


def link_status(directory: int, name: str) -> os.stat_result | None:
    """The status of ``name`` in the directory, of a link itself; ``None`` if there is no such name."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def refuse_unless_regular(status: os.stat_result, name: str, *, may_be_link: bool = False) -> None:
    """Raise unless it is a regular file: ``EISDIR`` for a directory, ``InvalidPath`` for all else."""
    if stat.S_ISREG(status.st_mode) or (may_be_link and stat.S_ISLNK(status.st_mode)):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(status.st_mode):
        raise InvalidPath(
            f"{name!r} is a symbolic link, and links below the root are not followed: read the file that it leads to,"
            " or give follow_symlinks=True"
        )
    raise InvalidPath(f"{name!r} is a FIFO, socket or device, not a regular file")


def refuse_unless_matching(if_match: str | None, directory: int, name: str, if_none_match: str | None = None) -> None:
    """``ConditionNotMatch`` unless a file has this ETag and not that; of a link, as in ``stat``, what it leads to."""
    if if_match is if_none_match is None:
        return
    try:
        status = os.stat(name, dir_fd=directory)
        etag = etag_of(status) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError:
        etag = None
    if etag is not None and etag == if_none_match:
        raise ConditionNotMatch(f"the file's ETag is still {etag!r}", context={"etag": etag})
    if if_match is not None and (etag is None or if_match not in ("*", etag)):
        fact = "there is no file" if etag is None else f"the file's ETag is {etag!r}"
        raise ConditionNotMatch(f"{fact}, not {if_match!r}", context={"etag": etag})


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


# --- names ------------------------------------------------------------------------------------------------------------


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
    """The name of the note beside it: its version, and the ranges it has."""
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


# --- open files -------------------------------------------------------------------------------------------------------

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

    ``read_cached`` and ``is_current`` belong on the loop where the file system answers from memory; the other reads
    block, and raise once the file is closed.
    """

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

    def read_cached(self, cache: PageCache, buffer: memoryview, position: int) -> int:
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
        """Whether its name still leads to the file, and the file itself shows no change.

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
        self.check(now, is_short=count == 0)
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
        if self._descriptor >= 0:
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

    def check(self, now: os.stat_result, *, is_short: bool = False) -> None:
        """Raise ``ObjectChanged`` unless it is as it was opened, by the status that it or its name has now."""
        replaced = (now.st_nlink == 0 and self.status.st_nlink > 0) or not os.path.samestat(now, self.status)
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
        return open_entry(directory, names[-1])


def open_entry(directory: int, name: str) -> OpenedFile:
    """Open a regular file in a directory. Raises as ``open_file``."""
    # Looked at before it is opened, since opening some devices is an act of its own.
    before = link_status(directory, name)
    if before is None:
        raise NotFound("there is no such file")
    refuse_unless_regular(before, name)
    descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        refuse_unless_regular(status, name)
    except BaseException:
        os.close(descriptor)
        raise
    return OpenedFile(descriptor, status)
