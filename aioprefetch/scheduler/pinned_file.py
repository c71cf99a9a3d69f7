"""One version of a file: fixed by a first request for its tail, and required by every later one.

Column formats keep their metadata at the end, so the first request asks for the last bytes and brings size and ETag
along: no HEAD. Every later request carries the ETag, and every response is compared with it, because some stores ignore
the condition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.request_events import publish_reply
from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.accessor.sink import BufferSink, CollectSink, Sink
from aioprefetch.blocks.file import BlockFile
from aioprefetch.errors import (
    ConditionNotMatch,
    NotFound,
    RangeNotSatisfied,
    Unexpected,
    UntrustedMetadata,
)
from aioprefetch.ranges import Range, at_least
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Lane, ReadHead, ReadRequest

# The size of the first request. It has the metadata of most files of up to some hundred column pages, and takes less
# than a millisecond at 90 MB/s, where a second request costs 20 to 50.
TAIL_BYTES = 64 << 10


class PinnedFile:
    """One version of a file: its ``path``, ``size`` in bytes, ``etag`` and ``version``, and its last bytes in memory.

    ``tail`` holds ``[tail_start, size)``, read-only. It belongs to the file, and is charged to no budget. ``tail_tier``
    is where ``open`` had it from, and ``tail_seconds`` how long that took; ``memory`` and ``None`` without a request.
    """

    def __init__(
        self,
        accessor: Accessor,
        runtime: Runtime,
        path: str,
        *,
        size: int,
        etag: str | None = None,
        version: str | None = None,
        tail: memoryview = memoryview(b""),  # noqa: B008 - read-only and empty
    ) -> None:
        self._accessor = accessor
        self._runtime = runtime
        self.path = path
        self.size = size
        self.pin = VersionPin(etag, version, size, path=path, counters=runtime.counters)
        self.tail = tail.toreadonly()
        self.tail_start = size - len(tail)
        self.tail_tier = "memory"
        self.tail_seconds: float | None = None

    @property
    def etag(self) -> str | None:
        """The unquoted ETag of the version, ``None`` if the store sends none."""
        return self.pin.etag

    @property
    def version(self) -> str | None:
        """The version id on stores that have versions."""
        return self.pin.version

    @classmethod
    async def open(
        cls,
        accessor: Accessor,
        runtime: Runtime,
        path: str,
        *,
        tail_bytes: int = TAIL_BYTES,
        version: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        known_size: int | None = None,
    ) -> PinnedFile:
        """Learn size and version by one GET that brings the last ``tail_bytes``; an empty object is a file of size 0.

        ``known_size`` is the size in other metadata: then a plain range is requested, which every store supports, and
        another size is ``UntrustedMetadata``. ``if_match`` and ``if_none_match`` are ETags; where they do not hold it
        is ``ConditionNotMatch``. If no version is requested and readers have the tail of one in memory, the store is
        asked whether that still is the object, and no bytes travel if it is. A cancelled call leaves nothing behind.
        """
        tail_bytes = at_least(1, tail_bytes, "tail_bytes", operation="open", path=path)
        held = None
        if not (version or if_match or if_none_match):
            held = cls._of_newest(accessor, runtime, path, tail_bytes, known_size)
        size = min(tail_bytes, known_size) if known_size else None
        request = ReadRequest(
            path=path,
            offset=known_size - size if known_size and size else 0,
            size=size,
            suffix=None if size else tail_bytes,
            if_match=if_match,
            if_none_match=if_none_match if held is None else held.etag,
            version=version,
        )
        sink, began, tier = CollectSink(runtime.budget), runtime.now(), "store"
        try:
            reply = await accessor.read(request, sink)
            head, tier = reply.head, reply.tier
        except ConditionNotMatch:
            if held is None:
                raise
            return held
        except RangeNotSatisfied as error:
            if known_size:
                raise _another_size(error.total, known_size, path) from error
            if error.total != 0:
                raise
            head = ReadHead(start=0, size=0, total=0, etag=if_match, version=version)
        total = known_size if head.total is None else head.total
        if total is None:
            raise Unexpected("the store does not tell the size of the object", operation="open", path=path)
        if known_size is not None and total != known_size:
            raise _another_size(total, known_size, path)
        file = cls(
            accessor,
            runtime,
            path,
            size=total,
            etag=head.etag,
            version=version or head.version,
            tail=sink.to_view(),
        )
        file.tail_tier, file.tail_seconds = tier, runtime.now() - began
        return file

    @classmethod
    async def begin(
        cls, accessor: Accessor, runtime: Runtime, request: ReadRequest, *, wanted_bytes: int | None = None
    ) -> Begun:
        """The first bytes of an object by one GET, and the version that they are of, for the rest of it.

        The first ``wanted_bytes``, by default all, are reported as read. Errors as for the read. A cancelled
        call leaves nothing behind.
        """
        sink, began = CollectSink(runtime.budget), runtime.events.clock()
        response = await accessor.read(request, sink)
        head = response.head
        if runtime.events.wants_reads:
            publish_reply(runtime.events, request, response, began, bytes_max=wanted_bytes)
        is_to_end = request.size is None and request.suffix is None
        total = head.end if head.total is None and is_to_end else head.total
        if total is None:
            return Begun(head, sink.to_view(), None)
        version = request.version or head.version
        file = cls(accessor, runtime, request.path, size=total, etag=head.etag, version=version)
        return Begun(head, sink.to_view(), file)

    @classmethod
    def _of_newest(
        cls, accessor: Accessor, runtime: Runtime, path: str, tail_bytes: int, known_size: int | None
    ) -> PinnedFile | None:
        """The version that readers had last, if they have its tail in memory and may ask whether it still holds."""
        store = runtime.peek("block_store")
        if store is None or not accessor.capability.read_if_none_match:
            return None
        file = store.newest((accessor.info.namespace, path), runtime.options.block_bytes)
        if file is None or known_size not in (None, file.size) or not file.size:
            return None
        version, etag = file.version[:2]
        if not VersionPin(etag).is_strong:
            return None
        pinned = cls(accessor, runtime, path, size=file.size, etag=etag, version=version)
        sink = CollectSink(runtime.budget)
        if not pinned.copy_held(sink, max(0, file.size - tail_bytes), file.size):
            return None
        return cls(accessor, runtime, path, size=file.size, etag=etag, version=version, tail=sink.to_view())

    def check_range(self, start: int, end: int) -> Range:
        """The range itself if it lies in the file; ``UntrustedMetadata`` if it leaves it or is reversed."""
        if 0 <= start <= end <= self.size:
            return start, end
        raise UntrustedMetadata(
            f"the range [{start}, {end}) leaves the file of {self.size} bytes", operation="read", path=self.path
        )

    def resident(self, start: int, end: int) -> memoryview | None:
        """The bytes ``[start, end)`` without a copy if they lie in the tail, else ``None``."""
        if start < self.tail_start or not start <= end <= self.size:
            return None
        return self.tail[start - self.tail_start : end - self.tail_start]

    def drop_tail(self) -> None:
        """Keep the last bytes no longer: they are the caller's now, or are asked for again."""
        self.tail, self.tail_start = memoryview(b""), self.size

    def held_ranges(self) -> list[Range]:
        """The bytes of this version in the runtime's blocks, in order. They need no request while they are resident."""
        file = self._blocks()
        return [] if file is None else file.resident_ranges()

    def holds(self, start: int, end: int) -> bool:
        """Whether the runtime's blocks have all of ``[start, end)``."""
        file = self._blocks()
        return file is not None and file.holds(start, end)

    def copy_held(self, sink: Sink, start: int, end: int) -> bool:
        """Copy ``[start, end)``, which is not empty, out of the runtime's blocks; ``False`` if they lack any of it."""
        file = self._blocks()
        pieces = None if file is None or not file.holds(start, end) else file.find_pieces(start, end)
        if pieces is None:
            return False
        sink.begin(
            ReadHead(start=start, size=end - start, total=self.size, etag=self.etag, version=self.version),
            path=self.path,
        )
        for piece in pieces:
            sink.feed(piece)
        return True

    def _blocks(self) -> BlockFile | None:
        """The blocks that readers of the same version have in memory, on the default grid."""
        store = self._runtime.peek("block_store")
        if store is None or not self.pin.is_strong:
            return None
        name, version = (self._accessor.info.namespace, self.path), (self.version, self.etag)
        block_bytes = self._runtime.options.block_bytes
        file: BlockFile | None = store.find(name, version, size=self.size, block_bytes=block_bytes)
        return file

    async def read(self, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)``, read-only: out of the tail, or by one GET.

        Raises ``UntrustedMetadata`` for a range that leaves the file, ``ObjectChanged`` if the store has another
        version now. A cancelled read leaves nothing behind.
        """
        self.check_range(start, end)
        if start == end:
            return memoryview(b"")
        view = self.resident(start, end)
        if view is not None:
            self.publish_served(start, end)
            return view
        sink = CollectSink(self._runtime.budget)
        await self._fill(sink, start, end)
        return sink.to_view()

    async def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on; see ``read``. A cancelled read leaves it half filled."""
        end = start + len(buffer)
        self.check_range(start, end)
        view = self.resident(start, end)
        if view is not None:
            buffer[:] = view
            self.publish_served(start, end)
        elif buffer:
            await self._fill(BufferSink(buffer), start, end)

    async def _fill(self, sink: Sink, start: int, end: int) -> None:
        """``bring``, as a read of the caller."""
        began = self._runtime.now()
        tier = await self.bring(sink, start, end)
        self.publish_served(start, end, tier, self._runtime.now() - began)

    async def bring(self, sink: Sink, start: int, end: int) -> str:
        """Put ``[start, end)``, which is not empty, into a sink, and return the tier that had it.

        No caller has read it yet: ``publish_served`` is for what one gets. Errors as for ``read``.
        """
        if self.copy_held(sink, start, end):
            return "memory"
        await self.read_to(sink, start, end)
        return "store"

    def publish_served(self, start: int, end: int, tier: str = "memory", waited_seconds: float | None = None) -> None:
        """Publish that ``[start, end)`` was read, by default out of the tail. Without listeners it does nothing."""
        if self._runtime.events.wants_reads and start < end:
            self._runtime.events.publish_served(self.path, start, end, tier, waited_seconds)

    async def read_to(self, sink: Sink, start: int, end: int, *, lane: Lane = "demand") -> None:
        """One GET of ``[start, end)``, which is not empty, into a sink. Errors as for ``read``."""
        request = ReadRequest(
            path=self.path,
            offset=start,
            size=end - start,
            if_match=self.etag,
            version=self.version,
            lane=lane,
        )
        try:
            response = await self._accessor.read(request, sink)
        except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
            raise self.pin.explain(error) from error
        self.pin.check(response.head, (start, end))


class Begun(NamedTuple):
    """The head of a response, its bytes, and the file of that version; ``None`` where the store tells no size."""

    head: ReadHead
    first: memoryview
    file: PinnedFile | None


async def read_ahead(
    file: PinnedFile, first: memoryview, start: int, end: int, *, chunk_bytes: int
) -> AsyncGenerator[memoryview, None]:
    """The bytes ``[start, end)`` in chunks; ``first`` is in memory already. The next one is read while one is in use.

    Errors as for ``PinnedFile.read``. Closing it cancels the read ahead: use ``contextlib.aclosing``.
    """
    chunk, position = first, start + len(first)
    del first
    while position < end:
        stop = min(end, position + chunk_bytes)
        ahead = asyncio.create_task(file.read(position, stop), context=entering())
        try:
            if chunk:
                yield chunk
            chunk = await ahead
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
            del ahead  # The traceback of its error holds this frame.
        position = stop
    yield chunk


def _another_size(total: int | None, known_size: int, path: str) -> UntrustedMetadata:
    return UntrustedMetadata(
        f"the object has {total} bytes where {known_size} are claimed", operation="open", path=path
    )
