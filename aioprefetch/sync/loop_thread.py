"""The event loop behind ``aioprefetch.sync``: one daemon thread per process, started when it is first needed.

A forked child has no threads, so it starts a loop of its own and never touches its parent's: the epoll descriptor is
shared with the parent, and even closing it would disturb the parent. No code of the user runs on this thread, not even
a destructor (see ``runtime/collector.py``), and ``run`` refuses to wait there for itself, which would never end.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from aioprefetch.credentials import hide_frames
from aioprefetch.errors import Closed, Error, InvalidArgument, InvalidType, TimedOut, WrongLoop, copy_of
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.collector import collect_elsewhere
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.threads import never_collect_here

T = TypeVar("T")

# A wait checks at this interval whether the loop still runs: a fork may have left it behind.
WAIT_SLICE_SECONDS = 0.5
# How long a cancelled call may take to unwind before its caller continues without it.
CANCEL_SECONDS_MAX = 5.0
# How long the end of the process waits for the loop, and for its tasks.
EXIT_SECONDS_MAX = 2.0
EXIT_TASK_SECONDS_MAX = 0.5


class Call(Generic[T]):
    """A coroutine, started and cancelled on the loop's thread, waited for on the caller's.

    ``is_left`` belongs to the caller: the call was cancelled or its result was taken, so it is not cancelled again.
    """

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
        """On the loop's thread: stop. A call that was not started never starts."""
        if self._task is not None:
            self._task.cancel()
        elif not self._finished:
            self.abandon(asyncio.CancelledError())

    def abandon(self, error: BaseException) -> None:
        """On the loop's thread, where it never started or the loop is gone: end the wait with ``error``."""
        if not self._finished:
            if self._task is None:
                self._coroutine.close()
            self._finished = True
            self._error = error
            self._done.release()

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it ended within ``timeout_seconds``."""
        # Looked at first: an interrupt right behind ``acquire`` takes the result of a wait away, and not its lock.
        return self._finished or self._done.acquire(timeout=min(timeout_seconds, threading.TIMEOUT_MAX))

    def result(self) -> T:
        """The result or error of the coroutine. Only once: the error is dropped to break a reference cycle.

        An error of ours is a copy. What our threads still hold, and may be the last to drop, has no frame of a caller.
        """
        self.is_left = True
        error, self._error = self._error, None
        if isinstance(error, Error):
            error = _copy_of(error)
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


def _copy_of(error: Error) -> Error:
    """A copy with the traceback, which goes on growing, and with all that the error knows."""
    twin = copy_of(error)
    twin.context = error.context
    twin.__context__, twin.__suppress_context__ = error.__context__, error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


class LoopThread:
    """An event loop on a daemon thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        with contextlib.suppress(RuntimeError):  # After the end of the main thread no thread can start.
            from concurrent.futures.thread import ThreadPoolExecutor

            # For other libraries: calls of ours go to threads of ours.
            self.loop.set_default_executor(ThreadPoolExecutor(None, "asyncio", never_collect_here))
        collect_elsewhere()
        self._pid = os.getpid()
        self._calls: set[Call[Any]] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="aioprefetch-sync", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it takes calls."""
        return self._pid == os.getpid() and self._thread.is_alive() and not self.loop.is_closed()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.get_ident() == self._thread.ident

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Run a coroutine on this thread and wait for it, as the function ``run`` does."""
        if self.is_current:
            coroutine.close()
            raise WrongLoop(
                "called on the loop thread of aioprefetch.sync itself, which would wait for itself; await it instead",
                operation="run",
            )
        call = Call(coroutine)
        self._calls.add(call)
        try:
            try:
                self._start(call, coroutine)
                in_time = self._wait(call, timeout_seconds)
                return call.result() if in_time else self._give_up(call, timeout_seconds)
            except BaseException as error:  # KeyboardInterrupt, or an exception of a signal handler, at any point
                self._cancel(call)
                hide_frames(error)
                raise
        finally:
            if self.is_alive:  # in a fork the coroutine is its parent's, and its destructor must not run
                self._calls.discard(call)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function on the loop's thread, in the caller's context. ``Closed`` when the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(callback, context=entering())
        except RuntimeError as error:
            raise Closed("the loop of aioprefetch.sync has ended", operation="run") from error

    def check_alive(self) -> None:
        """``Closed`` if a wait for this thread would never end: it has ended, or is in another process."""
        if not self.is_alive:
            raise Closed("the loop of aioprefetch.sync has ended, or stayed behind at a fork", operation="run")

    def keep(self, task: asyncio.Task[Any]) -> None:
        """On the loop's thread: hold a task until it ends, since the loop itself does not."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def finish(self, make: Callable[[], Coroutine[Any, Any, None]], *, timeout_seconds: float) -> None:
        """Run the coroutine of ``make``, which closes something, and wait for it at most ``timeout_seconds``.

        From any thread, this one and destructors included (with 0 it never waits). Failures are logged, not raised.
        """

        async def guarded() -> None:
            try:
                await make()
            except Exception:
                logger.exception("closing failed")

        if self.is_current or not timeout_seconds:
            self.start_in_background(guarded)
            return
        try:
            self.run(guarded(), timeout_seconds)
        except TimedOut:
            logger.warning("closing took longer than %s seconds and was broken off", timeout_seconds)
        except Closed:
            pass  # the loop has ended, and has closed what was open

    def start_in_background(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the coroutine of ``make`` from any thread, and wait for nothing."""

        def start() -> None:
            self.keep(self.loop.create_task(make()))

        with contextlib.suppress(RuntimeError):  # the loop has ended, and has closed what was open
            self.loop.call_soon_threadsafe(start)

    def stop(self, timeout_seconds: float) -> None:
        """Cancel all tasks, close the loop and wait for it at most ``timeout_seconds``."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_seconds)

    def _start(self, call: Call[T], coroutine: Coroutine[Any, Any, T]) -> None:
        try:
            self.call_soon(call.start)
        except Closed:
            coroutine.close()
            raise

    def _wait(self, call: Call[Any], timeout_seconds: float | None) -> bool:
        """Whether it ended in time. The wait has slices, between which signals are handled."""
        if timeout_seconds is not None and timeout_seconds <= WAIT_SLICE_SECONDS:
            return call.wait(timeout_seconds)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = WAIT_SLICE_SECONDS if deadline is None else min(WAIT_SLICE_SECONDS, deadline - time.monotonic())
            if left <= 0:
                return False
            if call.wait(left):
                return True
            if not call.wait(0):
                self.check_alive()

    def _cancel(self, call: Call[Any]) -> None:
        if call.is_left or not self.is_alive:
            return  # in a fork: the loop is its parent's
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(call.cancel)
        call.is_left = True
        call.wait(CANCEL_SECONDS_MAX)

    def _give_up(self, call: Call[T], timeout_seconds: float | None) -> T:
        """Cancel a call that took too long. Its result still counts if it ended before the cancellation."""
        self._cancel(call)
        why = f"not done within timeout_seconds={timeout_seconds}"
        if not call.wait(0):
            raise TimedOut(why, operation="run")
        try:
            return call.result()
        except BaseException as error:  # CancelledError, or the coroutine's own exception
            raise TimedOut(why, operation="run") from error

    def _serve(self) -> None:
        never_collect_here()
        asyncio.set_event_loop(self.loop)
        try:
            self._run_until_stopped()
            self._end_tasks()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
            for call in self._calls.copy():
                call.abandon(Closed("the loop of aioprefetch.sync has ended with the process", operation="run"))

    def _run_until_stopped(self) -> None:
        while True:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # A coroutine raised it: its caller gets it, and the other coroutines continue.
                continue
            return

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
    """The loop thread of this process. A child keeps the objects of its parent, so that no destructor of them runs."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.thread: LoopThread | None = None
        self.kept_after_fork: list[object] = []

    def current(self) -> LoopThread:
        """The running one, started at its first use."""
        thread = self.thread
        if thread is not None and thread.is_alive:
            return thread
        if self.pid != os.getpid():
            self.forked()  # by something that runs no hooks
        with self.lock:
            if self.thread is None or not self.thread.is_alive:
                self.thread = LoopThread()
            return self.thread

    def forked(self) -> None:
        """In a child: another thread of the parent may have held the lock, and the loop's thread is gone."""
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.leak_in_child(self.thread)
        self.thread = None

    def leak_in_child(self, *parents: object) -> None:
        """Keep objects of the parent process out of the garbage collector's reach."""
        self.kept_after_fork.extend(parents)

    def end(self) -> None:
        """Close open operators at exit, within a time limit."""
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
    """A lock for work that is done once in each process. A fork never leaves it locked."""
    return _process.lock


def leak_in_child(*parents: object) -> None:
    """In a forked child: keep objects of the parent's loop for ever, so that their destructors never run here."""
    _process.leak_in_child(*parents)


def refuse_in_loop(operation: str) -> None:
    """``WrongLoop`` if an event loop runs in the caller's thread: waiting would stop it, or never end."""
    running = asyncio._get_running_loop()
    if running is None:
        return
    thread = _process.thread
    if thread is not None and running is thread.loop:
        raise WrongLoop(
            "called on the loop thread of aioprefetch.sync itself, which would wait for itself; await it instead",
            operation=operation,
        )
    raise WrongLoop(
        "an event loop runs in this thread, and would stand still: await (or async for) here, or call it from a thread"
        " without a loop, as by asyncio.to_thread",
        operation=operation,
    )


def run(coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
    """Run a coroutine on the loop thread of this process and wait for its result, from any other thread.

    The caller's context variables go along. After ``timeout_seconds``, or when the wait is interrupted
    (``KeyboardInterrupt``), the coroutine is cancelled and has a few seconds to clean up. Raises what the coroutine
    raises, ``CancelledError`` included; ``TimedOut`` after the time given; ``WrongLoop`` if an event loop runs in
    the caller's thread, which would stand still meanwhile: await there. ``InvalidType`` for a time that is not a
    number.
    """
    if not asyncio.iscoroutine(coroutine):
        raise InvalidType(f"run() needs a coroutine, not {type(coroutine).__name__}", operation="run")
    try:
        refuse_in_loop("run")
    except WrongLoop:
        coroutine.close()
        raise
    timeout: object = timeout_seconds
    if timeout is not None and not _is_number(timeout):
        coroutine.close()
        raise InvalidType(f"timeout_seconds must be a number of seconds, not {timeout!r}", operation="run")
    if timeout_seconds is not None and not timeout_seconds >= 0:
        coroutine.close()
        raise InvalidArgument(f"timeout_seconds must not be negative: {timeout_seconds!r}", operation="run")
    return loop_thread().run(coroutine, timeout_seconds)


def _is_number(value: object) -> bool:
    from numbers import Real  # Takes as long to load as three modules of ours.

    return isinstance(value, Real) and not isinstance(value, bool)
