"""ErrorContext: every error names operation, path, service and progress; foreign exceptions become errors of ours.

The innermost layer, next to the service. The layers further out name operation and path in their own errors, so no
error reaches a caller without them (in OpenDAL errors of outer layers have no context).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, read_now_of, stall_seconds_of
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.accessor.write_body import WriteBody
from aioprefetch.errors import Error, NotFound, Unexpected
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Metadata, ReadReply, ReadRequest, Request, ServiceInfo, WriteRequest

R = TypeVar("R", bound=Request)
T = TypeVar("T")


class ErrorContextLayer(Layer):
    """The recipe of ErrorContext; it has no options."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return ErrorContextAccessor(inner)


def path_hint(path: str, service: ServiceInfo) -> str:
    """Why a path is most likely wrong: it is a URL or begins with a slash. Such keys may exist, so none is refused."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme.isalnum():
        root = service.url.partition("://")[2].rstrip("/")
        relative = rest.removeprefix(f"{root}/")
        meant = f", so this may be {relative!r}" if relative != rest else ""
        return f"paths are relative to {service.location}, and this one is a URL{meant}"
    if path.startswith("/"):
        return f"paths are relative to {service.location}, and this one begins with a slash"
    return ""


class ErrorContextAccessor(WrappedAccessor):
    """Adds to each error: ``service``, ``range``, and how many bytes had been received or written."""

    def __init__(self, inner: Accessor) -> None:
        super().__init__(inner)
        self.stall_seconds = stall_seconds_of(inner)
        self.read_now = read_now_of(inner)
        self._service = inner.info.location

    def explain(self, error: Exception, request: Request, **facts: object) -> Error:
        """``error`` with its context, or ``Unexpected`` with a foreign ``error`` as its cause."""
        if not isinstance(error, Error):
            foreign = Unexpected(f"{type(error).__name__}: {error}")
            foreign.__cause__ = error
            error = foreign
        error.add_context(operation=request.operation, path=request.path, service=self._service, **facts)
        hint = path_hint(error.path, self.inner.info) if isinstance(error, NotFound) else ""
        return error.add_context(hint=hint) if hint else error

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        try:
            return await forward(request)
        except Exception as error:
            explained = self.explain(error, request)
            raise explained from explained.__cause__

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        before = sink.received
        try:
            return await self.inner.read(request, sink)
        except Exception as error:
            explained = self.explain(error, request, range=request.describe(), received=sink.received - before)
            explained.head, explained.received = sink.head, sink.received
            raise explained from explained.__cause__

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return ErrorContextWriteBody(await self.around(request, self.inner.open_write), self, request)


class ErrorContextWriteBody:
    """A body that is written; its errors name the bytes written so far."""

    def __init__(self, body: WriteBody, layer: ErrorContextAccessor, request: WriteRequest) -> None:
        self._body = body
        self._layer = layer
        self._request = request
        self._written = 0

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        try:
            await self._body.write(chunk)
        except Exception as error:
            explained = self._layer.explain(error, self._request, written=self._written)
            raise explained from explained.__cause__
        self._written += len(chunk)

    async def close(self) -> Metadata:
        try:
            return await self._body.close()
        except Exception as error:
            explained = self._layer.explain(error, self._request, written=self._written)
            raise explained from explained.__cause__

    async def abort(self) -> None:
        await self._body.abort()
