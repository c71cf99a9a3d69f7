"""When to ask a store again: after a look that found nothing, and after one that failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

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


def loop_seconds() -> float:
    """The clock of the running loop."""
    return asyncio.get_running_loop().time()
