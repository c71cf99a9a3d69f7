"""Thrift's compact protocol without a schema: bytes to a tree and back, bounded by the bytes that are there.

A struct is a ``dict`` from field id to ``(type, value)`` in the order of the bytes, so that a tree that was read is
written as the same bytes. Parquet's footer, page headers and page indexes are such structs.

Nothing is believed: a length or a count larger than the bytes left ends the reading before anything is allocated for
it, and structs nest ``DEPTH_MAX`` deep at most. Each element takes a byte at least, so a tree never has more elements
than its buffer has bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Types of the compact protocol. A bool in a field has its value in the type; within a list it is a byte.
TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)

# How deep structs, lists and maps may lie in one another. Parquet's own need 9.
DEPTH_MAX = 32

_VARINT_BYTES_MAX = 10
_SHORT_LIST_MAX = 14
_INTEGERS = (I16, I32, I64)
_DOUBLE = struct.Struct("<d")

Struct = dict[int, tuple[int, Any]]


class MalformedThrift(ValueError):
    """Bytes that are not a struct of the compact protocol."""


class TruncatedThrift(MalformedThrift):
    """The buffer ends within the struct: with more bytes it may be a good one."""


@dataclass(slots=True)
class ThriftList:
    """A list or set: the type that all ``items`` have, which an empty one has too."""

    element: int
    items: list[Any]


class Written(bytes):
    """A value as it was read from other bytes, to be written as it is."""


@dataclass(slots=True)
class ThriftMap:
    """A map: the types of keys and values (both 0 if it is empty) and its pairs in order."""

    key: int
    value: int
    items: list[tuple[Any, Any]]


def read_struct(buffer: bytes | memoryview, position: int = 0) -> tuple[Struct, int]:
    """The struct that begins at ``position``, and where it ends.

    Raises ``TruncatedThrift`` if the buffer ends early, and ``MalformedThrift`` for other invalid bytes.
    """
    try:
        return _struct(buffer, position, DEPTH_MAX)
    except IndexError:
        raise TruncatedThrift(f"the buffer of {len(buffer)} bytes ends within a struct") from None


def skip_value(buffer: bytes | memoryview, position: int, kind: int) -> int:
    """The end of the value of type ``kind`` that begins at ``position``. Raises as ``read_struct`` does."""
    try:
        return _skip(buffer, position, kind, DEPTH_MAX)
    except IndexError:
        raise TruncatedThrift(f"the buffer of {len(buffer)} bytes ends within a value") from None


def read_field_header(buffer: bytes | memoryview, position: int, before: int) -> tuple[int, int, int]:
    """Type, id and end of the header of the field after that with id ``before``; type 0 at the end of the struct."""
    try:
        return _field_header(buffer, position, before)
    except IndexError:
        raise TruncatedThrift(f"the buffer of {len(buffer)} bytes ends within a field's header") from None


def read_list_header(buffer: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """Type and number of elements of a list, and where its first one begins. The number fits into the bytes left."""
    try:
        return _list_header(buffer, position)
    except IndexError:
        raise TruncatedThrift(f"the buffer of {len(buffer)} bytes ends within a list's header") from None


def read_value(buffer: bytes | memoryview, position: int, kind: int) -> tuple[Any, int]:
    """The value of type ``kind`` of a field that begins at ``position``, and where it ends."""
    try:
        return _value(buffer, position, kind, DEPTH_MAX)
    except IndexError:
        raise TruncatedThrift(f"the buffer of {len(buffer)} bytes ends within a value") from None


def fields_of(buffer: bytes | memoryview, position: int) -> Iterator[tuple[int, int, int]]:
    """Type, id and start of the value of each field of the struct at ``position``; the values are skipped."""
    before = 0
    while True:
        kind, before, position = read_field_header(buffer, position, before)
        if kind == 0:
            return
        yield kind, before, position
        position = skip_value(buffer, position, kind)


def write_struct(fields: Struct) -> bytes:
    """The bytes of a struct, fields in the order of the ``dict``. Raises ``ValueError`` for a value of no type."""
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


# --- reading ----------------------------------------------------------------------------------------------------------
# An index beyond the buffer is an IndexError, which the functions above turn into the error for it.


def _varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return byte, position
    number, shift, last = byte & 0x7F, 7, position + _VARINT_BYTES_MAX - 1
    while position < last:
        byte = buffer[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise MalformedThrift(f"a number of more than {_VARINT_BYTES_MAX} bytes ends at {position}")


def _field_header(buffer: bytes | memoryview, position: int, before: int) -> tuple[int, int, int]:
    byte = buffer[position]
    position += 1
    kind = byte & 0x0F
    if byte == 0:
        return 0, 0, position
    if not 0 < kind <= UUID:
        raise MalformedThrift(f"a field of unknown type {kind} ends at {position}")
    if byte >> 4:
        return kind, before + (byte >> 4), position
    number, position = _varint(buffer, position)
    return kind, (number >> 1) ^ -(number & 1), position


def _list_header(buffer: bytes | memoryview, position: int) -> tuple[int, int, int]:
    byte = buffer[position]
    position += 1
    kind, count = byte & 0x0F, byte >> 4
    if count > _SHORT_LIST_MAX:
        count, position = _varint(buffer, position)
    if count > len(buffer) - position:
        raise TruncatedThrift(f"a list of {count} elements in the {len(buffer) - position} bytes left at {position}")
    return kind, count, position


def _map_header(buffer: bytes | memoryview, position: int) -> tuple[int, int, int, int]:
    count, position = _varint(buffer, position)
    if count == 0:
        return 0, 0, 0, position
    kinds = buffer[position]
    position += 1
    if 2 * count > len(buffer) - position:
        raise TruncatedThrift(f"a map of {count} pairs in the {len(buffer) - position} bytes left at {position}")
    return kinds >> 4, kinds & 0x0F, count, position


def _end_of_bytes(buffer: bytes | memoryview, position: int, size: int) -> int:
    end = position + size
    if end > len(buffer):
        raise TruncatedThrift(f"{size} bytes are claimed where {len(buffer) - position} are left at {position}")
    return end


def _struct(buffer: bytes | memoryview, position: int, depth: int) -> tuple[Struct, int]:
    if depth == 0:
        raise MalformedThrift(f"structs nest more than {DEPTH_MAX} deep at {position}")
    fields: Struct = {}
    before = 0
    while True:
        kind, before, position = _field_header(buffer, position, before)
        if kind == 0:
            return fields, position
        if before in fields:
            raise MalformedThrift(f"field {before} comes twice in one struct, at {position}")
        value, position = _value(buffer, position, kind, depth - 1)
        fields[before] = (kind, value)


def _value(buffer: bytes | memoryview, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        number, position = _varint(buffer, position)
        return (number >> 1) ^ -(number & 1), position
    if kind == BINARY:
        size, position = _varint(buffer, position)
        end = _end_of_bytes(buffer, position, size)
        return bytes(buffer[position:end]), end
    if kind == STRUCT:
        return _struct(buffer, position, depth)
    if kind in (LIST, SET):
        return _list(buffer, position, depth)
    if kind in (TRUE, FALSE):
        return kind == TRUE, position
    if kind == I8:
        return buffer[position], position + 1
    if kind == DOUBLE:
        end = _end_of_bytes(buffer, position, 8)
        return _DOUBLE.unpack(buffer[position:end])[0], end
    if kind == MAP:
        return _map(buffer, position, depth)
    if kind == UUID:
        end = _end_of_bytes(buffer, position, 16)
        return bytes(buffer[position:end]), end
    raise MalformedThrift(f"a value of unknown type {kind} at {position}")


def _element(buffer: bytes | memoryview, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return buffer[position], position + 1  # Kept as stored: writers disagree about the value of false.
    return _value(buffer, position, kind, depth)


def _list(buffer: bytes | memoryview, position: int, depth: int) -> tuple[ThriftList, int]:
    if depth == 0:
        raise MalformedThrift(f"lists nest more than {DEPTH_MAX} deep at {position}")
    kind, count, position = _list_header(buffer, position)
    items = []
    for _ in range(count):
        value, position = _element(buffer, position, kind, depth - 1)
        items.append(value)
    return ThriftList(kind, items), position


def _map(buffer: bytes | memoryview, position: int, depth: int) -> tuple[ThriftMap, int]:
    if depth == 0:
        raise MalformedThrift(f"maps nest more than {DEPTH_MAX} deep at {position}")
    key_kind, value_kind, count, position = _map_header(buffer, position)
    items = []
    for _ in range(count):
        key, position = _element(buffer, position, key_kind, depth - 1)
        value, position = _element(buffer, position, value_kind, depth - 1)
        items.append((key, value))
    return ThriftMap(key_kind, value_kind, items), position


# --- skipping ---------------------------------------------------------------------------------------------------------


def _skip(buffer: bytes | memoryview, position: int, kind: int, depth: int, *, is_element: bool = False) -> int:
    if kind in _INTEGERS:
        while buffer[position] & 0x80:
            position += 1
        return position + 1
    if kind == BINARY:
        size, position = _varint(buffer, position)
        return _end_of_bytes(buffer, position, size)
    if kind == STRUCT:
        return _skip_struct(buffer, position, depth)
    if kind in (TRUE, FALSE):
        return position + is_element
    if kind in (LIST, SET):
        return _skip_list(buffer, position, depth)
    if kind == I8:
        return position + 1
    if kind == MAP:
        return _map(buffer, position, depth)[1]
    if kind in (DOUBLE, UUID):
        return _end_of_bytes(buffer, position, 8 if kind == DOUBLE else 16)
    raise MalformedThrift(f"a value of unknown type {kind} at {position}")


def _skip_struct(buffer: bytes | memoryview, position: int, depth: int) -> int:
    if depth == 0:
        raise MalformedThrift(f"structs nest more than {DEPTH_MAX} deep at {position}")
    while byte := buffer[position]:
        position += 1
        kind = byte & 0x0F
        if byte < 0x10:  # The id follows as a number of its own.
            while buffer[position] & 0x80:
                position += 1
            position += 1
        if kind in (I64, I32):  # The most common by far.
            while buffer[position] & 0x80:
                position += 1
            position += 1
        else:
            position = _skip(buffer, position, kind, depth - 1)
    return position + 1


def _skip_list(buffer: bytes | memoryview, position: int, depth: int) -> int:
    if depth == 0:
        raise MalformedThrift(f"lists nest more than {DEPTH_MAX} deep at {position}")
    kind, count, position = _list_header(buffer, position)
    for _ in range(count):
        position = _skip(buffer, position, kind, depth - 1, is_element=True)
    return position


# --- writing ----------------------------------------------------------------------------------------------------------


def _write_varint(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _write_integer(out: bytearray, number: int) -> None:
    _write_varint(out, number << 1 if number >= 0 else (-number << 1) - 1)


def _write_struct(out: bytearray, fields: Struct) -> None:
    before = 0
    for number, (kind, value) in fields.items():
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        if 0 < number - before <= 15:
            out.append((number - before) << 4 | kind)
        else:
            out.append(kind)
            _write_integer(out, number)
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, value)
        before = number
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if isinstance(value, Written):
        out += value
    elif kind in _INTEGERS:
        _write_integer(out, value)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        _write_list(out, value)
    elif kind in (I8, TRUE, FALSE):  # A bool within a list is a byte.
        out.append(value)
    elif kind == DOUBLE:
        out += _DOUBLE.pack(value)
    elif kind == MAP:
        _write_map(out, value)
    elif kind == UUID:
        out += value
    else:
        raise ValueError(f"there is no type {kind} in Thrift's compact protocol")


def _write_list(out: bytearray, value: ThriftList) -> None:
    count = len(value.items)
    if count <= _SHORT_LIST_MAX:
        out.append(count << 4 | value.element)
    else:
        out.append(0xF0 | value.element)
        _write_varint(out, count)
    for item in value.items:
        _write_value(out, value.element, item)


def _write_map(out: bytearray, value: ThriftMap) -> None:
    _write_varint(out, len(value.items))
    if value.items:
        out.append(value.key << 4 | value.value)
    for key, item in value.items:
        _write_value(out, value.key, key)
        _write_value(out, value.value, item)
