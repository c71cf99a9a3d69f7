"""Chrome's trace JSON: every request once, bars that nest, counters."""

import json
from collections import defaultdict

from aioprefetch.trace.timeline import chrome_json
from tests.unit.trace.recordings import Script, busy_recording


def test_every_request_is_one_bar_and_bars_of_a_row_nest() -> None:
    recording = busy_recording(200)
    trace = json.loads(chrome_json(recording))
    assert trace["displayTimeUnit"] == "ms"
    events = trace["traceEvents"]
    bars = [event for event in events if event["ph"] == "X" and event["cat"].startswith("request")]
    assert [bar["args"]["number"] for bar in bars] == [request.number for request in recording.requests]
    assert sum(bar["args"]["bytes"] for bar in bars) == recording.fetched_bytes
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort(key=lambda bar: (bar[0], -bar[1]))
        inside: list[int] = []
        for begun, ended in row:
            while inside and inside[-1] <= begun:
                inside.pop()
            assert not inside or ended <= inside[-1]
            inside.append(ended)
    assert sum(event["ph"] == "i" for event in events) == len(recording.retries)
    counts = [event["args"]["requests"] for event in events if event["ph"] == "C"]
    assert (max(counts), counts[-1]) == (8, 0)


def test_names_of_rows_come_first() -> None:
    script = Script()
    script.request("k", 0, 1024)
    script.read("k", 0, 10, waited=0.01)
    names = [
        (event["pid"], event["name"], event["args"]["name"])
        for event in json.loads(chrome_json(script.recording()))["traceEvents"]
        if event["ph"] == "M"
    ]
    assert names == [
        (1, "process_name", "requests"),
        (1, "thread_name", "request 1 at once"),
        (2, "process_name", "reads that waited"),
    ]
