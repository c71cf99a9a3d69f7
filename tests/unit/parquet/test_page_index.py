"""Page indexes: what pyarrow writes is read, what cannot be is refused, and it comes in few requests."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import Unavailable, UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.parquet.chunks import ColumnChunk, column_chunks
from aioprefetch.parquet.footer import footer
from aioprefetch.parquet.page_metadata import (
    OffsetIndex,
    load_page_indexes,
    parse_column_index,
    parse_offset_index,
)
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of
from tests.stores.gated_reader import bench, settle
from tests.unit.parquet.parquet_files import requests_of, written

pytestmark = pytest.mark.virtual

ROWS = 2000
TABLE = pa.table(
    {
        "i": np.arange(ROWS),
        "s": [f"{n:05}" if n % 3 else None for n in range(ROWS)],
        "z": pa.array([None] * ROWS, pa.int32()),
    }
)
DATA = written(
    TABLE, row_group_size=1000, write_page_index=True, data_page_size=512, write_batch_size=64, use_dictionary=False
)
CHUNK = ColumnChunk(0, 0, ("a",), 100, 1000, 0, 90, 90, 0)
ONE_PAGE = OffsetIndex([120], [300], [0], 90)
TWO_PAGES = OffsetIndex([120, 420], [300, 580], [0, 83], 90)


async def test_every_page_lies_where_its_header_is() -> None:
    async with bench() as b:
        b.put(DATA)
        found = await footer(b.operator, "k")
        chunks = column_chunks(found, range(2), range(3), with_indexes=True)
        indexes = await load_page_indexes(found.pinned, chunks, bounds_of=range(3))
        assert len(b.calls) == 1
    for chunk in chunks:
        offset, column = indexes[chunk.row_group, chunk.column]
        assert offset is not None
        assert column is not None
        assert len(offset) == len(column) == (1 if chunk.column == 2 else len(column))
        assert chunk.column == 2 or len(offset) > 5
        position, rows = chunk.start, 0
        for page in range(len(offset)):
            start, end = offset.page_bytes(page)
            assert start == position
            header, body = thrift.read_struct(DATA, start)
            assert end == body + header[3][1]
            assert offset.page_rows(page) == (rows, rows + header[5][1][1][1])
            position, rows = end, rows + header[5][1][1][1]
        assert (position, rows) == (chunk.end, 1000)
        if chunk.column == 0:
            bounds = [int.from_bytes(one, "little") - chunk.first_row for one in column.minima]
            assert bounds == offset.first_rows
        assert column.null_pages == [chunk.column == 2] * len(column)


async def test_indexes_that_are_not_in_the_tail_share_a_request() -> None:
    async with bench() as b:
        b.put(DATA)
        found = await footer(b.operator, "k", tail_bytes=100)
        chunks = column_chunks(found, range(2), (0, 1), with_indexes=True)
        b.calls.clear()
        assert len(await load_page_indexes(found.pinned, chunks, bounds_of=(0, 1))) == 4
        ((start, end),) = requests_of(b)
        wanted = [one for chunk in chunks for one in (chunk.offset_index, chunk.column_index) if one]
        assert (start, end) == (min(one[0] for one in wanted), max(one[1] for one in wanted))
        b.calls.clear()
        only = await load_page_indexes(found.pinned, chunks[:1])
        assert requests_of(b) == [chunks[0].offset_index]
        assert only[0, 0][1] is None
        assert await load_page_indexes(found.pinned, [chunks[0]._replace(offset_index=None)]) == {(0, 0): (None, None)}


async def test_a_failing_request_raises_its_own_error() -> None:
    async with bench() as b:
        b.put(DATA)
        found = await footer(b.operator, "k", tail_bytes=100)
        chunks = column_chunks(found, range(2), (0, 1), with_indexes=True)
        b.gate.open = False
        task = b.runtime.loop.create_task(load_page_indexes(found.pinned, chunks))
        await settle()
        b.calls[-1].fail(Unavailable("no"))
        with pytest.raises(Unavailable):
            await task


# --- offset indexes ---------------------------------------------------------------------------------------------------


def offset_index(*pages: tuple[int, int, int], drop: int = 0) -> bytes:
    """Of pages ``(start, size, first row)``; ``drop`` leaves a field of each out."""
    items = [
        {n: (thrift.I32 if n == 2 else thrift.I64, value) for n, value in enumerate(page, 1) if n != drop}
        for page in pages
    ]
    return thrift.write_struct({1: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, items))})


def test_a_good_offset_index() -> None:
    found = parse_offset_index(offset_index((120, 300, 0), (420, 580, 50)), CHUNK, path="k")
    assert (found.starts, found.sizes, found.first_rows, found.rows) == ([120, 420], [300, 580], [0, 50], 90)
    assert found.page_rows(1) == (50, 90)
    empty = CHUNK._replace(rows=0)
    assert len(parse_offset_index(offset_index(), empty, path="k")) == 0


BAD: dict[str, bytes] = {
    "no pages": offset_index(),
    "before the chunk": offset_index((99, 10, 0)),
    "beyond the chunk": offset_index((120, 881, 0)),
    "beyond everything": offset_index(((1 << 63) - 1, 10, 0)),
    "of no size": offset_index((120, 0, 0)),
    "of negative size": offset_index((120, -10, 0)),
    "overlapping": offset_index((120, 300, 0), (419, 10, 50)),
    "not from the first row": offset_index((120, 300, 1)),
    "rows going back": offset_index((120, 300, 0), (420, 10, 50), (430, 10, 49)),
    "more rows than there are": offset_index((120, 300, 0), (420, 10, 91)),
    "without a place": offset_index((120, 300, 0), drop=1),
    "without a size": offset_index((120, 300, 0), drop=2),
    "without a row": offset_index((120, 300, 0), drop=3),
    "another list": thrift.write_struct({1: (thrift.LIST, thrift.ThriftList(thrift.I64, [1]))}),
    "no list": thrift.write_struct({1: (thrift.I64, 1)}),
    "cut": offset_index((120, 300, 0))[:-2],
    "nothing": b"",
    "noise": b"\xff" * 20,
}


@checks("reliability:I19")
@each_of("name", BAD)
def test_bad_offset_indexes_are_refused(name: str) -> None:
    with pytest.raises(UntrustedMetadata, match="offset index of row group 0, column 'a'"):
        parse_offset_index(BAD[name], CHUNK, path="k")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_pages_of_rows(sizes: list[int], data: st.DataObject) -> None:
    """By asking each row for its page."""
    first_rows = [sum(sizes[:page]) for page in range(len(sizes))]
    rows = sum(sizes)
    index = OffsetIndex(list(range(len(sizes))), [1] * len(sizes), first_rows, rows)
    cuts = sorted(data.draw(st.sets(st.integers(0, rows), max_size=6)))
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
    page_of = [page for page, size in enumerate(sizes) for _ in range(size)]
    expected = sorted({page_of[row] for start, stop in ranges for row in range(start, stop)})
    assert index.pages_of(ranges) == expected


# --- column indexes ---------------------------------------------------------------------------------------------------


def column_index(nulls: list[int], minima: Any, maxima: Any, counts: list[int] | None = None) -> bytes:
    fields: thrift.Struct = {
        1: (thrift.LIST, thrift.ThriftList(thrift.TRUE, nulls)),
        2: (thrift.LIST, thrift.ThriftList(thrift.BINARY, minima)),
        3: (thrift.LIST, thrift.ThriftList(thrift.BINARY, maxima)),
        4: (thrift.I32, 0),
    }
    if counts is not None:
        fields[5] = (thrift.LIST, thrift.ThriftList(thrift.I64, counts))
    return thrift.write_struct(fields)


def test_a_good_column_index() -> None:
    raw = column_index([thrift.FALSE, thrift.TRUE], [b"a", b""], [b"b", b""], [0, 7])
    found = parse_column_index(raw, CHUNK, TWO_PAGES, path="k")
    assert (found.null_pages, found.minima, found.maxima) == ([False, True], [b"a", b""], [b"b", b""])
    assert found.null_counts == [0, 7]
    assert parse_column_index(column_index([0], [b""], [b""]), CHUNK, ONE_PAGE, path="k").null_counts is None


@each_of(
    "raw",
    [
        column_index([2], [b"a", b"b"], [b"b", b"b"]),
        column_index([2, 2], [b"a"], [b"b", b"b"]),
        column_index([2, 2], [b"a", b"b"], []),
        column_index([2, 2, 2], [b"a"] * 3, [b"a"] * 3),
        column_index([2, 2], [b"a"] * 2, [b"a"] * 2, [1]),
        thrift.write_struct({}),
        b"\x19\xfc\xff\xff\xff\xff\x07",
    ],
)
def test_bad_column_indexes_are_refused(raw: bytes) -> None:
    with pytest.raises(UntrustedMetadata, match="column index"):
        parse_column_index(raw, CHUNK, TWO_PAGES, path="k")


@each_of(
    ("counts", "is_nullable", "null_pages", "unknown_pages"),
    [
        (None, True, [False, True], [False, False]),
        ([3, 7], True, [False, True], [False, False]),
        ([-1, 7], True, [False, True], [False, False]),
        ([0, -1], True, [False, False], [False, True]),
        ([0, 6], True, [False, False], [False, True]),
        ([83, 7], True, [False, True], [True, False]),
        ([84, 7], True, [False, True], [True, False]),
        (None, False, [False, False], [False, True]),
        ([1, 7], False, [False, False], [True, True]),
    ],
)
def test_nulls_are_believed_where_they_can_be_true(
    counts: list[int] | None, is_nullable: bool, null_pages: list[bool], unknown_pages: list[bool]
) -> None:
    """Two pages of 83 and of 7 rows, of which the second is said to hold nulls alone."""
    raw = column_index([thrift.FALSE, thrift.TRUE], [b"a", b""], [b"b", b""], counts)
    found = parse_column_index(raw, CHUNK._replace(is_nullable=is_nullable), TWO_PAGES, path="k")
    assert (found.null_pages, found.unknown_pages) == (null_pages, unknown_pages)
