"""The layout of a Parquet file, from the footer's own bytes: the leaves of its schema, and the place of each chunk.

The look-ahead of readers needs it without pyarrow: bytes that are wrong or not understood raise ``ValueError``, and the
reader looks ahead without a layout. The scans need it before pyarrow builds anything. A footer of a few bytes may claim
lists of millions, or nest groups until a recursive parser runs out of stack: the schema is walked element by element,
the row groups must fit into the bytes that are there, and pyarrow may then build no list that is longer than the ones
found here.

pyarrow has the numbers of the column chunks too, but it ends the process when it is asked for some values that a
hostile footer can hold, and it does not expose the places of the page indexes. A footer has a ColumnChunk for each leaf
of each row group, tens of thousands at times. The form that all known writers use is matched by one pattern, in C; any
other form is read field by field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from aioprefetch.parquet import thrift
from aioprefetch.ranges import Range

# The maximum depth of groups within groups. pyarrow calls itself once for each level; version 26 stops at 100.
SCHEMA_DEPTH_MAX = 96
# The maximum number of leaves and groups of one schema. The widest known tables have some ten thousand columns.
SCHEMA_ELEMENTS_MAX = 250_000
# The maximum number of names in all paths together: it bounds a schema that is both wide and deep.
SCHEMA_NAMES_MAX = 4_000_000

# Lists other than schema and row groups (key-value pairs, encodings, …) have at most this many elements.
_OTHER_LIST_MAX = 4096
# The smallest encoding of a row group, and of a column chunk within one.
_ROW_GROUP_BYTES_MIN = 7
_CHUNK_BYTES_MIN = 21
# The pattern matches strings up to this length: names, and bounds of statistics, which writers mostly cut at 64 bytes.
_STRING_BYTES_MAX = 64
# It matches lists of up to this many items: names of a path, encodings.
_ITEMS_MAX = 6

# Fields of a FileMetaData.
_SCHEMA, _ROW_GROUPS, _PAIRS = 2, 4, 5
_REPEATED = 2
_INTEGERS = (thrift.I16, thrift.I32, thrift.I64)
# The varint of an absent number.
_ZERO = b"\x00"


@dataclass(frozen=True, slots=True)
class Shape:
    """The leaves of a schema, in order.

    ``paths`` are the names from the top-level column down. ``physical_types`` are Parquet's numbers; ``positions`` are
    the offsets in the footer at which the elements of the leaves begin. ``max_definitions`` and ``max_repetitions`` are
    the maximum levels of each leaf.
    """

    paths: list[tuple[str, ...]]
    physical_types: list[int]
    positions: list[int]
    max_definitions: list[int]
    max_repetitions: list[int]


class ChunkNumbers(NamedTuple):
    """The numbers of a ColumnChunk, unchecked; an absent number is 0, an absent type or codec -1.

    ``position`` is its offset in the footer. ``elsewhere`` is the path of the file with its data, if that is another.
    """

    position: int
    physical_type: int
    codec: int
    values: int
    uncompressed_bytes: int
    compressed_bytes: int
    data_page: int
    dictionary_page: int
    offset_index: int = 0
    offset_index_bytes: int = 0
    column_index: int = 0
    column_index_bytes: int = 0
    elsewhere: str = ""
    is_encrypted: bool = False


@dataclass(frozen=True, slots=True)
class Outline:
    """The content of a footer that is read from the bytes themselves.

    ``chunks`` are the column chunks of each row group, in order. ``row_groups_end`` is the offset at which the list of
    row groups ends. ``list_max`` is the length of the longest list in an honest footer of this shape.
    """

    shape: Shape
    chunks: list[list[ChunkNumbers]]
    row_groups_end: int
    list_max: int


def walk_footer(raw: bytes | memoryview, *, names_max: int = SCHEMA_NAMES_MAX) -> Outline:
    """The outline of a FileMetaData with at most ``names_max`` names in all paths together.

    Raises ``MalformedThrift`` for bytes that cannot be a footer. Memory and time are in proportion to the bytes.
    """
    data = bytes(raw)
    elements: list[_Element] | None = None
    row_groups: tuple[int, int] | None = None
    pairs = 0
    for kind, number, position in thrift.fields_of(data, 0):
        if number not in (_SCHEMA, _ROW_GROUPS, _PAIRS):
            continue
        if kind != thrift.LIST:
            raise thrift.MalformedThrift(f"field {number} of the footer is not a list")
        _, count, position = thrift.read_list_header(data, position)
        if number == _SCHEMA:
            elements = _elements(data, count, position)
        elif number == _ROW_GROUPS:
            row_groups = count, position
        else:
            pairs = count
        if elements is not None and row_groups is not None:
            break  # list_max bounds the fields that follow.
    if elements is None or row_groups is None:
        raise thrift.MalformedThrift("the footer has no schema or no row groups")
    shape = _flatten(elements, names_max)
    count, position = row_groups
    leaves, left_bytes = len(shape.paths), len(data) - position
    if count * (_ROW_GROUP_BYTES_MIN + _CHUNK_BYTES_MIN * leaves) > left_bytes:
        raise thrift.MalformedThrift(f"{count} row groups of {leaves} columns do not fit into {left_bytes} bytes")
    chunks: list[list[ChunkNumbers]] = []
    for _ in range(count):
        group, position = _row_group(data, position, leaves)
        chunks.append(group)
    return Outline(shape, chunks, position, max(_OTHER_LIST_MAX, len(elements), count, pairs))


# --- the schema -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Element:
    """The fields of a SchemaElement on which the shape depends."""

    position: int
    name: str = ""
    physical_type: int | None = None
    repetition: int = 0
    children: int = 0


@dataclass(slots=True)
class _OpenGroup:
    """A group whose children are being walked. ``left`` is the number of remaining ones."""

    path: tuple[str, ...]
    definition: int
    repetition: int
    left: int


def _elements(raw: bytes, count: int, position: int) -> list[_Element]:
    if not 0 < count <= SCHEMA_ELEMENTS_MAX:
        raise thrift.MalformedThrift(f"a schema of {count} elements; 1 to {SCHEMA_ELEMENTS_MAX} are read")
    elements = []
    for _ in range(count):
        element, position = _element(raw, position)
        elements.append(element)
    return elements


def _element(raw: bytes, position: int) -> tuple[_Element, int]:
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


def _flatten(elements: list[_Element], names_max: int) -> Shape:
    """The leaves of the tree whose nodes ``elements`` lists depth first."""
    shape = Shape([], [], [], [], [])
    root = elements[0]
    open_groups = [_OpenGroup((), 0, 0, root.children)]
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
            if len(path) > SCHEMA_DEPTH_MAX or names > names_max:
                raise thrift.MalformedThrift(f"the schema nests more than {SCHEMA_DEPTH_MAX} deep, or too widely")
            open_groups.append(_OpenGroup(path, definition, repetition, element.children))
        else:
            shape.paths.append(path)
            shape.physical_types.append(element.physical_type)
            shape.positions.append(element.position)
            shape.max_definitions.append(definition)
            shape.max_repetitions.append(repetition)
    if any(group.left for group in open_groups):
        raise thrift.MalformedThrift("the schema has fewer elements than its groups have children")
    return shape


# --- row groups -------------------------------------------------------------------------------------------------------


def _row_group(data: bytes, position: int, leaves: int) -> tuple[list[ChunkNumbers], int]:
    chunks: list[ChunkNumbers] = []
    match = chunk_pattern().match
    before = 0
    while True:
        kind, before, position = thrift.read_field_header(data, position, before)
        if kind == 0:
            return chunks, position
        if before == 1 and kind == thrift.LIST:
            element, count, position = thrift.read_list_header(data, position)
            if element != thrift.STRUCT and count:
                raise thrift.MalformedThrift(f"the column chunks of a row group are not structs, at {position}")
            if count > leaves:
                raise thrift.MalformedThrift(f"a row group has {count} column chunks, the schema {leaves} leaves")
            for _ in range(count):
                matched = match(data, position)
                if matched is None:
                    chunk, position = read_chunk(data, position)
                else:
                    chunk, position = numbers_of(matched), matched.end()
                chunks.append(chunk)
        else:
            position = thrift.skip_value(data, position, kind)


def read_chunk(data: bytes, position: int) -> tuple[ChunkNumbers, int]:
    """The numbers of the ColumnChunk at ``position``, read field by field, and the position of its end."""
    fields, end = thrift.read_struct(data, position)
    kind, value = fields.get(3, (0, None))
    metadata: thrift.Struct = value if kind == thrift.STRUCT else {}
    path_kind, path = fields.get(1, (0, b""))
    chunk = ChunkNumbers(
        position,
        _number(metadata, 1, -1),
        _number(metadata, 4, -1),
        _number(metadata, 5),
        _number(metadata, 6),
        _number(metadata, 7),
        _number(metadata, 9),
        _number(metadata, 11),
        _number(fields, 4),
        _number(fields, 5),
        _number(fields, 6),
        _number(fields, 7),
        path.decode("utf-8", "replace") if path_kind == thrift.BINARY else "",
        8 in fields or 9 in fields,
    )
    return chunk, end


def _number(fields: thrift.Struct, number: int, missing: int = 0) -> int:
    kind, value = fields.get(number, (0, missing))
    return value if kind in _INTEGERS else missing


# --- the pattern of a column chunk ------------------------------------------------------------------------------------
# The alternatives at each place begin with different bytes and the match never goes back: it takes time in
# proportion to the bytes, for any bytes.


def _headers(kind: int) -> bytes:
    """The header of a field of this type, with any number that is written as a step from the one before."""
    return b"[" + b"".join(b"\\x%02x" % (step << 4 | kind) for step in range(1, 16)) + b"]"


def _lists(kind: int, item: bytes) -> bytes:
    """A list of up to ``_ITEMS_MAX`` items, without the header of its field."""
    lengths = (b"\\x%02x(?:%b){%d}" % (count << 4 | kind, item, count) for count in range(_ITEMS_MAX + 1))
    return b"(?:" + b"|".join(lengths) + b")"


@lru_cache(maxsize=1)
def chunk_pattern() -> re.Pattern[bytes]:
    """The usual form of a ColumnChunk; its groups are the numbers of ``ChunkNumbers`` from type to column index."""
    number = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
    string = b"(?:" + b"|".join(b"\\x%02x.{%d}" % (size, size) for size in range(_STRING_BYTES_MAX + 1)) + b")"
    numbers = b"(?:" + _headers(thrift.I32) + b"|" + _headers(thrift.I64) + b")" + number
    plain = b"|".join((numbers, _headers(thrift.BINARY) + string, rb"[\x11\x12\x21\x22]"))
    integers = _headers(thrift.LIST) + b"(?:" + _lists(thrift.I64, number) + b"|" + _lists(thrift.I32, number) + b")"
    struct = _headers(thrift.STRUCT) + b"(?:" + plain + b"|" + integers + rb")*+\x00"
    structs = _headers(thrift.LIST) + _lists(thrift.STRUCT, b"(?:" + numbers + rb")*+\x00")
    rest = b"(?:" + b"|".join((numbers, structs, struct)) + rb")*+\x00"
    parts = (
        rb"\x26" + number,  # 2: file_offset
        rb"\x1c",  # 3: the metadata, which contain
        rb"\x15(" + number + b")",  # 1: type
        rb"\x19" + _lists(thrift.I32, number),  # 2: encodings
        rb"\x19" + _lists(thrift.BINARY, string),  # 3: path_in_schema
        rb"\x15(" + number + b")",  # 4: codec
        rb"\x16(" + number + b")",  # 5: num_values
        rb"\x16(" + number + b")",  # 6: total_uncompressed_size
        rb"\x16(" + number + b")",  # 7: total_compressed_size
        rb"\x26(" + number + b")",  # 9: data_page_offset
        rb"(?:\x26(" + number + rb")|(?![\x10-\x2f]))",  # 11: dictionary_page_offset, or a field behind it
        rest,
        rb"(?:\x16(" + number + rb")\x15(" + number + b")",  # 4, 5: place of the offset index
        rb"(?:\x16(" + number + rb")\x15(" + number + rb"))?)?\x00",  # 6, 7: place of the column index
    )
    return re.compile(b"(?s:" + b"".join(parts) + b")")


def numbers_of(matched: re.Match[bytes]) -> ChunkNumbers:
    """The numbers of a ColumnChunk that matched the pattern."""
    numbers: Any = map(_integer, matched.groups(_ZERO))
    return ChunkNumbers(matched.start(), *numbers)


@lru_cache(maxsize=4096)
def _integer(digits: bytes) -> int:
    if len(digits) == 1:
        number = digits[0]
    else:
        number = 0
        for digit in reversed(digits):
            number = number << 7 | digit & 0x7F
    return (number >> 1) ^ -(number & 1)


# --- the layout for look-ahead ----------------------------------------------------------------------------------------

MAGIC = b"PAR1"
# Length of the footer and magic bytes come last; a file has magic bytes at the beginning too.
_END_BYTES = 8
_DATA_START = 4

# A reader looks ahead without a layout where the paths have more names in all than this: deep groups take long.
_LAYOUT_NAMES_MAX = 200_000


def footer_range(end: bytes, size: int) -> Range:
    """The range of the footer in a file of ``size`` bytes that ends with ``end``."""
    length = int.from_bytes(end[-_END_BYTES:-4], "little")
    start = size - _END_BYTES - length
    if len(end) < _END_BYTES or end[-4:] != MAGIC or length == 0 or start < _DATA_START:
        raise ValueError(f"a footer of {length} bytes is claimed in a file of {size}")
    return start, size - _END_BYTES


def columns_of(footer: bytes, size: int) -> list[list[Range]]:
    """The chunks of each leaf by row group. Chunks in other files and encrypted ones are left out."""
    outline = walk_footer(footer, names_max=_LAYOUT_NAMES_MAX)
    data_end = size - _END_BYTES - len(footer)
    columns: list[list[Range]] = [[] for _ in outline.shape.paths]
    for number, group in enumerate(outline.chunks):
        if len(group) != len(columns):
            raise ValueError(f"row group {number} has {len(group)} chunks, the schema {len(columns)} leaves")
        for column, said in zip(columns, group, strict=True):
            column.append(_range_of(said, data_end))
    return columns


def _range_of(said: ChunkNumbers, data_end: int) -> Range:
    if said.elsewhere or said.is_encrypted:
        return 0, 0
    start = said.data_page
    if 0 < said.dictionary_page < start:  # Old writers wrote 0 here, or arbitrary numbers.
        start = said.dictionary_page
    end = start + said.compressed_bytes
    if not _DATA_START <= start <= end <= data_end:
        raise ValueError(f"a chunk claims [{start}, {end}) of data that end at {data_end}")
    return start, end
