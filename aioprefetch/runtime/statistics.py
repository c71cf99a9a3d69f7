"""How counts are kept: for each reader, for each runtime, and summed so that nothing is counted twice.

Work for a reader is counted in the reader's **account**: a fetch runs in the name of the account that started it, and
so do the services and layers below it. Everything else counts for the runtime itself. A **ledger** has all counts of a
runtime, closed and collected readers included, so its sum never decreases.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from aioprefetch.errors import Closed, InvalidType
from aioprefetch.runtime.events import COUNTERS, DURATIONS, GAUGES

if TYPE_CHECKING:
    from aioprefetch.display.tables import Counts

_NAMES = frozenset(COUNTERS) | {f"{name}.failures" for name in DURATIONS}

# What a reader counts that opens, reads once and closes: counters that have these names look none of them up in vain.
READER_COUNTS: Mapping[str, int] = dict.fromkeys(
    (
        "action_file_opened",
        "action_http_get_request",
        "demand_wait_microseconds",
        "hits_disk",
        "stream_read_block_acquire_read",
        "stream_read_block_fetches",
        "stream_read_block_hits",
        "stream_read_block_misses",
        "stream_read_block_read",
        "stream_read_bytes",
        "stream_read_close_operations",
        "stream_read_closed",
        "stream_read_opened",
        "stream_read_operations",
        "stream_read_operations_incomplete",
        "stream_read_prefetch_operations",
        "stream_read_total_bytes",
        "transport_requests",
        "transport_signatures",
    ),
    0,
)

# Of one kind of successful work: how many times it was measured, and the sum, the shortest and the longest of its
# durations in microseconds.
Timing = tuple[int, int, int, int]
_UNTIMED: Timing = (0, 0, 0, 0)


class Tier(IntEnum):
    """The origin of the bytes of a read; of several origins the slowest."""

    MEMORY = 0
    DISK = 1
    NETWORK = 2


# The words of events.
TIER_NAMES = {Tier.MEMORY: "memory", Tier.DISK: "disk", Tier.NETWORK: "store"}


class StatisticsSnapshot(dict[str, int]):
    """All counts at one moment, under the names of ``aioprefetch.runtime.events``: a mapping that never changes.

    Each duration has ``name.failures``, ``name.min``, ``name.mean`` and ``name.max`` too, in microseconds.

    ``after - before`` has what was counted between two moments, with the mean of the durations in between. Gauges are
    as in ``after``; so are ``name.min`` and ``name.max``, since the beginning, or 0 if none was measured in between.

    It is a dictionary that refuses changes (``InvalidType``, a ``TypeError``): ``dict(snapshot)`` can be changed, and
    ``json.dumps`` and ``pickle`` take it as it is. ``repr`` shows what is not zero, with units.
    """

    __slots__ = ("_is_difference", "_timings")

    def __init__(
        self, counts: Mapping[str, int], timings: Mapping[str, Timing] = {}, *, is_difference: bool = False
    ) -> None:
        dict.__init__(self, counts)
        self._timings = timings
        self._is_difference = is_difference

    def __sub__(self, before: StatisticsSnapshot) -> StatisticsSnapshot:
        if not isinstance(before, StatisticsSnapshot):
            return NotImplemented
        counts = {name: count if name in GAUGES else count - before.get(name, 0) for name, count in self.items()}
        timings: dict[str, Timing] = {}
        for name in DURATIONS:
            samples, total, shortest, longest = self._timings.get(name, _UNTIMED)
            samples_before, total_before, _, _ = before._timings.get(name, _UNTIMED)
            timings[name] = timing = (samples - samples_before, total - total_before, shortest, longest)
            counts |= _durations(name, timing)
        return StatisticsSnapshot(counts, timings, is_difference=True)

    def __repr__(self) -> str:
        from aioprefetch.display.tables import statistics_text

        return statistics_text(type(self).__name__, self._shown())

    def _repr_html_(self) -> str:
        from aioprefetch.display.tables import statistics_html

        return statistics_html("StatisticsSnapshot", self._shown())

    def _shown(self) -> Counts:
        from aioprefetch.display.tables import Counts

        return Counts(self, {**COUNTERS, **GAUGES}, DURATIONS, GAUGES, self._is_difference)

    def __reduce__(self) -> tuple[Callable[..., StatisticsSnapshot], tuple[object, ...]]:
        return _unpickled, (dict(self), dict(self._timings), self._is_difference)

    def described(self) -> str:
        """The counts that are not zero, on one line."""
        return " ".join(f"{name}={count}" for name, count in self.items() if count)

    def _refuse(self, *arguments: object, **named: object) -> NoReturn:
        raise InvalidType("a snapshot of statistics cannot be changed; dict(snapshot) is a copy that can")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


def _unpickled(counts: dict[str, int], timings: dict[str, Timing], is_difference: bool) -> StatisticsSnapshot:
    return StatisticsSnapshot(counts, timings, is_difference=is_difference)


def _durations(name: str, timing: Timing) -> dict[str, int]:
    """The entries of a snapshot for one kind of work that has durations."""
    samples, total, shortest, longest = timing
    if samples <= 0:
        total = shortest = longest = 0
    return {f"{name}.min": shortest, f"{name}.mean": total // max(samples, 1), f"{name}.max": longest}


class Counters(dict[str, int]):
    """Counts that grow. A name that was never counted is 0; a name outside of the vocabulary is a ``KeyError``.

    ``hits`` and ``hit_bytes`` are reads served from memory at once, which are too many to look a name up for each.
    ``counts`` are those to begin with.
    """

    __slots__ = ("hit_bytes", "hits", "timings")

    def __init__(self, counts: Mapping[str, int] = {}) -> None:
        dict.__init__(self, counts)
        self.hits = 0
        self.hit_bytes = 0
        self.timings: dict[str, Timing] = {}

    def __missing__(self, name: str) -> int:
        if name not in _NAMES:
            raise KeyError(name)
        return 0

    def succeeded(self, name: str, seconds: float) -> None:
        """Count a success of this name and its duration."""
        taken = int(seconds * 1e6 + 0.5)
        timing = self.timings.get(name)
        if timing is None:
            self.timings[name] = (1, taken, taken, taken)
            return
        samples, total, shortest, longest = timing
        self.timings[name] = (
            samples + 1,
            total + taken,
            taken if taken < shortest else shortest,
            taken if taken > longest else longest,
        )

    def failed(self, name: str) -> None:
        """Count a failure of this name."""
        self[f"{name}.failures"] += 1

    def merge(self, other: Counters) -> None:
        """Add every count of ``other``, which another thread may be counting on meanwhile."""
        get = self.get  # The names are known, so none is looked up in vain.
        for name, count in dict(other).items():
            if count:
                self[name] = get(name, 0) + count
        self.hits += other.hits
        self.hit_bytes += other.hit_bytes
        timings = self.timings
        for name, (samples, total, shortest, longest) in list(other.timings.items()):
            before = timings.get(name)
            if before is not None:
                samples += before[0]
                total += before[1]
                shortest = before[2] if before[2] < shortest else shortest
                longest = before[3] if before[3] > longest else longest
            timings[name] = (samples, total, shortest, longest)

    def snapshot(self, gauges: Mapping[str, int]) -> StatisticsSnapshot:
        """Every name of the vocabulary with its value; a gauge that is not given is 0."""
        counts = {name: self[name] for name in COUNTERS}
        counts["stream_read_operations"] += self.hits
        counts["stream_read_block_hits"] += self.hits
        counts["stream_read_bytes"] += self.hit_bytes
        counts["hits_memory"] = counts["stream_read_block_hits"]
        counts["hits_network"] = counts["stream_read_block_misses"] - counts["hits_disk"]
        timings = dict(self.timings)
        for name in DURATIONS:
            counts[f"{name}.failures"] = self[f"{name}.failures"]
            counts |= _durations(name, timings.get(name, _UNTIMED))
        counts |= {name: gauges.get(name, 0) for name in GAUGES}
        return StatisticsSnapshot(counts, timings)


class Timer:
    """Counts something and measures how long it takes.

    An error is a failure and has no duration; a cancellation or ``Closed`` is neither. Only the first end counts.

    Code that runs for every request saves half the time by hand: ``counters[name] += 1`` when it begins, and
    ``counters.succeeded(name, seconds)`` or ``counters.failed(name)`` when it ends.
    """

    __slots__ = ("_counters", "_name", "_now", "_running", "_started")

    def __init__(self, counters: Counters, name: str, now: Callable[[], float]) -> None:
        self._counters = counters
        self._name = name
        self._now = now
        self._running = False
        self._started = 0.0

    def begin(self) -> Timer:
        """Count the beginning and start the clock."""
        self._counters[self._name] += 1
        self._running = True
        self._started = self._now()
        return self

    def __enter__(self) -> Timer:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    def failed(self) -> None:
        """Count a failure that is not raised."""
        self._running = False
        self._counters.failed(self._name)

    def end(self, error: BaseException | None) -> None:
        """Count the end: a success, or a failure by ``error``."""
        if not self._running:
            return
        self._running = False
        if error is None:
            self._counters.succeeded(self._name, self._now() - self._started)
        elif isinstance(error, Exception) and not isinstance(error, Closed):
            self._counters.failed(self._name)


class Account:
    """The counters of one reader, held by it and by the fetches made for it.

    Its counts move to the past of its ledger when the last of these is gone. A reader that was not ``closed`` by then
    was leaked.
    """

    __slots__ = ("__weakref__", "closed", "counters", "gone", "reference")

    def __init__(self, counters: Counters, gone: deque[Counters]) -> None:
        self.counters = counters
        self.gone = gone
        self.closed = False
        self.reference = weakref.ref(self)

    def __del__(self) -> None:
        if not self.closed:
            self.counters["stream_leaks"] += 1
        self.gone.append(self.counters)  # Nothing else: this may run on any thread, at any point.


_current: ContextVar[Account | None] = ContextVar("aioprefetch_account", default=None)


def count_for(account: Account | None) -> Token[Account | None]:
    """Let the running task count for an account from now on, or for its runtime. ``count_as_before`` takes it back."""
    return _current.set(account)


def count_as_before(token: Token[Account | None]) -> None:
    """Let the running task count as it did before ``count_for``."""
    _current.reset(token)


class Ledger:
    """All counts of one runtime. They live as long as the runtime and its readers."""

    def __init__(self) -> None:
        self.own = Counters()
        self._past = Counters()
        self._open: dict[int, Counters] = {}
        self._gone: deque[Counters] = deque()
        self._lock = threading.RLock()  # A collector that runs meanwhile may ask for statistics.

    @property
    def current(self) -> Counters:
        """The counters of the running task: of its account, if that belongs to this ledger."""
        account = _current.get()
        return account.counters if account is not None and account.gone is self._gone else self.own

    def of(self, account: Account | None) -> Counters:
        """The counters of ``account``, or of the runtime if the account is gone."""
        return self.own if account is None else account.counters

    def open(self, counters: Counters) -> Account:
        """An account that counts in ``counters``."""
        with self._lock:
            if self._gone:
                self._settle()
            self._open[id(counters)] = counters
        return Account(counters, self._gone)

    def total(self) -> Counters:
        """The sum of all counts so far. From any thread."""
        total = Counters()
        with self._lock:
            self._settle()
            for counters in (self.own, self._past, *self._open.values()):
                total.merge(counters)
        return total

    def is_settled(self) -> bool:
        """Whether no account is open that could count more."""
        with self._lock:
            self._settle()
            return not self._open

    def _settle(self) -> None:
        while self._gone:
            counters = self._gone.popleft()
            self._past.merge(counters)
            del self._open[id(counters)]
