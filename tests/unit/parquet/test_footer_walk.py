"""The walk over column chunks: one pattern and a reading field by field that never disagree, for any bytes."""

import io
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.parquet import thrift
from aioprefetch.parquet.layout import chunk_pattern, numbers_of, read_chunk, walk_footer
from tests.profile import each_of
from tests.unit.parquet.parquet_files import chunk_of, footer_of, nested_table, tree_of, written


def polars_file() -> bytes:
    """As polars writes it."""
    file = io.BytesIO()
    frame = pl.DataFrame({"a": list(range(50)), "s": [str(n) for n in range(50)], "l": [[n] for n in range(50)]})
    frame.write_parquet(file, row_group_size=20)
    return file.getvalue()


FILES = {
    "plain": written(pa.table({"a": np.arange(100), "f": np.arange(100.0)}), row_group_size=30),
    "indexed": written(nested_table(), row_group_size=15, write_page_index=True),
    "checksums": written(nested_table(), data_page_version="2.0", write_page_checksum=True, compression="zstd"),
    "long bounds": written(pa.table({"s": ["x" * 300, "y"]}), write_page_index=True),
    "no statistics": written(pa.table({"s": ["x"], "a": [1]}), write_statistics=False, use_dictionary=False),
    "deep": written(pa.table({"a": [[[[[1, 2]], [[3]]]]]})),
    "polars": polars_file(),
}


@each_of("name", FILES)
def test_says_what_pyarrow_says(name: str) -> None:
    data = FILES[name]
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    outline = walk_footer(memoryview(footer_of(data)))
    groups, end = outline.chunks, outline.row_groups_end
    assert len(groups) == metadata.num_row_groups
    tree = tree_of(data)
    rest = thrift.write_struct({number: field for number, field in tree.items() if number <= 4})
    assert end == len(rest) - 1
    for number, group in enumerate(groups):
        for leaf, chunk in enumerate(group):
            expected = metadata.row_group(number).column(leaf)
            assert chunk.values == expected.num_values
            assert chunk.uncompressed_bytes == expected.total_uncompressed_size
            assert chunk.compressed_bytes == expected.total_compressed_size
            assert chunk.data_page == expected.data_page_offset
            assert chunk.dictionary_page == (expected.dictionary_page_offset or 0)
            assert bool(chunk.offset_index) == expected.has_offset_index
            assert bool(chunk.column_index) == expected.has_column_index
            fields = chunk_of(tree, number, leaf)
            assert (chunk.physical_type, chunk.codec) == (fields[3][1][1][1], fields[3][1][4][1])
            assert chunk.offset_index_bytes == fields.get(5, (0, 0))[1]
            assert chunk.column_index_bytes == fields.get(7, (0, 0))[1]


@each_of("name", ["plain", "indexed", "checksums", "no statistics", "polars"])
def test_the_pattern_matches_the_files_of_writers(name: str) -> None:
    raw = footer_of(FILES[name])
    for group in walk_footer(memoryview(raw)).chunks:
        for chunk in group:
            found = chunk_pattern().match(raw, chunk.position)
            assert found is not None
            assert read_chunk(raw, chunk.position) == (numbers_of(found), found.end())


SEEDS = [thrift.write_struct(chunk_of(tree_of(FILES[name]), 0, 0)) for name in ("plain", "indexed", "polars")]


@given(st.sampled_from(SEEDS), st.data())
def test_the_pattern_never_says_anything_else(seed: bytes, data: st.DataObject) -> None:
    """Whatever is changed: if the pattern matches, reading field by field gives the same."""
    raw = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(["set", "insert", "drop"]))
        if how == "drop":
            del raw[place]
        elif how == "insert":
            raw.insert(place, data.draw(st.integers(0, 255)))
        else:
            raw[place] = data.draw(st.integers(0, 255))
    changed = bytes(raw) + bytes(8)
    found = chunk_pattern().match(changed)
    if found is not None:
        assert read_chunk(changed, 0) == (numbers_of(found), found.end())


def without(fields: thrift.Struct, number: int) -> thrift.Struct:
    return {key: field for key, field in fields.items() if key != number}


UNUSUAL: dict[str, Any] = {
    "another file": lambda chunk: {1: (thrift.BINARY, b"x.parquet"), **chunk},
    "crypto metadata": lambda chunk: chunk | {8: (thrift.STRUCT, {1: (thrift.STRUCT, {})})},
    "encrypted metadata": lambda chunk: chunk | {9: (thrift.BINARY, b"secret")},
    "no metadata": lambda chunk: without(chunk, 3),
    "an index page": lambda chunk: chunk | {3: (thrift.STRUCT, dict(sorted((chunk[3][1] | {10: (6, 77)}).items())))},
    "pairs": lambda chunk: (
        chunk
        | {
            3: (
                thrift.STRUCT,
                dict(sorted((chunk[3][1] | {8: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, []))}).items())),
            )
        }
    ),
    "numbers of eleven bytes": None,
}


@each_of("name", UNUSUAL)
def test_an_unusual_chunk_is_read_field_by_field(name: str) -> None:
    chunk = chunk_of(tree_of(FILES["plain"]), 0, 0)
    if UNUSUAL[name] is None:
        raw = thrift.write_struct(chunk).replace(b"\x26\x00", b"\x26" + b"\x80" * 11 + b"\x00", 1)
        assert chunk_pattern().match(raw) is None
        with pytest.raises(thrift.MalformedThrift):
            read_chunk(raw, 0)
        return
    raw = thrift.write_struct(UNUSUAL[name](chunk))
    assert chunk_pattern().match(raw) is None
    numbers, end = read_chunk(raw, 0)
    assert end == len(raw)
    assert numbers.is_encrypted == name.startswith(("crypto", "encrypted"))
    assert numbers.elsewhere == ("x.parquet" if name == "another file" else "")
    assert numbers.values == (0 if name == "no metadata" else 30)


def test_a_pattern_takes_time_in_proportion() -> None:
    """Bytes that nearly match at every place end it at once: a step for each byte at most."""
    for filler in (b"\x19\x25\x00\x00", b"\x1c\x18\x00", b"\x15\x80", b"\x19\x6c"):
        raw = SEEDS[0][:-20] + filler * 100_000
        assert chunk_pattern().match(raw) is None
