"""The entry format: everything that does not fit together is refused."""

import struct
from dataclasses import replace
from datetime import UTC, datetime
from zlib import crc32

import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.layers.lru_cache.entry import (
    HEADER_BYTES_MAX,
    EntryHeader,
    decode_header,
    encode_header,
    name_part,
    slot_in,
    slot_of,
)

HEADER = EntryHeader(
    namespace=("s3", "https://e", "bucket", "root", "someone"),
    path="a/\udc80/ü.parquet",
    asked_version=None,
    etag="abc",
    version="v1",
    total=1000,
    last_modified=datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
    content_type="text/plain",
    filled_at=datetime(2025, 1, 1, tzinfo=UTC),
    data_crc=7,
)
RAW = encode_header(HEADER) or b""


def decode(raw: bytes, *, header: EntryHeader = HEADER, file_bytes: int | None = None) -> tuple[EntryHeader, int]:
    size = len(RAW) + HEADER.total if file_bytes is None else file_bytes
    return decode_header(raw, name=header.name, slot=header.slot, file_bytes=size)


def test_a_header_comes_back_as_it_was() -> None:
    assert decode(RAW) == (HEADER, len(RAW))
    assert decode(RAW + b"data that follows") == (HEADER, len(RAW))
    bare = replace(HEADER, version=None, asked_version="v9", last_modified=None, content_type=None)
    raw = encode_header(bare) or b""
    assert decode(raw, header=bare, file_bytes=len(raw) + 1000)[0] == bare


def test_every_flipped_bit_of_a_header_is_refused() -> None:
    for position in range(len(RAW)):
        for bit in range(8):
            flipped = bytearray(RAW)
            flipped[position] ^= 1 << bit
            with pytest.raises(UntrustedMetadata):
                decode(bytes(flipped) + bytes(4096))


def test_every_truncation_is_refused() -> None:
    for length in range(len(RAW)):
        with pytest.raises(UntrustedMetadata):
            decode(RAW[:length], file_bytes=length)
    for missing in (1, 999, 1000):
        with pytest.raises(UntrustedMetadata):
            decode(RAW, file_bytes=len(RAW) + 1000 - missing)
    with pytest.raises(UntrustedMetadata, match="bytes where"):
        decode(RAW, file_bytes=len(RAW) + 1001)


def test_zeros_and_a_huge_claimed_length_are_refused() -> None:
    with pytest.raises(UntrustedMetadata, match="magic"):
        decode(bytes(len(RAW)))
    with pytest.raises(UntrustedMetadata, match="too long"):
        decode(RAW[:10] + struct.pack(">I", 0xFFFFFFFF) + RAW[14:])


def test_another_format_version_is_refused() -> None:
    for version in (0, 2, 65535):
        with pytest.raises(UntrustedMetadata, match=f"version {version}"):
            decode(RAW[:8] + struct.pack(">H", version) + RAW[10:])


@pytest.mark.parametrize(
    "change",
    [
        {"path": "b"},
        {"etag": "abd"},
        {"version": "v2"},
        {"asked_version": "v1"},
        {"namespace": ("s3", "https://e", "bucket", "root", "another")},
    ],
)
def test_the_entry_of_another_object_is_refused(change: dict[str, object]) -> None:
    other = replace(HEADER, **change)  # type: ignore[arg-type]
    assert other.name != HEADER.name
    with pytest.raises(UntrustedMetadata, match="another object"):
        decode(encode_header(other) or b"", file_bytes=len(encode_header(other) or b"") + 1000)


@pytest.mark.parametrize("text", [b"[]", b"{}", b"nonsense", b"[" * 9000, b'{"namespace":1}', b"\xff", b"null"])
def test_a_well_summed_header_that_is_no_header_is_refused(text: bytes) -> None:
    prefix = struct.pack(">8sHI", RAW[:8], 1, len(text))
    with pytest.raises(UntrustedMetadata, match="understood"):
        decode(prefix + struct.pack(">I", crc32(text, crc32(prefix))) + text)


def test_wrong_types_in_a_header_are_refused() -> None:
    for change in ({"total": True}, {"total": -1}, {"total": "1"}, {"etag": None}, {"path": 5}, {"namespace": (1,)}):
        forged = replace(HEADER, **change)
        with pytest.raises(UntrustedMetadata, match="understood"):
            decode(encode_header(forged) or b"")


def test_a_header_that_would_be_too_long_is_not_made() -> None:
    assert encode_header(replace(HEADER, content_type="x" * HEADER_BYTES_MAX)) is None
    assert len(encode_header(replace(HEADER, path="\udc80" * 1024)) or b"") < HEADER_BYTES_MAX


def test_parts_of_a_name_never_run_into_each_other() -> None:
    assert name_part("ab", "c") != name_part("a", "bc") != name_part("abc")
    assert name_part(None) != name_part("") != name_part()
    assert slot_of(("a", "b"), "c", None) != slot_of(("a",), "b", "c")
    assert slot_of(("a",), "b", None) != slot_of(("a",), "b", "")


def test_only_names_of_ours_are_recognised() -> None:
    assert slot_in(HEADER.name) == HEADER.slot
    assert "bucket" not in HEADER.name
    folder, fan, rest = HEADER.name.split("/")
    other_fan = "00" if fan != "00" else "01"
    for name in (rest, f"{folder}/{rest}", f"{folder}/{other_fan}/{rest}", HEADER.name + "x", HEADER.name.upper(), ""):
        assert slot_in(name) is None
