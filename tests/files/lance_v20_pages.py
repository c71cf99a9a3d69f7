"""Files of version 2.0 in memory: pylance writes them, and their pages are scheduled and decoded by hand."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter

import aioprefetch as ap
from aioprefetch.lance.footer import LanceFile, open_file
from aioprefetch.lance.logical import make_field
from aioprefetch.lance.output import RecordRoot
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges
from aioprefetch.scheduler.pages import DecodeTask
from aioprefetch.scheduler.scheduling_loop import scan_lines


def write_file(path: Path, table: pa.Table, *, batches: int = 1, data_cache_bytes: int | None = None) -> bytes:
    """A file of version 2.0. A small ``data_cache_bytes`` and many batches make many pages."""
    rows = -(-table.num_rows // batches) if table.num_rows else 0
    with LanceFileWriter(str(path), table.schema, version="2.0", data_cache_bytes=data_cache_bytes) as writer:
        for start in range(0, table.num_rows, rows or 1):
            writer.write_batch(unsliced(table.slice(start, rows)))
    return path.read_bytes()


def unsliced(table: pa.Table) -> pa.Table:
    """A copy of the rows at offset 0: the writer of 2.0 fails on slices."""
    return table.take(pa.array(range(table.num_rows)))


async def open_bytes(data: bytes) -> LanceFile:
    """Open a file of these bytes."""
    async with ap.Operator.from_uri("memory://lance-v20") as operator:
        await operator.write("file.lance", data)
        file = await open_file(operator, "file.lance", tail_bytes=max(len(data), 1))
        await file.load_columns(range(file.column_count))
        return file


@dataclass(eq=False)
class MemoryRead:
    """A read of ranges of the file, held back until ``arrive``."""

    data: memoryview
    ranges: list[Range]
    row: int
    is_follow_up: bool
    error: Exception | None = None
    wanted: bool = False
    released: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> bool:
        return self.arrived.is_set()

    @property
    def views(self) -> Sequence[memoryview]:
        assert self.done
        if self.error is not None:
            raise self.error
        return [self.data[start:end] for start, end in self.ranges]

    def promote(self) -> None:
        self.wanted = True

    async def arrive(self) -> None:
        await self.arrived.wait()

    async def wait(self) -> Sequence[memoryview]:
        self.promote()
        await self.arrived.wait()
        return self.views

    def release(self) -> None:
        self.released = True


class MemoryIo:
    """``PageIo`` over bytes. ``holds`` selects the reads that are held back."""

    def __init__(self, data: bytes, holds: Callable[[MemoryRead], bool] = lambda read: False) -> None:
        self._memory = np.frombuffer(data, np.uint8).copy()  # Aligned, unlike the body of a bytes object.
        self.data = self._memory.data.toreadonly()
        self.size = len(data)
        self.address = self._memory.__array_interface__["data"][0]
        self.holds = holds
        self.reads: list[MemoryRead] = []
        self.tasks: list[asyncio.Task[None]] = []

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> MemoryRead:
        assert all(0 <= start < end <= self.size for start, end in ranges), ranges
        read = MemoryRead(self.data, list(ranges), row, is_follow_up)
        self.reads.append(read)
        if not self.holds(read):
            read.arrived.set()
        return read

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def start_scan(
    file: LanceFile,
    io: MemoryIo,
    ranges: Sequence[Range],
    columns: Sequence[str] | None = None,
    *,
    make: Callable[..., tuple[Any, Any]] = make_field,
) -> tuple[RecordRoot, int]:
    """Schedule every page of ``ranges`` and append it to the root. Returns the root and the number of rows.

    ``make`` builds the scheduler and the decoder of a field, by default those of version 2.0.
    """
    fields = [field for field in file.fields if columns is None or field.name in columns]
    pairs = [make(file, field, RowRanges.of(ranges)) for field in fields]
    root = RecordRoot(pa.schema([field.arrow for field in fields]), [decoder for _, decoder in pairs])
    rows = sum(end - start for start, end in ranges)
    for line in scan_lines([scheduler for scheduler, _ in pairs], io, rows):
        for column, page in line.pages:
            root.accept(column, page)
    return root, rows


async def drain_all(root: RecordRoot, rows: int, batch_rows: int) -> pa.Table:
    """All batches, in order."""
    schema, batches = None, []
    while rows:
        count = min(rows, batch_rows)
        await root.wait(count)
        assert root.loaded_rows(count) == count
        count = root.fitting_rows(count, 1 << 40)
        task: DecodeTask = root.drain(count)
        batch = task.decode()
        batch.validate(full=True)
        assert batch.num_rows == count
        task.release()
        batches.append(batch)
        schema = batch.schema
        rows -= count
    return pa.Table.from_batches(batches, schema)


async def read_rows(
    data: bytes,
    ranges: Sequence[Range],
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = 1000,
    file: LanceFile | None = None,
) -> pa.Table:
    """The decoded rows. Every read must be released at the end."""
    file = file or await open_bytes(data)
    io = MemoryIo(data)
    try:
        root, rows = start_scan(file, io, ranges, columns)
        table = await drain_all(root, rows, batch_rows)
        root.close()
        assert all(read.released for read in io.reads)
        return table
    finally:
        await io.close()


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column with decoded dictionaries at any depth: batches may have different dictionaries for equal values."""
    return column.cast(_plain_type(column.type)) if _plain_type(column.type) != column.type else column


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(_plain_type(child.type)) for child in kind])
    return kind


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """Assert equal types and values."""
    assert found.schema.names == expected.schema.names
    assert found.num_rows == expected.num_rows
    for name in expected.schema.names:
        assert found[name].type == expected[name].type
        assert plain(found[name]).equals(plain(expected[name])), name


def picked(table: pa.Table, ranges: Sequence[Range]) -> pa.Table:
    """The rows of the ranges, taken by Arrow."""
    parts = [table.slice(start, end - start) for start, end in ranges]
    return pa.concat_tables(parts) if parts else table.slice(0, 0)


def random_ranges(rng: np.random.Generator, rows: int, most: int) -> list[Range]:
    """Sorted, disjoint, not empty, at most ``most`` of them."""
    if not rows:
        return []
    bounds = sorted(set(rng.integers(0, rows + 1, 2 * int(rng.integers(1, most + 1))).tolist()))
    pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
    return pairs or [(0, rows)]


def random_take(rng: np.random.Generator, rows: int, most: int) -> list[Range]:
    """The ranges of random single rows, with adjacent rows merged."""
    ranges: list[Range] = []
    for row in sorted(set(rng.integers(0, rows, int(rng.integers(1, most + 1))).tolist())):
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return ranges
