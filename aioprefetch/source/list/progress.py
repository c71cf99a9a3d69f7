"""Tells how far a run that is to end has come: it may list a whole bucket before it has anything to deliver."""

from __future__ import annotations

from collections.abc import Callable

from aioprefetch.source.pace import loop_seconds
from aioprefetch.telemetry import logger

PROGRESS_SECONDS = 10.0


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
