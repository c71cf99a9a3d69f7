"""The base of every live service: an operation that the service does not override is ``Unsupported``."""

from __future__ import annotations

from typing import NoReturn

from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.write_body import WriteBody
from aioprefetch.errors import ConditionNotMatch, Unsupported
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    Capability,
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListPage,
    ListRequest,
    Metadata,
    PresignRequest,
    ReadReply,
    ReadRequest,
    Request,
    ServiceInfo,
    StatRequest,
    WriteRequest,
)


def is_unmodified(request: Request, error: Exception) -> bool:
    """Whether an error is the expected response to ``if_none_match``: the object has not changed."""
    conditional = isinstance(request, ReadRequest) and request.if_none_match is not None and request.if_match is None
    return conditional and isinstance(error, ConditionNotMatch)


class ServiceAccessor:
    """An accessor without operations. A service overrides those of its capability; the others raise ``Unsupported``."""

    def __init__(self, info: ServiceInfo, capability: Capability, runtime: Runtime) -> None:
        self._info = info
        self._capability = capability
        self.runtime = runtime

    @property
    def info(self) -> ServiceInfo:
        return self._info

    @property
    def capability(self) -> Capability:
        return self._capability

    def _unsupported(self, request: Request, what: str = "") -> NoReturn:
        raise Unsupported(
            f"the {self._info.scheme} service does not support {what or request.operation}",
            operation=request.operation,
            path=request.path,
            context={"service": self._info.location},
        )

    async def stat(self, request: StatRequest) -> Metadata:
        self._unsupported(request)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        self._unsupported(request)

    async def list_page(self, request: ListRequest) -> ListPage:
        self._unsupported(request)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        self._unsupported(request)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        self._unsupported(request, "streaming writes")

    async def copy(self, request: CopyRequest) -> Metadata:
        self._unsupported(request)

    async def delete(self, request: DeleteRequest) -> None:
        self._unsupported(request)

    async def create_dir(self, request: CreateDirRequest) -> None:
        self._unsupported(request)

    async def presign(self, request: PresignRequest) -> str:
        self._unsupported(request)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""
