"""The live memory service."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aioprefetch.accessor.http_headers import described_by
from aioprefetch.accessor.protocols import WriteBody
from aioprefetch.accessor.response_check import check_range
from aioprefetch.accessor.service_base import EXISTS_ALREADY, CollectedWriteBody, ServiceAccessor, not_deleted
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, IsSameFile, NotFound, copy_of
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.keys import fold_page
from aioprefetch.services.memory.options import MemoryOptions
from aioprefetch.services.memory.store import StoredObject
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

# Reads between two turns of the loop: a read that never waits would keep other tasks from running.
_READS_BY_TURN = 16


class MemoryAccessor(ServiceAccessor):
    """The live memory service."""

    def __init__(self, options: MemoryOptions, runtime: Runtime) -> None:
        info = options.info
        super().__init__(info, options.capability, runtime)
        self.store = options.store
        self._root = f"{info.root}/" if info.root else ""
        self._reads = 0

    def _find(self, request: Request) -> StoredObject:
        stored = self.store.objects.get(self._root + request.path)
        if stored is None:
            raise NotFound("there is no such object", operation=request.operation, path=request.path)
        return stored

    def _is_directory(self, path: str) -> bool:
        prefix = self._root + path
        return not prefix or any(key.startswith(prefix) for key in self.store.objects)

    def _check(
        self, operation: str, path: str, if_match: str | None, if_none_match: str | None = None, *, is_new: bool = False
    ) -> None:
        """Raise unless these conditions hold for the object at a path."""
        present = self.store.objects.get(self._root + path)
        if is_new and present:
            raise AlreadyExists(EXISTS_ALREADY, operation=operation, path=path)
        etag = present.metadata.etag if present else None
        is_unwanted = etag is not None and etag == if_none_match
        if is_unwanted or (if_match is not None and (etag is None or if_match not in ("*", etag))):
            wanted = f"still {etag!r}" if is_unwanted else f"{etag!r}, not {if_match!r}"
            why = "there is no such object" if etag is None else f"the ETag is {wanted}"
            raise ConditionNotMatch(why, operation=operation, path=path, context={"etag": etag})

    async def stat(self, request: StatRequest) -> Metadata:
        stored = self.store.objects.get(self._root + request.path)
        if not request.path or (request.path.endswith("/") and not (stored and stored.data)):
            if not request.path.strip("/") or self._is_directory(request.path):
                return Metadata(path=request.path, kind="directory")
            raise NotFound("there is no such directory", operation="stat", path=request.path)
        return replace(self._find(request).metadata, path=request.path)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        self._reads += 1
        if not self._reads % _READS_BY_TURN:
            await asyncio.sleep(0)
        stored = self._find(request)
        head = check_range(
            request,
            total=len(stored.data),
            etag=stored.metadata.etag,
            last_modified=stored.metadata.last_modified,
            content_type=stored.metadata.content_type,
            content_encoding=stored.metadata.content_encoding,
            user_metadata=stored.metadata.user_metadata,
        )
        sink.begin(head, path=request.path)
        body = memoryview(stored.data)[head.start : head.end]
        if sink.is_paced:
            await sink.pour(body)
        else:
            sink.feed(body)
        return ReadReply(head=head, received=head.size)

    async def list_page(self, request: ListRequest) -> ListPage:
        strip = len(self._root)

        def entry_of(key: str) -> Entry:
            metadata = self.store.objects[key].metadata
            return Entry(path=key, size=metadata.size, etag=metadata.etag, last_modified=metadata.last_modified)

        page = fold_page(
            self.store.keys(),
            replace(
                request,
                path=self._root + request.path,
                start_after=self._root + request.start_after if request.start_after else None,
            ),
            entry_of,
        )
        if not strip:
            return page
        entries = tuple(replace(entry, path=entry.path[strip:]) for entry in page.entries)
        return replace(page, entries=entries)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        key = self._root + request.path
        conditions = request.if_match, request.if_none_match
        self._check(request.operation, request.path, *conditions, is_new=request.if_not_exists)
        return replace(self.store.put(replace(request, path=key), bytes(data)), path=request.path)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return CollectedWriteBody(self, request)

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        return UploadPage(uploads=())  # Nothing is left of a write that failed.

    async def copy(self, request: CopyRequest) -> Metadata:
        if request.version is not None:
            self._unsupported(request, "versions")
        stored = self._find(request)
        self._check(request.operation, request.path, request.if_match)
        if request.path == request.target:
            raise IsSameFile("source and target are one object", operation=request.operation, path=request.path)
        self._check(request.operation, request.target, None, is_new=request.if_not_exists)
        target = WriteRequest(path=self._root + request.target, **described_by(stored.metadata))
        return replace(self.store.put(target, stored.data), path=request.target)

    async def delete(self, request: DeleteRequest) -> None:
        failures: dict[str, Error] = {}
        for path in request.paths:
            try:
                if self._root + path in self.store.objects:  # A missing one is ignored, with a condition too.
                    self._check(request.operation, path, (request.if_match or {}).get(path))
                self.store.remove(self._root + path)
            except Error as error:
                failures[path] = copy_of(error)
        if failures:
            raise not_deleted(failures, request)

    async def create_dir(self, request: CreateDirRequest) -> None:
        if request.path[:-1] and self._root + request.path[:-1] in self.store.objects:
            raise AlreadyExists("an object of that name exists", operation="create_dir", path=request.path)
        if not self._is_directory(request.path):
            self.store.put(WriteRequest(path=self._root + request.path), b"")
