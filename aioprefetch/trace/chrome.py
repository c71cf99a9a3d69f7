"""A recording as Chrome's trace events, for chrome://tracing, Perfetto and Speedscope."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from aioprefetch.display.units import bytes_text
from aioprefetch.trace.recording import Recording, TracedRequest
from aioprefetch.trace.timeline import in_flight, interval_of, memory_in_use, microseconds, packed

# Processes of the trace: what runs at the same time stands in rows ("threads") of one of these.
REQUESTS, READS, MEMORY = 1, 2, 3


def chrome_json(recording: Recording) -> str:
    """The trace in the JSON object format; times are microseconds since the first event."""
    events = [*_requests(recording), *_waits(recording)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _requests(recording: Recording) -> Iterator[dict[str, Any]]:
    until = recording.ended_at_seconds
    intervals = [interval_of(request, until) for request in recording.requests]
    rows = packed(intervals)
    yield _named("process_name", REQUESTS, 0, "requests")
    for row in sorted(set(rows)):
        yield _named("thread_name", REQUESTS, row, f"request {row + 1} at once")
    for request, (begun, ended), row in zip(recording.requests, intervals, rows, strict=True):
        yield {
            **_complete(REQUESTS, row, begun, ended),
            "name": _name(request),
            "cat": f"request,{request.lane}",
            "args": _arguments(request),
        }
        if request.first_byte_at_seconds is not None:
            yield {
                **_complete(REQUESTS, row, begun, request.first_byte_at_seconds),
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
    for at, number in in_flight(intervals):
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
