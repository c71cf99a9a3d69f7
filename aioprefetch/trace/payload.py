"""The data that the script of the page draws: one row for each request, or for each few of them where there are many.

Times are whole microseconds since the recording began.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aioprefetch.trace.advice import unused_bytes
from aioprefetch.trace.recording import Recording, TracedRequest, Wait
from aioprefetch.trace.timeline import (
    chunks,
    highest_in_bins,
    in_flight,
    interval_of,
    memory_in_use,
    microseconds,
    packed,
)

# A browser draws as many bars at once without a pause, and the page stays below three MiB.
ROWS_MAX = 20_000
WAITS_MAX = 800
WAIT_LEVELS_MAX = 8
WAIT_COLUMNS = 250
FLIGHT_BINS = 1200
TIERS = ("store", "cache", "disk", "memory", "budget")
LANES = ("demand", "prefetch", "control")


class _Texts:
    """Texts that occur often, each once, referred to by position."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self.positions.setdefault(text, len(self.positions))


def payload(recording: Recording) -> str:
    """The data as JSON that may stand in a ``script`` element."""
    requests = recording.requests
    until = recording.ended_at_seconds
    steps = in_flight(interval_of(request, until) for request in requests)
    memory = memory_in_use(requests, recording.budget_ends)
    paths, operations, errors = _Texts(), _Texts(), _Texts()
    rows = [_row(recording, part, paths, operations, errors) for part in chunks(requests, ROWS_MAX)]
    data: dict[str, Any] = {
        "end": microseconds(until),
        "rows": rows,
        "waits": _waits(recording.waits, until, paths),
        "memory": _waits(recording.memory_waits, until, paths),
        "flight": highest_in_bins(steps, until, FLIGHT_BINS),
        "flightMax": max((number for _, number in steps), default=0),
        "used": highest_in_bins([(use.at_seconds, use.used_bytes) for use in memory], until, FLIGHT_BINS),
        "usedMax": max((use.used_bytes for use in memory), default=0),
        "paths": list(paths.positions),
        "operations": list(operations.positions),
        "errors": list(errors.positions),
        "lanes": LANES,
        "tiers": TIERS,
        "single": len(paths.positions) == 1,
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c")  # No text of ours ends the element.


def _row(
    recording: Recording, part: Sequence[TracedRequest], paths: _Texts, operations: _Texts, errors: _Texts
) -> list[Any]:
    """The order of the values is that of the constants at the top of the script."""
    first = part[0]
    failed = next((request for request in part if request.outcome == "failed"), None)
    is_cancelled = all(request.outcome == "cancelled" for request in part)
    ends = [request.ended_at_seconds for request in part]
    starts = [request.start for request in part if request.start is not None]
    end = first.end if len(part) == 1 else max((request.end or 0 for request in part), default=None)
    return [
        len(part),
        paths.of(first.path),
        operations.of(first.operation),
        LANES.index(first.lane) if first.lane in LANES else LANES.index("control"),
        max(request.attempt for request in part),
        min(starts, default=None),
        end,
        microseconds(first.begun_at_seconds),
        None if first.first_byte_at_seconds is None else microseconds(first.first_byte_at_seconds),
        None if None in ends else microseconds(max(end for end in ends if end is not None)),
        1 if failed is not None else 2 if is_cancelled else 0,
        sum(request.received_bytes for request in part),
        sum(unused_bytes(recording, request) for request in part) if recording.knows_use else None,
        first.status if failed is None else failed.status,
        first.connection if len(part) == 1 else "",
        None if failed is None or not failed.error else errors.of(failed.error),
        microseconds(first.retry_wait_seconds),
        first.number,
    ]


def _waits(waits: Sequence[Wait], until: float, paths: _Texts) -> list[list[Any]]:
    """Waits as bars on a few levels. Where there are too many, one column for each part of the time that has any."""
    levels = packed([(wait.begun_at_seconds, wait.ended_at_seconds) for wait in waits])
    if len(waits) > WAITS_MAX or max(levels, default=0) >= WAIT_LEVELS_MAX:
        return _wait_columns(waits, until, paths)
    return [
        [
            microseconds(wait.begun_at_seconds),
            microseconds(wait.ended_at_seconds),
            1,
            _tier(wait),
            paths.of(wait.path),
            wait.start,
            wait.end,
            microseconds(wait.seconds),
            level,
            0,
        ]
        for wait, level in zip(waits, levels, strict=True)
    ]


def _wait_columns(waits: Sequence[Wait], until: float, paths: _Texts) -> list[list[Any]]:
    """Columns as high as the number of waits at once, with the number of waits and their time in each."""
    steps = in_flight((wait.begun_at_seconds, wait.ended_at_seconds) for wait in waits)
    heights = highest_in_bins(steps, until, WAIT_COLUMNS)
    highest, width = max(heights, default=0), until / WAIT_COLUMNS
    members: list[list[Wait]] = [[] for _ in heights]
    for wait in waits:
        first = min(WAIT_COLUMNS - 1, max(0, int(wait.begun_at_seconds / width)))
        last = min(WAIT_COLUMNS - 1, max(first, int(wait.ended_at_seconds / width)))
        for column in members[first : last + 1]:
            column.append(wait)
    return [
        [
            microseconds(number * width),
            microseconds((number + 1) * width),
            len(inside),
            min(map(_tier, inside)),
            paths.of(inside[0].path),
            0,
            0,
            sum(
                microseconds(
                    min(wait.ended_at_seconds, (number + 1) * width) - max(wait.begun_at_seconds, number * width)
                )
                for wait in inside
            ),
            0,
            height,
            highest,
        ]
        for number, (height, inside) in enumerate(zip(heights, members, strict=True))
        if inside and height
    ]


def _tier(wait: Wait) -> int:
    return TIERS.index(wait.tier) if wait.tier in TIERS else 0
