"""Plans: which bytes, which gaps, which requests; and that what is planned is enough for pyarrow."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.cli.sample_file import sample_parquet
from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidRange, InvalidType
from aioprefetch.parquet.byte_plan import (
    GAP_BYTES_MAX,
    GAP_SHARE,
    PAGES_SHARE_MAX,
    Plan,
    chosen_gap,
    pieces_of,
    planned_chunk,
    requests_for,
)
from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.footer import TAIL_BYTES
from aioprefetch.parquet.page_index import OffsetIndex
from aioprefetch.parquet.plan import checked_rows, chosen_row_groups, plan
from tests.unit.gates import bench
from tests.unit.parquet.parquet_files import footer_at_hand, footer_start_of, nested_table, requests_of, written

pytestmark = pytest.mark.virtual

MIB = 1 << 20
RANDOM = np.random.default_rng(5)


def numbers_file(columns: int = 12, row_groups: int = 50, rows: int = 1000, **options: Any) -> bytes:
    """Row groups of columns that compress to nothing less."""
    table = pa.table({f"c{n}": RANDOM.random(row_groups * rows) for n in range(columns)})
    return written(table, row_group_size=rows, use_dictionary=False, compression="none", **options)


DATA = numbers_file()
PAGED = written(
    pa.table({"i": range(20_000), "s": [f"{n:05}" for n in range(20_000)], "l": [[n] for n in range(20_000)]}),
    row_group_size=10_000,
    write_page_index=True,
    data_page_size=4096,
    write_batch_size=256,
    compression="none",
)


async def planned(data: bytes, **options: Any) -> Plan:
    async with bench() as b:
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


@pytest.mark.parametrize("columns", [[0, 1, 2], [1, 5, 9], [0, 6, 7], [11, 0, 4]])
async def test_some_columns_cost_few_more_bytes(columns: list[int]) -> None:
    found = await planned(DATA, columns=[f"c{n}" for n in columns])
    metadata = pq.read_metadata(pa.BufferReader(DATA))
    expected = sum(
        metadata.row_group(group).column(leaf).total_compressed_size for group in range(50) for leaf in columns
    )
    assert found.projected_bytes == expected
    missing = found.projected_bytes - found.resident_bytes
    assert missing <= found.requested_bytes <= (1 + GAP_SHARE) * missing
    assert found.columns == tuple(sorted(columns))
    tail_start = len(DATA) - TAIL_BYTES
    for one in found.chunks:
        for start, end in one.ranges:
            assert start >= tail_start or any(low <= start < end <= high for low, high in found.requests)
    assert list(found.requests) == sorted(found.requests)
    if columns == [0, 1, 2]:  # Neighbours in each row group, which lie far from the next.
        assert len(found.requests) == len({one.chunk.row_group for one in found.chunks if one.chunk.start < tail_start})


async def test_everything_is_read_in_the_largest_requests() -> None:
    found = await planned(DATA, request_bytes_max=MIB)
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
            {"k": "v" * TAIL_BYTES}
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
def test_rows_that_cannot_be_meant(rows: Any, error: type[Exception]) -> None:
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


@given(disjoint(), st.sampled_from([0.0, 0.05, 0.3, 2.0]), st.sampled_from([3, 30, 1000]))
def test_the_gap_is_the_largest_that_is_cheap(pieces: list[tuple[int, int]], share: float, most: int) -> None:
    allowed = share * sum(end - start for start, end in pieces)
    gaps = [after[0] - before[1] for before, after in pairwise(pieces)]
    fitting = [gap for gap in gaps if gap <= most and sum(one for one in gaps if one <= gap) <= allowed]
    assert chosen_gap(pieces, share=share, gap_bytes_max=most) == max(fitting, default=0)


@given(disjoint(), st.integers(10, 200))
def test_requests_hold_every_piece(pieces: list[tuple[int, int]], most: int) -> None:
    gap = chosen_gap(pieces)
    requests = requests_for(pieces, gap_bytes=gap, request_bytes_max=most)
    covered = sorted(requests)
    assert all(before[1] <= after[0] for before, after in pairwise(covered))
    wanted = {byte for start, end in pieces for byte in range(start, end)}
    held = {byte for start, end in requests for byte in range(start, end)}
    assert wanted <= held
    assert len(held) <= (1 + GAP_SHARE) * len(wanted)
    assert all(end - start <= most for start, end in requests)


def test_no_gap_is_larger_than_the_maximum() -> None:
    far = [(0, 100 * GAP_BYTES_MAX), (101 * GAP_BYTES_MAX, 200 * GAP_BYTES_MAX)]
    assert chosen_gap(far) == GAP_BYTES_MAX
    assert chosen_gap([far[0], (far[1][0] + 1, far[1][1])]) == 0


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


@pytest.mark.parametrize(
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
        assert requests_of(b) == [(-TAIL_BYTES, None)]
