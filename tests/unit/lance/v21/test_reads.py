"""The reads of pages of version 2.1 and 2.2: one step if most rows are wanted, two if few are."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from aioprefetch.errors import Error, Unavailable, Unsupported, UntrustedMetadata
from aioprefetch.lance.physical.protocols import OutputBuffer
from aioprefetch.lance.structural import CONCATENATED
from aioprefetch.lance.structural.assembly import LeafRows, StringBuilder
from aioprefetch.lance.structural.decoded_rows import WHOLE_PAGE_BYTES
from aioprefetch.lance.structural.values import Texts, Values
from tests.files.lance_files import write_file
from tests.files.lance_v20_pages import MemoryIo, drain_all, open_bytes
from tests.files.lance_v21_pages import VERSIONS, start_scan

ROWS = 40_000
WIDE = 300


def _table() -> pa.Table:
    rng = np.random.default_rng(1)
    offsets = pa.array(np.arange(0, ROWS * 3 + 1, 3), pa.int32())
    return pa.table(
        {
            "numbers": rng.integers(0, 1 << 40, ROWS),
            "texts": [f"text {i} of many" for i in range(ROWS)],
            "lists": pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 1 << 50, ROWS * 3))),
        }
    )


def _wide_table() -> pa.Table:
    rng = np.random.default_rng(2)
    return pa.table(
        {
            "vectors": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(WIDE * 200)), 200),
            "blobs": [rng.bytes(1000) for _ in range(WIDE)],
        }
    )


@pytest.fixture(scope="module", params=VERSIONS)
def data(request: pytest.FixtureRequest) -> bytes:
    return write_file(_table(), request.param)


@pytest.fixture(scope="module", params=VERSIONS)
def wide(request: pytest.FixtureRequest) -> bytes:
    return write_file(_wide_table(), request.param)


async def test_whole_pages_are_one_read_each(data: bytes) -> None:
    io = MemoryIo(data)
    root, rows = start_scan(await open_bytes(data), io, [(0, ROWS)])
    assert len(io.reads) == 3
    assert not io.tasks
    assert await drain_all(root, rows, 5000) == _table()


@pytest.mark.parametrize("name", ["numbers", "texts", "lists"])
async def test_few_rows_read_their_chunks_alone(data: bytes, name: str) -> None:
    io = MemoryIo(data)
    file = await open_bytes(data)
    ranges = [(10, 20), (20_000, 20_003), (ROWS - 1, ROWS)]
    root, rows = start_scan(file, io, ranges, [name])
    assert [read.is_follow_up for read in io.reads] == [False]
    table = await drain_all(root, rows, rows)
    expected = _table().select([name])
    assert table == pa.concat_tables([expected.slice(start, end - start) for start, end in ranges]).combine_chunks()
    first, second = io.reads
    assert (second.is_follow_up, len(second.ranges)) == (True, 3)
    page = file.column(file.schema.get_field_index(name)).pages[0]
    assert first.ranges == [page.buffers[0], *page.buffers[2:]]
    start, end = page.buffers[1]
    assert all(start <= low < high <= end for low, high in second.ranges)
    assert sum(high - low for low, high in second.ranges) < (end - start) / 5
    assert all(read.released for read in io.reads)


async def test_pages_of_which_most_is_wanted_are_read_whole(data: bytes) -> None:
    io = MemoryIo(data)
    root, _ = start_scan(await open_bytes(data), io, [(0, ROWS - 100)])
    assert len(io.reads) == 3
    assert not io.tasks
    root.close()
    assert all(read.released for read in io.reads)


async def test_small_pages_are_read_whole() -> None:
    data = write_file(pa.table({"n": range(1000)}), "2.2")
    file = await open_bytes(data)
    io = MemoryIo(data)
    start_scan(file, io, [(500, 501)])
    buffers = file.column(0).pages[0].buffers
    assert sum(end - start for start, end in buffers) <= WHOLE_PAGE_BYTES
    assert [read.ranges for read in io.reads] == [list(buffers)]
    assert not io.tasks


async def test_rows_of_equal_width_are_read_directly(wide: bytes) -> None:
    io = MemoryIo(wide)
    root, rows = start_scan(await open_bytes(wide), io, [(7, 9), (100, 101)], ["vectors"])
    assert not io.tasks
    assert [end - start for start, end in io.reads[0].ranges] == [2 * 1600, 1600]
    table = await drain_all(root, rows, rows)
    expected = _wide_table().select(["vectors"])
    assert table == pa.concat_tables([expected.slice(7, 2), expected.slice(100, 1)]).combine_chunks()


async def test_vectors_are_not_copied(wide: bytes) -> None:
    io = MemoryIo(wide)
    root, rows = start_scan(await open_bytes(wide), io, [(0, WIDE)], ["vectors"])
    await root.wait(rows)
    batch = root.drain(100).decode()
    address = batch.column(0).flatten().buffers()[1].address
    assert io.address <= address < io.address + io.size


async def test_long_values_are_found_by_the_positions_of_their_rows(wide: bytes) -> None:
    io = MemoryIo(wide)
    root, rows = start_scan(await open_bytes(wide), io, [(7, 9), (100, 101)], ["blobs"])
    table = await drain_all(root, rows, rows)
    first, second = io.reads
    assert second.is_follow_up
    assert sum(end - start for start, end in second.ranges) < 3 * 1100
    assert sum(end - start for start, end in first.ranges) < 100
    expected = _wide_table().select(["blobs"])
    assert table == pa.concat_tables([expected.slice(7, 2), expected.slice(100, 1)]).combine_chunks()


async def test_leaves_of_a_struct_come_in_row_order() -> None:
    structs = pa.StructArray.from_arrays(
        [pa.array(range(4000)), pa.array(["x" * (200 + i % 7) for i in range(4000)])], ["few", "many"]
    )
    data = write_file(pa.table({"s": structs}), "2.1", data_cache_bytes=100_000, batch_rows=250)
    file = await open_bytes(data)
    io = MemoryIo(data)
    start_scan(file, io, [(0, 4000)])
    rows = [(read.row, read.ranges[0][0]) for read in io.reads]
    expected = sorted(
        (page.first_row or 0, column, page.buffers[0][0]) for column in (0, 1) for page in file.column(column).pages
    )
    assert len(file.column(1).pages) > len(file.column(0).pages)
    assert rows == [(first, start) for first, _, start in expected]


def _bridged() -> dict[str, pa.Array]:
    """Columns of the types that are bridged, without and with nulls."""
    rng = np.random.default_rng(4)
    numbers = pa.array(rng.integers(0, 1 << 60, 3000))
    some = pa.array(rng.random(3000) < 0.2)
    plain: dict[str, pa.Array] = {
        "flat": numbers,
        "bool": pa.array(rng.random(3000) < 0.5),
        "text": pa.array([f"text {i * 7919 % 3000}" for i in range(3000)]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(12000)), 4),
        "wide vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(3000 * 64)), 64),
    }
    nulls = {f"{name} nulls": pa.compute.if_else(some, pa.scalar(None, one.type), one) for name, one in plain.items()}
    return plain | nulls


def _addresses(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None and buffer.size]


@pytest.mark.parametrize("version", VERSIONS)
async def test_pages_of_a_batch_are_decoded_into_one_destination(version: str) -> None:
    for name in _bridged():
        with pytest.MonkeyPatch.context() as monkeypatch:
            await check_destination(name, version, monkeypatch)


async def check_destination(name: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode all pages of a column at once, and check that the parts were written into the memory of the result."""
    table = pa.table({"c": _bridged()[name]})
    data = write_file(table, version, data_cache_bytes=50 if name.startswith("bool") else 10_000, batch_rows=500)
    file = await open_bytes(data)
    pages = len(file.column(0).pages)
    assert pages > 1
    parts: list[tuple[int, int, int]] = []  # The address of the destination, the start and the end.

    def decode_into(rows: LeafRows, skip: int, count: int, targets: Sequence[OutputBuffer | None]) -> None:
        before = [0 if target is None else target.position for target in targets]
        write(rows, skip, count, targets)
        for target, start in zip(targets, before, strict=True):
            if target is not None:
                parts.append((target.memory.__array_interface__["data"][0], start, target.position))

    def append(texts: StringBuilder, values: Values, share: float) -> None:
        start = texts.size_bytes
        put(texts, values, share)
        assert texts.memory is not None
        parts.append((-1, start, texts.size_bytes))

    def finish(texts: StringBuilder) -> Texts:
        whole = end(texts)
        assert texts.memory is not None
        destinations.append(texts.memory.address)
        return whole

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("arrays of pages were concatenated")

    destinations: list[int] = []
    write, put, end = LeafRows.decode_into, StringBuilder.append, StringBuilder.finish
    monkeypatch.setattr(StringBuilder, "finish", finish)
    monkeypatch.setattr(LeafRows, "decode_into", decode_into)
    monkeypatch.setattr(StringBuilder, "append", append)
    io = MemoryIo(data)
    root, rows = start_scan(file, io, [(0, 3000)])
    await root.wait(rows)
    with monkeypatch.context() as patch:
        patch.setattr(pa, "concat_arrays", fail)
        column = root.drain(rows).decode().column(0)
    assert column.equals(table.column(0).combine_chunks())
    found = _addresses(column)
    assert all(address % 64 == 0 for address in found)
    if name.startswith("text"):
        assert column.buffers()[2].address == destinations[-1]
    else:
        assert set(found) == {destination for destination, _, _ in parts}
    # Every page wrote its part of every destination, each behind the one before.
    for destination in {one for one, _, _ in parts}:
        own = [(start, stop) for one, start, stop in parts if one == destination]
        assert len(own) >= pages
        assert own[0][0] == 0
        assert all(before[1] == after[0] for before, after in pairwise(own))
    assert CONCATENATED


@pytest.mark.parametrize("version", VERSIONS)
async def test_large_batches_are_decoded_in_pieces(version: str) -> None:
    table = pa.concat_tables([_table()] * 8)
    data = write_file(table, version)
    io = MemoryIo(data)
    root, rows = start_scan(await open_bytes(data), io, [(0, 8 * ROWS)])
    await root.wait(rows)
    task = root.drain(rows)
    tracemalloc.start()
    try:
        batch = task.decode()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pa.Table.from_batches([batch]) == table
    assert peak_bytes < 2 * batch.nbytes


async def test_nulls_take_no_more_than_a_batch_may(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in VERSIONS:
        data = write_file(pa.table({"v": pa.nulls(100, pa.list_(pa.float64(), 4))}), version)
        file = await open_bytes(data)
        file.fields = (replace(file.fields[0], arrow=pa.field("v", pa.list_(pa.float64(), 1_000_000_000))),)
        root, rows = start_scan(file, MemoryIo(data), [(0, 100)])
        await root.wait(rows)
        with pytest.raises(Unsupported, match="fewer rows a batch"):
            root.drain(rows).decode()


async def test_memory_that_is_not_there_is_an_error_of_ours(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    root, rows = start_scan(await open_bytes(data), MemoryIo(data), [(0, ROWS)], ["numbers"])
    await root.wait(rows)
    monkeypatch.setattr("aioprefetch.lance.structural.assembly.LeafRows", full)
    with pytest.raises(Unsupported, match="fewer rows a batch"):
        root.drain(rows).decode()


async def test_batches_decode_in_any_order(data: bytes) -> None:
    io = MemoryIo(data)
    root, rows = start_scan(await open_bytes(data), io, [(0, ROWS)])
    await root.wait(rows)
    tasks = [root.drain(1000) for _ in range(ROWS // 1000)]
    order = np.random.default_rng(3).permutation(len(tasks))
    batches = {int(index): tasks[index].decode() for index in order}
    assert pa.Table.from_batches([batches[index] for index in range(len(tasks))]).combine_chunks() == _table()


async def test_a_failed_read_fails_the_batch(data: bytes) -> None:
    io = MemoryIo(data, holds=lambda read: read.is_follow_up)
    root, rows = start_scan(await open_bytes(data), io, [(5, 6)], ["numbers"])
    while len(io.reads) < 2:
        await io.tasks[0]
    io.reads[1].error = Unavailable("gone", operation="read")
    io.reads[1].arrived.set()
    with pytest.raises(Unavailable):
        await root.wait(rows)
    root.close()
    assert all(read.released for read in io.reads)


async def test_blobs_and_lists_of_structs_of_fixed_size_are_named() -> None:
    blobs = pa.schema([pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    data = write_file(pa.table([pa.array([b"x", b"y"], pa.large_binary())], schema=blobs), "2.1")
    with pytest.raises(Unsupported, match="blob field 'b'"):
        start_scan(await open_bytes(data), MemoryIo(data), [(0, 2)])
    pairs = pa.array([[{"a": 1}, {"a": 2}]], pa.list_(pa.struct([("a", pa.int32())]), 2))
    data = write_file(pa.table({"f": pairs}), "2.2")
    with pytest.raises(Unsupported, match="fixed-size list of structs"):
        start_scan(await open_bytes(data), MemoryIo(data), [(0, 1)])


async def test_errors_name_file_and_field(data: bytes) -> None:
    file = await open_bytes(data)
    broken = bytearray(data)
    start, _ = file.column(0).pages[0].buffers[0]
    broken[start : start + 2] = b"\xff\xff"
    io = MemoryIo(bytes(broken))
    root, rows = start_scan(file, io, [(0, ROWS)], ["numbers"])
    await root.wait(rows)
    with pytest.raises(UntrustedMetadata) as caught:
        root.drain(rows).decode()
    assert isinstance(caught.value, Error)
    assert caught.value.path == file.path
    assert caught.value.context["field"] == "numbers"
