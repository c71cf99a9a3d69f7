"""How the values and levels of a page are compressed: the tree of ``CompressiveEncoding`` messages, as frozen classes.

Parsed strictly: what is not known here is refused by name, since skipping it would mean decoding something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.wire import FieldRule, MessageTable, Parsed, message, one_of, uint

# Wider than any fixed-width value of Arrow (a large fixed-size list of doubles): what a width may be at all.
VALUE_BITS_MAX = 1 << 31
_WORD_BITS = (8, 16, 32, 64)
# A constant as bytes of the layout itself.
SAME_BYTES_MAX = 1 << 10

ENCODING = MessageTable("CompressiveEncoding")
_BUFFER = MessageTable("BufferCompression", {1: uint("scheme"), 2: FieldRule("level", "int")})
_FIELD_ENCODING = MessageTable(
    "VariablePackedStruct.FieldEncoding",
    {1: message("value", ENCODING), 2: uint("bits_per_value"), 3: uint("bits_per_length")},
)
_MEMBERS: dict[int, tuple[str, dict[int, FieldRule]]] = {
    1: ("Flat", {1: uint("bits"), 2: message("compression", _BUFFER)}),
    2: ("Variable", {1: message("offsets", ENCODING), 2: message("compression", _BUFFER)}),
    3: ("Constant", {1: FieldRule("value", "bytes")}),
    4: ("OutOfLineBitpacking", {1: uint("bits"), 3: message("values", ENCODING)}),
    5: ("InlineBitpacking", {1: uint("bits"), 2: message("compression", _BUFFER)}),
    6: ("Fsst", {1: FieldRule("symbol_table", "bytes"), 2: message("values", ENCODING)}),
    7: ("Dictionary", {1: message("indices", ENCODING), 2: message("items", ENCODING), 3: uint("num_items")}),
    8: ("Rle", {1: message("values", ENCODING), 2: message("run_lengths", ENCODING)}),
    9: ("ByteStreamSplit", {1: message("values", ENCODING)}),
    10: ("General", {1: message("compression", _BUFFER), 3: message("values", ENCODING)}),
    11: (
        "FixedSizeList",
        {1: uint("items"), 2: message("values", ENCODING), 3: FieldRule("has_validity", "bool")},
    ),
    12: ("PackedStruct", {1: uint("bits", repeated=True), 2: message("values", ENCODING)}),
    13: ("VariablePackedStruct", {1: message("fields", _FIELD_ENCODING, repeated=True)}),
}
ENCODING.rules.update({number: message(name, MessageTable(name, rules)) for number, (name, rules) in _MEMBERS.items()})


@dataclass(frozen=True, slots=True)
class Flat:
    """Values of ``bits`` bits back to back: 1, or whole bytes."""

    bits: int


@dataclass(frozen=True, slots=True)
class Variable:
    """Offsets of ``offset_bits`` (32 or 64), then bytes."""

    offset_bits: int


@dataclass(frozen=True, slots=True)
class OutOfLineBitpacked:
    """FastLanes-packed words of ``bits`` with ``packed_bits`` each, the same for the whole buffer."""

    bits: int
    packed_bits: int


@dataclass(frozen=True, slots=True)
class InlineBitpacked:
    """FastLanes-packed words of ``bits``; each chunk starts with its own width."""

    bits: int


@dataclass(frozen=True, slots=True)
class Fsst:
    """Strings as codes of a symbol table that the page's description holds."""

    symbol_table: bytes
    values: Variable


@dataclass(frozen=True, slots=True)
class Rle:
    """Values of ``bits`` bits, each with a run length of one byte."""

    bits: int


@dataclass(frozen=True, slots=True)
class ByteStreamSplit:
    """All first bytes of values of ``bits`` bits, then all second bytes, ..."""

    bits: int


@dataclass(frozen=True, slots=True)
class General:
    """The first buffer of what ``values`` says, compressed: ``lz4`` or ``zstd``."""

    scheme: str
    values: Encoding


@dataclass(frozen=True, slots=True)
class Same:
    """Every value has the bytes ``value``, and none is stored; without bytes there is no value, all are null."""

    value: bytes


@dataclass(frozen=True, slots=True)
class FixedSizeList:
    """``items`` values of ``values`` are one value; ``has_validity``: a bitmap of the items comes first."""

    items: int
    has_validity: bool
    values: FixedSizeList | Flat | Same


@dataclass(frozen=True, slots=True)
class PackedStruct:
    """Rows of fixed-width children, whose widths are ``bits``."""

    bits: tuple[int, ...]


Encoding = (
    Flat
    | Variable
    | OutOfLineBitpacked
    | InlineBitpacked
    | Fsst
    | Rle
    | ByteStreamSplit
    | General
    | Same
    | FixedSizeList
    | PackedStruct
)


def row_bits(encoding: FixedSizeList | Flat | Same) -> int:
    """Stored bits of one value, item validity aside."""
    match encoding:
        case Flat(bits):
            return bits
        case Same():
            return 0
        case FixedSizeList(items, _, values):
            return items * row_bits(values)


def row_items(encoding: FixedSizeList | Flat | Same) -> int:
    """Inner-most items of one value."""
    return encoding.items * row_items(encoding.values) if isinstance(encoding, FixedSizeList) else 1


def build(parsed: Parsed | None, *, path: str = "") -> Encoding:
    """The tree of a parsed message. ``Unsupported`` names what is not decoded here."""
    if parsed is None:
        raise UntrustedMetadata("a page without the encoding of its values", path=path)
    kind, content = one_of(parsed, ENCODING, path=path)
    builder = _BUILDERS.get(kind)
    if builder is None:
        raise Unsupported(f"compression {kind} of version 2.1 and later is not supported", path=path)
    if content.get("compression") is not None and kind != "General":
        raise Unsupported(f"a compressed buffer within {kind} is not supported", path=path)
    return builder(content, path)


def _flat(content: Parsed, path: str) -> Flat:
    bits = content.get("bits", 0)
    if not 1 <= bits <= VALUE_BITS_MAX:
        raise UntrustedMetadata(f"values of {bits} bits", path=path)
    if bits != 1 and bits % 8:
        raise Unsupported(f"flat values of {bits} bits, which are no whole bytes, are not supported", path=path)
    return Flat(bits)


def _flat_child(content: Parsed, name: str, outer: str, path: str) -> Flat:
    child = build(content.get(name), path=path)
    if not isinstance(child, Flat):
        raise Unsupported(f"{outer} over {type(child).__name__} is not supported", path=path)
    return child


def _variable(content: Parsed, path: str) -> Variable:
    bits = _flat_child(content, "offsets", "Variable", path).bits
    if bits not in (32, 64):
        raise Unsupported(f"offsets of {bits} bits are not supported", path=path)
    return Variable(bits)


def _word_bits(bits: int, kind: str, path: str) -> int:
    if bits not in _WORD_BITS:
        raise UntrustedMetadata(f"{kind} of words of {bits} bits", path=path)
    return bits


def _out_of_line(content: Parsed, path: str) -> OutOfLineBitpacked:
    bits = _word_bits(content.get("bits", 0), "OutOfLineBitpacking", path)
    values = content.get("values")
    if values is None:
        raise UntrustedMetadata("OutOfLineBitpacking without its packed values", path=path)
    kind, inner = one_of(values, ENCODING, path=path)
    if kind != "Flat" or inner.get("compression") is not None:
        raise Unsupported(f"OutOfLineBitpacking over {kind} is not supported", path=path)
    packed = inner.get("bits", 0)
    if packed > bits:
        raise UntrustedMetadata(f"words of {bits} bits packed into {packed}", path=path)
    return OutOfLineBitpacked(bits, packed)


def _inline(content: Parsed, path: str) -> InlineBitpacked:
    return InlineBitpacked(_word_bits(content.get("bits", 0), "InlineBitpacking", path))


def _fsst(content: Parsed, path: str) -> Fsst:
    values = build(content.get("values"), path=path)
    if not isinstance(values, Variable):
        raise Unsupported(f"Fsst over {type(values).__name__} is not supported", path=path)
    return Fsst(content.get("symbol_table", b""), values)


def _rle(content: Parsed, path: str) -> Rle:
    lengths = _flat_child(content, "run_lengths", "Rle", path).bits
    if lengths != 8:
        raise Unsupported(f"run lengths of {lengths} bits are not supported", path=path)
    bits = _flat_child(content, "values", "Rle", path).bits
    return Rle(_word_bits(bits, "Rle", path))


def _split(content: Parsed, path: str) -> ByteStreamSplit:
    bits = _flat_child(content, "values", "ByteStreamSplit", path).bits
    return ByteStreamSplit(_word_bits(bits, "ByteStreamSplit", path))


def _general(content: Parsed, path: str) -> General:
    number = content.get("compression", {}).get("scheme", 0)
    scheme = {1: "lz4", 2: "zstd"}.get(number)
    if scheme is None:
        raise Unsupported(f"compression scheme {number} is not supported", path=path)
    inner = build(content.get("values"), path=path)
    if isinstance(inner, General):
        raise Unsupported("General over General is not supported", path=path)
    return General(scheme, inner)


def _fixed_size_list(content: Parsed, path: str) -> FixedSizeList:
    items = content.get("items", 0)
    inner = build(content.get("values"), path=path)
    if not isinstance(inner, Flat | FixedSizeList | Same):
        raise Unsupported(f"FixedSizeList over {type(inner).__name__} is not supported", path=path)
    if not 1 <= items * max(row_bits(inner), row_items(inner)) <= VALUE_BITS_MAX:
        raise UntrustedMetadata(f"a fixed-size list of {items} items", path=path)
    return FixedSizeList(items, content.get("has_validity", False), inner)


def _same(content: Parsed, path: str) -> Same:
    value = content.get("value", b"")
    if len(value) > SAME_BYTES_MAX:
        raise UntrustedMetadata(f"a constant of {len(value)} bytes within a layout", path=path)
    return Same(value)


def _packed_struct(content: Parsed, path: str) -> PackedStruct:
    bits = tuple(content.get("bits", ()))
    if not bits or any(width % 8 or not 8 <= width <= VALUE_BITS_MAX for width in bits):
        raise Unsupported(f"a packed struct of widths {bits[:8]} in bits is not supported", path=path)
    row = _flat_child(content, "values", "PackedStruct", path).bits
    if row != sum(bits):
        raise UntrustedMetadata(f"a packed struct whose rows have {row} bits and its fields {sum(bits)}", path=path)
    return PackedStruct(bits)


_BUILDERS: dict[str, Callable[[Any, str], Encoding]] = {
    "Flat": _flat,
    "Variable": _variable,
    "OutOfLineBitpacking": _out_of_line,
    "InlineBitpacking": _inline,
    "Fsst": _fsst,
    "Rle": _rle,
    "ByteStreamSplit": _split,
    "General": _general,
    "FixedSizeList": _fixed_size_list,
    "Constant": _same,
    "PackedStruct": _packed_struct,
}
