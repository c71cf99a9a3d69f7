"""The seam: what a service offers and a layer wraps, and how recipes become live stacks.

A **service** (``aioprefetch.services``) and a **layer** (``aioprefetch.layers``) are picklable recipes. Within a
runtime the service is built and wrapped, innermost layer first; the result is the ``Accessor`` that all reads use.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from aioprefetch.bodies import ReadBody, WriteBody
from aioprefetch.errors import ConditionNotMatch, ProtocolError
from aioprefetch.headers import parse_content_range
from aioprefetch.ranges import Range, resolve_range
from aioprefetch.runtime import Runtime
from aioprefetch.sink import Sink
from aioprefetch.values import (
    AnswerHead,
    Capability,
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListPage,
    ListRequest,
    Metadata,
    PresignRequest,
    ReadHead,
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


def check_reply(request: ReadRequest, answer: AnswerHead) -> ReadHead:
    """The head of a 200 or 206, checked against its request, before the first byte of the body counts.

    Four kinds of wrong answer pass silently elsewhere: the whole object for a range, another range, a shorter body
    with consistent headers, another version. Raises ``ProtocolError`` or ``ConditionNotMatch``.
    """

    def wrong(why: str) -> ProtocolError:
        facts: dict[str, object] = {"range": request.describe(), "status": answer.status}
        return ProtocolError(why, operation="read", path=request.path, context=facts)

    if request.if_match not in (None, "*", answer.etag):
        raise ConditionNotMatch(
            f"the object's ETag is {answer.etag!r}, not {request.if_match!r}",
            operation="read",
            path=request.path,
            context={"if_match": request.if_match, "etag": answer.etag},
        )
    total: int | None
    # Some servers (rclone's S3, for one) answer a range with 200 and a correct Content-Range: that is obeyed too.
    if answer.status == 200 and answer.content_range is None:
        if answer.content_length is None:
            raise wrong("the answer does not tell the length of its body")
        start, end, total = 0, answer.content_length, answer.content_length
    else:
        parsed = parse_content_range(answer.content_range or "")
        bounds, total = parsed or (None, None)
        if answer.status not in (200, 206) or bounds is None:
            raise wrong(f"a partial answer with Content-Range {answer.content_range!r}")
        start, end = bounds
        if answer.content_length not in (None, end - start):
            raise wrong(f"Content-Length {answer.content_length} contradicts {answer.content_range!r}")
    if total is None and (request.size is None or request.suffix is not None):
        raise wrong(f"Content-Range {answer.content_range!r} does not tell where the object ends")
    first, last = _expected(request, total)
    if (start, end) != (first, last):
        raise wrong(f"the answer holds [{start}, {end}) where [{first}, {last}) was due: Range was not obeyed")
    return ReadHead(
        start=start,
        size=end - start,
        total=total,
        etag=answer.etag,
        version=answer.version,
        last_modified=answer.last_modified,
        content_type=answer.content_type,
    )


def _expected(request: ReadRequest, total: int | None) -> Range:
    if total is None:  # ``bytes a-b/*``: an answer to an exact range.
        return request.offset, request.offset + (request.size or 0)
    bounds = resolve_range(request.offset, request.size, request.suffix, total)
    return bounds or (request.offset, total)
