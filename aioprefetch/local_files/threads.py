"""Blocking calls off the event loop, so that a cancelled caller never leaves a thread at work with its memory.

Two ways. Positioned reads and directory scans run on the runtime's executor. Whole files and metadata have threads of
their own, so that slow writes never stand before reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioprefetch.errors import Closed
from aioprefetch.local_files.errors import naming
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.threads import Threads
from aioprefetch.values import Request

T = TypeVar("T")

WRITE_THREADS = 4
# Short calls that take longer than this, on average, wait for a device.
SLOW_SECONDS = 0.002


async def settled(
    job: Awaitable[T],
    dispose: Callable[[T], object] | None = None,
    *,
    give_up: Callable[[], object] | None = None,
) -> T:
    """Await ``job`` to its end even if cancelled meanwhile, and only then let the cancellation through.

    A thread cannot be stopped: a late read into a buffer would corrupt it for its next owner, and a thread that
    opens a file would leak it. Reading into memory of the job's own would let go at once but cost a copy of every
    byte; jobs are cut into pieces of milliseconds instead. ``give_up`` is called at the cancellation and may let the
    job do less; ``dispose`` gets a result that no caller will receive.
    """
    task = asyncio.ensure_future(job)
    interruption: asyncio.CancelledError | None = None
    try:
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                interruption = error.with_traceback(None)  # From Python 3.14 on a frame of ``wait`` holds this task.
                if give_up is not None:
                    give_up()
        if interruption is None:
            return task.result()
        if not task.cancelled() and task.exception() is None and dispose is not None:
            dispose(task.result())
        raise interruption
    finally:
        del job, task, interruption  # The tracebacks of their errors hold this frame.


async def translated(
    request: Request,
    job: Awaitable[T],
    dispose: Callable[[T], object] | None = None,
    *,
    give_up: Callable[[], object] | None = None,
) -> T:
    """Await a thread's job to its end (see ``settled``), and raise its failure as an error of ours."""
    try:
        with naming(request.operation, request.path):
            return await settled(job, dispose, give_up=give_up)
    finally:
        del job  # The traceback of its error holds this frame.


class FileThreads:
    """The threads that whole files and metadata use, one set per runtime; ended when the runtime is closed."""

    def __init__(self, runtime: Runtime) -> None:
        self.executor = Threads(WRITE_THREADS, "aioprefetch-files")
        self._short = Threads(1, "aioprefetch-files")
        self._short_seconds = 0.0
        runtime.supervisor.on_close(self._shut)

    @classmethod
    def of(cls, runtime: Runtime) -> FileThreads:
        """The threads of a runtime, made at the first call."""
        return runtime.shared("fs file threads", lambda: cls(runtime))

    def call(self, call: Callable[..., T], *arguments: object, executor: Threads | None = None) -> asyncio.Future[T]:
        """Begin a blocking call. The result is ``Closed`` if the runtime is closed.

        A future and no task: a loop that ends cancels its tasks, and the waiter would not see the end of the thread.
        """
        return asyncio.wrap_future((executor or self.executor).submit(call, *arguments))

    def call_short(self, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """As ``call``, for many calls that seldom wait for a device.

        One thread makes them: several would take turns at the interpreter's lock at each call of the system, which
        takes longer than the calls. Where the device turns out to be slow, the other threads make them.
        """
        is_slow = self._short_seconds >= SLOW_SECONDS
        executor, threads = (self.executor, WRITE_THREADS) if is_slow else (self._short, 1)
        return self.call(self._call_timed, threads, call, *arguments, executor=executor)

    def _call_timed(self, threads: int, call: Callable[..., T], *arguments: object) -> T:
        began = time.monotonic()
        try:
            return call(*arguments)
        finally:  # The mean of about the last 16: what a call takes of the time in which several are made.
            self._short_seconds += ((time.monotonic() - began) / threads - self._short_seconds) / 16

    async def clean_up(self, call: Callable[[], object]) -> None:
        """Run a short call that must happen: in a thread, or here if the runtime is closed."""
        try:
            await settled(self.call(call))
        except Closed:
            call()

    async def _shut(self) -> None:
        # Jobs that wait for a thread are done all the same: each has a caller that waits.
        for executor in (self.executor, self._short):
            executor.shutdown(wait=False)
