"""The base of every live service: an operation that the service does not override is ``Unsupported``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from aioprefetch.accessor.protocols import Accessor, refused
from aioprefetch.errors import ConditionNotMatch, Error
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    Capability,
    DeleteRequest,
    Identity,
    Metadata,
    ReadRequest,
    Request,
    ServiceInfo,
    WriteRequest,
)

# The message of ``AlreadyExists`` for a write under ``if_not_exists``.
EXISTS_ALREADY = "an object is there already; without if_not_exists (mode 'x' of a file) it would be replaced"


def is_unmodified(request: Request, error: BaseException) -> bool:
    """Whether an error is the expected response to a condition that asks for a change: nothing changed."""
    if not (isinstance(request, ReadRequest) and isinstance(error, ConditionNotMatch)):
        return False
    if request.if_match is not None or request.if_unmodified_since is not None:
        return False  # It may be the other condition that does not hold.
    return request.if_none_match is not None or request.if_modified_since is not None


def not_deleted(failures: Mapping[Any, Error], request: DeleteRequest) -> Error:
    """The error of a delete that left some paths: if possible one worth a retry, otherwise the first.

    Its context has ``failures``: the error's kind for each path that is left, or path with the version of it.
    """
    error = next((each for each in failures.values() if each.is_temporary), next(iter(failures.values())))
    if len(request.paths) > 1:
        kinds = {path: each.kind for path, each in failures.items()}
        error.context |= {"failed": len(failures), "of": len(request.paths), "failures": kinds}
    return error


# Hosts under which AWS serves all of a partition: a bucket has one name in it.
_AWS = (".amazonaws.com", ".api.aws", ".amazonaws.com.cn", ".api.amazonwebservices.com.cn")
_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def identity_of_key(info: ServiceInfo, path: str) -> Identity:
    """The identity of an object with a key, in a store where two keys are two objects."""
    key = f"{info.root.strip('/')}/{path}" if info.root.strip("/") else path
    folders = [at + 1 for at, letter in enumerate(key[:-1]) if letter == "/"]
    return Identity(
        store=(_SCHEMES.get(info.scheme, info.scheme), _place_of(info), info.name),
        name=key,
        within=tuple(key[:end] for end in ([0, *folders] if key else ())),
        path=key,
    )


def _place_of(info: ServiceInfo) -> str:
    """The endpoint as one of its spellings; AWS's own endpoints are named by their partition."""
    address = info.endpoint.lower().rstrip("/")
    if info.scheme.startswith("s3") and not address:
        return "aws-cn" if info.region.startswith("cn-") else "aws"
    protocol, separator, host = address.partition("://")
    if not separator:
        return address
    host = host.removesuffix(":443" if protocol == "https" else ":80")
    if host.endswith(_AWS):
        return "aws-cn" if host.endswith(".cn") else "aws"
    return f"{protocol}://{host}"


class ServiceAccessor(Accessor):
    """An accessor without operations. A service overrides what it is capable of; the others raise ``Unsupported``."""

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
        raise refused(self, request, what)

    async def identity(self, path: str) -> Identity:
        """The identity of a key below the root. A service in which two keys are one object says so here."""
        return identity_of_key(self._info, path)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


class CollectedWriteBody:
    """A streaming write to a service that writes whole objects: it collects the object in memory."""

    def __init__(self, inner: Accessor, request: WriteRequest) -> None:
        self._inner = inner
        self._request = request
        self._data = bytearray()

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._data += chunk

    async def close(self) -> Metadata:
        return await self._inner.write(self._request, self._data)

    async def abort(self) -> None:
        self._data = bytearray()  # Not emptied: the error of a write may hold a view of it.
