"""A memory store that takes objects in parts of a few bytes, and shows what is left of its uploads."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import InvalidArgument, Unexpected
from aioprefetch.layers import ErrorContextLayer
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory
from aioprefetch.testing.fault_layer import FaultAccessor, FaultLayer, Injection
from aioprefetch.values import (
    AbortUploadRequest,
    Capability,
    CompleteUploadRequest,
    CopyPartRequest,
    CopyRequest,
    ListUploadsRequest,
    Metadata,
    PartRequest,
    ReadRequest,
    StatRequest,
    Upload,
    UploadedPart,
    UploadPage,
    WriteRequest,
)

PART_BYTES = 1000


@dataclass
class PartStore(Layer):
    """Adds uploads in parts to the service below. ``uploads`` are those that were neither completed nor aborted."""

    part_bytes: int = PART_BYTES
    parts_max: int = 10_000
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    completed: dict[str, Metadata] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)
    begun: dict[str, datetime | None] = field(default_factory=dict)
    made_at: float = field(default_factory=time.time)

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return PartAccessor(inner, self)

    __hash__ = object.__hash__


class PartAccessor(WrappedAccessor):
    """The live layer: as S3, it takes a part again, and completes an upload again that it has completed."""

    def __init__(self, inner: Accessor, store: PartStore) -> None:
        super().__init__(inner)
        self._store = store
        self._clock = asyncio.get_running_loop().time
        self._clock_start = self._clock()

    @property
    def capability(self) -> Capability:
        part_bytes = self._store.part_bytes
        return replace(
            self.inner.capability,
            write_part_bytes=part_bytes,
            write_parts_max=self._store.parts_max,
            copy_bytes_max=2 * part_bytes,
            copy_part_bytes=part_bytes,
        )

    async def begin_upload(self, request: WriteRequest) -> str:
        upload_id = f"upload-{len(self._store.uploads) + len(self._store.completed)}"
        self._store.uploads[upload_id] = {}
        self._store.begun[upload_id] = datetime.fromtimestamp(
            self._store.made_at + self._clock() - self._clock_start, UTC
        )
        return upload_id

    async def write_part(self, request: PartRequest, data: bytes | bytearray | memoryview) -> UploadedPart:
        self._upload(request.upload_id, request)[request.number] = bytes(data)
        self._store.sent.append(request.number)
        return UploadedPart(number=request.number, etag=f"e{request.number}", size=len(data))

    async def copy(self, request: CopyRequest) -> Metadata:
        found = await self.inner.stat(StatRequest(path=request.path))
        if (found.size or 0) > self.capability.copy_bytes_max:
            raise InvalidArgument("too large", operation="copy", path=request.path, context={"code": "InvalidRequest"})
        return await self.inner.copy(request)

    async def copy_part(self, request: CopyPartRequest) -> UploadedPart:
        sink, size = CollectSink(), request.end - request.start
        part = ReadRequest(path=request.source, offset=request.start, size=size, if_match=request.if_match)
        await self.inner.read(part, sink)
        return await self.write_part(request, sink.to_bytes())

    async def complete_upload(self, request: CompleteUploadRequest) -> Metadata:
        if request.upload_id in self._store.completed:
            return self._store.completed[request.upload_id]
        parts = self._upload(request.upload_id, request)
        assert [part.number for part in request.parts] == sorted(parts)
        conditions = {name: getattr(request, name) for name in ("if_match", "if_none_match", "if_not_exists")}
        whole = WriteRequest(path=request.path, **conditions)
        metadata = await self.inner.write(whole, b"".join(data for _, data in sorted(parts.items())))
        del self._store.uploads[request.upload_id]
        self._store.completed[request.upload_id] = metadata
        return metadata

    async def abort_upload(self, request: AbortUploadRequest) -> None:
        self._store.uploads.pop(request.upload_id, None)

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        begun = self._store.begun
        uploads = (Upload(path="k", upload_id=name, started=begun[name]) for name in self._store.uploads)
        return UploadPage(uploads=tuple(uploads))

    def _upload(self, upload_id: str, request: PartRequest | CompleteUploadRequest) -> dict[int, bytes]:
        if upload_id not in self._store.uploads:
            raise Unexpected("there is no such upload", operation=request.operation, path=request.path)
        return self._store.uploads[upload_id]


@dataclass
class Bed:
    """An operator with the default layers over a plan of faults over a store of parts."""

    op: Operator
    parts: PartStore

    @property
    def faults(self) -> FaultAccessor:
        """The live layer of faults."""
        accessor: object = self.op.accessor()
        while not isinstance(accessor, FaultAccessor):
            assert isinstance(accessor, WrappedAccessor)
            accessor = accessor.inner
        return accessor

    @property
    def budget_bytes(self) -> int:
        """The bytes of the budget in use."""
        return self.op.runtime().budget.used_bytes


@asynccontextmanager
async def part_bed(
    plan: Sequence[Injection] = (), *, part_bytes: int = PART_BYTES, parts_max: int = 10_000, **options: Any
) -> AsyncIterator[Bed]:
    """A bed over a private store; at its end no bytes are reserved."""
    parts = PartStore(part_bytes, parts_max)
    op = Operator(Memory(), **options).layer(parts, inside=ErrorContextLayer)
    bed = Bed(op.layer(FaultLayer(tuple(plan)), inside=ErrorContextLayer), parts)
    async with bed.op:
        yield bed
        assert bed.budget_bytes == 0
