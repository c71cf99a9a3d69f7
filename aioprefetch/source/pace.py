"""When to ask a store again, and for how long: after a look that found nothing, and after one that failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from aioprefetch.errors import BudgetExhausted, Error

# The layers of the operator have tried again by then, several times and with pauses of their own.
PAUSE_SECONDS_BASE = 1.0
# A trigger waits for the rest of a pause: this is no longer than it may list, ``PlanOptions.list_seconds_max``.
PAUSE_SECONDS_MAX = 10.0


class Pace:
    """Rests of a fixed length, and pauses that grow from failure to failure.

    ``clock`` gives seconds, by default those of the running loop; ``jitter`` a number between 0 and 1.
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
        """Whether the last look found nothing and is not long ago."""
        return self._rest_until is not None and self._clock() < self._rest_until

    def rest(self) -> None:
        """There was nothing: look again after the interval."""
        self._rest_until = self._clock() + self._interval_seconds

    def wake(self) -> None:
        """Look again at once."""
        self._rest_until = None

    def failed(self) -> None:
        """A look failed for good: the next one comes after a pause, between half and all of a bound that doubles."""
        bound = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_BASE * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._retry_at = self._clock() + bound * (1.0 + self._jitter()) / 2.0

    def succeeded(self) -> None:
        """The store answers."""
        self._failures = 0

    async def wait(self) -> None:
        """Sleep for what is left of the pause after a failure."""
        if self._failures and (pause_seconds := self._retry_at - self._clock()) > 0:
            await asyncio.sleep(pause_seconds)


class Patience:
    """For how long failures in a row are waited out, where they may pass: a burst of throttling takes minutes.

    ``clock`` gives seconds, by default those of the running loop.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._seconds = seconds
        self._clock = clock or loop_seconds
        self._since: float | None = None

    @property
    def is_tried(self) -> bool:
        """Whether the last attempt failed."""
        return self._since is not None

    @property
    def waited_seconds(self) -> float:
        """The time since the first one of the failures in a row; 0 where there are none."""
        return 0.0 if self._since is None else self._clock() - self._since

    @property
    def left_seconds(self) -> float:
        """How much longer failures are waited out."""
        return max(0.0, self._seconds - self.waited_seconds)

    def bears(self, error: Error) -> bool:
        """Whether to try again after one more failure. ``False``: it cannot pass, or lasts for too long."""
        if not may_pass(error):
            return False
        if self._since is None:
            self._since = self._clock()
        return self.waited_seconds < self._seconds

    def succeeded(self) -> None:
        """That was the last failure of a row."""
        self._since = None


def may_pass(error: Error) -> bool:
    """Whether it is the store, or this machine, for now: throttled, unavailable, late, out of slots or tokens."""
    return error.status != "permanent" or isinstance(error, BudgetExhausted)


def loop_seconds() -> float:
    """The clock of the running loop."""
    return asyncio.get_running_loop().time()
