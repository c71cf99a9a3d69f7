"""The seam between the library and a store, and how recipes become live stacks.

A **service** (``aioprefetch.services``) and a **layer** (``aioprefetch.layers``) are picklable recipes. Within a
runtime the service is built and wrapped, innermost layer first; the result is the ``Accessor`` of all operations.
``WrappedAccessor`` is the base of every live layer: it forwards all operations through one hook, and a layer overrides
some of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Unsupported
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    AbortUploadRequest,
    Capability,
    CompleteUploadRequest,
    CopyPartRequest,
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    Identity,
    ListPage,
    ListRequest,
    ListUploadsRequest,
    Metadata,
    PartRequest,
    PresignRequest,
    ReadReply,
    ReadRequest,
    RenameRequest,
    Request,
    ServiceInfo,
    StatRequest,
    UploadedPart,
    UploadPage,
    WriteRequest,
)

R = TypeVar("R", bound=Request)
T = TypeVar("T")


@runtime_checkable
class Accessor(Protocol):
    """The operations on a store. The requests of ``aioprefetch.values`` document them.

    Every method raises errors of ``aioprefetch.errors`` alone (and ``asyncio.CancelledError``), with operation and
    path. A cancelled call leaves no connection, task or file behind; a cancelled write leaves no object.

    A class that is derived from it refuses what it does not override (``ServiceAccessor``).
    """

    @property
    def info(self) -> ServiceInfo: ...
    @property
    def capability(self) -> Capability: ...

    async def stat(self, request: StatRequest) -> Metadata:
        raise refused(self, request)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """Read into a sink: begin it with the checked head, then deliver the body.

        An error of ``sink.begin`` refuses the response: the read raises it and takes no byte of the body. If the read
        fails or is cancelled, ``sink.received`` bytes have arrived, and a later read may continue there. Where the
        bytes are at hand (in memory, in the page cache) it ends without a suspension, but lets others run now and then.
        """
        raise refused(self, request)

    async def list_page(self, request: ListRequest) -> ListPage:
        raise refused(self, request)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        raise refused(self, request)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        raise refused(self, request, "streaming writes")

    async def begin_upload(self, request: WriteRequest) -> str:
        """Begin to write an object in parts, where ``capability.write_part_bytes`` is not 0; returns the upload's name.

        The conditions of the request are as for ``complete_upload``.
        """
        raise refused(self, request, "writes in parts")

    async def write_part(self, request: PartRequest, data: bytes | bytearray | memoryview) -> UploadedPart:
        raise refused(self, request, "writes in parts")

    async def copy_part(self, request: CopyPartRequest) -> UploadedPart:
        """Copy a part of an upload within the store, where ``capability.copy_part_bytes`` is not 0."""
        raise refused(self, request, "copies in parts")

    async def complete_upload(self, request: CompleteUploadRequest) -> Metadata:
        raise refused(self, request, "writes in parts")

    async def abort_upload(self, request: AbortUploadRequest) -> None:
        raise refused(self, request, "writes in parts")

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        raise refused(self, request, "the listing of uploads")

    async def copy(self, request: CopyRequest) -> Metadata:
        raise refused(self, request)

    async def rename(self, request: RenameRequest) -> Metadata:
        raise refused(self, request)

    async def delete(self, request: DeleteRequest) -> None:
        raise refused(self, request)

    async def create_dir(self, request: CreateDirRequest) -> None:
        raise refused(self, request)

    async def presign(self, request: PresignRequest) -> str:
        raise refused(self, request)

    async def identity(self, path: str) -> Identity:
        """The identity of what ``path`` names: two names of one object have the same. It asks no other machine."""

    async def aclose(self) -> None: ...


def refused(accessor: Accessor, request: Request, what: str = "") -> Unsupported:
    """The error of a service without an operation, or without ``what`` of it."""
    return Unsupported(
        f"the {accessor.info.scheme} service does not support {what or request.operation}",
        operation=request.operation,
        path=request.path,
        context={"service": accessor.info.location},
    )


def stall_seconds_of(accessor: Accessor) -> float | None:
    """The seconds without a byte after which an accessor ends its own waits, ``None`` if it does not.

    A service whose transport watches its connections has an attribute ``stall_seconds`` on its live accessor. A layer
    that adds no waits copies the attribute, or Timeout watches the same read a second time. ``read`` and ``stat`` then
    raise ``TimedOut`` or ``Stalled`` by themselves, whether they wait for a response, a connection or credentials.
    """
    seconds = getattr(accessor, "stall_seconds", None)
    return float(seconds) if isinstance(seconds, int | float) else None


class Service(Protocol):
    """The recipe of a service: its configuration. Secrets appear neither in its repr nor in its pickle."""

    @property
    def info(self) -> ServiceInfo: ...
    @property
    def capability(self) -> Capability: ...
    def build(self, runtime: Runtime) -> Accessor:
        """Build the live accessor for one runtime, without I/O: it connects at its first operation."""


def copies_from(target: Service, source: Service) -> bool:
    """Whether a store copies objects from another one by itself, with the credentials that it has.

    It does from an equal one. A recipe that can do more has a method ``copies_from(source)``: then the ``store`` of a
    ``CopyRequest`` names the source.
    """
    if source is target or (source == target and source.info == target.info):
        return True
    asked: Callable[[Service], bool] | None = getattr(target, "copies_from", None)
    return asked is not None and asked(source)


class Layer:
    """The recipe of a layer. State that all its live layers in a runtime share belongs in ``runtime.shared``."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """Build the live layer around ``inner``, without I/O."""
        raise NotImplementedError

    def adapt(self, capability: Capability) -> Capability:
        """The capability of the stack with this layer, from the ``capability`` of the stack below it."""
        return capability


def reports_requests_of(accessor: object) -> Collection[str]:
    """The operations whose requests an accessor reports itself. A layer passes on what the accessor within it says."""
    reported: Collection[str] = getattr(accessor, "reports_requests", ())
    return reported


class WriteBody(Protocol):
    """An object being written piece by piece. Nothing appears before ``close``; after ``abort`` nothing ever does.

    Every method raises errors of ``aioprefetch.errors`` alone. If one fails or is cancelled, call ``abort``.
    """

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append ``chunk``. The caller may change its memory as soon as the call returns."""

    async def close(self) -> Metadata:
        """Make the object visible and return its metadata."""

    async def abort(self) -> None:
        """Discard the written bytes, and remove them from the store.

        Allowed at any time, more than once, and after ``close``, where it does nothing.
        """


class WrappedAccessor:
    """Forwards each operation to ``inner`` through ``around``.

    Override ``around`` to change all operations, single methods to change these alone. The coroutine of ``around`` is
    returned itself, which saves a step in each layer. For a streaming write ``around``
    covers the opening; the body is the inner one unless the layer overrides ``open_write``.

    A layer that overrides ``read``, ``write`` or ``open_write`` may change bytes or names, which a rename would pass
    by: ``capability.rename`` is cleared unless it overrides ``rename`` as well, and a move copies.
    """

    _renames: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)

        def depth(name: str) -> int:
            return next(level for level, one in enumerate(cls.__mro__) if name in vars(one))

        cls._renames = depth("rename") <= min(map(depth, ("read", "write", "open_write")))

    def __init__(self, inner: Accessor) -> None:
        self.inner = inner

    @property
    def info(self) -> ServiceInfo:
        return self.inner.info

    @property
    def capability(self) -> Capability:
        capability = self.inner.capability
        return capability if self._renames or not capability.rename else replace(capability, rename=False)

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

    def rename(self, request: RenameRequest) -> Coroutine[Any, Any, Metadata]:
        return self.around(request, self.inner.rename)

    def delete(self, request: DeleteRequest) -> Coroutine[Any, Any, None]:
        return self.around(request, self.inner.delete)

    def create_dir(self, request: CreateDirRequest) -> Coroutine[Any, Any, None]:
        return self.around(request, self.inner.create_dir)

    def presign(self, request: PresignRequest) -> Coroutine[Any, Any, str]:
        return self.around(request, self.inner.presign)

    async def identity(self, path: str) -> Identity:
        return await self.inner.identity(path)

    async def aclose(self) -> None:
        await self.inner.aclose()
