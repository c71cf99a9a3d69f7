"""The task behind ``iterate``: it takes items from its source on the loop thread, and keeps them within a window."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, Generic, TypeVar

from aioprefetch.errors import InvalidType
from aioprefetch.runtime.events import logger
from aioprefetch.sync.loop_thread import WAIT_SLICE_SECONDS, LoopThread

T = TypeVar("T")

# A source that never waits for anything lets others run after so many items.
ITEMS_IN_A_ROW_MAX = 64


class Pump(Generic[T]):
    """Items that are ready, between the loop thread that makes them and one thread that takes them.

    Once it is started it ends by itself, by ``cancel``, or with the loop. What it holds is guarded by one lock, which
    nobody keeps while he waits.
    """

    def __init__(
        self,
        thread: LoopThread,
        source: AsyncIterable[T] | Callable[[], AsyncIterable[T]],
        items_max: int,
        bytes_max: int | None,
        size_of: Callable[[T], int] | None,
    ) -> None:
        self._thread = thread
        self._source: Any = source
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._changed = threading.Condition(threading.Lock())
        self._ready: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._largest_bytes = 0
        self._room: asyncio.Future[None] | None = None  # set while the task waits for room
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._ended = False
        self._error: BaseException | None = None

    # On the consumer's thread

    def wait_for_item(self, deadline: float | None) -> bool:
        """Whether there is an item, or the end, before the deadline. In slices, which let signals through."""
        return bool(self._ready) or self._wait(lambda: bool(self._ready) or self._ended, deadline)

    def take(self) -> T:
        """The next item. At the end ``StopIteration`` or, once, the error of the source."""
        with self._changed:
            if not self._ready:
                error, self._error = self._error, None
                try:
                    raise error or StopIteration
                finally:
                    del error
            item, size = self._ready.popleft()
            self._bytes -= size
            # Not for each item, so that several cross at a time: a half-empty window is enough to go on.
            wake = self._room is not None and len(self._ready) <= self._items_max // 2 and self._has_room()
        if wake:
            self._thread.call_soon(self._give_room)
        return item

    def wait_until_ended(self, seconds: float) -> bool:
        """Whether the task has ended, and the source is closed, within the time given."""
        return self._wait(lambda: self._ended, time.monotonic() + seconds)

    def _wait(self, is_there: Callable[[], bool], deadline: float | None) -> bool:
        while True:
            left = WAIT_SLICE_SECONDS if deadline is None else min(WAIT_SLICE_SECONDS, deadline - time.monotonic())
            with self._changed:
                if is_there() or (left > 0 and self._changed.wait_for(is_there, left)):
                    return True
            if left <= 0:
                return False
            self._thread.check_alive()

    # On the loop's thread

    def start(self) -> None:
        """Begin, as a task."""
        task = self._task = self._thread.loop.create_task(self._run())
        self._thread.keep(task)
        task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Drop what is ready, cancel the task and let it close its source."""
        self._cancelled = True
        with self._changed:
            self._ready.clear()
            self._bytes = 0
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        source, self._source = self._source, None
        if not hasattr(source, "__aiter__"):
            source = source()
            if not hasattr(source, "__aiter__"):
                raise InvalidType(
                    f"the function given to iterate() returned {type(source).__name__}, no asynchronous iterable",
                    operation="iterate",
                )
        items: AsyncIterator[T] = aiter(source)
        try:
            await self._fill(items)
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    async def _fill(self, items: AsyncIterator[T]) -> None:
        in_a_row = 0
        while True:
            while not self._has_room():
                await self._wait_for_room()
                in_a_row = 0
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            if self._cancelled:
                raise asyncio.CancelledError  # which the source has swallowed
            self._put(item)
            in_a_row += 1
            if in_a_row == ITEMS_IN_A_ROW_MAX:
                await asyncio.sleep(0)
                in_a_row = 0

    def _put(self, item: T) -> None:
        size = 0 if self._size_of is None else self._size_of(item)
        self._largest_bytes = max(self._largest_bytes, size)
        with self._changed:
            self._ready.append((item, size))
            self._bytes += size
            self._changed.notify()

    def _has_room(self) -> bool:
        """Whether one more item may be made. When nothing is held, any may."""
        count = len(self._ready)
        return not count or (
            count < self._items_max
            and (self._bytes_max is None or self._bytes + self._largest_bytes <= self._bytes_max)
        )

    async def _wait_for_room(self) -> None:
        room = self._thread.loop.create_future()
        with self._changed:
            if self._has_room():
                return
            self._room = room
        try:
            await room
        finally:
            self._room = None

    def _give_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _end(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._cancelled:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                logger.error("closing failed", exc_info=error)
            error = None
        with self._changed:
            self._error = error
            self._ended = True
            self._changed.notify_all()
        self._task = None
