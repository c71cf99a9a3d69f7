"""Decoded rows of the leaves of a field, put together as one Arrow array.

The values of a leaf are written into one destination for the rows of all pages (``aioprefetch.lance.output``).
``CONCATENATED`` lists the exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.lance.output import AnyPage, assemble, dictionary, null_bits, offset_bytes
from aioprefetch.lance.physical.memory import allocate, check_offsets, packed
from aioprefetch.lance.physical.protocols import PageRows, Slice
from aioprefetch.lance.schema import Field
from aioprefetch.lance.structural.buffers import Flags, Positions, damaged
from aioprefetch.lance.structural.decoded_rows import DecodedRows
from aioprefetch.lance.structural.leaf_rows import LeafRows, StringBuilder
from aioprefetch.lance.structural.levels import Unraveler, concatenated
from aioprefetch.lance.structural.values import Coded, Nulls, Values, is_void

# These parts of a batch are built page by page and then concatenated.
CONCATENATED = (
    "offsets and validity of lists and maps",
    "validity of structs",
    "dictionaries that differ from page to page, of columns of a dictionary type",
)

# The maximum memory for the nulls of one column of a batch: a file can claim any number of nulls without storing a
# byte.
NULL_BYTES_MAX = 256 << 20


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
    _check_nulls(kind, sum(decoded.values.count for decoded in decoded_parts if is_void(decoded.values)))
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
        _check_nulls(kind, nulls)
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


def _check_nulls(kind: pa.DataType, count: int) -> None:
    """Raise ``Unsupported`` if ``count`` nulls take more than ``NULL_BYTES_MAX``."""
    size = count * null_bits(kind) // 8
    if size > NULL_BYTES_MAX:
        raise Unsupported(f"nulls of one column of a batch take {size} bytes: ask for fewer rows a batch")


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
