"""The encodings of version 2.0: trees that describe how a page stores its values, and the schedulers made from them.

Parsed trees are cached: they are small, and many pages of a column have equal ones.

Every claim of a page is checked against its buffers and the type before any of its bytes are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.compression import check_scheme
from aioprefetch.lance.output import assemble, fixed_width, offset_bytes
from aioprefetch.lance.physical.indirect import BlobDescriptors, DictionaryScheduler
from aioprefetch.lance.physical.protocols import (
    EncodedPage,
    PageRows,
    PartScheduler,
    PhysicalPageDecoder,
    RowBits,
    RowBuffer,
    RowItems,
    RowOffsets,
    RowZeroBits,
    RowZeros,
)
from aioprefetch.lance.physical.strings import BinaryScheduler, StoredEnds
from aioprefetch.lance.physical.value import (
    Basic,
    Bitmap,
    FixedSizeListScheduler,
    NullRows,
    PackedChild,
    PackedStructScheduler,
    Value,
)
from aioprefetch.lance.schema import BLOB_DESCRIPTION
from aioprefetch.lance.wire import EncodingTree, FieldRule, MessageTable, ParsedMessage, message, uint
from aioprefetch.ranges import OFFSET_MAX, Range

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
    """The ends of lists, with ``num_items`` items in the next column. ``physical.strings`` describes nulls."""

    offsets: Encoding
    null_offset_adjustment: int
    num_items: int


@dataclass(frozen=True, slots=True)
class SimpleStruct:
    """A struct without nulls, whose children are in the next columns."""


@dataclass(frozen=True, slots=True)
class Binary:
    """The ends of strings, and their bytes. ``physical.strings`` describes nulls."""

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


Encoding = Flat | SomeNulls | AllNulls | FixedSizeList | List | SimpleStruct | Binary | Dictionary | Fsst | PackedStruct

# --- the messages -----------------------------------------------------------------------------------------------------

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


_NULLABLE.add(1, "no_nulls", lambda values: values, {1: _child("values")})  # As if they stood alone.
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


# --- schedulers -------------------------------------------------------------------------------------------------------

PageScheduler = Basic | NullRows | BinaryScheduler | DictionaryScheduler | PackedStructScheduler


@dataclass(frozen=True, slots=True)
class PageBuffers:
    """The buffers that a page may refer to, as absolute byte ranges."""

    page: Sequence[Range]
    column: Sequence[Range] = ()
    file: Sequence[Range] = ()

    def find(self, ref: BufferRef) -> Range:
        """The range of a buffer. ``UntrustedMetadata`` if it does not exist."""
        owned: Sequence[Range] = {"page": self.page, "column": self.column, "file": self.file}[ref.owner]
        if ref.index >= len(owned):
            raise UntrustedMetadata(f"buffer {ref.index} of the {len(owned)} of a {ref.owner}")
        return owned[ref.index]


def page_scheduler(kind: pa.DataType, encoding: Encoding, buffers: PageBuffers, rows: int) -> PageScheduler:
    """The scheduler of a page of ``rows`` values of type ``kind``, with their validity.

    ``UntrustedMetadata`` if type, encoding and buffers contradict each other; ``Unsupported`` for encodings that 2.0
    files do not have.
    """
    match encoding:
        case AllNulls():
            return NullRows(rows, null_buffers(kind, rows))
        case SomeNulls(validity, values):
            return Basic(_bitmap(validity, buffers, rows), _values(kind, values, buffers, rows))
        case Flat() | FixedSizeList():
            return Basic(None, _values(kind, encoding, buffers, rows))
        case Binary() | Fsst():
            return _binary(kind, encoding, buffers, rows)
        case Dictionary():
            return _dictionary(kind, encoding, buffers, rows)
        case PackedStruct(children, buffer):
            if not pa.types.is_struct(kind) or kind.num_fields != len(children):
                raise UntrustedMetadata(f"a packed struct of {len(children)} fields for a column of type {kind}")
            packed = [_packed(kind.field(index).type, child) for index, child in enumerate(children)]
            return PackedStructScheduler(buffers.find(buffer), rows, tuple(packed))
    raise UntrustedMetadata(f"the encoding {type(encoding).__name__} for a column of type {kind}")


def blob_scheduler(
    kind: pa.DataType, encoding: Encoding, buffers: PageBuffers, rows: int, file_size: int
) -> BlobDescriptors:
    """The scheduler of a page of blob descriptors, whose values lie outside the pages."""
    width = offset_bytes(kind)
    scheduler = page_scheduler(BLOB_DESCRIPTION, encoding, buffers, rows)
    if not width or not isinstance(scheduler, PackedStructScheduler):
        raise UntrustedMetadata(f"the encoding {type(encoding).__name__} for blobs of type {kind}")
    return BlobDescriptors(scheduler.buffer, rows, file_size, width)


def list_scheduler(encoding: Encoding, buffers: PageBuffers, rows: int) -> StoredEnds:
    """The scheduler of a page of the ends of lists."""
    if not isinstance(encoding, List):
        raise UntrustedMetadata(f"the encoding {type(encoding).__name__} for a column of lists")
    if encoding.num_items > OFFSET_MAX:
        raise UntrustedMetadata(f"a page of {encoding.num_items} items")
    return _ends(encoding.offsets, buffers, rows, encoding.null_offset_adjustment, encoding.num_items)


def null_buffers(kind: pa.DataType, rows: int, factor: int = 1) -> list[RowBuffer]:
    """The buffers of a page of nulls. ``Unsupported`` for a type whose pages cannot be all null."""
    if pa.types.is_null(kind):
        return []
    if pa.types.is_dictionary(kind) or pa.types.is_struct(kind) or (offset_bytes(kind) and factor > 1):
        raise Unsupported(f"pages of nulls of type {kind} are not supported")
    if pa.types.is_fixed_size_list(kind):
        items = null_buffers(kind.value_type, rows, factor * kind.list_size)
        shown = [RowBits(None), *items[1:]] if items else []  # Items of a list that is null may be valid.
        return [RowZeroBits(), *(RowItems(buffer, kind.list_size) for buffer in shown)]
    if width := offset_bytes(kind):
        return [RowZeroBits(), RowOffsets(np.broadcast_to(np.int64(0), rows + 1), width), RowZeros(0)]
    return [RowZeroBits(), RowZeroBits() if pa.types.is_boolean(kind) else RowZeros(fixed_width(kind))]


def _flat(encoding: Encoding) -> Flat:
    if not isinstance(encoding, Flat):
        raise Unsupported(f"the encoding {type(encoding).__name__} is not supported where numbers are expected")
    return encoding


def _uncompressed(encoding: Encoding, bits: int, what: str) -> Flat:
    flat = _flat(encoding)
    if flat.bits != bits:
        raise UntrustedMetadata(f"{what} of {flat.bits} bits instead of {bits}")
    if flat.compression:
        raise Unsupported(f"compressed {what} are not supported")
    return flat


def _bitmap(encoding: Encoding, buffers: PageBuffers, rows: int) -> Bitmap:
    return Bitmap(buffers.find(_uncompressed(encoding, 1, "bitmaps").buffer), rows)


def _ends(encoding: Encoding, buffers: PageBuffers, rows: int, adjustment: int, size: int) -> StoredEnds:
    return StoredEnds(buffers.find(_uncompressed(encoding, 64, "ends").buffer), rows, adjustment, size)


def _values(
    kind: pa.DataType, encoding: Encoding, buffers: PageBuffers, rows: int
) -> PartScheduler[PhysicalPageDecoder]:
    """The scheduler of values without their validity."""
    if isinstance(encoding, FixedSizeList):
        size = encoding.dimension
        if not pa.types.is_fixed_size_list(kind) or kind.list_size != size or rows * size > OFFSET_MAX:
            raise UntrustedMetadata(f"{rows} lists of {size} items for a column of type {kind}")
        items = page_scheduler(kind.value_type, encoding.items, buffers, rows * size)
        if not isinstance(items, Basic | NullRows):
            raise Unsupported(f"lists of fixed size of {kind.value_type} are not supported")
        return FixedSizeListScheduler(items, rows, size)
    if pa.types.is_boolean(kind):
        return _bitmap(encoding, buffers, rows)
    flat = _flat(encoding)
    if offset_bytes(kind) or pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_null(kind):
        raise UntrustedMetadata(f"values of {flat.bits} bits for a column of type {kind}")
    width = fixed_width(kind)
    if flat.bits != 8 * width:
        raise UntrustedMetadata(f"values of {flat.bits} bits for a column of type {kind}")
    return _value(flat, buffers, rows, width)


def _value(flat: Flat, buffers: PageBuffers, rows: int, width: int) -> Value:
    if flat.compression:
        check_scheme(flat.compression)
    return Value(buffers.find(flat.buffer), rows, width, flat.compression)


def _binary(kind: pa.DataType, encoding: Binary | Fsst, buffers: PageBuffers, rows: int) -> BinaryScheduler:
    symbol_table: bytes | None = None
    if isinstance(encoding, Fsst):
        symbol_table = encoding.symbol_table
        if not isinstance(encoding.binary, Binary):
            raise UntrustedMetadata("FSST codes that are not strings")
        encoding = encoding.binary
    width = offset_bytes(kind)
    flat = _flat(encoding.content)
    if not width or flat.bits != 8:
        raise UntrustedMetadata(f"strings of values of {flat.bits} bits for a column of type {kind}")
    content = buffers.find(flat.buffer)
    size = content[1] - content[0]
    if flat.compression:
        check_scheme(flat.compression)
        size = max(encoding.null_adjustment - 1, 0)
    ends = _ends(encoding.indices, buffers, rows, encoding.null_adjustment, size)
    return BinaryScheduler(ends, content, width, flat.compression, symbol_table)


def _dictionary(kind: pa.DataType, encoding: Dictionary, buffers: PageBuffers, rows: int) -> DictionaryScheduler:
    is_text = not pa.types.is_dictionary(kind)
    flat = _flat(encoding.indices)
    if is_text:
        value_kind, width = kind, flat.bits // 8
        if not offset_bytes(kind) or flat.bits not in (8, 16, 32, 64):
            raise UntrustedMetadata(f"a dictionary with indices of {flat.bits} bits for a column of type {kind}")
    else:
        value_kind, width = kind.value_type, fixed_width(kind.index_type)
        if flat.bits != 8 * width:
            raise UntrustedMetadata(f"indices of {flat.bits} bits for a column of type {kind}")
    items = page_scheduler(value_kind, encoding.items, buffers, encoding.num_items)
    if isinstance(items, DictionaryScheduler | PackedStructScheduler):
        raise Unsupported(f"dictionaries of {type(items).__name__} are not supported")

    def array_of(page: PhysicalPageDecoder | EncodedPage) -> pa.Array:
        return assemble(value_kind, [PageRows(page, 0, page.rows)])

    return DictionaryScheduler(
        _value(flat, buffers, rows, width), items, array_of, is_text, offset_bytes(value_kind) or 4
    )


def _packed(kind: pa.DataType, encoding: Encoding) -> PackedChild:
    """One field of a packed struct. The buffer in its encoding is unused."""
    if isinstance(encoding, FixedSizeList):
        if not pa.types.is_fixed_size_list(kind) or kind.list_size != encoding.dimension:
            raise UntrustedMetadata(f"lists of {encoding.dimension} items for a field of type {kind}")
        items = _packed(kind.value_type, encoding.items)
        return PackedChild(items.width * encoding.dimension, items.depth + 1)
    if not isinstance(encoding, Flat) or encoding.compression or encoding.bits % 8:
        raise Unsupported(f"a packed struct with a field of type {kind} is not supported")
    if encoding.bits != 8 * fixed_width(kind):
        raise UntrustedMetadata(f"values of {encoding.bits} bits for a field of type {kind}")
    return PackedChild(encoding.bits // 8)
