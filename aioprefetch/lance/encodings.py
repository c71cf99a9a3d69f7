"""The encodings of version 2.0: what a page says about how its values are stored, as a tree.

A tree is small and the same for many pages of a column, so parsed trees are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.wire import FieldRule, MessageTable, Parsed, message, one_of, parse, uint

PAGE_TYPE_URL = "/lance.encodings.ArrayEncoding"
COLUMN_TYPE_URL = "/lance.encodings.ColumnEncoding"


@dataclass(frozen=True, slots=True)
class BufferRef:
    """A buffer by its index: of the page, of the column, or of the file."""

    index: int
    owner: str = "page"


@dataclass(frozen=True, slots=True)
class Flat:
    """Values of ``bits`` bits each, one after the other; or bits. ``compression`` is ``""``, ``zstd`` or ``lz4``."""

    bits: int
    buffer: BufferRef
    compression: str = ""


@dataclass(frozen=True, slots=True)
class NoNulls:
    """Values, of which none is null."""

    values: Encoding


@dataclass(frozen=True, slots=True)
class SomeNulls:
    """Values with a bitmap of those that are valid."""

    validity: Encoding
    values: Encoding


@dataclass(frozen=True, slots=True)
class AllNulls:
    """Nothing but nulls."""


@dataclass(frozen=True, slots=True)
class FixedSizeList:
    """Lists of ``dimension`` items."""

    dimension: int
    items: Encoding


@dataclass(frozen=True, slots=True)
class List:
    """Ends of lists, whose ``num_items`` items are in the next column. See ``physical.offsets`` for nulls."""

    offsets: Encoding
    null_offset_adjustment: int
    num_items: int


@dataclass(frozen=True, slots=True)
class SimpleStruct:
    """A struct without nulls, whose children are in the next columns."""


@dataclass(frozen=True, slots=True)
class Binary:
    """Ends of strings, and their bytes. See ``physical.offsets`` for nulls."""

    indices: Encoding
    content: Encoding
    null_adjustment: int


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Indices into ``items``, of which there are ``num_items``."""

    indices: Encoding
    items: Encoding
    num_items: int


@dataclass(frozen=True, slots=True)
class Fsst:
    """Strings whose bytes are codes of symbols."""

    binary: Encoding
    symbol_table: bytes


@dataclass(frozen=True, slots=True)
class PackedStruct:
    """Rows of values of fixed width, each row the values of ``children`` back to back."""

    children: tuple[Encoding, ...]
    buffer: BufferRef


Encoding = (
    Flat
    | NoNulls
    | SomeNulls
    | AllNulls
    | FixedSizeList
    | List
    | SimpleStruct
    | Binary
    | Dictionary
    | Fsst
    | PackedStruct
)

# --- the messages ---------------------------------------------------------------------------------------------------

_BUFFER = MessageTable("Buffer", {1: uint("index"), 2: uint("owner")})
_COMPRESSION = MessageTable("Compression", {1: FieldRule("scheme", "text"), 2: FieldRule("level", "int")})
_EMPTY = MessageTable("Empty")
_ARRAY = MessageTable("ArrayEncoding")
_FLAT = MessageTable("Flat", {1: uint("bits"), 2: message("buffer", _BUFFER), 3: message("compression", _COMPRESSION)})
_NO_NULLS = MessageTable("NoNull", {1: message("values", _ARRAY)})
_SOME_NULLS = MessageTable("SomeNull", {1: message("validity", _ARRAY), 2: message("values", _ARRAY)})
_NULLABLE = MessageTable(
    "Nullable",
    {1: message("no_nulls", _NO_NULLS), 2: message("some_nulls", _SOME_NULLS), 3: message("all_nulls", _EMPTY)},
)
_FIXED_SIZE_LIST = MessageTable(
    "FixedSizeList", {1: uint("dimension"), 2: message("items", _ARRAY), 3: FieldRule("has_validity", "bool")}
)
_LIST = MessageTable("List", {1: message("offsets", _ARRAY), 2: uint("adjustment"), 3: uint("num_items")})
_BINARY = MessageTable("Binary", {1: message("indices", _ARRAY), 2: message("content", _ARRAY), 3: uint("adjustment")})
_DICTIONARY = MessageTable(
    "Dictionary", {1: message("indices", _ARRAY), 2: message("items", _ARRAY), 3: uint("num_items")}
)
_FSST = MessageTable("Fsst", {1: message("binary", _ARRAY), 2: FieldRule("symbol_table", "bytes")})
_PACKED_STRUCT = MessageTable(
    "PackedStruct", {1: message("children", _ARRAY, repeated=True), 2: message("buffer", _BUFFER)}
)
_ARRAY.rules.update(
    {
        1: message("flat", _FLAT),
        2: message("nullable", _NULLABLE),
        3: message("fixed_size_list", _FIXED_SIZE_LIST),
        4: message("list", _LIST),
        5: message("struct", _EMPTY),
        6: message("binary", _BINARY),
        7: message("dictionary", _DICTIONARY),
        8: message("fsst", _FSST),
        9: message("packed_struct", _PACKED_STRUCT),
        # In the definition of the format, never in a file of version 2.0: refused by name.
        10: FieldRule("Bitpacked", "bytes"),
        11: FieldRule("FixedSizeBinary", "bytes"),
        12: FieldRule("BitpackedForNonNeg", "bytes"),
        13: FieldRule("Constant", "bytes"),
    }
)
_BLOB = MessageTable("Blob", {1: FieldRule("inner", "bytes")})
_COLUMN = MessageTable(
    "ColumnEncoding",
    {1: message("values", _EMPTY), 2: FieldRule("zone_index", "bytes"), 3: message("blob", _BLOB)},
)
_OWNERS = ("page", "column", "file")


@lru_cache(maxsize=256)
def parse_encoding(data: bytes, type_url: str = PAGE_TYPE_URL) -> Encoding:
    """The tree of a page.

    ``Unsupported`` names an encoding that is not known; ``UntrustedMetadata`` is for what is none.
    """
    if type_url != PAGE_TYPE_URL:
        raise Unsupported(f"pages encoded as {type_url[:100]!r} are not supported in version 2.0")
    return _encoding(parse(_ARRAY, data, strict=True))


@lru_cache(maxsize=16)
def is_blob_column(data: bytes, type_url: str = COLUMN_TYPE_URL) -> bool:
    """Whether the encoding of a column says that its values lie outside the pages. ``Unsupported`` for others."""
    if not data and not type_url:
        return False
    if type_url != COLUMN_TYPE_URL:
        raise Unsupported(f"columns encoded as {type_url[:100]!r} are not supported")
    kind, _ = one_of(parse(_COLUMN, data, strict=True), _COLUMN)
    if kind == "zone_index":
        raise Unsupported("columns with a zone index are not supported")
    return kind == "blob"


def _encoding(parsed: Parsed) -> Encoding:
    kind, content = one_of(parsed, _ARRAY)
    build = _BUILDERS.get(kind)
    if build is None:
        raise Unsupported(f"the encoding {kind} is not supported in version 2.0")
    return build(content)


def _child(parsed: Parsed, name: str) -> Encoding:
    if name not in parsed:
        raise UntrustedMetadata(f"an encoding without its {name}")
    return _encoding(parsed[name])


def _buffer(parsed: Parsed) -> BufferRef:
    content = parsed.get("buffer", {})
    owner = content.get("owner", 0)
    if owner >= len(_OWNERS):
        raise UntrustedMetadata(f"a buffer of owner {owner}")
    return BufferRef(content.get("index", 0), _OWNERS[owner])


def _flat(parsed: Parsed) -> Encoding:
    scheme = parsed.get("compression", {}).get("scheme", "")
    return Flat(parsed.get("bits", 0), _buffer(parsed), "" if scheme == "none" else scheme)


def _nullable(parsed: Parsed) -> Encoding:
    kind, content = one_of(parsed, _NULLABLE)
    if kind == "all_nulls":
        return AllNulls()
    if kind == "no_nulls":
        return NoNulls(_child(content, "values"))
    return SomeNulls(_child(content, "validity"), _child(content, "values"))


def _fixed_size_list(parsed: Parsed) -> Encoding:
    if parsed.get("has_validity"):
        raise Unsupported("lists of fixed size with their own validity are not supported in version 2.0")
    return FixedSizeList(parsed.get("dimension", 0), _child(parsed, "items"))


def _list(parsed: Parsed) -> Encoding:
    return List(_child(parsed, "offsets"), parsed.get("adjustment", 0), parsed.get("num_items", 0))


def _binary(parsed: Parsed) -> Encoding:
    return Binary(_child(parsed, "indices"), _child(parsed, "content"), parsed.get("adjustment", 0))


def _dictionary(parsed: Parsed) -> Encoding:
    return Dictionary(_child(parsed, "indices"), _child(parsed, "items"), parsed.get("num_items", 0))


def _fsst(parsed: Parsed) -> Encoding:
    return Fsst(_child(parsed, "binary"), parsed.get("symbol_table", b""))


def _packed_struct(parsed: Parsed) -> Encoding:
    return PackedStruct(tuple(_encoding(child) for child in parsed.get("children", ())), _buffer(parsed))


_BUILDERS: dict[str, Callable[[Parsed], Encoding]] = {
    "flat": _flat,
    "nullable": _nullable,
    "fixed_size_list": _fixed_size_list,
    "list": _list,
    "struct": lambda _: SimpleStruct(),
    "binary": _binary,
    "dictionary": _dictionary,
    "fsst": _fsst,
    "packed_struct": _packed_struct,
}
