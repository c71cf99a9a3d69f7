"""What objects show in a notebook: well-formed, escaped, of a bounded length, without a script or a secret."""

import base64
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.blocks.store import BlockStore
from aioprefetch.display import bytes_text
from aioprefetch.display.bars import Cost, ObjectBytes, PlannedFile, expected_times, object_html, plan_html
from aioprefetch.display.tables import entries_html, operator_html
from aioprefetch.lance.scan import FilePlan, Plan, PlannedPage
from aioprefetch.ranges import intersected, joined, total_length
from aioprefetch.runtime.events import COUNTERS, GAUGES
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.statistics import Counters

CANARY = "c4n4ry"
NO_COUNTS = Counters().snapshot({})
CHARACTERS_MAX = 300_000
PATHS = st.text(max_size=400)
NUMBERS = st.integers(-(10**6), 10**13)
RANGES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30)
HOSTILE = "<script>alert('x')</script>\x00\ud800]]>&amp;\"' onload="


def checked(html: str) -> ET.Element:
    """HTML as a tree: well-formed, bounded, without scripts, with labels for those who do not see it."""
    assert len(html) < CHARACTERS_MAX
    html.encode("utf-8")
    tree = ET.fromstring(html)
    for element in tree.iter():
        assert element.tag.rpartition("}")[2] not in ("script", "style", "link", "img", "iframe", "foreignObject")
        assert not [name for name in element.attrib if name.startswith("on") or name in ("href", "src")]
        if element.tag.endswith("svg"):
            assert element.get("role") == "img"
            assert element.get("aria-label")
        if element.tag == "th":
            assert element.get("scope") in ("row", "col", "rowgroup")
    assert "url(" not in html
    return tree


def text_of(html: str) -> str:
    """All that can be read of HTML."""
    return " ".join(checked(html).itertext())


@given(PATHS, st.none() | st.integers(0, 10**13), RANGES, RANGES, RANGES, RANGES, st.none() | NUMBERS, NUMBERS)
@example(HOSTILE, 10, [(0, 5), (3, 20)], [(-5, 2)], [(9, 9)], [(8, 30)], 11, 5)
def test_any_object(
    path: str,
    size: int | None,
    memory: Any,
    unread: Any,
    requested: Any,
    disk: Any,
    cursor: int | None,
    wasted: int,
) -> None:
    """For any intervals; the numbers of the legend are those of the ranges, and boxes stay within the bar."""
    shown = ObjectBytes(size, memory, unread, requested, disk, cursor)
    tree = checked(object_html(path, shown, wasted, path))
    for element in tree.iter():
        if element.tag.endswith("rect"):
            x, width = float(element.get("x", "")), float(element.get("width", ""))
            assert 0 <= x <= x + width <= 720.1


def test_a_bar_says_how_many_bytes_are_where() -> None:
    shown = ObjectBytes(100 << 20, [(0, 10 << 20), (5 << 20, 20 << 20)], [(15 << 20, 20 << 20)], [], [(0, 1 << 20)], 7)
    text = text_of(object_html("k", shown, 3 << 20))
    for expected in ("in memory 20 MiB", "not read yet 5 MiB", "on disk 1 MiB", "never read 3 MiB", "cursor at 7"):
        assert expected in text
    assert "in flight" not in text


@given(st.lists(st.tuples(PATHS, st.integers(0, 10**13), RANGES), max_size=4), PATHS)
@example([(HOSTILE, 100, [(0, 10), (90, 100)])], HOSTILE)
def test_any_plan(files: Any, title: str) -> None:
    planned = [
        PlannedFile(path, size, [pair for pair in ranges if 0 <= pair[0] < pair[1]]) for path, size, ranges in files
    ]
    checked(plan_html(title, title, planned))


def test_a_long_plan_is_short() -> None:
    requests = [(number * 1000, number * 1000 + 500) for number in range(100_000)]
    text = text_of(plan_html("t", "s", [PlannedFile("'" * 10_000, 10**8, requests)]))
    assert "and 99,960 more requests" in text
    assert "the first 100 of 100,000" in text


@given(st.lists(st.integers(0, 10**9), max_size=50), st.integers(1, 8))
def test_expected_times_are_those_of_slots(sizes: list[int], slots: int) -> None:
    """No more requests at once than slots, none begins while a slot is free, each takes what its bytes take."""
    cost = Cost(0.1, 1e6, 2e6, slots)
    times = expected_times(sizes, cost)
    rate = min(1e6, 2e6 / max(1, min(slots, len(sizes))))
    for number, (begin, end) in enumerate(times):
        assert end - begin == pytest.approx(0.1 + sizes[number] / rate)
        running = sum(one_begin <= begin < one_end for one_begin, one_end in times[: number + 1])
        assert running <= slots
        assert begin == 0 or begin in [one_end for _, one_end in times[:number]]


@given(st.lists(st.tuples(PATHS, st.none() | NUMBERS, st.none() | PATHS), max_size=50), PATHS)
def test_any_listing(rows: Any, title: str) -> None:
    entries = [ap.Entry(path=path, size=size, etag=version, version=version) for path, size, version in rows]
    checked(entries_html(title, entries))


@given(PATHS, st.lists(PATHS, max_size=8))
def test_any_recipe(location: str, layers: list[str]) -> None:
    checked(operator_html(location, object(), layers, RuntimeOptions(), NO_COUNTS))


def test_statistics_are_a_table_with_the_meaning_of_each_name() -> None:
    counters = Counters({**dict.fromkeys(COUNTERS, 10**9), "stream_read_block_misses": 2 * 10**9})
    counters.succeeded("action_http_get_request", 0.25)
    text = text_of(counters.snapshot(dict.fromkeys(GAUGES, 7))._repr_html_())
    assert "mean 250 ms" in text
    assert "954 MiB" in text
    for name, meaning in {**COUNTERS, **GAUGES}.items():
        assert name in text
        assert meaning in text
    assert "nothing was counted" in text_of(NO_COUNTS._repr_html_())


def test_an_operator_shows_what_differs_and_no_secret(tmp_path: Path) -> None:
    secret: Any = {"access_key_id": f"AKIA{CANARY}", "secret_access_key": CANARY, "session_token": CANARY}
    operators = [
        ap.Operator.from_uri(
            "s3://bucket/p",
            region="eu-west-1",
            sse_customer_key=base64.b64encode(CANARY.ljust(32).encode()).decode(),
            **secret,
        ),
        ap.Operator.from_uri(f"https://u:{CANARY}@h/base/?sig={CANARY}", headers={"X-A": CANARY}),
        ap.Operator.from_uri("https://h/base/", auth=CANARY, proxies={"https": f"http://u:{CANARY}@proxy:1"}),
        ap.Operator.from_uri("memory://shown", memory_bytes="1 GiB", attempts_max=7, disk_cache=tmp_path / "cache"),
    ]
    operators.append(operators[3].layer(ap.layers.LruCacheLayer(cache=operators[0], capacity_bytes=1 << 20)))
    texts = [text_of(operator._repr_html_()) for operator in operators]
    assert CANARY not in "".join(operator._repr_html_() for operator in operators)
    assert "s3://bucket/p" in texts[0]
    assert "region='eu-west-1'" in texts[0]
    assert "addressing_style" not in texts[0]
    assert "memory_bytes=1 GiB" in texts[3]
    assert "RetryLayer(attempts_max=7)" in texts[3]
    assert "LruCacheLayer(" in texts[4]
    assert [texts[3].count(name) for name in ("block_bytes", "concurrency", "statistics")] == [0, 0, 0]
    with ap.sync.BlockingOperator(operators[3]) as bo:
        bo.write("k", b"bytes")
        assert "object_put_request" in text_of(bo._repr_html_())


async def test_a_reader_shows_its_object(tmp_path: Path) -> None:
    """What is in memory and on disk, as the block store tells; also after closing, and by a file of the sync world."""
    async with ap.Operator.from_uri(
        "memory://shown-object", block_bytes=1000, memory_bytes=5000, disk_cache=tmp_path / "cache"
    ) as op:
        await op.write("<k>", bytes(20_000))
        reader = op.reader("<k>", policy="random")
        assert "the size is not known" in text_of(reader._repr_html_())
        for offset in (0, 4000, 9000, 12_000, 15_000, 18_000):
            await reader.read_at(offset, 1000)
        reader.seek(4321)
        text = text_of(reader._repr_html_())
        assert "RangeReader memory://shown-object/<k>" in text
        assert "cursor at 4,321" in text
        (held,) = BlockStore.of(op.runtime()).residency("<k>")
        assert f"in memory {bytes_text(total_length(held.ranges))}" in text
        await reader.aclose()
        assert "(closed)" in text_of(reader._repr_html_())
        await op.write("empty", b"")
        async with op.reader("empty") as empty:
            await empty.read()
            assert "the object is empty" in text_of(empty._repr_html_())


async def test_blocks_on_disk_are_shown(tmp_path: Path) -> None:
    """Of a second runtime, which has nothing in memory yet but one block."""
    name, options = f"memory://on-disk-{tmp_path.name}", {"block_bytes": 1000, "disk_cache": tmp_path / "cache"}
    for _ in range(2):
        async with ap.Operator.from_uri(name, memory_bytes=2000, **options) as op:  # type: ignore[arg-type]
            await op.write("k", bytes(20_000)) if not await op.exists("k") else None
            async with op.reader("k", policy="random") as reader:
                for offset in range(0, 10_000, 1000):
                    await reader.read_at(offset, 1000)
                await reader.read_at(0, 1000)
                shown = text_of(reader._repr_html_())
    assert "on disk" in shown


async def test_listings_are_tables() -> None:
    """A collected one is a list still; one in progress shows what has arrived, and takes nothing."""
    async with ap.Operator(ap.services.Memory()) as op:
        for number in range(200):
            await op.write(f"d/<{number:03}>", bytes(number))
        listing = op.list("d/")
        assert "0 ready" in text_of(listing._repr_html_())
        first = await listing.__anext__()
        assert "d/<001>" in text_of(listing._repr_html_())
        entries = await listing.collect()
        assert isinstance(entries, list)
        assert [first, *entries] == [entry async for entry in op.list("d/")]
        assert entries == [*entries]
        text = text_of(entries._repr_html_())  # type: ignore[attr-defined]
        assert "199 entries" in text
        assert "169 more entries" in text
        assert "listing is over" in text_of(listing._repr_html_())


def test_a_blocking_listing_is_a_table() -> None:
    with ap.sync.BlockingOperator(ap.Operator(ap.services.Memory())) as bo:
        bo.write("a", b"x")
        listing = bo.list()
        assert "0 ready" in text_of(listing._repr_html_())
        entries: Any = listing.collect()
        assert "1 entry" in text_of(entries._repr_html_())
        with bo.open("a") as file:
            file.read(1)
            assert "cursor at 1" in text_of(file._repr_html_() or "")


async def test_plans_are_requests_in_time() -> None:
    """The requests that a plan of Parquet has."""
    table = pa.table({name: list(range(200_000)) for name in "abcdef"})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=50_000, compression="none", use_dictionary=False)
    async with ap.Operator(ap.services.Memory(), block_bytes=64 << 10) as op:
        for path in ("t/a.parquet", "t/b.parquet"):
            await op.write(path, sink.getvalue().to_pybytes())
        plan = await ap.parquet.plan(op, "t/a.parquet", columns=["b"], gap_bytes=0)
        files = await ap.parquet.plan_files(op, "t/", columns=["b"], gap_bytes=0)
    text = text_of(plan._repr_html_())
    assert f"{len(plan.requests)} requests" in text
    assert "200,000 rows of 1 column:" in text
    assert text.count("request 1:") == 2
    assert f"{2 * len(plan.requests)} requests" in text_of(files._repr_html_())
    assert total_length(intersected(joined(plan.requests), [(0, plan.requests[-1][1])])) == plan.requested_bytes


def test_a_plan_of_lance_names_what_it_cannot_know() -> None:
    """The requests of all files, and the pages whose bytes decide on more."""
    page = PlannedPage("c", 0, ((0, 100), (300, 500)), is_indirect=True)
    files = tuple(FilePlan(f"d/<{n}>.lance", 1000, (2, 0), 10, (page,), ((0, 100), (300, 500))) for n in range(2))
    text = text_of(Plan(files, 0, 1 << 20, 20)._repr_html_())
    assert "Plan of 2 files" in text
    assert "4 requests for 600 B" in text
    assert "2 pages need more" in text
    assert "[300, 500) of d/<1>.lance" in text


async def test_what_verbs_and_scans_return_is_shown() -> None:
    """Metadata, the report of a copy, a scan and a trace: what they are for, and no secret."""
    async with ap.Operator(ap.services.Memory(), block_bytes=1 << 20) as op, ap.Operator(ap.services.Memory()) as to:
        await op.write("<script>k", bytes(1500), content_type="text/plain", user_metadata={"a": "b"})
        await op.write(f"big?token={CANARY}", bytes(3 << 20))
        shown = text_of((await op.stat("<script>k"))._repr_html_())
        for fact in ("<script>k", "1.46 KiB", "text/plain", "{'a': 'b'}"):
            assert fact in shown
        assert "version" not in shown
        report = text_of((await ap.copy((op, ""), (to, "")))._repr_html_())
        assert "copied 2" in report
        assert "bytes 3 MiB" in report
        with ap.trace.record(op) as trace:
            assert "Trace of 0 requests, 0 bytes" in text_of(trace._repr_html_())
            async with op.reader(f"big?token={CANARY}") as reader:
                await reader.read_at(0, 1 << 20)
                await reader.read_at(2 << 20, 10)
        picture = text_of(trace._repr_html_())
        assert "fetched, not used" in picture
        assert "request 1: [" in picture
        assert CANARY not in picture
        scan = ap.parquet.scan(op, "t.parquet", batch_rows=100)
        assert "not begun: nothing was requested" in text_of(scan._repr_html_())
        await scan.aclose()
        assert "closed" in text_of(scan._repr_html_())
