"""The live fs service: requests become jobs of threads, and their results heads, pages and errors of ours."""

from __future__ import annotations

import stat
import threading
from collections import OrderedDict
from functools import partial
from typing import Literal

from aioprefetch.accessor.service_base import ServiceAccessor, not_deleted
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.write_body import WriteBody
from aioprefetch.errors import Error, IsADirectory, IsSameFile, NotFound
from aioprefetch.runtime.page_cache import KNOWS_NOWAIT, PageCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.folding import PAGE_ENTRIES
from aioprefetch.services.fs.confined import ConfinedRoot, link_status, names_of, normalised, refuse_unless_regular
from aioprefetch.services.fs.errors import from_os_error
from aioprefetch.services.fs.listing import Scan, make_directories, remove
from aioprefetch.services.fs.open_file import metadata_of, modified_at
from aioprefetch.services.fs.options import FsOptions
from aioprefetch.services.fs.reading import JOB_BYTES, SIDE_BY_SIDE, FileReads
from aioprefetch.services.fs.threads import FileThreads, translated
from aioprefetch.services.fs.writer import PIECE_BYTES, open_partial, open_write_body
from aioprefetch.values import (
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    Entry,
    ListPage,
    ListRequest,
    ListUploadsRequest,
    Metadata,
    ReadReply,
    ReadRequest,
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
        self._root = ConfinedRoot(options.root, follow_symlinks=options.follow_symlinks)
        if cache is None and KNOWS_NOWAIT:
            cache = PageCache(options.root, follow_symlinks=options.follow_symlinks)
        self._reads = FileReads(
            self._root,
            runtime,
            cache if isinstance(cache, PageCache) else None,
            self._readable,
            job_bytes=JOB_BYTES if piece_bytes is None else piece_bytes,
            side_by_side=side_by_side or (SIDE_BY_SIDE if piece_bytes is None else 1),
        )
        self.read_now = self._reads.read_now
        self._fsync = options.fsync
        self._place_lock = threading.Lock()
        self._suspended: OrderedDict[tuple[str, bool, str], Scan] = OrderedDict()

    def _names(self, request: Request, path: str | None = None) -> tuple[str, ...]:
        """The names of a path, which must be that of a file."""
        path = request.path if path is None else path
        names = names_of(path, operation=request.operation)
        if not names or path.endswith("/"):
            raise IsADirectory("the path is a directory's", operation=request.operation, path=path)
        return names

    async def stat(self, request: StatRequest) -> Metadata:
        if request.version is not None:
            self._unsupported(request, "versions")
        job = FileThreads.of(self.runtime).call(self._stat, request.path)
        return await translated(request, job)

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

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        return await self._reads.read(request, sink)

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
        with self.runtime.timer("object_list_request"):
            job = self.runtime.run_blocking(self._scan, suspended, prefix, request.recursive, after, limit)
            scan, entries, links, has_more = await translated(request, job)
        if not has_more:
            return ListPage(entries=entries, links=links)
        token = entries[-1].path
        self._suspended[prefix, request.recursive, token] = scan
        if len(self._suspended) > SUSPENDED_SCANS_MAX:
            self._suspended.popitem(last=False)
        return ListPage(entries=entries, next_token=token, links=links)

    def _scan(
        self, scan: Scan | None, prefix: str, recursive: bool, after: str, limit: int
    ) -> tuple[Scan, tuple[Entry, ...], tuple[str, ...], bool]:
        """The scan, and a page of it."""
        if scan is None:
            scan = Scan(self._root, prefix, recursive=recursive, after=after)
        return scan, *scan.page(limit)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        body = await self.open_write(request)
        try:
            await body.write(data)
            return await body.close()
        finally:
            await body.abort()

    async def open_write(self, request: WriteRequest) -> WriteBody:
        names = self._names(request)
        self.runtime.counters["object_put_request"] += 1
        opener = partial(open_partial, self._root, names, request, fsync=self._fsync)
        return await open_write_body(self.runtime, request, opener, self._place_lock, self._piece_bytes)

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        # The partial file of a process that died is removed by the next listing of its directory.
        return UploadPage(uploads=())

    async def copy(self, request: CopyRequest) -> Metadata:
        if self._names(request) == self._names(request, request.target):
            raise IsSameFile("source and target are one file", operation="copy", path=request.path)
        self.runtime.counters["object_copy_request"] += 1
        try:
            return await self._copy(request)
        except Error as error:
            error.operation = request.operation  # The operation of the caller, instead of the read or write in it.
            raise

    async def _copy(self, request: CopyRequest) -> Metadata:
        counters = self.runtime.counters
        reading = ReadRequest(path=request.path)
        source, head = await self._reads.opened(reading)
        try:
            target = await self.open_write(WriteRequest(path=request.target))
            try:
                for position in range(0, head.size, self._piece_bytes):
                    count = min(self._piece_bytes, head.size - position)
                    chunk = await translated(reading, self.runtime.run_blocking(source.read, position, count))
                    counters["stream_read_total_bytes"] += count
                    await target.write(chunk)
                return await target.close()
            finally:
                await target.abort()
        finally:
            source.close()

    async def delete(self, request: DeleteRequest) -> None:
        self.runtime.counters["object_delete_request"] += 1
        named = [(names_of(path, operation="delete"), path) for path in request.paths]
        for path in (path for names, path in named if not names):
            raise IsADirectory("the root itself cannot be deleted", operation="delete", path=path)
        failures: dict[str, Error] = {}
        for start in range(0, len(named), DELETE_BATCH):
            job = FileThreads.of(self.runtime).call(self._delete, named[start : start + DELETE_BATCH])
            failures |= await translated(request, job)
        if failures:
            raise not_deleted(failures, request)

    def _delete(self, named: list[tuple[tuple[str, ...], str]]) -> dict[str, Error]:
        """Delete these paths. Those that are left, each with its error."""
        failures: dict[str, Error] = {}
        for names, path in named:
            try:
                remove(self._root, names, directory=path.endswith("/"))
            except OSError as error:
                failures[path] = from_os_error(error, operation="delete", path=path)
                failures[path].__cause__ = error
        return failures

    async def create_dir(self, request: CreateDirRequest) -> None:
        names = names_of(request.path, operation="create_dir")
        await translated(request, FileThreads.of(self.runtime).call(make_directories, self._root, names))
