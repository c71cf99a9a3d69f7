"""FSST against a decoder that goes code by code, and with invalid tables and codes."""

from itertools import pairwise

import numpy as np
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.compression import CODES_AT_ONCE, ESCAPE, FSST_MAGIC, decode_fsst
from tests.profile import each_of

ACTIVE = 1 << 24


def table(symbols: list[bytes], *, flags: int = ACTIVE, magic: int = FSST_MAGIC) -> bytes:
    header = magic << 32 | flags | len(symbols)
    lengths = bytes(len(symbol) for symbol in symbols)
    return header.to_bytes(8, "little") + b"".join(symbol.ljust(8, b"\0") for symbol in symbols) + lengths


def one_by_one(symbols: list[bytes], codes: bytes) -> bytes:
    text, position = b"", 0
    while position < len(codes):
        if codes[position] == ESCAPE:
            text += codes[position + 1 : position + 2]
            position += 2
        else:
            text += symbols[codes[position]]
            position += 1
    return text


def decode(stored: bytes, codes: bytes, offsets: list[int], codes_at_once: int = CODES_AT_ONCE) -> list[bytes]:
    text, bounds = decode_fsst(stored, memoryview(codes), np.array(offsets), codes_at_once=codes_at_once)
    assert bounds[0] == 0
    assert bounds[-1] == len(text)
    return [text[start:end].tobytes() for start, end in pairwise(bounds)]


def random_value(rng: np.random.Generator, symbols: int) -> bytes:
    parts = []
    for _ in range(int(rng.integers(0, 30))):
        if not symbols or rng.random() < 0.3:
            parts.append(bytes([ESCAPE, int(rng.choice([ESCAPE, ESCAPE, 3, 200]))]))
        else:
            parts.append(bytes([int(rng.integers(0, symbols))]))
    return b"".join(parts)


@each_of("codes_at_once", [1, 7, 1 << 18])
def test_random_values_equal_those_decoded_one_by_one(codes_at_once: int) -> None:
    rng = np.random.default_rng(codes_at_once)
    for count in (0, 1, 2, 100, 254, 255):
        symbols = [rng.bytes(int(rng.integers(1, 9))) for _ in range(count)]
        values = [random_value(rng, count) for _ in range(25)]
        codes = b"before" + b"".join(values) + b"\xff"
        offsets = np.cumsum([6] + [len(value) for value in values]).tolist()
        found = decode(table(symbols), codes, offsets, codes_at_once)
        assert found == [one_by_one(symbols, value) for value in values]


def test_table_that_is_off_copies() -> None:
    assert decode(table([b"abc"], flags=0), b"\x00\xff\xff", [0, 1, 3]) == [b"\x00", b"\xff\xff"]


def test_no_values_at_all() -> None:
    assert decode(table([b"abc"]), b"", [0]) == []
    assert decode(table([b"abc"]), b"", [0, 0, 0]) == [b"", b""]


@each_of(
    ("stored", "codes", "offsets", "word"),
    [
        (b"", b"", [0], "symbol table of 0 bytes"),
        (table([b"a"])[:10], b"\0", [0, 1], "cannot hold 1 symbols"),
        (table([b"a"], magic=1), b"\0", [0, 1], "magic"),
        (table([b""]), b"\0", [0, 1], "1 to 8 bytes long"),
        (table([b"a"])[:-1] + b"\x09", b"\0", [0, 1], "1 to 8 bytes long"),
        (table([b"a"]), b"\1", [0, 1], "beyond the 1 symbols"),
        (table([b"a"]), b"\xfe", [0, 1], "beyond the 1 symbols"),
        (table([]), b"\0", [0, 1], "beyond the 0 symbols"),
        (table([b"a"]), b"\xff", [0, 1], "escape at the end"),
        (table([b"a"]), b"\xff\0", [0, 1, 2], "escape at the end"),
        (table([b"a"]), b"\xff\xff\xff\0", [0, 3, 4], "escape at the end"),
        (table([b"a"]), b"\0", [0, 2], "leave the 1 bytes"),
        (table([b"a"]), b"\0", [-1, 1], "leave the 1 bytes"),
        (table([b"a"]), b"\0\0", [0, 2, 1], "do not ascend"),
        (table([b"a"]), b"\0", [], "without offsets"),
    ],
)
def test_damage_is_named(stored: bytes, codes: bytes, offsets: list[int], word: str) -> None:
    with pytest.raises(UntrustedMetadata, match=word):
        decode_fsst(stored, memoryview(codes), np.array(offsets, np.int64))
