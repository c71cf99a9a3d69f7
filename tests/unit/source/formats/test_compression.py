"""Compressed files, compared with the standard library and pyarrow: cut short, followed by garbage, and bombs."""

import gzip
import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.errors import ConfigInvalid, InvalidArgument, UntrustedMetadata
from aioprefetch.source.formats import can_split, compression_of
from aioprefetch.source.formats.file_bytes import decompressor
from aioprefetch.source.options import FormatOptions
from aioprefetch.source.values import FetchItem
from aioprefetch.testing.conformance.suite import checks
from tests.files.packed_files import PACKERS, SUFFIXES, zstd
from tests.profile import each_of
from tests.unit.source.formats.written_files import new_operator, put, read

TEXT = pa.schema([("value", pa.string())])
KINDS = {"framed": "snappy"}


def unpack(kind: str, packed: bytes, sizes: list[int]) -> bytes:
    stream = decompressor(KINDS.get(kind, kind), "k")
    out, at, turn = b"", 0, 0
    while at < len(packed):
        size = sizes[turn % len(sizes)]
        stream.feed(packed[at : at + size])
        while found := stream.take():
            out += found
        at, turn = at + size, turn + 1
    stream.finish()
    return out


@settings(deadline=None)
@given(
    st.sampled_from(list(PACKERS)),
    st.lists(st.binary(max_size=3000), min_size=1, max_size=3),
    st.lists(st.integers(1, 2000), min_size=1, max_size=4),
)
def test_streams_of_several_parts_in_any_pieces(kind: str, parts: list[bytes], sizes: list[int]) -> None:
    packed = b"".join(PACKERS[kind](part) for part in parts)
    assert unpack(kind, packed, sizes) == b"".join(parts)


@checks("source:Q7")
@each_of("kind", list(PACKERS))
@each_of("offsets", [True, False])
async def test_offsets_in_a_compressed_file_count_decompressed_bytes(kind: str, offsets: bool) -> None:
    lines = [f"line {number}" for number in range(5000)]
    data = "\n".join(lines).encode()
    async with new_operator() as operator:
        file = await put(operator, "a.txt" + SUFFIXES[kind], PACKERS[kind](data))
        assert not can_split(file, FormatOptions())
        found = await read(operator, file, TEXT, offsets=offsets)
        assert [row["value"] for row in found.rows] == lines
        for row, offset in zip(found.rows, found.offsets, strict=offsets):
            assert data[offset:].startswith(row["value"].encode() + b"\n") or row["value"] == lines[-1]


@checks("source:Q7")
async def test_the_option_overrides_the_suffix() -> None:
    async with new_operator() as operator:
        file = await put(operator, "a.data", gzip.compress(b"x\ny\n"))
        found = await read(operator, file, TEXT, format="text", compression="gzip")
        assert [row["value"] for row in found.rows] == ["x", "y"]
        assert found.offsets == [0, 2]
        plain = await put(operator, "b.txt.gz", b"x\ny\n")
        found = await read(operator, plain, TEXT, compression="none")
        assert [row["value"] for row in found.rows] == ["x", "y"]


@checks("source:Q7")
async def test_a_part_of_a_compressed_file_is_refused_and_never_a_range_of_its_bytes() -> None:
    async with new_operator() as operator:
        file = await put(operator, "a.txt.gz", gzip.compress(b"x\ny\n" * 100))
        with pytest.raises(InvalidArgument, match="only be read whole"):
            await read(operator, FetchItem(file, 4, 10), TEXT)


@pytest.mark.parametrize("kind", list(PACKERS))
async def test_a_stream_cut_anywhere_is_an_error_with_path_and_position(kind: str) -> None:
    packed = PACKERS[kind](random.Random(1).randbytes(3000).hex().encode())
    async with new_operator() as operator:
        # A missing block at the end is not noticed: neither format of snappy marks its end.
        for size in (1, 2, 5, 12, len(packed) // 2 + 1, len(packed) - 1):
            file = await put(operator, f"cut-{size}.txt{SUFFIXES[kind]}", packed[:size])
            with pytest.raises(UntrustedMetadata) as caught:
                await read(operator, file, TEXT)
            assert caught.value.path == file.key
            assert 0 <= int(str(caught.value.context["offset"])) <= size


@pytest.mark.parametrize("kind", list(PACKERS))
async def test_garbage_behind_a_stream_is_an_error_with_its_position(kind: str) -> None:
    packed = PACKERS[kind](b"some text\n" * 50)
    async with new_operator() as operator:
        file = await put(operator, "a.txt" + SUFFIXES[kind], packed + b"\x7fgarbage that is long enough")
        with pytest.raises(UntrustedMetadata) as caught:
            await read(operator, file, TEXT)
        assert int(str(caught.value.context["offset"])) >= len(packed)


async def test_zeros_behind_a_gzip_member_are_padding() -> None:
    async with new_operator() as operator:
        file = await put(operator, "a.txt.gz", gzip.compress(b"x\n") + bytes(700) + gzip.compress(b"y\n") + bytes(9))
        assert [row["value"] for row in (await read(operator, file, TEXT)).rows] == ["x", "y"]


async def test_raw_snappy_is_refused_by_name() -> None:
    async with new_operator() as operator:
        file = await put(operator, "a.txt.snappy", pa.Codec("snappy").compress(b"some text\n" * 50, asbytes=True))
        with pytest.raises(UntrustedMetadata, match="raw snappy block cannot be streamed"):
            await read(operator, file, TEXT)


@checks("reliability:I21", "reliability:K27")
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_bomb_comes_in_small_pieces(kind: str) -> None:
    packed = PACKERS[kind](bytes(64 << 20))
    stream = decompressor(kind, "bomb")
    stream.feed(packed)
    total = 0
    while found := stream.take():
        assert len(found) <= 2 << 20
        total += len(found)
    stream.finish()
    assert total == 64 << 20


@checks("reliability:I21")
@each_of(
    ("packed", "message"),
    [
        (struct.pack(">II", 100, 1 << 30), "neither the snappy framing format"),
        (struct.pack(">III", 100, 9, 0xFFFFFF7F) + bytes(8), "claims"),
        (b"\xff\x06\x00\x00sNaPpY" + b"\x00\x09\x00\x00" + bytes(4) + b"\xff\xff\xff\x7f\x00", "claims"),
        (b"\xff\x06\x00\x00sNaPpX", "another identifier"),
    ],
)
def test_lengths_in_snappy_are_checked_before_memory_is_taken(packed: bytes, message: str) -> None:
    with pytest.raises(UntrustedMetadata, match=message):
        unpack("snappy", packed, [1000])


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".snappy"])
async def test_an_empty_file_has_no_rows(suffix: str) -> None:
    async with new_operator() as operator:
        for key in ("a.txt", "a.jsonl", "a.csv"):
            file = await put(operator, key + suffix, b"")
            assert (await read(operator, file, TEXT)).rows == []


async def test_files_of_parquet_and_binary_are_not_decompressed() -> None:
    assert compression_of("a.snappy.parquet", FormatOptions()) == "none"
    assert compression_of("a.bin.gz", FormatOptions()) == "none"
    with pytest.raises(ConfigInvalid, match="does not go with format='binary'"):
        compression_of("a.bin", FormatOptions(compression="gzip"))
    with pytest.raises(ConfigInvalid, match="compression='lzo' must be one of"):
        compression_of("a.csv", FormatOptions(compression="lzo"))


async def test_reading_many_compressed_files_at_once_uses_threads_and_ends_them() -> None:
    operator: Any
    async with ap.Operator.from_uri("memory://formats-threads") as operator:
        data = b"".join(b"%d\n" % number for number in range(300_000))
        file = await put(operator, "a.txt.zst", zstd.compress(data, level=1))
        assert len((await read(operator, file, TEXT)).rows) == 300_000
