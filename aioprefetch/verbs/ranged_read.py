"""Reads by several requests, all for one version of an object: of a long range in parts, of many ranges merged.

**Long ranges** go into the memory of the result. One connection brings what one connection brings, about 90 MB/s from
S3, and several bring several times that. Most objects are small, and the size of an object is known when its first
response has begun. So the first request is for two blocks, which is all of most objects. When its head tells that more
is wanted, the rest is requested side by side while the first part still arrives, in parts of the version that the head
names. A store that sends everything at once (local files, servers without ranges) has answered with that.

**One version.** Parts are requested side by side only where equal names mean equal bytes: by a version id or a strong
ETag. Otherwise an object may be replaced by one of the same size, within a second, and no head shows it: then the first
part is refused at its head, and one more request brings all bytes in one response.

**Memory.** The first request is the read's own besides its parts' (``ParallelParts``).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial

from aioprefetch.accessor.parallel_parts import ParallelParts
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.request_events import served
from aioprefetch.accessor.response_check import VersionPin, check_due, is_strong
from aioprefetch.accessor.sink import BufferSink, CollectSink, Sink, is_same_version
from aioprefetch.credentials import hide_frames, hiding_frames
from aioprefetch.errors import ConditionNotMatch, Error, NotFound, RangeNotSatisfied
from aioprefetch.ranges import ByteCount, MergedRange, Range, checked_ranges, coalesce, resolve_range
from aioprefetch.runtime.buffers import ResultStream
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import gather_all, stopped
from aioprefetch.values import Lane, ReadHead, ReadRequest
from aioprefetch.verbs.arguments import check_file


def first_bytes_of(options: RuntimeOptions) -> int:
    """The longest read that is one request: two blocks."""
    return 2 * options.block_bytes


class _VersionUnproven(Error):
    """A first part that no other one may be put beside: nothing proves that both are of one version."""


class ParallelRead(CollectSink):
    """A read of any length. It is the sink of its first request; ``run`` reads all, ``to_bytes`` is the result.

    ``request`` names the wanted bytes, and has ``first_bytes``. Memory for more than ``first_bytes`` is allocated in
    one piece when the head of the first response tells the size.
    """

    _accessor: Accessor
    _task: asyncio.Task[object]
    _wanted: Range

    def __init__(self, accessor: Accessor, runtime: Runtime, request: ReadRequest) -> None:
        CollectSink.__init__(self, runtime.budget)
        self._accessor = accessor
        self._runtime = runtime
        self._request = request
        self._memory: memoryview | None = None
        self._parts: ParallelParts | None = None
        self._rest: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Read everything. The first failure is raised, and no request is in flight afterwards."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._context = entering() or contextvars.copy_context()
        self._failed = self._first_done = False
        try:
            try:
                is_proven = True
                try:
                    await self._accessor.read(self._request, self)
                except _VersionUnproven:
                    is_proven = False
                if not is_proven:  # No other part may be put beside the first one: another request brings everything.
                    self._request = replace(self._request, first_bytes=None)
                    await self._accessor.read(self._request, self)
            finally:
                self._first_done = True
                if self._parts is not None:
                    self._parts.others = 0
            if self._memory is not None:
                await self._end_rest()
        except BaseException as error:
            # Whether the rest has failed, and no other caller has cancelled this task.
            is_of_rest = self._failed and task.uncancel() <= self._cancelling
            if not (is_of_rest and isinstance(error, asyncio.CancelledError)):
                hide_frames(error)
                raise
        finally:
            # They refer to this read, whose memory would outlive its result.
            del self._task, task
            self._parts, rest, self._rest = None, self._rest, None
            if rest is not None:
                await stopped(rest)
        try:
            if rest is not None:
                rest.result()
        finally:
            del rest  # The traceback of its error holds this frame.

    def to_bytes(self) -> bytes:
        """All bytes: a long result is the memory that received it, a short one is copied. Call it once."""
        if self._memory is None:
            return CollectSink.to_bytes(self)
        # The stream copies while a view of its memory is left.
        self._memory.release()
        self.drop_memory()
        return self._stream.getvalue()

    def to_view(self) -> memoryview:
        """All bytes, as a read-only view. Call it once."""
        return CollectSink.to_view(self) if self._memory is None else memoryview(self.to_bytes())

    async def begin_again(self) -> bool:
        """Take the next response as the first one. Only a response that brings all bytes begins again."""
        self._memory = None
        return await CollectSink.begin_again(self)

    # --- for subclasses -----------------------------------------------------------------------------------------

    def _open(self, size: int) -> memoryview:
        """Memory for all of a result of ``size`` bytes, more than ``first_bytes``."""
        # The stream takes the zeros without a copy, and no other name holds them; its value is the same object.
        self._stream = ResultStream(bytes(size))
        return self._stream.getbuffer()

    def _open_part(self, start: int, end: int) -> memoryview:
        """Memory for ``[start, end)`` of the result."""
        assert self._memory is not None
        return self._memory[start:end]

    async def _filled(self, start: int, part: memoryview) -> None:
        """Called when a part of the result beside the first one has arrived, with its memory."""

    # --- the first response -------------------------------------------------------------------------------------

    def _begun(self, head: ReadHead) -> None:
        request = self._request
        first_bytes = request.first_bytes or 0
        if head.size == head.total and head.size <= first_bytes:  # The usual case.
            self._wanted = (0, head.size)
            return
        self._wanted = wanted = _wanted(request, head)
        size = wanted[1] - wanted[0]
        if size <= first_bytes:
            return
        gaps = [gap for gap in ((wanted[0], head.start), (head.end, wanted[1])) if gap[0] < gap[1]]
        if gaps and not self._is_proven(head):
            # The response to the next request is the first one of this sink.
            self.head = None
            check_due(request, head)
            raise _VersionUnproven("another request brings all bytes", operation="read", path=request.path)
        self._memory = self._open(size)
        self.is_placed = True
        if not gaps:
            return
        self._pin(head)
        self._parts = ParallelParts(self._runtime, gaps, self)
        self._parts.others = 1
        if self._runtime.options.concurrency > 1:  # Otherwise the first request has the only slot.
            self._start_rest(self._parts)

    def _pin(self, head: ReadHead) -> None:
        """Ask for the version of ``head`` from now on."""
        self._pinned = self._request.resume(head, head.size)
        if not self._accessor.capability.read_version:  # The head names one, but the store cannot be asked for it.
            self._pinned = replace(self._pinned, version=self._request.version)

    def _is_proven(self, head: ReadHead) -> bool:
        """Whether a part with the same ETag, or of the same version id, has the bytes of the same version."""
        version = head.version if self._accessor.capability.read_version else None
        return is_strong(head.etag, version)

    def _allocate(self, position: int, size: int) -> memoryview:
        if self._memory is None:
            return CollectSink._allocate(self, position, size)
        assert self.head is not None
        start = self.head.start - self._wanted[0]
        return self._open_part(start + position, start + size)

    def _start_rest(self, parts: ParallelParts) -> None:
        # Called by a connection, whose context is not the caller's.
        self._rest = self._runtime.loop.create_task(parts.run(), context=self._context)
        self._rest.add_done_callback(self._rest_ended)

    def _rest_ended(self, rest: asyncio.Task[None]) -> None:
        """End the first request if the rest has failed: the first failure is the result."""
        if not self._first_done and (rest.cancelled() or rest.exception() is not None):
            self._failed = True
            self._task.cancel()

    async def _end_rest(self) -> None:
        """The first part is here: wait for the others."""
        if self._parts is not None and self._rest is None:
            self._start_rest(self._parts)
        if self._rest is not None:
            await asyncio.wait((self._rest,))

    # --- the rest -----------------------------------------------------------------------------------------------

    def sink_of(self, start: int, end: int) -> Sink:
        """The place of ``[start, end)`` in the result."""
        first = self.head
        assert first is not None
        place = start - self._wanted[0]
        pin = VersionPin(first.etag, first.version, first.total, path=self._request.path)
        return _PartSink(self._open_part(place, place + end - start), first, pin)

    async def read_part(self, start: int, end: int, sink: Sink, lane: Lane) -> None:
        """Receive a part of the version of the first response."""
        assert isinstance(sink, _PartSink)
        try:
            await self._accessor.read(replace(self._pinned, offset=start, size=end - start, lane=lane), sink)
        except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
            if sink.first.total is None and isinstance(error, RangeNotSatisfied):
                raise  # The end of the object was never known.
            raise sink.pin.explain(error) from error
        await self._filled(start - self._wanted[0], sink.memory)


def collecting(accessor: Accessor, runtime: Runtime, request: ReadRequest) -> tuple[CollectSink, Awaitable[object]]:
    """The sink of a read of any length, and the read: a coroutine around it would be one more that each wait passes."""
    accessor = served(accessor, runtime) if runtime.events.wants_reads else accessor
    if request.first_bytes is None:
        sink = CollectSink(runtime.budget)
        return sink, accessor.read(request, sink)
    reading = ParallelRead(accessor, runtime, request)
    return reading, reading.run()


class ParallelFill(ParallelRead):
    """A read into the caller's buffer; ``filled`` is the number of bytes."""

    def __init__(self, accessor: Accessor, runtime: Runtime, request: ReadRequest, buffer: memoryview) -> None:
        ParallelRead.__init__(self, accessor, runtime, request)
        self.is_placed = True
        self._buffer = buffer

    @property
    def filled(self) -> int:
        """The bytes that were read."""
        return self._wanted[1] - self._wanted[0]

    def _open(self, size: int) -> memoryview:
        return self._buffer[:size]

    def _allocate(self, position: int, size: int) -> memoryview:
        return self._buffer[position:size] if self._memory is None else ParallelRead._allocate(self, position, size)


class _PartSink(BufferSink):
    """A part of the result: refused at its head unless it is of the version of the first part."""

    def __init__(self, memory: memoryview, first: ReadHead, pin: VersionPin) -> None:
        BufferSink.__init__(self, memory)
        self.memory = memory
        self.first = first
        self.pin = pin

    def _begun(self, head: ReadHead) -> None:
        if not is_same_version(self.first, head) or head.size != len(self.memory):
            raise self.pin.changed(
                head.etag,
                f"the object was overwritten while its parts were read: one of {self.first.total} bytes became one of"
                f" {head.total}",
            )


def _wanted(request: ReadRequest, head: ReadHead) -> Range:
    """The wanted bytes of the object, as its first response tells its size."""
    total = head.total
    if total is None:  # Only of an exact range, and then it is believed.
        return head.start, max(head.end, request.offset + (request.size or 0))
    return resolve_range(request.offset, request.size, request.suffix, total) or (head.start, head.end)


# --- many ranges ------------------------------------------------------------------------------------------------------

# A view smaller than this share of its merged response is copied: it must not keep the rest of the memory alive.
_SMALL_SHARE = 4


@hiding_frames
async def read_merged(
    accessor: Accessor,
    runtime: Runtime,
    request: ReadRequest,
    ranges: Sequence[Range],
    *,
    gap_bytes: ByteCount | None,
    request_bytes_max: ByteCount | None,
    cuts: bool = False,
) -> list[memoryview]:
    """The bytes of each range, in order. One failure cancels the other requests and is raised as it is.

    With ``cuts`` a range that crosses the end of the object is cut there.
    """
    from aioprefetch.reader.policy import POLICIES, coalescing

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
        _check_ends(head, [ranges[member] for member in piece.members], request.path, cuts=cuts)
        view = sink.to_view()
        for member in piece.members:
            start, end = ranges[member][0], min(ranges[member][1], head.end)
            if runtime.events.wants_reads and start < end:
                runtime.events.publish_served(request.path, start, end, "store")
            part = view[start - piece.start : end - piece.start]
            small = len(part) * _SMALL_SHARE < len(view)
            parts[member] = memoryview(bytes(part)) if small else part

    await gather_all(partial(read_one, piece) for piece in merged)
    return parts


def _check_ends(head: ReadHead, members: Sequence[Range], path: str, *, cuts: bool) -> None:
    beyond = [(start, end) for start, end in members if (start >= head.end if cuts else end > head.end)]
    if beyond:
        raise RangeNotSatisfied(
            f"{beyond[0]} {'starts' if cuts else 'ends'} past the end of the object of {head.total} bytes",
            total=head.total,
            operation="read_ranges",
            path=path,
        )


async def view_ranges_cut(accessor: Accessor, runtime: Runtime, path: str, ranges: Sequence[Range]) -> list[memoryview]:
    """Like ``Operator.view_ranges``, but a range that crosses the end of the object is cut there.

    A range that starts beyond it is ``RangeNotSatisfied``.
    """
    check_file(path, "read_ranges")
    checked = checked_ranges(ranges, operation="read_ranges", path=path)
    request = ReadRequest(path=path)
    return await read_merged(accessor, runtime, request, checked, gap_bytes=None, request_bytes_max=None, cuts=True)
