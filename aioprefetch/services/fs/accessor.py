"""The live fs service: requests become jobs of threads, and their results heads, pages and errors of ours.

Of directories it lists the entries below a prefix in the order of their keys, one directory at a time. Memory holds the
names of the directories between the prefix and the current entry, and of no other. Only files and directories appear:
FIFOs, sockets, devices and files that are being written are passed over, and named beside the entries; what a killed
writer left behind is removed. Where reads follow links, links to a file below the root appear as that file.
Other links are passed over, those to directories always: they may lead in circles. With ``recursive`` the entries are
the files, and the directories that are empty: like a directory made by hand in a store without real ones, they would be
lost otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Literal

from aioprefetch.accessor.protocols import WriteBody
from aioprefetch.accessor.service_base import ServiceAccessor, not_deleted
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error, InvalidPath, IsADirectory, NotFound, copy_of
from aioprefetch.local_files.errors import from_os_error
from aioprefetch.local_files.files import (
    ConfinedRoot,
    OpenedFile,
    etag_of,
    is_partial,
    link_status,
    listable,
    metadata_of,
    modified_at,
    names_of,
    normalised,
    refuse_unless_matching,
    refuse_unless_regular,
)
from aioprefetch.local_files.identity import identity_below
from aioprefetch.local_files.moving import MovedFile, rename
from aioprefetch.local_files.threads import FileThreads, translated
from aioprefetch.local_files.writer import (
    PIECE_BYTES,
    PartialFile,
    open_partial,
    open_write_body,
    remove_abandoned,
    write_file,
)
from aioprefetch.runtime.page_cache import KNOWS_NOWAIT, PageCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs.options import FsOptions
from aioprefetch.services.fs.reading import JOB_BYTES, SIDE_BY_SIDE, FileReads
from aioprefetch.services.keys import PAGE_ENTRIES
from aioprefetch.values import (
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    Entry,
    Identity,
    ListPage,
    ListRequest,
    ListUploadsRequest,
    Metadata,
    ReadReply,
    ReadRequest,
    RenameRequest,
    Request,
    StatRequest,
    UploadPage,
    WriteRequest,
)

# Listings that wait for their next page; an older listing starts again from its token.
SUSPENDED_SCANS_MAX = 8
DELETE_BATCH = 100


class FsAccessor(ServiceAccessor):
    """Files below one confined root.

    ``piece_bytes`` is the most that one job of a thread moves, by default ``JOB_BYTES`` for reads and ``PIECE_BYTES``
    for writes. ``side_by_side`` threads read a long body, by default ``SIDE_BY_SIDE``; one if ``piece_bytes`` is given.
    ``cache`` reads what the kernel has in memory without a thread, by default wherever the system can tell.
    """

    def __init__(
        self,
        options: FsOptions,
        runtime: Runtime,
        *,
        piece_bytes: int | None = None,
        side_by_side: int | None = None,
        cache: PageCache | Literal["off"] | None = None,
    ) -> None:
        super().__init__(options.info, options.capability, runtime)
        self._piece_bytes = PIECE_BYTES if piece_bytes is None else piece_bytes
        self._root = ConfinedRoot(options.directory, follow_symlinks=options.follow_symlinks)
        if cache is None and KNOWS_NOWAIT:
            cache = PageCache(options.directory, follow_symlinks=options.follow_symlinks)
        self._reads = FileReads(
            self._root,
            runtime,
            cache if isinstance(cache, PageCache) else None,
            self._readable,
            job_bytes=JOB_BYTES if piece_bytes is None else piece_bytes,
            side_by_side=side_by_side or (SIDE_BY_SIDE if piece_bytes is None else 1),
        )
        self._fsync = options.fsync
        self._place_lock = threading.Lock()
        self._suspended: OrderedDict[tuple[str, bool, str], Scan] = OrderedDict()

    def _names(self, request: Request, path: str | None = None) -> tuple[str, ...]:
        """The names of a path, which must name a file."""
        path = request.path if path is None else path
        names = names_of(path, operation=request.operation)
        if not names or path.endswith("/"):
            raise IsADirectory("the path is a directory's", operation=request.operation, path=path)
        return names

    async def stat(self, request: StatRequest) -> Metadata:
        if request.version is not None:
            self._unsupported(request, "versions")
        return await translated(request, FileThreads.of(self.runtime).call(self._stat, request.path))

    def _stat(self, path: str) -> Metadata:
        names = self._root.resolved(names_of(path, operation="stat"))
        if not names:
            return Metadata(path=path, kind="directory")
        with self._root.directory(names[:-1]) as directory:
            status = link_status(directory, names[-1])
        if status is not None and stat.S_ISDIR(status.st_mode):
            return Metadata(path=path, kind="directory", last_modified=modified_at(status))
        if status is None or path.endswith("/"):
            raise NotFound("there is no such directory" if path.endswith("/") else "there is no such file")
        refuse_unless_regular(status, names[-1])
        return metadata_of(path, status)

    def read(self, request: ReadRequest, sink: Sink) -> Coroutine[Any, Any, ReadReply]:
        return self._reads.read(request, sink)

    def _readable(self, request: ReadRequest) -> tuple[str, ...]:
        """The names of the file of a read."""
        if request.version is not None:
            self._unsupported(request, "versions")
        return self._names(request)

    async def list_page(self, request: ListRequest) -> ListPage:
        prefix = normalised(request.path)
        after = max(normalised(request.start_after or ""), request.page_token or "")
        suspended = self._suspended.pop((prefix, request.recursive, request.page_token or ""), None)
        limit = request.page_entries_max or PAGE_ENTRIES
        scan, entries, passed_over, has_more = await translated(
            request, self.runtime.run_blocking(self._scan, suspended, prefix, request.recursive, after, limit)
        )
        if not has_more:
            return ListPage(entries=entries, passed_over=passed_over)
        token = entries[-1].path
        self._suspended[prefix, request.recursive, token] = scan
        if len(self._suspended) > SUSPENDED_SCANS_MAX:
            self._suspended.popitem(last=False)
        return ListPage(entries=entries, next_token=token, passed_over=passed_over)

    def _scan(
        self, scan: Scan | None, prefix: str, recursive: bool, after: str, limit: int
    ) -> tuple[Scan, tuple[Entry, ...], tuple[PassedOver, ...], bool]:
        """The scan, and a page of it."""
        if scan is None:
            scan = Scan(self._root, prefix, recursive=recursive, after=after)
        return scan, *scan.page(limit)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        if (view := memoryview(data)).nbytes <= self._piece_bytes and view.c_contiguous:
            opener = partial(open_partial, self._root, self._names(request), request, fsync=self._fsync)
            given_up = threading.Event()
            job = partial(write_file, opener, view.cast("B"), self._place_lock, given_up)
            written = translated(request, FileThreads.of(self.runtime).call_short(job), give_up=given_up.set)
            return metadata_of(request.path, await written)
        body = await self.open_write(request)
        try:
            await body.write(data)
            return await body.close()
        finally:
            await body.abort()

    async def open_write(self, request: WriteRequest) -> WriteBody:
        names = self._names(request)
        opener = partial(open_partial, self._root, names, request, fsync=self._fsync)
        return await open_write_body(self.runtime, request, opener, self._place_lock, self._piece_bytes)

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        # The partial file of a process that died is removed by the next listing of its directory.
        return UploadPage(uploads=())

    async def copy(self, request: CopyRequest) -> Metadata:
        if request.version is not None:
            self._unsupported(request, "versions")
        self._names(request)
        target = self._names(request, request.target)
        return await self._copied(request, partial(open_partial, self._root, target, fsync=self._fsync))

    async def rename(self, request: RenameRequest) -> Metadata:
        names, target = self._names(request), self._names(request, request.target)
        stop = threading.Event()
        job = partial(rename, self._root, names, target, request, self._place_lock, stop, fsync=self._fsync)
        try:
            renamed = await translated(request, FileThreads.of(self.runtime).call(job), give_up=stop.set)
        except Error as error:
            error.operation = request.operation
            raise
        return renamed or await self._copied(
            request, lambda writing, source: MovedFile(self._root, names, target, writing, source).begin()
        )

    async def _copied(
        self, request: CopyRequest | RenameRequest, file_of: Callable[[WriteRequest, OpenedFile], PartialFile]
    ) -> Metadata:
        """Copy a file into the file that ``file_of`` begins."""
        reading = ReadRequest(path=request.path, if_match=request.if_match)
        writing = WriteRequest(path=request.target, if_not_exists=request.if_not_exists)
        try:
            source, head = await self._reads.opened(reading)
            try:
                begin = partial(file_of, writing, source)
                target = await open_write_body(self.runtime, writing, begin, self._place_lock, self._piece_bytes)
                try:
                    for position in range(0, head.size, self._piece_bytes):
                        count = min(self._piece_bytes, head.size - position)
                        chunk = await translated(reading, self.runtime.run_blocking(source.read, position, count))
                        await target.write(chunk)
                    return await target.close()
                finally:
                    await target.abort()
            finally:
                source.close()
        except Error as error:
            error.operation = request.operation  # The operation of the caller, instead of the read or write in it.
            raise

    async def delete(self, request: DeleteRequest) -> None:
        named = [(names_of(path, operation="delete"), path) for path in request.paths]
        for path in (path for names, path in named if not names):
            raise IsADirectory("the root itself cannot be deleted", operation="delete", path=path)
        failures: dict[str, Error] = {}
        for start in range(0, len(named), DELETE_BATCH):
            job = partial(self._delete, named[start : start + DELETE_BATCH], request.if_match or {})
            failures |= await translated(request, FileThreads.of(self.runtime).call(job))
        if failures:
            raise not_deleted(failures, request)

    def _delete(self, named: list[tuple[tuple[str, ...], str]], if_match: Mapping[str, str]) -> dict[str, Error]:
        """Delete these paths; returns the paths that are left, each with its error."""
        failures: dict[str, Error] = {}
        for names, path in named:
            etag = if_match.get(path)
            try:
                with contextlib.nullcontext() if etag is None else self._place_lock:
                    remove(self._root, names, directory=path.endswith("/"), if_match=etag)
            except Error as error:
                failures[path] = copy_of(error.add_context(operation="delete", path=path))
            except OSError as error:
                failures[path] = from_os_error(error, operation="delete", path=path)
                failures[path].__cause__ = error.with_traceback(None)  # Which holds this frame.
        return failures

    async def identity(self, path: str) -> Identity:
        names = names_of(path, operation="stat")
        job = partial(identity_below, self._root, names)
        return await translated(StatRequest(path=path), FileThreads.of(self.runtime).call(job))

    async def create_dir(self, request: CreateDirRequest) -> None:
        names = names_of(request.path, operation="create_dir")
        await translated(request, FileThreads.of(self.runtime).call(make_directories, self._root, names))


# --- listings ---------------------------------------------------------------------------------------------------------

STAT_BATCH = 256

Names = tuple[str, ...]
# The key, and why it is not listed.
PassedOver = tuple[str, str]
_GONE = (FileNotFoundError, NotADirectoryError)


class Scan:
    """An iterator over the entries whose key begins with ``prefix`` and is above ``after``. It blocks.

    ``prefix`` has its slashes collapsed already. Between two entries it holds no descriptor, so it may be left
    anywhere. Raises ``OSError`` or ``InvalidPath``.
    """

    # The first entry of the rest, once it was asked whether there is a rest.
    _following: Entry | None = None

    def __init__(self, root: ConfinedRoot, prefix: str, *, recursive: bool, after: str) -> None:
        folder, _, self._beginning = prefix.rpartition("/")
        self._root = root
        self._base = names_of(folder, operation="list")
        self._recursive = recursive
        self._after = after
        self._stack = [self._directory(self._base)]
        self._passed_over: list[PassedOver] = []

    def page(self, limit: int) -> tuple[tuple[Entry, ...], tuple[PassedOver, ...], bool]:
        """The next entries, what was passed over on the way, and whether there are more entries."""
        entries = tuple(islice(self, limit))
        self._following = next(self, None)
        passed_over, self._passed_over = tuple(self._passed_over), []
        return entries, passed_over, self._following is not None

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        following, self._following = self._following, None
        if following is not None:
            return following
        while self._stack:
            item = next(self._stack[-1], None)
            if isinstance(item, Entry):
                return item
            if item is None:
                self._stack.pop()
            else:
                self._stack.append(self._directory(item))
        raise StopIteration

    def _directory(self, names: Names) -> Iterator[Entry | Names]:
        """The entries of one directory, and in their place the directories to go into."""
        is_base = names == self._base
        key = "".join(f"{name}/" for name in names)
        try:
            children, is_empty = self._children(names, self._beginning if is_base else "")
        except _GONE:
            return
        except InvalidPath:  # A link has taken the place of the directory.
            if is_base:
                raise
            self._passed_over.append((key[:-1], "a symbolic link"))
            return
        if is_empty and not is_base and key > self._after:
            yield Entry(path=key, kind="directory")
        wanted = (child for child in children if self._is_wanted(key + child))
        while batch := list(islice(wanted, STAT_BATCH)):
            for child, status in zip(batch, self._statuses(names, batch), strict=True):
                why = ""
                if status is None:  # A directory, or a file that is gone.
                    pass
                elif stat.S_ISLNK(status.st_mode):
                    status, why = self._status_of_target((*names, child)), "a symbolic link"
                elif is_partial(child):
                    status, why = None, "a file that is being written"
                elif not stat.S_ISREG(status.st_mode):
                    status, why = None, "a FIFO, socket or device"
                if child.endswith("/"):
                    yield (*names, child[:-1]) if self._recursive else Entry(path=key + child, kind="directory")
                elif status is None and why:
                    self._passed_over.append((key + child, why))
                elif status is not None:
                    yield Entry(
                        path=key + child,
                        size=status.st_size,
                        etag=etag_of(status),
                        last_modified=modified_at(status),
                    )

    def _is_wanted(self, key: str) -> bool:
        return key > self._after or (self._recursive and key.endswith("/") and self._after.startswith(key))

    def _children(self, names: Names, beginning: str) -> tuple[list[str], bool]:
        """The names in a directory in the order of their keys, and whether it counts as empty: it has no entries.

        The names of directories end with ``/``.
        """
        children: list[str] = []
        is_empty = True
        partial: list[str] = []
        with self._root.directory(self._resolved(names)) as directory, listable(directory) as descriptor:
            with os.scandir(descriptor) as scanned:
                for child in scanned:
                    name = child.name
                    if is_partial(name):
                        partial.append(name)
                    elif child.is_dir(follow_symlinks=False):
                        name, is_empty = f"{name}/", False
                    elif child.is_file(follow_symlinks=False) or (self._root.follow_symlinks and child.is_symlink()):
                        is_empty = False
                    children.append(name)
            if partial:
                remove_abandoned(descriptor, partial)
        return sorted(child for child in children if child.startswith(beginning)), is_empty

    def _statuses(self, names: Names, batch: list[str]) -> list[os.stat_result | None]:
        """The status of each file of a batch, ``None`` for directories and for files that were deleted."""
        if all(child.endswith("/") for child in batch):
            return [None] * len(batch)
        try:
            with self._root.directory(self._resolved(names)) as directory:
                return [None if child.endswith("/") else link_status(directory, child) for child in batch]
        except InvalidPath:
            self._passed_over.append(("/".join(names), "a symbolic link"))
        except _GONE:
            pass
        return [None] * len(batch)

    def _status_of_target(self, names: Names) -> os.stat_result | None:
        """The status of the file that a link leads to, ``None`` if it is not followed, or leads to no file."""
        if not self._root.follow_symlinks:
            return None
        with contextlib.suppress(InvalidPath, OSError):
            target = self._root.resolved((*self._root.resolved(self._base), *names[len(self._base) :]))
            with self._root.directory(target[:-1]) as directory:
                status = link_status(directory, target[-1]) if target else None
            return status if status is not None and stat.S_ISREG(status.st_mode) else None
        return None

    def _resolved(self, names: Names) -> Names:
        # Only the prefix of the caller may lead through a link; the directories below were found to be none.
        base = self._root.resolved(self._base)
        return (*base, *names[len(self._base) :])


# --- directories ------------------------------------------------------------------------------------------------------


def make_directories(root: ConfinedRoot, names: Names) -> None:
    """Make a directory and its parents. An existing directory is kept; an existing file is an error."""
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


def remove(root: ConfinedRoot, names: Names, *, directory: bool, if_match: str | None = None) -> None:
    """Remove a file, or a directory without files. A missing one is ignored.

    A link is refused, or with ``follow_symlinks`` removed itself. ``ConditionNotMatch`` for another ETag.
    """
    try:
        # The last name is never resolved: a link itself is removed, not its target.
        with root.directory(root.resolved(names[:-1])) as parent:
            status = link_status(parent, names[-1])
            if status is None:
                return
            refuse_unless_matching(if_match, parent, names[-1])
            is_directory = stat.S_ISDIR(status.st_mode)
            if not directory:
                refuse_unless_regular(status, names[-1], may_be_link=root.follow_symlinks)
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
        file_names = names_of(entry.path)
        below |= {file_names[:length] for length in range(len(names) + 1, len(file_names) + 1)}
    for directory in sorted(below, key=len, reverse=True):
        with contextlib.suppress(FileNotFoundError), root.directory(root.resolved(directory[:-1])) as parent:
            os.rmdir(directory[-1], dir_fd=parent)
