"""Damaged and hostile files: arrays of the right type or a typed error, never a crash or an array that is not valid."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.lance.compression import decompress, decompressed_bytes
from aioprefetch.lance.dataset import MissingField
from aioprefetch.lance.output import assemble, dictionary
from aioprefetch.lance.physical import encodings as enc
from aioprefetch.lance.physical.encodings import PageBuffers, blob_scheduler, list_scheduler, page_scheduler
from aioprefetch.lance.physical.indirect import DictionaryRows, TextDictionaryRows
from aioprefetch.lance.physical.protocols import PageRows
from aioprefetch.row_ranges import RowRanges
from tests.files.lance_v20_columns import FAMILIES, table_of
from tests.files.lance_v20_pages import random_ranges, read_rows, write_file
from tests.profile import chosen, each_of

ROWS = 240
MUTATED = [
    *("int64", "int32 with nulls", "bool with nulls", "string", "large_binary", "few strings", "zstd", "lz4", "fsst"),
    *("dictionary of strings", "dictionary of numbers", "vectors of nulls", "lists", "lists of strings"),
    *("lists of lists", "lists of structs", "structs of lists", "packed structs", "blobs", "all null vectors"),
]
FLAT8, FLAT64 = enc.Flat(8, enc.BufferRef(0)), enc.Flat(64, enc.BufferRef(0))
BUFFERS = PageBuffers([(0, 800), (800, 1000)])


def _mutated(data: bytes, rng: np.random.Generator, low: int, high: int) -> bytes:
    damaged = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(low, high))
        match int(rng.integers(0, 4)):
            case 0:
                damaged[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                damaged[at] = int(rng.integers(0, 256))
            case 2:
                damaged[at] = 0xFF
            case _:
                size = min(8, len(data) - at)
                damaged[at : at + size] = int(rng.integers(0, 1 << 62)).to_bytes(8, "little")[:size]
    return bytes(damaged)


@pytest.mark.parametrize("name", MUTATED)
async def test_mutated_files_end_in_a_response_or_a_typed_error(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(23)
    data = write_file(tmp_path / "f.lance", table_of(name, rng, ROWS), batches=3, data_cache_bytes=1)
    metadata_start = struct.unpack("<Q", data[-40:-32])[0]
    errors = 0
    for attempt in range(chosen(quick=26, full=52)):
        in_pages = attempt % 2 == 0
        damaged = _mutated(data, rng, *((0, metadata_start) if in_pages else (metadata_start, len(data) - 40)))
        ranges = [(0, ROWS)] if attempt % 3 else random_ranges(rng, ROWS, 4)
        try:
            await read_rows(damaged, ranges, batch_rows=int(rng.integers(1, 300)))
        except ap.Error:
            errors += 1
    assert errors


@each_of(
    ("kind", "encoding"),
    [
        (pa.int32(), FLAT64),
        (pa.int64(), enc.Flat(0, enc.BufferRef(0))),
        (pa.int64(), enc.Flat(64, enc.BufferRef(2))),
        (pa.int64(), enc.Flat(64, enc.BufferRef(0, "column"))),
        (pa.int64(), enc.Flat(64, enc.BufferRef(0, "file"))),
        (pa.int64(), enc.Flat(64, enc.BufferRef(1))),
        (pa.bool_(), FLAT8),
        (pa.string(), FLAT8),
        (pa.list_(pa.int8(), 4), FLAT8),
        (pa.list_(pa.int8(), 4), enc.FixedSizeList(5, FLAT8)),
        (pa.list_(pa.int8(), 9), enc.FixedSizeList(9, FLAT8)),
        (pa.list_(pa.int8(), 2**31 - 1), enc.FixedSizeList(2**31 - 1, enc.AllNulls())),
        (pa.int8(), enc.SomeNulls(FLAT8, FLAT8)),
        (pa.int8(), enc.SimpleStruct()),
        (pa.int8(), enc.List(FLAT64, 1, 1)),
        (pa.int8(), enc.Binary(FLAT64, FLAT8, 9)),
        (pa.string(), enc.Binary(FLAT64, FLAT8, 0)),
        (pa.string(), enc.Binary(FLAT8, FLAT8, 9)),
        (pa.string(), enc.Binary(FLAT64, FLAT64, 9)),
        (pa.string(), enc.Fsst(FLAT8, b"")),
        (pa.string(), enc.Dictionary(FLAT8, FLAT8, 3)),
        (pa.int8(), enc.Dictionary(FLAT8, FLAT8, 3)),
        (pa.string(), enc.Dictionary(enc.Flat(7, enc.BufferRef(0)), enc.Binary(FLAT64, FLAT8, 9), 3)),
        (pa.string(), enc.Dictionary(FLAT8, enc.Binary(FLAT64, FLAT8, 9), 101)),
        (pa.dictionary(pa.int8(), pa.int64()), enc.Dictionary(FLAT64, FLAT64, 3)),
        (pa.dictionary(pa.int8(), pa.int64()), FLAT8),
        (pa.struct([("a", pa.int8())]), enc.PackedStruct((FLAT8, FLAT8), enc.BufferRef(0))),
        (pa.struct([("a", pa.int8())]), enc.PackedStruct((FLAT64,), enc.BufferRef(0))),
        (pa.struct([("a", pa.int64())] * 2), enc.PackedStruct((FLAT64, FLAT64), enc.BufferRef(0))),
        (pa.int8(), enc.PackedStruct((FLAT8,), enc.BufferRef(0))),
    ],
)
def test_encodings_that_contradict_type_or_buffers_are_refused(kind: pa.DataType, encoding: enc.Encoding) -> None:
    with pytest.raises(ap.errors.UntrustedMetadata):
        page_scheduler(kind, encoding, BUFFERS, 100 if "2147483647" not in str(kind) else 1 << 40)


@each_of(
    ("kind", "encoding"),
    [
        (pa.int8(), enc.Flat(8, enc.BufferRef(0), "brotli")),
        (pa.bool_(), enc.Flat(1, enc.BufferRef(0), "zstd")),
        (pa.int8(), enc.SomeNulls(FLAT8, enc.AllNulls())),
        (pa.string(), enc.Binary(enc.Flat(64, enc.BufferRef(0), "zstd"), FLAT8, 9)),
        (pa.list_(pa.string(), 2), enc.FixedSizeList(2, enc.Binary(FLAT64, FLAT8, 9))),
        (pa.dictionary(pa.int8(), pa.int64()), enc.AllNulls()),
        (pa.string(), enc.Dictionary(FLAT8, enc.Dictionary(FLAT8, enc.Binary(FLAT64, FLAT8, 9), 3), 3)),
    ],
)
def test_encodings_that_2_0_does_not_use_are_named(kind: pa.DataType, encoding: enc.Encoding) -> None:
    with pytest.raises((ap.errors.Unsupported, ap.errors.UntrustedMetadata)) as caught:
        page_scheduler(kind, encoding, BUFFERS, 20)
    assert len(str(caught.value)) > 40


@each_of(("number", "name"), [(10, "Bitpacked"), (11, "FixedSizeBinary"), (12, "BitpackedForNonNeg"), (13, "Constant")])
def test_encodings_of_later_versions_are_refused_by_name(number: int, name: str) -> None:
    with pytest.raises(ap.errors.Unsupported, match=name):
        enc.parse_encoding(bytes([number << 3 | 2, 2, 8, 1]))


@each_of("data", [b"", b"\x0a", b"\x0a\x02\x08", b"\x12\x00", b"\x0a\x00\x2a\x00", b"\x22\x02\x10\x01"])
def test_bytes_that_are_not_an_encoding_are_refused(data: bytes) -> None:
    with pytest.raises(ap.errors.UntrustedMetadata):
        enc.parse_encoding(data)


@each_of("data", [b"\xa2\x01\x00", b"\x0a\x02\x20\x01", b"\x1a\x04\x12\x00\x18\x01"])
def test_members_that_are_not_known_are_refused(data: bytes) -> None:
    with pytest.raises((ap.errors.Unsupported, ap.errors.UntrustedMetadata)):
        enc.parse_encoding(data)
    with pytest.raises(ap.errors.Unsupported, match="PageLayout"):
        enc.parse_encoding(b"", "/lance.encodings21.PageLayout")


def test_lists_of_fixed_size_with_validity_are_refused() -> None:
    flat = b"\x0a\x02\x08\x08"
    without, with_validity = (b"\x08\x02\x12\x04" + flat + last for last in (b"\x18\x00", b"\x18\x01"))
    assert isinstance(enc.parse_encoding(bytes([0x1A, len(without)]) + without), enc.FixedSizeList)
    with pytest.raises(ap.errors.Unsupported, match="fixed_size_list with a field has_validity"):
        enc.parse_encoding(bytes([0x1A, len(with_validity)]) + with_validity)


def test_columns_encoded_in_another_way_are_refused() -> None:
    assert not enc.is_blob_column(b"\x0a\x00")
    assert not enc.is_blob_column(b"", "")
    assert enc.is_blob_column(b"\x1a\x02\x0a\x00")
    for data, url in ((b"\x12\x00", enc.COLUMN_TYPE_URL), (b"\x22\x00", enc.COLUMN_TYPE_URL), (b"\x0a\x00", "/other")):
        with pytest.raises(ap.errors.Unsupported):
            enc.is_blob_column(data, url)


@pytest.mark.parametrize("items", [1 << 63, 10])
def test_lists_of_too_many_items_are_refused(items: int) -> None:
    with pytest.raises(ap.errors.UntrustedMetadata):
        list_scheduler(enc.List(FLAT64, 0 if items == 10 else items + 1, items), BUFFERS, 10)
    with pytest.raises(ap.errors.UntrustedMetadata):
        list_scheduler(FLAT64, BUFFERS, 10)


@each_of("pair", [(0, 1 << 63), (1 << 63, 0), ((1 << 64) - 1, 2), (900, 101), (1001, 0)])
def test_blobs_outside_the_file_are_refused(pair: tuple[int, int]) -> None:
    encoding = enc.PackedStruct((FLAT64, FLAT64), enc.BufferRef(0))
    scheduler = blob_scheduler(pa.large_binary(), encoding, BUFFERS, 1, 1000)
    with pytest.raises(ap.errors.UntrustedMetadata):
        scheduler.decoder(RowRanges.one(0, 1), iter([memoryview(struct.pack("<QQ", *pair))]))
    with pytest.raises(ap.errors.UntrustedMetadata):
        blob_scheduler(pa.int8(), encoding, BUFFERS, 1, 1000)


def _rows(kind: pa.DataType, encoding: enc.Encoding, rows: int, *reads: bytes) -> PageRows:  # type: ignore[type-arg]
    scheduler = page_scheduler(kind, encoding, BUFFERS, rows)
    page = scheduler.decoder(RowRanges.one(0, rows), iter([memoryview(read) for read in reads]))
    return PageRows(page, 0, rows)


def test_indices_beyond_a_dictionary_are_refused() -> None:
    items = enc.Binary(FLAT64, enc.Flat(8, enc.BufferRef(1)), 4)
    text = enc.Dictionary(FLAT8, items, 3)
    stored = (struct.pack("<3Q", 1, 2, 3), b"abc")
    good = _rows(pa.string(), text, 4, bytes([0, 1, 2, 3]), *stored)
    assert isinstance(good.page, TextDictionaryRows)
    assert assemble(pa.string(), [good]).to_pylist() == [None, "a", "b", "c"]
    with pytest.raises(ap.errors.UntrustedMetadata, match="dictionary"):
        assemble(pa.string(), [_rows(pa.string(), text, 4, bytes([0, 1, 2, 4]), *stored)])
    kind = pa.dictionary(pa.int8(), pa.string())
    for last, is_fine in ((2, True), (3, False), (255, False)):
        piece = _rows(kind, text, 4, bytes([0, 1, 2, last]), *stored)
        assert isinstance(piece.page, DictionaryRows)
        if is_fine:
            assert dictionary(kind, [piece], [piece.page.items.array()]).to_pylist() == ["a", "b", "c", "c"]
            continue
        with pytest.raises(ap.errors.UntrustedMetadata, match="dictionary"):
            dictionary(kind, [piece], [piece.page.items.array()])


def _zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


def test_compressed_buffers_are_decompressed() -> None:
    content = bytes(range(256)) * 20
    frame = _zstd(content)
    raw = bytes(pa.Codec("lz4_raw").compress(content, asbytes=True))
    for scheme, data in (
        ("zstd", struct.pack("<Q", len(content)) + frame),
        ("zstd", frame),  # As early writers did.
        ("lz4", struct.pack("<I", len(content)) + raw),
    ):
        assert decompressed_bytes(scheme, memoryview(data)) == len(content)
        assert decompress(scheme, memoryview(data)).tobytes() == content
        assert len(decompress(scheme, memoryview(b""))) == 0


@each_of(
    "make",
    [
        lambda frame, size: ("zstd", struct.pack("<Q", size + 1) + frame),
        lambda frame, size: ("zstd", struct.pack("<Q", size - 1) + frame),
        lambda frame, size: ("zstd", struct.pack("<Q", 1 << 60) + frame),
        lambda frame, size: ("zstd", struct.pack("<Q", size) + frame[:-3]),
        lambda frame, size: ("zstd", struct.pack("<Q", size) + b"\0" + frame[1:]),
        lambda frame, size: ("zstd", frame[:9]),
        lambda frame, size: ("zstd", b"\0" * 7),
        lambda frame, size: ("lz4", struct.pack("<I", size) + frame),
        lambda frame, size: ("lz4", struct.pack("<I", (1 << 32) - 1) + frame),
        lambda frame, size: ("lz4", b"\0" * 3),
    ],
)
def test_compressed_buffers_that_lie_are_refused(make: Callable[[bytes, int], tuple[str, bytes]]) -> None:
    content = b"hello world " * 50
    scheme, data = make(_zstd(content), len(content))
    with pytest.raises((ap.errors.UntrustedMetadata, ap.errors.Unsupported)):
        decompress(scheme, memoryview(data))


@each_of(("scheme", "size"), [("zstd", 1 << 60), ("zstd", 1 << 25), ("lz4", (1 << 32) - 1)])
def test_a_size_that_the_bytes_cannot_hold_is_not_believed(scheme: str, size: int) -> None:
    data = size.to_bytes(4 if scheme == "lz4" else 8, "little") + _zstd(b"x")[:30]
    with pytest.raises(ap.errors.UntrustedMetadata, match="cannot hold"):
        decompressed_bytes(scheme, memoryview(data))


def test_strings_beyond_the_decompressed_bytes_are_refused() -> None:
    content = struct.pack("<Q", 10) + _zstd(b"0123456789")
    encoding = enc.Binary(FLAT64, enc.Flat(8, enc.BufferRef(1), "zstd"), 100)
    for end in (10, 11):
        piece = _rows(pa.string(), encoding, 2, struct.pack("<2Q", 4, end), content)
        if end == 10:
            assert assemble(pa.string(), [piece]).to_pylist() == ["0123", "456789"]
            continue
        for pieces in ([piece], [piece, piece]):
            with pytest.raises(ap.errors.UntrustedMetadata, match="was read"):
                assemble(pa.string(), pieces)


def test_a_page_of_nulls_takes_no_memory_by_its_claims() -> None:
    kind = pa.list_(pa.float64(), 1 << 20)
    page = page_scheduler(kind, enc.AllNulls(), BUFFERS, 1 << 40).decoder(RowRanges.one(7, 1 << 39), iter(()))
    array = assemble(kind, [PageRows(page, 0, 30)])  # 240 MiB of zeros that were never touched.
    assert array.null_count == 30
    before = pa.total_allocated_bytes()
    last = assemble(kind, [PageRows(page, page.rows - 30, 30, is_last=True)])
    assert last.null_count == 30
    assert pa.total_allocated_bytes() - before < 1 << 20  # Nothing of it was copied.
    for pieces in ([(0, 40)], [(0, 20), (20, 20)]):
        with pytest.raises(ap.errors.Unsupported, match="fewer rows"):
            assemble(kind, [PageRows(page, skip, rows) for skip, rows in pieces])


def test_missing_columns_take_no_memory_by_their_type() -> None:
    field = MissingField(pa.list_(pa.float64(), 1 << 20))
    assert field.size_bytes(30) > 30 << 23
    with pytest.raises(ap.errors.Unsupported, match="fewer rows"):
        field.drain(40)


def test_the_size_of_missing_values_is_about_that_of_nulls() -> None:
    for name in FAMILIES:
        kind = table_of(name, np.random.default_rng(1), 1).schema.field("x").type
        nulls, expected = pa.nulls(8000, kind), MissingField(kind).size_bytes(8000)
        # Arrow adds no items to lists, and to dictionaries one value.
        assert abs(nulls.nbytes - expected) <= 0.1 * expected + 1000, name


async def test_columns_with_fewer_rows_than_the_file_are_refused(tmp_path: Path) -> None:
    data = write_file(tmp_path / "f.lance", table_of("int64", np.random.default_rng(1), 100))
    with pytest.raises(ap.errors.UntrustedMetadata, match="has 100 rows"):
        await read_rows(data, [(50, 101)])
