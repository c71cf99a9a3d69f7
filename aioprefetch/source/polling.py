"""When a store is asked again, and for how long: after a response without news, after failures, and in a run that ends.

A run that ends is one listing of the tail and one whole sweep, with a limit on late arrivals and a progress log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from aioprefetch.errors import BudgetExhausted, Error
from aioprefetch.layers import RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.source.values import SourceFile, TailAndSweep

T = TypeVar("T")

# The layers of the operator have retried before that, several times and with their own pauses.
PAUSE_SECONDS_BASE = 1.0
# A trigger waits for the rest of a pause, which is not longer than ``PlanOptions.list_seconds_max``.
PAUSE_SECONDS_MAX = 10.0


class PollTimer:
    """Rests of a fixed length after a response without news, and pauses that grow with each failure in a row.

    ``clock`` returns seconds, by default from the running loop; ``jitter`` a number between 0 and 1.
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

    ``clock`` returns seconds, by default from the running loop.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self.seconds = seconds
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

    def tolerates(self, error: Error) -> bool:
        """Whether to try again after this failure. ``False`` if it is permanent, or the failures last too long."""
        if not is_transient(error):
            return False
        if self._since is None:
            self._since = self._clock()
        return self.failing_seconds < self.seconds

    def wait_out(self, error: Error, timer: PollTimer) -> None:
        """Let the next attempt wait for a pause; or raise a permanent error, or an error that has lasted too long."""
        try:
            if not self.tolerates(error):
                if is_transient(error):
                    error.add_context(failing_seconds=round(self.failing_seconds))
                raise error
            timer.failed()
            seconds = max(0.0, self.seconds - self.failing_seconds)
            logger.warning("a store failed, and is asked again for %.0f s more: %s", seconds, error)
        finally:
            del error  # Its traceback holds this frame.

    def end(self) -> None:
        """An attempt has succeeded: the row of failures ends."""
        self._since = None


# How often one request is sent while a source is opened or a batch is planned, which takes many that all must succeed.
# What fails longer is repeated as a whole, with a warning.
_ATTEMPTS_MAX = 12
# The tokens of others would be used up by the pages of a large listing.
_TOKENS = 1 << 20


def patient(operator: Operator, seconds: float) -> Operator:
    """The same operator, whose requests are repeated more often; unchanged where ``seconds`` is 0."""
    if not seconds:
        return operator
    return operator.layer(RetryLayer(attempts_max=_ATTEMPTS_MAX, cap_seconds=PAUSE_SECONDS_MAX, tokens=_TOKENS))


async def outlast(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The result of a call that is repeated while its store throttles or does not respond, with growing pauses.

    After ``seconds`` the error is raised. A server that was never there, by a misspelt name or port, is not waited for.
    """
    outage, timer = OutageLimit(seconds), PollTimer(0.0)
    while True:
        try:
            return await call()
        except Error as error:
            if error.context.get("reason") == "dns" or error.context.get("errno") == "ECONNREFUSED":
                raise
            outage.wait_out(error, timer)
        await timer.wait()


def is_transient(error: Error) -> bool:
    """Whether an error may pass: the store throttles, is unavailable or late, or this machine lacks slots or tokens."""
    return error.status != "permanent" or isinstance(error, BudgetExhausted)


def loop_seconds() -> float:
    """The clock of the running loop."""
    return asyncio.get_running_loop().time()


def now_ms() -> int:
    """This machine's time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


# --- a run that ends --------------------------------------------------------------------------------------------------

# The run ends after this many pages in a row that contain only files younger than its start: files then arrive as fast
# as they are listed, and the run would never end. The next run lists the rest.
YOUNG_PAGES_MAX = 100

PROGRESS_SECONDS = 10.0
# Clocks may differ by this much.
FUTURE_MS_MIN = 60_000


@dataclass(slots=True)
class Overrun:
    """Detects files that arrive as fast as they are listed."""

    young_pages: int = 0

    def after(self, old: int, young: int) -> bool:
        """Count a page with ``old`` files from before the run and ``young`` later ones; whether it is the limit."""
        if old:
            self.young_pages = 0
        elif young:
            self.young_pages += 1
        return self.young_pages >= YOUNG_PAGES_MAX


@dataclass(slots=True)
class Finishing:
    """The state of one run that ends. Files younger than ``until_ms`` are left to a later run.

    The sweep starts at the first key, and ends at the frontier of the first cursor: keys that the tail lists in this
    run need no second look. A caller that returns to an earlier cursor starts the run again.
    """

    until_ms: int
    tail_done: bool = False
    sweep_done: bool = False
    overrun: Overrun = field(default_factory=Overrun)
    # The files that are left: their number and the youngest time. Each half counts a key once.
    young: int = 0
    youngest_ms: int = 0
    is_reported: bool = False
    _counted: dict[str, str] = field(default_factory=dict)
    _sweep_end: str | None = None
    _sweeps: int = 0

    def begin(self, cursor: TailAndSweep) -> None:
        """Keep the frontier of the first cursor; later calls have no effect."""
        if self._sweep_end is None:
            self._sweep_end = cursor.frontier
            # A sweep in progress is given up. Counting it tells its cursors from this run's.
            self._sweeps = cursor.sweeps + (cursor.sweep_key is not None)
            self.sweep_done = self.sweep_done or not cursor.frontier

    def count_young(self, half: str, files: Iterable[SourceFile]) -> None:
        """Count the files of a page, in the order of their keys, that are left to a later run."""
        last = self._counted.get(half, "")
        for file in files:
            if file.key > last:
                self.young += 1
                self.youngest_ms = max(self.youngest_ms, file.modified_ms or 0)
                self._counted[half] = file.key

    def is_sweeping(self, cursor: TailAndSweep) -> bool:
        """Whether a cursor is in the middle of this run's sweep."""
        return cursor.sweep_key is not None and cursor.sweeps >= self._sweeps

    def sweep_from(self, cursor: TailAndSweep) -> TailAndSweep:
        """The cursor at the beginning of this run's sweep."""
        return replace(cursor, sweep_key="", sweep_end=self._sweep_end or "", sweeps=self._sweeps)


class ListingProgress:
    """Pages and keys listed since ``begin``, logged every ``PROGRESS_SECONDS`` of ``clock``.

    A run that ends may list a whole bucket before it has anything to deliver.
    """

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._url = url
        self._clock = clock or loop_seconds
        self.begin()

    def begin(self) -> None:
        """Start counting again."""
        self._begun_at: float | None = None
        self._logged_at = 0.0
        self._pages = 0
        self._keys = 0

    @property
    def seconds(self) -> float:
        """Seconds since the first page."""
        return 0.0 if self._begun_at is None else self._clock() - self._begun_at

    def left_young(self, files: int, ahead_ms: int) -> None:
        """Log that the run leaves ``files`` younger than its start, the youngest of them by ``ahead_ms``.

        Files that arrive during the run are normal. Times in the future are a warning: such files may wait for long.
        """
        is_future = ahead_ms > 1000 * self.seconds + FUTURE_MS_MIN
        logger.log(
            logging.WARNING if is_future else logging.INFO,
            "%d files of %s are younger than the start of this run, and are left to a later one%s",
            files,
            self._url,
            "; there are times in the future among them: look at the clocks of the writers" if is_future else "",
        )

    def listed(self, keys: int, last: str) -> None:
        """Count a page with this number of keys; ``last`` is its last key."""
        now = self._clock()
        if self._begun_at is None:
            self._begun_at = self._logged_at = now
        self._pages += 1
        self._keys += keys
        if now - self._logged_at >= PROGRESS_SECONDS:
            self._logged_at = now
            logger.info(
                "listing all of %s: %d pages with %d keys in %.0f s, now at %r",
                self._url,
                self._pages,
                self._keys,
                now - self._begun_at,
                last,
            )
