"""Builds the scheduler of a page from its encoding and the type of its column.

Every claim of a page is checked against its buffers and the type before any of its bytes are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance import encodings as enc
from aioprefetch.lance.compression import check_scheme
from aioprefetch.lance.output import assemble, fixed_width, offset_bytes
from aioprefetch.lance.physical.basic import Basic, DirectScheduler, FixedSizeListScheduler, NullBuffer, NullRows
from aioprefetch.lance.physical.blob import BlobDescriptors
from aioprefetch.lance.physical.dictionary import DictionaryScheduler
from aioprefetch.lance.physical.offsets import StoredEnds
from aioprefetch.lance.physical.protocols import EncodedPage, PageRows, PhysicalPageDecoder
from aioprefetch.lance.physical.strings import BinaryScheduler
from aioprefetch.lance.physical.value import Bitmap, PackedChild, PackedStructScheduler, Value
from aioprefetch.lance.schema import BLOB_DESCRIPTION
from aioprefetch.ranges import OFFSET_MAX, Range

PageScheduler = Basic | NullRows | BinaryScheduler | DictionaryScheduler | PackedStructScheduler


@dataclass(frozen=True, slots=True)
class PageBuffers:
    """The buffers that a page may refer to, as absolute byte ranges."""

    page: Sequence[Range]
    column: Sequence[Range] = ()
    file: Sequence[Range] = ()

    def find(self, ref: enc.BufferRef) -> Range:
        """The range of a buffer. ``UntrustedMetadata`` if it does not exist."""
        owned: Sequence[Range] = {"page": self.page, "column": self.column, "file": self.file}[ref.owner]
        if ref.index >= len(owned):
            raise UntrustedMetadata(f"buffer {ref.index} of the {len(owned)} of a {ref.owner}")
        return owned[ref.index]


def page_scheduler(kind: pa.DataType, encoding: enc.Encoding, buffers: PageBuffers, rows: int) -> PageScheduler:
    """The scheduler of a page of ``rows`` values of type ``kind``, with their validity.

    ``UntrustedMetadata`` if type, encoding and buffers contradict each other; ``Unsupported`` for encodings that 2.0
    files do not have.
    """
    match encoding:
        case enc.NoNulls(values) if not isinstance(values, enc.Flat | enc.FixedSizeList):
            return page_scheduler(kind, values, buffers, rows)
        case enc.AllNulls():
            return NullRows(rows, null_buffers(kind))
        case enc.NoNulls(values):
            return Basic(None, _values(kind, values, buffers, rows))
        case enc.SomeNulls(validity, values):
            return Basic(_bitmap(validity, buffers, rows), _values(kind, values, buffers, rows))
        case enc.Flat() | enc.FixedSizeList():
            return Basic(None, _values(kind, encoding, buffers, rows))
        case enc.Binary() | enc.Fsst():
            return _binary(kind, encoding, buffers, rows)
        case enc.Dictionary():
            return _dictionary(kind, encoding, buffers, rows)
        case enc.PackedStruct(children, buffer):
            if not pa.types.is_struct(kind) or kind.num_fields != len(children):
                raise UntrustedMetadata(f"a packed struct of {len(children)} fields for a column of type {kind}")
            packed = [_packed(kind.field(index).type, child) for index, child in enumerate(children)]
            return PackedStructScheduler(buffers.find(buffer), rows, tuple(packed))
    raise UntrustedMetadata(f"the encoding {type(encoding).__name__} for a column of type {kind}")


def blob_scheduler(
    kind: pa.DataType, encoding: enc.Encoding, buffers: PageBuffers, rows: int, file_size: int
) -> BlobDescriptors:
    """The scheduler of a page of blob descriptors, whose values lie outside the pages."""
    width = offset_bytes(kind)
    scheduler = page_scheduler(BLOB_DESCRIPTION, encoding, buffers, rows)
    if not width or not isinstance(scheduler, PackedStructScheduler):
        raise UntrustedMetadata(f"the encoding {type(encoding).__name__} for blobs of type {kind}")
    return BlobDescriptors(scheduler.buffer, rows, file_size, width)


def list_scheduler(encoding: enc.Encoding, buffers: PageBuffers, rows: int) -> StoredEnds:
    """The scheduler of a page of the ends of lists."""
    if not isinstance(encoding, enc.List):
        raise UntrustedMetadata(f"the encoding {type(encoding).__name__} for a column of lists")
    if encoding.num_items > OFFSET_MAX:
        raise UntrustedMetadata(f"a page of {encoding.num_items} items")
    return _ends(encoding.offsets, buffers, rows, encoding.null_offset_adjustment, encoding.num_items)


def null_buffers(kind: pa.DataType, factor: int = 1) -> tuple[NullBuffer, ...]:
    """The output buffers of a page of nulls. ``Unsupported`` for a type whose pages cannot be all null."""
    if pa.types.is_null(kind):
        return ()
    if pa.types.is_dictionary(kind) or pa.types.is_struct(kind) or (offset_bytes(kind) and factor > 1):
        raise Unsupported(f"pages of nulls of type {kind} are not supported")
    validity = NullBuffer("bits", factor)
    if pa.types.is_fixed_size_list(kind):
        return (validity, *null_buffers(kind.value_type, factor * kind.list_size))
    if offset_bytes(kind):
        return (validity, NullBuffer("offsets", 1, offset_bytes(kind)), NullBuffer("bytes", 0))
    if pa.types.is_boolean(kind):
        return (validity, validity)
    return (validity, NullBuffer("values", factor * fixed_width(kind)))


def _flat(encoding: enc.Encoding) -> enc.Flat:
    if isinstance(encoding, enc.NoNulls):
        encoding = encoding.values
    if not isinstance(encoding, enc.Flat):
        raise Unsupported(f"the encoding {type(encoding).__name__} is not supported where numbers are expected")
    return encoding


def _uncompressed(encoding: enc.Encoding, bits: int, what: str) -> enc.Flat:
    flat = _flat(encoding)
    if flat.bits != bits:
        raise UntrustedMetadata(f"{what} of {flat.bits} bits instead of {bits}")
    if flat.compression:
        raise Unsupported(f"compressed {what} are not supported")
    return flat


def _bitmap(encoding: enc.Encoding, buffers: PageBuffers, rows: int) -> Bitmap:
    return Bitmap(buffers.find(_uncompressed(encoding, 1, "bitmaps").buffer), rows)


def _ends(encoding: enc.Encoding, buffers: PageBuffers, rows: int, adjustment: int, size: int) -> StoredEnds:
    return StoredEnds(buffers.find(_uncompressed(encoding, 64, "ends").buffer), rows, adjustment, size)


def _values(kind: pa.DataType, encoding: enc.Encoding, buffers: PageBuffers, rows: int) -> DirectScheduler:
    """The scheduler of values without their validity."""
    if isinstance(encoding, enc.NoNulls):
        encoding = encoding.values
    if isinstance(encoding, enc.FixedSizeList):
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


def _value(flat: enc.Flat, buffers: PageBuffers, rows: int, width: int) -> Value:
    if flat.compression:
        check_scheme(flat.compression)
    return Value(buffers.find(flat.buffer), rows, width, flat.compression)


def _binary(kind: pa.DataType, encoding: enc.Binary | enc.Fsst, buffers: PageBuffers, rows: int) -> BinaryScheduler:
    symbol_table: bytes | None = None
    if isinstance(encoding, enc.Fsst):
        symbol_table = encoding.symbol_table
        if not isinstance(encoding.binary, enc.Binary):
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


def _dictionary(kind: pa.DataType, encoding: enc.Dictionary, buffers: PageBuffers, rows: int) -> DictionaryScheduler:
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


def _packed(kind: pa.DataType, encoding: enc.Encoding) -> PackedChild:
    """One field of a packed struct. The buffer in its encoding is unused."""
    if isinstance(encoding, enc.NoNulls):
        encoding = encoding.values
    if isinstance(encoding, enc.FixedSizeList):
        if not pa.types.is_fixed_size_list(kind) or kind.list_size != encoding.dimension:
            raise UntrustedMetadata(f"lists of {encoding.dimension} items for a field of type {kind}")
        items = _packed(kind.value_type, encoding.items)
        return PackedChild(items.width * encoding.dimension, items.depth + 1)
    if not isinstance(encoding, enc.Flat) or encoding.compression or encoding.bits % 8:
        raise Unsupported(f"a packed struct with a field of type {kind} is not supported")
    if encoding.bits != 8 * fixed_width(kind):
        raise UntrustedMetadata(f"values of {encoding.bits} bits for a field of type {kind}")
    return PackedChild(encoding.bits // 8)
