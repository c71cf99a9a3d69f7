"""Plans: which bytes, which gaps, which requests; and that what is planned is enough for pyarrow."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.cli.demo import sample_parquet
from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidRange, InvalidType
from aioprefetch.parquet.byte_plan import (
    PAGES_SHARE_MAX,
    PRICE_BYTES_MIN,
    Plan,
    pieces_of,
    planned_chunk,
    request_price,
    requests_of,
)
from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.footer import TAIL_BYTES_EVERYTHING
from aioprefetch.parquet.page_metadata import OffsetIndex
from aioprefetch.parquet.plan import checked_rows, chosen_row_groups
from aioprefetch.parquet.scan import plan
from aioprefetch.ranges import SMALL_GAP_BYTES, bridged
from tests.profile import each_of
from tests.stores.gated_reader import bench
from tests.unit.parquet.parquet_files import footer_at_hand, footer_start_of, nested_table, written
from tests.unit.parquet.parquet_files import requests_of as sent_requests

pytestmark = pytest.mark.virtual

MIB = 1 << 20
RANDOM = np.random.default_rng(5)


def numbers_file(columns: int = 12, row_groups: int = 50, rows: int = 1000, **options: Any) -> bytes:
    """Row groups of columns that compress to nothing less."""
    table = pa.table({f"c{n}": RANDOM.random(row_groups * rows) for n in range(columns)})
    return written(table, row_group_size=rows, use_dictionary=False, compression="none", **options)


DATA = numbers_file()  # 4.8 MB
LARGE = numbers_file(rows=2500)  # 12 MB
PAGED = written(
    pa.table({"i": range(20_000), "s": [f"{n:05}" for n in range(20_000)], "l": [[n] for n in range(20_000)]}),
    row_group_size=10_000,
    write_page_index=True,
    data_page_size=4096,
    write_batch_size=256,
    compression="none",
)


async def planned(data: bytes, *, block_bytes: int = 64 << 10, **options: Any) -> Plan:
    async with bench(block_bytes=block_bytes, memory_bytes=64 * MIB) as b:
        b.put(data)
        return await plan(b.operator, "k", **options)


# --- from the outside -------------------------------------------------------------------------------------------------


async def test_the_demo_takes_no_request_but_the_footers() -> None:
    async with bench() as b:
        b.put(sample_parquet())
        found = await plan(b.operator, "k")
        assert len(b.calls) == 1
    assert found.requests == ()
    assert (found.row_count, len(found.row_groups), len(found.columns)) == (7400, 50, 12)
    assert found.resident_bytes == found.projected_bytes
    assert found.overhead == 0.0


@pytest.mark.parametrize("columns", [[0], [0, 1, 2], [1, 5, 9], [0, 6, 7], [11, 0, 4]])
@pytest.mark.parametrize("block_bytes", [MIB, 8 * MIB])
async def test_some_columns_cost_twice_their_bytes_and_a_block_at_most(columns: list[int], block_bytes: int) -> None:
    found = await planned(LARGE, columns=[f"c{n}" for n in columns], block_bytes=block_bytes)
    metadata = pq.read_metadata(pa.BufferReader(LARGE))
    expected = sum(
        metadata.row_group(group).column(leaf).total_compressed_size for group in range(50) for leaf in columns
    )
    assert found.projected_bytes == expected
    missing = found.projected_bytes - found.resident_bytes
    assert missing <= found.requested_bytes <= 2 * missing + block_bytes
    assert found.columns == tuple(sorted(columns))
    tail_start = len(LARGE) - TAIL_BYTES_EVERYTHING
    for one in found.chunks:
        for start, end in one.ranges:
            assert start >= tail_start or any(low <= start < end <= high for low, high in found.requests)
    assert list(found.requests) == sorted(found.requests)
    assert len(found.requests) < (50 if block_bytes == 8 * MIB else 90)


async def test_an_object_of_a_block_is_one_request_behind_the_footer() -> None:
    for columns in (["c0"], ["c3", "c7"], None):
        found = await planned(DATA, columns=columns, block_bytes=8 * MIB)
        ((start, end),) = found.requests
        assert end <= len(DATA) - TAIL_BYTES_EVERYTHING + 8000  # What begins before the tail is asked for whole.
        assert start < 50_000


async def test_a_run_of_a_block_is_not_cut() -> None:
    whole = await planned(LARGE, row_groups=range(30), block_bytes=8 * MIB)
    assert len(whole.requests) == 1
    cut = await planned(LARGE, row_groups=range(45), block_bytes=8 * MIB)
    assert len(cut.requests) == 6
    assert cut.overhead == 0.0


async def test_everything_is_read_in_the_largest_requests() -> None:
    found = await planned(LARGE, request_bytes_max=MIB)
    assert found.overhead == 0.0
    assert len(found.requests) <= -(-found.requested_bytes // MIB) + 1 + found.requested_bytes // (MIB - 100_000)
    assert all(end - start <= MIB for start, end in found.requests)
    assert sum(end - start for start, end in found.requests) == found.requested_bytes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": ["b.c", "m"]},
        {"columns": ["x.y"], "row_groups": [1, 3]},
        {"rows": (10, 30)},
        {"rows": [(0, 3), (35, 40)], "columns": ["l"]},
        {"filters": [("i", ">", 20)], "columns": ["b"]},
    ],
    ids=str,
)
async def test_what_is_planned_is_enough_for_pyarrow(options: dict[str, Any]) -> None:
    """All other bytes are spoiled, and pyarrow reads the same row groups and columns."""
    data = written(nested_table(), row_group_size=7)
    found = await planned(data, **options)
    spoiled = bytearray(b"\xa5" * len(data))
    for start, end in ((0, 4), (footer_start_of(data), len(data))):
        spoiled[start:end] = data[start:end]
    for one in found.chunks:
        for start, end in one.ranges:
            spoiled[start:end] = data[start:end]
    names = options.get("columns")
    if names is not None and "filters" in options:
        names = [*names, "i"]
    read = pq.ParquetFile(pa.BufferReader(bytes(spoiled))).read_row_groups(list(found.row_groups), names)
    assert read.equals(pq.ParquetFile(pa.BufferReader(data)).read_row_groups(list(found.row_groups), names))


async def test_pages_of_some_rows() -> None:
    async with bench() as b:
        b.put(PAGED)
        b.calls.clear()
        found = await plan(b.operator, "k", columns=["i", "s", "l"], rows=(12_000, 12_300))
        assert len(b.calls) == 1  # The page indexes came with the footer.
    assert found.row_groups == (1,)
    assert found.rows == ((12_000, 12_300),)
    by_name = {one.chunk.path[0]: one for one in found.chunks}
    for name in ("i", "s"):
        one = by_name[name]
        assert one.rows == ((2000, 2300),)
        assert one.pages is not None
        assert one.offset_index is not None
        assert one.offset_index.page_rows(one.pages[0])[0] <= 2000
        assert one.offset_index.page_rows(one.pages[-1])[1] >= 2300
        assert sum(end - start for start, end in one.ranges) < PAGES_SHARE_MAX * one.chunk.size
        assert one.ranges[0][0] == one.chunk.start  # The dictionary.
    assert by_name["l"].pages is None
    assert by_name["l"].ranges == ((by_name["l"].chunk.start, by_name["l"].chunk.end),)


async def test_pages_that_filters_leave() -> None:
    found = await planned(PAGED, columns=["s"], filters=[("i", ">=", 15_000), ("i", "<", 15_100)])
    ((start, stop),) = found.rows
    assert 10_000 < start <= 15_000
    assert 15_100 <= stop < 20_000
    assert found.columns == (0, 1)
    assert all(one.pages for one in found.chunks)
    nothing = await planned(PAGED, filters=[("i", ">", 30_000)])
    assert (nothing.row_groups, nothing.chunks, nothing.requests, nothing.row_count) == ((), (), (), 0)


async def test_page_indexes_far_from_the_tail_are_read_where_they_pay() -> None:
    big = written(
        pa.table({"a": np.arange(1 << 20), "b": RANDOM.random(1 << 20)}).replace_schema_metadata(
            {"k": "v" * TAIL_BYTES_EVERYTHING}
        ),
        write_page_index=True,
        use_dictionary=False,
        compression="none",
    )
    async with bench(1) as b:
        b.put(big)
        b.put(PAGED, "small")
        found = await plan(b.operator, "k", columns=["a", "b"], rows=(0, 10))
        footer_requests, indexes = 2, 1
        assert len(b.calls) == footer_requests + indexes
        assert all(one.pages == (0,) for one in found.chunks)
        b.calls.clear()
        await plan(b.operator, "k", columns=["a", "b"], rows=(0, (1 << 20) - 10))
        assert len(b.calls) == 1  # Few rows less: the indexes would cost more than they save.
        b.calls.clear()
        await plan(b.operator, "k", columns=["a", "b"])
        assert len(b.calls) == 1


async def test_a_plan_describes_itself() -> None:
    found = await planned(DATA, columns=["c1"], row_groups=[0, 1])
    assert repr(found) == (
        f"<Plan 'k' rows=2000 columns=1 row_groups=2 requests=2 requested_bytes={found.requested_bytes}"
        f" projected_bytes={found.projected_bytes}>"
    )
    first, *lines = found.describe().splitlines()
    assert "2000 rows of 1 columns in 2 row groups" in first
    assert [line.split(")")[0].strip() for line in lines] == [f"[{start}, {end}" for start, end in found.requests]


async def test_no_columns_are_rows_without_bytes() -> None:
    found = await planned(DATA, columns=[])
    assert (found.row_count, found.requests, found.projected_bytes, found.chunks) == (50_000, (), 0, ())


async def test_options_replace_the_defaults() -> None:
    wide = await planned(DATA, columns=["c1", "c5"], gap_bytes=1 << 30, request_bytes_max=1 << 30)
    assert len(wide.requests) == 1
    assert (wide.gap_bytes, wide.request_bytes_max) == (1 << 30, 1 << 30)
    for bad in ({"gap_bytes": -1}, {"request_bytes_max": 0}):
        with pytest.raises(ConfigInvalid):
            await planned(DATA, **bad)


# --- rows and row groups ----------------------------------------------------------------------------------------------

FOOTER = footer_at_hand(written(pa.table({"a": range(100)}), row_group_size=30))


@each_of(
    ("rows", "expected"),
    [
        (None, [(0, 100)]),
        ((10, 20), [(10, 20)]),
        ([10, 20], [(10, 20)]),
        ((10, 2000), [(10, 100)]),
        ((100, 200), []),
        ((5, 5), []),
        ([(50, 60), (0, 10), (5, 20)], [(0, 20), (50, 60)]),
        ([(3, 4), (8, 9)], [(3, 4), (8, 9)]),
        ([], []),
    ],
)
def test_rows(rows: Any, expected: list[tuple[int, int]]) -> None:
    assert checked_rows(rows, FOOTER) == expected


@each_of(
    ("rows", "error"),
    [
        ((-1, 5), InvalidRange),
        ((5, 4), InvalidRange),
        ([(0, 1), (9, 3)], InvalidRange),
        ((0, 1.5), InvalidType),
        ((0, None), InvalidType),
        (7, InvalidType),
        ("ab", InvalidType),
        ([1, 2, 3], InvalidType),
        ([(1, 2, 3)], InvalidType),
    ],
)
def test_invalid_rows_are_refused(rows: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked_rows(rows, FOOTER)


def test_row_groups() -> None:
    everything = [(0, 100)]
    assert chosen_row_groups(FOOTER, None, everything) == [0, 1, 2, 3]
    assert chosen_row_groups(FOOTER, [3, 0, 3], everything) == [0, 3]
    assert chosen_row_groups(FOOTER, [], everything) == []
    assert chosen_row_groups(FOOTER, None, [(29, 31), (90, 91)]) == [0, 1, 3]
    assert chosen_row_groups(FOOTER, [1, 2], [(29, 31)]) == [1]
    assert chosen_row_groups(FOOTER, None, []) == []
    for bad in (-1, 4):
        with pytest.raises(InvalidArgument, match=f"no row group {bad}"):
            chosen_row_groups(FOOTER, [0, bad], everything)
    with pytest.raises(InvalidType):
        chosen_row_groups(FOOTER, ["0"], everything)  # type: ignore[list-item]


# --- gaps and requests ------------------------------------------------------------------------------------------------


@st.composite
def disjoint(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Ordered ranges with gaps, some of them equal."""
    position, found = 0, []
    for _ in range(draw(st.integers(0, 12))):
        start = position + draw(st.sampled_from([0, 1, 2, 5, 5, 40]))
        position = start + draw(st.integers(1, 60))
        found.append((start, position))
    return found


@given(disjoint(), st.sampled_from([0, 4, 5, 100]), st.sampled_from([None, 0, 7, 60]))
def test_the_smallest_gaps_are_bridged_as_long_as_they_are_cheap(
    pieces: list[tuple[int, int]], gap_bytes: int, gaps_bytes_max: int | None
) -> None:
    """No other choice of gaps makes fewer requests: those left out are not smaller than any that is taken."""
    scale = SMALL_GAP_BYTES + 1  # So that none of them is worth nothing.
    scaled = [(start * scale, end * scale) for start, end in pieces]
    most = None if gaps_bytes_max is None else gaps_bytes_max * scale
    runs = bridged(scaled, gap_bytes=gap_bytes * scale, gaps_bytes_max=most)
    gaps = [after[0] - before[1] for before, after in pairwise(pieces) if after[0] > before[1]]
    allowed = 0
    for gap in sorted(one for one in gaps if one <= gap_bytes):
        if gaps_bytes_max is not None and allowed + gap > gaps_bytes_max:
            break
        allowed += gap
    taken = sum(end - start for start, end in runs) - sum(end - start for start, end in scaled)
    assert taken == allowed * scale
    assert all(any(low <= start < end <= high for low, high in runs) for start, end in scaled)
    assert runs == sorted(runs)


def test_small_gaps_are_bridged_however_little_is_wanted() -> None:
    pieces = [(start, start + 10) for start in range(0, 100 * SMALL_GAP_BYTES, SMALL_GAP_BYTES)]
    assert len(bridged(pieces, gap_bytes=SMALL_GAP_BYTES, gaps_bytes_max=0)) == 1


@given(disjoint(), st.integers(60, 200), st.sampled_from([0, 300]))
def test_requests_hold_every_piece(pieces: list[tuple[int, int]], most: int, run_bytes_max: int) -> None:
    runs = bridged(pieces, gap_bytes=5, gaps_bytes_max=None)
    requests = requests_of(runs, pieces[::-1], run_bytes_max=run_bytes_max, request_bytes_max=most)
    covered = sorted(requests)
    assert all(before[1] <= after[0] for before, after in pairwise(covered))
    assert all(any(low <= start < end <= high for low, high in requests) for start, end in pieces)
    assert list(requests) == covered[::-1]  # In the order of the pieces.
    for start, end in requests:
        assert end - start <= most or ((start, end) in runs and end - start <= run_bytes_max)


def test_a_request_costs_what_its_share_of_the_bandwidth_brings_meanwhile() -> None:
    assert request_price(1) == request_price(8) == 2_250_000
    assert request_price(64) == 488_281
    assert request_price(1000) == PRICE_BYTES_MIN


def chunk(start: int, end: int, *, group: int = 0, leaf: int = 0, rows: int = 100, repetition: int = 0) -> ColumnChunk:
    return ColumnChunk(group, leaf, ("c",), start, end, group * rows, rows, rows, repetition)


def test_pieces_come_in_the_order_of_rows() -> None:
    chunks = [
        planned_chunk(chunk(4, 1004, leaf=0), [(0, 100)], None),
        planned_chunk(chunk(1004, 1404, leaf=1), [(0, 100)], None),
        planned_chunk(chunk(1404, 1504, group=1), [(0, 100)], None),
        planned_chunk(chunk(1504, 1504, group=1, leaf=1), [(0, 100)], None),
    ]
    pieces = pieces_of(chunks, 10_000, 400)
    assert pieces == [(4, 337), (1004, 1404), (337, 670), (670, 1004), (1404, 1504)]
    # What begins in the tail is there; what begins before it is asked for whole.
    assert pieces_of(chunks, 1010, 400) == [(4, 337), (1004, 1404), (337, 670), (670, 1004)]


INDEX = OffsetIndex([10, 20, 30, 40], [10, 10, 10, 10], [0, 25, 50, 75], 100)


@each_of(
    ("rows", "pages", "ranges"),
    [
        ([(0, 100)], None, ((4, 50),)),
        ([(0, 1)], (0,), ((4, 20),)),
        ([(24, 26)], (0, 1), ((4, 30),)),
        ([(30, 31), (99, 100)], (1, 3), ((4, 10), (20, 30), (40, 50))),
        ([(1, 99)], None, ((4, 50),)),
    ],
)
def test_pages_of_a_chunk(rows: Any, pages: tuple[int, ...] | None, ranges: Any) -> None:
    found = planned_chunk(chunk(4, 50), rows, INDEX)
    assert (found.pages, found.ranges, found.rows) == (pages, ranges, tuple(rows))
    assert planned_chunk(chunk(4, 50, repetition=1), rows, INDEX).ranges == ((4, 50),)
    assert planned_chunk(chunk(4, 50), rows, None).ranges == ((4, 50),)


async def test_requests_are_those_of_the_footer_and_the_plan() -> None:
    """Planning itself reads the footer and nothing else."""
    async with bench() as b:
        b.put(DATA)
        await plan(b.operator, "k", columns=["c0"])
        assert sent_requests(b) == [(-TAIL_BYTES_EVERYTHING, None)]
