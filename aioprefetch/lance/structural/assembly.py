"""Decoded rows of the leaves of a field, put together as one Arrow array.

Values of leaves are bridged: one destination for the rows of all pages (see ``aioprefetch.lance.output``). What is
concatenated instead is named in ``CONCATENATED``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.lance.output import AnyPage, assemble, dictionary, null_bits, offset_bytes
from aioprefetch.lance.physical.memory import allocate, check_offsets, packed
from aioprefetch.lance.physical.protocols import Piece, Slice
from aioprefetch.lance.schema import Field
from aioprefetch.lance.structural.buffers import Flags, Positions, damaged
from aioprefetch.lance.structural.leaf_rows import LeafRows, StringBuilder
from aioprefetch.lance.structural.levels import Unraveler, concatenated
from aioprefetch.lance.structural.segment import Segment
from aioprefetch.lance.structural.values import Coded, Nulls, Values, is_void

# Types whose parts of a batch are made page by page and then concatenated.
CONCATENATED = (
    "offsets and validity of lists and maps",
    "validity of structs",
    "dictionaries that differ from page to page, of columns of a dictionary type",
)

# The maximum memory for nulls of one column of a batch if the file has no byte for each of them.
NULL_BYTES_MAX = 256 << 20


def leaves(field: Field) -> Iterator[Field]:
    """The fields of a tree that have a column of their own, in the order of the columns."""
    if is_leaf(field):
        yield field
        return
    if not (field.is_struct or field.is_list or field.is_map):
        raise Unsupported(f"field {field.name!r}: a fixed-size list of structs is not supported in version 2.1 or 2.2")
    for child in field.children:
        yield from leaves(child)


def is_leaf(field: Field) -> bool:
    """Whether one column holds all of the field."""
    return field.is_one_column((2, 1))


def assemble_field(field: Field, rows: int, segments: Iterator[Iterable[Segment]]) -> pa.Array:
    """The array of a top-level field, ``rows`` long. ``segments``: of each leaf in order, the pieces of its rows."""
    array, unravelers = _assemble(field, segments, rows)
    if len(array) != rows:
        raise damaged(f"{rows} rows of field {field.name!r} give {len(array)} values")
    if any(unraveler.has_more for unraveler in unravelers):
        raise damaged(f"a page has more layers than field {field.name!r}")
    return array


def _assemble(field: Field, segments: Iterator[Iterable[Segment]], rows: int) -> tuple[pa.Array, list[Unraveler]]:
    if is_leaf(field):
        return _leaf(field, next(segments), rows)
    if field.is_struct:
        return _struct(field, segments, rows)
    return _list(field, segments, rows)


def _leaf(field: Field, pieces_of_leaf: Iterable[Segment], rows: int) -> tuple[pa.Array, list[Unraveler]]:
    kind = field.arrow.type
    if offset_bytes(kind):
        return _text_leaf(kind, pieces_of_leaf, rows)
    segments = list(pieces_of_leaf)
    if pa.types.is_struct(kind) and not kind.num_fields:
        # Its rows hold nothing. Writers store them as null and without the layers around them, and mean valid ones.
        count = sum(segment.values.count for segment in segments)
        return pa.Array.from_buffers(kind, count, [None]), []
    _check_nulls(kind, sum(segment.values.count for segment in segments if is_void(segment.values)))
    unravelers = [segment.unraveler() for segment in segments]
    pieces: list[Piece[AnyPage]] = []
    for segment, unraveler in zip(segments, unravelers, strict=True):
        count, validity = unraveler.validity()
        if count != segment.values.count:
            raise damaged(f"{count} levels stand beside {segment.values.count} values")
        leaf = LeafRows(kind, segment.values, validity)
        pieces.append(Piece(leaf, 0, leaf.rows))
    if pa.types.is_dictionary(kind):
        return dictionary(kind, pieces, _dictionaries(kind, segments)), unravelers
    return assemble(kind, pieces), unravelers


def _text_leaf(kind: pa.DataType, segments: Iterable[Segment], rows: int) -> tuple[pa.Array, list[Unraveler]]:
    """The result of ``_leaf`` for texts: each piece is decoded into the common destination before the next one."""
    unravelers: list[Unraveler] = []
    flags: list[Flags | None] = []
    counts: list[int] = []
    nulls = 0
    destination: StringBuilder | None = None
    alone: Values | None = None
    for segment in segments:
        values = segment.values
        unraveler = segment.unraveler()
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
    pieces: list[Piece[AnyPage]] = [Piece(leaf, 0, leaf.rows)]
    return assemble(kind, pieces), unravelers


def _check_nulls(kind: pa.DataType, count: int) -> None:
    """``Unsupported`` when ``count`` values that no byte of the file stands for take too much memory."""
    size = count * null_bits(kind) // 8
    if size > NULL_BYTES_MAX:
        raise Unsupported(f"nulls of one column of a batch take {size} bytes: ask for fewer rows a batch")


def _dictionaries(kind: pa.DataType, segments: Sequence[Segment]) -> list[pa.Array]:
    """The dictionary of each segment; those of one page share it."""
    made: dict[int, pa.Array] = {}
    found: list[pa.Array] = []
    for segment in segments:
        key = id(segment.values.dictionary) if isinstance(segment.values, Coded) else 0
        if key not in made:
            made[key] = _dictionary(kind, segment)
        found.append(made[key])
    return found


def _dictionary(kind: pa.DataType, segment: Segment) -> pa.Array:
    """The dictionary of the indices of a page."""
    values = segment.values
    if isinstance(values, Nulls):
        return pa.nulls(1, kind.value_type)  # Rows without a value have index 0.
    if not isinstance(values, Coded):
        raise damaged("a page of a dictionary type holds no indices")
    rows = LeafRows(kind.value_type, values.dictionary, None)
    array: pa.Array = assemble(kind.value_type, [Piece(rows, 0, rows.rows)])
    return array


def _struct(field: Field, segments: Iterator[Iterable[Segment]], wanted: int) -> tuple[pa.Array, list[Unraveler]]:
    children: list[pa.Array] = []
    first: list[Unraveler] = []
    for child in field.children:
        array, unravelers = _assemble(child, segments, wanted)
        first = first or unravelers
        children.append(array)
    rows = len(children[0])
    if any(len(child) != rows for child in children):
        raise damaged(f"the fields of struct {field.name!r} have different numbers of rows")
    if not first:
        return pa.Array.from_buffers(field.arrow.type, rows, [None], children=children), []
    parts = [one.validity() for one in first]
    if sum(count for count, _ in parts) != rows:
        raise damaged(f"struct {field.name!r} has {rows} rows, and its levels say otherwise")
    validity = concatenated([flags for _, flags in parts], [count for count, _ in parts])
    return pa.Array.from_buffers(field.arrow.type, rows, [_bitmap(validity)], children=children), first


def _list(field: Field, segments: Iterator[Iterable[Segment]], rows: int) -> tuple[pa.Array, list[Unraveler]]:
    items, unravelers = _assemble(field.children[0], segments, rows)
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
    """Offsets that go on from part to part, each written once, of ``width`` bytes."""
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
