"""The format of a block file: what is compared, what is summed, and that nothing in it is ever executed."""

import ast
import os
import pickle
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from aioprefetch.blocks.disk.format import (
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    MAGIC,
    PIECE_BYTES,
    BadBlockFile,
    decode_header,
    encode_header,
    is_block_name,
)
from aioprefetch.services.s3 import S3
from aioprefetch.testing.conformance.ids import checks
from tests.tidy.source_tree import PACKAGE, imports_of, parse, python_files
from tests.unit.blocks.disk.failing_calls import cache_in, data_of, file_of, identity, is_bad, key_of, put, read


def with_right_checksum(header: bytes) -> bytes:
    """A header that was changed, and whose checksum was made to fit."""
    return header[:-4] + struct.pack(">I", crc32(header[:-4]))


def test_a_header_is_pinned_byte_for_byte() -> None:
    """A change of the format needs a new version."""
    key = key_of(3, namespace=("a",), path="p", version="v", etag=None, tenant="t")
    header = encode_header(key, [memoryview(b"x" * 100)])
    text = "0000000174 00000001 0000000161 0000000170 0000000176 ffffffff".replace(" ", "")
    numbers = "00000000000003e8 0000000000000064 0000000000000003".replace(" ", "")
    prefix = "61696f7066626c6b 0001 0000005a 00000034 0000000000000064 00100000".replace(" ", "")
    sums = f"{crc32(b'x' * 100):08x}"
    assert header[:-4].hex() == prefix + text + numbers + sums
    assert header[-4:] == struct.pack(">I", crc32(header[:-4]))
    assert (len(header), key.header_bytes, key.file_bytes) == (90, 90, 190)
    assert decode_header(header, key) == (crc32(b"x" * 100),)


def test_pieces_have_sums_of_their_own_however_the_data_lie_in_memory() -> None:
    key = key_of(size=10 * PIECE_BYTES, block_bytes=3 * PIECE_BYTES - 5)
    data = data_of(key)
    cuts = [0, 7, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 9, len(data)]
    parts = [memoryview(data)[low:high] for low, high in pairwise(cuts)]
    sums = tuple(crc32(data[start : start + PIECE_BYTES]) for start in key.pieces)
    assert len(sums) == 3
    assert decode_header(encode_header(key, parts), key) == sums
    assert key.piece(2) == (2 * PIECE_BYTES, 3 * PIECE_BYTES - 5)


def test_names_of_blocks_are_told_from_others() -> None:
    name = key_of().name
    assert is_block_name(name)
    for other in (
        "x.block",
        name + "x",
        name[1:],
        "g" + name[1:],
        name.upper(),
        ".tmp-1-00000000-0000000000000000",
        "",
    ):
        assert not is_block_name(other)


def test_a_header_that_would_be_too_long_is_none() -> None:
    assert identity(path="x" * HEADER_BYTES_MAX).key(0) is None
    assert identity(size=1 << 50, block_bytes=1 << 45).key(0) is None


@checks("reliability:D07")
def test_a_bit_flipped_in_the_header_is_found(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    with open(file_of(tmp_path, key), "r+b", buffering=0) as file:
        for position, byte in enumerate(file.read(key.header_bytes)):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), position)
                assert is_bad(cache, key), f"bit {bit} of byte {position}"
            os.pwrite(file.fileno(), bytes([byte]), position)
    assert read(cache, key) == data_of(key)


@checks("reliability:D10")
@pytest.mark.parametrize(("offset", "size"), [(10, 4), (14, 4), (18, 8), (26, 4)])
def test_lengths_that_are_claimed_are_not_believed(tmp_path: Path, offset: int, size: int) -> None:
    """Not even with a checksum that fits. What is read is what the key says, so nothing more is allocated."""
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    raw = file_of(tmp_path, key).read_bytes()
    header, data = raw[: key.header_bytes], raw[key.header_bytes :]
    for claim in (0, 1, (1 << 8 * size - 1), (1 << 8 * size) - 1):
        changed = header[:offset] + claim.to_bytes(size, "big") + header[offset + size :]
        file_of(tmp_path, key).write_bytes(with_right_checksum(changed) + data)
        assert is_bad(cache, key)


@checks("reliability:D11")
@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, 0xFFFF])
def test_another_format_version_is_a_miss(version: int) -> None:
    key = key_of()
    header = encode_header(key, [memoryview(data_of(key))])
    other = with_right_checksum(MAGIC + struct.pack(">H", version) + header[10:])
    with pytest.raises(BadBlockFile, match="version"):
        decode_header(other, key)


IDENTITIES: list[dict[str, Any]] = [
    {"namespace": ("s3", "https://other", "region", "bucket", "root", "principal")},
    {"namespace": ("s3", "https://endpoint", "other", "bucket", "root", "principal")},
    {"namespace": ("s3", "https://endpoint", "region", "other", "root", "principal")},
    {"namespace": ("s3", "https://endpoint", "region", "bucket", "other", "principal")},
    {"namespace": ("s3", "https://endpoint", "region", "bucket", "root", "other")},
    {"tenant": "other"},
    {"path": "other"},
    {"version": "other"},
    {"etag": "other"},
    {"etag": None, "version": "etag"},
    {"size": 1001},
]


@checks("reliability:D25")
@pytest.mark.parametrize("other", IDENTITIES, ids=str)
def test_blocks_of_another_identity_are_never_shared(tmp_path: Path, other: dict[str, Any]) -> None:
    """They have another name; and were their file put under ours, it would be refused."""
    cache, ours, theirs = cache_in(tmp_path), key_of(), key_of(**other)
    assert ours.name != theirs.name
    put(cache, theirs)
    assert read(cache, ours) is None
    file_of(tmp_path, theirs).rename(file_of(tmp_path, ours))
    assert is_bad(cache, ours)


@checks("reliability:D25")
def test_a_store_says_all_that_separates_its_tenants() -> None:
    given: dict[str, Any] = {"bucket": "bucket", "prefix": "p", "endpoint_url": "https://one.example", "region": "r1"}
    keys: dict[str, Any] = {"access_key_id": "AKIA", "secret_access_key": "secret"}
    stores = [
        S3(**given),
        S3(**given, **keys),
        S3(**given, **{**keys, "access_key_id": "AKIB"}),
        S3(**given, profile="work"),
        S3(**given, anonymous=True),
        S3(**given, sse_customer_key=b"k" * 32),
        S3(**{**given, "bucket": "other"}),
        S3(**{**given, "prefix": "q"}),
        S3(**{**given, "endpoint_url": "https://two.example"}),
        S3(**{**given, "region": "r2"}),
    ]
    assert len({store.info.namespace for store in stores}) == len(stores)
    assert not any("secret" in part or "AKI" in part for store in stores for part in store.info.namespace)


@checks("reliability:D26")
def test_parts_are_not_run_together() -> None:
    """Where one ends and the next begins makes a difference, in names and in headers."""
    same_letters: list[dict[str, Any]] = [
        {"namespace": ("ab", "c")},
        {"namespace": ("a", "bc")},
        {"namespace": ("abc",)},
        {"namespace": ("abc", "")},
        {"namespace": ("",), "path": "abckey"},
        {"tenant": "a", "namespace": ("bc",)},
        {"namespace": ("abc",), "path": "", "version": "key"},
        {"namespace": ("abc",), "version": ""},
    ]
    keys = [key_of(**one) for one in same_letters]
    assert len({key.name for key in keys}) == len(keys)
    assert len({key.identity for key in keys}) == len(keys)


class Planted:
    """Its pickle would make a file when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


@checks("reliability:D31")
def test_a_planted_pickle_is_not_loaded(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    pickled = pickle.dumps(Planted(tmp_path / "loaded"))
    for content in (pickled, pickled.ljust(key.file_bytes, b"\0")[: key.file_bytes]):
        file_of(tmp_path, key).write_bytes(content)
        assert is_bad(cache, key)
    assert not (tmp_path / "loaded").exists()


@checks("reliability:D31")
def test_nothing_of_the_blocks_can_execute_data() -> None:
    files = python_files(PACKAGE / "blocks")
    assert files
    imported = {found.module.split(".")[0] for path in files for found in imports_of(path)}
    assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "importlib", "runpy"}
    called = {
        node.func.id
        for path in files
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"eval", "exec", "compile", "__import__"}
