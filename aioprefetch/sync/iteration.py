"""An asynchronous iterable as a plain iterator: a task on the loop thread stays a few items ahead of its consumer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterable, Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from aioprefetch.errors import Closed, InvalidArgument, InvalidType, TimedOut, WrongLoop
from aioprefetch.ranges import at_least
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.sync.loop_thread import bury, loop_thread, refuse_in_loop
from aioprefetch.sync.pump import Pump

T = TypeVar("T")

Source = AsyncIterable[T] | Callable[[], AsyncIterable[T]]

CLOSE_SECONDS_MAX = 5.0


class BlockingIterator(Iterator[T], Generic[T]):
    """The items of an asynchronous iterable, for one thread at a time. See :func:`iterate`.

    Leave it early with ``close`` or ``with``, or by forgetting it: the source is cancelled and closed, and what was
    ready is dropped.
    """

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
        except BaseException:  # its own end, the source's error, KeyboardInterrupt wherever it comes
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
            bury(self._pump)  # its source and its lock belong to the parent
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
    window_bytes: int | None = None,
    size_of: Callable[[T], int] | None = None,
    timeout_seconds: float | None = None,
) -> BlockingIterator[T]:
    """Iterate over an asynchronous iterable from code without an event loop.

    ``source`` runs on the loop thread of this process, in the caller's context; a function is called there, and
    returns the iterable. Nothing runs before the first item is asked for. From then on it runs ahead of the consumer,
    by at most ``window_items`` items that were not taken yet, the one being made included. With ``window_bytes`` it
    also pauses while an item as large as the largest so far would not fit; an item that is larger than the window
    comes alone. ``size_of`` tells the size of an item; otherwise its ``nbytes``, or its length as bytes, counts.

    An error of the source is raised where its items end, once, with its traceback. When an item takes longer than
    ``timeout_seconds`` it is ``TimedOut``, and the source is cancelled. ``WrongLoop`` where an event loop runs in the
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
        None if window_bytes is None else at_least(1, window_bytes, "window_bytes", operation="iterate", path="")
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
