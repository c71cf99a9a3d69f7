"""One coroutine that the loop's thread runs while another thread waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """A coroutine, started and cancelled on the loop's thread, waited for on the caller's.

    ``is_left`` is the caller's: nothing is to be cancelled any more, since it was, or its result was taken.
    """

    __slots__ = ("_coroutine", "_done", "_error", "_finished", "_result", "_task", "is_left")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._finished = self.is_left = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._done = threading.Lock()  # held until the result is there; cheaper than an Event
        self._done.acquire()

    def start(self) -> None:
        """On the loop's thread: begin."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """On the loop's thread: stop. One that was not started never is."""
        if self._task is not None:
            self._task.cancel()
        elif not self._finished:
            self.abandon(asyncio.CancelledError())

    def abandon(self, error: BaseException) -> None:
        """On the loop's thread, where it never started or the loop is gone: tell the waiter, if it still waits."""
        if not self._finished:
            if self._task is None:
                self._coroutine.close()
            self._finished = True
            self._error = error
            self._done.release()

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it ended within the time given."""
        if self._done.acquire(timeout=min(timeout_seconds, threading.TIMEOUT_MAX)):
            self._done.release()
            return True
        return False

    def result(self) -> T:
        """What the coroutine returned or raised. Only once, since the error is dropped to break a reference cycle."""
        self.is_left = True
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._result  # type: ignore[return-value]  # set whenever there was no error

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = asyncio.CancelledError()
        else:
            self._error = task.exception()
            if self._error is None:
                self._result = task.result()
        self._task = None
        self._finished = True
        self._done.release()
