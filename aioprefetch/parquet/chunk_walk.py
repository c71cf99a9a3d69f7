"""The column chunks of a footer, found in its bytes: where each one's metadata lie and what numbers are in them.

pyarrow has these numbers too, but ends the whole process when it is asked for some that a hostile footer holds, and
keeps those of the page indexes to itself. A footer has a ColumnChunk for each leaf of each row group, tens of thousands
at times, so what all writers write in the same way is matched by one pattern, in C, and anything else is read field
by field.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from aioprefetch.parquet import thrift
from aioprefetch.parquet.shape import fields_of

# Strings up to this length are matched: names, and bounds of statistics, which are mostly cut at 64. And lists of so
# many items: names of a path, encodings.
_STRING_BYTES_MAX = 64
_ITEMS_MAX = 6

# The varint that a number is which is not there.
_ZERO = b"\x00"


class ChunkNumbers(NamedTuple):
    """What a ColumnChunk says, unchecked; 0 for a number that is missing, -1 for type and codec.

    ``position`` is where it begins in the footer. ``elsewhere``: the path of the file that it lies in, if another one.
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


def walk_row_groups(raw: memoryview) -> tuple[list[list[ChunkNumbers]], int]:
    """The chunks of every row group in order, and where the row groups end.

    Raises ``MalformedThrift`` for bytes that are no footer.
    """
    data = bytes(raw)
    for kind, number, position in fields_of(data, 0):
        if number == 4 and kind == thrift.LIST:
            groups: list[list[ChunkNumbers]] = []
            _, count, position = thrift.read_list_header(data, position)
            for _ in range(count):
                chunks, position = _row_group(data, position)
                groups.append(chunks)
            return groups, position
    raise thrift.MalformedThrift("the footer has no row groups")


def _row_group(data: bytes, position: int) -> tuple[list[ChunkNumbers], int]:
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
                raise thrift.MalformedThrift(f"a row group has chunks that are no structs, at {position}")
            for _ in range(count):
                found = match(data, position)
                if found is None:
                    chunk, position = read_chunk(data, position)
                else:
                    chunk, position = _matched(found), found.end()
                chunks.append(chunk)
        else:
            position = thrift.skip_value(data, position, kind)


def read_chunk(data: bytes, position: int) -> tuple[ChunkNumbers, int]:
    """The numbers of the ColumnChunk at ``position``, read field by field, and where it ends."""
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
    return value if kind in (thrift.I16, thrift.I32, thrift.I64) else missing


# --- what writers write -----------------------------------------------------------------------------------------------
# The alternatives at each place begin with different bytes and nothing is tried twice, so that a match takes time in
# proportion to the bytes whatever they are.


def _headers(kind: int) -> bytes:
    """A header of a field of this type, whichever its number, if it is given as a step."""
    return b"[" + b"".join(b"\\x%02x" % (step << 4 | kind) for step in range(1, 16)) + b"]"


def _lists(kind: int, item: bytes) -> bytes:
    """A list of a few items, behind its field's header."""
    lengths = (b"\\x%02x(?:%b){%d}" % (count << 4 | kind, item, count) for count in range(_ITEMS_MAX + 1))
    return b"(?:" + b"|".join(lengths) + b")"


@lru_cache(maxsize=1)
def chunk_pattern() -> re.Pattern[bytes]:
    """A ColumnChunk as writers write it; groups for the numbers of ``ChunkNumbers`` from type to column index."""
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
        rb"\x1c",  # 3: the metadata, and in them
        rb"\x15(" + number + b")",  # 1: type
        rb"\x19" + _lists(thrift.I32, number),  # 2: encodings
        rb"\x19" + _lists(thrift.BINARY, string),  # 3: path_in_schema
        rb"\x15(" + number + b")",  # 4: codec
        rb"\x16(" + number + b")",  # 5: num_values
        rb"\x16(" + number + b")",  # 6: total_uncompressed_size
        rb"\x16(" + number + b")",  # 7: total_compressed_size
        rb"\x26(" + number + b")",  # 9: data_page_offset
        rb"(?:\x26(" + number + rb")|(?![\x10-\x2f]))",  # 11: dictionary_page_offset, or one that follows it
        rest,
        rb"(?:\x16(" + number + rb")\x15(" + number + b")",  # 4, 5: where the offset index lies
        rb"(?:\x16(" + number + rb")\x15(" + number + rb"))?)?\x00",  # 6, 7: where the column index lies
    )
    return re.compile(b"(?s:" + b"".join(parts) + b")")


def _matched(found: re.Match[bytes]) -> ChunkNumbers:
    numbers: Any = map(_integer, found.groups(_ZERO))
    return ChunkNumbers(found.start(), *numbers)


@lru_cache(maxsize=4096)
def _integer(digits: bytes) -> int:
    if len(digits) == 1:
        number = digits[0]
    else:
        number = 0
        for digit in reversed(digits):
            number = number << 7 | digit & 0x7F
    return (number >> 1) ^ -(number & 1)
