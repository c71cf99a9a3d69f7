"""A file that is being written: hidden beside its target, it takes the target's place in one step or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import secrets
import stat
import threading
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, TypeVar

from aioprefetch.accessor.service_base import EXISTS_ALREADY
from aioprefetch.errors import AlreadyExists, Closed, IsSameFile, Unsupported
from aioprefetch.local_files.files import (
    ConfinedRoot,
    OpenedFile,
    is_resumable,
    link_status,
    metadata_of,
    partial_name,
    refuse_unless_matching,
    refuse_unless_regular,
    sync_directory,
)
from aioprefetch.local_files.threads import FileThreads, translated
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Metadata, WriteRequest

# One thread job moves at most this much: a cancelled caller waits no longer than for that.
PIECE_BYTES = 4 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A file without a lock that was not written for this time has no writer any more: at once after its creation the lock
# may not be taken yet, and locks of other machines may not be visible.
ABANDONED_SECONDS = 10.0
ABANDONED_SECONDS_ELSEWHERE = 3600.0
# A file that is received over several runs waits this long for the next one.
RESUMABLE_SECONDS = 7 * 24 * 3600.0
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
P = TypeVar("P", bound="PartialFile")


class PartialFile:
    """The temporary file and the directory it lies in. All methods block: call them in a thread.

    While it is written only its owner may read it; in place it has the mode that the umask (or a default ACL) gives
    to new files, or with ``keeps_mode`` the permissions of the file that it replaces. Of a copy ``source_mode`` is the
    mode of the source: a new file gets that less the umask, and no file more than that allows. ``fsync`` forces the
    bytes and the name to the device. A crash leaves it behind under a name that no listing shows and no key can have; a
    later listing of its directory removes it (``remove_abandoned``), which the lock on the descriptor prevents while
    the writer lives.
    """

    def __init__(
        self,
        directory: int,
        name: str,
        request: WriteRequest,
        *,
        fsync: bool,
        keeps_mode: bool = False,
        source_mode: int | None = None,
    ) -> None:
        self._directory = directory
        self._target = name
        self._request = request
        self._fsync = fsync
        self._keeps_mode = keeps_mode
        self._allowed = 0o777 if source_mode is None else source_mode & 0o777  # Never setuid and its like.
        self._given = 0o666 if source_mode is None else self._allowed
        self._name = partial_name(machine_token() + secrets.token_hex(4))
        self._replaces_links = False
        self._made = False
        self._placed = False
        # Set once the caller has gone: then the file is not put in its place. For any thread.
        self.given_up = threading.Event()
        self.descriptor = -1
        self._mode = 0

    def begin(self: P) -> P:
        """This file, created. Raises unless the target may be replaced by it."""
        try:
            self.refuse_by_conditions()
            self.create()
        except BaseException:
            self.discard()
            raise
        return self

    def create(self) -> None:
        """Make the empty file."""
        # The kernel applies umask and default ACL: that mode is noted, and restored at the end.
        self.descriptor = os.open(self._name, _CREATE, self._given, dir_fd=self._directory)
        self._made = True
        with contextlib.suppress(OSError):  # Not every file system has locks.
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._mode = stat.S_IMODE(os.fstat(self.descriptor).st_mode)
        os.fchmod(self.descriptor, 0o600)

    def refuse_by_conditions(self) -> None:
        """Raise unless the conditions of the request hold for the target as it is now."""
        status = link_status(self._directory, self._target)
        if status is not None:
            refuse_unless_regular(status, self._target, may_be_link=self._replaces_links)
            if self._request.if_not_exists:
                raise AlreadyExists(EXISTS_ALREADY)
        request = self._request
        refuse_unless_matching(request.if_match, self._directory, self._target, request.if_none_match)

    def place(self, lock: threading.Lock) -> os.stat_result:
        """Put the file in the target's place, close it and return its status. The conditions are checked once more.

        ``if_not_exists`` rests on ``link``, which fails if the name is taken, so it holds against every process.
        ``if_match`` is compared just before: ``lock`` makes that one step among the writers of this runtime only.
        """
        os.fchmod(self.descriptor, self._final_mode())
        if self._fsync:
            os.fsync(self.descriptor)
        status = os.fstat(self.descriptor)
        with lock:
            if self.given_up.is_set():
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
            self.refuse_by_conditions()
            if self._request.if_not_exists:
                self._link()
            else:
                os.replace(self._name, self._target, src_dir_fd=self._directory, dst_dir_fd=self._directory)
                self._placed = True
        if self._fsync:
            sync_directory(self._directory)
        self.discard()
        return status

    def _final_mode(self) -> int:
        replaced = link_status(self._directory, self._target) if self._keeps_mode else None
        return (self._mode if replaced is None else replaced.st_mode) & self._allowed

    def _link(self) -> None:
        link_new(self._directory, self._name, self._directory, self._target)

    def discard(self) -> None:
        """Close everything and remove the temporary name. May be called at any time, and twice."""
        descriptor, self.descriptor = self.descriptor, -1
        directory, self._directory = self._directory, -1
        if descriptor >= 0:
            os.close(descriptor)
        if directory < 0:
            return
        try:
            if self._made and not self._placed:
                with contextlib.suppress(OSError):  # The directory may be gone; the name is hidden anyway.
                    os.unlink(self._name, dir_fd=directory)
        finally:
            os.close(directory)


def link_new(directory: int, name: str, target_directory: int, target: str) -> None:
    """Give a file, or a link itself, a second name that must be free: ``AlreadyExists`` if it is not."""
    try:
        os.link(name, target, src_dir_fd=directory, dst_dir_fd=target_directory, follow_symlinks=False)
    except FileExistsError as error:
        raise AlreadyExists(EXISTS_ALREADY) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise Unsupported("if_not_exists needs hard links, which this file system does not have") from error


def open_partial(
    root: ConfinedRoot,
    names: tuple[str, ...],
    request: WriteRequest,
    source: OpenedFile | None = None,
    *,
    fsync: bool,
) -> PartialFile:
    """Begin to write the file that ``names`` lead to; its directories are made, and stay if the write fails.

    ``source`` is the file that is copied: ``IsSameFile`` if ``names`` lead to it.
    """
    names = root.resolved(names)
    if not names:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    mode = None if source is None else source.status.st_mode
    with root.directory(names[:-1], create=True) as directory:
        there = link_status(directory, names[-1])
        if source is not None and there is not None and os.path.samestat(source.status, there):
            raise IsSameFile("source and target are one file")
        own = os.dup(directory)
    return PartialFile(own, names[-1], request, fsync=fsync, keeps_mode=mode is not None, source_mode=mode).begin()


def write_file(
    open_file: Callable[[], PartialFile], data: memoryview, lock: threading.Lock, given_up: threading.Event
) -> os.stat_result:
    """Open a file, write all of it and put it in its place: one job of a thread. Its status.

    It does not appear if ``given_up`` is set before.
    """
    file = open_file()
    file.given_up = given_up
    try:
        while data:
            data = data[os.write(file.descriptor, data) :]
        return file.place(lock)
    finally:
        file.discard()


class FileWriteBody:
    """A file being written piece by piece, in a temporary file beside its target."""

    def __init__(
        self,
        runtime: Runtime,
        request: WriteRequest,
        partial: PartialFile,
        lock: threading.Lock,
        file: Any,
        piece_bytes: int,
    ) -> None:
        self._threads = FileThreads.of(runtime)
        self._request = request
        self._partial: PartialFile | None = partial
        self._lock = lock
        self._file = file
        self._piece_bytes = piece_bytes

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._check_open()
        view = memoryview(chunk)
        data = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        while data:
            # A raw file may take less than it is given.
            count = await translated(self._request, self._file.write(data[: self._piece_bytes]))
            data = data[count:]

    async def close(self) -> Metadata:
        """Put the file in its place.

        If cancelled before the last rename nothing appears; after it the file is there, whole.
        """
        partial = self._check_open()
        job = self._threads.call(partial.place, self._lock)
        status = await translated(self._request, job, give_up=partial.given_up.set)
        self._partial = None
        return metadata_of(self._request.path, status)

    async def abort(self) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            await self._threads.clean_up(partial.discard)

    def _check_open(self) -> PartialFile:
        if self._partial is None:
            raise Closed("the write was closed or aborted already", operation="write", path=self._request.path)
        return self._partial


async def open_write_body(
    runtime: Runtime,
    request: WriteRequest,
    open_partial: Callable[[], PartialFile],
    lock: threading.Lock,
    piece_bytes: int,
) -> FileWriteBody:
    """Make the temporary file and wrap it. A cancelled call leaves none behind."""
    import aiofiles  # Most processes write no file piece by piece.

    threads = FileThreads.of(runtime)

    async def opened(partial: PartialFile) -> Any:
        # The descriptor stays ours: it must be closed even where aiofiles was cancelled.
        return await aiofiles.open(partial.descriptor, "wb", buffering=0, closefd=False, executor=threads.executor)

    partial = await translated(request, threads.call(open_partial), PartialFile.discard)
    try:
        file = await translated(request, opened(partial))
    except BaseException:
        await threads.clean_up(partial.discard)
        raise
    return FileWriteBody(runtime, request, partial, lock, file, piece_bytes)


@lru_cache(maxsize=1)
def machine_token() -> str:
    """Eight hexadecimal digits that identify this machine since its start."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            identity = file.read()
    except OSError:
        identity = platform.node()
    return hashlib.sha256(identity.encode()).hexdigest()[:8]


def remove_abandoned(directory: int, names: Collection[str]) -> None:
    """Remove the partial files among ``names`` whose writers are gone. A failure leaves a file where it is."""
    for name in names:
        with contextlib.suppress(OSError):
            descriptor = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            try:
                if _is_abandoned(descriptor, name, others=names):
                    os.unlink(name, dir_fd=directory)
            finally:
                os.close(descriptor)


def _is_abandoned(descriptor: int, name: str, *, others: Collection[str]) -> bool:
    status = os.fstat(descriptor)
    limit = ABANDONED_SECONDS if name.startswith(f".aioprefetch-{machine_token()}") else ABANDONED_SECONDS_ELSEWHERE
    if is_resumable(name, others):
        limit = RESUMABLE_SECONDS
    age = time.time() - status.st_mtime
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if age < limit:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # Without locks only the age decides.
        return age >= ABANDONED_SECONDS_ELSEWHERE
    return True
