"""Whether a response comes too slowly: the rule behind the first-byte and the stall timeout. Pure, no I/O.

A connection that is dead and one that drips a byte now and then are the same to who waits, so what counts is not the
last byte but the bytes within a window.
"""

from __future__ import annotations


class StallTimer:
    """Watches one response at a time; somebody looks at it every now and then. Times are those of the loop's clock."""

    __slots__ = ("_mark_bytes", "_mark_seconds", "is_body")

    def __init__(self) -> None:
        self.is_body = False
        self._mark_seconds = 0.0
        self._mark_bytes = 0

    def begin(self, now: float) -> None:
        """A request was sent."""
        self.is_body = False
        self._mark_seconds = now

    def begin_window(self, now: float, received_bytes: int) -> None:
        """The head is here, or a body goes on that its reader had paused."""
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
        """Whether the head did not come within its time, or the body brought too little in a whole window.

        ``received_bytes`` counts from the beginning of the body.
        """
        waited = now - self._mark_seconds
        if not self.is_body:
            return waited >= first_byte_seconds
        if waited < stall_seconds:
            return False
        is_thin = received_bytes - self._mark_bytes < max(1.0, bytes_per_second_min * waited)
        self.begin_window(now, received_bytes)
        return is_thin
