"""When a store is asked again, and for how long: after a response without news, and after failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from aioprefetch.errors import BudgetExhausted, Error

# The layers of the operator have retried before that, several times and with their own pauses.
PAUSE_SECONDS_BASE = 1.0
# A trigger waits for the rest of a pause, which is not longer than ``PlanOptions.list_seconds_max``.
PAUSE_SECONDS_MAX = 10.0


class PollTimer:
    """Rests of a fixed length after a response without news, and pauses that grow with each failure in a row.

    ``clock`` returns seconds, by default those of the running loop; ``jitter`` a number between 0 and 1.
    """

    def __init__(
        self,
        interval_seconds: float,
        clock: Callable[[], float] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._clock = clock or loop_seconds
        self._jitter = jitter
        self._rest_until: float | None = None
        self._retry_at = 0.0
        self._failures = 0

    @property
    def is_resting(self) -> bool:
        """Whether the interval after the last response without news has not ended."""
        return self._rest_until is not None and self._clock() < self._rest_until

    def rest(self) -> None:
        """There was no news: ask again after the interval."""
        self._rest_until = self._clock() + self._interval_seconds

    def wake(self) -> None:
        """Ask again at once."""
        self._rest_until = None

    def failed(self) -> None:
        """Ask again after a pause: a random time between half of a bound and the bound, which doubles each time."""
        bound = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_BASE * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._retry_at = self._clock() + bound * (1.0 + self._jitter()) / 2.0

    def succeeded(self) -> None:
        """The store has responded: the next failure is the first one again."""
        self._failures = 0

    async def wait(self) -> None:
        """Sleep until the pause after a failure has ended."""
        if self._failures and (pause_seconds := self._retry_at - self._clock()) > 0:
            await asyncio.sleep(pause_seconds)


class OutageLimit:
    """For how long transient failures in a row are tolerated: a burst of throttling takes minutes.

    ``clock`` returns seconds, by default those of the running loop.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._seconds = seconds
        self._clock = clock or loop_seconds
        self._since: float | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._since is not None

    @property
    def failing_seconds(self) -> float:
        """The time since the first one of the failures in a row; 0 without failures."""
        return 0.0 if self._since is None else self._clock() - self._since

    @property
    def remaining_seconds(self) -> float:
        """How much longer failures are tolerated."""
        return max(0.0, self._seconds - self.failing_seconds)

    def tolerates(self, error: Error) -> bool:
        """Whether to try again after this failure. ``False`` if it is permanent, or the failures last too long."""
        if not is_transient(error):
            return False
        if self._since is None:
            self._since = self._clock()
        return self.failing_seconds < self._seconds

    def end(self) -> None:
        """An attempt has succeeded: the row of failures ends."""
        self._since = None


def is_transient(error: Error) -> bool:
    """Whether an error may pass: the store throttles, is unavailable or late, or this machine lacks slots or tokens."""
    return error.status != "permanent" or isinstance(error, BudgetExhausted)


def loop_seconds() -> float:
    """The clock of the running loop."""
    return asyncio.get_running_loop().time()
