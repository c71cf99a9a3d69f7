"""How long reservations of memory may wait for the disk, in all: a little at once, and a small share of the time.

A disk that keeps up with the store costs nothing, and nothing is lost to it. One that does not must not slow reads
down: blocks are dropped unwritten then. Pure, no I/O.
"""

from __future__ import annotations

# So long a reservation may wait at once, for instance for the first blocks that a disk is given.
SECONDS_MAX = 0.5
# And so much of the time in the long run.
SHARE = 0.05


class Patience:
    """Seconds that may still be waited. Time is that of the caller's clock."""

    __slots__ = ("_at", "_seconds", "_waiting_since")

    def __init__(self, now: float) -> None:
        self._seconds = SECONDS_MAX
        self._at = now
        self._waiting_since: float | None = None

    def left(self, now: float) -> float:
        """How long may be waited from now on; 0 or less for not at all."""
        seconds = min(SECONDS_MAX, self._seconds + (now - self._at) * SHARE)
        return seconds if self._waiting_since is None else seconds - (now - self._waiting_since)

    def begin(self, now: float) -> None:
        """Somebody waits from now on. Once is enough."""
        if self._waiting_since is None:
            self._seconds, self._at, self._waiting_since = self.left(now), now, now

    def end(self, now: float) -> None:
        """Nobody waits any more."""
        if self._waiting_since is not None:
            self._seconds, self._at, self._waiting_since = self.left(now), now, None
