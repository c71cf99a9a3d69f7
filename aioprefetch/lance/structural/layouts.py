"""The layout of a page of version 2.1 or 2.2: how levels and values lie in its buffers, and their compression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.wire import EncodingTree, FieldRule, MessageTable, ParsedMessage, message, one_of, uint

# The maximum width of a value, above any real value (a long fixed-size list of doubles).
VALUE_BITS_MAX = 1 << 31
_WORD_BITS = (8, 16, 32, 64)
_SCHEMES = {1: "lz4", 2: "zstd"}
# The maximum size of a constant that is stored in the layout itself.
SAME_BYTES_MAX = 1 << 10


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
    """Words of ``bits`` bits, packed by FastLanes into ``packed_bits`` each in the whole buffer."""

    bits: int
    packed_bits: int


@dataclass(frozen=True, slots=True)
class InlineBitpacked:
    """Words of ``bits`` bits, packed by FastLanes; each chunk starts with its packed width."""

    bits: int


@dataclass(frozen=True, slots=True)
class Fsst:
    """Strings as codes of a symbol table, which is part of the page's metadata."""

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
    """The encoding ``values`` with its first buffer compressed by ``lz4`` or ``zstd``."""

    scheme: str
    values: Encoding


@dataclass(frozen=True, slots=True)
class Same:
    """All values are equal and none is stored: ``value`` has their bytes, and is empty if all are null."""

    value: bytes


@dataclass(frozen=True, slots=True)
class FixedSizeListCompression:
    """Lists of ``items`` values each. With ``has_validity`` a bitmap of the items comes first."""

    items: int
    has_validity: bool
    values: FixedSizeListCompression | Flat | Same


@dataclass(frozen=True, slots=True)
class PackedStruct:
    """Rows of fixed-width fields, whose widths are ``bits``."""

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
    | FixedSizeListCompression
    | PackedStruct
)


def row_bits(encoding: FixedSizeListCompression | Flat | Same) -> int:
    """The stored bits of one value, without the validity of its items."""
    match encoding:
        case Flat(bits):
            return bits
        case Same():
            return 0
        case FixedSizeListCompression(items, _, values):
            return items * row_bits(values)


def row_items(encoding: FixedSizeListCompression | Flat | Same) -> int:
    """The number of inner-most items of one value."""
    return encoding.items * row_items(encoding.values) if isinstance(encoding, FixedSizeListCompression) else 1


# --- the messages -----------------------------------------------------------------------------------------------------


def _flat(bits: int) -> Flat:
    if not 1 <= bits <= VALUE_BITS_MAX:
        raise UntrustedMetadata(f"values of {bits} bits")
    if bits != 1 and bits % 8:
        raise Unsupported(f"flat values of {bits} bits, which is not a number of whole bytes, are not supported")
    return Flat(bits)


def _flat_bits(encoding: Encoding, outer: str) -> int:
    if not isinstance(encoding, Flat):
        raise Unsupported(f"{outer} over {type(encoding).__name__} is not supported")
    return encoding.bits


def _word_bits(bits: int, outer: str) -> int:
    if bits not in _WORD_BITS:
        raise UntrustedMetadata(f"{outer} of words of {bits} bits")
    return bits


def _variable(offsets: Encoding) -> Variable:
    bits = _flat_bits(offsets, "Variable")
    if bits not in (32, 64):
        raise Unsupported(f"offsets of {bits} bits are not supported")
    return Variable(bits)


def _same(value: bytes) -> Same:
    if len(value) > SAME_BYTES_MAX:
        raise UntrustedMetadata(f"a constant of {len(value)} bytes within a layout")
    return Same(value)


def _out_of_line(bits: int, values: ParsedMessage) -> OutOfLineBitpacked:
    kind, inner = one_of(values, ENCODINGS)
    if kind != "Flat" or inner.get("compression") is not None:
        raise Unsupported(f"OutOfLineBitpacking over {kind} is not supported")
    packed = inner.get("bits", 0)
    if packed > _word_bits(bits, "OutOfLineBitpacking"):
        raise UntrustedMetadata(f"words of {bits} bits packed into {packed}")
    return OutOfLineBitpacked(bits, packed)


def _inline(bits: int) -> InlineBitpacked:
    return InlineBitpacked(_word_bits(bits, "InlineBitpacking"))


def _fsst(symbol_table: bytes, values: Encoding) -> Fsst:
    if not isinstance(values, Variable):
        raise Unsupported(f"Fsst over {type(values).__name__} is not supported")
    return Fsst(symbol_table, values)


def _rle(values: Encoding, run_lengths: Encoding) -> Rle:
    lengths = _flat_bits(run_lengths, "Rle")
    if lengths != 8:
        raise Unsupported(f"run lengths of {lengths} bits are not supported")
    return Rle(_word_bits(_flat_bits(values, "Rle"), "Rle"))


def _split(values: Encoding) -> ByteStreamSplit:
    return ByteStreamSplit(_word_bits(_flat_bits(values, "ByteStreamSplit"), "ByteStreamSplit"))


def _general(compression: ParsedMessage, values: Encoding) -> General:
    number = compression.get("scheme", 0)
    if number not in _SCHEMES:
        raise Unsupported(f"compression scheme {number} is not supported")
    if isinstance(values, General):
        raise Unsupported("General over General is not supported")
    return General(_SCHEMES[number], values)


def _fixed_size_list(items: int, values: Encoding, has_validity: bool) -> FixedSizeListCompression:
    if not isinstance(values, Flat | FixedSizeListCompression | Same):
        raise Unsupported(f"FixedSizeList over {type(values).__name__} is not supported")
    if not 1 <= items * max(row_bits(values), row_items(values)) <= VALUE_BITS_MAX:
        raise UntrustedMetadata(f"a fixed-size list of {items} items")
    return FixedSizeListCompression(items, has_validity, values)


def _packed_struct(bits: Sequence[int], values: Encoding) -> PackedStruct:
    if not bits or any(width % 8 or not 8 <= width <= VALUE_BITS_MAX for width in bits):
        raise Unsupported(f"a packed struct of widths {tuple(bits[:8])} in bits is not supported")
    row_width = _flat_bits(values, "PackedStruct")
    if row_width != sum(bits):
        raise UntrustedMetadata(f"a packed struct whose rows have {row_width} bits and its fields {sum(bits)}")
    return PackedStruct(tuple(bits))


ENCODINGS = EncodingTree[Encoding]("CompressiveEncoding", "compression {} of version 2.1 and later is not supported")
_BUFFER = message("compression", MessageTable("BufferCompression", {1: uint("scheme"), 2: FieldRule("level", "int")}))
_REFUSED = ("compression",)
_VALUES = message("values", ENCODINGS)
# Packed widths need not be whole bytes, so these values are not decoded as an encoding by themselves.
_PACKED_VALUES = message("values", MessageTable(ENCODINGS.name, ENCODINGS.rules))

ENCODINGS.add(1, "Flat", _flat, {1: uint("bits"), 2: _BUFFER}, refused=_REFUSED)
ENCODINGS.add(2, "Variable", _variable, {1: message("offsets", ENCODINGS), 2: _BUFFER}, refused=_REFUSED)
ENCODINGS.add(3, "Constant", _same, {1: FieldRule("value", "bytes")})
ENCODINGS.add(4, "OutOfLineBitpacking", _out_of_line, {1: uint("bits"), 3: _PACKED_VALUES})
ENCODINGS.add(5, "InlineBitpacking", _inline, {1: uint("bits"), 2: _BUFFER}, refused=_REFUSED)
ENCODINGS.add(6, "Fsst", _fsst, {1: FieldRule("symbol_table", "bytes"), 2: _VALUES})
ENCODINGS.refuse(7, "Dictionary")
ENCODINGS.add(8, "Rle", _rle, {1: _VALUES, 2: message("run_lengths", ENCODINGS)})
ENCODINGS.add(9, "ByteStreamSplit", _split, {1: _VALUES})
ENCODINGS.add(10, "General", _general, {1: _BUFFER, 3: _VALUES})
ENCODINGS.add(
    11, "FixedSizeList", _fixed_size_list, {1: uint("items"), 2: _VALUES, 3: FieldRule("has_validity", "bool")}
)
ENCODINGS.add(12, "PackedStruct", _packed_struct, {1: uint("bits", repeated=True), 2: _VALUES})
ENCODINGS.refuse(13, "VariablePackedStruct")


# --- layouts ----------------------------------------------------------------------------------------------------------

TYPE_URL = "/lance.encodings21.PageLayout"
# The maximum number of layers: levels are 16-bit numbers, and a layer has at most two. Real schemas nest far less.
LAYERS_MAX = 256
# The maximum size in bytes of a constant within the layout.
INLINE_VALUE_BYTES_MAX = 32
VALUE_BUFFERS_MAX = 64


class RepDefLayer(IntEnum):
    """A layer of nesting, with its number in the format (``RepDefLayer``). Layers are listed inner-most first."""

    ALL_VALID_ITEM = 1
    ALL_VALID_LIST = 2
    NULLABLE_ITEM = 3
    NULLABLE_LIST = 4
    EMPTYABLE_LIST = 5
    NULL_AND_EMPTY_LIST = 6

    @property
    def is_list(self) -> bool:
        """Whether it is a layer of lists, which has a repetition level."""
        return self not in (RepDefLayer.ALL_VALID_ITEM, RepDefLayer.NULLABLE_ITEM)

    @property
    def codes(self) -> int:
        """The number of definition levels of this layer."""
        return {RepDefLayer.ALL_VALID_ITEM: 0, RepDefLayer.ALL_VALID_LIST: 0, RepDefLayer.NULL_AND_EMPTY_LIST: 2}.get(
            self, 1
        )


RepDefLayers = tuple[RepDefLayer, ...]


def max_repetition(layers: Sequence[RepDefLayer]) -> int:
    """The repetition level that starts a row."""
    return sum(layer.is_list for layer in layers)


def max_definition(layers: Sequence[RepDefLayer]) -> int:
    """The highest valid definition level."""
    return sum(layer.codes for layer in layers)


def max_visible(layers: Sequence[RepDefLayer]) -> int:
    """The highest definition level of an entry that has a value (or a null in its place)."""
    visible = 0
    for layer in layers:
        if layer.is_list:
            break
        visible += layer.codes
    return visible


@dataclass(frozen=True, slots=True)
class MiniBlock:
    """Chunks of some kilobytes, each decoded as a whole.

    ``items`` is the number of values of the page with its nulls.
    """

    layers: RepDefLayers
    items: int
    rep: Encoding | None
    definition: Encoding | None
    values: Encoding
    value_buffers: int
    dictionary: Encoding | None
    dictionary_items: int
    index_depth: int
    has_large_chunks: bool


@dataclass(frozen=True, slots=True)
class FullZip:
    """The levels and the value of each item together.

    ``bits`` is the width of a value, or with ``is_variable`` of its length.
    """

    layers: RepDefLayers
    items: int
    visible_items: int
    bits_rep: int
    bits_def: int
    is_variable: bool
    bits: int
    values: Encoding


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value for all items: ``inline_value`` or a buffer; without either all items are null."""

    layers: RepDefLayers
    inline_value: bytes | None
    rep: Encoding | None
    definition: Encoding | None
    rep_values: int
    def_values: int


PageLayout = MiniBlock | FullZip | Constant


def _layers(numbers: Sequence[int]) -> RepDefLayers:
    if not 1 <= len(numbers) <= LAYERS_MAX:
        raise UntrustedMetadata(f"a page with {len(numbers)} layers")
    for number in numbers:
        if number not in RepDefLayer.__members__.values():
            raise Unsupported(f"layer {number} of repetition and definition levels is not supported")
    layers = tuple(RepDefLayer(number) for number in numbers)
    if layers[0].is_list:
        raise UntrustedMetadata("the inner-most layer of a page is a list of nothing")
    return layers


def _mini_block(*fields: Any) -> MiniBlock:
    layout = MiniBlock(*fields)
    has_lists = max_repetition(layout.layers) > 0
    if has_lists != (layout.rep is not None) or (max_definition(layout.layers) > 0 and layout.definition is None):
        raise UntrustedMetadata("the levels of a page do not fit its layers")
    if not 1 <= layout.value_buffers <= VALUE_BUFFERS_MAX or (has_lists and layout.index_depth < 1):
        raise UntrustedMetadata(
            f"a page with {layout.value_buffers} buffers of values, repetition index depth {layout.index_depth}"
        )
    if layout.index_depth > LAYERS_MAX:
        raise UntrustedMetadata(f"a repetition index {layout.index_depth} deep")
    return layout


def _full_zip(
    layers: RepDefLayers,
    items: int,
    visible_items: int,
    bits_rep: int,
    bits_def: int,
    bits_per_value: int | None,
    bits_per_offset: int | None,
    values: Encoding,
) -> FullZip:
    bits = bits_per_value if bits_per_offset is None else bits_per_offset
    if bits is None or (bits_per_value is not None and bits_per_offset is not None):
        raise UntrustedMetadata("a full-zip page needs the width of its values or of their lengths")
    is_variable = bits_per_offset is not None
    layout = FullZip(layers, items, visible_items, bits_rep, bits_def, is_variable, bits, values)
    if bits_rep > 16 or bits_def > 16:
        raise UntrustedMetadata(f"levels of {bits_rep} and {bits_def} bits")
    if (max_repetition(layout.layers) > 0) != (bits_rep > 0) or (max_definition(layout.layers) > 0 and not bits_def):
        raise UntrustedMetadata("the levels of a page do not fit its layers")
    return layout


def _inline_value(value: bytes) -> bytes:
    if len(value) > INLINE_VALUE_BYTES_MAX:
        raise UntrustedMetadata(f"a constant of {len(value)} bytes within a layout")
    return value


_LAYOUTS = EncodingTree[PageLayout]("PageLayout", "the {} layout of version 2.1 and later is not supported")
_LAYOUTS.add(
    1,
    "MiniBlockLayout",
    _mini_block,
    {
        6: uint("layers", repeated=True),
        9: uint("items"),
        1: message("repetition", ENCODINGS),
        2: message("definition", ENCODINGS),
        3: message("values", ENCODINGS),
        7: uint("value_buffers"),
        4: message("dictionary", ENCODINGS),
        5: uint("dictionary_items"),
        8: uint("repetition_index_depth"),
        10: FieldRule("has_large_chunks", "bool"),
    },
    convert={"layers": _layers},
    optional=("repetition", "definition", "dictionary"),
)
_LAYOUTS.add(
    2,
    "ConstantLayout",
    Constant,
    {
        5: uint("layers", repeated=True),
        6: FieldRule("inline_value", "bytes"),
        7: message("repetition", ENCODINGS),
        8: message("definition", ENCODINGS),
        9: uint("rep_values"),
        10: uint("def_values"),
    },
    convert={"layers": _layers, "inline_value": _inline_value},
    optional=("inline_value", "repetition", "definition"),
)
_LAYOUTS.add(
    3,
    "FullZipLayout",
    _full_zip,
    {
        8: uint("layers", repeated=True),
        5: uint("items"),
        6: uint("visible_items"),
        1: uint("bits_rep"),
        2: uint("bits_def"),
        3: uint("bits_per_value"),
        4: uint("bits_per_offset"),
        7: message("values", ENCODINGS),
    },
    convert={"layers": _layers},
    optional=("bits_per_value", "bits_per_offset"),
)
_LAYOUTS.refuse(4, "blob")


@lru_cache(maxsize=1024)  # The pages of a column, and the columns of a type, often have equal descriptions.
def parse_layout(data: bytes, type_url: str) -> PageLayout:
    """The layout that a page's encoding describes.

    ``Unsupported`` names a layout, compression or field that cannot be decoded. ``UntrustedMetadata`` if the bytes are
    not a layout or contradict themselves.
    """
    if type_url != TYPE_URL:
        raise Unsupported(f"page encoding {type_url[:100]!r} is not supported in version 2.1 or 2.2")
    return _LAYOUTS.read(data)
