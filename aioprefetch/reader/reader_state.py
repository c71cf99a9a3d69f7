"""The inner half of a RangeReader: the object behind it, hits, misses, counting."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn, SupportsIndex, TypeVar

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.blocks.block import NO_MARK, Segment
from aioprefetch.errors import Closed, InvalidRange, InvalidType
from aioprefetch.ranges import OFFSET_MAX, checked_range
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.pinned_object import PinnedObject
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Account, Counters, Statistics, Tier

T = TypeVar("T")

# A response may tell the size alone, where there is nothing at the place that was asked for; then the next request asks
# within it. An object that shrinks meanwhile does so again; one whose size stays refuses what it has.
_OPENINGS_MAX = 4

Connect = Callable[[], tuple[Accessor, Runtime]]


class ReaderState:
    """What every read of a RangeReader stands on. ``connect`` gives accessor and runtime of the running loop."""

    def __init__(self, path: str, options: ReaderOptions, connect: Connect, *, url: Callable[[], str]) -> None:
        self.path = path
        self._options = options
        self._policy = options.policy
        self._connect = connect
        self._url = url
        self._object: PinnedObject | None = None
        self._position = 0
        self._from_end: int | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self._counters = Counters()
        self._account: Account | None = None

    @property
    def size(self) -> int | None:
        """Bytes that reads can reach: the declared size until the object turns out to be shorter, else the object's.

        ``None`` until a response told it.
        """
        return self._options.size if self._object is None else self._object.size

    @property
    def etag(self) -> str | None:
        """The pinned ETag, unquoted; ``None`` until known."""
        return self._options.etag if self._object is None else self._object.etag

    @property
    def version(self) -> str | None:
        """The pinned version id on stores that have versions."""
        return self._options.version if self._object is None else self._object.version

    @property
    def closed(self) -> bool:
        """Whether the reader was closed."""
        return self._closed

    @property
    def policy(self) -> str:
        """The name of the policy it reads under; ``plain`` where prefetching is switched off."""
        return self._policy.name

    @property
    def statistics(self) -> Statistics:
        """What was done for this reader so far, under the names of ``aioprefetch.runtime.events``.

        Readable from any thread, and after closing too: then the gauges are 0. A reader that was never used has
        nothing, not even its seeks.
        """
        if self._account is None:
            return Counters().snapshot({})
        pinned = self._object
        live = pinned is not None and not self._closed and not pinned.runtime.closed
        return self._counters.snapshot(pinned.gauges() if pinned is not None and live else {})

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"pos={self._position if self._from_end is None else 'end'}"
        held = "" if self._object is None else self._object.described()
        return f"<{type(self).__name__} {self._url()} {state} size={self.size}{held}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidType(
            "a reader cannot be pickled; pickle the Operator and open the path again",
            operation="pickle",
            path=self.path,
        )

    # --- for the sync shim --------------------------------------------------------------------------------------

    def _peek(self, offset: int, size: int | None) -> bytes | None:
        """What ``read_at`` would return if all of it is resident, else ``None``. From any thread, never waits."""
        view = self._resident(offset, size)
        if view is None:
            return None
        self._count_hit(len(view), size)
        return bytes(view)

    def _peek_view(self, offset: int, size: int | None) -> memoryview | None:
        """What ``view_at`` would return if all of it is resident, else ``None``. From any thread, never waits."""
        view = self._resident(offset, size)
        file = None if self._object is None else self._object.file
        if view is None or file is None:
            return None
        end = offset + len(view)
        segment = file.at(offset) if len(view) else None
        if segment is None:
            return None if len(view) else memoryview(b"")
        if end > segment.start + segment.filled:  # Evicted in between by the loop's thread, and on its way again.
            return None
        self._count_hit(len(view), size)
        return file.view(segment, offset, end)

    def _peek_into(self, offset: int, target: memoryview) -> int | None:
        """Fill ``target`` if all of it is resident, and say how much that is, else ``None``. From any thread."""
        view = self._resident(offset, len(target))
        if view is None:
            return None
        count = len(view)
        target[:count] = view
        self._count_hit(count, len(target))
        return count

    # --- within -------------------------------------------------------------------------------------------------

    def _resident(self, offset: int, size: int | None, at_cursor: bool = False) -> memoryview | bytes | None:
        pinned = self._object
        if pinned is None or type(offset) is not int or offset < 0 or self._closed:
            return None
        file, known = pinned.file, pinned.size
        if file is None or known is None or pinned.runtime.supervisor.closed:
            return None
        if size is not None and (type(size) is not int or size < 0):
            return None
        end = known if size is None or offset + size > known else offset + size
        if offset >= end:
            return b"" if offset <= OFFSET_MAX else None
        segment = file.find(offset, end)
        if segment is None:
            return None
        if segment.run_bytes >= segment.mark_bytes:
            self._reached(pinned, segment, offset, end, at_cursor)
        return segment.view[offset - segment.start : end - segment.start]

    def _reached(self, pinned: PinnedObject, segment: Segment, start: int, end: int, at_cursor: bool) -> None:
        """A run of hits has come to a mark: time to look further ahead, on the loop's thread."""
        reached = pinned.prefetcher.reached
        if asyncio._get_running_loop() is pinned.runtime.loop:
            reached(segment, start, end, at_cursor=at_cursor)
            return
        segment.mark_bytes = NO_MARK  # Until the loop's thread has come to it.
        with contextlib.suppress(RuntimeError):  # The loop was closed in between.
            pinned.runtime.loop.call_soon_threadsafe(partial(reached, segment, start, end, at_cursor=at_cursor))

    def _hit(self, offset: int, size: int | None, at_cursor: bool = False) -> memoryview | bytes | None:
        view = self._resident(offset, size, at_cursor)
        if view is None or self._object is None or asyncio._get_running_loop() is not self._object.runtime.loop:
            return None
        count = len(view)  # As ``_count_hit`` does, whose call would cost a hit as much as the counting.
        counters = self._counters
        counters.hits += 1
        counters.hit_bytes += count
        if count != size and size is not None:
            counters["stream_read_operations_incomplete"] += 1
        if self._options.on_progress is not None:
            self._progress(len(view))
        return view

    def _hit_view(self, offset: int, size: int | None) -> memoryview | None:
        """As ``_hit``, as the view that is given to the caller."""
        view = self._hit(offset, size)
        if view is None:
            return None
        file = None if self._object is None else self._object.file
        segment = None if file is None or not len(view) else file.at(offset)
        if file is None or segment is None:
            return memoryview(bytes(view))
        return file.view(segment, offset, offset + len(view))

    def _count_hit(self, count: int, size: int | None) -> None:
        # Two threads that hit in one moment may lose a count: exact ones would cost every hit a lock.
        counters = self._counters
        counters.hits += 1
        counters.hit_bytes += count
        if count != size and size is not None:
            counters["stream_read_operations_incomplete"] += 1

    async def _read(self, offset: int, size: int | None, operation: str, *, at_cursor: bool = False) -> bytes:
        first = self._live(operation).file is None
        pinned, start, end = await self._span(offset, size, operation)
        if start >= end:
            self._delivered(0, size, Tier.MEMORY)
            return b""
        collected = io.BytesIO()
        tier = await self._guarded(pinned.copy(start, end, collected.write, at_cursor=at_cursor))
        data = collected.getvalue()
        self._delivered(len(data), size, Tier.NETWORK if first else tier)
        return data

    async def _span(self, offset: int, size: int | None, operation: str) -> tuple[PinnedObject, int, int]:
        start, length = checked_range(offset, size, operation=operation, path=self.path)
        pinned = self._live(operation)
        if length == 0 or (pinned.size is not None and start >= pinned.size):
            return pinned, start, start
        pinned = await self._guarded(self._opened(start, length or 0))
        total = (pinned.size or 0) if pinned.file is None else pinned.end_of_reads()
        end = total if length is None else min(start + length, total)
        return pinned, start, max(start, end)

    async def _opened(self, offset: int | None, size: int) -> PinnedObject:
        pinned = self._live("read")
        for _ in range(_OPENINGS_MAX):
            known = pinned.size
            if pinned.file is None:
                await pinned.open(offset, size)
            if pinned.file is not None or pinned.size == known or offset is None or offset >= (pinned.size or 0):
                break
        return pinned

    def _live(self, operation: str) -> PinnedObject:
        self._check_open(operation)
        pinned = self._object
        if pinned is not None:
            if pinned.runtime.closed:
                raise Closed("the operator is closed", operation=operation, path=self.path)
            return pinned
        accessor, runtime = self._connect()
        account = self._account
        if account is None:
            account = self._account = runtime.ledger.open(self._counters)
            self._counters["stream_read_opened"] += 1
        pinned = self._object = PinnedObject(accessor, runtime, self.path, self._options, self._policy, account)
        runtime.events.publish("reader.opened", self.path, policy=self._policy.name)
        return pinned

    async def _guarded(self, read: Awaitable[T]) -> T:
        """Count a read that fails."""
        try:
            return await read
        except StopAsyncIteration:
            raise
        except Exception:
            self._counters["stream_read_exceptions"] += 1
            raise

    def _count_given(self, count: int, *, reads: int = 0) -> None:
        """Bytes went to the caller out of what a counted read had brought; or, below 0, did not although counted."""
        self._counters.hits += reads
        self._counters.hit_bytes += count

    def _delivered(self, count: int, size: int | None, tier: Tier) -> None:
        counters = self._counters
        counters["stream_read_operations"] += 1
        counters["stream_read_operations_incomplete"] += size is not None and count < size
        self._count_delivered(count, tier)

    def _count_delivered(self, count: int, tier: Tier) -> None:
        """Bytes went to the caller; ``tier`` tells where they had to be waited for."""
        counters = self._counters
        counters["stream_read_bytes"] += count
        counters["stream_read_block_hits" if tier is Tier.MEMORY else "stream_read_block_misses"] += 1
        counters["hits_disk"] += tier is Tier.DISK
        if self._options.on_progress is not None:
            self._progress(count)

    def _progress(self, count: int) -> None:
        callback = self._options.on_progress
        try:
            if callback is not None and count:
                callback(count)
        except Exception:
            logger.exception("on_progress failed for %s", self._url())

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise Closed("the reader is closed", operation=operation, path=self.path)
        if self._object is not None:
            self._object.runtime.check_loop(operation=operation, path=self.path)

    async def _resolve_position(self) -> int:
        if self._from_end is not None:
            self._settle_position(await self.ensure_size())
        return self._position

    def _settle_position(self, total: int) -> int:
        target = total + (self._from_end or 0)
        self._from_end = None
        if target < 0:
            raise InvalidRange(f"the position {target} lies before the start", operation="seek", path=self.path)
        self._count_seek(target - self._position)
        self._move(target)
        return target

    def _count_seek(self, distance: int) -> None:
        """The cursor, or that of a file over this reader, moved without reading."""
        counters = self._counters
        counters["stream_read_seek_operations"] += distance != 0
        counters["stream_read_seek_forward_operations"] += distance > 0
        counters["stream_read_seek_bytes_skipped"] += max(0, distance)
        counters["stream_read_seek_backward_operations"] += distance < 0
        counters["stream_read_bytes_backwards_on_seek"] += max(0, -distance)

    def _move(self, position: int) -> None:
        self._position = position
        if self._object is not None:
            self._object.cursor.position = position

    async def ensure_size(self) -> int:
        """The size, asked for with the first request if it is not known yet."""
        if self.size is None or not self._closed:  # What is known stays known after closing.
            self._check_open("ensure_size")
        if self.size is None:
            await self._guarded(self._opened(None if self._from_end is not None else self._position, 0))
        assert self.size is not None
        return self.size
