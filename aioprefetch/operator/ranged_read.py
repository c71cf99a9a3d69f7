"""Several ranges of one object straight from the store: merged, requested at once, checked to be of one version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.ranges import ByteCount, MergedRange, Range, coalesce
from aioprefetch.reader.policy import POLICIES, coalescing
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.values import ReadHead, ReadRequest

# A view smaller than this share of its merged response is copied: it must not keep the rest of the memory alive.
_SMALL_SHARE = 4


async def read_merged(
    accessor: Accessor,
    runtime: Runtime,
    request: ReadRequest,
    ranges: Sequence[Range],
    *,
    gap_bytes: ByteCount | None,
    request_bytes_max: ByteCount | None,
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
            if runtime.events.wants_reads and start < end:
                runtime.events.publish_served(request.path, start, end, "store")
            part = view[start - piece.start : end - piece.start]
            small = len(part) * _SMALL_SHARE < len(view)
            parts[member] = memoryview(bytes(part)) if small else part

    await gather_all(partial(read_one, piece) for piece in merged)
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


class Viewing(Protocol):
    """An operator, as far as merged reads need it."""

    async def view_ranges(self, path: str, ranges: Iterable[Sequence[int]]) -> list[memoryview]:
        """The bytes of each range."""
        ...


async def view_ranges_cut(operator: Viewing, path: str, ranges: Sequence[Range]) -> list[memoryview]:
    """Like ``Operator.view_ranges``, but a range that crosses the end of the object is cut there.

    One that starts beyond it is ``RangeNotSatisfied``. A range that is cut costs a second read.
    """
    try:
        return await operator.view_ranges(path, ranges)
    except RangeNotSatisfied as error:
        total = error.total
        if total is None or any(start >= total for start, _ in ranges):
            raise
    return await operator.view_ranges(path, [(start, min(end, total)) for start, end in ranges])
