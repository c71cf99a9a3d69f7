"""The failure guard of a cache: waits are bounded, and after failures the cache is left alone for a while.

``FailureGuard`` is the state that both homes share. Calls of a store are made in tasks (``objects.py``), those of a
disk in threads (``DiskCalls``). A thread cannot be stopped: one that hangs on a disk keeps its turn until it returns,
so that only a limited number can ever hang, and the disk is left alone meanwhile. Its caller may have stopped waiting: memory that a job was given is used for nothing else until the job lets go of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, Literal, TypeVar

from aioprefetch.cache.entry import BadEntry
from aioprefetch.errors import Closed, ConfigInvalid, Error
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime

T = TypeVar("T")

# Single failures are misses. After this many in a row the cache is left alone.
FAILURES_MAX = 3
# No caller waits for a write or a listing, but one that takes longer than this will not end.
WRITE_SECONDS_MAX = 10.0

# The result of a failure: nothing ("entry"); nothing unless others came before it ("count"); the cache is left
# alone ("off"), for writing only ("writes"), or permanently ("permanent").
Consequence = Literal["entry", "count", "off", "writes", "permanent"]
DiskCall = Literal["read", "claim", "write", "list"]


class CacheFailed(Exception):
    """A call of a cache failed, was wrong or took too long. Never leaves the cache: it is a miss.

    ``is_lasting`` says that the entry it was about is of no further use.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        is_transient = isinstance(error, TimeoutError) or (isinstance(error, Error) and error.status != "permanent")
        self.is_lasting = not is_transient


class FailureGuard:
    """Counts the failures of one cache and says when to leave it alone.

    ``subject`` names the cache in warnings; a failure counts as ``counter`` and publishes ``event``. After a
    cool-down one more failure is enough to leave the cache alone again, until a call succeeds.
    """

    def __init__(self, runtime: Runtime, *, subject: str, counter: str, event: str, cool_down_seconds: float) -> None:
        self.cool_down_seconds = cool_down_seconds
        self._runtime = runtime
        self._subject = subject
        self._counter = counter
        self._event = event
        self._failures_in_a_row = 0
        # On the runtime's clock: the cache, or writing to it, is left alone until then.
        self.off_until = float("-inf")
        self.writing_off_until = float("-inf")
        self._warned: set[str] = set()

    @property
    def is_off(self) -> bool:
        """Whether the cache is to be left alone now."""
        return self._runtime.now() < self.off_until

    def succeeded(self) -> None:
        """A call succeeded: the failures before it are forgotten."""
        self._failures_in_a_row = 0

    def failed(self, call: str, error: Exception, consequence: Consequence) -> bool:
        """Count a failure of a call. Returns whether the cache is left alone from now on because of it."""
        self._runtime.counters[self._counter] += 1
        self._runtime.events.publish(self._event, "", call=call, error=type(error).__name__)
        if consequence == "entry":
            return False
        seconds = self.cool_down_seconds
        if consequence == "permanent":
            self.off_until = float("inf")
            self._warn(error, f"{self._subject} are left alone from now on and reads go to the store")
            return True
        if consequence == "writes":
            self.writing_off_until = self._runtime.now() + seconds
            self._warn(error, f"{self._subject} are not written for {seconds:g} seconds")
            return False
        self._failures_in_a_row += 1
        if self.is_off or (consequence == "count" and self._failures_in_a_row < FAILURES_MAX):
            return False
        self.off_until = self._runtime.now() + seconds
        self._warn(error, f"{self._subject} are left alone for {seconds:g} seconds and reads go to the store")
        return True

    def _warn(self, error: Exception, message: str) -> None:
        # One warning for each kind of failure: a disk that is full stays full.
        kind = f"{type(error).__name__} {getattr(error, 'errno', '')}"
        if kind in self._warned:
            return
        self._warned.add(kind)
        reason = "it did not respond in time" if isinstance(error, TimeoutError) else str(error)
        logger.warning("%s: %s", message, reason)


class _ThreadCall(Generic[T]):
    """One job in a thread. ``leave`` returns whether its thread still runs; ``returned`` is then called at its end."""

    __slots__ = ("_job", "_left", "_lock", "_loop", "_returned", "_running", "is_overdue")

    def __init__(
        self, job: Callable[[], T], loop: asyncio.AbstractEventLoop, returned: Callable[[_ThreadCall[T]], None]
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
        """The caller stops waiting. Returns whether the thread is still at work."""
        with self._lock:
            self._job = None
            self._left = self._running
            return self._running


class DiskCalls:
    """All calls of one disk tier. Everything here runs on the runtime's loop.

    ``hanging_count`` is the number of calls that took too long and whose threads have not come back yet.
    """

    def __init__(self, runtime: Runtime, options: DiskCache) -> None:
        self.hanging_count = 0
        self._runtime = runtime
        self._read_seconds_max = options.read_timeout_seconds
        # The other half of the threads stays free for the other users of the executor.
        self._turns = asyncio.Semaphore(max(1, runtime.options.executor_threads // 2))
        self._claim_turns = asyncio.Semaphore(1)  # A claim takes no time, and must not wait for those who do.
        self._failures = FailureGuard(
            runtime,
            subject=f"the block files in {options.directory}",
            counter="stream_file_cache_failures",
            event="disk.failed",
            cool_down_seconds=options.cool_down_seconds,
        )

    @property
    def is_off(self) -> bool:
        """Whether the disk is to be left alone now."""
        return self.hanging_count > 0 or self._runtime.now() < self._failures.off_until or self._runtime.closed

    @property
    def is_writing_off(self) -> bool:
        """Whether nothing is to be written now, though blocks may be read."""
        return self.is_off or self._runtime.now() < self._failures.writing_off_until

    def succeeded(self) -> None:
        """A read without a thread succeeded."""
        self._failures.succeeded()

    async def call(self, what: DiskCall, job: Callable[[], T]) -> T:
        """The result of a job. Raises ``CacheFailed`` alone.

        A read waits for a "read" and a "claim"; "write" and "list" are done in the background.
        """
        waits = what in ("read", "claim")
        result = await self._call(what, job, self._read_seconds_max if waits else WRITE_SECONDS_MAX)
        if what == "read":
            self.succeeded()
        return result

    async def _call(self, what: str, job: Callable[[], T], seconds: float) -> T:
        turns = self._claim_turns if what == "claim" else self._turns
        call = _ThreadCall(job, self._runtime.loop, partial(self._returned, turns))
        del job
        try:
            async with asyncio.timeout(seconds):
                await turns.acquire()
                try:
                    return await self._runtime.run_blocking(call.run)
                finally:
                    if not call.leave():
                        turns.release()
        except Exception as error:
            if isinstance(error, TimeoutError) and call.leave():
                call.is_overdue = True
                self.hanging_count += 1
            # Without its traceback, whose frames hold the memory that was to be written.
            self._failed(what, error.with_traceback(None))
            raise CacheFailed(error) from None

    def _returned(self, turns: asyncio.Semaphore, call: _ThreadCall[T]) -> None:
        turns.release()
        if call.is_overdue:
            self.hanging_count -= 1

    def _failed(self, what: str, error: Exception) -> None:
        if isinstance(error, Closed):
            return
        is_late = isinstance(error, TimeoutError)
        consequence: Consequence = "off"
        if isinstance(error, BadEntry):
            consequence = "entry"
        elif isinstance(error, ConfigInvalid):
            consequence = "permanent"
        elif what in ("write", "claim") and not is_late:
            # A file system that became read-only, or is over its quota, still has its files.
            consequence = "writes"
        elif what == "claim" or (what == "read" and not is_late):
            consequence = "count"
        self._failures.failed(what, error, consequence)
