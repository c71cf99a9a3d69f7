"""Batches of one page share its memory; batches of several pages are one allocation that each page decodes into."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

import aioprefetch as ap
from aioprefetch.lance import output
from aioprefetch.lance.logical.fields import ListPortion
from aioprefetch.lance.physical.protocols import INT32_MAX, PageRows, RowBits, RowOffsets, RowText, RowValues
from aioprefetch.lance.physical.strings import BinaryRows, Ends, TextRows
from tests.files.lance_v20_columns import table_of
from tests.files.lance_v20_pages import (
    MemoryIo,
    assert_same,
    drain_all,
    open_bytes,
    start_scan,
    write_file,
)

ROWS = 720
BRIDGED = [
    *("int64", "int16", "float", "bool", "bool with nulls", "int32 with nulls", "decimal256", "fixed binary of 3"),
    *("vectors", "vectors with nulls", "vectors of bools", "string", "large_string", "binary", "lists"),
    *(
        "lists of strings",
        "lists of lists",
        "lists of structs",
        "few strings",
        "zstd",
        "fsst",
        "blobs",
        "packed structs",
    ),
]


async def _file(tmp_path: Path, name: str, batches: int, rows: int = ROWS) -> tuple[pa.Table, bytes]:
    table = table_of(name, np.random.default_rng(3), rows)
    return table, write_file(tmp_path / "f.lance", table, batches=batches, data_cache_bytes=1)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("int64", [1]),
        ("fixed binary", [1]),
        ("bool", [1]),
        ("int32 with nulls", [0, 1]),
        ("vectors", [2]),
        ("vectors with nulls", [0, 1, 2]),
        ("string", [2]),
        ("lists", [3]),
        ("decimal256", [1]),
    ],
)
async def test_a_batch_of_one_page_shares_its_memory(tmp_path: Path, name: str, shared: list[int]) -> None:
    table, data = await _file(tmp_path, name, batches=8)
    io = MemoryIo(data)
    root, _ = start_scan(await open_bytes(data), io, [(0, ROWS)])
    for start, rows in ((0, 40), (40, 50)):  # Of the first page of 90 rows; 40 is the first bit of a byte.
        await root.wait(rows)
        batch = root.drain(rows).decode()
        buffers = batch.column(0).buffers()
        for index in shared:
            assert io.address <= buffers[index].address < io.address + io.size
        assert batch.column(0).equals(table["x"].slice(start, rows).combine_chunks())
    root.close()


@pytest.mark.parametrize("name", BRIDGED)
async def test_nothing_is_concatenated(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, data = await _file(tmp_path, name, batches=8)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("concatenated")

    for batch_rows in (ROWS, 130):
        root, rows = start_scan(await open_bytes(data), MemoryIo(data), [(0, ROWS)])
        with monkeypatch.context() as patch:
            patch.setattr(pa, "concat_arrays", refuse)
            found = await drain_all(root, rows, batch_rows)
        assert_same(found, table)


@pytest.mark.parametrize(
    ("name", "rows_class", "buffer"),
    [
        ("int64", RowValues, 1),
        ("vectors", RowValues, 2),
        ("int32 with nulls", RowBits, 0),
        ("bool", RowBits, 1),
        ("lists", RowValues, 3),
    ],
)
async def test_every_page_decodes_into_the_same_allocation(
    tmp_path: Path, name: str, rows_class: type, buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, data = await _file(tmp_path, name, batches=8)
    root, rows = start_scan(await open_bytes(data), MemoryIo(data), [(0, ROWS)])
    calls: list[tuple[int, int]] = []
    original = rows_class.write  # type: ignore[attr-defined]

    def spy(page: Any, skip: int, count: int, target: Any) -> None:
        calls.append((target.memory.__array_interface__["data"][0], target.position))
        original(page, skip, count, target)

    monkeypatch.setattr(rows_class, "write", spy)
    await root.wait(rows)
    batch = root.drain(rows).decode()
    address = batch.column(0).buffers()[buffer].address
    assert len(calls) == 8
    assert {start for start, _ in calls} == {address}
    assert address % 64 == 0
    positions = [position for _, position in calls]
    assert positions == sorted(set(positions))
    assert batch.column(0).equals(table["x"].combine_chunks())


async def test_strings_of_several_pages_lie_back_to_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, data = await _file(tmp_path, "string", batches=8)
    root, rows = start_scan(await open_bytes(data), MemoryIo(data), [(0, ROWS)])
    calls: dict[Any, list[tuple[int, int]]] = {RowOffsets: [], RowText: []}
    for kind, original in [(kind, kind.write) for kind in calls]:

        def spy(page: Any, skip: int, count: int, target: Any, original: Any = original) -> None:
            calls[type(page)].append((target.memory.__array_interface__["data"][0], target.position))
            original(page, skip, count, target)

        monkeypatch.setattr(kind, "write", spy)
    await root.wait(rows)
    array = root.drain(rows).decode().column(0)
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    _, stored, content = (buffer and buffer.address for buffer in array.buffers())
    assert calls[RowOffsets] == [(stored, 1 + 90 * page) for page in range(8)]
    assert calls[RowText] == [(content, int(offsets[90 * page])) for page in range(8)]
    assert array.equals(table["x"].combine_chunks())


@pytest.mark.parametrize("name", ["dictionary of strings", "dictionary in int8", "dictionary of numbers"])
async def test_dictionaries_that_differ_become_one(tmp_path: Path, name: str) -> None:
    table, data = await _file(tmp_path, name, batches=8)
    for batch_rows in (ROWS, 130, 90):
        root, rows = start_scan(await open_bytes(data), MemoryIo(data), [(0, ROWS)])
        found = await drain_all(root, rows, batch_rows)
        assert_same(found, table)
        assert found["x"].null_count == table["x"].null_count


async def test_too_many_values_for_the_indices_of_a_dictionary_are_refused(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    parts = [
        pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), pa.array([f"{part}-{i}" for i in range(100)]))
        for part in range(2)
    ]
    path = tmp_path / "f.lance"
    with output_writer(path, kind) as writer:
        for part in parts:
            writer.write_batch(pa.table({"x": part}))
    data = path.read_bytes()
    root, _ = start_scan(await open_bytes(data), MemoryIo(data), [(0, 200)])
    await root.wait(200)
    first = root.drain(100).decode()
    assert first.column(0).equals(parts[0])
    root, _ = start_scan(await open_bytes(data), MemoryIo(data), [(0, 200)])
    await root.wait(200)
    with pytest.raises(ap.errors.Unsupported, match="200 values"):
        root.drain(200).decode()


def output_writer(path: Path, kind: pa.DataType) -> Any:
    """A writer of one column, a page for each batch."""
    return LanceFileWriter(str(path), pa.schema([("x", kind)]), version="2.0", data_cache_bytes=1)


async def test_the_small_rest_of_a_large_page_is_copied(tmp_path: Path) -> None:
    rows = 40_000
    table = pa.table({"x": np.arange(rows)})
    data = write_file(tmp_path / "f.lance", table)
    io = MemoryIo(data)
    root, _ = start_scan(await open_bytes(data), io, [(0, rows)])
    await root.wait(rows)
    for count, is_shared in ((30_000, True), (2_000, True), (8_000, False)):
        array = root.drain(count).decode().column(0)
        assert (io.address <= array.buffers()[1].address < io.address + io.size) == is_shared
    assert array.equals(table["x"].slice(32_000).combine_chunks())


async def test_values_that_are_not_aligned_are_copied(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(100)})
    data = write_file(tmp_path / "f.lance", table)
    io = MemoryIo(data)
    shifted = np.zeros(len(data) + 1, np.uint8)
    shifted[1:] = np.frombuffer(data, np.uint8)
    io.data = shifted.data[1:]
    root, _ = start_scan(await open_bytes(data), io, [(0, 100)])
    await root.wait(100)
    array = root.drain(100).decode().column(0)
    assert array.buffers()[1].address % 8 == 0
    assert array.equals(table["x"].combine_chunks())


@pytest.mark.parametrize("name", ["string", "vectors"])
async def test_the_reads_of_a_page_are_spent_with_its_last_rows(tmp_path: Path, name: str) -> None:
    _, data = await _file(tmp_path, name, batches=8)
    io = MemoryIo(data)
    root, _ = start_scan(await open_bytes(data), io, [(0, ROWS)])
    tasks = []
    for count in (89, 1, 30, 100, 50, 450):
        await root.wait(count)
        tasks.append(root.drain(count))
    assert not any(read.released for read in io.reads)
    tasks[0].release()
    assert not any(read.released for read in io.reads)
    tasks[1].release()
    assert [read.released for read in io.reads] == [True] + [False] * 7
    for task in tasks[2:]:
        task.release()
    assert all(read.released for read in io.reads)
    root.close()


def _large(width: int) -> BinaryRows:
    """A page of 3 GiB of strings without that memory: it is one byte, repeated."""
    size = 3 << 30
    ends = Ends(np.array([size // 2, size], np.uint64), 0, size + 1, size)
    content = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (size,), (0,))
    return BinaryRows(ends, content, 0, width)


def test_more_than_2_gib_of_strings_in_a_batch_are_refused() -> None:
    piece: PageRows[Any] = PageRows(_large(4), 0, 2)
    with pytest.raises(ap.errors.Unsupported, match="32-bit offsets"):
        output.assemble(pa.string(), [piece])
    with pytest.raises(ap.errors.Unsupported, match="32-bit offsets"):
        output.assemble(pa.binary(), [PageRows(_large(4), 0, 1), PageRows(_large(4), 1, 1)])


def test_more_items_than_32_bit_offsets_count_are_refused() -> None:
    class _Items:
        def decode(self) -> pa.Array:
            raise AssertionError("decoded")

    count = INT32_MAX + 1
    portion = ListPortion(pa.list_(pa.null()), _Items())  # type: ignore[arg-type]
    portion.add(PageRows(Ends(np.array([5, count], np.uint64), 0, count + 1, count), 0, 2), ())
    with pytest.raises(ap.errors.Unsupported, match="32-bit offsets"):
        portion.decode()


def test_text_that_is_not_utf8_is_refused() -> None:
    def rows(content: bytes, ends: list[int]) -> PageRows[Any]:
        page = TextRows(np.array([0, *ends]), np.frombuffer(content, np.uint8), RowBits(None), 4)
        return PageRows(page, 0, len(ends))

    assert output.assemble(pa.string(), [rows("aäb".encode(), [3, 4])]).to_pylist() == ["aä", "b"]
    for content, ends in ((b"a\xffb", [3]), ("ä".encode(), [1, 2])):
        with pytest.raises(ap.errors.UntrustedMetadata):
            output.assemble(pa.string(), [rows(content, ends)])
        assert len(output.assemble(pa.binary(), [rows(content, ends)])) == len(ends)
