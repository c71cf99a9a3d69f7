"""What callers got, by ``read.served``: the bytes of every kind of read, without the gaps of its requests."""

import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.ranges import joined, total_length
from aioprefetch.runtime.events import Event
from aioprefetch.source.formats.file_bytes import read_content
from aioprefetch.source.values import SourceFile
from aioprefetch.sync import BlockingOperator

DATA = os.urandom(1 << 20)
KIB = 1 << 10


def served(seen: list[Event]) -> list[tuple[int, int, str]]:
    """The ranges and their tiers, and forget them."""
    found = [(event.facts["start"], event.facts["end"], event.facts["tier"]) for event in seen]
    seen.clear()
    return found


async def test_every_kind_of_read_is_reported(tmp_path: Path) -> None:
    seen: list[Event] = []
    async with ap.Operator(ap.services.Memory(), block_bytes=64 * KIB) as op:
        await op.write("k", DATA)
        op.events.subscribe(seen.append, "read.served")
        await op.read("k", offset=10, size=5)
        await op.view("k", suffix=7)
        await op.read_into("k", 3, bytearray(4))
        assert served(seen) == [(10, 15, "store"), (len(DATA) - 7, len(DATA), "store"), (3, 7, "store")]
        await op.read_ranges("k", [(0, 10), (500, 510), (500, 500)])
        assert sorted(served(seen)) == [(0, 10, "store"), (500, 510, "store")]
        await op.download("k", tmp_path / "k")
        assert sum(end - start for start, end, _ in served(seen)) == len(DATA)
        async with op.reader("k", policy="random") as reader:
            await reader.read_at(100, 50)
            await reader.read_at(110, 20)
            await reader.read_exactly_at(1000, 10)
            await reader.view_at(1002, 2)
            reader.seek(5000)
            await reader.read(10)
            await reader.readinto(bytearray(6))
            assert {event.facts["reader_id"] for event in seen} == {seen[0].facts["reader_id"]} != {None}
            expected = [(100, 150), (110, 130), (1000, 1010), (1002, 1004), (5000, 5010), (5010, 5016)]
            found = served(seen)
            assert [(start, end) for start, end, _ in found] == expected
            assert found[1] == (110, 130, "memory")
            assert found[3] == (1002, 1004, "memory")
            await reader.read_ranges([(200_000, 200_010), (300_000, 300_010)])
            assert sorted(served(seen)) == [(200_000, 200_010, "store"), (300_000, 300_010, "store")]


async def test_the_source_of_a_copy_was_read(tmp_path: Path) -> None:
    """Whole, in blocks, and into a file."""
    seen: list[Event] = []
    async with (
        ap.Operator(ap.services.Memory(), block_bytes=64 * KIB) as op,
        ap.Operator(ap.services.Memory()) as other,
    ):
        await op.write("small", DATA[:KIB])
        await op.write("large", DATA * 40)
        op.events.subscribe(seen.append, "read.served")
        for path, size in (("small", KIB), ("large", 40 << 20)):
            for target in ((other, path), tmp_path / path):
                await ap.copy((op, path), target)
                assert sum(end - start for start, end, _ in served(seen)) == size


async def test_a_file_of_a_source_was_read() -> None:
    seen: list[Event] = []
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("k", DATA)
        op.events.subscribe(seen.append, "read.served")
        assert await read_content(op, SourceFile("k", len(DATA)), {}) == DATA
        assert served(seen) == [(0, len(DATA), "store")]


def test_a_hit_of_a_blocking_reader_is_reported() -> None:
    seen: list[Event] = []
    op = ap.Operator(ap.services.Memory())
    with BlockingOperator(op) as blocking:
        blocking.write("k", DATA)
        blocking.events.subscribe(seen.append, "read.served")
        blocking.read_at("k", 0, 10)
        blocking.read_at("k", 5, 10)
        assert served(seen) == [(0, 10, "store"), (5, 15, "memory")]


async def test_reads_of_a_local_file_are_requests_too(tmp_path: Path) -> None:
    """Also those that need no thread, because the system has the bytes in memory."""
    (tmp_path / "k").write_bytes(DATA)
    seen: list[Event] = []
    async with ap.Operator.from_uri(tmp_path) as op:
        op.events.subscribe(seen.append)
        async with op.reader("k", policy="random") as reader:
            for number in range(8):
                await reader.read_at(number * 50_000, 100)
    requests = [event for event in seen if event.name == "request.finished"]
    assert sum(event.facts["bytes"] for event in requests) >= 800
    assert len(requests) == sum(event.name == "request.started" for event in seen) >= 8
    assert sum(event.name == "read.served" for event in seen) == 8


async def test_a_scan_reports_the_chunks_that_it_decodes(tmp_path: Path) -> None:
    numbers = list(range(20_000))
    table = pa.table({"a": numbers, "b": [float(number) for number in numbers], "c": ["text"] * len(numbers)})
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, compression="none", use_dictionary=False)
    seen: list[Event] = []
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("t", path.read_bytes())
        op.events.subscribe(seen.append, "read.served", "request.finished")
        read = await ap.parquet.read_table(op, "t", columns=["b"])
    assert read.num_rows == 20_000
    got = sum(event.facts["end"] - event.facts["start"] for event in seen if event.name == "read.served")
    requested = sum(event.facts["bytes"] for event in seen if event.name == "request.finished")
    assert 160_000 <= got <= requested


@pytest.mark.parametrize("tail_bytes", [8, 1000, 1 << 20])
async def test_a_footer_is_reported_once(tail_bytes: int) -> None:
    """Its own bytes, and no bytes that came with them; a footer that was kept is not reported."""
    sink = io.BytesIO()
    pq.write_table(pa.table({f"column {number}": [number] for number in range(100)}), sink)
    data = sink.getvalue()
    seen: list[Event] = []
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("t", data)
        op.events.subscribe(seen.append, "read.served")
        footer = await ap.parquet.footer(op, "t", tail_bytes=tail_bytes)
        got = [(event.facts["start"], event.facts["end"]) for event in seen]
        assert joined(got) == [(len(data) - 8 - len(footer.raw), len(data))]
        assert total_length(got) == len(footer.raw) + 8
        assert all(event.facts["waited_seconds"] is not None for event in seen)
        assert {tier for _, _, tier in served(seen)} == {"store"}
        assert (await ap.parquet.footer(op, "t")).raw == footer.raw
        assert not seen


async def test_a_footer_that_readers_had_is_reported_from_memory() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1]}), sink)
    seen: list[Event] = []
    async with ap.Operator(ap.services.Memory()) as op, op.reader("t") as reader:
        await op.write("t", sink.getvalue())
        await reader.read_at(0, len(sink.getvalue()))
        op.events.subscribe(seen.append, "read.served")
        await ap.parquet.footer(op, "t")
        assert [tier for _, _, tier in served(seen)] == ["memory"]
