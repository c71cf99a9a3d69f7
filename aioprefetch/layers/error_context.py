"""ErrorContext: every error names operation, path, service and progress; foreign exceptions become errors of ours.

The innermost layer, next to the service. The layers further out name operation and path in their own errors, so no
error reaches a caller without them (in OpenDAL errors of outer layers have no context).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aioprefetch.accessor.counted_requests import CHANGING, OPERATIONS, CountedRequest, note_change
from aioprefetch.accessor.path_hints import hint_at_path
from aioprefetch.accessor.protocols import (
    Accessor,
    Layer,
    WrappedAccessor,
    WriteBody,
    reports_requests_of,
    stall_seconds_of,
)
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error, NotFound, Unexpected, cause_of
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    CompleteUploadRequest,
    Metadata,
    PartRequest,
    ReadReply,
    ReadRequest,
    Request,
    UploadedPart,
    WriteRequest,
)

R = TypeVar("R", bound=Request)
T = TypeVar("T")


class ErrorContextLayer(Layer):
    """The recipe of ErrorContext; it has no options."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return ErrorContextAccessor(inner, runtime)


class ErrorContextAccessor(WrappedAccessor):
    """Adds to each error: ``service``, ``range``, and how many bytes had been received or written.

    It counts the requests of a service that does not do so itself, and reports them while there is a listener.
    """

    rename = WrappedAccessor.rename  # Neither bytes nor names are changed here.

    def __init__(self, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self.stall_seconds = stall_seconds_of(inner)
        self._service = inner.info.location
        self._runtime = runtime
        self._counted = OPERATIONS.difference(reports_requests_of(inner))

    def explain(self, error: Exception, request: Request, **facts: object) -> Error:
        """``error`` with its context, or ``Unexpected`` with a foreign ``error`` as its cause."""
        if not isinstance(error, Error):
            error = Unexpected(f"{type(error).__name__}: {error}")
        error.add_context(operation=request.operation, path=request.path, service=self._service, **facts)
        return hint_at_path(error, self.inner.info) if isinstance(error, NotFound) else error

    async def around(
        self, request: R, forward: Callable[[R], Awaitable[T]], sent_bytes: int = 0, operation: str = ""
    ) -> T:
        try:
            if (operation or request.operation) in self._counted:
                with CountedRequest(self._runtime, request, None, sent_bytes, operation):
                    return await forward(request)
            return await forward(request)
        except Exception as error:
            raise self.explain(error, request) from cause_of(error)
        finally:
            if request.operation in CHANGING:
                note_change()

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        before = sink.received
        try:
            if "read" in self._counted:
                with CountedRequest(self._runtime, request, sink) as counted:
                    return await self.inner.read(request, counted)
            return await self.inner.read(request, sink)
        except Exception as error:
            raise self._explain_read(error, request, sink, before) from cause_of(error)

    def _explain_read(self, error: Exception, request: ReadRequest, sink: Sink, before: int) -> Error:
        explained = self.explain(error, request, range=request.describe(), received=sink.received - before)
        explained.head, explained.received = sink.head, sink.received
        return explained

    def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Coroutine[Any, Any, Metadata]:
        return self.around(request, lambda changed: self.inner.write(changed, data), len(data))

    def begin_upload(self, request: WriteRequest) -> Coroutine[Any, Any, str]:
        return self.around(request, self.inner.begin_upload, operation="begin_upload")

    def complete_upload(self, request: CompleteUploadRequest) -> Coroutine[Any, Any, Metadata]:
        return self.around(request, self.inner.complete_upload, operation="complete_upload")

    def write_part(
        self, request: PartRequest, data: bytes | bytearray | memoryview
    ) -> Coroutine[Any, Any, UploadedPart]:
        return self.around(request, lambda changed: self.inner.write_part(changed, data), len(data))

    async def open_write(self, request: WriteRequest) -> WriteBody:
        body = ErrorContextWriteBody(self, request, self._runtime if request.operation in self._counted else None)
        body.target = await body.explained(self.inner.open_write(request))
        return body


class ErrorContextWriteBody:
    """A body that is written; its errors name the bytes written so far.

    It is a request from its first bytes on, or from its end without any, and counts in ``runtime``, if that is given.
    """

    target: WriteBody

    def __init__(self, layer: ErrorContextAccessor, request: WriteRequest, runtime: Runtime | None) -> None:
        self._layer = layer
        self._request = request
        self._runtime = runtime
        self._written = 0
        self._counted: CountedRequest | None = None

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._begin()
        await self.explained(self.target.write(chunk))
        self._written += len(chunk)

    async def close(self) -> Metadata:
        self._begin()
        written = await self.explained(self.target.close())
        self._end(None)
        return written

    async def abort(self) -> None:
        self._end(asyncio.CancelledError())  # After ``close``, or a write that failed, the request has ended.
        await self.target.abort()

    async def explained(self, call: Awaitable[T]) -> T:
        """The result of a step; its failure ends the request."""
        try:
            return await call
        except BaseException as error:
            self._begin()
            self._end(error)
            if not isinstance(error, Exception):
                raise
            raise self._layer.explain(error, self._request, written=self._written) from cause_of(error)

    def _begin(self) -> None:
        if self._counted is None and self._runtime is not None:
            self._counted = CountedRequest(self._runtime, self._request)

    def _end(self, error: BaseException | None) -> None:
        note_change()
        if self._counted is not None:
            self._counted.sent_bytes = self._written
            self._counted.__exit__(None, error, None)
