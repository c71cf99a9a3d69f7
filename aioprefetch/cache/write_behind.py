"""The rules of writing behind: how long evictions may wait for a disk, and which entries are worth a file. Pure."""

from __future__ import annotations

# Evictions may wait for writes for this time at once, for instance for the first blocks that a disk gets.
SPILL_WAIT_SECONDS_MAX = 0.5
# And for this share of the time in the long run.
SPILL_WAIT_SHARE = 0.05

# While writing does not pay, one block in SAMPLE is written anyway.
SAMPLE = 16
# A round is as many blocks offered as there are files, and at least this many.
ROUND_BLOCKS_MIN = 8
# Writing pays as long as one file is read for every OFFERS_FOR_A_HIT blocks that are offered.
OFFERS_FOR_A_HIT = 4
# How many rounds pass before writing is tried again: the first pause, and the longest.
REST_ROUNDS_MIN, REST_ROUNDS_MAX = 4, 64


class SpillWaitBudget:
    """How long evictions may wait for the disk, in all: a little at once, and a small share of the time. Pure.

    A disk that keeps up with the store costs nothing, and no block is lost to it. A slower one must not slow reads
    down: blocks are dropped unwritten then. Times come from the caller's clock.
    """

    __slots__ = ("_at", "_seconds", "_waiting_since")

    def __init__(self, now: float) -> None:
        self._seconds = SPILL_WAIT_SECONDS_MAX
        self._at = now
        self._waiting_since: float | None = None

    def left(self, now: float) -> float:
        """The number of seconds left to wait; 0 or less if there is no time left."""
        seconds = min(SPILL_WAIT_SECONDS_MAX, self._seconds + (now - self._at) * SPILL_WAIT_SHARE)
        return seconds if self._waiting_since is None else seconds - (now - self._waiting_since)

    def begin(self, now: float) -> None:
        """A wait begins now, unless one is in progress."""
        if self._waiting_since is None:
            self._seconds, self._at, self._waiting_since = self.left(now), now, now

    def end(self, now: float) -> None:
        """The wait ends now."""
        if self._waiting_since is not None:
            self._seconds, self._at, self._waiting_since = self.left(now), now, None


class WriteFilter:
    """Whether a block is worth a file, now that other files must go for it.

    A scan that goes round and round over more than the disk holds would write every block and evict it before its turn
    comes again: all is written, and none is ever read. So when hardly any file was read in a round of writes, only a
    sample is written from then on. The files that are there stay: the share of the scan that the disk can hold.
    """

    def __init__(self) -> None:
        self.is_sampling = False
        self._offers = 0
        self._hits = 0
        self._rest = 0
        self._rest_rounds = REST_ROUNDS_MIN

    def hit(self) -> None:
        """A file was read."""
        self._hits += 1

    def admits(self, held: int) -> bool:
        """Whether to write one more block beside ``held`` files."""
        if self._offers >= max(ROUND_BLOCKS_MIN, held):
            self._begin_round(is_worth_it=OFFERS_FOR_A_HIT * self._hits >= self._offers)
        self._offers += 1
        return not self.is_sampling or self._offers % SAMPLE == 0

    def _begin_round(self, *, is_worth_it: bool) -> None:
        self._offers = self._hits = 0
        if not self.is_sampling:
            self.is_sampling = not is_worth_it
            self._rest = self._rest_rounds
            self._rest_rounds = REST_ROUNDS_MIN if is_worth_it else min(2 * self._rest_rounds, REST_ROUNDS_MAX)
        elif not is_worth_it:  # The files are of little use, so the block may be of more.
            self._rest -= 1
            self.is_sampling = self._rest > 0
