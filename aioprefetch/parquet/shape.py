"""What the bytes of a footer claim, looked through before pyarrow builds anything from them.

A footer of a few bytes may claim lists of millions, or nest groups until a parser that calls itself runs out of stack.
Here the schema is walked element by element and the number of row groups held against the bytes that are there; then
no list that pyarrow is allowed to make is longer than what was found. It costs microseconds per column, however many
row groups there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from aioprefetch.parquet import thrift

# Groups of a schema lie in one another this deep at most. pyarrow calls itself once for each level; 26 stops at 100.
SCHEMA_DEPTH_MAX = 96
# Leaves and groups of one schema. The widest tables that are known have some ten thousand columns.
SCHEMA_ELEMENTS_MAX = 250_000
# Names of all paths together: what bounds a wide schema that is deep as well.
SCHEMA_NAMES_MAX = 4_000_000

# Lists that are no schema and no row groups (key-value pairs, encodings, …) have this many elements at most.
_OTHER_LIST_MAX = 4096
# The fewest bytes that a row group, and a column chunk within one, can be written in.
_ROW_GROUP_BYTES_MIN = 7
_CHUNK_BYTES_MIN = 21

_REPEATED = 2
_INTEGERS = (thrift.I16, thrift.I32, thrift.I64)


@dataclass(frozen=True, slots=True)
class Shape:
    """The leaves of a schema in order, and how many row groups are claimed.

    ``paths`` are the names from the top-level column down. ``physical_types`` are Parquet's numbers, and ``positions``
    where the element of each leaf begins in the footer. ``max_definitions`` and ``max_repetitions`` are the levels of
    each leaf. ``list_max`` is the longest list that an honest footer of this shape holds.
    """

    paths: list[tuple[str, ...]]
    physical_types: list[int]
    positions: list[int]
    max_definitions: list[int]
    max_repetitions: list[int]
    row_groups: int
    list_max: int


@dataclass(slots=True)
class _Element:
    """What a SchemaElement says, as far as the shape depends on it."""

    position: int
    name: str = ""
    physical_type: int | None = None
    repetition: int = 0
    children: int = 0


@dataclass(slots=True)
class _Group:
    """A group whose children are being walked."""

    path: tuple[str, ...]
    definition: int
    repetition: int
    left: int


def shape_of(raw: bytes | memoryview) -> Shape:
    """The shape of a FileMetaData. Raises ``MalformedThrift`` for bytes that cannot be one."""
    elements: list[_Element] | None = None
    row_groups: int | None = None
    row_groups_at = pairs = 0
    for kind, number, position in fields_of(raw, 0):
        if number not in (2, 4, 5):
            continue
        if kind != thrift.LIST:
            raise thrift.MalformedThrift(f"field {number} of the footer is no list")
        _, count, position = thrift.read_list_header(raw, position)
        if number == 2:
            elements = _elements(raw, count, position)
        elif number == 4:
            row_groups, row_groups_at = count, position
        else:
            pairs = count
        if elements is not None and row_groups is not None:
            break  # What follows is bounded by list_max; the row groups are too many to be walked.
    if elements is None or row_groups is None:
        raise thrift.MalformedThrift("the footer has no schema or no row groups")
    shape = _flatten(elements)
    smallest = _ROW_GROUP_BYTES_MIN + _CHUNK_BYTES_MIN * len(shape.paths)
    if row_groups * smallest > len(raw) - row_groups_at:
        raise thrift.MalformedThrift(
            f"{row_groups} row groups of {len(shape.paths)} columns do not fit into {len(raw) - row_groups_at} bytes"
        )
    shape_max = max(_OTHER_LIST_MAX, len(elements), row_groups, pairs)
    return replace(shape, row_groups=row_groups, list_max=shape_max)


def fields_of(raw: bytes | memoryview, position: int) -> Iterator[tuple[int, int, int]]:
    """Type, id and start of the value of each field of the struct at ``position``; values are skipped over."""
    before = 0
    while True:
        kind, before, position = thrift.read_field_header(raw, position, before)
        if kind == 0:
            return
        yield kind, before, position
        position = thrift.skip_value(raw, position, kind)


def _elements(raw: bytes | memoryview, count: int, position: int) -> list[_Element]:
    if not 0 < count <= SCHEMA_ELEMENTS_MAX:
        raise thrift.MalformedThrift(f"a schema of {count} elements; 1 to {SCHEMA_ELEMENTS_MAX} are read")
    found = []
    for _ in range(count):
        element, position = _element(raw, position)
        found.append(element)
    return found


def _element(raw: bytes | memoryview, position: int) -> tuple[_Element, int]:
    element, before = _Element(position), 0
    while True:
        kind, before, position = thrift.read_field_header(raw, position, before)
        if kind == 0:
            return element, position
        if before == 4 and kind == thrift.BINARY:
            name, position = thrift.read_value(raw, position, kind)
            element.name = name.decode("utf-8", "replace")
        elif before in (1, 3, 5) and kind in _INTEGERS:
            number, position = thrift.read_value(raw, position, kind)
            if before == 1:
                element.physical_type = number
            elif before == 3:
                element.repetition = number
            else:
                element.children = number
        else:
            position = thrift.skip_value(raw, position, kind)


def _flatten(elements: list[_Element]) -> Shape:
    """The leaves of the tree that the elements are in depth-first order."""
    shape = Shape([], [], [], [], [], 0, 0)
    root = elements[0]
    open_groups = [_Group((), 0, 0, root.children)]
    names = 0
    for element in elements[1:]:
        while open_groups and open_groups[-1].left == 0:
            open_groups.pop()
        if not open_groups:
            raise thrift.MalformedThrift("the schema has more elements than its groups have children")
        group = open_groups[-1]
        group.left -= 1
        if not 0 <= element.children < len(elements):
            raise thrift.MalformedThrift(f"{element.name!r} claims {element.children} children")
        path = (*group.path, element.name)
        definition = group.definition + (element.repetition != 0)
        repetition = group.repetition + (element.repetition == _REPEATED)
        names += len(path)
        if element.children or element.physical_type is None:
            if len(path) > SCHEMA_DEPTH_MAX or names > SCHEMA_NAMES_MAX:
                raise thrift.MalformedThrift(f"the schema nests more than {SCHEMA_DEPTH_MAX} deep, or too widely")
            open_groups.append(_Group(path, definition, repetition, element.children))
        else:
            shape.paths.append(path)
            shape.physical_types.append(element.physical_type)
            shape.positions.append(element.position)
            shape.max_definitions.append(definition)
            shape.max_repetitions.append(repetition)
    if any(group.left for group in open_groups):
        raise thrift.MalformedThrift("the schema has fewer elements than its groups have children")
    return shape
