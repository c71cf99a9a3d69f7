"""Opening files: the number of requests, and invalid files."""

import random
import struct
import threading
from typing import Any

import pyarrow as pa
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import NotFound, Unsupported, UntrustedMetadata
from aioprefetch.lance.footer import FOOTER, TAIL_BYTES, Footer, TailMemory, open_file
from aioprefetch.lance.schema import arrow_schema
from aioprefetch.ranges import joined, total_length
from aioprefetch.runtime.events import Event
from tests.files.lance_files import PATH, VERSIONS, stored, write_file
from tests.profile import each_of

TABLE = pa.table({"a": range(50_000), "b": [str(number) for number in range(50_000)]})


@pytest.mark.parametrize("version", VERSIONS)
async def test_one_suffix_request_opens_a_file(version: str) -> None:
    log: list[Any] = []
    async with stored(write_file(TABLE, version), log=log) as operator:
        file = await open_file(operator, PATH)
        await file.load_columns([0, 1])
        assert file.rows == 50_000
        assert sum(page.rows for page in file.column(1).pages) == 50_000
    assert log == [(PATH, -TAIL_BYTES, None)]


async def test_a_known_size_needs_no_suffix() -> None:
    data = write_file(TABLE)
    log: list[Any] = []
    async with stored(data, log=log) as operator:
        await open_file(operator, PATH, size=len(data))
    assert log == [(PATH, len(data) - TAIL_BYTES, len(data))]


async def test_larger_metadata_takes_one_more_read_once() -> None:
    data = write_file(TABLE)
    log: list[Any] = []
    async with stored(data, log=log) as operator:
        file = await open_file(operator, PATH, tail_bytes=100)
        await file.load_columns([0, 1])
        assert len(log) == 2
        assert file.column(0).pages
        assert log[1][2] == len(data) - 100


@pytest.mark.parametrize("tail_bytes", [100, None])
async def test_metadata_is_reported_once(tail_bytes: int | None) -> None:
    """As what the requests have brought; that of columns came along, and is read from memory later."""
    seen: list[Event] = []
    async with stored(write_file(TABLE)) as operator:
        operator.events.subscribe(seen.append, "read.served")
        file = await open_file(operator, PATH, tail_bytes=tail_bytes)
        opened = len(seen)
        await file.load_columns([0, 1])
    got = [(event.facts["start"], event.facts["end"]) for event in seen]
    assert total_length(got) == total_length(joined(got))
    assert {event.facts["tier"] for event in seen[:opened]} == {"store"}
    assert {event.facts["tier"] for event in seen[opened:]} == {"memory"}


async def test_the_next_file_is_opened_with_a_longer_tail() -> None:
    wide = write_file(pa.table({f"column number {number}": [number] for number in range(1000)}))
    log: list[Any] = []
    async with stored({"a": wide, "b": wide}, log=log) as operator:
        for path in ("a", "b"):
            file = await open_file(operator, path)
            await file.load_columns([999])
    assert [path for path, _, _ in log] == ["a", "a", "b"]
    assert log[-1][1] < -TAIL_BYTES


async def test_the_schema_of_many_columns_is_parsed_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, make = [], arrow_schema

    def noted(*arguments: Any) -> pa.Schema:
        threads.append(threading.get_ident())
        return make(*arguments)

    monkeypatch.setattr("aioprefetch.lance.footer.arrow_schema", noted)
    wide = write_file(pa.table({f"column number {number}": [number] for number in range(1000)}))
    async with stored({"wide": wide, "narrow": write_file(TABLE)}) as operator:
        assert len((await open_file(operator, "wide")).schema) == 1000
        assert threads[0] != threading.get_ident()
        await open_file(operator, "narrow")
        assert threads[1] == threading.get_ident()


async def test_of_huge_metadata_only_the_needed_parts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioprefetch.lance.footer.SECOND_READ_BYTES_MAX", 100)
    data = write_file(pa.table({f"column number {number}": [number] for number in range(2000)}))
    log: list[Any] = []
    async with stored(data, log=log) as operator:
        file = await open_file(operator, PATH, tail_bytes="1000 B")
        opened = len(log)
        await file.load_columns([3, 1999, 3])
        assert file.column(3).pages[0].rows == 1
        await file.load_columns([1999, 3])
        with pytest.raises(UntrustedMetadata, match="needs column 2000"):
            await file.load_columns([2000])
    assert opened == 3
    assert len(log) == 5


async def test_a_missing_file_is_not_found() -> None:
    async with stored({}) as operator:
        with pytest.raises(NotFound):
            await open_file(operator, PATH)


def test_the_memory_of_tails_forgets_and_is_bounded() -> None:
    memory = TailMemory()
    assert memory.tail_bytes == TAIL_BYTES
    memory.note(TAIL_BYTES + 1)
    assert memory.tail_bytes == 2 * TAIL_BYTES
    memory.note(1 << 40)
    assert memory.tail_bytes == 2 << 20
    for _ in range(16):
        memory.note(1)
    assert memory.tail_bytes == TAIL_BYTES


def footer(**changed: Any) -> bytes:
    fields = {"start": 64, "columns_at": 80, "buffers_at": 96, "buffers": 1, "columns": 1, "major": 2, "minor": 1}
    fields |= changed
    return FOOTER.pack(*fields.values(), b"LANC")


@each_of(
    ("data", "message"),
    [
        (b"", "0 bytes is not a Lance file"),
        (b"x" * 39, "39 bytes is not a Lance file"),
        (b"x" * 200, "not LANC"),
        (bytes(160) + footer(start=161), "beyond the file"),
        (bytes(160) + footer(columns_at=150), "beyond the file"),
        (bytes(160) + footer(columns=100_000_000), "beyond the file"),
        (bytes(160) + footer(buffers_at=(1 << 64) - 1), "beyond the file"),
        (bytes(160) + footer(buffers=0), "does not describe itself"),
    ],
)
async def test_refuses(data: bytes, message: str) -> None:
    async with stored(data) as operator:
        with pytest.raises(UntrustedMetadata, match=message):
            await open_file(operator, PATH)


async def test_tables_must_point_into_the_file() -> None:
    data = bytes(80) + struct.pack("<QQQQ", 0, 10, 0, 113) + footer()
    async with stored(data) as operator:
        with pytest.raises(UntrustedMetadata, match="beyond its file"):
            await open_file(operator, PATH)


@each_of(("major", "minor", "name"), [(0, 2, "0.1"), (2, 3, "2.3"), (3, 0, "3.0"), (0, 1, "0.1")])
def test_names_versions_that_are_not_supported(major: int, minor: int, name: str) -> None:
    with pytest.raises(Unsupported, match=f"version {name}"):
        Footer.parse(footer(major=major, minor=minor), 1000, "p")


@pytest.mark.parametrize("version", VERSIONS)
async def test_damaged_metadata_is_refused_or_read(version: str) -> None:
    table = pa.table({"a": [1, 2], "s": [{"x": [1], "y": "q"}] * 2})
    data = write_file(table, version)
    chance = random.Random(version)
    start = FOOTER.unpack(data[-40:])[0] - 300
    outcomes = {"read": 0, "refused": 0}
    async with stored({}) as operator:
        for _ in range(400):
            damaged = bytearray(data)
            for _ in range(chance.randint(1, 3)):
                damaged[chance.randrange(start, len(data))] = chance.choice(
                    [0, 1, 127, 128, 255, chance.randrange(256)]
                )
            await operator.write(PATH, bytes(damaged))
            try:
                file = await open_file(operator, PATH)
                await file.load_columns(range(file.column_count))
                for index in range(file.column_count):
                    for page in file.column(index).pages:
                        assert all(0 <= low <= high <= len(data) for low, high in page.buffers)
                outcomes["read"] += 1
            except (UntrustedMetadata, Unsupported):
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 20


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_of_columns_say_where(version: str) -> None:
    data = bytearray(write_file(pa.table({"a": range(10)}), version))
    data[data.find(b"/lance.encodings") + 2] = 0xFF
    async with stored(bytes(data)) as operator:
        file = await open_file(operator, PATH)
        await file.load_columns([0])
        with pytest.raises(UntrustedMetadata) as caught:
            file.column(0)
        assert (caught.value.operation, caught.value.path) == ("open", PATH)
        for call in (ap_lance.plan, ap_lance.read_table):
            with pytest.raises(UntrustedMetadata) as caught:
                await call(operator, PATH)
            assert caught.value.operation
            assert caught.value.path == PATH
