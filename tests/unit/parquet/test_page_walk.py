"""How many rows can be decoded with the bytes that have come: never more than pyarrow can, and hardly fewer."""

import io
import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioprefetch.parquet import thrift
from aioprefetch.parquet.chunk_columns import PageWalk
from aioprefetch.parquet.chunks import SparseFile
from aioprefetch.parquet.page_metadata import BadPage, PageHeader, read_page_header
from tests.profile import combinations, each_of
from tests.unit.parquet.parquet_files import nested_table, written

ROWS = 5_000
FLAT = {
    "number": pa.array([n if n % 3 else None for n in range(ROWS)], pa.int64()),
    "text": pa.array([f"text {n}" for n in range(ROWS)]),
    "few": pa.array([f"v{n * n % 701}" for n in range(ROWS)]),
}
LISTS = {"list": pa.array([list(range(n % 4)) for n in range(ROWS)])}


def small_pages(columns: dict[str, pa.Array], **options: Any) -> bytes:
    """A file of one row group with many pages."""
    return written(pa.table(columns), data_page_size=1000, write_batch_size=100, **options)


class Chunk:
    """The first chunk of a column in a file, and a walk over it."""

    def __init__(self, data: bytes, leaf: int = 0) -> None:
        self.data = data
        column = pq.read_metadata(io.BytesIO(data)).row_group(0).column(leaf)
        starts = [column.data_page_offset, column.dictionary_page_offset or column.data_page_offset]
        self.start = min(starts)
        self.end = self.start + column.total_compressed_size
        self.rows: int = pq.read_metadata(io.BytesIO(data)).row_group(0).num_rows
        self.codec: str = column.compression

    def walk(self, *, is_repeated: bool = False) -> PageWalk:
        return PageWalk(self.start, self.end, self.rows, is_repeated=is_repeated, codec=self.codec)

    def pages(self) -> Iterator[PageHeader]:
        position = self.start
        while position < self.end:
            header = read_page_header(memoryview(self.data), position, self.end, self.codec)
            assert header is not None
            yield header
            position = header.end


@pytest.mark.parametrize(("name", "compression", "version"), combinations(list(FLAT), ["none", "zstd"], ["1.0", "2.0"]))
def test_pyarrow_needs_no_byte_beyond_the_rows_that_are_ready(name: str, compression: str, version: str) -> None:
    """Only the bytes that had come are there: everything else reads as zeros, which is no page."""
    data = small_pages({name: FLAT[name]}, compression=compression, data_page_version=version)
    chunk = Chunk(data)
    file, walk = SparseFile(len(data)), chunk.walk()
    reader = pq.ParquetFile(file.source(), metadata=pq.read_metadata(io.BytesIO(data)), pre_buffer=False).reader
    batches, read = [], 0
    arrived = itertools.chain(range(chunk.start, chunk.end, 333), [chunk.end])
    pulled = None
    before = chunk.start
    for end in arrived:
        file.allocate(before, end)[:] = data[before:end]
        before = end
        walk.advance(file.view(0, end), 0, end)
        ready = walk.rows_ready(end)
        if ready > read:
            if pulled is None:
                pulled = reader.iter_batches(ready - read, row_groups=[0], column_indices=[0])
            reader.set_batch_size(ready - read)
            batches.append(next(pulled))
            read += batches[-1].num_rows
            assert read == ready
            if len(batches) == 1:
                file.discard(chunk.start, walk.needed_from(read))
    assert len(batches) > 3
    assert pa.Table.from_batches(batches).column(0).combine_chunks() == pa.chunked_array([FLAT[name]]).combine_chunks()


def test_rows_of_flat_leaves_are_ready_with_their_page() -> None:
    chunk = Chunk(small_pages({"text": FLAT["text"]}, use_dictionary=False))
    walk, rows = chunk.walk(), 0
    walk.advance(memoryview(chunk.data), 0, chunk.end)
    for page in chunk.pages():
        assert walk.rows_ready(page.end - 1) == rows
        rows += page.values
        assert walk.rows_ready(page.end) == rows
    assert rows == ROWS


def test_rows_of_lists_are_ready_with_the_page_after_theirs() -> None:
    chunk = Chunk(small_pages(LISTS, data_page_version="2.0", use_dictionary=False))
    walk, rows = chunk.walk(is_repeated=True), 0
    walk.advance(memoryview(chunk.data), 0, chunk.end)
    pages = list(chunk.pages())
    assert len(pages) > 5
    for page in pages[:-1]:
        assert walk.rows_ready(page.end) == rows
        assert page.rows is not None
        rows += page.rows
    assert walk.rows_ready(chunk.end - 1) == rows - (pages[-2].rows or 0)
    assert walk.rows_ready(chunk.end) == ROWS


def test_lists_on_pages_that_do_not_tell_rows_are_ready_as_a_whole() -> None:
    chunk = Chunk(small_pages(LISTS, data_page_version="1.0"))
    walk = chunk.walk(is_repeated=True)
    walk.advance(memoryview(chunk.data), 0, chunk.end - 1)
    assert walk.is_blind
    assert walk.rows_ready(chunk.end - 1) == 0
    assert walk.needed_from(ROWS - 1) == chunk.start
    assert walk.rows_ready(chunk.end) == ROWS


def test_what_is_behind_the_decoder_is_not_needed() -> None:
    chunk = Chunk(small_pages({"few": FLAT["few"]}, use_dictionary=True))
    walk = chunk.walk()
    assert walk.needed_from(10) == chunk.start, "before a page was seen"
    walk.advance(memoryview(chunk.data), 0, chunk.end)
    data_pages = [page for page in chunk.pages() if page.is_data]
    assert walk.needed_from(0) == chunk.start, "the dictionary comes first"
    assert walk.needed_from(1) == data_pages[0].start
    assert walk.needed_from(data_pages[0].values) == data_pages[1].start
    assert walk.needed_from(data_pages[0].values - 1) == data_pages[0].start
    assert walk.needed_from(ROWS) == chunk.end


def test_a_header_that_has_not_come_whole_is_waited_for() -> None:
    chunk = Chunk(small_pages({"text": FLAT["text"]}, use_dictionary=False))
    first = next(chunk.pages())
    for end in range(chunk.start, first.data_start):
        assert read_page_header(memoryview(chunk.data)[:end], chunk.start, chunk.end, chunk.codec) is None
        walk = chunk.walk()
        walk.advance(memoryview(chunk.data)[:end], 0, end)
        assert walk.rows_ready(end) == 0
    # The first byte of the view may lie anywhere in the file.
    moved = read_page_header(
        memoryview(chunk.data)[chunk.start :], chunk.start, chunk.end, chunk.codec, base=chunk.start
    )
    assert moved == first


def header(**changes: int) -> bytes:
    """A data page's header, sound unless changed."""
    numbers = {"kind": 0, "uncompressed": 50, "compressed": 50, "values": 10} | changes
    return thrift.write_struct(
        {
            1: (thrift.I32, numbers["kind"]),
            2: (thrift.I32, numbers["uncompressed"]),
            3: (thrift.I32, numbers["compressed"]),
            5: (thrift.STRUCT, {1: (thrift.I32, numbers["values"]), 2: (thrift.I32, 0)}),
        }
    )


def read(raw: bytes, codec: str = "UNCOMPRESSED") -> PageHeader | None:
    """A header in a chunk that has 50 bytes more."""
    return read_page_header(memoryview(raw + bytes(50)), 0, len(raw) + 50, codec)


def test_a_sound_header() -> None:
    found = read(header())
    assert found == PageHeader(0, len(header()), len(header()) + 50, 0, 50, 10, None, 0)


@each_of(
    ("raw", "what"),
    [
        (header(compressed=51), "claims 51 bytes where its chunk has 50 left"),
        (header(compressed=-1), "compressed size"),
        (header(uncompressed=-5), "uncompressed size"),
        (header(uncompressed=2_000_000), "out of 50 bytes of UNCOMPRESSED"),
        (header(values=-1), "number of values"),
        (header(kind=2), "lacks its counts"),
        (header(kind=3), "lacks its counts"),
        (b"\x00", "type"),
        (b"\xff\xff\xff", "no page header"),
        (b"\x15\x00\x15", "number of more than 10 bytes|compressed size|does not end|lacks"),
    ],
)
def test_headers_that_cannot_be(raw: bytes, what: str) -> None:
    with pytest.raises(BadPage, match=what):
        read(raw)


@each_of(("codec", "possible"), [("SNAPPY", 2_000), ("GZIP", 50_000), ("ZSTD", 1_000_000), ("BROTLI", 100_000_000)])
def test_a_page_may_become_as_large_as_its_codec_can_make_it(codec: str, possible: int) -> None:
    assert read(header(uncompressed=possible), codec) is not None
    if codec != "BROTLI":
        with pytest.raises(BadPage, match=f"out of 50 bytes of {codec}"):
            read(header(uncompressed=possible * 100), codec)


def test_pages_with_other_rows_than_the_footer_tells() -> None:
    chunk = Chunk(small_pages({"text": FLAT["text"]}, use_dictionary=False))
    for rows, what in ((ROWS - 1, "more rows than"), (ROWS + 1, f"have {ROWS} rows of the {ROWS + 1}")):
        walk = PageWalk(chunk.start, chunk.end, rows, is_repeated=False, codec=chunk.codec)
        with pytest.raises(BadPage, match=what):
            walk.advance(memoryview(chunk.data), 0, chunk.end)


def test_every_page_of_every_leaf_is_read() -> None:
    data = written(nested_table(400), data_page_size=200, write_batch_size=10)
    metadata = pq.read_metadata(io.BytesIO(data))
    for leaf in range(metadata.num_columns):
        chunk = Chunk(data, leaf)
        values = sum(page.values for page in chunk.pages() if page.is_data)
        assert values == metadata.row_group(0).column(leaf).num_values
