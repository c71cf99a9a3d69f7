"""The model of a trace: requests, reads that waited, retries, and the bytes of each object.

Pure: requests, served reads and events are put into it. Times are seconds since the first of them.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from aioprefetch.errors import excerpt, printable, redact
from aioprefetch.ranges import Range
from aioprefetch.runtime.events import CANCELLED, Event, ServedRead
from aioprefetch.trace.traced import Outcome, Retry, TracedObject, TracedRequest, Wait

if TYPE_CHECKING:
    from aioprefetch.accessor.request_events import ReportedRequest

T = TypeVar("T")
# The events of a recording, beside the requests and reads that it follows.
NAMES = ("request.retried", "block.evicted", "budget.waited", "budget.closed")

# More requests, and more waits, are counted and not kept: a service may record itself for a day.
REQUESTS_MAX = 200_000
OBJECTS_MAX = 10_000
# Of all objects together, some 30 MB. Past it, ranges with small gaps between them become one.
RANGES_MAX = 200_000
# A read out of memory takes microseconds, and waits for nothing.
WAIT_SECONDS_MIN = 100e-6
RETRIES_MAX = 20_000
# The values of a request, but its number; in this order they are written and read by ``spool``.
_FIELDS = tuple(field.name for field in fields(TracedRequest))[1:]
_BEGUN, _FIRST_BYTE, _ENDED = map(_FIELDS.index, ("begun_at_seconds", "first_byte_at_seconds", "ended_at_seconds"))
_BUDGET, _PROCESS = map(_FIELDS.index, ("budget_id", "process"))
_wait_values = attrgetter("path", "start", "end", "tier", "begun_at_seconds", "ended_at_seconds")
_RETRY_FIELDS = ("path", "operation", "attempt", "at_seconds", "wait_seconds", "error")
_retry_values = attrgetter(*_RETRY_FIELDS)


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
        # Paths that hold secrets and look the same when redacted: the number of each, and the count of such paths.
        self._alike: dict[tuple[str, str], int] = {}
        self._shown_alike: Counter[tuple[str, str]] = Counter()
        self.pending = Pending() if pending is None else pending
        self._kept: list[ReportedRequest] = []
        self._open: list[tuple[ReportedRequest, int]] = []  # With the bytes of each that were taken.
        # What processes wrote: their names and how they ended, the values of their requests, and waits.
        self.processes: dict[str, str] = {}
        self._rows: list[dict[int, list[Any]]] = []
        self._added_waits: list[Wait] = []
        self._numbers = itertools.count()
        self._written: dict[int, tuple[int, tuple[Any, ...]]] = {}  # By the identities of requests in flight.
        self._waits: list[ServedRead] = []
        self._ranges_unseen = 0  # Added since they were counted last.
        self._requests: list[TracedRequest] | None = None
        self._read_waits: list[Wait] | None = None
        self._texts: dict[tuple[str, str], str] = {}
        self._handlers: dict[str, Callable[[float, str, Mapping[str, Any]], None]] = {
            "request.retried": self._request_retried,
            "block.evicted": self._block_evicted,
            "budget.waited": self._budget_waited,
            "budget.closed": self._budget_closed,
        }

    def settle(self, at_most: int | None = None) -> None:
        """Look at what was taken since the last time, and at the requests that were in flight then.

        With ``at_most`` only at that many requests, reads and events, the oldest.
        """
        pending = self.pending
        events, reads = _taken(pending.events, at_most), _taken(pending.reads, at_most)
        requests = _taken(pending.requests, at_most)  # Last: a read reports after its requests have begun.
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
            taken = {id(request): count for request, count in self._open}  # Some may have ended since.
            kept = [self._row(request, taken.get(id(request))) for request in self._kept]
            added = (row for rows in self._rows for row in rows.values())
            begun = sorted([*kept, *added], key=itemgetter(_BEGUN))
            self._requests = [
                TracedRequest(number=number, **dict(zip(_FIELDS, row, strict=True)))
                for number, row in enumerate(begun, 1)
            ]
            for position, seconds in self._retry_waits(self._requests).items():
                self._requests[position] = replace(self._requests[position], retry_wait_seconds=seconds)
        return self._requests

    @property
    def waits(self) -> list[Wait]:
        """The reads of callers that waited, as they ended."""
        if self._read_waits is None:
            origin = self._origin or 0.0
            waits = [
                Wait(
                    path=self._name(store, path),
                    start=start,
                    end=end,
                    tier=tier,
                    begun_at_seconds=ended_at - origin - (waited or 0.0),
                    ended_at_seconds=ended_at - origin,
                )
                for path, start, end, tier, waited, ended_at, store in self._waits
            ]
            self._read_waits = sorted([*waits, *self._added_waits], key=attrgetter("ended_at_seconds"))
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
        """All bytes of objects received; bytes received twice count twice."""
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

    # --- the recordings of several processes -------------------------------------------------------------------------

    @property
    def is_in_flight(self) -> bool:
        """Whether a request had not ended when it was looked at last."""
        return bool(self._open)

    def take_out(self) -> dict[str, Any] | None:
        """Forget what came since the last time, and return it in the types of JSON, or ``None`` for nothing.

        For ``add_process``, in another process. Requests in flight come again, with the same numbers, as they change.
        """
        self.settle()
        taken = {id(request): count for request, count in self._open}
        before, self._written = self._written, {}
        rows = []
        for request in self._kept:
            number, known = before.get(id(request)) or (next(self._numbers), ())
            row = self._row(request, taken.get(id(request)))
            if row != known:
                rows.append((number, *row))
            if id(request) in taken:
                self._written[id(request)] = number, row
        if not rows and not any(self.counts.values()):
            return None
        facts = {
            "origin": self._origin,
            "ended": self.ended_at_seconds,
            "requests": rows,
            "waits": [*map(_wait_values, self.waits), *map(_wait_values, self.memory_waits)],
            "retries": [*map(_retry_values, self.retries)],
            "objects": [(name, *_object_values(item)) for name, item in self.objects.items()],
            "others": _object_values(self.others) if self.others.counts else None,
            "counts": self.counts,
            "budgets": list(self.budget_ends.items()),
        }
        self._kept = [request for request in self._kept if id(request) in taken]
        self.objects, self.others, self.counts = {}, TracedObject(path=self.others.path), Counter()
        self._waits, self.memory_waits, self.retries, self.budget_ends = [], [], [], {}
        self._requests = self._read_waits = None
        return facts

    def keep_counts_only(self) -> None:
        """Keep no further requests and waits, and few ranges."""
        self._requests_max = self._ranges_max = 0

    def add_process(self, process: str, parts: Iterable[Mapping[str, Any]], end: str, at_seconds: float | None) -> None:
        """Add what ``take_out`` of a process gave, and how it ended. The process with the earliest origin comes first.

        ``at_seconds`` is when it ended, by its clock: its memory is free then, and its requests get no further.
        """
        self.processes[process] = end
        rows: dict[int, list[Any]] = {}
        self._rows.append(rows)
        for facts in parts:
            self._add(facts, process, rows)
        self.counts["requests_not_kept"] = self.counts["request.started"] - sum(map(len, self._rows))
        if at_seconds is not None:
            ended = at_seconds - (self._origin or 0.0)
            for row in rows.values():
                self.budget_ends.setdefault(row[_BUDGET], ended)
                row[_ENDED] = ended if row[_ENDED] is None else row[_ENDED]

    def _add(self, facts: Mapping[str, Any], process: str, rows: dict[int, list[Any]]) -> None:
        if self._origin is None:
            self._origin = facts["origin"]
        later, first_budget = facts["origin"] - self._origin, len(self._rows) << 32
        room = self._requests_max - sum(map(len, self._rows))
        self._ended_at = max(self._ended_at, facts["origin"] + facts["ended"])
        for number, *row in facts["requests"]:
            for place in (_BEGUN, _FIRST_BYTE, _ENDED):
                row[place] = row[place] if row[place] is None else row[place] + later
            row[_BUDGET], row[_PROCESS] = row[_BUDGET] + first_budget, process
            if number in rows or room > 0:
                room -= number not in rows
                rows[number] = row
        for path, start, end, tier, begun, ended in facts["waits"]:
            waits = self.memory_waits if tier == "budget" else self._added_waits
            if len(waits) < self._requests_max:
                begun, ended = begun + later, ended + later
                waits.append(
                    Wait(path=path, start=start, end=end, tier=tier, begun_at_seconds=begun, ended_at_seconds=ended)
                )
        for values in facts["retries"]:
            if len(self.retries) < RETRIES_MAX:
                retry = Retry(process=process, **dict(zip(_RETRY_FIELDS, values, strict=True)))
                self.retries.append(replace(retry, at_seconds=retry.at_seconds + later))
        for name, *values in facts["objects"]:
            self._add_object(self.object(name), *values)
        if facts["others"] is not None:
            self._add_object(self.others, *facts["others"])
        self.counts.update(facts["counts"])
        self.budget_ends.update((budget_id + first_budget, at + later) for budget_id, at in facts["budgets"])
        self._bound_ranges()

    def _add_object(
        self,
        item: TracedObject,
        counts: Mapping[str, int],
        tier_bytes: Mapping[str, int],
        fetched: Sequence[Range],
        used: Mapping[str, Sequence[Range]],
    ) -> None:
        item.counts.update(counts)
        item.tier_bytes.update(tier_bytes)
        if item is not self.others:
            for tier, ranges in {"": fetched, **used}.items():
                ends = [(start, end) for start, end in ranges]
                item.add_reads(tier, ends) if tier else item.fetched.extend(ends)
                self._ranges_unseen += len(ends)

    # --- requests ----------------------------------------------------------------------------------------------

    def _settle_requests(self, begun: Sequence[ReportedRequest]) -> None:
        """Count the requests that have begun, and take the bytes of the ended ones."""
        room = self._requests_max - len(self._kept)
        self._kept += begun[:room]
        self.counts["requests_not_kept"] += max(0, len(begun) - room)
        self.counts["request.started"] += len(begun)
        reads = [(request.store, request.path) for request in begun if request.operation == "read"]
        for place, count in Counter(reads).items():
            self.object(self._name(*place)).counts["requests"] += count
        seen, latest = [*self._open, *((request, 0) for request in begun)], self._ended_at
        self._open = []
        fetched: defaultdict[tuple[str, str], list[Range]] = defaultdict(list)
        for request, taken in seen:
            ended_at = request.ended_at_seconds  # Asked once: it may end meanwhile on another thread.
            if ended_at is None:
                start, received = request.arrived()
                self._open.append((request, max(taken, received)))
                latest = max(latest, request.first_byte_at_seconds or 0.0)
            else:
                start, received = request.start, request.counted_bytes
                latest = max(latest, ended_at)
            if received > taken and request.operation == "read" and _has_object_bytes(request):
                start = start or 0
                if start < 0:  # The last bytes of an object whose size no response gave.
                    self.counts["unplaced_bytes"] += received - taken
                    continue
                fetched[request.store, request.path].append((start + taken, start + received))
        self._ended_at = latest
        for place, ranges in fetched.items():
            item = self.object(self._name(*place))
            item.counts["received_bytes"] += sum([end - start for start, end in ranges])
            if item is not self.others:
                item.fetched.extend(ranges)
                self._ranges_unseen += len(ranges)

    # --- reads and events --------------------------------------------------------------------------------------

    def _settle_reads(self, served: Sequence[ServedRead]) -> None:
        """Take the reads, grouped by object, since there are many."""
        by_place: defaultdict[tuple[str, str, str], list[Range]] = defaultdict(list)
        waits: list[ServedRead] = []
        waited_seconds, waited_min = 0.0, WAIT_SECONDS_MIN
        for read in served:
            path, start, end, tier, waited, _, store = read
            by_place[store, path, tier].append((start, end))
            if waited is not None and waited >= waited_min:
                waits.append(read)
                waited_seconds += waited
        self._waits += waits[: max(0, self._requests_max - len(self._waits))]
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
        if len(self.retries) < min(RETRIES_MAX, self._requests_max):
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

    def _budget_waited(self, at: float, name: str, facts: Mapping[str, Any]) -> None:
        waited = facts.get("seconds") or 0.0
        self.counts["memory_wait_microseconds"] += round(1e6 * waited)
        if len(self.memory_waits) < self._requests_max:
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

    def _row(self, request: ReportedRequest, taken_bytes: int | None) -> tuple[Any, ...]:
        """The values of a ``TracedRequest`` except its number. ``taken_bytes`` is set while it is in flight."""
        origin = self._origin or 0.0
        start, end, connection = request.start, request.end, request.connection
        outcome: Outcome = "open"
        received = taken_bytes or 0
        if taken_bytes is None:
            outcome = "finished" if not request.error else "failed"
            if request.error == CANCELLED:
                outcome = "cancelled"
            received = request.counted_bytes if _has_object_bytes(request) else 0
        elif received:
            start, _ = request.arrived()
        if end is None and start is not None and start >= 0 and outcome == "finished":
            end = start + received
        first, ended = request.first_byte_at_seconds, None if outcome == "open" else request.ended_at_seconds
        return (
            self._name(request.store, request.path),
            request.operation,
            str(request.lane),
            request.attempt,
            "" if request.reader_id is None else str(request.reader_id),
            start,
            end,
            request.begun_at_seconds - origin,
            None if first is None else first - origin,
            None if ended is None else ended - origin,
            outcome,
            received,
            request.status,
            "" if connection is None else str(connection),
            _error_text(request.error, request.message),
            0.0,
            request.budget_id,
            request.memory_bytes,
            request.memory_limit_bytes,
            "",
            self._name("", request.caller),
        )

    def _retry_waits(self, requests: Sequence[TracedRequest]) -> dict[int, float]:
        """How long each request, by its position, was held back because the attempt before it had failed."""
        waits: dict[int, float] = {}
        pending: dict[tuple[str, ...], list[tuple[float, float]]] = {}  # When each pause was to end, and began.
        for retry in self.retries:
            pause = retry.at_seconds + retry.wait_seconds, retry.at_seconds
            pending.setdefault((retry.process, retry.path, retry.operation), []).append(pause)
        for pauses in pending.values():
            pauses.sort()
        for position, request in enumerate(requests if pending else ()):
            pauses = pending.get((request.process, request.path, request.operation), [])
            if not pauses or request.attempt == 1:
                continue
            # Parts of one read are tried again side by side: the pause that should end now belongs to this attempt.
            begun = request.begun_at_seconds
            after = bisect(pauses, (begun, begun))
            near = min(range(max(0, after - 1), min(after + 1, len(pauses))), key=lambda at: abs(pauses[at][0] - begun))
            if pauses[near][1] <= begun:
                waits[position] = begun - pauses.pop(near)[1]
        return waits

    def _name(self, store: str, path: str) -> str:
        """The name of an object as it may be shown; one text object for all events with it."""
        text = self._texts.get((store, path))
        if text is None:
            if len(self._texts) >= 2 * self._objects_max:  # They are made again on demand.
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


def _object_values(item: TracedObject) -> tuple[Any, ...]:
    used = {tier: ranges.ranges for tier, ranges in item.by_tier.items() if ranges.ranges}
    return item.counts, item.tier_bytes, item.fetched.ranges, used


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
    """Whether a response carries bytes of the object, and not the text of an error."""
    return (request.status or 200) < 300


def _error_text(error: object, message: object = "") -> str:
    if not error and not message:
        return ""
    return excerpt(": ".join(str(part) for part in (error, message) if part))
