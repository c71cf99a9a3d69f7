"""Row groups as pages of the two loops: what is scheduled when, what is decoded when its bytes have come."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.errors import Unavailable, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.byte_plan import Plan, PlanLimits
from aioprefetch.parquet.columns import Projection
from aioprefetch.parquet.file_part import WindowMaker, memory_limits
from aioprefetch.parquet.page_metadata import PageOptions
from aioprefetch.parquet.plan import ScanArguments, plan_scan, scan_arguments
from aioprefetch.parquet.row_groups import LeafScheduler, WindowsDecoder, concatenated, has_dictionaries
from aioprefetch.scheduler.io_service import IoService
from aioprefetch.scheduler.scheduling_loop import scan_lines
from aioprefetch.services.memory import Memory
from tests.unit.parquet.held_reads import HeldIo, HeldRead
from tests.unit.parquet.parquet_files import footer_at_hand, written

ROWS = 4_000
TABLE = pa.table(
    {
        "i": pa.array(range(ROWS), pa.int64()),
        "s": [f"text {n}" for n in range(ROWS)],
        "l": [[n] * (n % 3) for n in range(ROWS)],
    }
)


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """Only its runtime is used."""
    async with Operator.bare(Memory()) as made:
        yield made


class Scanned:
    """Both ends of a scan without its loops: reads that come when the test says so, and the decoder."""

    def __init__(self, data: bytes, plan: Plan, service: IoService, *, batch_rows: int, small_group_bytes: int) -> None:
        footer = footer_at_hand(data)
        footer.pinned.tail_start = len(data)  # Nothing came with the footer.
        self.io = HeldIo(data)
        projection = Projection(footer, plan.columns, None)
        made, units = WindowMaker(
            footer,
            plan,
            projection,
            self.io.memory,
            PageOptions(),
            segment_bytes=service.request_bytes_max,
            small_group_bytes=small_group_bytes,
        ).make(batch_rows)
        self.windows = made
        self.schedulers = [LeafScheduler(one, plan.row_count) for one in units]
        self.root = WindowsDecoder(made, projection.read, on_loop=lambda work: work())
        self.rows = plan.row_count
        self.lines = list(scan_lines(self.schedulers, self.io, plan.row_count))

    def reads_of(self, leaf: int, data: bytes) -> list[HeldRead]:
        chunks = footer_at_hand(data).metadata
        found = []
        for group in range(chunks.num_row_groups):
            column = chunks.row_group(group).column(leaf)
            start = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
            end = start + column.total_compressed_size
            found += [read for read in self.io.reads if start <= read.ranges[0][0] < end]
        return found

    def take(self, rows: int) -> pa.RecordBatch:
        task = self.root.drain(rows)
        assert task.rows == rows
        batch = task.decode()
        task.release()
        return batch


async def scanned(
    operator: Operator,
    data: bytes,
    *,
    segment_bytes: int = 1 << 20,
    batch_rows: int = 65536,
    small_group_bytes: int = 0,
    **options: Any,
) -> Scanned:
    """A scan that is under way. Chunks are scheduled one by one unless ``small_group_bytes`` joins them."""
    plan = await plan_scan(
        footer_at_hand(data), scan_arguments("", **options), PlanLimits(request_bytes_max=segment_bytes)
    )
    service = IoService(operator.accessor(), operator.runtime(), request_bytes_max=segment_bytes)
    return Scanned(data, plan, service, batch_rows=batch_rows, small_group_bytes=small_group_bytes)


def small_pages(table: pa.Table = TABLE, **options: Any) -> bytes:
    options = {"row_group_size": 1_000, "data_page_size": 500, "write_batch_size": 50, "compression": "none"} | options
    return written(table, use_dictionary=False, **options)


async def test_chunks_in_row_major_order(operator: Operator) -> None:
    made = await scanned(operator, small_pages())
    assert [read.row for read in made.io.reads] == [row for row in range(0, ROWS, 1000) for _ in range(3)]
    assert [line.rows for line in made.lines] == [1000, 2000, 3000, 4000]
    assert all(scheduler.is_finished for scheduler in made.schedulers)


async def test_large_chunks_are_cut_and_interleaved(operator: Operator) -> None:
    made = await scanned(operator, small_pages(row_group_size=ROWS), segment_bytes=10_000)
    rows = [read.row for read in made.io.reads]
    assert rows == sorted(rows)
    assert len(rows) > 10
    assert made.lines[-1].rows == ROWS
    assert [line.rows for line in made.lines] == sorted({line.rows for line in made.lines})


async def test_small_row_groups_are_submitted_and_decoded_together(operator: Operator) -> None:
    made = await scanned(operator, small_pages(row_group_size=100), small_group_bytes=1 << 20)
    assert len(made.io.reads) == 40
    assert [read.row for read in made.io.reads] == list(range(0, ROWS, 100))
    assert [len(read.ranges) for read in made.io.reads] == [3] * 40
    assert len(made.windows) == 1
    for read in made.io.reads[:15]:
        read.come()
    assert made.root.loaded_rows(ROWS) == 1_500
    assert made.take(1_450).equals(concatenated(TABLE.slice(0, 1_450).to_batches()))
    assert [read.released for read in made.io.reads[:16]] == [True] * 14 + [False] * 2
    made.root.close()


async def test_rows_are_loaded_as_their_bytes_come(operator: Operator) -> None:
    data = small_pages(TABLE.select(["i", "s"]), row_group_size=2_000)
    made = await scanned(operator, data, segment_bytes=3_000)
    assert made.root.loaded_rows(ROWS) == 0
    loaded, taken = [], 0
    for read in made.io.reads:
        read.come()
        loaded.append(made.root.loaded_rows(ROWS) + taken)
        if loaded[-1] > taken:
            batch = made.take(loaded[-1] - taken)
            assert batch.equals(concatenated(TABLE.select(["i", "s"]).slice(taken, batch.num_rows).to_batches()))
            taken = loaded[-1]
    assert taken == ROWS
    assert loaded == sorted(loaded)
    assert len(set(loaded)) > 10, "they come a few pages at a time"
    assert all(read.released for read in made.io.reads)


async def test_segments_are_given_back_behind_the_decoder(operator: Operator) -> None:
    data = small_pages(TABLE.select(["i"]), row_group_size=ROWS)
    made = await scanned(operator, data, segment_bytes=4_000)
    for read in made.io.reads:
        read.come()
    for _ in range(4):
        made.take(ROWS // 4)
        released = [read.released for read in made.io.reads]
        assert released == sorted(released, reverse=True), "from the first one on"
    assert all(released)


async def test_lists_on_pages_of_version_1_wait_for_their_chunk(operator: Operator) -> None:
    data = small_pages(TABLE.select(["l"]), row_group_size=ROWS, data_page_version="1.0")
    made = await scanned(operator, data, segment_bytes=2_000)
    assert len(made.io.reads) > 3
    for read in made.io.reads[:-1]:
        read.come()
        assert made.root.loaded_rows(ROWS) == 0
    made.io.reads[-1].come()
    assert made.root.loaded_rows(ROWS) == ROWS
    assert made.take(10).column(0).to_pylist() == TABLE.column("l").slice(0, 10).to_pylist()
    assert not any(read.released for read in made.io.reads)
    made.take(ROWS - 10)
    assert all(read.released for read in made.io.reads)


async def test_lists_on_pages_of_version_2_come_page_by_page(operator: Operator) -> None:
    data = small_pages(TABLE.select(["l"]), row_group_size=ROWS, data_page_version="2.0")
    made = await scanned(operator, data, segment_bytes=2_000)
    loaded = []
    for read in made.io.reads:
        read.come()
        loaded.append(made.root.loaded_rows(ROWS))
    assert len(set(loaded)) > 3
    assert made.take(ROWS).column(0).to_pylist() == TABLE.column("l").to_pylist()


async def test_waiting_wants_everything_before_it_waits(operator: Operator) -> None:
    made = await scanned(operator, small_pages())
    waiting = asyncio.ensure_future(made.root.wait(1_500))
    await asyncio.sleep(0)
    assert [read.wanted for read in made.io.reads] == [True] * 6 + [False] * 6
    for read in reversed(made.io.reads[:6]):
        assert not waiting.done()
        read.come()
    await waiting
    assert made.root.loaded_rows(1_500) == 1_500
    made.root.close()


async def test_the_error_of_a_failed_read_is_raised_to_its_waiters(operator: Operator) -> None:
    made = await scanned(operator, small_pages())
    made.io.reads[0].come()
    made.io.reads[1].fail(Unavailable("gone"))
    assert made.root.loaded_rows(10) == 0
    with pytest.raises(Unavailable):
        await made.root.wait(10)
    made.root.close()
    assert all(read.released for read in made.io.reads)


async def test_a_segment_that_was_not_scheduled_yet_is_submitted_when_it_is_needed(operator: Operator) -> None:
    """All strings but a few are short: rows of the first segments are far fewer than the estimate."""
    long = [f"{n}" * 300 if n < 500 else "" for n in range(ROWS)]
    data = small_pages(pa.table({"s": long}), row_group_size=ROWS)
    made = await scanned(operator, data, segment_bytes=20_000)
    made.io.reads.clear()
    scheduler = LeafScheduler([replacement_unit(made)], ROWS)
    scheduler.schedule_next(made.io)
    covered = scheduler.rows_scheduled
    assert 0 < covered < ROWS
    waiting = asyncio.ensure_future(made.root.wait(covered))
    for _ in range(100):
        await asyncio.sleep(0)
        for read in made.io.reads:
            if not read.done:
                read.come()
        if waiting.done():
            break
    await waiting
    assert len(made.io.reads) > 1
    assert made.take(covered).column(0).to_pylist() == long[:covered]
    submitted = len(made.io.reads)
    scheduler.schedule_next(made.io)
    assert len(made.io.reads) == submitted, "it is not submitted twice"


def replacement_unit(made: Scanned) -> Any:
    """The one chunk, as if nothing of it had been scheduled."""
    source: Any = made.windows[0].sources[0]
    unit = source._groups[0][0]
    unit._reads.clear()
    return unit


async def test_batches_of_a_window_may_be_decoded_in_any_order(operator: Operator) -> None:
    made = await scanned(operator, small_pages(row_group_size=ROWS))
    for read in made.io.reads:
        read.come()
    tasks = [made.root.drain(500) for _ in range(8)]
    decoded: dict[int, pa.RecordBatch] = {}
    for index in (3, 1, 0, 7, 2, 6, 5, 4):
        decoded[index] = tasks[index].decode()
        if index == 3:
            assert not any(read.released for read in made.io.reads), "batch 0 may still need all of it"
    table = pa.Table.from_batches([decoded[index] for index in range(8)])
    assert table.equals(TABLE)
    assert all(read.released for read in made.io.reads)


async def test_batches_over_the_border_of_two_windows(operator: Operator) -> None:
    made = await scanned(operator, small_pages(), batch_rows=100)
    assert len(made.windows) > 1
    for read in made.io.reads:
        read.come()
    batches = [made.take(rows) for rows in (999, 2, 1_999, 1_000)]
    assert pa.Table.from_batches(batches).equals(TABLE)
    assert [batch.num_rows for batch in batches] == [999, 2, 1_999, 1_000]


async def test_how_many_rows_fit_into_some_bytes(operator: Operator) -> None:
    made = await scanned(operator, small_pages(TABLE.select(["i"])))
    for read in made.io.reads:
        read.come()
    assert made.root.fitting_rows(ROWS, 800) == 100
    assert made.root.fitting_rows(ROWS, 1) == 1
    assert made.root.fitting_rows(50, 1 << 30) == 50
    assert made.root.fitting_rows(ROWS, 8 * 1_500) == 1_500


async def test_sizes_are_learnt_from_batches(operator: Operator) -> None:
    """A dictionary with one long string among short ones, which all rows have: the mean of its values says little."""
    words = pa.array(["x" * 10_000, *(str(number) for number in range(99))])
    table = pa.table({"s": pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), words)})
    made = await scanned(operator, written(table, row_group_size=ROWS, store_schema=False))
    for read in made.io.reads:
        read.come()
    assert made.root.fitting_rows(ROWS, 100_000) > 500
    made.take(10)
    assert made.root.fitting_rows(ROWS, 100_000) < 10


@pytest.mark.parametrize("paged", [False, True])
async def test_sizes_are_those_of_dictionaries(operator: Operator, paged: bool) -> None:
    """Each of its values is stored once; before the first row is decoded they say what rows become."""
    table = pa.table({"s": ["x" * 5_000 + str(n % 5) for n in range(ROWS)], "i": range(ROWS)})
    data = written(table, row_group_size=ROWS, write_page_index=paged)
    some: dict[str, Any] = {"rows": [(0, 3_000)]} if paged else {}
    made = await scanned(operator, data, **some)
    for read in made.io.reads:
        read.come()
    assert 10 < made.root.fitting_rows(2_000, 100_000) < 20


async def test_columns_with_dictionaries_end_with_their_window(operator: Operator) -> None:
    table = pa.table({"d": pa.array([f"v{n % 9 + n // 1000}" for n in range(ROWS)]).dictionary_encode()})
    data = written(table, row_group_size=1_000)
    made = await scanned(operator, data)
    assert len(made.windows) == 4
    for read in made.io.reads:
        read.come()
    assert made.root.fitting_rows(ROWS, 1 << 30) == 1_000
    first = made.take(1_000).column(0)
    assert first.equals(TABLE_READ(data).column(0).chunk(0))


def TABLE_READ(data: bytes) -> pa.Table:  # noqa: N802
    """By pyarrow."""
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(data))


def test_what_has_dictionaries() -> None:
    dictionary = pa.dictionary(pa.int32(), pa.string())
    plain = pa.schema([("a", pa.list_(pa.struct([("b", pa.int8())]))), ("c", pa.map_(pa.string(), pa.int8()))])
    assert not has_dictionaries(plain)
    for kind in (dictionary, pa.list_(dictionary), pa.struct([("x", dictionary)]), pa.map_(pa.string(), dictionary)):
        assert has_dictionaries(plain.append(pa.field("d", kind)))


async def test_pages_that_are_none_name_row_group_and_column(operator: Operator) -> None:
    data = small_pages(compression="snappy")
    made = await scanned(operator, data)
    for read in made.io.reads:
        start, end = read.ranges[0]
        made.io.data = data[:start] + b"\xff" * (end - start) + data[end:]
        read.come()
    task = made.root.drain(10)
    with pytest.raises(UntrustedMetadata, match="row group 0, column 'i': there is no page header"):
        task.decode()
    task.release()
    made.root.close()
    assert all(read.released for read in made.io.reads)


async def test_values_that_are_none_name_row_group_and_columns(operator: Operator) -> None:
    made = await scanned(operator, small_pages(TABLE.select(["s"]), row_group_size=ROWS))
    (read,) = made.io.reads
    start, end = read.ranges[0]
    made.io.data = made.io.data[: start + 2000] + b"\xff" * (end - start - 2000) + made.io.data[end:]
    read.come()
    with pytest.raises(UntrustedMetadata, match="row group 0, columns 's'"):
        made.root.drain(ROWS).decode()


async def test_closing_gives_everything_back(operator: Operator) -> None:
    made = await scanned(operator, small_pages())
    for read in made.io.reads[::2]:
        read.come()
    made.root.close()
    made.root.close()
    assert all(read.released for read in made.io.reads)


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_memory_limits() -> None:
    plan = await plan_scan(footer_at_hand(small_pages(row_group_size=ROWS)), ScanArguments())
    wide = replace(plan, request_bytes_max=1 << 23)
    size = wide.projected_bytes
    everything = memory_limits(wide, 3 * size, 1 << 40)
    assert (everything.held_bytes, everything.is_short, everything.is_cut) == (3 * size, False, False)
    short = memory_limits(wide, size - 1, 1 << 40)
    assert (short.is_short, short.is_cut) == (True, True)
    assert short.held_bytes == (size - 1) // 2
    assert short.request_bytes_max == 256 << 10
    assert memory_limits(wide, None, 2 * size).held_bytes == size
    unbounded = memory_limits(wide, 0, 1)
    assert (unbounded.held_bytes, unbounded.is_short, unbounded.request_bytes_max) == (0, False, 1 << 23)


async def test_row_groups_that_fit_are_not_cut() -> None:
    plan = await plan_scan(footer_at_hand(small_pages(row_group_size=100)), ScanArguments())
    limits = memory_limits(plan, plan.projected_bytes - 1, 1 << 40)
    assert (limits.is_short, limits.is_cut) == (True, False)
    assert limits.request_bytes_max == plan.request_bytes_max


async def test_small_neighbours_of_large_row_groups_are_submitted_together(operator: Operator) -> None:
    data = small_pages(row_group_size=2_000)
    alone = await scanned(operator, data)
    sizes = [end - start for read in alone.io.reads[:3] for start, end in read.ranges]
    made = await scanned(operator, data, small_group_bytes=sizes[0] + sizes[1])
    assert [len(read.ranges) for read in made.io.reads[:2]] == [2, 1]
    for read in made.io.reads:
        read.come()
    assert made.take(ROWS).equals(concatenated(TABLE.to_batches()))
    assert all(read.released for read in made.io.reads)
    made.root.close()


async def test_a_small_chunk_takes_few_calls() -> None:
    """Of Python functions on the loop: what a file of many chunks costs, without a clock."""

    async def calls_of(groups: int) -> int:
        table = pa.table({f"c{number}": np.random.default_rng(number).random(groups * 8) for number in range(20)})
        count = 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        async with ap.Operator.from_uri("memory://chunks") as op:
            await op.write("t", written(table, row_group_size=8))
            for _ in range(2):
                sys.setprofile(counted)
                try:
                    found = await ap.parquet.read_table(op, "t")
                finally:
                    sys.setprofile(None)
                assert found.equals(table)
                calls, count = count, 0
        return calls

    more, fewer = await calls_of(60), await calls_of(10)
    assert (more - fewer) / (50 * 20) < 14, "calls for each chunk"
