"""The page of a trace: one HTML file that needs no network. What moves in it is drawn by ``page.js``.

The data for that script has one row for each request, or for each few of them where there are many; its times are whole
microseconds since the recording began. ``object_map`` draws the bytes of an object.
"""

from __future__ import annotations

import datetime as dt
import heapq
import html
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from aioprefetch.display import bytes_text, counted, seconds_text, share_text
from aioprefetch.trace.advice import advise, unused_bytes
from aioprefetch.trace.object_map import HATCH, fetched_again, object_section
from aioprefetch.trace.recording import Recording
from aioprefetch.trace.timeline import (
    Interval,
    busy_seconds,
    by_line,
    chunks,
    gaps,
    grouped,
    highest_in_bins,
    in_flight,
    interval_of,
    memory_in_use,
    microseconds,
    packed,
)
from aioprefetch.trace.traced import TracedRequest, Wait

# A browser draws as many bars at once without a pause, and the page stays below three MiB.
ROWS_MAX = 20_000
WAITS_MAX = 800
WAIT_LEVELS_MAX = 8
WAIT_COLUMNS = 250
FLIGHT_BINS = 1200
# The longest times without requests, and the lanes of processes with the most requests.
GAPS_MAX = 500
PROCESS_LANES_MAX = 32
NOTHING_RECORDED = (
    "Nothing was recorded",
    "pandas, polars and pyarrow read s3:// themselves, and aioprefetch+s3:// through this library, as do operators, "
    "ap.sync.open and the file systems of the bridges",
)
WAIT_TIERS = ("store", "cache", "disk", "memory", "budget")
LANES = ("demand", "prefetch", "control")


class _Texts(dict[str, int]):
    """Texts that occur often, each once, referred to by position."""

    def __missing__(self, text: str) -> int:
        position = self[text] = len(self)
        return position


def payload(recording: Recording) -> str:
    """The data as JSON that may stand in a ``script`` element."""
    requests = recording.requests
    until = recording.ended_at_seconds
    steps = in_flight(interval_of(request, until) for request in requests)
    memory = memory_in_use(requests, recording.budget_ends)
    texts = {name: _Texts() for name in ("paths", "operations", "errors", "processes", "callers")}
    lanes = [
        highest_in_bins(in_flight(interval_of(request, until) for request in of_one), until, FLIGHT_BINS)
        for process, of_one in _by_process(recording).items()
        if texts["processes"][process] < PROCESS_LANES_MAX
    ]
    rows = [_row(recording, part, texts) for part in chunks(requests, ROWS_MAX)]
    data: dict[str, Any] = {
        "end": microseconds(until),
        "rows": rows,
        "waits": _waits(recording.waits, until, texts["paths"]),
        "memory": _waits(recording.memory_waits, until, texts["paths"]),
        "flight": highest_in_bins(steps, until, FLIGHT_BINS),
        "flightMax": max((number for _, number in steps), default=0),
        "used": highest_in_bins([(use.at_seconds, use.used_bytes) for use in memory], until, FLIGHT_BINS),
        "usedMax": max((use.used_bytes for use in memory), default=0),
        **{name: list(of_one) for name, of_one in texts.items()},
        "ofProcesses": lanes if len(lanes) > 1 else [],
        "gaps": [(microseconds(begun), microseconds(ended)) for begun, ended in _longest_gaps(recording)],
        "lanes": LANES,
        "tiers": WAIT_TIERS,
        "single": len(texts["paths"]) == 1,
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c")  # No text can end the element.


def _by_process(recording: Recording) -> dict[str, list[TracedRequest]]:
    """The requests of each process, that with the most of them first."""
    found = grouped(recording.requests, lambda request: request.process)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _longest_gaps(recording: Recording) -> list[Interval]:
    """The longest times at which no request was in flight and no read waited."""
    until = recording.ended_at_seconds
    requests = (interval_of(request, until) for request in recording.requests)
    waits = ((wait.begun_at_seconds, wait.ended_at_seconds) for wait in recording.waits)
    return heapq.nlargest(GAPS_MAX, gaps([*requests, *waits], until), key=lambda gap: gap[1] - gap[0])


def _row(recording: Recording, part: Sequence[TracedRequest], texts: Mapping[str, _Texts]) -> list[Any]:
    """The values of a request, in the order of the constants at the top of the script."""
    first = part[0]
    failed = next((request for request in part if request.outcome == "failed"), None)
    outcomes = {request.outcome for request in part}
    outcome = 1 if failed is not None else 2 if outcomes == {"cancelled"} else 3 if "open" in outcomes else 0
    ends = [request.ended_at_seconds for request in part]
    starts = [request.start for request in part if request.start is not None]
    end = first.end if len(part) == 1 else max((request.end or 0 for request in part), default=None)
    return [
        len(part),
        texts["paths"][first.path],
        texts["operations"][first.operation],
        LANES.index(first.lane) if first.lane in LANES else LANES.index("control"),
        max(request.attempt for request in part),
        min(starts, default=None),
        end,
        microseconds(first.begun_at_seconds),
        None if first.first_byte_at_seconds is None else microseconds(first.first_byte_at_seconds),
        None if None in ends else microseconds(max(end for end in ends if end is not None)),
        outcome,
        sum(request.received_bytes for request in part),
        sum(unused_bytes(recording, request) for request in part) if recording.knows_use else None,
        first.status if failed is None else failed.status,
        first.connection if len(part) == 1 else "",
        None if failed is None or not failed.error else texts["errors"][failed.error],
        microseconds(first.retry_wait_seconds),
        first.number,
        texts["processes"][first.process],
        texts["callers"][first.caller],
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
            paths[wait.path],
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
            paths[inside[0].path],
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
    return WAIT_TIERS.index(wait.tier) if wait.tier in WAIT_TIERS else 0


# --- the page ---------------------------------------------------------------------------------------------------------

OBJECTS_MAX = 8
OBJECT_LINES_MAX = 200
TABLE_LINES = 10
LINES_MAX = 50
# Less is not worth a line.
UNUSED_BYTES_MIN = 1024
ROWS_WITHOUT_OVERVIEW = 24
OBJECT_KEY = (
    ("fetched", "fetched"),
    ("used", "fetched and used"),
    ("wasted", "fetched, not used"),
    ("again", "fetched again"),
    ("store", "read from store"),
    ("disk", "read from disk"),
    ("memory", "read from memory"),
    ("cache", "read from a cache layer"),
)


def page(recording: Recording, *, title: str, written_at: dt.datetime) -> str:
    """The page as text."""
    room = files("aioprefetch.trace")
    template, style, script = (room.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    figures = (
        counted(len(recording.requests), "request"),
        bytes_text(recording.fetched_bytes),
        seconds_text(recording.ended_at_seconds),
    )
    headline = ", ".join(figure.replace(" ", "\N{NO-BREAK SPACE}") for figure in figures)
    steps = in_flight(interval_of(request, recording.ended_at_seconds) for request in recording.requests)
    return Template(template).substitute(
        title=html.escape(title or headline),
        brand=html.escape(f"aioprefetch · {title or 'trace'}"),
        headline=headline,
        origin=_origin(recording, written_at),
        tiles=_tiles(recording, steps),
        advice=_advice(recording),
        waits=_lane("Reads that waited", "waits", recording.waits),
        memory=_lane("Requests that waited for memory", "memory", recording.memory_waits),
        overview="" if len(recording.requests) > ROWS_WITHOUT_OVERVIEW else " hidden",
        highest=max((number for _, number in steps), default=0),
        processor=_processor(recording),
        processes=_process_lanes(recording),
        choices=_process_choices(recording),
        by_line='<option value="line">by line of the program</option>' if by_line(recording) else "",
        budget=_budget(recording),
        objects=_objects(recording),
        tables=_tables(recording),
        omitted=_omitted(recording),
        data=payload(recording),
        style=style,
        script=script,
    )


def _origin(recording: Recording, written_at: dt.datetime) -> str:
    paths = {request.path for request in recording.requests}
    what = (
        f"{counted(len(paths), 'object')}, " if len(paths) != 1 else f"<code>{html.escape(next(iter(paths)))}</code>, "
    )
    processes = len(_by_process(recording))
    who = f"{counted(processes, 'process', 'processes')}, " if processes > 1 else ""
    return f"{what}{who}written {written_at:%Y-%m-%d %H:%M} UTC"


def _omitted(recording: Recording) -> str:
    omitted, others = recording.counts["requests_not_kept"], recording.others
    killed = sum(end == "was killed" for end in recording.processes.values())
    notes = [
        f"{counted(omitted, 'later request')} came after the recording was full, and are not shown." if omitted else "",
        f"{bytes_text(others.received_bytes)} in {counted(others.counts['requests'], 'request')} were of further "
        f"objects, which have no map."
        if others.counts
        else "",
        "There were more ranges than are kept: those with small gaps between them are drawn as one, and how many bytes "
        "were used is not known."
        if not recording.knows_use
        else "",
        f"{counted(killed, 'process was', 'processes were')} killed, as pools do with their workers: the last "
        "tenth of a second may be missing."
        if killed
        else "",
    ]
    return "".join(f"{note} " for note in notes if note)


def _tiles(recording: Recording, steps: Sequence[tuple[float, int]]) -> str:
    requests, reads = recording.requests, recording.reads
    busy, total = busy_seconds(steps)
    first = sorted(
        request.first_byte_at_seconds - request.begun_at_seconds
        for request in reads
        if request.first_byte_at_seconds is not None
    )
    outcomes = Counter(request.outcome for request in requests)
    cancelled = f", {outcomes['cancelled']:,} cancelled" if outcomes["cancelled"] else ""
    tiles = [
        ("Requests", f"{len(requests):,}", _kinds_of_requests(len(requests), len(reads), outcomes["open"])),
        ("Received", bytes_text(recording.fetched_bytes), f"of {counted(len(recording.objects), 'object')}"),
        ("Used", *_used_tile(recording)),
        ("Fetched again", *_fetched_again_tile(recording)),
        (
            "Reads waited",
            seconds_text(recording.counts["wait_microseconds"] / 1e6),
            f"{recording.counts['waits']:,} of {counted(recording.counts['read.served'], 'read')}",
        ),
        (
            "First byte",
            seconds_text(first[len(first) // 2]) if first else "–",
            f"99 %: {seconds_text(first[(99 * len(first) - 1) // 100])}" if first else "not reported",
        ),
        (
            "In flight",
            f"{max((number for _, number in steps), default=0)}",
            f"at most; mean {total / busy if busy else 0:.1f}",
        ),
        ("Tried again", f"{recording.counts['request.retried']:,}", f"{outcomes['failed']:,} failed{cancelled}"),
    ]
    return "".join(
        f'<div><dt>{name}</dt><dd><div class="figure">{figure}</div><div class="note">{note}</div></dd></div>'
        for name, figure, note in tiles
    )


def _kinds_of_requests(requests: int, reads: int, in_flight: int) -> str:
    if in_flight:
        return f"{in_flight:,} without an end, with the bytes that came so far"
    if not requests:
        return "none was sent"
    return f"{reads:,} for bytes, {requests - reads:,} other" if requests > reads else "all for bytes"


def _used_tile(recording: Recording) -> tuple[str, str]:
    """The figure, and its note: of ranges that were joined it is not known which bytes were read."""
    if not recording.distinct_bytes:
        return "–", "nothing was received"
    if not recording.knows_use:
        return "–", "more ranges than are kept"
    distinct, wasted = recording.distinct_bytes, recording.wasted_bytes
    return share_text(distinct - wasted, distinct), f"{bytes_text(wasted)} not used" if wasted else "no byte in vain"


def _fetched_again_tile(recording: Recording) -> tuple[str, str]:
    again = recording.refetched_bytes
    if not recording.knows_use:
        return "–", "more ranges than are kept"
    return bytes_text(again), share_text(again, recording.fetched_bytes) + " of what came"


def _advice(recording: Recording) -> str:
    lines = [_advice_line(one.finding, one.remedy) for one in advise(recording)]
    unfinished = sum(request.outcome == "open" for request in recording.requests)
    if not recording.counts["request.started"] and not recording.counts["read.served"]:
        lines.append(_advice_line(*NOTHING_RECORDED, sign="–"))
    elif unfinished:
        found = f"{counted(unfinished, 'request has', 'requests have')} not ended"
        lines.append(_advice_line(found, "the page has the bytes that came so far, and a rule may yet apply", sign="–"))
    elif not lines:
        lines.append(
            '<li class="good"><span class="sign" aria-hidden="true">✓</span><span>No rule found anything to improve.'
            "</span></li>"
        )
    return "".join(lines)


def _advice_line(finding: str, remedy: str, *, sign: str = "!") -> str:
    return (
        f'<li><span class="sign" aria-hidden="true">{sign}</span><span><strong>{html.escape(_sentence(finding))}:'
        f"</strong> {html.escape(remedy)}.</span></li>"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _processor(recording: Recording) -> str:
    """The row of the timeline for the times at which the program worked, and no store did."""
    seconds = sum(ended - begun for begun, ended in _longest_gaps(recording))
    if not seconds:
        return ""
    text = f"{seconds_text(seconds)} of {seconds_text(recording.ended_at_seconds)}: no request, and no read waits"
    return (
        f'<div class="lane"><div class="name"><strong>Your CPU, not the store</strong>{text}</div>'
        f'<div class="track gaps" id="gaps" role="img" aria-label="Your CPU, not the store: {text}"></div></div>'
    )


def _process_lanes(recording: Recording) -> str:
    """A row of the timeline for the requests in flight of each process, if there are several."""
    groups = _by_process(recording)
    lanes = []
    for number, (process, requests) in enumerate(list(groups.items())[:PROCESS_LANES_MAX]):
        received = sum(request.received_bytes for request in requests)
        text = f"{counted(len(requests), 'request')}, {bytes_text(received)}; it {recording.processes.get(process)}"
        lanes.append(_curve(html.escape(process), text, f"process-{number}", kind=" process"))
    rest = len(groups) - PROCESS_LANES_MAX
    more = f'<div class="lane"><div class="name">and {counted(rest, "process", "processes")} more</div></div>'
    return "".join([*lanes, more if rest > 0 else ""]) if len(groups) > 1 else ""


def _curve(title: str, text: str, identity: str, *, kind: str = "") -> str:
    """A row of the timeline with a curve, which the script draws."""
    return (
        f'<div class="lane flight{kind}"><div class="name"><strong>{title}</strong>{text}</div>'
        f'<div class="track" id="{identity}"><svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}: {text}"><path d=""/></svg></div></div>'
    )


def _process_choices(recording: Recording) -> str:
    groups = list(_by_process(recording))
    return "".join(
        f'<option value="process-{number}">{html.escape(process)}</option>'
        for number, process in enumerate(groups if len(groups) > 1 else ())
    )


def _lane(title: str, identity: str, waits: Sequence[Wait]) -> str:
    """A row of the timeline for waits, if there were any."""
    if not waits:
        return ""
    return (
        f'<div class="lane"><div class="name"><strong>{title}</strong>{counted(len(waits), "wait")}</div>'
        f'<div class="track waits" id="{identity}" role="listbox" aria-label="{title}"></div></div>'
    )


def _budget(recording: Recording) -> str:
    """The row of the timeline for the memory that was in use when requests began, if there was any."""
    steps = memory_in_use(recording.requests, recording.budget_ends)
    peak = max(steps, key=lambda use: use.used_bytes, default=None)
    if peak is None or not peak.used_bytes:
        return ""
    text = f"at most {bytes_text(peak.used_bytes)} of {bytes_text(peak.limit_bytes)}"
    return _curve("Memory in use", text, "used")


def _objects(recording: Recording) -> str:
    items = sorted(recording.objects.values(), key=lambda item: item.received_bytes or len(item.used), reverse=True)
    shown = [item for item in items if item.end][:OBJECTS_MAX]
    if not shown:
        return ""
    requests: dict[str, list[TracedRequest]] = {item.path: [] for item in shown}
    for request in recording.reads:
        if request.path in requests and request.received_bytes:
            requests[request.path].append(request)
    knows_use = recording.knows_use
    sections = "".join(object_section(item, requests[item.path], knows_use=knows_use) for item in shown)
    rest = items[OBJECTS_MAX:]
    lines = [
        [
            item.path,
            item.counts["requests"],
            bytes_text(item.received_bytes),
            bytes_text(len(item.wasted)) if knows_use else "–",
        ]
        for item in rest[:OBJECT_LINES_MAX]
    ]
    more = ""
    if rest:
        table = _table("Other objects", ["Object", "Requests", "Received", "Not used"], lines, numbers=(1, 2, 3))
        more = f"<details><summary>{counted(len(rest), 'other object')}</summary>{table}</details>"
    there = {tier for item in shown for tier in item.tier_bytes} | ({"used", "wasted"} if knows_use else {"fetched"})
    if any(fetched_again(requests[item.path]) for item in shown):
        there.add("again")
    key = "".join(f'<li><i class="swatch is-{style}"></i>{text}</li>' for style, text in OBJECT_KEY if style in there)
    return (
        '<section class="card" aria-labelledby="objects"><div class="head"><h2 id="objects">Bytes of each object</h2>'
        f'<ul class="key">{key}</ul></div>{HATCH}{sections}{more}</section>'
    )


def _tables(recording: Recording) -> str:
    slowest = heapq.nlargest(TABLE_LINES, recording.requests, key=lambda request: request.seconds)
    reads = recording.reads if recording.knows_use else []
    unused = [(unused_bytes(recording, request), request) for request in reads]
    wasteful = heapq.nlargest(
        TABLE_LINES, [pair for pair in unused if pair[0] >= UNUSED_BYTES_MIN], key=lambda pair: pair[0]
    )
    tables = []
    if slowest:
        tables.append(_slowest(slowest))
    if callers := by_line(recording):
        in_vain = Counter[str]()
        for count, request in unused:
            in_vain[request.caller] += count
        lines = [
            [line or "not known", len(requests), bytes_text(sum(request.received_bytes for request in requests)),
             bytes_text(in_vain[line]) if recording.knows_use else "–", seconds_text(seconds)]
            for line, requests, seconds in callers[:LINES_MAX]
        ]  # fmt: skip
        titles = ["Line", "Requests", "Received", "Not used", "In flight"]
        tables.append(_table("Lines of the program", titles, lines, numbers=(1, 2, 3, 4)))
    if wasteful:
        lines = [
            [request.number, request.path, _range(request), request.lane, bytes_text(request.received_bytes),
             bytes_text(count), share_text(count, request.received_bytes)]
            for count, request in wasteful
        ]  # fmt: skip
        titles = ["No.", "Object", "Bytes", "Lane", "Received", "Not used", "Share"]
        tables.append(_table("Most unused bytes", titles, lines, numbers=(0, 4, 5, 6)))
    if recording.retries:
        longest = heapq.nlargest(TABLE_LINES, recording.retries, key=lambda retry: retry.wait_seconds)
        lines = [
            [seconds_text(retry.at_seconds), retry.path, retry.operation, retry.attempt,
             seconds_text(retry.wait_seconds), retry.error]
            for retry in longest
        ]  # fmt: skip
        titles = ["At", "Object", "Operation", "Attempt", "Pause", "Error"]
        tables.append(_table("Longest pauses before another attempt", titles, lines, numbers=(0, 3, 4)))
    if not tables:
        return ""
    return (
        '<section class="card" aria-labelledby="tables"><div class="head">'
        '<h2 id="tables">Where to look first</h2></div>'
        f'<div class="tables">{"".join(tables)}</div></section>'
    )


def _slowest(requests: Sequence[TracedRequest]) -> str:
    lines = []
    for request in requests:
        first = request.first_byte_at_seconds
        lines.append(
            [
                request.number,
                request.path,
                request.operation,
                _range(request),
                request.lane,
                "–" if first is None else seconds_text(first - request.begun_at_seconds),
                "–" if request.outcome == "open" else seconds_text(request.seconds),
                bytes_text(request.received_bytes),
                request.error or request.status or "",
            ]
        )
    titles = ["No.", "Object", "Operation", "Bytes", "Lane", "First byte", "Took", "Received", "Result"]
    return _table("Slowest requests", titles, lines, numbers=(0, 5, 6, 7))


def _range(request: TracedRequest) -> str:
    if request.start is None:
        return "–"
    if request.start < 0:
        return f"the last {-request.start:,}"
    return f"{request.start:,} – {'end' if request.end is None else f'{request.end:,}'}"


def _table(caption: str, titles: Sequence[str], lines: Iterable[Sequence[object]], *, numbers: Sequence[int]) -> str:
    styles = [
        ' class="number"' if index in numbers else ' class="path"' if title in ("Object", "Line") else ""
        for index, title in enumerate(titles)
    ]
    head = "".join(f'<th scope="col"{style}>{title}</th>' for title, style in zip(titles, styles, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{style}>{html.escape(str(cell))}</td>" for cell, style in zip(line, styles, strict=True))
        + "</tr>"
        for line in lines
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
