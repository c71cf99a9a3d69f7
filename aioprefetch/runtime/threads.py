"""The executor of all blocking calls, of daemon threads, so that a program can end beside a call that may hang.

At its end it waits for all others, which may be in code that lets no thread be ended. Unlike the threads of
``concurrent.futures`` these can also begin first when the main thread has ended.
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

SHARED_MAX = 256  # The calls of ``in_thread`` that may hang before others wait.


class Threads(Executor):
    """At most ``count`` threads. ``may_hang``: calls may wait for ever, so the end of the process does not for them."""

    def __init__(self, count: int, name: str, *, may_hang: bool = False) -> None:
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[partial[None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        self._unfinished = 0  # Where there are as many threads, each job that waits has a free one.
        self._is_shut = False
        if not may_hang:
            _awaited_at_exit.add(self)

    def __del__(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call. Its result is ``Closed`` after ``shutdown``; ``RuntimeError`` if no thread can be started."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut:
                future.set_exception(Closed("the operator is closed"))
                return future
            if len(self._threads) < self._count and self._unfinished >= len(self._threads):
                thread = threading.Thread(target=_serve, args=(self._jobs,), name=self._name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self._unfinished += 1
            self._jobs.put(partial(self._carry_out, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Waiting calls are made all the same, unless they are cancelled."""
        with self._lock:
            self._is_shut = True
            with suppress(Empty):
                while cancel_futures and (job := self._jobs.get_nowait()):
                    job.args[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _carry_out(self, future: Future[T], call: Callable[[], T]) -> None:
        settle: Callable[[], object] = future.cancel
        if future.set_running_or_notify_cancel():
            try:
                settle = partial(future.set_result, call())
            except BaseException as error:
                settle = partial(future.set_exception, error)
        with self._lock:  # Before the result, which may let the next call come.
            self._unfinished -= 1
        settle()
        del future, call, settle  # The traceback of an error holds this frame.


awaited_thread = threading.local()


def never_collect_here() -> None:
    """On a thread of ours that callers wait for: no garbage is collected here from now on. See ``collector``."""
    awaited_thread.is_set = True


def _serve(jobs: SimpleQueue[partial[None] | None]) -> None:
    never_collect_here()
    # The executor is held by its jobs alone, so that dropping it ends its threads.
    while (job := jobs.get()) is not None:
        job()
        del job


_awaited_at_exit: weakref.WeakSet[Threads] = weakref.WeakSet()
_shared: list[Threads] = []  # The last belongs to this process. A child keeps its parent's, and touches none.


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
