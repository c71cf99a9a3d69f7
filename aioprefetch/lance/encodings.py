"""The encodings of version 2.0: trees that describe how a page stores its values.

Parsed trees are cached: they are small, and many pages of a column have equal ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.wire import EncodingTree, FieldRule, MessageTable, ParsedMessage, message, uint

PAGE_TYPE_URL = "/lance.encodings.ArrayEncoding"
COLUMN_TYPE_URL = "/lance.encodings.ColumnEncoding"


@dataclass(frozen=True, slots=True)
class BufferRef:
    """A buffer of the page, the column or the file, by its index."""

    index: int
    owner: str = "page"


@dataclass(frozen=True, slots=True)
class Flat:
    """Values of ``bits`` bits back to back. ``compression`` is ``""``, ``zstd`` or ``lz4``."""

    bits: int
    buffer: BufferRef
    compression: str = ""


@dataclass(frozen=True, slots=True)
class NoNulls:
    """Values without nulls."""

    values: Encoding


@dataclass(frozen=True, slots=True)
class SomeNulls:
    """Values with a validity bitmap."""

    validity: Encoding
    values: Encoding


@dataclass(frozen=True, slots=True)
class AllNulls:
    """Nulls alone."""


@dataclass(frozen=True, slots=True)
class FixedSizeList:
    """Lists of ``dimension`` items."""

    dimension: int
    items: Encoding


@dataclass(frozen=True, slots=True)
class List:
    """The ends of lists, with ``num_items`` items in the next column. ``physical.offsets`` describes nulls."""

    offsets: Encoding
    null_offset_adjustment: int
    num_items: int


@dataclass(frozen=True, slots=True)
class SimpleStruct:
    """A struct without nulls, whose children are in the next columns."""


@dataclass(frozen=True, slots=True)
class Binary:
    """The ends of strings, and their bytes. ``physical.offsets`` describes nulls."""

    indices: Encoding
    content: Encoding
    null_adjustment: int


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Indices into ``items``, a dictionary of ``num_items`` items."""

    indices: Encoding
    items: Encoding
    num_items: int


@dataclass(frozen=True, slots=True)
class Fsst:
    """Strings whose bytes are FSST codes."""

    binary: Encoding
    symbol_table: bytes


@dataclass(frozen=True, slots=True)
class PackedStruct:
    """Rows of fixed-width values. A row is the values of ``children`` back to back."""

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
_OWNERS = ("page", "column", "file")


def _buffer(content: ParsedMessage) -> BufferRef:
    owner = content.get("owner", 0)
    if owner >= len(_OWNERS):
        raise UntrustedMetadata(f"a buffer of owner {owner}")
    return BufferRef(content.get("index", 0), _OWNERS[owner])


def _scheme(content: ParsedMessage) -> str:
    scheme: str = content.get("scheme", "")
    return "" if scheme == "none" else scheme


_ENCODINGS = EncodingTree[Encoding]("ArrayEncoding", "the encoding {} is not supported in version 2.0")
_NULLABLE = EncodingTree[Encoding]("Nullable", "the encoding {} is not supported in version 2.0")


def _child(name: str, *, repeated: bool = False) -> FieldRule:
    return message(name, _ENCODINGS, repeated=repeated)


_NULLABLE.add(1, "no_nulls", NoNulls, {1: _child("values")})
_NULLABLE.add(2, "some_nulls", SomeNulls, {1: _child("validity"), 2: _child("values")})
_NULLABLE.add(3, "all_nulls", AllNulls)

_ENCODINGS.add(
    1,
    "flat",
    Flat,
    {1: uint("bits"), 2: message("buffer", _BUFFER), 3: message("compression", _COMPRESSION)},
    convert={"buffer": _buffer, "compression": _scheme},
)
_ENCODINGS.delegate(2, "nullable", _NULLABLE)
_ENCODINGS.add(
    3,
    "fixed_size_list",
    FixedSizeList,
    {1: uint("dimension"), 2: _child("items"), 3: FieldRule("has_validity", "bool")},
    refused=("has_validity",),
)
_ENCODINGS.add(4, "list", List, {1: _child("offsets"), 2: uint("null_offset_adjustment"), 3: uint("num_items")})
_ENCODINGS.add(5, "struct", SimpleStruct)
_ENCODINGS.add(6, "binary", Binary, {1: _child("indices"), 2: _child("content"), 3: uint("null_adjustment")})
_ENCODINGS.add(7, "dictionary", Dictionary, {1: _child("indices"), 2: _child("items"), 3: uint("num_items")})
_ENCODINGS.add(8, "fsst", Fsst, {1: _child("binary"), 2: FieldRule("symbol_table", "bytes")})
_ENCODINGS.add(
    9,
    "packed_struct",
    PackedStruct,
    {1: _child("children", repeated=True), 2: message("buffer", _BUFFER)},
    convert={"buffer": _buffer},
)
# Encodings that the format defines, but files of version 2.0 do not use.
for _number, _name in ((10, "Bitpacked"), (11, "FixedSizeBinary"), (12, "BitpackedForNonNeg"), (13, "Constant")):
    _ENCODINGS.refuse(_number, _name)

_COLUMN = EncodingTree[bool]("ColumnEncoding", "columns with a {} are not supported")
_COLUMN.add(1, "values", lambda: False)
_COLUMN.refuse(2, "zone index")
_COLUMN.add(3, "blob", lambda _: True, {1: FieldRule("inner", "bytes")})


@lru_cache(maxsize=256)
def parse_encoding(data: bytes, type_url: str = PAGE_TYPE_URL) -> Encoding:
    """Parse the encoding of a page.

    ``Unsupported`` names an unknown encoding. ``UntrustedMetadata`` if the bytes are not an encoding.
    """
    if type_url != PAGE_TYPE_URL:
        raise Unsupported(f"pages encoded as {type_url[:100]!r} are not supported in version 2.0")
    return _ENCODINGS.read(data)


@lru_cache(maxsize=16)
def is_blob_column(data: bytes, type_url: str = COLUMN_TYPE_URL) -> bool:
    """Whether the values of a column lie outside its pages, by its encoding. ``Unsupported`` for unknown encodings."""
    if not data and not type_url:
        return False
    if type_url != COLUMN_TYPE_URL:
        raise Unsupported(f"columns encoded as {type_url[:100]!r} are not supported")
    return _COLUMN.read(data)
