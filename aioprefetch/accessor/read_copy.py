"""A copy by reading and writing, where a store does not copy by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from aioprefetch.accessor.protocols import Accessor, WriteBody
from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.accessor.sink import CollectSink, is_same_version
from aioprefetch.errors import ConditionNotMatch, NotFound, RangeNotSatisfied
from aioprefetch.values import Metadata, ReadHead, ReadRequest, StatRequest

COPY_PART_BYTES = 8 << 20


async def copy_by_reading(
    source: Accessor,
    request: ReadRequest,
    opened: Callable[[ReadHead], Awaitable[WriteBody]],
    discard: Callable[[BaseException, WriteBody], Awaitable[None]],
    *,
    seen: Metadata | None = None,
    on_bytes: Callable[[int], object] | None = None,
) -> Metadata:
    """Write an object into the body that ``opened`` makes, ``request.size`` bytes at a time, all of one version.

    That is the version ``seen``, or of the ETag in ``request``, or else of the first part: ``ObjectChanged``
    for another one. ``discard`` removes what was written after an error or a cancellation. ``on_bytes`` gets the size
    of each part.
    """
    pin = None
    if seen is not None:
        pin = VersionPin(seen.etag, size=seen.size, path=request.path, operation="copy", advice=", for the copy")
        if seen.size == 0:  # No range of it can be satisfied.
            request = replace(request, size=None)
    first, data = await _part(source, request, pin)
    if pin is not None:
        pin.check(first)
    total = first.total
    if total is None:
        known = seen or await source.stat(StatRequest(path=request.path, version=request.version))
        total = known.size or 0
    version = request.version or (first.version if source.capability.read_version else None)
    request = replace(request, if_match=first.etag, version=version)
    pin = VersionPin(first.etag, path=request.path, operation="copy", advice=", at the first part of the copy")
    body = await opened(first)
    try:
        while True:
            if data:
                await body.write(data)
                if on_bytes is not None:
                    on_bytes(len(data))
            request = replace(request, offset=request.offset + len(data))
            del data
            if request.offset >= total:
                return await body.close()
            head, data = await _part(source, request, pin)
            if not is_same_version(first, head):
                raise pin.changed(head.etag, "the object was overwritten after its version was pinned")
    except BaseException as error:
        await discard(error, body)
        raise


async def _part(source: Accessor, request: ReadRequest, pin: VersionPin | None) -> tuple[ReadHead, memoryview]:
    sink = CollectSink()
    try:
        return (await source.read(request, sink)).head, sink.to_view()
    except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
        if pin is None:
            raise
        raise pin.explain(error) from error
