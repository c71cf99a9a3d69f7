"""The executor of all blocking calls, in place of the one of ``concurrent.futures``.

That one cannot be used first after the end of the main thread, and no program ends before the last of its calls, though
one may wait for a pipe to which nothing is written. The threads here are daemons. The process waits at its end for all
other calls: they may be in the middle of a file, or in code that does not let a thread be ended.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import ParamSpec, TypeVar

from aioprefetch.errors import Closed

T = TypeVar("T")
P = ParamSpec("P")

# The calls of ``in_thread`` that may hang before others wait.
SHARED_MAX = 256


class Threads(Executor):
    """At most ``count`` daemon threads, each started when a call finds none that is free.

    ``may_hang``: a call may wait for ever, so the process does not wait for it at its end.
    """

    def __init__(self, count: int, name: str, *, may_hang: bool = False) -> None:
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[partial[None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        self._unfinished = 0  # Where there are as many threads, each job that waits has one that is free.
        self._is_shut = False
        if not may_hang:
            _awaited_at_exit.add(self)

    def __del__(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call: ``Closed`` after ``shutdown``, ``RuntimeError`` where no first thread can be started."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut:
                raise Closed("the operator is closed")
            if len(self._threads) < self._count and self._unfinished >= len(self._threads):
                self._start_thread()
            self._unfinished += 1
            self._jobs.put(partial(self._carry_out, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Those that wait are made all the same, unless they are cancelled."""
        with self._lock:
            self._is_shut = True
            with suppress(Empty):
                while cancel_futures and (job := self._jobs.get_nowait()):
                    job.args[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _start_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_serve, args=(self._jobs,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # The interpreter ends, or the system has no thread left.
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _carry_out(self, future: Future[T], call: Callable[[], T]) -> None:
        is_wanted, error = future.set_running_or_notify_cancel(), None
        try:
            if is_wanted:
                result = call()
        except BaseException as failure:
            error = failure
        with self._lock:  # Before the result, which may let the next call come.
            self._unfinished -= 1
        if error is not None:
            future.set_exception(error)
        elif is_wanted:
            future.set_result(result)
        del future, call, error  # The traceback of the error holds this frame.


def _serve(jobs: SimpleQueue[partial[None] | None]) -> None:
    # The executor is held by its jobs alone, so that one that is dropped ends its threads.
    while (job := jobs.get()) is not None:
        job()
        del job


_awaited_at_exit: weakref.WeakSet[Threads] = weakref.WeakSet()
_shared: list[Threads] = []  # The last is that of this process. A child keeps its parent's, and touches none.


def in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """As ``asyncio.to_thread``: for calls without a runtime, for code of the caller, and for pipes, which may hang."""
    call = partial(copy_context().run, call, *args, **kwargs)
    return asyncio.get_running_loop().run_in_executor(_shared[-1], call)


def _begin() -> None:
    _awaited_at_exit.clear()
    _shared.append(Threads(SHARED_MAX, "aioprefetch-shared", may_hang=True))


def _finish() -> None:
    for threads in tuple(_awaited_at_exit):
        threads.shutdown()


_begin()
os.register_at_fork(after_in_child=_begin)
atexit.register(_finish)
