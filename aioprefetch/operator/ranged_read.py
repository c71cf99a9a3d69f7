"""Several ranges of one object straight from the store: merged, requested at once, checked to be of one version."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.accessor.version_pin import VersionPin
from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.ranges import MergedRange, Range, coalesce
from aioprefetch.reader.policy import POLICIES, coalescing
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, ReadRequest

# A view smaller than this share of its merged response is copied: it must not keep the rest of the memory alive.
_SMALL_SHARE = 4


async def read_merged(
    accessor: Accessor,
    runtime: Runtime,
    request: ReadRequest,
    ranges: Sequence[Range],
    *,
    gap_bytes: int | None,
    request_bytes_max: int | None,
) -> list[memoryview]:
    """The bytes of each range, in order. One failure cancels the other requests and is raised as it is."""
    gap, bytes_max = coalescing(gap_bytes, request_bytes_max, policy=POLICIES["vector"], path=request.path)
    merged = coalesce(ranges, gap_bytes=gap, request_bytes_max=bytes_max)
    pin: VersionPin | None = None
    parts: list[memoryview] = [memoryview(b"")] * len(ranges)

    async def read_one(piece: MergedRange) -> None:
        nonlocal pin
        sink = CollectSink(runtime.budget)
        response = await accessor.read(replace(request, offset=piece.start, size=piece.size), sink)
        head = response.head
        if pin is None:
            pin = VersionPin(head.etag, head.version, head.total, path=request.path, operation="read_ranges")
        pin.check(head)
        _check_ends(head, [ranges[member] for member in piece.members], request.path)
        view = sink.to_view()
        for member in piece.members:
            start, end = ranges[member]
            part = view[start - piece.start : end - piece.start]
            small = len(part) * _SMALL_SHARE < len(view)
            parts[member] = memoryview(bytes(part)) if small else part

    if len(merged) == 1:
        await read_one(merged[0])
        return parts
    try:
        async with asyncio.TaskGroup() as group:
            for piece in merged:
                group.create_task(read_one(piece))
    except* Exception as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return parts


def _check_ends(head: ReadHead, members: Sequence[Range], path: str) -> None:
    beyond = [(start, end) for start, end in members if end > head.end]
    if beyond:
        raise RangeNotSatisfied(
            f"{beyond[0]} ends past the end of the object of {head.total} bytes",
            total=head.total,
            operation="read_ranges",
            path=path,
        )
