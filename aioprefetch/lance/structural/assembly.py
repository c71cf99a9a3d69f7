"""Decoded rows of the leaves of a field, put together as one Arrow array.

The values of a leaf are written into one destination for the rows of all pages (``aioprefetch.lance.output``).
``CONCATENATED`` lists the exceptions.

The texts of a batch are appended to one ``StringBuilder``, and the decoded part is freed after each append.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.lance.output import AnyPage, assemble, dictionary, null_bits, offset_bytes
from aioprefetch.lance.physical.protocols import (
    Capacity,
    OutputBuffer,
    PageRows,
    Slice,
    allocate,
    check_nulls,
    check_offsets,
    check_size,
    packed,
    zeros,
)
from aioprefetch.lance.schema import Field
from aioprefetch.lance.structural.decoded_rows import DecodedRows, Unraveler, concatenated
from aioprefetch.lance.structural.values import (
    Bytes,
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
    """The values of a text column, with dictionary codes expanded. ``UntrustedMetadata`` for numbers."""
    if isinstance(values, Coded):
        values = expand(values)
    if isinstance(values, Nulls):
        return Texts(np.zeros(0, np.uint8), np.zeros(values.count + 1, np.int64))
    if not isinstance(values, Texts):
        raise damaged("a page of texts holds values of a fixed width")
    return values


class _Bits:
    """Flags, ``per_row`` for each row. ``None`` stands for flags that are all true and need no buffer."""

    def __init__(self, flags: Flags | Bytes | None, per_row: int) -> None:
        self._flags = flags
        self._per_row = per_row

    def need(self, rows: int, capacity: Capacity) -> None:
        capacity.size += rows * self._per_row
        capacity.is_needed |= self._flags is not None

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        count = rows * self._per_row
        if self._flags is None:
            target.fill_bits(True, count)
        else:
            target.put_bits(packed(self._cut(skip, rows)), 0, count)

    def slice(self, skip: int, rows: int) -> Slice | None:
        if self._flags is None:
            return None
        bits = packed(self._cut(skip, rows))
        memory = allocate(bits.size)  # In Arrow's memory, aligned to 64 bytes.
        memory[:] = bits
        return memory

    def _cut(self, skip: int, rows: int) -> npt.NDArray[Any]:
        assert self._flags is not None
        return self._flags[skip * self._per_row : (skip + rows) * self._per_row]


class _Fixed:
    """A buffer that is there in every batch, with ``width`` bytes or bits for each row."""

    def __init__(self, width: int) -> None:
        self._width = width

    def need(self, rows: int, capacity: Capacity) -> None:
        capacity.size += rows * self._width
        capacity.is_needed = True


class _Bytes(_Fixed):
    """Fixed-width values, ``width`` bytes for each row."""

    def __init__(self, data: Bytes, width: int) -> None:
        super().__init__(width)
        self._data = data

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        target.part(rows * self._width)[:] = self.slice(skip, rows)

    def slice(self, skip: int, rows: int) -> Slice:
        return self._data[skip * self._width : (skip + rows) * self._width]


class _Zeros(_Fixed):
    """Zeros in place of the values of null rows, ``width`` bytes each."""

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        target.part(rows * self._width)[:] = 0

    def slice(self, skip: int, rows: int) -> Slice:
        return zeros(rows * self._width)


class _ZeroBits(_Fixed):
    """Zeros in place of the flags of null rows, ``width`` each."""

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        target.fill_bits(False, rows * self._width)

    def slice(self, skip: int, rows: int) -> Slice:
        return zeros((rows * self._width + 7) // 8)


class _Offsets:
    """Offsets of texts, numbers of ``width`` bytes that continue those of the page before; a row has ``per_row``."""

    def __init__(self, offsets: Positions, width: int, per_row: int) -> None:
        self._offsets = offsets
        self._width = width
        self._per_row = per_row

    def need(self, rows: int, capacity: Capacity) -> None:
        capacity.size += rows * self._per_row
        capacity.is_needed = True

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        base = int(target.memory[target.position - 1])
        part = self._cut(skip, rows)
        check_offsets(base + int(part[-1] - part[0]), self._width)
        np.add(part[1:], base - int(part[0]), out=target.part(part.size - 1), casting="unsafe")

    def _cut(self, skip: int, rows: int) -> Positions:
        return self._offsets[skip * self._per_row : (skip + rows) * self._per_row + 1]

    def slice(self, skip: int, rows: int) -> Slice:
        part = self._cut(skip, rows)
        check_offsets(int(part[-1] - part[0]), self._width)
        moved: Slice = allocate(part.size * self._width).view(np.int32 if self._width == 4 else np.int64)
        np.subtract(part, part[0], out=moved, casting="unsafe")
        return moved


class _Text:
    """The bytes of texts, ``per_row`` for each row."""

    def __init__(self, texts: Texts, per_row: int) -> None:
        self._data = texts.data
        self._ends = texts.offsets[::per_row]

    def need(self, skip: int, rows: int, capacity: Capacity) -> None:
        capacity.size += int(self._ends[skip + rows] - self._ends[skip])
        capacity.is_needed = True

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        data = self.slice(skip, rows)
        target.part(data.size)[:] = data

    def slice(self, skip: int, rows: int) -> Slice:
        return self._data[int(self._ends[skip]) : int(self._ends[skip + rows])]


_RowBuffer = _Bits | _ZeroBits | _Bytes | _Zeros | _Offsets | _Text


class LeafRows:
    """``PhysicalPageDecoder`` of decoded values and their validity, of Arrow type ``kind``.

    Its buffers are those of ``output.layout(kind)``, for a dictionary type those of its indices. ``UntrustedMetadata``
    if the values are not of that type.
    """

    def __init__(self, kind: pa.DataType, values: Values, validity: Flags | None) -> None:
        self.rows = values.count
        if validity is not None and validity.size != values.count:
            raise damaged(f"{values.count} values with {validity.size} flags of validity")
        if isinstance(values, Nulls) and validity is None and _has_values(kind):
            validity = np.zeros(values.count, bool)
        self._parts: list[_RowBuffer] = []
        if not pa.types.is_null(kind):
            self._parts.append(_Bits(validity, 1))
        if _has_values(kind):
            _add(self._parts, kind, values, 1)

    def size_bytes(self, skip: int, rows: int) -> int:
        capacities = [Capacity() for _ in self._parts]
        self.update_capacity(skip, rows, capacities)
        return sum(capacity.size for capacity in capacities)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        for part, capacity in zip(self._parts, capacities, strict=True):
            if isinstance(part, _Text):
                part.need(skip, rows, capacity)
            else:
                part.need(rows, capacity)

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        for part, target in zip(self._parts, targets, strict=True):
            if target is not None:
                part.write(skip, rows, target)

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None]:
        return [part.slice(skip, rows) for part in self._parts]


def _add(parts: list[_RowBuffer], kind: pa.DataType, values: Values, per_row: int) -> None:
    """Append the buffers of values, without the validity of the rows. A row has ``per_row`` values."""
    if pa.types.is_dictionary(kind):
        _add_indices(parts, kind.index_type, values)
    elif pa.types.is_fixed_size_list(kind):
        _add_lists(parts, kind, values, per_row)
    elif pa.types.is_struct(kind):
        _add_packed(parts, kind, values, per_row)
    elif width := offset_bytes(kind):
        _add_texts(parts, values, width, per_row)
    else:
        _add_fixed(parts, kind, values, per_row)


def _add_fixed(parts: list[_RowBuffer], kind: pa.DataType, values: Values, per_row: int) -> None:
    bits = _bits(kind)
    if isinstance(values, Coded):
        values = expand(values)
    if isinstance(values, Nulls):
        parts.append(_ZeroBits(per_row) if bits == 1 else _Zeros(per_row * bits // 8))
        return
    if bits == 1 and isinstance(values, Fixed) and values.bits == 8:  # A constant boolean is stored in a byte.
        values = Fixed((values.data & 1).view(np.uint8), 1, values.count)
    if not isinstance(values, Fixed) or values.bits != bits:
        actual = f"{values.bits} bits" if isinstance(values, Fixed) else type(values).__name__
        raise damaged(f"a page of {kind} holds values of {actual}")
    parts.append(_Bits(values.data, per_row) if bits == 1 else _Bytes(values.data, per_row * values.width))


def _bits(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_binary(kind):
        return 8 * int(kind.byte_width)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return int(kind.bit_width)
    raise damaged(f"a page cannot hold values of type {kind}")


def _add_texts(parts: list[_RowBuffer], values: Values, width: int, per_row: int) -> None:
    texts = as_texts(Nulls(values.count * per_row) if isinstance(values, Nulls) else values)
    if (texts.offsets.size - 1) % per_row:
        raise damaged(f"{texts.offsets.size - 1} texts do not make lists of {per_row}")
    parts += [_Offsets(texts.offsets, width, per_row), _Text(texts, per_row)]


def _add_lists(parts: list[_RowBuffer], kind: pa.DataType, values: Values, per_row: int) -> None:
    size = int(kind.list_size)
    if pa.types.is_null(kind.value_type):
        return
    if isinstance(values, Nulls):
        parts.append(_Bits(None, per_row * size))
        _add(parts, kind.value_type, values, per_row * size)
        return
    if not isinstance(values, FixedLists) or values.dimension != size:
        raise damaged(f"a page of {kind} holds other values")
    parts.append(_Bits(values.validity, per_row * size))
    _add(parts, kind.value_type, values.items, per_row * size)


def _has_values(kind: pa.DataType) -> bool:
    """Whether rows of the type hold values: not those of the null type, nor of a struct without fields."""
    return not pa.types.is_null(kind) and not (pa.types.is_struct(kind) and not kind.num_fields)


def _add_packed(parts: list[_RowBuffer], kind: pa.DataType, values: Values, per_row: int) -> None:
    """Append the buffers of a packed struct: its rows are split into one column for each field."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    widths = [_bits(field.type) for field in fields]
    if any(bits % 8 for bits in widths):
        raise damaged(f"a packed page of {kind}")
    if isinstance(values, Nulls):
        values = Fixed(zeros(values.count * sum(widths) // 8), sum(widths), values.count)
    if not isinstance(values, Fixed) or values.bits != sum(widths):
        raise damaged(f"a packed page of {kind} has rows of another width")
    rows = values.data.reshape(values.count, values.width)
    at = 0
    for field, bits in zip(fields, widths, strict=True):
        column = np.ascontiguousarray(rows[:, at : at + bits // 8]).reshape(-1)
        parts.append(_Bits(None, per_row))
        _add(parts, field.type, Fixed(column, bits, values.count), per_row)
        at += bits // 8


def _add_indices(parts: list[_RowBuffer], kind: pa.DataType, values: Values) -> None:
    width = int(kind.bit_width) // 8
    if isinstance(values, Nulls):
        parts.append(_Zeros(width))
        return
    if not isinstance(values, Coded):
        raise damaged("a page of a dictionary type holds no indices")
    if values.indices.size and int(values.indices.max()) > np.iinfo(kind.to_pandas_dtype()).max:
        raise damaged(f"an index into a dictionary that {kind} cannot hold")
    parts.append(_Bytes(values.indices.astype(np.dtype(f"<u{width}")).view(np.uint8), width))


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
    validity = concatenated([flags for _, flags in parts], [count for count, _ in parts])
    return pa.Array.from_buffers(field.arrow.type, rows, [_bitmap(validity)], children=children), first


def _list(field: Field, decoded_parts: Iterator[Iterable[DecodedRows]], rows: int) -> tuple[pa.Array, list[Unraveler]]:
    items, unravelers = _assemble(field.children[0], decoded_parts, rows)
    parts = [unraveler.lists() for unraveler in unravelers]
    counts = [offsets.size - 1 for offsets, _ in parts]
    validity = concatenated([flags for _, flags in parts], counts)
    kind = field.arrow.type
    width = 8 if pa.types.is_large_list(kind) else 4
    total = sum(int(offsets[-1]) for offsets, _ in parts)
    if total != len(items):
        raise damaged(f"the lists of field {field.name!r} hold {total} items, and there are {len(items)}")
    check_offsets(total, width)
    stored = pa.py_buffer(_joined_offsets([offsets for offsets, _ in parts], width))
    return pa.Array.from_buffers(kind, sum(counts), [_bitmap(validity), stored], children=[items]), unravelers


def _joined_offsets(parts: Sequence[Positions], width: int) -> Slice:
    """The offsets of all parts as one array of numbers of ``width`` bytes."""
    rows = sum(part.size - 1 for part in parts)
    joined = allocate((rows + 1) * width).view(np.int32 if width == 4 else np.int64)
    joined[0] = 0
    base, at = 0, 1
    for part in parts:
        np.add(part[1:], base, out=joined[at : at + part.size - 1], casting="unsafe")
        base, at = base + int(part[-1]), at + part.size - 1
    return joined


def _bitmap(validity: Flags | None) -> pa.Buffer | None:
    return None if validity is None else pa.py_buffer(packed(validity))
