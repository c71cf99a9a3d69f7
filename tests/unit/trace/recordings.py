"""Recordings made of events that a test writes down: requests, reads and waits at given times."""

import itertools
import random
from typing import Any

from aioprefetch.trace.recording import Recording

KiB, MiB = 1 << 10, 1 << 20


class Script:
    """Events in any order; ``recording`` adds them by time."""

    def __init__(self) -> None:
        self.events: list[tuple[float, int, str, str, dict[str, Any]]] = []
        self._ids = itertools.count(1)
        self._order = itertools.count()

    def add(self, at: float, name: str, path: str, **facts: Any) -> None:
        """One event."""
        self.events.append((at, next(self._order), name, path, facts))

    def request(
        self,
        path: str,
        start: int | None,
        end: int | None,
        *,
        at: float = 0.0,
        first: float | None = 0.01,
        seconds: float = 0.02,
        **changes: Any,
    ) -> None:
        """One request: ``first`` and ``seconds`` after its begin its first byte and its end. ``error`` lets it fail."""
        facts: dict[str, Any] = {"request_id": next(self._ids), "operation": "read", "start": start, "end": end}
        facts |= {"lane": "demand", "attempt": 1, "reader_id": 1, **changes}
        error, message = facts.pop("error", None), facts.pop("message", "")
        received = facts.pop("bytes", 0 if error else (end or 0) - (start or 0))
        status = facts.pop("status", None if error else 206)
        self.add(at, "request.started", path, **facts)
        connection = None if first is None else 3
        ending = {**facts, "bytes": received, "status": status, "first_byte_seconds": first, "connection": connection}
        if error:
            self.add(at + seconds, "request.failed", path, **ending, error=error, message=message)
        else:
            self.add(at + seconds, "request.finished", path, **ending)

    def read(
        self, path: str, start: int, end: int, *, at: float = 0.02, tier: str = "store", waited: float = 0.0
    ) -> None:
        """One read that a caller got."""
        self.add(
            at, "read.served", path, reader_id=1, start=start, end=end, tier=tier, waited_seconds=waited
        )  # fmt: skip

    def retry(self, path: str, *, at: float, attempt: int = 1, wait: float = 0.1, error: str = "Throttled") -> None:
        """A pause before another attempt."""
        self.add(at, "request.retried", path, operation="read", attempt=attempt, wait_seconds=wait, error=error)

    def recording(self, **maxima: int) -> Recording:
        """What a recorder of these events has."""
        recording = Recording(**maxima)
        for at, _, name, path, facts in sorted(self.events, key=lambda event: event[:2]):
            recording.add(name, 1000.0 + at, path, facts)
        return recording


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
