"""The model of a trace: requests, reads that waited, retries, and the bytes of each object. Pure; events feed it.

Times are seconds since the first event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aioprefetch.errors import excerpt, printable, redact
from aioprefetch.ranges import Range
from aioprefetch.trace.byte_set import ByteSet

Outcome = Literal["finished", "failed", "cancelled", "open"]
TIERS = ("memory", "disk", "store")
# The events of a recording. The end of a request tells of its first byte too, and each event takes time.
NAMES = (
    *("request.started", "request.finished", "request.failed", "request.retried"),
    *("read.served", "block.evicted", "window.grown", "window.shrunk", "budget.waited"),
)

_NOT_ENDED: tuple[float | None, Mapping[str, Any], Outcome] = (None, {}, "open")

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
    """

    number: int
    path: str
    operation: str
    lane: str
    attempt: int
    reader: str
    start: int | None
    end: int | None
    begun_seconds: float
    first_byte_seconds: float | None
    ended_seconds: float | None
    outcome: Outcome
    received_bytes: int
    status: int | None
    connection: str
    error: str
    retry_wait_seconds: float

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
        return 0.0 if self.ended_seconds is None else self.ended_seconds - self.begun_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A read of a caller that waited for bytes, or a request that waited for memory (``tier`` is then ``budget``)."""

    path: str
    start: int
    end: int
    tier: str
    begun_seconds: float
    ended_seconds: float

    @property
    def seconds(self) -> float:
        """How long it waited."""
        return self.ended_seconds - self.begun_seconds


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
    used: ByteSet = field(default_factory=ByteSet)
    by_tier: dict[str, ByteSet] = field(default_factory=lambda: {tier: ByteSet() for tier in TIERS})
    tier_bytes: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

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


class Recording:
    """A trace as a value: ``add`` takes the events in the order in which they happened.

    Memory is bounded. Requests, waits and retries past a maximum are counted only, with their bytes. Objects past
    theirs are counted together in ``others``, which has no ranges. Where there are too many ranges, those with the
    smallest gaps become one, and ``counts["ranges_joined"]`` says that figures of bytes are approximate since.
    """

    def __init__(
        self, *, requests_max: int = REQUESTS_MAX, objects_max: int = OBJECTS_MAX, ranges_max: int = RANGES_MAX
    ) -> None:
        self._requests_max, self._objects_max, self._ranges_max = requests_max, objects_max, ranges_max
        self._origin: float | None = None
        self.ended_seconds = 0.0
        self.objects: dict[str, TracedObject] = {}
        self.others = TracedObject(path="other objects")
        self.waits: list[Wait] = []
        self.memory_waits: list[Wait] = []
        self.retries: list[Retry] = []
        self.counts: Counter[str] = Counter()
        self._started: dict[Hashable, tuple[float, str, Mapping[str, Any]]] = {}
        self._ended: dict[Hashable, tuple[float, Mapping[str, Any], Outcome]] = {}
        self._not_kept: dict[Hashable, Mapping[str, Any]] = {}  # Those in flight.
        self._ranges_unseen = 0  # Added since they were counted last.
        self._requests: list[TracedRequest] | None = None
        self._texts: dict[str, str] = {}
        self._handlers: dict[str, Callable[[float, str, Mapping[str, Any]], None]] = dict(
            zip(
                NAMES,
                (
                    *(self._request_started, self._request_finished, self._request_failed),
                    *(self._request_retried, self._read_served, self._block_evicted, self._window_changed),
                    *(self._window_changed, self._budget_waited),
                ),
                strict=True,
            )
        )

    def add(self, name: str, at_seconds: float, path: str, facts: Mapping[str, Any]) -> None:
        """Take one event; names outside of ``NAMES`` are ignored. ``at_seconds`` is on any clock, always the same."""
        handler = self._handlers.get(name)
        if handler is None:
            return
        if self._origin is None:
            self._origin = at_seconds
        at = at_seconds - self._origin
        self.ended_seconds = max(self.ended_seconds, at)
        self._requests = None
        self.counts[name] += 1
        handler(at, path, facts)

    @property
    def requests(self) -> list[TracedRequest]:
        """The requests, in the order in which they began, numbered from 1."""
        if self._requests is None:
            waited = self._retry_waits()
            begun = sorted(self._started.items(), key=lambda item: item[1][0])
            self._requests = [
                self._request(number, identity, waited.get(identity, 0.0))
                for number, (identity, _) in enumerate(begun, 1)
            ]
        return self._requests

    @property
    def reads(self) -> list[TracedRequest]:
        """The requests that asked for bytes of objects."""
        return [request for request in self.requests if request.is_read]

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

    def in_flight(self) -> set[Hashable]:
        """The ids of the requests that have not ended."""
        return set(self._started.keys() - self._ended.keys()).union(self._not_kept)

    def object(self, path: str) -> TracedObject:
        """The object of a path, which may be new; ``others`` if there are too many."""
        name = self._text(path)
        item = self.objects.get(name)
        if item is None:
            if len(self.objects) >= self._objects_max:
                return self.others
            item = self.objects[name] = TracedObject(path=name)
        return item

    # --- events ------------------------------------------------------------------------------------------------

    def _request_started(self, at: float, path: str, facts: Mapping[str, Any]) -> None:
        if len(self._started) < self._requests_max:
            self._started[facts["request_id"]] = (at, path, facts)
        else:
            self.counts["requests_not_kept"] += 1
            self._not_kept[facts["request_id"]] = facts
        if facts.get("operation") == "read":
            self.object(path).counts["requests"] += 1

    def _request_finished(self, at: float, path: str, facts: Mapping[str, Any]) -> None:
        self._request_ended(at, path, facts, "finished")

    def _request_failed(self, at: float, path: str, facts: Mapping[str, Any]) -> None:
        is_cancelled = facts.get("error") == "CancelledError"  # No read needed it any more.
        self._request_ended(at, path, facts, "cancelled" if is_cancelled else "failed")

    def _request_ended(self, at: float, path: str, facts: Mapping[str, Any], outcome: Outcome) -> None:
        identity = facts["request_id"]
        if identity in self._started:
            asked = self._started[identity][2]
            self._ended[identity] = (at, facts, outcome)
        elif identity in self._not_kept:
            asked = self._not_kept.pop(identity)
        else:  # It began before the recording.
            self.counts["ends_without_begin"] += 1
            return
        received = facts.get("bytes") or 0
        if asked.get("operation") == "read" and received and _has_object_bytes(facts):
            start = _first_known(facts.get("start"), asked.get("start"), 0)
            if start < 0:  # The last bytes of an object whose size no response gave.
                self.counts["unplaced_bytes"] += received
                return
            item = self.object(path)
            item.counts["received_bytes"] += received
            if item is not self.others:
                item.fetched.add(start, start + received)
                self._bound_ranges(1)

    def _request_retried(self, at: float, path: str, facts: Mapping[str, Any]) -> None:
        if len(self.retries) < RETRIES_MAX:
            self.retries.append(
                Retry(
                    path=self._text(path),
                    operation=str(facts.get("operation", "")),
                    attempt=facts.get("attempt", 1),
                    at_seconds=at,
                    wait_seconds=facts.get("wait_seconds") or 0.0,
                    error=_error_text(facts.get("error")),
                )
            )
        self.counts["retry_wait_microseconds"] += round(1e6 * (facts.get("wait_seconds") or 0.0))

    def _read_served(self, at: float, path: str, facts: Mapping[str, Any]) -> None:
        item = self.object(path)
        start, end, tier = facts["start"], facts["end"], facts["tier"]
        if item is not self.others:
            item.used.add(start, end)
            item.by_tier.setdefault(tier, ByteSet()).add(start, end)
            self._bound_ranges(2)
        item.tier_bytes[tier] += end - start
        item.counts["reads"] += 1
        waited = facts.get("waited_seconds") or 0.0
        if waited >= WAIT_SECONDS_MIN:
            self.counts["waits"] += 1
            self.counts["wait_microseconds"] += round(1e6 * waited)
            if len(self.waits) < WAITS_MAX:
                self.waits.append(
                    Wait(
                        path=self._text(path),
                        start=start,
                        end=end,
                        tier=tier,
                        begun_seconds=at - waited,
                        ended_seconds=at,
                    )
                )

    def _block_evicted(self, at: float, path: str, facts: Mapping[str, Any]) -> None:
        if facts.get("unused"):
            self.object(path).counts["evicted_unused_bytes"] += facts["end"] - facts["start"]

    def _window_changed(self, at: float, path: str, facts: Mapping[str, Any]) -> None:
        blocks = facts.get("blocks") or 0
        counts = self.object(path).counts
        counts["window_blocks_max"] = max(counts["window_blocks_max"], blocks)

    def _budget_waited(self, at: float, path: str, facts: Mapping[str, Any]) -> None:
        waited = facts.get("seconds") or 0.0
        self.counts["memory_wait_microseconds"] += round(1e6 * waited)
        if len(self.memory_waits) < WAITS_MAX:
            self.memory_waits.append(
                Wait(path=self._text(path), start=0, end=0, tier="budget", begun_seconds=at - waited, ended_seconds=at)
            )

    def _bound_ranges(self, added: int) -> None:
        """Join ranges where there are too many; looked at after a quarter of the maximum was added."""
        self._ranges_unseen += added
        if self._ranges_unseen <= self._ranges_max // 4:
            return
        self._ranges_unseen = 0
        sets = [one for item in self.objects.values() for one in (item.fetched, item.used, *item.by_tier.values())]
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
        self.counts["ranges_joined"] += sum([one.coarsen(ranges_max) for one in sets])

    # --- requests ----------------------------------------------------------------------------------------------

    def _request(self, number: int, identity: Hashable, retry_wait_seconds: float) -> TracedRequest:
        begun, path, facts = self._started[identity]
        ended_at, last_facts, outcome = _NOT_ENDED
        if identity in self._ended:
            ended_at, last_facts, outcome = self._ended[identity]
        first_byte_after = last_facts.get("first_byte_seconds")
        received = (last_facts.get("bytes") or 0) if _has_object_bytes(last_facts) else 0
        start = _first_known(last_facts.get("start"), facts.get("start"))
        end = _first_known(last_facts.get("end"), facts.get("end"))
        if end is None and start is not None and start >= 0 and outcome == "finished":
            end = start + received
        return TracedRequest(
            number=number,
            path=self._text(path),
            operation=str(facts.get("operation", "")),
            lane=str(facts.get("lane", "demand")),
            attempt=facts.get("attempt") or 1,
            reader=str(_first_known(facts.get("reader_id"), "")),
            start=start,
            end=end,
            begun_seconds=begun,
            first_byte_seconds=None if first_byte_after is None else begun + first_byte_after,
            ended_seconds=ended_at,
            outcome=outcome,
            received_bytes=received,
            status=last_facts.get("status"),
            connection=str(_first_known(last_facts.get("connection"), "")),
            error=_error_text(last_facts.get("error"), last_facts.get("message")),
            retry_wait_seconds=retry_wait_seconds,
        )

    def _retry_waits(self) -> dict[Hashable, float]:
        """How long each request was held back because the attempt before it had failed."""
        waits: dict[Hashable, float] = {}
        pending: dict[tuple[str, str], list[Retry]] = {}
        for retry in self.retries:
            pending.setdefault((retry.path, retry.operation), []).append(retry)
        if not pending:
            return waits
        for identity, (begun, path, facts) in self._started.items():
            before = pending.get((self._text(path), str(facts.get("operation", ""))))
            if not before or (facts.get("attempt") or 1) == 1:
                continue
            # Parts of one read are tried again side by side: the pause that was to end now is that of this attempt.
            retry = min(before, key=lambda one: abs(one.at_seconds + one.wait_seconds - begun))
            if retry.at_seconds <= begun:
                before.remove(retry)
                waits[identity] = begun - retry.at_seconds
        return waits

    def _text(self, path: str) -> str:
        """A path as it may be shown; one text object for all events with it."""
        text = self._texts.get(path)
        if text is None:
            if len(self._texts) >= 2 * self._objects_max:  # They are made again when they are asked for.
                self._texts.clear()
            text = self._texts[path] = printable(redact(path))
        return text


def _first_known(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _has_object_bytes(facts: Mapping[str, Any]) -> bool:
    """Whether the bytes of a response are those of the object, and not the text of an error."""
    return (facts.get("status") or 200) < 300


def _error_text(error: object, message: object = "") -> str:
    return excerpt(": ".join(str(part) for part in (error, message) if part))
