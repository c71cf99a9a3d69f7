"""Asynchronous iterables as plain iterators: a task on the loop thread stays ahead of its consumer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from aioprefetch.errors import Closed, InvalidArgument, InvalidType, TimedOut, WrongLoop, copy_of
from aioprefetch.ranges import ByteCount, at_least, bytes_at_least
from aioprefetch.runtime.closing import Closing, refused
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.sync.loop_thread import WAIT_SLICE_SECONDS, LoopThread, leak_in_child, loop_thread, refuse_in_loop
from aioprefetch.values import Entry
from aioprefetch.verbs.listing import EntryList, Lister, listing_html

T = TypeVar("T")

Source = AsyncIterable[T] | Callable[[], AsyncIterable[T]]

CLOSE_SECONDS_MAX = 5.0

# A source that never waits lets other tasks run after this many items.
ITEMS_IN_A_ROW_MAX = 64


class Pump(Generic[T]):
    """Items that are ready, between the loop thread that makes them and one thread that takes them.

    Once it is started it ends by itself, by ``cancel``, or with the loop. Its items are guarded by one lock,
    which no thread holds while it waits.
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
            # Not for each item, so that several cross at a time: a half-empty window is enough to continue.
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
        """Drop the ready items, cancel the task and let it close its source."""
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
        """Whether one more item may be made. An empty window takes any item."""
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


class BlockingIterator(Closing, Iterator[T], Generic[T]):
    """The items of an asynchronous iterable, for one thread at a time. See :func:`iterate`.

    Leave it early with ``close`` or ``with``, or drop it: the source is cancelled and closed, and the ready items are
    dropped.
    """

    if not TYPE_CHECKING:
        __aiter__ = refused("async for", "write 'for'; with await there is what it was made of")

    def __init__(self, pump: Pump[T], timeout_seconds: float | None) -> None:
        self._pump = pump
        self._timeout_seconds = timeout_seconds
        self._thread = loop_thread()
        self._generation = fork_generation()
        self._started = False
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        self._check_place()
        try:
            if not self._started:
                self.start()
            return self._take()
        except BaseException:  # its own end, the source's error, KeyboardInterrupt at any point
            self.close()
            raise

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self._ended:
            self.cancel()

    def start(self) -> None:
        """Begin to run ahead; otherwise the first ``next`` does."""
        self._started = True
        self._thread.call_soon(self._pump.start)

    def cancel(self) -> None:
        """End it without waiting for the source to close."""
        self._ended = True
        if self._generation != fork_generation():
            leak_in_child(self._pump)  # its source and its lock belong to the parent
        elif self._started and self._thread.is_alive:
            with contextlib.suppress(Closed):  # the loop has ended, and has cancelled everything
                self._thread.call_soon(self._pump.cancel)

    def close(self) -> None:
        """End it, and wait until the source has closed, for a few seconds at most. May be called twice."""
        self.cancel()
        if not self._started or self._generation != fork_generation() or self._thread.is_current:
            return
        if not self._pump.wait_until_ended(CLOSE_SECONDS_MAX):
            logger.warning("a source of iterate() takes longer than %s seconds to close", CLOSE_SECONDS_MAX)

    def _take(self) -> T:
        timeout = self._timeout_seconds
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._pump.wait_for_item(deadline):
            return self._pump.take()
        raise TimedOut(f"no item within timeout_seconds={timeout}", operation="iterate")

    def _check_place(self) -> None:
        refuse_in_loop("iterate")
        if self._generation != fork_generation():
            raise WrongLoop(
                "this iterator belongs to the process that was forked; make one in this process", operation="iterate"
            )


def iterate(
    source: Source[T],
    *,
    window_items: int = 2,
    window_bytes: ByteCount | None = None,
    size_of: Callable[[T], int] | None = None,
    timeout_seconds: float | None = None,
) -> BlockingIterator[T]:
    """Iterate over an asynchronous iterable from code without an event loop.

    ``source`` runs on the loop thread of this process, in the caller's context; a function is called there, and
    returns the iterable. Nothing runs before the first item is requested. From then on it runs ahead of the consumer,
    by at most ``window_items`` items that were not taken yet, the one being made included. With ``window_bytes`` it
    also pauses while an item as large as the largest so far would not fit; an item that is larger than the window
    comes alone. ``size_of`` tells the size of an item; otherwise its ``nbytes``, or its length as bytes, counts.

    An error of the source is raised where its items end, once, with its traceback. When an item takes longer than
    ``timeout_seconds`` it is ``TimedOut``, and the source is cancelled. ``WrongLoop`` if an event loop runs in the
    caller's thread, and in a forked child.
    """
    if not hasattr(source, "__aiter__") and not callable(source):
        raise InvalidType(
            f"iterate() needs an asynchronous iterable, or a function that returns one, not {type(source).__name__}",
            operation="iterate",
        )
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise InvalidArgument(f"timeout_seconds must be above 0: {timeout_seconds!r}", operation="iterate")
    refuse_in_loop("iterate")
    items_max = at_least(1, window_items, "window_items", operation="iterate", path="")
    bytes_max = (
        None if window_bytes is None else bytes_at_least(1, window_bytes, "window_bytes", operation="iterate", path="")
    )
    measure: Callable[[T], int] | None = None if bytes_max is None else size_of or _size_in_bytes
    return BlockingIterator(Pump(loop_thread(), source, items_max, bytes_max, measure), timeout_seconds)


def _size_in_bytes(item: Any) -> int:
    size = getattr(item, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(item, bytes | bytearray):
        return len(item)
    raise InvalidType(
        f"the size of {type(item).__name__} is not known: window_bytes needs size_of", operation="iterate"
    )


# --- listings ---------------------------------------------------------------------------------------------------------

# A page of S3 has 1000 entries. A batch ends after this time with the entries that it has, so that a sparse listing (a
# glob that matches few names) still shows its entries.
BATCH_ENTRIES_MAX = 1000
BATCH_SECONDS_MAX = 0.2


class BlockingListing(Closing):
    """The entries of a listing, one after the other. Leave it early with ``close`` or ``with``."""

    if not TYPE_CHECKING:
        __aiter__ = refused("async for", "write 'for'; with await there is aioprefetch.Operator.list")

    def __init__(self, listing: Lister) -> None:
        self._listing = listing
        self._thread = loop_thread()
        self._ready: deque[Entry] = deque()
        self._ended = False
        self._error: Exception | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        if not self._ready and self._error is None and not self._ended:
            self._thread.run(self._fill())
        if self._ready:
            return self._ready.popleft()
        error, self._error = self._error, None
        try:
            raise error or StopIteration
        finally:
            del error  # Its traceback holds this frame.

    def __del__(self) -> None:
        if not self._ended:
            self._thread.finish(self._listing.aclose, timeout_seconds=0)

    def _repr_html_(self) -> str:
        return listing_html(self._ready, is_over=self._ended and not self._ready)

    def collect(self) -> list[Entry]:
        """All entries that are left, as one list."""
        return EntryList(self)

    def close(self) -> None:
        """End the iteration and drop the entries that are ready. May be called twice."""
        self._ready.clear()
        if not self._ended:
            self._ended = True
            self._thread.finish(self._listing.aclose, timeout_seconds=CLOSE_SECONDS_MAX)

    async def _fill(self) -> None:
        """The next batch. Entries before an error are delivered before the error is raised."""
        loop = asyncio.get_running_loop()
        enough = loop.time() + BATCH_SECONDS_MAX
        while len(self._ready) < BATCH_ENTRIES_MAX:
            try:
                self._ready.append(await self._listing.__anext__())
            except StopAsyncIteration:
                self._ended = True
                return
            except Exception as error:
                self._error = copy_of(error)
                return
            if loop.time() >= enough:
                return
