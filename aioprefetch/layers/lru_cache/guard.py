"""The guard before the cache's store: no failure of it gets through, and one that keeps failing is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeVar

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import (
    Closed,
    ConditionNotMatch,
    Error,
    NotFound,
    ObjectChanged,
    RangeNotSatisfied,
    UntrustedMetadata,
)
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work

T = TypeVar("T")

# So many failures in a row, and the cache is bypassed for so long; then one more failure bypasses it again.
FAILURES_MAX = 3
COOL_DOWN_SECONDS = 30.0

# Errors of a read that tell of a bad, missing or replaced entry, and nothing of the store.
_ENTRY_ERRORS = (NotFound, UntrustedMetadata, ConditionNotMatch, ObjectChanged, RangeNotSatisfied)


class CacheSource(Protocol):
    """What the layer needs of the second store: an Operator has it."""

    def accessor(self) -> Accessor:
        """The live accessor for the running loop."""
        ...


class CacheFailed(Exception):
    """A call of the cache's store failed or took too long. Never leaves the layer.

    ``is_lasting`` tells that the entry it was about is of no use any more.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        transient = isinstance(error, TimeoutError) or (isinstance(error, Error) and error.status != "permanent")
        self.is_lasting = not transient


class CacheGuard:
    """Bounds every call of the cache's store in time, counts failures, and closes the way after too many."""

    def __init__(self, source: CacheSource, runtime: Runtime, timeout_seconds: float) -> None:
        self._source = source
        self._runtime = runtime
        self._timeout_seconds = timeout_seconds
        self._failures_in_a_row = 0
        self._bypassed_until = float("-inf")

    @property
    def timeout_seconds(self) -> float:
        """How long one call may take."""
        return self._timeout_seconds

    @property
    def is_bypassed(self) -> bool:
        """Whether the cache is to be left alone for now."""
        return self._runtime.now() < self._bypassed_until

    async def call(
        self,
        what: str,
        call: Callable[[Accessor], Awaitable[T]],
        dispose: Callable[[T], Coroutine[object, object, None]] | None = None,
    ) -> T:
        """The result of ``call``, which gets the accessor of the cache. Raises ``CacheFailed`` and nothing else.

        The call runs on the supervisor: one that does not end in time, not even when it is cancelled (a thread on a
        disk that hangs), is left behind there. So it must work on memory of its own; ``dispose`` gets a result that
        nobody takes any more.
        """
        supervisor = self._runtime.supervisor
        if supervisor.closed:
            raise CacheFailed(_closed())
        outcome: asyncio.Future[T] = self._runtime.loop.create_future()
        work = supervisor.spawn(self._run(call, outcome, dispose), name=f"cache {what}")
        try:
            async with asyncio.timeout(self._timeout_seconds):
                # Shielded, so that a result that came at the same moment as a cancellation can be told from none.
                result = await asyncio.shield(outcome)
        except Exception as error:
            self._abandon(work, outcome, dispose)
            self.failed(what, error)
            raise CacheFailed(error) from error
        except BaseException:
            self._abandon(work, outcome, dispose)
            raise
        self._failures_in_a_row = 0
        return result

    async def _run(
        self,
        call: Callable[[Accessor], Awaitable[T]],
        outcome: asyncio.Future[T],
        dispose: Callable[[T], Coroutine[object, object, None]] | None,
    ) -> None:
        try:
            result = await call(self._source.accessor())
        except asyncio.CancelledError:
            if not outcome.done():  # The end of the supervisor, while somebody still waits.
                outcome.set_exception(_closed())
            raise
        except Exception as error:
            if not outcome.done():
                outcome.set_exception(error)
        else:
            if not outcome.done():
                outcome.set_result(result)
            elif dispose is not None:
                await dispose(result)

    def _abandon(
        self, work: Work, outcome: asyncio.Future[T], dispose: Callable[[T], Coroutine[object, object, None]] | None
    ) -> None:
        """Nobody waits for the outcome any more; one that has just come is disposed of."""
        if not outcome.done():
            outcome.cancel()
            work.cancel()
        elif not outcome.cancelled() and outcome.exception() is None and dispose is not None:
            self._runtime.supervisor.spawn(dispose(outcome.result()), name="disposal")

    def failed(self, what: str, error: Exception) -> None:
        """Count a failure."""
        self._runtime.counters["cache_failures"] += 1
        self._runtime.events.publish("cache.failed", "", call=what, error=type(error).__name__)
        if isinstance(error, Closed) or (what == "read" and isinstance(error, _ENTRY_ERRORS)):
            return
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= FAILURES_MAX and not self.is_bypassed:
            self._bypassed_until = self._runtime.now() + COOL_DOWN_SECONDS
            logger.warning(
                "the cache failed %d times in a row and is bypassed for %g seconds; the last failure, at %s: %s",
                self._failures_in_a_row,
                COOL_DOWN_SECONDS,
                what,
                error if isinstance(error, Error) else type(error).__name__,
            )
            self._runtime.events.publish("cache.bypassed", "", seconds=COOL_DOWN_SECONDS)


def _closed() -> Closed:
    return Closed("the operator is closed", operation="read")
