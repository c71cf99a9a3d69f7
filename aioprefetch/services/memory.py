"""Objects in this process's memory: for tests, examples, and as a cache.

A store with a name is one for the whole process, whoever asks; one without belongs to its recipe and what is derived
from it. A stored object never changes: a write replaces it, so a read sees one version.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.service_base import ServiceAccessor, is_unmodified
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.write_body import ReadBody, WriteBody
from aioprefetch.errors import AlreadyExists, ConditionNotMatch, ConfigInvalid, Error, NotFound, RangeNotSatisfied
from aioprefetch.ranges import resolve_range
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.folding import fold_page
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

# A body is handed out in pieces of this size, so that a reader of a stream holds little more than it uses.
CHUNK_BYTES = 1 << 20

CAPABILITY = Capability(
    read=True,
    read_range=True,
    read_suffix=True,
    read_if_match=True,
    read_if_none_match=True,
    stat=True,
    stat_directory=True,
    list=True,
    list_recursive=True,
    list_start_after=True,
    write=True,
    write_stream=True,
    write_if_match=True,
    write_if_not_exists=True,
    write_content_type=True,
    write_user_metadata=True,
    copy=True,
    delete=True,
    delete_paths_max=1 << 20,
    create_dir=True,
)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object: its bytes, and its metadata with the ETag."""

    data: bytes
    metadata: Metadata


@dataclass(slots=True)
class Store:
    """The objects of one store by key."""

    objects: dict[str, StoredObject] = field(default_factory=dict)
    _etags: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    # A cache on a disk outlives the process: the stores of two processes must not give one ETag to different bytes.
    _token: str = field(default_factory=lambda: secrets.token_hex(4))
    _sorted: list[str] | None = None

    def put(self, request: WriteRequest, data: bytes) -> Metadata:
        """Store an object under its key in place of what was there."""
        metadata = Metadata(
            path=request.path,
            size=len(data),
            etag=f"{next(self._etags):x}-{len(data):x}-{self._token}",
            last_modified=datetime.now(UTC),
            content_type=request.content_type,
            content_encoding=request.content_encoding,
            content_disposition=request.content_disposition,
            cache_control=request.cache_control,
            user_metadata=dict(request.user_metadata),
        )
        if request.path not in self.objects:
            self._sorted = None
        self.objects[request.path] = StoredObject(data, metadata)
        return metadata

    def remove(self, key: str) -> None:
        """Remove a key; one that is missing is no error."""
        if self.objects.pop(key, None) is not None:
            self._sorted = None

    def keys(self) -> list[str]:
        """All keys in order."""
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        return self._sorted


_named: dict[str, Store] = {}


@dataclass(frozen=True, slots=True)
class Memory:
    """The recipe: ``Memory("name")`` for the process-wide store of that name, ``Memory()`` for a private one.

    A private store cannot be pickled (``ConfigInvalid``): its objects would be left behind.
    """

    name: str = ""
    root: str = ""
    _private: Store = field(default_factory=Store, repr=False, compare=False)

    @property
    def info(self) -> ServiceInfo:
        name = self.name or f"private-{id(self._private):x}"
        return ServiceInfo(scheme="memory", name=name, root=self.root.strip("/"))

    @property
    def capability(self) -> Capability:
        return CAPABILITY

    @property
    def store(self) -> Store:
        """The objects, for tests that look or put behind the accessor's back."""
        return _named.setdefault(self.name, Store()) if self.name else self._private

    def build(self, runtime: Runtime) -> Accessor:
        return MemoryAccessor(self, runtime)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.name:
            raise ConfigInvalid(
                "a private memory store cannot be pickled; give it a name: memory://name", operation="pickle"
            )
        return type(self), (self.name, self.root)


class MemoryAccessor(ServiceAccessor):
    """The live memory service."""

    def __init__(self, service: Memory, runtime: Runtime) -> None:
        super().__init__(service.info, service.capability, runtime)
        self.store = service.store
        self._root = f"{service.info.root}/" if service.info.root else ""

    def _find(self, request: Request) -> StoredObject:
        found = self.store.objects.get(self._root + request.path)
        if found is None:
            raise NotFound("there is no such object", operation=request.operation, path=request.path)
        return found

    def _is_directory(self, path: str) -> bool:
        prefix = self._root + path
        return not prefix or any(key.startswith(prefix) for key in self.store.objects)

    async def stat(self, request: StatRequest) -> Metadata:
        if not request.path or request.path.endswith("/"):
            if not request.path.strip("/") or self._is_directory(request.path):
                return Metadata(path=request.path, kind="directory")
            raise NotFound("there is no such directory", operation="stat", path=request.path)
        return replace(self._find(request).metadata, path=request.path)

    def _open(self, request: ReadRequest) -> tuple[ReadHead, memoryview]:
        counters = self.runtime.counters
        counters["action_http_get_request"] += 1
        try:
            head, view = self._find_range(request)
        except Error as error:
            if not is_unmodified(request, error):
                counters.failed("action_http_get_request")
            raise
        counters.succeeded("action_http_get_request", 0.0)  # The response is there at once.
        counters["stream_read_total_bytes"] += head.size
        return head, view

    def _find_range(self, request: ReadRequest) -> tuple[ReadHead, memoryview]:
        found = self._find(request)
        etag, total = found.metadata.etag, len(found.data)
        if request.if_match not in (None, "*", etag):
            raise _not_matched(request, f"the ETag is {etag!r}, not {request.if_match!r}", etag)
        if request.if_none_match is not None and request.if_none_match in ("*", etag):
            raise _not_matched(request, f"the ETag is still {etag!r}", etag)
        bounds = resolve_range(request.offset, request.size, request.suffix, total)
        if bounds is None:
            raise RangeNotSatisfied(
                f"{request.describe()} starts at or beyond the end", total=total, operation="read", path=request.path
            )
        start, end = bounds
        head = ReadHead(
            start=start,
            size=end - start,
            total=total,
            etag=etag,
            last_modified=found.metadata.last_modified,
            content_type=found.metadata.content_type,
        )
        return head, memoryview(found.data)[start:end]

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        head, view = self._open(request)
        sink.begin(head, path=request.path)
        sink.feed(view)
        return ReadReply(head=head, received=head.size)

    async def open_read(self, request: ReadRequest) -> ReadBody:
        head, view = self._open(request)
        return MemoryBody(head, view)

    async def list_page(self, request: ListRequest) -> ListPage:
        strip = len(self._root)

        def entry_of(key: str) -> Entry:
            found = self.store.objects[key].metadata
            return Entry(path=key, size=found.size, etag=found.etag, last_modified=found.last_modified)

        with self.runtime.timer("object_list_request"):
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
        return ListPage(entries=entries, next_token=page.next_token)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        key = self._root + request.path
        present = self.store.objects.get(key)
        etag = present.metadata.etag if present else None
        if request.if_not_exists and present:
            raise AlreadyExists("the object exists already", operation="write", path=request.path)
        if request.if_match is not None and (etag is None or request.if_match not in ("*", etag)):
            raise _not_matched(request, f"the ETag is {etag!r}, not {request.if_match!r}", etag)
        self.runtime.counters["object_put_request"] += 1
        self.runtime.counters["stream_write_bytes"] += len(data)
        return replace(self.store.put(replace(request, path=key), bytes(data)), path=request.path)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return MemoryWriteBody(self, request)

    async def copy(self, request: CopyRequest) -> Metadata:
        found = self._find(request)
        self.runtime.counters["object_copy_request"] += 1
        source = found.metadata
        target = WriteRequest(
            path=self._root + request.target,
            content_type=source.content_type,
            content_encoding=source.content_encoding,
            content_disposition=source.content_disposition,
            cache_control=source.cache_control,
            user_metadata=source.user_metadata,
        )
        return replace(self.store.put(target, found.data), path=request.target)

    async def delete(self, request: DeleteRequest) -> None:
        self.runtime.counters["object_delete_request"] += 1
        for path in request.paths:
            self.store.remove(self._root + path)

    async def create_dir(self, request: CreateDirRequest) -> None:
        if request.path[:-1] and self._root + request.path[:-1] in self.store.objects:
            raise AlreadyExists("an object of that name exists", operation="create_dir", path=request.path)
        if not self._is_directory(request.path):
            self.store.put(WriteRequest(path=self._root + request.path), b"")


class MemoryBody:
    """A body out of memory, in pieces."""

    def __init__(self, head: ReadHead, view: memoryview) -> None:
        self.head = head
        self._view = view

    async def read_chunk(self) -> memoryview:
        chunk, self._view = self._view[:CHUNK_BYTES], self._view[CHUNK_BYTES:]
        return chunk

    async def aclose(self) -> None:
        self._view = memoryview(b"")


class MemoryWriteBody:
    """Collects pieces; the object appears when it is closed."""

    def __init__(self, accessor: MemoryAccessor, request: WriteRequest) -> None:
        self._accessor = accessor
        self._request = request
        self._chunks: list[bytes] = []

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._chunks.append(bytes(chunk))

    async def close(self) -> Metadata:
        return await self._accessor.write(self._request, b"".join(self._chunks))

    async def abort(self) -> None:
        self._chunks.clear()


def _not_matched(request: Request, why: str, etag: str | None) -> ConditionNotMatch:
    return ConditionNotMatch(why, operation=request.operation, path=request.path, context={"etag": etag})
