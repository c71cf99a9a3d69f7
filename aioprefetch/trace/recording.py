"""The model of a trace: requests, reads that waited, retries, and the bytes of each object.

Pure: requests, served reads and events are put into it. Times are seconds since the first of them.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from aioprefetch.errors import excerpt, printable, redact
from aioprefetch.ranges import Range
from aioprefetch.runtime.events import CANCELLED, Event, ServedRead
from aioprefetch.trace.byte_set import ByteSet

if TYPE_CHECKING:
    from aioprefetch.accessor.request_events import ReportedRequest

T = TypeVar("T")
Outcome = Literal["finished", "failed", "cancelled", "open"]
TIERS = ("memory", "disk", "cache", "store")
# The events of a recording, beside the requests and reads that it follows.
NAMES = ("request.retried", "block.evicted", "window.grown", "window.shrunk", "budget.waited", "budget.closed")

# More than this is counted and not kept: a service may record itself for a day.
REQUESTS_MAX = 200_000
WAITS_MAX = 200_000
OBJECTS_MAX = 10_000
# Of all objects together, some 30 MB. Past it, ranges with small gaps between them become one.
RANGES_MAX = 200_000
# A read out of memory takes microseconds, and waits for nothing.
WAIT_SECONDS_MIN = 100e-6
RETRIES_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request to a store: one attempt of an operation.

    ``start`` and ``end`` are the bytes of the response, or those that it asked for: ``start`` is negative for the last
    bytes of an object, and ``None`` for requests without bytes. ``received_bytes`` came before it ended.
    ``memory_bytes`` of ``memory_limit_bytes`` were in use or reserved when it began, in the budget ``budget_id``: each
    operator has one on each loop.
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
    """A failure that was tried again after ``wait_seconds``. ``attempt`` is the one that failed, from 1."""

    path: str
    operation: str
    attempt: int
    at_seconds: float
    wait_seconds: float
    error: str


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
        """Keep at most ``ranges_max`` ranges of each kind; the number of kinds of which gaps were closed."""
        self._used = None
        return sum([one.coarsen(ranges_max) for one in (self.fetched, *self.by_tier.values())])

    @property
    def received_bytes(self) -> int:
        """All bytes that came, those that came again included."""
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


@dataclass(slots=True)
class Pending:
    """Requests, when they begin, served reads, and other events, until they are looked at."""

    requests: list[ReportedRequest] = field(default_factory=list)
    reads: list[ServedRead] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def clear(self) -> None:
        """Drop all."""
        self.requests.clear()
        self.reads.clear()
        self.events.clear()


class Recording:
    """A trace as a value. Requests, when they begin, served reads and other events are put into ``pending``.

    That is cheap; ``settle`` looks at what is there, and its owner calls it before it looks at anything else.
    Memory is bounded. Requests, waits and retries past a maximum are counted only, with their bytes. Objects past
    theirs are counted together in ``others``, which has no ranges. Where there are too many ranges, those with the
    smallest gaps become one, and it is not known any more which bytes were used (``knows_use``).
    """

    def __init__(
        self,
        *,
        names_stores: bool = False,
        requests_max: int = REQUESTS_MAX,
        objects_max: int = OBJECTS_MAX,
        ranges_max: int = RANGES_MAX,
        pending: Pending | None = None,
    ) -> None:
        self._names_stores = names_stores
        self._requests_max, self._objects_max, self._ranges_max = requests_max, objects_max, ranges_max
        self._origin: float | None = None
        self._ended_at = 0.0
        self.objects: dict[str, TracedObject] = {}
        self.others = TracedObject(path="other objects")
        self.memory_waits: list[Wait] = []
        self.retries: list[Retry] = []
        self.counts: Counter[str] = Counter()
        self.budget_ends: dict[int, float] = {}  # When operators gave up their memory.
        # Of paths that hold secrets: their numbers among those that are shown alike, and how many these are.
        self._alike: dict[tuple[str, str], int] = {}
        self._shown_alike: Counter[tuple[str, str]] = Counter()
        self.pending = Pending() if pending is None else pending
        self._kept: list[ReportedRequest] = []
        self._open: list[ReportedRequest] = []
        self._waits: list[ServedRead] = []
        self._ranges_unseen = 0  # Added since they were counted last.
        self._requests: list[TracedRequest] | None = None
        self._read_waits: list[Wait] | None = None
        self._texts: dict[tuple[str, str], str] = {}
        self._handlers: dict[str, Callable[[float, str, Mapping[str, Any]], None]] = {
            "request.retried": self._request_retried,
            "block.evicted": self._block_evicted,
            "window.grown": self._window_changed,
            "window.shrunk": self._window_changed,
            "budget.waited": self._budget_waited,
            "budget.closed": self._budget_closed,
        }

    def settle(self, at_most: int | None = None) -> None:
        """Look at what was taken since the last time, and at the requests that were in flight then.

        With ``at_most`` only at that many requests, reads and events, the oldest.
        """
        pending = self.pending
        events, reads = _taken(pending.events, at_most), _taken(pending.reads, at_most)
        requests = _taken(pending.requests, at_most)  # Last: those of the reads have begun before.
        if self._origin is None:
            if not (requests or reads or events):
                return
            self._origin = min(_times(requests, reads, events))
        if requests or reads or events or self._open:
            self._requests = self._read_waits = None
        self._ended_at = max(self._ended_at, self._origin, *_times(requests[-1:], reads[-1:], events[-1:]))
        self._settle_requests(requests)
        self._settle_reads(reads)
        self._settle_events(events, self._origin)
        self._bound_ranges()

    @property
    def ended_at_seconds(self) -> float:
        """When the last request, read or event began or ended."""
        return self._ended_at - (self._origin or 0.0)

    @property
    def requests(self) -> list[TracedRequest]:
        """The requests, in the order in which they began, numbered from 1."""
        if self._requests is None:
            waited = self._retry_waits()
            begun = sorted(self._kept, key=lambda request: request.begun_at_seconds)
            in_flight = {id(request) for request in self._open}  # Some may have ended since, with bytes not yet taken.
            self._requests = [
                self._request(number, request, waited.get(id(request), 0.0), has_ended=id(request) not in in_flight)
                for number, request in enumerate(begun, 1)
            ]
        return self._requests

    @property
    def waits(self) -> list[Wait]:
        """The reads of callers that waited, as they ended."""
        if self._read_waits is None:
            origin = self._origin or 0.0
            self._read_waits = [
                Wait(
                    path=self._name(store, path),
                    start=start,
                    end=end,
                    tier=tier,
                    begun_at_seconds=ended_at - origin - (waited or 0.0),
                    ended_at_seconds=ended_at - origin,
                )
                for path, start, end, tier, waited, ended_at, store in sorted(self._waits, key=itemgetter(5))
            ]
        return self._read_waits

    @property
    def reads(self) -> list[TracedRequest]:
        """The requests that asked for bytes of objects."""
        return [request for request in self.requests if request.is_read]

    @property
    def knows_use(self) -> bool:
        """Whether it is known which bytes were used and came again. Where ranges were joined it is not."""
        return not self.counts["ranges_joined"]

    @property
    def fetched_bytes(self) -> int:
        """All bytes of objects that came, those that came again included."""
        return sum(item.received_bytes for item in self.objects.values()) + self.others.received_bytes

    @property
    def refetched_bytes(self) -> int:
        """Bytes of objects that came more than once, without their first time."""
        return sum(item.refetched_bytes for item in self.objects.values())

    @property
    def distinct_bytes(self) -> int:
        """The bytes of objects that came, each counted once."""
        return sum(len(item.fetched) for item in self.objects.values())

    @property
    def wasted_bytes(self) -> int:
        """The bytes that came and that no read used, each counted once."""
        return sum(len(item.wasted) for item in self.objects.values())

    def object(self, name: str) -> TracedObject:
        """The object of a name, which may be new; ``others`` if there are too many.

        The name is its path as it may be shown; in a recording of all operators its URL.
        """
        item = self.objects.get(name)
        if item is None:
            if len(self.objects) >= self._objects_max:
                return self.others
            item = self.objects[name] = TracedObject(path=name)
        return item

    # --- requests ----------------------------------------------------------------------------------------------

    def _settle_requests(self, begun: Sequence[ReportedRequest]) -> None:
        """Count the requests that have begun, and take the bytes of those that have ended."""
        room = self._requests_max - len(self._kept)
        self._kept += begun[:room]
        self.counts["requests_not_kept"] += max(0, len(begun) - room)
        self.counts["request.started"] += len(begun)
        reads = [(request.store, request.path) for request in begun if request.operation == "read"]
        for place, count in Counter(reads).items():
            self.object(self._name(*place)).counts["requests"] += count
        seen, latest = [*self._open, *begun], self._ended_at
        self._open = []
        fetched: defaultdict[tuple[str, str], list[Range]] = defaultdict(list)
        for request in seen:
            ended_at = request.ended_at_seconds  # Asked once: it may end meanwhile on another thread.
            if ended_at is None:
                self._open.append(request)
                latest = max(latest, request.first_byte_at_seconds or 0.0)
                continue
            if ended_at > latest:
                latest = ended_at
            received = request.counted_bytes
            if received and request.operation == "read" and (request.status or 200) < 300:
                start = request.start or 0
                if start < 0:  # The last bytes of an object whose size no response gave.
                    self.counts["unplaced_bytes"] += received
                    continue
                fetched[request.store, request.path].append((start, start + received))
        self._ended_at = latest
        for place, ranges in fetched.items():
            item = self.object(self._name(*place))
            item.counts["received_bytes"] += sum([end - start for start, end in ranges])
            if item is not self.others:
                item.fetched.extend(ranges)
                self._ranges_unseen += len(ranges)

    # --- reads and events --------------------------------------------------------------------------------------

    def _settle_reads(self, served: Sequence[ServedRead]) -> None:
        """Take the reads, of which there are many, object by object."""
        by_place: defaultdict[tuple[str, str, str], list[Range]] = defaultdict(list)
        waits: list[ServedRead] = []
        waited_seconds, waited_min = 0.0, WAIT_SECONDS_MIN
        for read in served:
            path, start, end, tier, waited, _, store = read
            by_place[store, path, tier].append((start, end))
            if waited is not None and waited >= waited_min:
                waits.append(read)
                waited_seconds += waited
        self._waits += waits[: max(0, WAITS_MAX - len(self._waits))]
        self.counts["read.served"] += len(served)
        self.counts["waits"] += len(waits)
        self.counts["wait_microseconds"] += round(1e6 * waited_seconds)
        for (store, path, tier), ranges in by_place.items():
            item = self.object(self._name(store, path))
            item.counts["reads"] += len(ranges)
            item.tier_bytes[tier] += sum([end - start for start, end in ranges])
            if item is not self.others:
                item.add_reads(tier, ranges)
                self._ranges_unseen += len(ranges)

    def _settle_events(self, events: Sequence[Event], origin: float) -> None:
        for kind, at_seconds, path, facts, store in events:
            if handler := self._handlers.get(kind):
                self.counts[kind] += 1
                handler(at_seconds - origin, self._name(store, path), facts)

    def _request_retried(self, at: float, name: str, facts: Mapping[str, Any]) -> None:
        if len(self.retries) < RETRIES_MAX:
            self.retries.append(
                Retry(
                    path=name,
                    operation=str(facts.get("operation", "")),
                    attempt=facts.get("attempt", 1),
                    at_seconds=at,
                    wait_seconds=facts.get("wait_seconds") or 0.0,
                    error=_error_text(facts.get("error")),
                )
            )
        self.counts["retry_wait_microseconds"] += round(1e6 * (facts.get("wait_seconds") or 0.0))

    def _block_evicted(self, at: float, name: str, facts: Mapping[str, Any]) -> None:
        if facts.get("unused"):
            self.object(name).counts["evicted_unused_bytes"] += facts["end"] - facts["start"]

    def _window_changed(self, at: float, name: str, facts: Mapping[str, Any]) -> None:
        blocks = facts.get("blocks") or 0
        counts = self.object(name).counts
        counts["window_blocks_max"] = max(counts["window_blocks_max"], blocks)

    def _budget_waited(self, at: float, name: str, facts: Mapping[str, Any]) -> None:
        waited = facts.get("seconds") or 0.0
        self.counts["memory_wait_microseconds"] += round(1e6 * waited)
        if len(self.memory_waits) < WAITS_MAX:
            self.memory_waits.append(
                Wait(path=name, start=0, end=0, tier="budget", begun_at_seconds=at - waited, ended_at_seconds=at)
            )

    def _budget_closed(self, at: float, name: str, facts: Mapping[str, Any]) -> None:
        self.budget_ends[facts["budget_id"]] = at

    def _bound_ranges(self) -> None:
        """Join ranges where there are too many; looked at after a quarter of the maximum was added."""
        if self._ranges_unseen <= self._ranges_max // 4:
            return
        self._ranges_unseen = 0
        sets = [one for item in self.objects.values() for one in (item.fetched, *item.by_tier.values())]
        if sum(one.kept_ranges for one in sets) <= self._ranges_max:
            return
        share, each = self._ranges_max // 2, sorted(len(one.ranges) for one in sets)
        if sum(each) <= share:
            return
        # Small sets stay as they are, and what they leave is shared by the large ones.
        for number, count in enumerate(each):
            ranges_max = share // (len(each) - number)
            if count > ranges_max:
                break
            share -= count
        self.counts["ranges_joined"] += sum([item.coarsen(ranges_max) for item in self.objects.values()])

    # --- what is shown -----------------------------------------------------------------------------------------

    def _request(
        self, number: int, request: ReportedRequest, retry_wait_seconds: float, *, has_ended: bool
    ) -> TracedRequest:
        origin = self._origin or 0.0
        outcome: Outcome = "open"
        received = 0
        if has_ended:
            outcome = "finished" if not request.error else "failed"
            if request.error == CANCELLED:
                outcome = "cancelled"
            received = request.counted_bytes if _has_object_bytes(request) else 0
        start, end, connection = request.start, request.end, request.connection
        if end is None and start is not None and start >= 0 and outcome == "finished":
            end = start + received
        first, ended = request.first_byte_at_seconds, request.ended_at_seconds if has_ended else None
        return TracedRequest(
            number=number,
            path=self._name(request.store, request.path),
            operation=request.operation,
            lane=str(request.lane),
            attempt=request.attempt,
            reader="" if request.reader_id is None else str(request.reader_id),
            start=start,
            end=end,
            begun_at_seconds=request.begun_at_seconds - origin,
            first_byte_at_seconds=None if first is None else first - origin,
            ended_at_seconds=None if ended is None else ended - origin,
            outcome=outcome,
            received_bytes=received,
            status=request.status,
            connection="" if connection is None else str(connection),
            error=_error_text(request.error, request.message),
            retry_wait_seconds=retry_wait_seconds,
            budget_id=request.budget_id,
            memory_bytes=request.memory_bytes,
            memory_limit_bytes=request.memory_limit_bytes,
        )

    def _retry_waits(self) -> dict[int, float]:
        """How long each request, by its identity, was held back because the attempt before it had failed."""
        waits: dict[int, float] = {}
        pending: dict[tuple[str, str], list[tuple[float, float]]] = {}  # When each pause was to end, and began.
        for retry in self.retries:
            pause = retry.at_seconds + retry.wait_seconds, retry.at_seconds
            pending.setdefault((retry.path, retry.operation), []).append(pause)
        for pauses in pending.values():
            pauses.sort()
        for request in self._kept if pending else ():
            pauses = pending.get((self._name(request.store, request.path), request.operation), [])
            if not pauses or request.attempt == 1:
                continue
            # Parts of one read are tried again side by side: the pause that was to end now is that of this attempt.
            begun = request.begun_at_seconds - (self._origin or 0.0)
            after = bisect(pauses, (begun, begun))
            near = min(range(max(0, after - 1), min(after + 1, len(pauses))), key=lambda at: abs(pauses[at][0] - begun))
            if pauses[near][1] <= begun:
                waits[id(request)] = begun - pauses.pop(near)[1]
        return waits

    def _name(self, store: str, path: str) -> str:
        """The name of an object as it may be shown; one text object for all events with it."""
        text = self._texts.get((store, path))
        if text is None:
            if len(self._texts) >= 2 * self._objects_max:  # They are made again when they are asked for.
                self._texts.clear()
            shown = printable(redact(path))
            if shown != path:
                shown = self._numbered(store, path, shown)
            if self._names_stores and store:
                root = printable(redact(store))
                shown = f"{root if root.endswith('/') else f'{root}/'}{shown}"
            text = self._texts[store, path] = shown
        return text

    def _numbered(self, store: str, path: str, shown: str) -> str:
        """The text of a path that holds a secret: two objects are two, also where their difference is not shown."""
        number = self._alike.get((store, path))
        if number is None:
            if len(self._alike) >= self._objects_max:
                return shown
            number = self._alike[store, path] = 1 + self._shown_alike[store, shown]
            self._shown_alike[store, shown] = number
        return shown if number == 1 else f"{shown} ({number})"


def _times(requests: list[ReportedRequest], reads: list[ServedRead], events: list[Event]) -> list[float]:
    """When they began, were served, and happened."""
    begun, served = [request.begun_at_seconds for request in requests], [read[5] for read in reads]
    return [*begun, *served, *(event.at_seconds for event in events)]


def _taken(waiting: list[T], at_most: int | None) -> list[T]:
    """The first in a list, which are taken out of it; others may append to it meanwhile."""
    taken = waiting[:at_most]
    del waiting[: len(taken)]
    return taken


def _has_object_bytes(request: ReportedRequest) -> bool:
    """Whether the bytes of a response are those of the object, and not the text of an error."""
    return (request.status or 200) < 300


def _error_text(error: object, message: object = "") -> str:
    if not error and not message:
        return ""
    return excerpt(": ".join(str(part) for part in (error, message) if part))
