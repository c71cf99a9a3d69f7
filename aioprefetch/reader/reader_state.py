"""The inner half of a RangeReader: the object behind it, hits, misses, counting."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioprefetch.accessor import Accessor
from aioprefetch.errors import Closed, InvalidRange
from aioprefetch.ranges import OFFSET_MAX, checked_range
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.pinned_object import PinnedObject
from aioprefetch.runtime import Runtime
from aioprefetch.telemetry import Counters, logger

T = TypeVar("T")

Connect = Callable[[], tuple[Accessor, Runtime]]


class ReaderState:
    """What every read of a RangeReader stands on. ``connect`` gives accessor and runtime of the running loop."""

    def __init__(self, path: str, options: ReaderOptions, connect: Connect, *, url: str) -> None:
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
        self._hits = 0
        self._hit_bytes = 0

    @property
    def size(self) -> int | None:
        """Bytes that reads can reach: the declared size, else the object's, ``None`` until an answer told it."""
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
    def statistics(self) -> Counters:
        """What this reader did so far, under the names of ``aioprefetch.telemetry``; readable after closing too."""
        counters = Counters()
        counters.merge(self._counters)
        counters["stream_read_operations"] += self._hits
        counters["stream_read_block_hits"] += self._hits
        counters["stream_read_bytes"] += self._hit_bytes
        return counters

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"pos={self._position if self._from_end is None else 'end'}"
        file = None if self._object is None else self._object.file
        held = "" if file is None else f" blocks={len(file.blocks)} fetching={len(file.fetches)}"
        return f"<{type(self).__name__} {self._url} {state} size={self.size}{held}>"

    # --- for the sync shim --------------------------------------------------------------------------------------

    def peek(self, offset: int, size: int | None) -> bytes | None:
        """What ``read_at`` would return if all of it is resident, else ``None``. From any thread, never waits."""
        view = self._resident(offset, size)
        if view is None:
            return None
        self._count_hit(len(view))
        return bytes(view)

    def peek_view(self, offset: int, size: int | None) -> memoryview | None:
        """What ``view_at`` would return if all of it is resident, else ``None``. From any thread, never waits."""
        view = self._resident(offset, size)
        file = None if self._object is None else self._object.file
        if view is None or file is None:
            return None
        end = offset + len(view)
        segment = file.find(offset, end) if len(view) else None
        if segment is None:  # Empty, or evicted in between by the loop's thread.
            return None if len(view) else memoryview(b"")
        self._count_hit(len(view))
        return segment.export(offset, end)

    # --- within -------------------------------------------------------------------------------------------------

    def _resident(self, offset: int, size: int | None) -> memoryview | bytes | None:
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
        return None if segment is None else segment.view[offset - segment.start : end - segment.start]

    def _hit(self, offset: int, size: int | None) -> memoryview | bytes | None:
        view = self._resident(offset, size)
        if view is None or self._object is None or asyncio._get_running_loop() is not self._object.runtime.loop:
            return None
        self._count_hit(len(view))
        if self._options.on_progress is not None:
            self._progress(len(view))
        return view

    def _count_hit(self, count: int) -> None:
        # Two threads that hit in one moment may lose a count: exact ones would cost every hit a lock.
        self._hits += 1
        self._hit_bytes += count

    async def _read(self, offset: int, size: int | None, operation: str) -> bytes:
        first = self._live(operation).file is None
        pinned, start, end = await self._span(offset, size, operation)
        if start >= end:
            self._delivered(0, misses=False)
            return b""
        collected = io.BytesIO()
        waited = await self.guarded(pinned.copy(start, end, collected.write))
        data = collected.getvalue()
        self._delivered(len(data), misses=first or waited)
        return data

    async def _span(self, offset: int, size: int | None, operation: str) -> tuple[PinnedObject, int, int]:
        start, length = checked_range(offset, size, operation=operation, path=self.path)
        pinned = self._live(operation)
        if length == 0 or (pinned.size is not None and start >= pinned.size):
            return pinned, start, start
        pinned = await self._opened(start, length or 0)
        if pinned.file is None and start < (pinned.size or 0):  # The first answer told the size alone.
            pinned = await self._opened(start, length or 0)
        total = pinned.size or 0
        end = total if length is None else min(start + length, total)
        return pinned, start, max(start, end)

    async def _opened(self, offset: int | None, size: int) -> PinnedObject:
        pinned = self._live("read")
        if pinned.file is None:
            await self.guarded(pinned.open(offset, size))
        return pinned

    def _live(self, operation: str) -> PinnedObject:
        self._check_open(operation)
        pinned = self._object
        if pinned is not None:
            if pinned.runtime.closed:
                raise Closed("the operator is closed", operation=operation, path=self.path)
            return pinned
        accessor, runtime = self._connect()
        options = self._options
        pinned = self._object = PinnedObject(
            accessor,
            runtime,
            self.path,
            policy=self._policy,
            block_bytes=options.block_bytes,
            size=options.size,
            etag=options.etag,
            version=options.version,
            tail_bytes=options.footer_bytes,
        )
        self._counters["stream_read_opened"] += 1
        runtime.sources.add(self)
        runtime.events.publish("reader.opened", self.path, policy=self._policy.name)
        return pinned

    async def guarded(self, read: Awaitable[T]) -> T:
        """Count a read that fails."""
        try:
            return await read
        except StopAsyncIteration:
            raise
        except Exception:
            self._counters["stream_read_exceptions"] += 1
            raise

    def _delivered(self, count: int, *, misses: bool) -> None:
        self._counters["stream_read_operations"] += 1
        self.count_delivered(count, misses=misses)

    def count_delivered(self, count: int, *, misses: bool) -> None:
        """Bytes went to the caller; ``misses`` tells whether they had to be waited for."""
        counters = self._counters
        counters["stream_read_bytes"] += count
        counters["stream_read_block_misses" if misses else "stream_read_block_hits"] += 1
        if self._options.on_progress is not None:
            self._progress(count)

    def _progress(self, count: int) -> None:
        callback = self._options.on_progress
        try:
            if callback is not None and count:
                callback(count)
        except Exception:
            logger.exception("on_progress failed for %s", self._url)

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
        self._move(target)
        return target

    def _move(self, position: int) -> None:
        self._position = position
        if self._object is not None:
            self._object.cursor.position = position

    async def ensure_size(self) -> int:
        """The size, asked for with the first request if it is not known yet."""
        if self.size is None or not self._closed:  # What is known stays known after closing.
            self._check_open("ensure_size")
        if self.size is None:
            await self._opened(None if self._from_end is not None else self._position, 0)
        assert self.size is not None
        return self.size
