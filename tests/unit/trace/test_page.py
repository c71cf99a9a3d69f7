"""The page as text: whole, small, and without secrets or scripts of others."""

import datetime as dt
import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.sink import BufferSink
from aioprefetch.runtime.events import EventBus
from aioprefetch.trace.object_map import COLUMNS, PIECES_MAX
from aioprefetch.trace.page import ROWS_MAX, WAITS_MAX, page
from aioprefetch.trace.recording import Recording
from aioprefetch.values import ReadHead, ReadRequest
from tests.unit.trace.recordings import BEGIN, KiB, MiB, Script, busy_recording, runtime_of

PAGE_BYTES_MAX = 3 << 20
CANARY = "CANARY0123456789"
NOON = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


def written(recording: Recording, title: str = "") -> str:
    """The page of a recording."""
    return page(recording, title=title, written_at=NOON)


def data_of(text: str) -> dict[str, Any]:
    """What the script draws."""
    match = re.search(r'<script type="application/json" id="trace">(.*?)</script>', text)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


class Elements(HTMLParser):
    """The names and attributes of all elements, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_a_row_for_each_request() -> None:
    recording = busy_recording(300)
    data = data_of(written(recording))
    assert len(data["rows"]) == len(recording.requests)
    assert [row[17] for row in data["rows"]] == [request.number for request in recording.requests]
    assert sum(row[11] or 0 for row in data["rows"]) == recording.fetched_bytes
    assert sum(row[10] or 0 for row in data["rows"]) == sum(one.outcome == "failed" for one in recording.requests)
    assert sum(wait[2] or 0 for wait in data["waits"]) >= recording.counts["waits"]


def test_what_is_not_known_is_no_figure() -> None:
    """Ranges that were joined, requests that have not ended, and no bytes at all."""
    script = Script()
    for number in range(2000):
        script.request("k", 100 * number, 100 * number + 10, at=1 + number)
        script.read("k", 100 * number, 100 * number + 5, at=1 + number)
    for number in range(10):
        script.request(f"other-{number}", 0, 10, at=1 + number)
    joined = script.recording(ranges_max=400)
    assert not joined.knows_use
    text = written(joined).replace("\u00a0", " ")
    body = text[: text.index("<script")]
    assert "more ranges than are kept" in body
    for figure in ("% used", "not used, ", "B not used", "came again", "% of the bytes", "Most unused bytes"):
        assert figure not in body, figure
    assert 'aria-label="Fetched: parts of' in body
    assert {row[12] for row in data_of(text)["rows"]} == {None}


def test_what_may_not_be_whole_has_no_tick() -> None:
    """Nothing at all, and a request that has not ended: its bytes so far are there."""
    script = Script()
    script.request("k", 0, 10)
    script.read("k", 0, 10)
    assert "No rule found anything to improve" in written(script.recording())
    text = written(Recording())
    assert "<strong>Nothing was recorded:</strong> pandas, polars and pyarrow read s3:// themselves" in text
    assert (data_of(text)["rows"], "✓" in text) == ([], False)
    bus, recording = EventBus(), Recording()
    bus.follow(recording.pending.requests, recording.pending.reads, recording.settle)
    sink = BufferSink(memoryview(bytearray(10)))
    ReportedRequest(runtime_of(bus), ReadRequest(path="k", offset=90, size=10), sink)
    sink.begin(ReadHead(start=90, size=10, total=100))
    sink.feed(b"abcd")
    bus.publish_served("k", 90, 93, "store", 0.1)
    recording.settle()
    text = written(recording)
    assert "<strong>1 request has not ended:</strong> the page has the bytes that came so far" in text
    assert "1 without an end, with the bytes that came so far" in text
    assert "75 %" in text
    assert "✓" not in text
    (row,) = data_of(text)["rows"]
    assert row[9:13] == [None, 3, 4, 1]
    (request,) = recording.requests
    assert (request.outcome, request.received, recording.fetched_bytes) == ("open", (90, 94), 4)


def test_the_times_without_a_request_are_those_of_the_program() -> None:
    script = Script()
    script.request("k", 0, 100, at=0.0, seconds=0.1)
    script.read("k", 0, 100, at=0.15, waited=0.1)
    script.request("k", 100, 200, at=0.5, seconds=0.1)
    text = written(script.recording())
    assert "Your CPU, not the store</strong>350 ms of 600 ms" in text
    assert data_of(text)["gaps"] == [[150_000, 500_000]]


def test_processes_have_lanes() -> None:
    """Their requests, by one clock; which of them was killed, and a request that it left."""
    parts = []
    for at, seconds in ((0.0, 0.1), (0.05, None)):
        script = Script()
        script.request("k", 0, 100, at=at, seconds=seconds)
        script.read("k", 0, 50, at=at + 0.2)
        parts.append(json.loads(json.dumps(script.recording().take_out())))
    merged = Recording()
    merged.add_process("a<b", [parts[0]], "ended", BEGIN + 0.3)
    merged.add_process("c", [parts[1]], "was killed", BEGIN + 0.4)
    assert [(one.process, one.outcome) for one in merged.requests] == [("a<b", "finished"), ("c", "open")]
    assert [one.ended_at_seconds for one in merged.requests] == pytest.approx([0.1, 0.4])
    assert (merged.counts["request.started"], merged.counts["read.served"]) == (2, 2)
    assert merged.object("k").used.ranges == [(0, 50)]
    text = written(merged)
    assert "<strong>a&lt;b</strong>1 request, 100 B; it ended" in text
    assert "1 process was killed" in text
    data = data_of(text)
    assert (data["processes"], [row[18] for row in data["rows"]]) == (["a<b", "c"], [0, 1])
    assert [max(one) for one in data["ofProcesses"]] == [1, 1]


def test_the_headline_and_the_advice() -> None:
    script = Script()
    for number in range(4):
        script.request("a<b", number * MiB, (number + 1) * MiB, at=0.001 * number, first=0.004 * (number + 1))
    script.read("a<b", 0, 3 * MiB // 2, waited=0.02)
    text = written(script.recording(), title="nightly & job")
    assert "<title>nightly &amp; job</title>" in text
    assert "<h1>4\u00a0requests, 4\u00a0MiB, 23\u00a0ms</h1>" in text
    assert "62 % of the bytes (2.5 MiB) were not used:</strong> read with policy=" in text
    assert "99 %: 16 ms" in text
    assert "<h3>a&lt;b</h3>" in text
    assert "2.5 MiB not used" in text


@pytest.mark.parametrize("path", ['</script><script>alert("x")</script>', "<img src=x onerror=alert(1)>", "\u2028'\"&"])
def test_a_path_is_text(path: str) -> None:
    """In elements, in attributes and in the data of the script."""
    script = Script()
    script.request(path, 0, 100 * KiB, error="<b>", message=path)
    script.retry(path, at=0.1)
    script.request(path, 0, 100 * KiB, at=0.2, attempt=2)
    script.read(path, 0, 10, waited=0.1)
    plain = Script()
    plain.request("k", 0, 100 * KiB, error="b", message="k")
    plain.retry("k", at=0.1)
    plain.request("k", 0, 100 * KiB, at=0.2, attempt=2)
    plain.read("k", 0, 10, waited=0.1)
    text = written(script.recording(), title=path)
    assert [name for name, _ in Elements(text).found] == [
        name for name, _ in Elements(written(plain.recording())).found
    ]
    assert html.escape(path.replace("\u2028", "\\u2028")) in text


def test_no_secret_is_written() -> None:
    """A signed URL as a path, in an error or as the title."""
    url = f"https://user:{CANARY}@host/b/k?X-Amz-Signature={CANARY}&X-Amz-Security-Token={CANARY}"
    script = Script()
    script.request(url, 0, 10, error="PermissionDenied", message=f"{url} refused, Authorization: Bearer {CANARY}")
    script.retry(url, at=0.1, error=f"Throttled at {url}")
    script.read(url, 0, 10, waited=0.1)
    assert CANARY not in written(script.recording())


def test_the_page_asks_no_network_for_anything() -> None:
    """Nothing in it is loaded from elsewhere, and its policy forbids that."""
    found = Elements(written(busy_recording(20))).found
    links = [value for _, attributes in found for name, value in attributes.items() if name in ("src", "href")]
    assert all(value is not None and value.startswith("data:") for value in links)
    (policy,) = (a["content"] for name, a in found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_ten_thousand_requests_make_a_small_page() -> None:
    recording = busy_recording(10_000, at_once=32)
    text = written(recording)
    data = data_of(text)
    assert len(text) < PAGE_BYTES_MAX / 2
    assert len(data["rows"]) == len(recording.requests) > 10_000
    assert len(data["waits"]) <= WAITS_MAX
    assert sum(name == "rect" for name, _ in Elements(text).found) <= 3 * 6 * max(COLUMNS, PIECES_MAX)


def test_more_requests_than_bars_share_them() -> None:
    script = Script()
    for number in range(ROWS_MAX + 5):
        script.request("k", 10 * number, 10 * number + 10, at=0.0001 * number, error="Reset" if number == 7 else "")
    text = written(script.recording())
    rows = data_of(text)["rows"]
    assert len(text) < PAGE_BYTES_MAX
    assert {row[0] for row in rows} == {1, 2}
    assert sum(row[0] or 0 for row in rows) == ROWS_MAX + 5
    assert [row[17] for row in rows if row[10]] == [7]
    assert rows[0][5:7] == [0, 20]
