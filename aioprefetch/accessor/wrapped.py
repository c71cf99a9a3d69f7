"""The base of every live layer: it forwards all operations through one hook, and a layer overrides some of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.request_events import reports_requests_of
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.write_body import WriteBody
from aioprefetch.values import (
    AbortUploadRequest,
    Capability,
    CompleteUploadRequest,
    CopyPartRequest,
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListPage,
    ListRequest,
    ListUploadsRequest,
    Metadata,
    PartRequest,
    PresignRequest,
    ReadReply,
    ReadRequest,
    Request,
    ServiceInfo,
    StatRequest,
    UploadedPart,
    UploadPage,
    WriteRequest,
)

R = TypeVar("R", bound=Request)
T = TypeVar("T")


class WrappedAccessor:
    """Forwards each operation to ``inner`` through ``around``.

    Override ``around`` to change all operations, single methods to change these alone. The coroutine of ``around`` is
    returned itself, which saves a step in each layer. For a streaming write ``around``
    covers the opening; the body is the inner one unless the layer overrides ``open_write``.
    """

    def __init__(self, inner: Accessor) -> None:
        self.inner = inner

    @property
    def info(self) -> ServiceInfo:
        return self.inner.info

    @property
    def capability(self) -> Capability:
        return self.inner.capability

    @property
    def reports_requests(self) -> Collection[str]:
        """The operations whose requests the service reports itself: see ``aioprefetch.accessor.request_events``."""
        return reports_requests_of(self.inner)

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        """Called for every operation; it may call ``forward`` with another request, several times, or not at all."""
        return await forward(request)

    def stat(self, request: StatRequest) -> Coroutine[Any, Any, Metadata]:
        return self.around(request, self.inner.stat)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        return await self.around(request, lambda changed: self.inner.read(changed, sink))

    def list_page(self, request: ListRequest) -> Coroutine[Any, Any, ListPage]:
        return self.around(request, self.inner.list_page)

    def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Coroutine[Any, Any, Metadata]:
        return self.around(request, lambda changed: self.inner.write(changed, data))

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return await self.around(request, self.inner.open_write)

    def begin_upload(self, request: WriteRequest) -> Coroutine[Any, Any, str]:
        return self.around(request, self.inner.begin_upload)

    def write_part(
        self, request: PartRequest, data: bytes | bytearray | memoryview
    ) -> Coroutine[Any, Any, UploadedPart]:
        return self.around(request, lambda changed: self.inner.write_part(changed, data))

    def copy_part(self, request: CopyPartRequest) -> Coroutine[Any, Any, UploadedPart]:
        return self.around(request, self.inner.copy_part)

    def complete_upload(self, request: CompleteUploadRequest) -> Coroutine[Any, Any, Metadata]:
        return self.around(request, self.inner.complete_upload)

    def abort_upload(self, request: AbortUploadRequest) -> Coroutine[Any, Any, None]:
        return self.around(request, self.inner.abort_upload)

    def list_uploads(self, request: ListUploadsRequest) -> Coroutine[Any, Any, UploadPage]:
        return self.around(request, self.inner.list_uploads)

    def copy(self, request: CopyRequest) -> Coroutine[Any, Any, Metadata]:
        return self.around(request, self.inner.copy)

    def delete(self, request: DeleteRequest) -> Coroutine[Any, Any, None]:
        return self.around(request, self.inner.delete)

    def create_dir(self, request: CreateDirRequest) -> Coroutine[Any, Any, None]:
        return self.around(request, self.inner.create_dir)

    def presign(self, request: PresignRequest) -> Coroutine[Any, Any, str]:
        return self.around(request, self.inner.presign)

    async def aclose(self) -> None:
        await self.inner.aclose()
