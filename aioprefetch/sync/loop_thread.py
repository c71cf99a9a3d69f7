"""The event loop behind ``aioprefetch.sync``: one daemon thread per process, started when it is first needed.

A forked child has no threads, so it starts a loop of its own and never touches its parent's: the epoll descriptor is
shared with the parent, and even closing it would disturb the parent. No code of the user runs on this thread, and
``run`` refuses to wait there for itself, which would never end.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from aioprefetch.errors import Closed, InvalidArgument, InvalidType, TimedOut, WrongLoop
from aioprefetch.telemetry import logger

T = TypeVar("T")

# How long a cancelled call may take to unwind before its caller goes on without it.
CANCEL_SECONDS_MAX = 5.0
# How long the end of the process may wait for open connections and tasks, and when its patience with tasks ends.
EXIT_SECONDS_MAX = 2.0
EXIT_TASK_SECONDS_MAX = 0.5


class _Call(Generic[T]):
    """One coroutine: the loop's thread runs it, the caller's thread waits for it."""

    __slots__ = ("_coroutine", "_done", "_error", "_finished", "_result", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._finished = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._done = threading.Lock()  # held until the result is there; cheaper than an Event
        self._done.acquire()

    def start(self) -> None:
        """On the loop's thread: begin."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """On the loop's thread, after ``start``: stop."""
        if self._task is not None:
            self._task.cancel()

    def abandon(self) -> None:
        """The loop is gone, on its thread: tell the waiter, if it still waits."""
        if not self._finished:
            if self._task is None:
                self._coroutine.close()
            self._finished = True
            self._error = Closed("the loop of aioprefetch.sync has ended with the process", operation="run")
            self._done.release()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Whether it ended within the time given."""
        if self._done.acquire(timeout=-1 if timeout_seconds is None else min(timeout_seconds, threading.TIMEOUT_MAX)):
            self._done.release()
            return True
        return False

    def result(self) -> T:
        """What the coroutine returned or raised. Only once, since the error is dropped to break a reference cycle."""
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


class LoopThread:
    """An event loop on a daemon thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._calls: set[_Call[Any]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve, name="aioprefetch-sync", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it takes calls."""
        return self._thread.is_alive() and not self.loop.is_closed()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.get_ident() == self._thread.ident

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """See :func:`run`."""
        if self.is_current:
            coroutine.close()
            raise WrongLoop(
                "called on the loop thread of aioprefetch.sync itself, which would wait for itself; await it instead",
                operation="run",
            )
        call = _Call(coroutine)
        self._calls.add(call)
        try:
            self._call_soon(call.start, coroutine)
            try:
                in_time = call.wait(timeout_seconds)
            except BaseException:  # KeyboardInterrupt, or what a signal handler raises
                self._cancel(call)
                raise
            if not in_time:
                return self._give_up(call, timeout_seconds)
            return call.result()
        finally:
            self._calls.discard(call)

    def finish(self, make: Callable[[], Coroutine[Any, Any, None]], *, timeout_seconds: float) -> None:
        """Close something: run what ``make`` returns, and wait for it no longer than given.

        From any thread, this one and destructors included (with 0 it never waits). Failures are logged, not raised.
        """

        async def guarded() -> None:
            try:
                await make()
            except Exception:
                logger.exception("closing failed")

        if self.is_current or not timeout_seconds:
            self._start_in_background(guarded)
            return
        try:
            self.run(guarded(), timeout_seconds)
        except TimedOut:
            logger.warning("closing took longer than %s seconds and was broken off", timeout_seconds)
        except Closed:
            pass  # the loop has ended, and has closed what was open

    def _start_in_background(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def start() -> None:
            task = self.loop.create_task(make())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

        with contextlib.suppress(RuntimeError):  # the loop has ended, and has closed what was open
            self.loop.call_soon_threadsafe(start)

    def stop(self, timeout_seconds: float) -> None:
        """Cancel all tasks, close the loop and wait for it as long as given."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_seconds)

    def _call_soon(self, start: Callable[[], None], coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            self.loop.call_soon_threadsafe(start)
        except RuntimeError as error:
            coroutine.close()
            raise Closed("the loop of aioprefetch.sync has ended", operation="run") from error

    def _cancel(self, call: _Call[Any]) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(call.cancel)
        call.wait(CANCEL_SECONDS_MAX)

    def _give_up(self, call: _Call[T], timeout_seconds: float | None) -> T:
        """Cancel a call that took too long. Its result still counts if it came before the cancellation did."""
        self._cancel(call)
        late = TimedOut(f"not done within timeout_seconds={timeout_seconds}", operation="run")
        if not call.wait(0):
            raise late
        try:
            return call.result()
        except BaseException as error:  # CancelledError, or what the coroutine made of it
            raise late from error

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self._end_tasks()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
            for call in self._calls.copy():
                call.abandon()

    def _end_tasks(self) -> None:
        # Twice, since a task that is being cancelled may start another one to close something.
        for _ in range(2):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=EXIT_TASK_SECONDS_MAX))


class _Process:
    """The loop thread of this process; what a fork left behind is kept, so that no destructor of it ever runs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.thread: LoopThread | None = None
        self.graveyard: list[object] = []

    def current(self) -> LoopThread:
        """The running one, started if there is none."""
        thread = self.thread
        if thread is not None and thread.is_alive:
            return thread
        with self.lock:
            if self.thread is None or not self.thread.is_alive:
                self.thread = LoopThread()
            return self.thread

    def forked(self) -> None:
        """In a child: another thread of the parent may have held the lock, and the loop's thread is gone."""
        self.lock = threading.RLock()
        self.bury(self.thread)
        self.thread = None

    def bury(self, *parents: object) -> None:
        """Keep what belongs to the parent process out of the garbage collector's reach."""
        self.graveyard.extend(parents)

    def end(self) -> None:
        """At exit: close what is open, within a bound."""
        thread, self.thread = self.thread, None
        if thread is not None:
            thread.stop(EXIT_SECONDS_MAX)


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)
atexit.register(_process.end)


def loop_thread() -> LoopThread:
    """The loop thread of this process, started if it does not run yet."""
    return _process.current()


def process_lock() -> threading.RLock:
    """A lock for what happens once in each process; a fork never leaves it locked."""
    return _process.lock


def bury(*parents: object) -> None:
    """In a forked child: keep objects of the parent's loop for ever, so that their destructors do not run here."""
    _process.bury(*parents)


def run(coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
    """Run a coroutine on the loop thread of this process and wait for its result, from any other thread.

    The caller's context variables go along. After ``timeout_seconds``, or when the wait is interrupted
    (``KeyboardInterrupt``), the coroutine is cancelled and has a few seconds to clean up. Raises what the coroutine
    raises; ``TimedOut`` after the time given; ``WrongLoop`` when called on the loop thread itself.
    """
    if not asyncio.iscoroutine(coroutine):
        raise InvalidType(f"run() needs a coroutine, not {type(coroutine).__name__}", operation="run")
    if timeout_seconds is not None and not timeout_seconds >= 0:
        coroutine.close()
        raise InvalidArgument(f"timeout_seconds must not be negative: {timeout_seconds!r}", operation="run")
    return loop_thread().run(coroutine, timeout_seconds)
