"""The layout of a page of version 2.1 or 2.2: where levels, values and their chunks lie in the page's buffers.

Parsed from the ``PageLayout`` message, strictly: a member or a field that is not known here is ``Unsupported``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.structural.compressions import ENCODING, Encoding, build
from aioprefetch.lance.wire import FieldRule, MessageTable, Parsed, message, one_of, parse, uint

TYPE_URL = "/lance.encodings21.PageLayout"
# Levels are 16-bit numbers, and each layer has at most two of them; no schema nests that deep anyway.
LAYERS_MAX = 256
# A constant up to this many bytes is kept in the layout itself.
INLINE_VALUE_BYTES_MAX = 32
VALUE_BUFFERS_MAX = 64

_MINI_BLOCK = MessageTable(
    "MiniBlockLayout",
    {
        1: message("rep_compression", ENCODING),
        2: message("def_compression", ENCODING),
        3: message("value_compression", ENCODING),
        4: message("dictionary", ENCODING),
        5: uint("dictionary_items"),
        6: uint("layers", repeated=True),
        7: uint("value_buffers"),
        8: uint("repetition_index_depth"),
        9: uint("items"),
        10: FieldRule("has_large_chunks", "bool"),
    },
)
_CONSTANT = MessageTable(
    "ConstantLayout",
    {
        5: uint("layers", repeated=True),
        6: FieldRule("inline_value", "bytes"),
        7: message("rep_compression", ENCODING),
        8: message("def_compression", ENCODING),
        9: uint("rep_values"),
        10: uint("def_values"),
    },
)
_FULL_ZIP = MessageTable(
    "FullZipLayout",
    {
        1: uint("bits_rep"),
        2: uint("bits_def"),
        3: uint("bits_per_value"),
        4: uint("bits_per_offset"),
        5: uint("items"),
        6: uint("visible_items"),
        7: message("value_compression", ENCODING),
        8: uint("layers", repeated=True),
    },
)
PAGE_LAYOUT = MessageTable("PageLayout")
_BLOB = MessageTable("BlobLayout", {1: message("inner_layout", PAGE_LAYOUT), 2: uint("layers", repeated=True)})
PAGE_LAYOUT.rules.update(
    {
        1: message("mini_block", _MINI_BLOCK),
        2: message("constant", _CONSTANT),
        3: message("full_zip", _FULL_ZIP),
        4: message("blob", _BLOB),
    }
)


class Layer(IntEnum):
    """What one level of nesting may hold, by the numbers of the format. Layers are listed inner-most first."""

    ALL_VALID_ITEM = 1
    ALL_VALID_LIST = 2
    NULLABLE_ITEM = 3
    NULLABLE_LIST = 4
    EMPTYABLE_LIST = 5
    NULL_AND_EMPTY_LIST = 6

    @property
    def is_list(self) -> bool:
        """Whether it is a layer of lists, which takes a repetition level."""
        return self not in (Layer.ALL_VALID_ITEM, Layer.NULLABLE_ITEM)

    @property
    def codes(self) -> int:
        """How many definition levels it takes."""
        return {Layer.ALL_VALID_ITEM: 0, Layer.ALL_VALID_LIST: 0, Layer.NULL_AND_EMPTY_LIST: 2}.get(self, 1)


Layers = tuple[Layer, ...]


def max_repetition(layers: Sequence[Layer]) -> int:
    """The repetition level that starts a row."""
    return sum(layer.is_list for layer in layers)


def max_definition(layers: Sequence[Layer]) -> int:
    """The highest definition level that means anything."""
    return sum(layer.codes for layer in layers)


def max_visible(layers: Sequence[Layer]) -> int:
    """The highest definition level of an entry that has a value (or a null in its place)."""
    visible = 0
    for layer in layers:
        if layer.is_list:
            break
        visible += layer.codes
    return visible


@dataclass(frozen=True, slots=True)
class MiniBlock:
    """Chunks of some kilobytes, each decoded as a whole; ``items`` are the values of the page, nulls included."""

    layers: Layers
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
    """Levels and value of each item together. ``bits`` is a value's width, or with ``is_variable`` its length's."""

    layers: Layers
    items: int
    visible_items: int
    bits_rep: int
    bits_def: int
    is_variable: bool
    bits: int
    values: Encoding


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for every item, or none at all: ``inline_value``, a buffer, or (without either) nulls."""

    layers: Layers
    inline_value: bytes | None
    rep: Encoding | None
    definition: Encoding | None
    rep_values: int
    def_values: int


Layout = MiniBlock | FullZip | Constant


@lru_cache(maxsize=1024)  # Pages of a column, and columns of a type, are often described alike.
def parse_layout(data: bytes, type_url: str, *, path: str = "") -> Layout:
    """The layout that a page's encoding describes.

    ``Unsupported`` names the layout, compression or field that is not decoded here; ``UntrustedMetadata`` for what is
    no such message or contradicts itself.
    """
    if type_url != TYPE_URL:
        raise Unsupported(f"page encoding {type_url[:100]!r} is not supported in version 2.1 or 2.2", path=path)
    kind, content = one_of(parse(PAGE_LAYOUT, data, path=path, strict=True), PAGE_LAYOUT, path=path)
    match kind:
        case "mini_block":
            return _mini_block(content, path)
        case "full_zip":
            return _full_zip(content, path)
        case "constant":
            return _constant(content, path)
    raise Unsupported("the blob layout of version 2.1 and later is not supported", path=path)


def _layers(content: Parsed, path: str) -> Layers:
    numbers = content.get("layers", [])
    if not 1 <= len(numbers) <= LAYERS_MAX:
        raise UntrustedMetadata(f"a page with {len(numbers)} layers", path=path)
    known = {layer.value for layer in Layer}
    for number in numbers:
        if number not in known:
            raise Unsupported(f"layer {number} of repetition and definition levels is not supported", path=path)
    layers = tuple(Layer(number) for number in numbers)
    if layers[0].is_list:
        raise UntrustedMetadata("the inner-most layer of a page is a list of nothing", path=path)
    return layers


def _optional(content: Parsed, name: str, path: str) -> Encoding | None:
    return build(content[name], path=path) if name in content else None


def _mini_block(content: Parsed, path: str) -> MiniBlock:
    layout = MiniBlock(
        layers=_layers(content, path),
        items=content.get("items", 0),
        rep=_optional(content, "rep_compression", path),
        definition=_optional(content, "def_compression", path),
        values=build(content.get("value_compression"), path=path),
        value_buffers=content.get("value_buffers", 0),
        dictionary=_optional(content, "dictionary", path),
        dictionary_items=content.get("dictionary_items", 0),
        index_depth=content.get("repetition_index_depth", 0),
        has_large_chunks=content.get("has_large_chunks", False),
    )
    has_lists = max_repetition(layout.layers) > 0
    if has_lists != (layout.rep is not None) or (max_definition(layout.layers) > 0 and layout.definition is None):
        raise UntrustedMetadata("the levels of a page do not fit its layers", path=path)
    if not 1 <= layout.value_buffers <= VALUE_BUFFERS_MAX or (has_lists and layout.index_depth < 1):
        raise UntrustedMetadata(
            f"a page with {layout.value_buffers} buffers of values, repetition index depth {layout.index_depth}",
            path=path,
        )
    if layout.index_depth > LAYERS_MAX:
        raise UntrustedMetadata(f"a repetition index {layout.index_depth} deep", path=path)
    return layout


def _full_zip(content: Parsed, path: str) -> FullZip:
    is_variable = "bits_per_offset" in content
    if is_variable == ("bits_per_value" in content):
        raise UntrustedMetadata("a full-zip page needs the width of its values or of their lengths", path=path)
    layout = FullZip(
        layers=_layers(content, path),
        items=content.get("items", 0),
        visible_items=content.get("visible_items", 0),
        bits_rep=content.get("bits_rep", 0),
        bits_def=content.get("bits_def", 0),
        is_variable=is_variable,
        bits=content["bits_per_offset" if is_variable else "bits_per_value"],
        values=build(content.get("value_compression"), path=path),
    )
    if layout.bits_rep > 16 or layout.bits_def > 16:
        raise UntrustedMetadata(f"levels of {layout.bits_rep} and {layout.bits_def} bits", path=path)
    if (max_repetition(layout.layers) > 0) != (layout.bits_rep > 0) or (
        max_definition(layout.layers) > 0 and not layout.bits_def
    ):
        raise UntrustedMetadata("the levels of a page do not fit its layers", path=path)
    return layout


def _constant(content: Parsed, path: str) -> Constant:
    inline = content.get("inline_value")
    if inline is not None and len(inline) > INLINE_VALUE_BYTES_MAX:
        raise UntrustedMetadata(f"a constant of {len(inline)} bytes within a layout", path=path)
    return Constant(
        layers=_layers(content, path),
        inline_value=inline,
        rep=_optional(content, "rep_compression", path),
        definition=_optional(content, "def_compression", path),
        rep_values=content.get("rep_values", 0),
        def_values=content.get("def_values", 0),
    )
