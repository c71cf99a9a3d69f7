"""The rule of the first-byte timeout and the stall timeout. Pure, no I/O.

A connection that sends a byte now and then is as useless as a dead one, so the rule counts the bytes within a window,
not the time since the last byte.
"""

from __future__ import annotations


class StallTimer:
    """Watches one response at a time; the pool calls ``is_too_slow`` at intervals. Times are of the loop's clock."""

    __slots__ = ("_mark_bytes", "_mark_seconds", "is_body")

    def __init__(self) -> None:
        self.is_body = False
        self._mark_seconds = 0.0
        self._mark_bytes = 0

    def begin(self, now: float) -> None:
        """Start when a request is sent."""
        self.is_body = False
        self._mark_seconds = now

    def begin_window(self, now: float, received_bytes: int) -> None:
        """Start a window: the head has come, or a paused body continues."""
        self.is_body = True
        self._mark_seconds = now
        self._mark_bytes = received_bytes

    def is_too_slow(
        self,
        now: float,
        received_bytes: int,
        *,
        first_byte_seconds: float,
        stall_seconds: float,
        bytes_per_second_min: float,
    ) -> bool:
        """Whether the head is late, or too few bytes of the body came in a whole window.

        ``received_bytes`` counts from the start of the body.
        """
        waited = now - self._mark_seconds
        if not self.is_body:
            return waited >= first_byte_seconds
        if waited < stall_seconds:
            return False
        is_below_rate = received_bytes - self._mark_bytes < max(1.0, bytes_per_second_min * waited)
        self.begin_window(now, received_bytes)
        return is_below_rate
