"""Reads that follow other reads: their ranges, time and row, and their failures."""

import asyncio
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.lance.footer import LanceFile
from aioprefetch.lance.logical.nested import LoadingListPage, StructField
from aioprefetch.lance.physical import indirect, strings
from aioprefetch.lance.physical.strings import StoredEnds
from aioprefetch.row_ranges import RowRanges
from tests.files.lance_v20_columns import table_of
from tests.files.lance_v20_pages import (
    MemoryIo,
    MemoryRead,
    assert_same,
    drain_all,
    open_bytes,
    picked,
    start_scan,
    write_file,
)

ROWS = 720
PAGE = 90


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the bytes of small pages indirectly too: the pages of these tests are small."""
    monkeypatch.setattr(strings, "DIRECT_BYTES", 0)


async def _file(tmp_path: Path, name: str, *, batches: int = 8) -> tuple[pa.Table, bytes, LanceFile]:
    table = table_of(name, np.random.default_rng(11), ROWS)
    data = write_file(tmp_path / "f.lance", table, batches=batches, data_cache_bytes=1)
    return table, data, await open_bytes(data)


async def _settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def _in(read: MemoryRead, file: LanceFile, column: int) -> bool:
    buffers = [one for page in file.column(column).pages for one in page.buffers]
    return any(start <= read.ranges[0][0] < end for start, end in buffers)


@pytest.mark.parametrize("name", ["string", "fsst", "zstd", "lists", "lists of strings", "lists of lists of strings"])
async def test_pages_that_are_wanted_whole_need_no_second_round_trip(tmp_path: Path, name: str) -> None:
    _, data, file = await _file(tmp_path, name)
    io = MemoryIo(data, holds=lambda read: True)
    root, _ = start_scan(file, io, [(0, ROWS)])
    planned = len(io.reads)
    assert io.tasks == []
    buffers = [one for column in range(file.column_count) for page in file.column(column).pages for one in page.buffers]
    asked = sorted(one for read in io.reads for one in read.ranges)
    assert asked == sorted((start, end) for start, end in buffers if end > start)
    await _settle()
    assert len(io.reads) == planned
    root.close()
    assert all(read.released for read in io.reads)


async def test_the_bytes_of_small_pages_are_read_with_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, data, file = await _file(tmp_path, "string")
    start, end = file.column(0).pages[0].buffers[1]
    ranges = [(10, 12), (50, 60)]
    for most_bytes, is_direct in ((end - start, True), (end - start - 1, False)):
        monkeypatch.setattr(strings, "DIRECT_BYTES", most_bytes)
        io = MemoryIo(data)
        root, rows = start_scan(file, io, ranges)
        assert (len(io.tasks) == 0) == is_direct
        assert ((start, end) in io.reads[0].ranges) == is_direct
        assert_same(await drain_all(root, rows, 5), picked(table, ranges))
        await io.close()


async def test_follow_up_tasks_do_not_promote_reads(tmp_path: Path) -> None:
    for name in ("string", "lists of strings", "blobs"):
        _, data, file = await _file(tmp_path, name)
        io = MemoryIo(data, holds=lambda read: True)
        root, _ = start_scan(file, io, [(10, 50), (100, 130)])
        await _settle()
        assert not any(read.wanted for read in io.reads)
        root.close()
        await io.close()


async def test_strings_of_some_rows_are_read_when_their_ends_have_come(tmp_path: Path) -> None:
    table, data, file = await _file(tmp_path, "string")
    io = MemoryIo(data, holds=lambda read: True)
    ranges = [(10, 12), (50, 60), (100, 101)]
    root, rows = start_scan(file, io, ranges)
    pages = file.column(0).pages
    first, second = pages[0].buffers[0][0], pages[1].buffers[0][0]
    assert [read.ranges for read in io.reads] == [
        [(first + 8 * 9, first + 8 * 12), (first + 8 * 49, first + 8 * 60)],
        [(second + 8 * 9, second + 8 * 11)],
    ]
    assert [read.row for read in io.reads] == [0, 12]
    io.reads[1].arrived.set()
    await _settle()
    assert len(io.reads) == 3
    assert io.reads[2].is_follow_up
    assert io.reads[2].row == 12
    text = "".join(table["x"][100:101].to_pylist()).encode()
    assert sum(end - start for start, end in io.reads[2].ranges) == len(text)
    assert root.loaded_rows(rows) == 0
    io.reads[0].arrived.set()
    await _settle()
    assert [read.row for read in io.reads] == [0, 12, 12, 0]
    for read in io.reads:
        read.arrived.set()
    assert_same(await drain_all(root, rows, 5), picked(table, ranges))
    await io.close()


@pytest.mark.parametrize("name", ["lists of strings", "lists of lists of strings", "lists of structs"])
async def test_items_have_the_rows_of_their_lists(tmp_path: Path, name: str) -> None:
    table, data, file = await _file(tmp_path, name)
    io = MemoryIo(data)
    ranges = [(30, 70), (200, 300), (500, 501)]
    root, rows = start_scan(file, io, ranges)
    await _settle()
    starts = {0: 0, 40: 200, 110: 270, 140: 500}  # The first wanted row of each page, in the scan and in the file.
    assert [read.row for read in io.reads if _in(read, file, 0)] == list(starts)
    for read in io.reads:
        # Items of later lists may lie in a page that begins before: their row is that of the first item.
        page_row = max(row for row in starts if row <= read.row)
        empty = [not items for items in picked(table, ranges)["x"].to_pylist()[page_row:]]
        assert read.row == page_row + (0 if _in(read, file, 0) else empty.index(False))
    assert all(read.is_follow_up or _in(read, file, 0) or read.row > 0 for read in io.reads)
    assert_same(await drain_all(root, rows, 33), picked(table, ranges))
    await io.close()


async def test_rows_before_a_read_that_hangs_are_loaded(tmp_path: Path) -> None:
    table, data, file = await _file(tmp_path, "lists of strings")
    hanging = file.column(1).pages[3].buffers[0]
    io = MemoryIo(data, holds=lambda read: read.ranges[0][0] == hanging[0])
    root, rows = start_scan(file, io, [(0, ROWS)])
    loaded = root.loaded_rows(rows)
    assert 3 * PAGE <= loaded < 4 * PAGE
    assert root.loaded_rows(100) == 100
    await root.wait(loaded)
    assert root.drain(loaded).decode().column(0).equals(table["x"].slice(0, loaded).combine_chunks())
    waiting = asyncio.ensure_future(root.wait(rows - loaded))
    await _settle()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    for read in io.reads:
        read.arrived.set()
    assert_same(await drain_all(root, rows - loaded, 100), table.slice(loaded))


@pytest.mark.parametrize("name", ["string", "lists", "lists of strings", "structs of lists", "int64", "blobs"])
async def test_reads_are_promoted_before_a_batch_waits(tmp_path: Path, name: str) -> None:
    _, data, file = await _file(tmp_path, name)
    io = MemoryIo(data, holds=lambda read: True)
    root, _ = start_scan(file, io, [(5, 2 * PAGE + 5), (400, 500)])
    waiting = asyncio.ensure_future(root.wait(PAGE + 10))
    await _settle()
    for _ in range(10):  # Until all wanted reads have arrived.
        for read in io.reads:
            if read.wanted:
                read.arrived.set()
        await _settle()
    assert waiting.done()
    waiting.result()
    unwanted = {read.row for read in io.reads if not read.arrived.is_set()}
    assert max(unwanted, default=0) >= 2 * PAGE or name in (
        "string",
        "blobs",
    )  # The last page of these is scheduled by a task.
    root.close()
    await io.close()


async def test_every_column_is_wanted_before_the_first_is_awaited(tmp_path: Path) -> None:
    table = pa.table({"a": range(10), "b": range(10)})
    data = write_file(tmp_path / "f.lance", table)
    io = MemoryIo(data, holds=lambda read: True)
    root, rows = start_scan(await open_bytes(data), io, [(0, 10)])
    waiting = asyncio.ensure_future(root.wait(rows))
    await _settle()
    assert [read.wanted for read in io.reads] == [True, True]
    for read in io.reads:
        read.arrived.set()
    await waiting


async def test_pages_of_items_are_needed_about_where_their_items_are(tmp_path: Path) -> None:
    lists = pa.array([list(range(40)) for _ in range(100)], pa.list_(pa.int64()))
    data = write_file(tmp_path / "f.lance", pa.table({"x": lists}), batches=10, data_cache_bytes=3000)
    file = await open_bytes(data)
    lengths, items = ([page.rows for page in file.column(index).pages] for index in (0, 1))
    assert (lengths, len(items) > 3) == ([100], True)
    io = MemoryIo(data)
    start_scan(file, io, [(0, 100)])
    found = [read.row for read in io.reads]
    assert found == [0, *(sum(items[:page]) * 100 // 4000 for page in range(len(items)))]


@pytest.mark.parametrize("is_whole", [False, True])
async def test_lists_that_end_beyond_their_items_are_refused(is_whole: bool) -> None:
    io = MemoryIo(bytes(100))
    items = StructField([], pa.struct([]), 9)
    ends = StoredEnds((0, 80), 10, 8, 7)
    wanted = RowRanges.one(0, 10 if is_whole else 5)
    LoadingListPage(ends, wanted, items, 2, io, lambda position: position)
    with pytest.raises(ap.errors.UntrustedMetadata, match="item 10 of 9"):
        LoadingListPage(ends, wanted, items, 3, io, lambda position: position)
    await io.close()


@pytest.mark.parametrize("name", ["string", "lists of strings", "lists of lists of strings", "blobs", "few strings"])
@pytest.mark.parametrize("is_second", [False, True])
async def test_a_read_that_fails_fails_the_rows_that_need_it(tmp_path: Path, name: str, is_second: bool) -> None:
    table, data, file = await _file(tmp_path, name)
    failure = ap.errors.Unavailable("no response")

    def fail(read: MemoryRead) -> bool:
        if read.row >= 50 and read.is_follow_up == (is_second and name != "few strings"):
            read.error = failure
        return False

    io = MemoryIo(data, holds=fail)
    ranges = [(20, 70), (100, 120)]  # 50 rows of the first page, 20 of the second.
    root, rows = start_scan(file, io, ranges)
    await root.wait(50)
    assert root.drain(50).decode().column(0).equals(table["x"].slice(20, 50).combine_chunks())
    with pytest.raises(ap.errors.Unavailable, match="no response") as caught:
        await root.wait(rows - 50)
    assert caught.value.path == "file.lance"
    assert caught.value.context["field"] == "x"
    assert root.loaded_rows(rows - 50) == 0
    root.close()
    await io.close()


@pytest.mark.parametrize("name", ["string", "lists of strings", "blobs"])
async def test_a_closed_scan_fails_who_still_waits(tmp_path: Path, name: str) -> None:
    _, data, file = await _file(tmp_path, name)
    io = MemoryIo(data, holds=lambda read: True)
    root, rows = start_scan(file, io, [(20, 70)])
    waiting = asyncio.ensure_future(root.wait(rows))
    await _settle()
    await io.close()
    with pytest.raises(ap.errors.Closed):
        await waiting
    root.close()
    assert all(read.released for read in io.reads)


@pytest.mark.parametrize("name", ["string", "lists of strings", "blobs"])
async def test_a_follow_up_submits_nothing_for_a_released_page(tmp_path: Path, name: str) -> None:
    _, data, file = await _file(tmp_path, name)
    io = MemoryIo(data, holds=lambda read: True)
    root, _ = start_scan(file, io, [(20, 70)])
    submitted = len(io.reads)
    root.close()
    for read in io.reads:
        read.arrived.set()
    await _settle()
    assert len(io.reads) == submitted
    await io.close()


async def test_blobs_are_read_in_groups_that_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indirect, "GROUP_BYTES", 100)
    table, data, file = await _file(tmp_path, "blobs", batches=2)
    io = MemoryIo(data)
    root, rows = start_scan(file, io, [(0, ROWS)])
    await _settle()
    groups = [read for read in io.reads if not _in(read, file, 0)]
    assert len(groups) > 20
    for read in groups:
        assert sum(end - start for start, end in read.ranges) <= 100 + 30
        assert read.is_follow_up == (read.row in (0, ROWS // 2))
    assert_same(await drain_all(root, rows, 50), table)
    await io.close()
