"""The seam: what a service offers and a layer wraps, and how recipes become live stacks.

A **service** (``aioprefetch.services``) and a **layer** (``aioprefetch.layers``) are picklable recipes. Within a
runtime the service is built and wrapped, innermost layer first; the result is the ``Accessor`` that all reads use.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.write_body import ReadBody, WriteBody
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
    ServiceInfo,
    StatRequest,
    WriteRequest,
)


@runtime_checkable
class Accessor(Protocol):
    """What can be done with a store, one request at a time.

    Every method raises errors of ``aioprefetch.errors`` alone (and ``asyncio.CancelledError``), with operation and
    path. A cancelled call leaves no connection, task or file behind; a cancelled write leaves no object.
    """

    @property
    def info(self) -> ServiceInfo: ...
    @property
    def capability(self) -> Capability: ...

    async def stat(self, request: StatRequest) -> Metadata: ...
    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """Read into a buffer: begin the sink with the checked head, fill it. On failure ``sink.received`` stands."""
        ...

    async def open_read(self, request: ReadRequest) -> ReadBody:
        """Read as a stream: returns when the head has come and been checked. The caller closes the body."""
        ...

    async def list_page(self, request: ListRequest) -> ListPage: ...
    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata: ...
    async def open_write(self, request: WriteRequest) -> WriteBody: ...
    async def copy(self, request: CopyRequest) -> Metadata: ...
    async def delete(self, request: DeleteRequest) -> None: ...
    async def create_dir(self, request: CreateDirRequest) -> None: ...
    async def presign(self, request: PresignRequest) -> str: ...
    async def aclose(self) -> None: ...


def stall_seconds_of(accessor: Accessor) -> float | None:
    """After how many seconds without a byte an accessor ends every wait of its own, ``None`` if it does not say.

    A service whose transport watches its connections says so by an attribute ``stall_seconds`` of its live accessor,
    and layers that wait for nothing else pass it on. ``read``, ``open_read``, ``read_chunk`` and ``stat`` then raise
    ``TimedOut`` or ``Stalled`` by themselves, whatever they wait for: a response, a connection, credentials.
    ``Timeout`` puts no second watch on a read that is watched closely enough.
    """
    seconds = getattr(accessor, "stall_seconds", None)
    return float(seconds) if isinstance(seconds, int | float) else None


class Service(Protocol):
    """The recipe of a service: configuration without secrets in its repr or pickle."""

    @property
    def info(self) -> ServiceInfo: ...
    @property
    def capability(self) -> Capability: ...
    def build(self, runtime: Runtime) -> Accessor:
        """The live accessor for one runtime. Does no I/O; connects when it is first used."""
        ...


class Layer:
    """The recipe of a layer. ``wrap`` may keep state for a runtime under ``runtime.shared``."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """The live layer around ``inner``."""
        raise NotImplementedError

    def adapt(self, capability: Capability) -> Capability:
        """What the stack can do with this layer around it; unchanged unless the layer adds something."""
        return capability
