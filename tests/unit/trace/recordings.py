"""Recordings of what a test writes down: requests, reads and waits at given times."""

import itertools
import random
from types import SimpleNamespace
from typing import Any, TypedDict, Unpack

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.runtime.events import Event, EventBus, ServedRead
from aioprefetch.trace.recording import Recording
from aioprefetch.values import ReadRequest

BEGIN = 1000.0  # The time of the clock at 0.
KiB, MiB = 1 << 10, 1 << 20


class Ending(TypedDict, total=False):
    """How a request ends."""

    bytes: int
    status: int | None
    error: str
    message: str


def runtime_of(bus: EventBus) -> Any:
    """What a request asks its runtime for, without a loop: events, and the memory in use."""
    return SimpleNamespace(events=bus, budget=SimpleNamespace(budget_id=0, used_bytes=0, limit_bytes=0))


class Script:
    """Requests and events in any order; ``recording`` takes them by time."""

    def __init__(self) -> None:
        self.events: list[tuple[float, int, Event | ServedRead]] = []
        self.requests: list[ReportedRequest] = []
        self._bus = EventBus()
        self._order = itertools.count()

    def add(self, at: float, name: str, path: str, **facts: Any) -> None:
        """One event."""
        self.events.append((at, next(self._order), Event(name, BEGIN + at, path, facts)))

    def request(
        self,
        path: str,
        start: int | None,
        end: int | None,
        *,
        at: float = 0.0,
        first: float | None = 0.01,
        seconds: float | None = 0.02,
        lane: str = "demand",
        attempt: int = 1,
        operation: str = "read",
        reader_id: int | None = 1,
        **ending: Unpack[Ending],
    ) -> ReportedRequest:
        """One request: ``first`` and ``seconds`` after its begin its first byte and its end. ``error`` lets it fail."""
        request = ReportedRequest(runtime_of(self._bus), ReadRequest(path=path), operation=operation)
        request.begun_at_seconds = BEGIN + at
        request.start, request.end, request.lane = start, end, lane
        request.attempt, request.reader_id = attempt, reader_id
        self.requests.append(request)
        if first is not None:
            request.first_byte_at_seconds, request.connection = BEGIN + at + first, 3
        if seconds is not None:
            end_request(request, at + seconds, **ending)
        return request

    def read(
        self, path: str, start: int, end: int, *, at: float = 0.02, tier: str = "store", waited: float = 0.0
    ) -> None:
        """One read that a caller got."""
        self.events.append((at, next(self._order), (path, start, end, tier, waited, BEGIN + at, "")))

    def retry(self, path: str, *, at: float, attempt: int = 1, wait: float = 0.1, error: str = "Throttled") -> None:
        """A pause before another attempt."""
        self.add(at, "request.retried", path, operation="read", attempt=attempt, wait_seconds=wait, error=error)

    def recording(self, **options: Any) -> Recording:
        """What a recorder of these has."""
        recording = Recording(**options)
        for request in sorted(self.requests, key=lambda request: request.begun_at_seconds):
            recording.pending.requests.append(request)
        for _, _, event in sorted(self.events, key=lambda event: event[:2]):
            if isinstance(event, Event):
                recording.pending.events.append(event)
            else:
                recording.pending.reads.append(event)
        recording.settle()
        return recording


def end_request(request: ReportedRequest, at: float, **ending: Unpack[Ending]) -> None:
    """The end of a request: by default with all bytes that it asked for, or with none where it failed."""
    size, error = (request.end or 0) - (request.start or 0), ending.get("error", "")
    request.received_bytes = request.counted_bytes = ending.get("bytes", 0 if error else size)
    request.status = ending.get("status", None if error else 206)
    request.ended_at_seconds, request.error, request.message = BEGIN + at, error, ending.get("message", "")


def busy_recording(requests: int, *, objects: int = 3, at_once: int = 8, failing: float = 0.03) -> Recording:
    """A scan of several objects: random ranges, some read in part, some failing and tried again."""
    draw, script, free = random.Random(7), Script(), [0.0] * at_once
    for number in range(requests):
        slot = min(range(at_once), key=free.__getitem__)
        at, path = free[slot], f"events/part-{draw.randrange(objects):05}.parquet"
        start = draw.randrange(400) * 256 * KiB
        end = start + draw.choice((64 * KiB, 256 * KiB, MiB))
        first, seconds = 0.01, 0.012 + (end - start) / 80e6
        lane = "demand" if number % 3 == 0 else "prefetch"
        attempt = 1
        if draw.random() < failing:
            script.request(path, start, end, at=at, first=None, seconds=first, lane=lane, error="Throttled")
            script.retry(path, at=at + first, wait=0.05)
            at, attempt = at + first + 0.05, 2
        script.request(path, start, end, at=at, first=first, seconds=seconds, lane=lane, attempt=attempt)
        free[slot] = at + seconds
        if number % 4:
            waited = seconds if lane == "demand" else 0.0
            tier = "store" if lane == "demand" else "memory"
            script.read(path, start, start + draw.randrange(1, end - start), at=free[slot], tier=tier, waited=waited)
    script.add(0.1, "budget.waited", "", seconds=0.05, lane="prefetch")
    return script.recording()
