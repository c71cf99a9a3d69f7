"""Column chunks: names to leaves as pyarrow has them, ranges that hold what it reads, every bad offset refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioprefetch.errors import InvalidArgument, InvalidType, Unsupported, UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.parquet.chunks import CODECS, ColumnChunk, column_chunks, resolve_columns
from aioprefetch.parquet.footer import Footer, footer
from aioprefetch.testing.conformance.suite import checks
from tests.stores.gated_reader import bench
from tests.unit.parquet.parquet_files import (
    chunk_of,
    footer_start_of,
    nested_table,
    tree_of,
    with_footer,
    with_tree,
    written,
)

pytestmark = pytest.mark.virtual

NESTED = written(nested_table(), row_group_size=15, write_page_index=True)
PLAIN = written(
    pa.table({"a": np.arange(100), "s": [str(n % 7) for n in range(100)]}), row_group_size=30, write_page_index=True
)


async def footer_for(data: bytes) -> Footer:
    async with bench() as b:
        b.put(data)
        return await footer(b.operator, "k")


async def all_chunks(data: bytes, **options: Any) -> list[ColumnChunk]:
    found = await footer_for(data)
    return column_chunks(found, range(found.row_groups), resolve_columns(found, None), **options)


# --- names ------------------------------------------------------------------------------------------------------------

NAMES: list[list[str]] = [
    ["i"],
    ["b"],
    ["b.c"],
    ["b.d", "i"],
    ["x.y"],
    ["l"],
    ["l.list.element"],
    ["m.list.element.p"],
    ["m", "b.c"],
    ["k"],
    ["k.key_value.key", "k.key_value.value"],
    ["n.list"],
    [],
]


@pytest.mark.parametrize("names", NAMES, ids=",".join)
async def test_names_are_those_of_pyarrow(names: list[str]) -> None:
    found = await footer_for(NESTED)
    leaves = resolve_columns(found, names)
    expected = pq.ParquetFile(pa.BufferReader(NESTED))
    assert list(leaves) == sorted(expected._get_column_indices(names))


async def test_all_columns_are_all_leaves() -> None:
    found = await footer_for(NESTED)
    assert resolve_columns(found, None) == tuple(range(found.metadata.num_columns))


@pytest.mark.parametrize("name", ["nope", "b.e", "x", "I", "", "b.", "l.list.element.x"])
async def test_an_unknown_name_is_named_with_those_there_are(name: str) -> None:
    found = await footer_for(NESTED)
    with pytest.raises(InvalidArgument, match=r"'i', 'b', 'x.y'") as raised:
        resolve_columns(found, ["i", name])
    assert repr(name) in str(raised.value)


async def test_a_wide_file_lists_some_names() -> None:
    found = await footer_for(written(pa.table({f"c{n}": [1] for n in range(100)})))
    with pytest.raises(InvalidArgument, match=r"'c29', … \(100 in all\)"):
        resolve_columns(found, ["x"])


@pytest.mark.parametrize("columns", ["i", b"i", 7, [1], [None], [b"i"]])
async def test_columns_must_be_a_list_of_names(columns: Any) -> None:
    found = await footer_for(NESTED)
    with pytest.raises(InvalidType):
        resolve_columns(found, columns)


# --- ranges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False}, {"compression": "zstd", "data_page_version": "2.0"}]
)
async def test_chunks_hold_all_that_pyarrow_reads(options: dict[str, Any]) -> None:
    """With every byte outside of the chunks spoiled pyarrow reads the same."""
    table = nested_table()
    data = written(table, row_group_size=15, **options)
    chunks = await all_chunks(data)
    spoiled = bytearray(b"\xa5" * len(data))
    spoiled[footer_start_of(data) :] = data[footer_start_of(data) :]
    spoiled[:4] = data[:4]
    for one in chunks:
        spoiled[one.start : one.end] = data[one.start : one.end]
    assert pq.read_table(pa.BufferReader(bytes(spoiled))).equals(table)
    assert [one.row_group for one in chunks] == sorted(one.row_group for one in chunks)
    assert sum(one.size for one in chunks) + 4 == footer_start_of(data)


async def test_what_a_chunk_says() -> None:
    last = (await all_chunks(NESTED))[-1]
    assert (last.row_group, last.path, last.first_row, last.rows, last.num_values) == (
        2,
        ("n", "list", "element", "list", "element"),
        30,
        10,
        20,
    )
    assert last.max_repetition == 2
    assert last.offset_index is None


async def test_some_chunks() -> None:
    found = await footer_for(NESTED)
    some = column_chunks(found, [2, 0], resolve_columns(found, ["b.c", "x.y"]))
    assert [(one.row_group, one.path) for one in some] == [
        (2, ("b", "c")),
        (2, ("x.y",)),
        (0, ("b", "c")),
        (0, ("x.y",)),
    ]
    assert column_chunks(found, [], (0,)) == column_chunks(found, [1], ()) == []


def change(data: bytes, row_group: int, leaf: int, **fields: int) -> bytes:
    """A file of which the metadata of one chunk are changed."""
    numbers = {"values": 5, "compressed": 7, "data_page": 9, "dictionary": 11}
    tree = tree_of(data)
    for name, value in fields.items():
        chunk_of(tree, row_group, leaf)[3][1][numbers[name]] = (thrift.I64, value)
    return with_tree(data, tree)


async def test_dictionary_offsets_of_old_writers() -> None:
    """0 means that there is none; one behind the data is not believed."""
    (first, *_), found = await all_chunks(PLAIN), await footer_for(PLAIN)
    data_page = found.metadata.row_group(0).column(0).data_page_offset
    for wrong in (0, -5, data_page + 10):
        chunk = (await all_chunks(change(PLAIN, 0, 0, dictionary=wrong, compressed=first.end - data_page)))[0]
        assert (chunk.start, chunk.end) == (data_page, first.end)


BAD: dict[str, dict[str, int]] = {
    "before the file": {"data_page": -1, "dictionary": 0},
    "on the magic": {"dictionary": 3},
    "beyond the end": {"data_page": 1 << 40, "dictionary": 1 << 40},
    "at the largest number": {"data_page": (1 << 63) - 1, "dictionary": 0},
    "of negative size": {"compressed": -1},
    "into the footer": {"compressed": len(PLAIN)},
    "of the largest size": {"compressed": (1 << 63) - 1},
    "over its neighbour": {"compressed": 1000},
    "of negative values": {"values": -1},
    "of more values than rows": {"values": 31},
}


@checks("reliability:I19")
@pytest.mark.parametrize("name", BAD)
async def test_bad_chunks_are_refused(name: str) -> None:
    found = await footer_for(change(PLAIN, 1, 0, **BAD[name]))
    with pytest.raises(UntrustedMetadata, match=r"row group 1, column '(a|s)'"):
        column_chunks(found, range(4), (0, 1))
    # What is not asked for is not looked at.
    assert len(column_chunks(found, [0, 2, 3], (0, 1))) == 6


async def test_two_row_groups_in_one_place_are_refused() -> None:
    tree = tree_of(PLAIN)
    tree[4][1].items[1] = tree[4][1].items[0]
    found = await footer_for(with_tree(PLAIN, tree))
    with pytest.raises(UntrustedMetadata, match="overlaps the chunk of row group 0"):
        column_chunks(found, range(4), (0,))


async def test_a_row_group_with_fewer_chunks_than_leaves() -> None:
    tree = tree_of(PLAIN)
    tree[4][1].items[2][1][1].items.pop()
    found = await footer_for(with_tree(PLAIN, tree))
    with pytest.raises(UntrustedMetadata, match="row group 2 has 1 column chunks, the schema 2 leaves"):
        column_chunks(found, [2], (0,))
    assert len(column_chunks(found, [0, 1, 3], (0, 1))) == 6


async def test_chunks_in_other_files_are_unsupported() -> None:
    tree = tree_of(PLAIN)
    chunk = chunk_of(tree, 0, 1)
    tree[4][1].items[0][1][1].items[1] = {1: (thrift.BINARY, b"part-0.parquet"), **chunk}
    found = await footer_for(with_tree(PLAIN, tree))
    with pytest.raises(Unsupported, match=r"part-0\.parquet"):
        column_chunks(found, [0], (1,))


async def test_encrypted_columns_are_unsupported() -> None:
    """As a file with a plain footer has them: crypto metadata with a key of their own, and no metadata."""
    tree = tree_of(PLAIN)
    chunk = chunk_of(tree, 0, 1)
    key = {1: (thrift.LIST, thrift.ThriftList(thrift.BINARY, [b"s"])), 2: (thrift.BINARY, b"key")}
    chunk[8] = (thrift.STRUCT, {2: (thrift.STRUCT, key)})
    chunk[9] = (thrift.BINARY, b"secret")
    tree[8] = (thrift.STRUCT, {1: (thrift.STRUCT, {2: (thrift.BINARY, b"12345678")})})
    data = with_footer(PLAIN, thrift.write_struct(tree) + bytes(28))
    found = await footer_for(data)
    assert len(column_chunks(found, [0], (0,))) == 1
    with pytest.raises(Unsupported, match="encrypted"):
        column_chunks(found, [0], (1,))


@pytest.mark.parametrize(
    ("number", "value", "error", "words"),
    [
        (4, 99, Unsupported, "the unknown codec 99"),
        (4, -1, Unsupported, "the unknown codec -1"),
        (1, 6, UntrustedMetadata, "is of type 6 where the schema says 2"),
    ],
)
async def test_types_and_codecs(number: int, value: int, error: type[Exception], words: str) -> None:
    """pyarrow ends the process when it is asked for such."""
    tree = tree_of(PLAIN)
    chunk_of(tree, 0, 0)[3][1][number] = (thrift.I32, value)
    found = await footer_for(with_tree(PLAIN, tree))
    with pytest.raises(error, match=words):
        column_chunks(found, [0], (0,))


@pytest.mark.parametrize("name", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
async def test_codecs_have_their_names(name: str) -> None:
    data = written(pa.table({"a": [1]}), compression=name)
    expected = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0).compression
    footer_says, (chunk,) = await footer_for(data), await all_chunks(data)
    codec = footer_says.chunks[0][0].codec
    assert chunk.codec == CODECS[codec] == ("LZ4_RAW" if name == "lz4" else expected)


@pytest.mark.parametrize(
    ("writer", "padding"),
    [
        ("parquet-mr version 1.2.8", 100),
        ("parquet-mr version 1.1.0 (build x)", 100),
        ("parquet-mr", 100),
        ("parquet-mr version 1.2.9", 0),
        ("parquet-mr version 1.12.0", 0),
        ("parquet-cpp-arrow version 1.2.0", 0),
    ],
)
async def test_old_writers_did_not_count_a_header(writer: str, padding: int) -> None:
    tree = tree_of(PLAIN)
    tree[6] = (thrift.BINARY, writer.encode())
    chunks, expected = await all_chunks(with_tree(PLAIN, tree)), await all_chunks(PLAIN)
    last = min(footer_start_of(PLAIN), expected[0].end + padding)
    assert (chunks[0].start, chunks[0].end) == (expected[0].start, last)
    assert chunks[-1].end <= footer_start_of(PLAIN)


# --- page indexes -----------------------------------------------------------------------------------------------------


async def test_where_page_indexes_lie() -> None:
    chunks = await all_chunks(NESTED, with_indexes=True)
    tree = tree_of(NESTED)
    for one in chunks:
        chunk = chunk_of(tree, one.row_group, one.column)
        assert one.offset_index == (chunk[4][1], chunk[4][1] + chunk[5][1])
        # There are none of columns whose values are not all in their statistics.
        assert one.column_index == ((chunk[6][1], chunk[6][1] + chunk[7][1]) if 6 in chunk else None)
    assert any(one.column_index for one in chunks)


async def test_a_file_without_page_indexes_has_none() -> None:
    chunks = await all_chunks(written(pa.table({"a": [1]})), with_indexes=True)
    assert [(one.offset_index, one.column_index) for one in chunks] == [(None, None)]


@pytest.mark.parametrize("field", [(4, -1), (4, 1 << 62), (4, 0), (5, -1), (5, (1 << 31) - 1), (6, 3), (7, 1 << 30)])
async def test_page_indexes_that_leave_the_file_are_none(field: tuple[int, int]) -> None:
    tree = tree_of(PLAIN)
    number, value = field
    chunk = chunk_of(tree, 3, 1)
    chunk[number] = (chunk[number][0], value)
    found = await footer_for(with_tree(PLAIN, tree))
    (outside,) = column_chunks(found, [3], (1,), with_indexes=True)
    assert None in (outside.offset_index, outside.column_index)
    (other,) = column_chunks(found, [0], (0,), with_indexes=True)
    assert None not in (other.offset_index, other.column_index)
