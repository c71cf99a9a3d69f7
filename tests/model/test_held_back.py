"""A store that holds back one request: every row before the first row of that request arrives all the same."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import aioprefetch as ap
from aioprefetch.lance.footer import open_file
from aioprefetch.scan import BatchScan
from aioprefetch.scheduler.decode_loop import SHORT_BATCH_SECONDS
from aioprefetch.testing import run_virtual
from tests.files.lance_files import PATH, stored, write_file
from tests.profile import each_of
from tests.stores.gated_reader import MIB, bench, settle

ROWS = 30_000
HELD = 8  # how many requests are held back, one after the other, each in a run of its own


def table() -> pa.Table:
    """Columns of different widths, so that pages of one begin in the middle of another's."""
    random = np.random.default_rng(3)
    return pa.table(
        {
            "row": pa.array(range(ROWS), pa.int64()),
            "score": pa.array(random.integers(0, 1 << 14, ROWS), pa.int16()),
            "name": pa.array([f"the name of row {row}" for row in range(ROWS)]),
        }
    )


def parquet_file() -> bytes:
    """Ten row groups, and beside what is read so much that only the last ones come with the footer."""
    stored = io.BytesIO()
    beside = pa.array([bytes(100)] * ROWS, pa.binary(100))
    pq.write_table(
        table().append_column("beside", beside), stored, row_group_size=3000, use_dictionary=False, compression="none"
    )
    return stored.getvalue()


FILES: dict[str, tuple[Callable[[], bytes], Callable[..., BatchScan]]] = {
    "parquet": (parquet_file, lambda *args, **options: ap.parquet.scan(*args, columns=["row", "name"], **options)),
    "lance 2.0": (lambda: write_file(table(), "2.0", 3 << 15, batch_rows=1000), lambda *a, **o: ap.lance.scan(*a, **o)),
    "lance 2.2": (lambda: write_file(table(), "2.2", 3 << 13, batch_rows=1000), lambda *a, **o: ap.lance.scan(*a, **o)),
}
OPTIONS: dict[str, Any] = {"gap_bytes": 0, "request_bytes_max": 64 << 10, "batch_rows": 700, "slots": 64}


async def consume(scan: BatchScan, seen: list[int]) -> None:
    """Take every batch."""
    async for batch in scan:
        seen.extend(batch.column("row").to_pylist())


async def run_with_one_held(data: bytes, make: Callable[..., BatchScan], number: int) -> tuple[list[int], int, int]:
    """The rows that arrived while request ``number`` was held back, its range, and the rows in the end."""
    async with bench(MIB, memory_bytes=64 * MIB) as b:
        b.put(data, "t")
        b.gate.open = False
        scan = make(b.operator, "t", **OPTIONS)
        seen: list[int] = []
        consumer = asyncio.ensure_future(consume(scan, seen))
        held = None
        for _ in range(400):
            await settle()
            waiting = [call for call in b.calls if not call.ended and call is not held]
            data_calls = [call for call in b.calls if call.request.suffix is None]
            if held is None and len(data_calls) > number:
                held = data_calls[number]
                continue
            if not waiting:
                before = len(seen)
                await asyncio.sleep(2 * SHORT_BATCH_SECONDS)  # Of the virtual clock.
                await settle()
                if len(seen) == before and all(call.ended for call in b.calls if call is not held):
                    break
            for call in waiting:
                call.finish()
        assert held is not None
        assert held.request.size is not None
        arrived = list(seen)
        held.finish()
        b.gate.open = True
        for call in b.calls:
            if not call.ended:
                call.finish()
        await consumer
        assert seen == list(range(ROWS))
        return arrived, held.request.offset, held.request.offset + held.request.size


@each_of("number", range(HELD))
@each_of("name", FILES)
def test_rows_before_a_request_that_hangs_arrive(name: str, number: int) -> None:
    make_file, make = FILES[name]
    data = make_file()
    arrived, start, end = run_virtual(lambda: run_with_one_held(data, make, number))
    first = first_row_of(name, data, start, end)
    assert arrived == list(range(len(arrived)))
    assert len(arrived) >= first, f"{len(arrived)} rows arrived; the request [{start}, {end}) begins at row {first}"


def first_row_of(name: str, data: bytes, start: int, end: int) -> int:
    """The first row that any byte of a request belongs to, by pyarrow's or pylance's metadata."""
    if name == "parquet":
        metadata = pq.read_metadata(io.BytesIO(data))
        rows = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for column in (group.column(0), group.column(2)):
                low = column.data_page_offset
                if low < end and start < low + column.total_compressed_size:
                    return rows
            rows += group.num_rows
        raise AssertionError(f"[{start}, {end}) is of no row group")
    return min(first for first, low, high in lance_pages(data) if low < end and start < high)


def lance_pages(data: bytes) -> list[tuple[int, int, int]]:
    """First row and bytes of every buffer of every page."""

    async def read() -> list[tuple[int, int, int]]:
        found = []
        async with stored(data) as operator:
            file = await open_file(operator, PATH)
            await file.load_columns(range(3))
            for number in range(3):
                first = 0
                for page in file.column(number).pages:
                    found += [(first, low, high) for low, high in page.buffers]
                    first += page.rows
        return found

    return asyncio.run(read())
