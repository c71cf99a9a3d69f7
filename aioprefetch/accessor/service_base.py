"""The base of every live service: an operation that the service does not override is ``Unsupported``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from aioprefetch.accessor.protocols import WriteBody
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import ConditionNotMatch, Error, Unsupported
from aioprefetch.runtime.runtime import Runtime
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

# The message of ``AlreadyExists`` for a write under ``if_not_exists``.
EXISTS_ALREADY = "an object is there already; without if_not_exists (mode 'x' of a file) it would be replaced"


def is_unmodified(request: Request, error: Exception) -> bool:
    """Whether an error is the expected response to a condition that asks for a change: there was none."""
    if not (isinstance(request, ReadRequest) and isinstance(error, ConditionNotMatch)):
        return False
    if request.if_match is not None or request.if_unmodified_since is not None:
        return False  # It may be the other condition that does not hold.
    return request.if_none_match is not None or request.if_modified_since is not None


def not_deleted(failures: Mapping[str, Error], request: DeleteRequest) -> Error:
    """The error of a delete of which some paths are left: one that another attempt may end, otherwise the first.

    Its context has ``failures``: the error's kind for each path that is left.
    """
    error = next((each for each in failures.values() if each.is_temporary), next(iter(failures.values())))
    if len(request.paths) > 1:
        kinds = {path: each.kind for path, each in failures.items()}
        error.add_context(failed=len(failures), of=len(request.paths), failures=kinds)
    return error


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

    async def begin_upload(self, request: WriteRequest) -> str:
        self._unsupported(request, "writes in parts")

    async def write_part(self, request: PartRequest, data: bytes | bytearray | memoryview) -> UploadedPart:
        self._unsupported(request, "writes in parts")

    async def copy_part(self, request: CopyPartRequest) -> UploadedPart:
        self._unsupported(request, "copies in parts")

    async def complete_upload(self, request: CompleteUploadRequest) -> Metadata:
        self._unsupported(request, "writes in parts")

    async def abort_upload(self, request: AbortUploadRequest) -> None:
        self._unsupported(request, "writes in parts")

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        self._unsupported(request, "the listing of uploads")

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
