"""Pictures of bytes: which of an object are at hand, and which requests a plan sends."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aioprefetch.display import bytes_text, count_text, seconds_text
from aioprefetch.display.tables import (
    DISK,
    FETCHING,
    LINE,
    MEMORY,
    UNREAD,
    WASTED,
    box,
    folded,
    frame,
    label,
    legend,
    note,
    picture,
    table,
)
from aioprefetch.ranges import Range, joined, total_length

WIDTH = 720
# A range is drawn at least this wide; so no picture has more pieces than this in a row.
COLUMNS = 360
# Requests that are drawn by themselves, and that are listed.
ROWS_MAX = 40
LISTED_MAX = 100


class ObjectBytes(NamedTuple):
    """The bytes of an object at one moment. Ranges are ``(start, end)``, and may overlap.

    ``memory`` are in memory; ``unread`` of them were fetched ahead and not read yet; ``requested`` are in flight;
    ``disk`` are in files of the cache. ``size`` and ``cursor`` are ``None`` where they are not known.
    """

    size: int | None
    memory: Sequence[Range] = ()
    unread: Sequence[Range] = ()
    requested: Sequence[Range] = ()
    disk: Sequence[Range] = ()
    cursor: int | None = None


def object_html(
    title: str, shown: ObjectBytes, wasted_bytes: int = 0, facts: str = "", statistics_html: str = ""
) -> str:
    """The bar of an object: in memory, fetched ahead and not read yet, in flight, on disk; and the cursor.

    ``wasted_bytes`` were fetched ahead and dropped unread: they have no place any more, and are a number.
    """
    details = folded("statistics", statistics_html) if statistics_html else ""
    size = shown.size
    if not size:
        state = "the object is empty" if size == 0 else "nothing was requested yet, so the size is not known"
        return frame(title, note(state), note(facts) if facts else "", details)
    lanes = [(colour, name, _within(ranges, size)) for colour, name, ranges in _lanes(shown)]
    bars = [_outline(0, 14, WIDTH, 20)]
    for colour, name, ranges in lanes:
        top, height = (36.0, 6.0) if colour == DISK else (14.0, 20.0)
        for start, end in _columns(ranges, size):
            bars.append(box(start * WIDTH / COLUMNS, top, (end - start) * WIDTH / COLUMNS, height, colour, name))
    if shown.cursor is not None:
        x = min(max(shown.cursor, 0), size) / size * WIDTH
        bars.append(box(min(x, WIDTH - 2), 8, 2, 32, "currentColor", f"cursor at {count_text(shown.cursor)}"))
    bars += [label(0, 9, "0"), label(WIDTH, 9, bytes_text(size), anchor="end")]
    counts = [(colour, f"{name} {bytes_text(total_length(ranges))}") for colour, name, ranges in lanes if ranges]
    if wasted_bytes:
        counts.append((WASTED, f"fetched ahead and never read {bytes_text(wasted_bytes)}"))
    described = "; ".join(meaning for _, meaning in counts) or "nothing in memory"
    drawn = picture(WIDTH, 44, f"{bytes_text(size)}: {described}", *bars)
    return frame(title, drawn, legend(counts), note(facts) if facts else "", details)


def _lanes(shown: ObjectBytes) -> Iterable[tuple[str, str, Sequence[Range]]]:
    return (
        (DISK, "on disk", shown.disk),
        (MEMORY, "in memory", shown.memory),
        (UNREAD, "of it fetched ahead and not read yet", shown.unread),
        (FETCHING, "in flight", shown.requested),
    )


def _within(ranges: Iterable[Range], size: int) -> list[Range]:
    """Ranges in order, joined, and cut to an object."""
    cut = ((max(start, 0), min(end, size)) for start, end in ranges)
    return joined(cut)


def _columns(ranges: Iterable[Range], size: int) -> list[Range]:
    """The columns of a bar that hold any byte of the ranges."""
    return joined((start * COLUMNS // size, -(-end * COLUMNS // size)) for start, end in ranges)


def _outline(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x + 0.5:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height:.1f}"'
        f' style="fill:none;stroke:{LINE}"/>'
    )


# --- plans ------------------------------------------------------------------------------------------------------------


class PlannedFile(NamedTuple):
    """The requests of a plan in one file, in the order in which they are sent."""

    path: str
    size: int
    requests: Sequence[Range]


class Cost(NamedTuple):
    """The time that requests are expected to take, by default from S3 in its own region.

    Seconds to the first byte; bytes in a second by one connection, and by all of them; requests at once.
    """

    first_byte_seconds: float = 0.025
    connection_bytes_per_second: float = 90e6
    bytes_per_second: float = 1.25e9
    slots: int = 64

    def rate(self, requests: int) -> float:
        """Bytes in a second for each of that many requests."""
        at_once = max(1, min(self.slots, requests))
        return min(self.connection_bytes_per_second, self.bytes_per_second / at_once)


FROM_S3 = Cost()


def expected_times(sizes: Sequence[int], cost: Cost) -> list[tuple[float, float]]:
    """When each request begins and ends, in seconds: in their order, as slots become free."""
    free, rate = [0.0] * max(1, min(cost.slots, len(sizes))), cost.rate(len(sizes))
    times: list[tuple[float, float]] = []
    for size in sizes:
        begin = heapq.heappop(free)
        end = begin + cost.first_byte_seconds + size / rate
        heapq.heappush(free, end)
        times.append((begin, end))
    return times


def plan_html(title: str, summary: str, files: Sequence[PlannedFile], cost: Cost = FROM_S3) -> str:
    """The requests of a plan: where in its file each lies, and when it is expected to begin and to end."""
    requests = [(file, start, end) for file in files for start, end in file.requests]
    times = expected_times([end - start for _, start, end in requests], cost)
    duration = max((end for _, end in times), default=0.0)
    expected = (
        f"expected to take {seconds_text(duration)}, if a first byte takes {seconds_text(cost.first_byte_seconds)}, a"
        f" connection brings {bytes_text(int(cost.rate(len(requests))))} a second and {cost.slots} requests run at once"
    )
    if not requests:
        return frame(title, note(summary), note("no request: what is wanted is there already"))
    return frame(
        title,
        note(summary),
        _requests_picture(requests, times, f"{count_text(len(requests))} requests; {summary}; {expected}"),
        note(expected),
        folded("requests", _requests_table(requests, times)),
    )


def trace_html(
    title: str,
    requests: Sequence[tuple[PlannedFile, int, int]],
    times: Sequence[tuple[float, float]],
    objects: Sequence[tuple[str, int, Sequence[Range], Sequence[Range]]],
    remarks: Sequence[str],
) -> str:
    """The requests of a trace, and the bytes of its objects: name, size, and the ranges that were used, and not."""
    parts = []
    for row, (path, size, used, unused) in enumerate(objects):
        y = 14.0 + 30 * row
        parts += [label(0, y, path), _outline(0, y + 4, WIDTH, 11)]
        for colour, ranges in ((MEMORY, used), (WASTED, unused)):
            for start, end in _columns(ranges, max(size, 1)):
                parts.append(box(start * WIDTH / COLUMNS, y + 4, (end - start) * WIDTH / COLUMNS, 11, colour))
    bytes_drawn = picture(WIDTH, 30 * len(objects), "bytes of each object, used and not used", *parts)
    key = legend([(FETCHING, "a request"), (MEMORY, "fetched and used"), (WASTED, "fetched, not used")])
    charts = (_requests_picture(requests, times, title), bytes_drawn, key) if requests else ()
    return frame(title, *charts, *map(note, remarks))


def _requests_picture(
    requests: Sequence[tuple[PlannedFile, int, int]], times: Sequence[tuple[float, float]], described: str
) -> str:
    """A row for each of the first requests: where its bytes lie in the file, and when it begins and ends."""
    duration = max((end for _, end in times), default=0.0)
    drawn = list(zip(requests, times, strict=True))[:ROWS_MAX]
    parts = [label(70, 10, "place in the file"), label(410, 10, f"time, 0 to {seconds_text(duration)}")]
    for row, ((file, start, end), (begin, finish)) in enumerate(drawn):
        y = 16.0 + 14 * row
        about = f"request {row + 1}: [{start}, {end}) of {file.path}, {seconds_text(begin)} to {seconds_text(finish)}"
        parts += [label(62, y + 9, bytes_text(end - start), anchor="end"), _outline(70, y, 320, 11)]
        parts += [_span(70, 320, y, start, end, max(file.size, end, 1), MEMORY, about)]
        parts += [_span(410, 300, y, begin, finish, max(duration, 1e-9), FETCHING, about)]
    more = len(requests) - len(drawn)
    rest = note(f"… and {count_text(more)} more requests") if more else ""
    return picture(WIDTH, 20 + 14 * len(drawn), described, *parts) + rest


def _span(x: float, width: float, y: float, start: float, end: float, whole: float, colour: str, title: str) -> str:
    left = min(start / whole * width, width - 1)
    return box(x + left, y, max(1.0, min((end - start) / whole * width, width - left)), 11, colour, title)


def _requests_table(requests: Sequence[tuple[PlannedFile, int, int]], times: Sequence[tuple[float, float]]) -> str:
    rows = [
        (
            str(number),
            file.path,
            count_text(start),
            bytes_text(end - start),
            seconds_text(begin),
            seconds_text(finish - begin),
        )
        for number, ((file, start, end), (begin, finish)) in enumerate(
            zip(requests[:LISTED_MAX], times[:LISTED_MAX], strict=True), 1
        )
    ]
    headings = ("request", "file", "first byte", "size", "begins at", "takes")
    caption = f"the first {LISTED_MAX} of {count_text(len(requests))}" if len(requests) > LISTED_MAX else ""
    return table(headings, rows, numbers=(2, 3, 4, 5), caption=caption)
