"""ErrorContext: every error names operation, path, service and progress; foreign exceptions become errors of ours.

The innermost layer, next to the service. The layers further out name operation and path in their own errors, so no
error reaches a caller without them (in OpenDAL errors of outer layers have no context).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aioprefetch.accessor.path_hints import hint_at_path
from aioprefetch.accessor.protocols import (
    Accessor,
    Layer,
    WrappedAccessor,
    WriteBody,
    read_now_of,
    reports_requests_of,
    stall_seconds_of,
)
from aioprefetch.accessor.request_events import OPERATIONS, ReportedRequest, reporting
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error, NotFound, Unexpected, cause_of
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
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

    It reports the requests of a service that does not do so itself, while there is a listener.
    """

    rename = WrappedAccessor.rename  # Neither bytes nor names are changed here.

    def __init__(self, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self.stall_seconds = stall_seconds_of(inner)
        self.read_now = read_now_of(inner)
        self._service = inner.info.location
        self._runtime = runtime
        self._events = runtime.events
        self._reports = OPERATIONS.difference(reports_requests_of(inner))

    def explain(self, error: Exception, request: Request, **facts: object) -> Error:
        """``error`` with its context, or ``Unexpected`` with a foreign ``error`` as its cause."""
        if not isinstance(error, Error):
            error = Unexpected(f"{type(error).__name__}: {error}")
        error.add_context(operation=request.operation, path=request.path, service=self._service, **facts)
        return hint_at_path(error, self.inner.info) if isinstance(error, NotFound) else error

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]], sent_bytes: int = 0) -> T:
        if self._events.wants_requests and request.operation in self._reports:
            forward = reporting(self._runtime, forward, sent_bytes=sent_bytes)
        try:
            return await forward(request)
        except Exception as error:
            raise self.explain(error, request) from cause_of(error)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        before = sink.received
        try:
            if self._events.wants_requests and "read" in self._reports:
                return await reporting(self._runtime, self._read(sink), sink=sink)(request)
            return await self.inner.read(request, sink)
        except Exception as error:
            raise self._explain_read(error, request, sink, before) from cause_of(error)

    def _explain_read(self, error: Exception, request: ReadRequest, sink: Sink, before: int) -> Error:
        explained = self.explain(error, request, range=request.describe(), received=sink.received - before)
        explained.head, explained.received = sink.head, sink.received
        return explained

    def _read(self, sink: Sink) -> Callable[[ReadRequest], Awaitable[ReadReply]]:
        return lambda request: self.inner.read(request, sink)

    def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Coroutine[Any, Any, Metadata]:
        return self.around(request, lambda changed: self.inner.write(changed, data), len(data))

    def write_part(
        self, request: PartRequest, data: bytes | bytearray | memoryview
    ) -> Coroutine[Any, Any, UploadedPart]:
        return self.around(request, lambda changed: self.inner.write_part(changed, data), len(data))

    async def open_write(self, request: WriteRequest) -> WriteBody:
        is_told = self._events.wants_requests and request.operation in self._reports
        reported = ReportedRequest(self._runtime, request) if is_told else None
        try:
            body = await self.inner.open_write(request)
        except BaseException as error:
            if reported is not None:
                reported.failed(error)
            if not isinstance(error, Exception):
                raise
            raise self.explain(error, request) from cause_of(error)
        return ErrorContextWriteBody(body, self, request, reported)


class ErrorContextWriteBody:
    """A body that is written; its errors name the bytes written so far. ``reported`` is the request in events."""

    def __init__(
        self, body: WriteBody, layer: ErrorContextAccessor, request: WriteRequest, reported: ReportedRequest | None
    ) -> None:
        self._body = body
        self._layer = layer
        self._request = request
        self._written = 0
        self._reported = reported

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        try:
            await self._body.write(chunk)
        except BaseException as error:
            raise self._failed(error) from cause_of(error)
        self._written += len(chunk)

    async def close(self) -> Metadata:
        try:
            written = await self._body.close()
        except BaseException as error:
            raise self._failed(error) from cause_of(error)
        if self._reported is not None:
            self._reported.sent_bytes = self._written
            self._reported.finished()
        return written

    async def abort(self) -> None:
        self._failed(asyncio.CancelledError())  # After ``close``, or a write that failed, the request has ended.
        await self._body.abort()

    def _failed(self, error: BaseException) -> BaseException:
        """The error as it is raised: with its context, unless it is a cancellation or the like. It is reported."""
        if isinstance(error, Exception):
            error = self._layer.explain(error, self._request, written=self._written)
        if self._reported is not None:
            self._reported.sent_bytes = self._written
            self._reported.failed(error)
        return error
