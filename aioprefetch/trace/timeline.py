"""Requests over time: how many are in flight, which may share a row, and trace events for Chrome and Perfetto."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from aioprefetch.display import bytes_text
from aioprefetch.trace.recording import Recording
from aioprefetch.trace.traced import TracedRequest

T = TypeVar("T")
Interval = tuple[float, float]


def in_flight(intervals: Iterable[Interval]) -> list[tuple[float, int]]:
    """The number of open intervals from each moment on, where it changes. Empty intervals count for nothing."""
    changes: dict[float, int] = {}
    for begun, ended in intervals:
        if begun < ended:
            changes[begun] = changes.get(begun, 0) + 1
            changes[ended] = changes.get(ended, 0) - 1
    steps, number = [], 0
    for at in sorted(changes):
        if changes[at]:
            number += changes[at]
            steps.append((at, number))
    return steps


class MemoryUse(NamedTuple):
    """The memory in use from a moment on, and its limit."""

    at_seconds: float
    used_bytes: int
    limit_bytes: int


def memory_in_use(requests: Iterable[TracedRequest], budget_ends: Mapping[int, float]) -> list[MemoryUse]:
    """The memory in use at each start of a request and each end of a budget, where requests report it.

    Each operator has a budget of its own on each loop: the latest uses of all that have not ended are added. Requests
    are in the order in which they began.
    """
    latest: dict[int, TracedRequest] = {}
    steps: list[MemoryUse] = []
    used = limit = 0
    begins = ((request.begun_at_seconds, request.budget_id, request) for request in requests)
    ends = ((at, budget_id, None) for budget_id, at in sorted(budget_ends.items(), key=itemgetter(1)))
    for at, budget_id, request in heapq.merge(begins, ends, key=itemgetter(0)):
        before = latest.pop(budget_id, None)
        if before is not None:
            used, limit = used - before.memory_bytes, limit - before.memory_limit_bytes
        if request is not None and request.memory_limit_bytes:
            latest[budget_id] = request
            used, limit = used + request.memory_bytes, limit + request.memory_limit_bytes
        elif before is None:
            continue
        steps.append(MemoryUse(at, used, limit))
    return steps


def gaps(intervals: Iterable[Interval], until: float) -> list[Interval]:
    """The parts of ``[0, until)`` at which no interval is open."""
    found, reached = [], 0.0
    for begun, ended in sorted(intervals):
        if begun > reached:
            found.append((reached, begun))
        reached = max(reached, ended)
    return [*found, (reached, until)] if reached < until else found


def highest_in_bins(steps: Sequence[tuple[float, int]], duration: float, bins: int) -> list[int]:
    """The highest number in each of ``bins`` equal parts of ``[0, duration)``."""
    highest = [0] * bins
    if duration <= 0:
        return highest
    for index, (at, number) in enumerate(steps):
        until = steps[index + 1][0] if index + 1 < len(steps) else duration
        first = min(bins - 1, max(0, int(at / duration * bins)))
        last = min(bins - 1, max(first, int(until / duration * bins - 1e-9)))
        for position in range(first, last + 1):
            highest[position] = max(highest[position], number)
    return highest


def busy_seconds(steps: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """How long at least one was open, and the sum of how long each was."""
    busy = total = 0.0
    for (at, number), (until, _) in pairwise(steps):
        if number:
            busy += until - at
            total += number * (until - at)
    return busy, total


def packed(intervals: Sequence[Interval]) -> list[int]:
    """A row for each interval, in their order by beginning: no two of a row overlap, and rows are as few as can be."""
    rows = [0] * len(intervals)
    free: list[int] = []
    taken: list[tuple[float, int]] = []
    for index in sorted(range(len(intervals)), key=lambda index: intervals[index][0]):
        begun, ended = intervals[index]
        while taken and taken[0][0] <= begun:
            heapq.heappush(free, heapq.heappop(taken)[1])
        row = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (max(ended, begun), row))
        rows[index] = row
    return rows


def interval_of(request: TracedRequest, until: float) -> Interval:
    """The beginning of a request, and its end, or ``until`` while it is in flight."""
    return request.begun_at_seconds, until if request.ended_at_seconds is None else request.ended_at_seconds


def by_line(recording: Recording) -> list[tuple[str, list[TracedRequest], float]]:
    """The requests for each line of the program, and how long any was in flight; the longest first.

    Empty where no line is known. Requests for a line that is not known have an empty one.
    """
    found = grouped(recording.requests, lambda request: request.caller)
    until = recording.ended_at_seconds
    lines = [
        (line, requests, busy_seconds(in_flight(interval_of(request, until) for request in requests))[0])
        for line, requests in found.items()
    ]
    return sorted(lines, key=lambda item: -item[2]) if any(found) else []


def grouped(requests: Iterable[TracedRequest], key: Callable[[TracedRequest], str]) -> dict[str, list[TracedRequest]]:
    """Requests grouped by a text, in their order."""
    found: dict[str, list[TracedRequest]] = {}
    for request in requests:
        found.setdefault(key(request), []).append(request)
    return found


def microseconds(seconds: float) -> int:
    """A time in whole microseconds; 0 for what came before the recording."""
    return max(0, round(1e6 * seconds))


def chunks(items: Sequence[T], chunks_max: int) -> list[Sequence[T]]:
    """The items in order, in at most ``chunks_max`` chunks of equal length; the last may be shorter."""
    size = max(1, -(-len(items) // chunks_max))
    return [items[start : start + size] for start in range(0, len(items), size)]


# --- the trace events of Chrome ---------------------------------------------------------------------------------------

# Processes of the trace: what runs at the same time stands in rows ("threads") of one of these. Requests of further
# processes of the program follow them.
REQUESTS, READS, MEMORY = 1, 2, 3


def chrome_json(recording: Recording) -> str:
    """The trace in the JSON object format; times are microseconds since the first event."""
    events = [*_requests(recording), *_waits(recording)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _requests(recording: Recording) -> Iterator[dict[str, Any]]:
    until = recording.ended_at_seconds
    groups = grouped(recording.requests, lambda request: request.process)
    for number, (owner, requests) in enumerate(groups.items()):
        process = MEMORY + number if number else REQUESTS
        intervals = [interval_of(request, until) for request in requests]
        rows = packed(intervals)
        yield _named("process_name", process, 0, f"requests of {owner}" if owner else "requests")
        for row in sorted(set(rows)):
            yield _named("thread_name", process, row, f"request {row + 1} at once")
        for request, (begun, ended), row in zip(requests, intervals, rows, strict=True):
            yield {
                **_complete(process, row, begun, ended),
                "name": _name(request),
                "cat": f"request,{request.lane}",
                "args": _arguments(request),
            }
            if request.first_byte_at_seconds is not None:
                yield {
                    **_complete(process, row, begun, request.first_byte_at_seconds),
                    "name": "until the first byte",
                    "cat": "first_byte",
                }
    for retry in recording.retries:
        yield {
            "ph": "i",
            "s": "p",
            "pid": REQUESTS,
            "tid": 0,
            "ts": microseconds(retry.at_seconds),
            "name": "retry",
            "cat": "retry",
            "args": {"path": retry.path, "wait_seconds": retry.wait_seconds, "error": retry.error},
        }
    for at, number in in_flight(interval_of(request, until) for request in recording.requests):
        count = {"ph": "C", "pid": REQUESTS, "ts": microseconds(at), "name": "requests in flight"}
        yield {**count, "args": {"requests": number}}
    for at, used_bytes, _ in memory_in_use(recording.requests, recording.budget_ends):
        count = {"ph": "C", "pid": REQUESTS, "ts": microseconds(at), "name": "memory in use"}
        yield {**count, "args": {"bytes": used_bytes}}


def _waits(recording: Recording) -> Iterator[dict[str, Any]]:
    for process, title, waits in (
        (READS, "reads that waited", recording.waits),
        (MEMORY, "requests that waited for memory", recording.memory_waits),
    ):
        if not waits:
            continue
        yield _named("process_name", process, 0, title)
        rows = packed([(wait.begun_at_seconds, wait.ended_at_seconds) for wait in waits])
        for wait, row in zip(waits, rows, strict=True):
            name = f"{wait.path} [{wait.start}, {wait.end})" if process == READS else "memory"
            yield {
                **_complete(process, row, wait.begun_at_seconds, wait.ended_at_seconds),
                "name": name,
                "cat": "wait",
                "args": {"tier": wait.tier},
            }


def _name(request: TracedRequest) -> str:
    text = f"{request.operation} {request.path}"
    if request.start is None:
        return text
    return f"{text} {bytes_text(request.received_bytes)} at {request.start:,}"


def _arguments(request: TracedRequest) -> dict[str, Any]:
    arguments = {
        "number": request.number,
        "start": request.start,
        "end": request.end,
        "lane": request.lane,
        "attempt": request.attempt,
        "bytes": request.received_bytes,
        "outcome": request.outcome,
        "status": request.status,
        "connection": request.connection,
        "error": request.error,
        "process": request.process,
        "caller": request.caller,
    }
    return {name: value for name, value in arguments.items() if value not in (None, "")}


def _named(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": row, "name": kind, "args": {"name": name}}


def _complete(process: int, row: int, begun: float, ended: float) -> dict[str, Any]:
    begun = max(0.0, begun)
    return {
        "ph": "X",
        "pid": process,
        "tid": row,
        "ts": microseconds(begun),
        "dur": max(0, microseconds(ended) - microseconds(begun)),
    }
