"""The values of a trace: requests, reads that waited, retries, and the bytes of each object.

Pure. Times are seconds since the recording began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from aioprefetch.ranges import Range
from aioprefetch.trace.byte_set import ByteSet

Outcome = Literal["finished", "failed", "cancelled", "open"]
TIERS = ("memory", "disk", "cache", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request to a store: one attempt of an operation.

    ``start`` and ``end`` are the range of the response, or else of the request: ``start`` is negative for the last
    bytes of an object, and ``None`` for requests without bytes. ``received_bytes`` came before it ended, or so far.
    ``memory_bytes`` of ``memory_limit_bytes`` were in use or reserved when it began, in the budget ``budget_id``: each
    operator has one on each loop. ``process`` has sent it, in a recording of several. ``caller`` is the line of the
    program that it is for, as ``FILE:LINE``, in a recording with ``stacks``.
    """

    number: int
    path: str
    operation: str
    lane: str
    attempt: int
    reader: str
    start: int | None
    end: int | None
    begun_at_seconds: float
    first_byte_at_seconds: float | None
    ended_at_seconds: float | None
    outcome: Outcome
    received_bytes: int
    status: int | None
    connection: str
    error: str
    retry_wait_seconds: float
    budget_id: int
    memory_bytes: int
    memory_limit_bytes: int
    process: str = ""
    caller: str = ""

    @property
    def received(self) -> Range:
        """The bytes of the object that arrived; empty where it is unknown which they were."""
        start = max(0, self.start or 0)
        return start, start + (
            self.received_bytes if self.is_read and self.start is not None and self.start >= 0 else 0
        )

    @property
    def is_read(self) -> bool:
        """Whether it asked for bytes of an object."""
        return self.operation == "read"

    @property
    def seconds(self) -> float:
        """How long it took; 0 while it is in flight."""
        return 0.0 if self.ended_at_seconds is None else self.ended_at_seconds - self.begun_at_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A read of a caller that waited for bytes, or a request that waited for memory (``tier`` is then ``budget``)."""

    path: str
    start: int
    end: int
    tier: str
    begun_at_seconds: float
    ended_at_seconds: float

    @property
    def seconds(self) -> float:
        """How long it waited."""
        return self.ended_at_seconds - self.begun_at_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A failure that was tried again after ``wait_seconds``. ``attempt`` is its number, from 1."""

    path: str
    operation: str
    attempt: int
    at_seconds: float
    wait_seconds: float
    error: str
    process: str = ""


@dataclass(slots=True, kw_only=True)
class TracedObject:
    """The bytes of one object: fetched from the store, and used by reads, by the tier that served them."""

    path: str
    fetched: ByteSet = field(default_factory=ByteSet)
    by_tier: dict[str, ByteSet] = field(default_factory=lambda: {tier: ByteSet() for tier in TIERS})
    tier_bytes: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    _used: ByteSet | None = field(default=None, init=False, repr=False)

    @property
    def used(self) -> ByteSet:
        """The bytes that reads used, from any tier."""
        if self._used is None:
            self._used = ByteSet(range_ for one in self.by_tier.values() for range_ in one.ranges)
        return self._used

    def add_reads(self, tier: str, ranges: Sequence[Range]) -> None:
        """Add bytes that reads used."""
        self.by_tier.setdefault(tier, ByteSet()).extend(ranges)
        self._used = None

    def coarsen(self, ranges_max: int) -> int:
        """Keep at most ``ranges_max`` ranges of each kind; returns for how many kinds it had to close gaps."""
        self._used = None
        return sum([one.coarsen(ranges_max) for one in (self.fetched, *self.by_tier.values())])

    @property
    def received_bytes(self) -> int:
        """All bytes received; bytes received twice count twice."""
        return self.counts["received_bytes"]

    @property
    def refetched_bytes(self) -> int:
        """Bytes that came more than once, without their first time; too few where ranges were joined."""
        return max(0, self.received_bytes - len(self.fetched))

    @property
    def wasted(self) -> ByteSet:
        """The bytes that were fetched and that no read used."""
        return self.fetched - self.used

    @property
    def end(self) -> int:
        """The end of the last byte that was fetched or used: the object has at least this size."""
        return max((bytes_.ranges[-1][1] for bytes_ in (self.fetched, self.used) if bytes_.ranges), default=0)
