"""The entry format: what is compared, what is summed, what a range verifies, and that no data is ever executed."""

import ast
import os
import pickle
import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.cache.entry import (
    FORMAT_VERSION,
    PIECE_BYTES,
    PIECE_BYTES_MIN,
    TAIL_BYTES_MAX,
    BadEntry,
    EntryTail,
    aligned,
    checksums,
    claimed_length,
    decode_tail,
    encode_tail,
    is_entry_name,
    piece_bytes,
    tail_length,
)
from aioprefetch.services.s3 import S3
from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen
from tests.repository.source_tree import PACKAGE, imports_of, parse, python_files
from tests.stores.failing_disk import cache_in, data_of, file_of, identity, is_bad, key_of, put, read


def with_right_checksum(tail: bytes) -> bytes:
    """A tail that was changed, and whose checksum was made to fit."""
    return tail[:-4] + struct.pack(">I", crc32(tail[:-4]))


def entry_of(name: bytes, facts: bytes, data: bytes) -> bytes:
    """A whole entry file."""
    return data + encode_tail(name, facts, len(data), checksums([memoryview(data)], piece_bytes(len(data))))


def test_a_tail_is_pinned_byte_for_byte() -> None:
    """A change of the format needs a new version."""
    key = key_of(3, namespace=("a",), path="p", version="v", etag=None, tenant="t")
    tail = encode_tail(key.identity, b"fact", 100, checksums([memoryview(b"x" * 100)], PIECE_BYTES_MIN))
    text = "0000000174 0000000000000001 0000000161 0000000170 0000000176 ffffffff".replace(" ", "")
    numbers = "00000000000003e8 0000000000000064 0000000000000003".replace(" ", "")
    sums = f"{crc32(b'x' * 100):08x}"
    end = "0000000000000064 00000038 00000004 00004000 00000066 0004 61696f7066656e74".replace(" ", "")
    assert tail[:-4].hex() == text + numbers + b"fact".hex() + sums + end
    assert tail[-4:] == struct.pack(">I", crc32(tail[:-4]))
    assert (len(tail), key.file_bytes) == (102, 198)
    assert decode_tail(tail, identity=key.identity, file_bytes=202) == EntryTail(b"fact", 100, (crc32(b"x" * 100),))


@given(name=st.binary(max_size=40), facts=st.binary(max_size=40), data=st.binary(max_size=300), more=st.binary())
def test_an_entry_comes_back_as_it_was(name: bytes, facts: bytes, data: bytes, more: bytes) -> None:
    """Whatever identity, facts and data are; and only under its own identity and size."""
    whole = entry_of(name, facts, data)
    tail = decode_tail(whole, identity=name, file_bytes=len(whole))
    assert (tail.facts, tail.data_bytes) == (facts, len(data))
    assert len(whole) - len(data) == tail_length(name, facts, len(data)) == claimed_length(whole)
    tail.verify(0, memoryview(whole)[: len(data)])
    if more:
        with pytest.raises(BadEntry):
            decode_tail(whole, identity=name + more, file_bytes=len(whole))
        with pytest.raises(BadEntry):
            decode_tail(more + whole, identity=name, file_bytes=len(whole + more))


def is_refused(raw: bytes, name: bytes, data: bytes) -> bool:
    """Whether a changed entry is refused; if it is not, its bytes are right."""
    try:
        tail = decode_tail(raw, identity=name, file_bytes=len(raw))
        stored = memoryview(raw)[: tail.data_bytes]
        tail.verify(0, stored)
    except BadEntry:
        return True
    assert bytes(stored) == data
    return False


def test_every_changed_byte_is_refused() -> None:
    """One byte at any place, any number of bytes anywhere, and a cut at any place: a miss and never a wrong byte."""
    rng = random.Random(2)
    name, data = b"identity", rng.randbytes(200)
    whole = entry_of(name, b"facts", data)
    for position, byte in enumerate(whole):
        for other in chosen(quick=(byte ^ 1, byte ^ 0x80, 0 if byte else 255), full=range(256)):
            if other != byte:
                assert is_refused(whole[:position] + bytes([other]) + whole[position + 1 :], name, data), position
        assert is_refused(whole[:position], name, data), position
    for seed in range(chosen(quick=2000, full=40_000)):
        rng = random.Random(seed)
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 20)):
            changed[rng.randrange(len(whole))] = rng.randrange(256)
        assert bytes(changed) == whole or is_refused(bytes(changed), name, data), seed
    assert all(is_refused(random.Random(seed).randbytes(300), name, data) for seed in range(200))


@pytest.mark.parametrize("piece", [PIECE_BYTES_MIN, 2 * PIECE_BYTES_MIN, PIECE_BYTES])
def test_a_range_verifies_exactly_the_pieces_that_it_touches(piece: int) -> None:
    """Damage is found in the pieces of a range, and damage elsewhere does not hinder it."""
    data = random.Random(3).randbytes(100 * piece + 5)
    tail = decode_tail(entry_of(b"", b"", data), identity=b"", file_bytes=len(entry_of(b"", b"", data)))
    damaged = bytearray(data)
    damaged[piece + 7] ^= 1
    edges = [0, 1, piece - 1, piece, piece + 1, 2 * piece, 3 * piece, len(data)]
    for start in edges[:-1]:
        for end in (edge for edge in edges if edge > start):
            low, high = aligned(start, end, len(data))
            assert low <= start < end <= high <= len(data)
            assert high - low < end - start + 2 * piece
            tail.verify(low, memoryview(data)[low:high])
            if low < 2 * piece and high > piece:
                with pytest.raises(BadEntry, match="checksum of its bytes"):
                    tail.verify(low, memoryview(damaged)[low:high])
            else:
                tail.verify(low, memoryview(damaged)[low:high])


def test_pieces_are_small_and_few() -> None:
    """Of 16 to 256 KiB, and at most 128 where that lets there be."""
    for size in (0, 1, PIECE_BYTES_MIN, 128 * PIECE_BYTES_MIN):
        assert piece_bytes(size) == PIECE_BYTES_MIN
    assert piece_bytes(128 * PIECE_BYTES_MIN + 1) == piece_bytes(256 * PIECE_BYTES_MIN) == 2 * PIECE_BYTES_MIN
    assert piece_bytes(8 << 20) == 64 << 10
    assert piece_bytes(64 * PIECE_BYTES + 1) == piece_bytes(1 << 40) == PIECE_BYTES


def test_pieces_have_checksums_of_their_own_however_the_data_lies_in_memory() -> None:
    piece = PIECE_BYTES_MIN
    data = random.Random(4).randbytes(3 * piece - 5)
    cuts = [0, 7, piece - 1, piece, 2 * piece + 9, len(data)]
    parts = [memoryview(data)[low:high] for low, high in pairwise(cuts)]
    sums = tuple(crc32(data[start : start + piece]) for start in range(0, len(data), piece))
    assert len(sums) == 3
    assert checksums(parts, piece) == checksums([memoryview(data)], piece) == sums
    assert checksums([], piece) == checksums([memoryview(b"")], piece) == ()


def test_names_of_blocks_are_recognised() -> None:
    name = key_of().name
    assert is_entry_name(name)
    for other in (
        "x.entry",
        name.removesuffix(".entry") + ".block",
        name + "x",
        name[1:],
        "g" + name[1:],
        name.upper(),
        ".tmp-1-00000000-0000000000000000",
        "",
    ):
        assert not is_entry_name(other)


def test_a_block_with_a_tail_that_would_be_too_long_has_no_key() -> None:
    assert identity(path="x" * TAIL_BYTES_MAX).key(0) is None
    assert identity(size=1 << 50, block_bytes=1 << 45).key(0) is None


@checks("reliability:D07")
def test_a_bit_flipped_in_the_tail_is_found(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    with open(file_of(tmp_path, key), "r+b", buffering=0) as file:
        for position, byte in enumerate(file.read()[key.data_bytes :], key.data_bytes):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), position)
                assert is_bad(cache, key), f"bit {bit} of byte {position}"
            os.pwrite(file.fileno(), bytes([byte]), position)
    assert read(cache, key) == data_of(key)


@checks("reliability:D10", "reliability:K20")
@pytest.mark.parametrize(("offset", "size"), [(-38, 8), (-30, 4), (-26, 4), (-22, 4), (-18, 4)])
def test_lengths_that_are_claimed_are_not_believed(tmp_path: Path, offset: int, size: int) -> None:
    """Not even with a checksum that fits. What is read is what the key says, so nothing more is allocated."""
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    raw = file_of(tmp_path, key).read_bytes()
    data, tail = raw[: key.data_bytes], raw[key.data_bytes :]
    for claim in (0, 1, (1 << 8 * size - 1), (1 << 8 * size) - 1):
        changed = tail[:offset] + claim.to_bytes(size, "big") + tail[offset + size :]
        file_of(tmp_path, key).write_bytes(data + with_right_checksum(changed))
        assert is_bad(cache, key) == (changed != tail)


@checks("reliability:D11")
def test_another_format_version_is_a_miss() -> None:
    whole = entry_of(b"name", b"", b"data")
    for version in (0, 1, FORMAT_VERSION + 1, 0xFFFF):
        changed = b"data" + with_right_checksum(whole[4:-14] + struct.pack(">H", version) + whole[-12:])
        with pytest.raises(BadEntry, match=f"version {version}"):
            decode_tail(changed, identity=b"name", file_bytes=len(whole))


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


@checks("reliability:D25", "reliability:K22")
def test_blocks_of_another_identity_are_never_shared(tmp_path: Path) -> None:
    """They have another name; and were their file put under ours, it would be refused."""
    for number, other in enumerate(IDENTITIES):
        path = tmp_path / str(number)
        cache, ours, theirs = cache_in(path), key_of(), key_of(**other)
        assert ours.name != theirs.name, other
        put(cache, theirs)
        assert read(cache, ours) is None, other
        file_of(path, theirs).rename(file_of(path, ours))
        assert is_bad(cache, ours), other


@checks("reliability:D25", "reliability:K08")
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


@checks("reliability:D26", "reliability:K19")
def test_parts_are_not_run_together() -> None:
    """Where one ends and the next begins makes a difference, in names and in tails."""
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


@checks("reliability:D31", "reliability:K21")
def test_a_planted_pickle_is_not_loaded(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    pickled = pickle.dumps(Planted(tmp_path / "loaded"))
    for content in (pickled, pickled.ljust(key.file_bytes, b"\0")[: key.file_bytes]):
        file_of(tmp_path, key).write_bytes(content)
        assert is_bad(cache, key)
    assert not (tmp_path / "loaded").exists()


@checks("reliability:D31", "reliability:K21")
def test_nothing_of_the_blocks_can_execute_data() -> None:
    files = [*python_files(PACKAGE / "blocks"), *python_files(PACKAGE / "cache")]
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
