"""Layouts from messages made by hand: known ones are parsed, others are refused by name."""

import pytest

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.structural.layouts import (
    TYPE_URL,
    Constant,
    Flat,
    Fsst,
    FullZip,
    General,
    InlineBitpacked,
    MiniBlock,
    OutOfLineBitpacked,
    RepDefLayer,
    Variable,
    parse_layout,
)
from tests.profile import each_of


def number(field: int, value: int) -> bytes:
    out = bytearray([field << 3])
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def nested(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2, *number(0, len(content))[1:]]) + content


FLAT32 = nested(1, number(1, 32))
FLAT8 = nested(1, number(1, 8))
INLINE = nested(5, number(1, 64))
VARIABLE = nested(2, nested(1, FLAT32))
PACKED_LEVELS = nested(4, number(1, 16) + nested(3, nested(1, number(1, 2))))


def mini_block(values: bytes, layers: bytes = b"\x01", **more: bytes) -> bytes:
    return nested(1, nested(3, values) + nested(6, layers) + number(7, 1) + number(9, 10) + b"".join(more.values()))


def test_mini_block() -> None:
    layout = parse_layout(mini_block(INLINE, large=number(10, 1)), TYPE_URL)
    assert isinstance(layout, MiniBlock)
    assert layout.layers == (RepDefLayer.ALL_VALID_ITEM,)
    assert (layout.values, layout.items, layout.has_large_chunks) == (InlineBitpacked(64), 10, True)


def test_mini_block_of_lists() -> None:
    levels = nested(1, PACKED_LEVELS) + nested(2, PACKED_LEVELS) + number(8, 1)
    layout = parse_layout(mini_block(VARIABLE, b"\x03\x06", levels=levels), TYPE_URL)
    assert isinstance(layout, MiniBlock)
    assert (layout.rep, layout.definition) == (OutOfLineBitpacked(16, 2),) * 2
    assert layout.values == Variable(32)


def test_compressions() -> None:
    compressed = nested(10, nested(1, number(1, 2)) + nested(3, VARIABLE))
    layout = parse_layout(mini_block(compressed), TYPE_URL)
    assert isinstance(layout, MiniBlock)
    assert layout.values == General("zstd", Variable(32))
    layout = parse_layout(mini_block(nested(6, nested(1, b"table") + nested(2, VARIABLE))), TYPE_URL)
    assert isinstance(layout, MiniBlock)
    assert layout.values == Fsst(b"table", Variable(32))


def test_full_zip_and_constant() -> None:
    layout = parse_layout(nested(3, number(2, 1) + number(3, 32) + nested(7, FLAT32) + nested(8, b"\x03")), TYPE_URL)
    assert layout == FullZip((RepDefLayer.NULLABLE_ITEM,), 0, 0, 0, 1, False, 32, Flat(32))
    layout = parse_layout(nested(2, nested(5, b"\x01") + nested(6, b"abcd")), TYPE_URL)
    assert layout == Constant((RepDefLayer.ALL_VALID_ITEM,), b"abcd", None, None, 0, 0)


@each_of(
    ("message", "word"),
    [
        (mini_block(INLINE, new=number(11, 1)), "MiniBlockLayout has a field 11"),
        (mini_block(nested(14, b"")), "CompressiveEncoding has a field 14"),
        (mini_block(nested(1, number(1, 32) + number(3, 1))), "Flat has a field 3"),
        (mini_block(nested(7, b"")), "compression Dictionary"),
        (mini_block(nested(13, b"")), "compression VariablePackedStruct"),
        (mini_block(nested(1, number(1, 32) + nested(2, number(1, 1)))), "Flat with a field compression"),
        (mini_block(nested(10, nested(1, number(1, 3)) + nested(3, FLAT32))), "compression scheme 3"),
        (mini_block(nested(1, number(1, 12))), "not a number of whole bytes"),
        (mini_block(nested(2, nested(1, FLAT8))), "offsets of 8 bits"),
        (mini_block(nested(8, nested(1, FLAT32) + nested(2, FLAT32))), "run lengths of 32 bits"),
        (mini_block(nested(8, nested(1, INLINE) + nested(2, FLAT8))), "Rle over InlineBitpacked"),
        (mini_block(INLINE, b"\x07"), "layer 7"),
        (nested(4, b""), "blob layout"),
        (nested(5, b""), "PageLayout has a field 5"),
    ],
)
def test_an_unknown_part_is_named(message: bytes, word: str) -> None:
    with pytest.raises(Unsupported, match=word):
        parse_layout(message, TYPE_URL)


def test_other_encodings_are_named() -> None:
    with pytest.raises(Unsupported, match="PlanarLayout"):
        parse_layout(b"", "/lance.encodings23.PlanarLayout")


@each_of(
    ("message", "word"),
    [
        (b"", "one alternative"),
        (b"\x0a\xff", "damaged"),
        (nested(1, nested(6, b"\x01") + number(7, 1)), "without the encoding"),
        (mini_block(INLINE, b""), "0 layers"),
        (mini_block(INLINE, b"\x02"), "list of nothing"),
        (mini_block(INLINE, b"\x03"), "do not fit its layers"),
        (mini_block(INLINE, b"\x01\x02"), "do not fit its layers"),
        (mini_block(INLINE, b"\x01\x02", rep=nested(1, PACKED_LEVELS)), "repetition index depth 0"),
        (mini_block(nested(5, number(1, 63))), "words of 63 bits"),
        (mini_block(nested(1, b"")), "values of 0 bits"),
        (mini_block(nested(11, number(1, 1 << 40) + nested(2, FLAT32))), "fixed-size list of"),
        (mini_block(nested(12, number(1, 8) + nested(2, FLAT32))), "rows have 32 bits"),
        (mini_block(nested(4, number(1, 16) + nested(3, nested(1, number(1, 17))))), "packed into 17"),
        (nested(3, number(3, 8) + number(4, 8) + nested(7, FLAT8) + nested(8, b"\x01")), "needs the width"),
        (nested(2, nested(5, b"\x01") + nested(6, bytes(33))), "constant of 33 bytes"),
    ],
)
def test_contradictions_are_refused(message: bytes, word: str) -> None:
    with pytest.raises(UntrustedMetadata, match=word):
        parse_layout(message, TYPE_URL)


def test_compressions_do_not_nest_forever() -> None:
    encoding = FLAT32
    for _ in range(120):
        encoding = nested(11, number(1, 1) + nested(2, encoding))
    with pytest.raises(UntrustedMetadata, match="deep"):
        parse_layout(mini_block(encoding), TYPE_URL)
