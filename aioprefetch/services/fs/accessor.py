"""The live fs service: requests become jobs for threads, and what they find becomes heads, pages and errors of ours."""

from __future__ import annotations

import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice

from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.write_body import ReadBody, WriteBody
from aioprefetch.errors import ConditionNotMatch, Error, IsADirectory, IsSameFile, NotFound, RangeNotSatisfied
from aioprefetch.ranges import resolve_range
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.folding import PAGE_ENTRIES
from aioprefetch.services.fs.bodies import FileBody, open_write_body, translated
from aioprefetch.services.fs.confined import ConfinedRoot, link_status, refuse_unless_regular
from aioprefetch.services.fs.failures import from_os_error
from aioprefetch.services.fs.keys import names_of, normalised
from aioprefetch.services.fs.opened import OpenedFile, metadata_of, modified_at, open_file
from aioprefetch.services.fs.partial import open_partial
from aioprefetch.services.fs.removal import make_directories, remove
from aioprefetch.services.fs.scanning import Scan
from aioprefetch.services.fs.threads import FileThreads
from aioprefetch.values import (
    Capability,
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    Entry,
    ListPage,
    ListRequest,
    Metadata,
    ReadHead,
    ReadReply,
    ReadRequest,
    Request,
    ServiceInfo,
    StatRequest,
    WriteRequest,
)

# Listings that wait for their next page; an older one starts anew from its token.
SUSPENDED_SCANS_MAX = 8
DELETE_BATCH = 100


class FsAccessor(ServiceAccessor):
    """Files below one confined root."""

    def __init__(
        self, info: ServiceInfo, capability: Capability, runtime: Runtime, root: ConfinedRoot, *, fsync: bool
    ) -> None:
        super().__init__(info, capability, runtime)
        self._root = root
        self._fsync = fsync
        self._place_lock = threading.Lock()
        self._suspended: OrderedDict[tuple[str, bool, str], Iterator[Entry]] = OrderedDict()

    def _names(self, request: Request, path: str | None = None) -> tuple[str, ...]:
        """The names of a path that must be a file's."""
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
        body = await self._open(request)
        try:
            sink.begin(body.head, path=request.path)
            await body.fill(sink)
        finally:
            await body.aclose()
        return ReadReply(head=body.head, received=body.head.size)

    async def open_read(self, request: ReadRequest) -> ReadBody:
        return await self._open(request)

    async def _open(self, request: ReadRequest) -> FileBody:
        if request.version is not None:
            self._unsupported(request, "versions")
        names = self._names(request)
        with self.runtime.timer("action_http_get_request"):
            job = self.runtime.run_blocking(open_file, self._root, names)
            file = await translated(request, job, OpenedFile.close)
        try:
            return FileBody(self.runtime, request, file, _head_of(request, file))
        except BaseException:
            file.close()
            raise

    async def list_page(self, request: ListRequest) -> ListPage:
        prefix = normalised(request.path)
        after = max(normalised(request.start_after or ""), request.page_token or "")
        scan = self._suspended.pop((prefix, request.recursive, request.page_token or ""), None)
        limit = request.page_entries_max or PAGE_ENTRIES
        with self.runtime.timer("object_list_request"):
            job = self.runtime.run_blocking(self._scan, scan, prefix, request.recursive, after, limit)
            entries, rest = await translated(request, job)
        if rest is None:
            return ListPage(entries=tuple(entries))
        token = entries[-1].path
        self._suspended[prefix, request.recursive, token] = rest
        if len(self._suspended) > SUSPENDED_SCANS_MAX:
            self._suspended.popitem(last=False)
        return ListPage(entries=tuple(entries), next_token=token)

    def _scan(
        self, scan: Iterator[Entry] | None, prefix: str, recursive: bool, after: str, limit: int
    ) -> tuple[list[Entry], Iterator[Entry] | None]:
        """Some entries, and what comes after them, if anything."""
        if scan is None:
            scan = Scan(self._root, prefix, recursive=recursive, after=after)
        entries = list(islice(scan, limit))
        following = next(scan, None)
        return entries, None if following is None else chain((following,), scan)

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
        return await open_write_body(self.runtime, request, opener, self._place_lock)

    async def copy(self, request: CopyRequest) -> Metadata:
        if self._names(request) == self._names(request, request.target):
            raise IsSameFile("source and target are one file", operation="copy", path=request.path)
        self.runtime.counters["object_copy_request"] += 1
        try:
            return await self._copy(request)
        except Error as error:
            error.operation = request.operation  # The caller asked for neither the read nor the write in it.
            raise

    async def _copy(self, request: CopyRequest) -> Metadata:
        source = await self._open(ReadRequest(path=request.path))
        try:
            target = await self.open_write(WriteRequest(path=request.target))
            try:
                while chunk := await source.read_chunk():
                    await target.write(chunk)
                return await target.close()
            finally:
                await target.abort()
        finally:
            await source.aclose()

    async def delete(self, request: DeleteRequest) -> None:
        self.runtime.counters["object_delete_request"] += 1
        named = [(names_of(path, operation="delete"), path) for path in request.paths]
        for path in (path for names, path in named if not names):
            raise IsADirectory("the root itself cannot be deleted", operation="delete", path=path)
        for start in range(0, len(named), DELETE_BATCH):
            job = FileThreads.of(self.runtime).call(self._delete, named[start : start + DELETE_BATCH])
            await translated(request, job)

    def _delete(self, named: list[tuple[tuple[str, ...], str]]) -> None:
        for names, path in named:
            try:
                remove(self._root, names, directory=path.endswith("/"))
            except OSError as error:
                raise from_os_error(error, operation="delete", path=path) from error

    async def create_dir(self, request: CreateDirRequest) -> None:
        names = names_of(request.path, operation="create_dir")
        await translated(request, FileThreads.of(self.runtime).call(make_directories, self._root, names))


def _head_of(request: ReadRequest, file: OpenedFile) -> ReadHead:
    """The head of the response to a request, or the condition or range that does not hold."""
    etag, total = file.etag, file.status.st_size
    facts: dict[str, object] = {"etag": etag}
    if request.if_match not in (None, "*", etag):
        raise ConditionNotMatch(
            f"the file's ETag is {etag!r}, not {request.if_match!r}",
            operation="read",
            path=request.path,
            context=facts,
        )
    if request.if_none_match is not None and request.if_none_match in ("*", etag):
        raise ConditionNotMatch(
            f"the file's ETag is still {etag!r}", operation="read", path=request.path, context=facts
        )
    bounds = resolve_range(request.offset, request.size, request.suffix, total)
    if bounds is None:
        raise RangeNotSatisfied(
            f"{request.describe()} starts at or beyond the end", total=total, operation="read", path=request.path
        )
    return ReadHead(
        start=bounds[0],
        size=bounds[1] - bounds[0],
        total=total,
        etag=etag,
        last_modified=modified_at(file.status),
    )
