"""Calls of the disk in threads: bounded in number and time, and after a failure none of the kind for a while.

A thread cannot be stopped. One that hangs on a disk keeps its turn until it returns, so that only so many can ever
hang, and the disk is left alone meanwhile. What it works on must be its own: nobody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from aioprefetch.blocks.disk.format import BadBlockFile
from aioprefetch.errors import Closed, ConfigInvalid
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime

T = TypeVar("T")

# A file that cannot be read is a miss. So many in a row are a disk that cannot be read.
FAILURES_MAX = 3
# Nobody waits for a write, but one that takes so long will not end.
WRITE_SECONDS_MAX = 10.0


class DiskFailed(Exception):
    """A call of the disk failed, was wrong or took too long. Never leaves the disk tier: it is a miss."""


class _Call(Generic[T]):
    """One job in a thread. ``leave`` tells whether its thread is still at work; ``returned`` is called later then."""

    __slots__ = ("_job", "_left", "_lock", "_loop", "_returned", "_running", "is_overdue")

    def __init__(
        self, job: Callable[[], T], loop: asyncio.AbstractEventLoop, returned: Callable[[_Call[T]], None]
    ) -> None:
        self.is_overdue = False
        self._job: Callable[[], T] | None = job
        self._loop = loop
        self._returned = returned
        self._lock = threading.Lock()
        self._running = False
        self._left = False

    def run(self) -> T:
        """Called in the thread."""
        with self._lock:
            job, self._job = self._job, None
            if job is None:
                raise asyncio.InvalidStateError("it was left before it began")
            self._running = True
        try:
            return job()
        finally:
            del job
            with self._lock:
                self._running = False
                left = self._left
            if left:
                with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
                    self._loop.call_soon_threadsafe(self._returned, self)

    def leave(self) -> bool:
        """Nobody waits any more."""
        with self._lock:
            self._job = None
            self._left = self._running
            return self._running


class DiskGuard:
    """All calls of one disk tier. Everything here runs on the runtime's loop."""

    def __init__(self, runtime: Runtime, options: DiskCache) -> None:
        self._runtime = runtime
        self._options = options
        # The other half of the threads stays for those who share them with us.
        self._turns = asyncio.Semaphore(max(1, runtime.options.executor_threads // 2))
        self._overdue = 0
        self._failures_in_a_row = 0
        self._off_until = float("-inf")
        self._writing_off_until = float("-inf")
        self._complaints: set[str] = set()

    @property
    def is_off(self) -> bool:
        """Whether the disk is to be left alone now."""
        return self._overdue > 0 or self._runtime.now() < self._off_until or self._runtime.closed

    @property
    def is_writing_off(self) -> bool:
        """Whether nothing is to be written now, though what is there may be read."""
        return self.is_off or self._runtime.now() < self._writing_off_until

    async def read(self, job: Callable[[], T]) -> T:
        """The result of a job for which a read waits. Raises ``DiskFailed`` alone."""
        result = await self._call("read", job, self._options.read_timeout_seconds)
        self._failures_in_a_row = 0
        return result

    async def write(self, job: Callable[[], T]) -> T:
        """The result of a job that writes, for which nobody waits. Raises ``DiskFailed`` alone."""
        return await self._call("write", job, WRITE_SECONDS_MAX)

    async def look(self, job: Callable[[], T]) -> T:
        """The result of a job that lists, for which nobody waits. Raises ``DiskFailed`` alone."""
        return await self._call("list", job, WRITE_SECONDS_MAX)

    async def _call(self, what: str, job: Callable[[], T], seconds: float) -> T:
        call = _Call(job, self._runtime.loop, self._returned)
        del job
        try:
            async with asyncio.timeout(seconds):
                await self._turns.acquire()
                try:
                    return await self._runtime.run_blocking(call.run)
                finally:
                    if not call.leave():
                        self._turns.release()
        except Exception as error:
            if isinstance(error, TimeoutError) and call.leave():
                call.is_overdue = True
                self._overdue += 1
            # Without its traceback, whose frames hold the memory that was to be written.
            self._failed(what, error.with_traceback(None))
            raise DiskFailed(str(error)) from None

    def _returned(self, call: _Call[T]) -> None:
        self._turns.release()
        if call.is_overdue:
            self._overdue -= 1

    def _failed(self, what: str, error: Exception) -> None:
        if isinstance(error, Closed):
            return
        self._runtime.counters["stream_file_cache_failures"] += 1
        self._runtime.events.publish("disk.failed", "", call=what, error=type(error).__name__)
        if isinstance(error, BadBlockFile):
            return
        seconds = self._options.cool_down_seconds
        if isinstance(error, ConfigInvalid):
            self._off_until = float("inf")
            self._complain(error, "the block files in %s are left alone from now on and reads go to the store: %s")
        elif what == "write" and not isinstance(error, TimeoutError):
            # A file system that became read-only, or is over its quota, still gives what is there.
            self._writing_off_until = self._runtime.now() + seconds
            self._complain(error, f"no blocks are written to %s for {seconds:g} seconds: %s")
        else:
            self._failures_in_a_row += 1
            if what == "read" and not isinstance(error, TimeoutError) and self._failures_in_a_row < FAILURES_MAX:
                return
            self._off_until = self._runtime.now() + seconds
            self._complain(
                error, f"the block files in %s are left alone for {seconds:g} seconds and reads go to the store: %s"
            )

    def _complain(self, error: Exception, message: str) -> None:
        # One warning for each kind of trouble: a disk that is full stays full.
        kind = f"{type(error).__name__} {getattr(error, 'errno', '')}"
        if kind in self._complaints:
            return
        self._complaints.add(kind)
        told = "the disk did not answer in time" if isinstance(error, TimeoutError) else str(error)
        logger.warning(message, self._options.directory, told)
