"""The calls of a cache: waits are bounded, and after failures the cache is left alone for a while.

A call runs in the background, and its caller stops waiting when it takes too long. The call itself may continue: a
thread that hangs on a disk cannot be stopped. So a call keeps its memory to itself until it returns, and a call in a
thread keeps its turn: only a limited number can ever hang, and the disk is left alone meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Literal, TypeVar

from aioprefetch.cache.entry import BadEntry
from aioprefetch.errors import Closed, ConfigInvalid, Error
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import count_for

T = TypeVar("T")

# Single failures are misses. After this many in a row the cache is left alone.
FAILURES_MAX = 3
# No caller waits for a write or a listing, but a call that takes longer than this will never end.
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


class GuardedCalls:
    """The calls of one cache, run in the background of a runtime; callers wait for each for a limited time.

    ``subject`` names the cache in warnings; a failure counts as ``counter`` and publishes ``event``. After a
    cool-down one more failure is enough to leave the cache alone again, until a call succeeds.
    """

    def __init__(self, runtime: Runtime, *, subject: str, counter: str, event: str, cool_down_seconds: float) -> None:
        self.cool_down_seconds = cool_down_seconds
        self.runtime = runtime
        self._subject = subject
        self._counter = counter
        self._event = event
        self._failures_in_a_row = 0
        # On the runtime's clock: the cache, or writing to it, is left alone until then.
        self._off_until = self._writing_off_until = float("-inf")
        self._warned: set[str] = set()

    @property
    def is_off(self) -> bool:
        """Whether the cache is to be left alone now."""
        return self._off_until > 0 and self.runtime.now() < self._off_until

    @property
    def is_writing_off(self) -> bool:
        """Whether nothing is to be written now, though entries may be read."""
        return self.is_off or self.runtime.now() < self._writing_off_until

    def succeeded(self) -> None:
        """A call succeeded: the failures before it are forgotten."""
        self._failures_in_a_row = 0

    def failed(self, call: str, error: Exception, consequence: Consequence) -> None:
        """Count a failure of a call, unless the operator was closed."""
        if isinstance(error, Closed):
            return
        runtime, seconds = self.runtime, self.cool_down_seconds
        runtime.counters[self._counter] += 1
        runtime.events.publish(self._event, "", call=call, error=type(error).__name__)
        if consequence == "entry":
            return
        if consequence == "writes":
            self._writing_off_until = runtime.now() + seconds
            self._warn(error, f"not written for {seconds:g} seconds")
            return
        self._failures_in_a_row += 1
        if consequence == "permanent":
            self._off_until = float("inf")
            self._warn(error, "left alone from now on and reads go to the store")
        elif runtime.now() >= self._off_until and (consequence == "off" or self._failures_in_a_row >= FAILURES_MAX):
            self._off_until = runtime.now() + seconds
            self._warn(error, f"left alone for {seconds:g} seconds and reads go to the store")
            self._left_alone()

    def _left_alone(self) -> None:
        """Called when the cache is left alone from now on."""

    def _warn(self, error: Exception, what: str) -> None:
        # One warning for each kind of failure: a disk that is full stays full.
        kind = f"{type(error).__name__} {getattr(error, 'errno', '')}"
        if kind not in self._warned:
            self._warned.add(kind)
            reason = "it did not respond in time" if isinstance(error, TimeoutError) else str(error)
            logger.warning("%s are %s: %s", self._subject, what, reason)

    async def run(
        self,
        name: str,
        call: Callable[[], Awaitable[T]],
        seconds: float,
        *,
        dispose: Callable[[T], Coroutine[object, object, None]] | None = None,
        cancels: bool = True,
    ) -> T:
        """The result of ``call``, which may be there without a wait; ``TimeoutError`` after ``seconds``.

        A call that has no caller any more is cancelled if it ``cancels``; ``dispose`` gets a result that is too late.
        """
        supervisor = self.runtime.supervisor
        if supervisor.closed:
            raise _closed()
        outcome: asyncio.Future[T] = self.runtime.loop.create_future()
        work = supervisor.start(self._run(call, outcome, dispose), self.runtime.loop, name=name)
        del call
        work.start()
        try:
            if not outcome.done():
                async with asyncio.timeout(seconds):
                    # Shielded, so that a result at the same moment as a cancellation is not lost.
                    await asyncio.shield(outcome)
            return outcome.result()
        except BaseException:
            if not outcome.done():
                outcome.cancel()
                if cancels:
                    work.cancel()
            elif not outcome.cancelled() and outcome.exception() is None and dispose is not None:
                supervisor.spawn(dispose(outcome.result()), name="disposal")
            raise
        finally:
            del outcome, work  # The error holds this frame.

    async def _run(
        self,
        call: Callable[[], Awaitable[T]],
        outcome: asyncio.Future[T],
        dispose: Callable[[T], Coroutine[object, object, None]] | None,
    ) -> None:
        count_for(None)  # Not for the reader that has asked.
        try:
            result = await call()
        except asyncio.CancelledError:
            if not outcome.done():  # The supervisor ends while a caller still waits.
                outcome.set_exception(_closed())
            raise
        except Exception as error:
            if not outcome.done():
                outcome.set_exception(_without_frames(error))
        else:
            if not outcome.done():
                outcome.set_result(result)
            elif dispose is not None:
                await dispose(result)


def _without_frames(error: Exception) -> Exception:
    """An error without tracebacks, since their frames hold the memory that was to be read or written."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _closed() -> Closed:
    return Closed("the operator is closed", operation="read")


class DiskCalls(GuardedCalls):
    """All calls of one disk tier, which run in threads.

    ``hanging_count`` is the number of calls that took too long and whose threads have not come back yet.
    """

    def __init__(self, runtime: Runtime, options: DiskCache) -> None:
        super().__init__(
            runtime,
            subject=f"the block files in {options.directory}",
            counter="stream_file_cache_failures",
            event="disk.failed",
            cool_down_seconds=options.cool_down_seconds,
        )
        self.hanging_count = 0
        self._read_seconds_max = options.read_timeout_seconds
        # The other half of the threads stays free for the other users of the executor.
        self._turns = asyncio.Semaphore(max(1, runtime.options.executor_threads // 2))
        self._claim_turns = asyncio.Semaphore(1)  # A claim takes no time, and must not wait for those who do.

    @property
    def is_off(self) -> bool:
        """Whether the disk is to be left alone now."""
        return self.hanging_count > 0 or super().is_off or self.runtime.closed

    async def call(self, what: DiskCall, job: Callable[[], T]) -> T:
        """The result of a job. Raises ``CacheFailed`` alone.

        A read waits for a "read" and a "claim"; "write" and "list" are done in the background.
        """
        turns = self._claim_turns if what == "claim" else self._turns
        is_left = is_running = is_overdue = False

        async def in_thread() -> T:
            nonlocal is_running
            async with turns:
                if is_left:
                    raise _closed()
                is_running = True
                try:
                    return await self.runtime.run_blocking(job)
                finally:
                    is_running = False
                    self.hanging_count -= is_overdue

        try:
            seconds = self._read_seconds_max if what in ("read", "claim") else WRITE_SECONDS_MAX
            result = await self.run(f"disk {what}", in_thread, seconds, cancels=False)
        except Exception as error:
            is_overdue = is_running and isinstance(error, TimeoutError)
            self.hanging_count += is_overdue
            self.failed(what, _without_frames(error), _consequence(what, error))
            raise CacheFailed(error) from None
        finally:
            is_left = True
        if what == "read":
            self.succeeded()
        return result


def _consequence(what: DiskCall, error: Exception) -> Consequence:
    is_late = isinstance(error, TimeoutError)
    if isinstance(error, BadEntry):
        return "entry"
    if isinstance(error, ConfigInvalid):
        return "permanent"
    if what in ("write", "claim") and not is_late:
        return "writes"  # A file system that became read-only, or exceeds its quota, still has its files.
    return "count" if what == "claim" or (what == "read" and not is_late) else "off"
