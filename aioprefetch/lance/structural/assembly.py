"""Decoded rows of the leaves of a field, put together as one Arrow array.

The values of a leaf are written into one destination for the rows of all pages (``aioprefetch.lance.output``).
``CONCATENATED`` lists the exceptions.

The texts of a batch are appended to one ``StringBuilder``, and the decoded part is freed after each append.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.lance.compression import decode_fsst
from aioprefetch.lance.output import AnyPage, arrow_buffer, assemble, dictionary, null_bits, offset_bytes
from aioprefetch.lance.physical.protocols import (
    PageRows,
    PhysicalPageDecoder,
    RowBits,
    RowBuffer,
    RowField,
    RowItems,
    RowOffsets,
    RowText,
    RowValues,
    RowZeroBits,
    RowZeros,
    Slice,
    check_nulls,
    check_offsets,
    check_size,
    concatenated,
    new_offsets,
    zeros,
)
from aioprefetch.lance.schema import Field
from aioprefetch.lance.structural.decoded_rows import DecodedRows, Unraveler
from aioprefetch.lance.structural.values import (
    Coded,
    Fixed,
    FixedLists,
    Flags,
    Nulls,
    Positions,
    Texts,
    Values,
    damaged,
    expand,
    is_void,
)


class StringBuilder:
    """The bytes of all texts of one column of a batch, back to back in memory of Arrow's pool."""

    def __init__(self) -> None:
        self._memory: pa.Buffer | None = None
        self._used = 0
        self._offsets: list[Positions] = [np.zeros(1, np.int64)]

    def append(self, values: Values, expected_share: float) -> None:
        """Append texts, which are about ``expected_share`` of the batch.

        ``Unsupported`` beyond the maximum of a buffer.
        """
        texts = as_texts(values)
        first, last = int(texts.offsets[0]), int(texts.offsets[-1])
        end = self._used + last - first
        check_size(end)
        memory = np.frombuffer(self._reserved(end, expected_share), np.uint8)
        memory[self._used : end] = texts.data[first:last]
        self._offsets.append(texts.offsets[1:] + (self._used - first))
        self._used = end

    @property
    def size_bytes(self) -> int:
        """The size of the texts so far."""
        return self._used

    @property
    def memory(self) -> pa.Buffer | None:
        """The memory that holds the texts so far."""
        return self._memory

    def finish(self) -> Texts:
        """All appended texts, in memory of the right size."""
        assert self._memory is not None
        self._memory.resize(self._used, shrink_to_fit=self._used < self._memory.size * 3 // 4)
        return Texts(np.frombuffer(self._memory, np.uint8), np.concatenate(self._offsets))

    def _reserved(self, size_bytes: int, expected_share: float) -> pa.Buffer:
        if self._memory is None:
            expected = min(int(size_bytes / max(expected_share, 1e-3) * 1.1), 64 * size_bytes)
            self._memory = pa.allocate_buffer(max(size_bytes, expected), resizable=True)
        elif size_bytes > self._memory.size:
            self._memory.resize(max(size_bytes, self._memory.size * 3 // 2))
        return self._memory


def as_texts(values: Values) -> Texts:
    """The values of a text column, with all codes expanded. ``UntrustedMetadata`` for numbers."""
    if isinstance(values, Coded):
        values = expand(values)
    if isinstance(values, Nulls):
        return Texts(np.zeros(0, np.uint8), np.zeros(values.count + 1, np.int64))
    if not isinstance(values, Texts):
        raise damaged("a page of texts holds values of a fixed width")
    return Texts(*decode_fsst(values.symbols, values.data, values.offsets)) if values.symbols else values


class LeafRows(PhysicalPageDecoder):
    """Decoded values and their validity, of Arrow type ``kind``, for a dictionary type its indices.

    ``UntrustedMetadata`` if the values are not of that type.
    """

    def __init__(self, kind: pa.DataType, values: Values, validity: Flags | None) -> None:
        if validity is not None and validity.size != values.count:
            raise damaged(f"{values.count} values with {validity.size} flags of validity")
        if isinstance(values, Nulls) and validity is None and _has_values(kind):
            validity = np.zeros(values.count, bool)
        buffers: list[RowBuffer] = [] if pa.types.is_null(kind) else [RowBits.of(validity)]
        if _has_values(kind):
            buffers += _buffers(kind, values)
        super().__init__(values.count, buffers)


def _buffers(kind: pa.DataType, values: Values) -> list[RowBuffer]:
    """The buffers of values, without the validity of the rows."""
    if pa.types.is_dictionary(kind):
        return [_indices(kind.index_type, values)]
    if pa.types.is_fixed_size_list(kind):
        return _lists(kind, values)
    if pa.types.is_struct(kind):
        return _fields(kind, values)
    if width := offset_bytes(kind):
        texts = as_texts(values)
        return [RowOffsets(texts.offsets, width), RowText(texts.data, texts.offsets, width)]
    return [_fixed(kind, values)]


def _fixed(kind: pa.DataType, values: Values) -> RowBuffer:
    bits = _bits(kind)
    if isinstance(values, Coded):
        values = expand(values)
    if isinstance(values, Nulls):
        return RowZeroBits() if bits == 1 else RowZeros(bits // 8)
    if bits == 1 and isinstance(values, Fixed) and values.bits == 8:  # A constant boolean is stored in a byte.
        values = Fixed((values.data & 1).view(np.uint8), 1, values.count)
    if not isinstance(values, Fixed) or values.bits != bits:
        actual = f"{values.bits} bits" if isinstance(values, Fixed) else type(values).__name__
        raise damaged(f"a page of {kind} holds values of {actual}")
    return RowBits.of(values.data) if bits == 1 else RowValues(values.data, values.width)


def _bits(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_binary(kind):
        return 8 * int(kind.byte_width)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return int(kind.bit_width)
    raise damaged(f"a page cannot hold values of type {kind}")


def _lists(kind: pa.DataType, values: Values) -> list[RowBuffer]:
    size = int(kind.list_size)
    if pa.types.is_null(kind.value_type):
        return []
    if isinstance(values, Nulls):
        values = FixedLists(Nulls(values.count * size), size, None, values.count)
    if not isinstance(values, FixedLists) or values.dimension != size:
        raise damaged(f"a page of {kind} holds other values")
    buffers = [RowBits.of(values.validity), *_buffers(kind.value_type, values.items)]
    return [RowItems(buffer, size) for buffer in buffers]


def _has_values(kind: pa.DataType) -> bool:
    """Whether rows of the type hold values: the null type and structs without fields do not."""
    return not pa.types.is_null(kind) and not (pa.types.is_struct(kind) and not kind.num_fields)


def _fields(kind: pa.DataType, values: Values) -> list[RowBuffer]:
    """The buffers of a packed struct, whose rows have all fields."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    widths = [_bits(field.type) for field in fields]
    if any(bits % 8 for bits in widths):
        raise damaged(f"a packed page of {kind}")
    if isinstance(values, Nulls):
        values = Fixed(zeros(values.count * sum(widths) // 8), sum(widths), values.count)
    if not isinstance(values, Fixed) or values.bits != sum(widths):
        raise damaged(f"a packed page of {kind} has rows of another width")
    matrix = values.data.reshape(values.count, values.width)
    buffers: list[RowBuffer] = []
    at = 0
    for bits in widths:
        buffers += [RowBits(None), RowField(matrix, at, bits // 8)]
        at += bits // 8
    return buffers


def _indices(kind: pa.DataType, values: Values) -> RowBuffer:
    width = int(kind.bit_width) // 8
    if isinstance(values, Nulls):
        return RowZeros(width)
    if not isinstance(values, Coded):
        raise damaged("a page of a dictionary type holds no indices")
    if values.indices.size and int(values.indices.max()) > np.iinfo(kind.to_pandas_dtype()).max:
        raise damaged(f"an index into a dictionary that {kind} cannot hold")
    return RowValues(values.indices.astype(np.dtype(f"<u{width}")).view(np.uint8), width)


# --- arrays -----------------------------------------------------------------------------------------------------------

# These parts of a batch are built page by page and then concatenated.
CONCATENATED = (
    "offsets and validity of lists and maps",
    "validity of structs",
    "dictionaries that differ from page to page, of columns of a dictionary type",
)


def leaves(field: Field) -> Iterator[Field]:
    """The leaves of a field: the fields that have a column of their own, in the order of the columns."""
    if is_leaf(field):
        yield field
        return
    if not (field.is_struct or field.is_list or field.is_map):
        raise Unsupported(f"field {field.name!r}: a fixed-size list of structs is not supported in version 2.1 or 2.2")
    for child in field.children:
        yield from leaves(child)


def is_leaf(field: Field) -> bool:
    """Whether the whole field is stored in one column."""
    return field.is_one_column((2, 1))


def assemble_field(field: Field, rows: int, decoded_parts: Iterator[Iterable[DecodedRows]]) -> pa.Array:
    """The array of a top-level field, ``rows`` long. ``decoded_parts`` has the decoded rows of each leaf, in order."""
    array, unravelers = _assemble(field, decoded_parts, rows)
    if len(array) != rows:
        raise damaged(f"{rows} rows of field {field.name!r} give {len(array)} values")
    if any(unraveler.has_more for unraveler in unravelers):
        raise damaged(f"a page has more layers than field {field.name!r}")
    return array


def _assemble(
    field: Field, decoded_parts: Iterator[Iterable[DecodedRows]], rows: int
) -> tuple[pa.Array, list[Unraveler]]:
    if is_leaf(field):
        return _leaf(field, next(decoded_parts), rows)
    if field.is_struct:
        return _struct(field, decoded_parts, rows)
    return _list(field, decoded_parts, rows)


def _leaf(field: Field, parts_of_leaf: Iterable[DecodedRows], rows: int) -> tuple[pa.Array, list[Unraveler]]:
    kind = field.arrow.type
    if offset_bytes(kind):
        return _text_leaf(kind, parts_of_leaf, rows)
    decoded_parts = list(parts_of_leaf)
    if pa.types.is_struct(kind) and not kind.num_fields:
        # A struct without fields: writers store its rows as nulls without the layers around them, but mean valid rows.
        count = sum(decoded.values.count for decoded in decoded_parts)
        return pa.Array.from_buffers(kind, count, [None]), []
    nulls = sum(decoded.values.count for decoded in decoded_parts if is_void(decoded.values))
    check_nulls(nulls * null_bits(kind) // 8)
    unravelers = [decoded.unraveler() for decoded in decoded_parts]
    pieces: list[PageRows[AnyPage]] = []
    for decoded, unraveler in zip(decoded_parts, unravelers, strict=True):
        count, validity = unraveler.validity()
        if count != decoded.values.count:
            raise damaged(f"{count} levels stand beside {decoded.values.count} values")
        leaf = LeafRows(kind, decoded.values, validity)
        pieces.append(PageRows(leaf, 0, leaf.rows))
    if pa.types.is_dictionary(kind):
        return dictionary(kind, pieces, _dictionaries(kind, decoded_parts)), unravelers
    return assemble(kind, pieces), unravelers


def _text_leaf(kind: pa.DataType, decoded_parts: Iterable[DecodedRows], rows: int) -> tuple[pa.Array, list[Unraveler]]:
    """The array of a leaf of texts. Each part is copied into the common destination before the next one is decoded."""
    unravelers: list[Unraveler] = []
    flags: list[Flags | None] = []
    counts: list[int] = []
    nulls = 0
    destination: StringBuilder | None = None
    alone: Values | None = None
    for decoded in decoded_parts:
        values = decoded.values
        unraveler = decoded.unraveler()
        count, validity = unraveler.validity()
        if count != values.count:
            raise damaged(f"{count} levels stand beside {values.count} values")
        nulls += count if is_void(values) else 0
        check_nulls(nulls * null_bits(kind) // 8)
        if is_void(values) and validity is None:
            validity = np.zeros(count, bool)
        unravelers.append(unraveler)
        flags.append(validity)
        counts.append(count)
        if len(counts) == 1:
            alone = values
            continue
        if destination is None:
            assert alone is not None
            destination = StringBuilder()
            destination.append(alone, counts[0] / max(1, rows))
            alone = None
        destination.append(values, counts[0] / max(1, rows))
    whole = alone if destination is None else destination.finish()
    assert whole is not None
    leaf = LeafRows(kind, whole, concatenated(flags, counts))
    pieces: list[PageRows[AnyPage]] = [PageRows(leaf, 0, leaf.rows)]
    return assemble(kind, pieces), unravelers


def _dictionaries(kind: pa.DataType, decoded_parts: Sequence[DecodedRows]) -> list[pa.Array]:
    """The dictionary of each part. Parts of one page share a dictionary."""
    of_page: dict[int, pa.Array] = {}
    dictionaries: list[pa.Array] = []
    for decoded in decoded_parts:
        key = id(decoded.values.dictionary) if isinstance(decoded.values, Coded) else 0
        if key not in of_page:
            of_page[key] = _dictionary(kind, decoded)
        dictionaries.append(of_page[key])
    return dictionaries


def _dictionary(kind: pa.DataType, decoded: DecodedRows) -> pa.Array:
    """The dictionary of the indices of a page."""
    values = decoded.values
    if isinstance(values, Nulls):
        return pa.nulls(1, kind.value_type)  # Rows without a value have index 0.
    if not isinstance(values, Coded):
        raise damaged("a page of a dictionary type holds no indices")
    rows = LeafRows(kind.value_type, values.dictionary, None)
    array: pa.Array = assemble(kind.value_type, [PageRows(rows, 0, rows.rows)])
    return array


def _struct(
    field: Field, decoded_parts: Iterator[Iterable[DecodedRows]], batch_rows: int
) -> tuple[pa.Array, list[Unraveler]]:
    children: list[pa.Array] = []
    first: list[Unraveler] = []
    for child in field.children:
        array, unravelers = _assemble(child, decoded_parts, batch_rows)
        first = first or unravelers
        children.append(array)
    rows = len(children[0])
    if any(len(child) != rows for child in children):
        raise damaged(f"the fields of struct {field.name!r} have different numbers of rows")
    if not first:
        return pa.Array.from_buffers(field.arrow.type, rows, [None], children=children), []
    parts = [unraveler.validity() for unraveler in first]
    if sum(count for count, _ in parts) != rows:
        raise damaged(f"struct {field.name!r} has {rows} rows, and its levels say otherwise")
    validity = RowBits.of(concatenated([flags for _, flags in parts], [count for count, _ in parts]))
    return pa.Array.from_buffers(field.arrow.type, rows, [arrow_buffer(validity.bits)], children=children), first


def _list(field: Field, decoded_parts: Iterator[Iterable[DecodedRows]], rows: int) -> tuple[pa.Array, list[Unraveler]]:
    items, unravelers = _assemble(field.children[0], decoded_parts, rows)
    parts = [unraveler.lists() for unraveler in unravelers]
    counts = [offsets.size - 1 for offsets, _ in parts]
    validity = RowBits.of(concatenated([flags for _, flags in parts], counts))
    kind = field.arrow.type
    width = 8 if pa.types.is_large_list(kind) else 4
    total = sum(int(offsets[-1]) for offsets, _ in parts)
    if total != len(items):
        raise damaged(f"the lists of field {field.name!r} hold {total} items, and there are {len(items)}")
    check_offsets(total, width)
    buffers = [arrow_buffer(validity.bits), arrow_buffer(_joined_offsets([offsets for offsets, _ in parts], width))]
    return pa.Array.from_buffers(kind, sum(counts), buffers, children=[items]), unravelers


def _joined_offsets(parts: Sequence[Positions], width: int) -> Slice:
    """The offsets of all parts as one array of numbers of ``width`` bytes."""
    rows = sum(part.size - 1 for part in parts)
    joined = new_offsets(rows, width)
    base, at = 0, 1
    for part in parts:
        np.add(part[1:], base, out=joined[at : at + part.size - 1], casting="unsafe")
        base, at = base + int(part[-1]), at + part.size - 1
    return joined
