"""Tells how far a run that is to end has come: it may list a whole bucket before it has anything to deliver."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aioprefetch.runtime.events import logger
from aioprefetch.source.pace import loop_seconds

PROGRESS_SECONDS = 10.0
# What clocks may differ by.
FUTURE_MS_MIN = 60_000


class Progress:
    """Pages and keys that were listed since ``begin``, logged every so many seconds of ``clock``."""

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._url = url
        self._clock = clock or loop_seconds
        self.begin()

    def begin(self) -> None:
        """Count from here on. The first word comes with the first page that is late enough."""
        self._begun_at: float | None = None
        self._told_at = 0.0
        self._pages = 0
        self._keys = 0

    @property
    def seconds(self) -> float:
        """Since the first page."""
        return 0.0 if self._begun_at is None else self._clock() - self._begun_at

    def left_young(self, files: int, ahead_ms: int) -> None:
        """The run ends without so many files, which are younger than its start, the youngest by ``ahead_ms``.

        Those that came meanwhile are as it should be. Times in the future are not: such files may wait for long.
        """
        is_future = ahead_ms > 1000 * self.seconds + FUTURE_MS_MIN
        logger.log(
            logging.WARNING if is_future else logging.INFO,
            "%d files of %s are younger than the start of this run, and are left to a later one%s",
            files,
            self._url,
            "; there are times in the future among them: look at the clocks of whoever writes" if is_future else "",
        )

    def listed(self, keys: int, last: str) -> None:
        """One more page, of so many keys up to ``last``."""
        now = self._clock()
        if self._begun_at is None:
            self._begun_at = self._told_at = now
        self._pages += 1
        self._keys += keys
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            logger.info(
                "listing all of %s: %d pages with %d keys in %.0f s, now at %r",
                self._url,
                self._pages,
                self._keys,
                now - self._begun_at,
                last,
            )
