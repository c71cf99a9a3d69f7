"""The layout of a page of version 2.1 or 2.2: how levels and values are arranged in the page's buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.structural.compressions import ENCODINGS, Encoding
from aioprefetch.lance.wire import EncodingTree, FieldRule, message, uint

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
