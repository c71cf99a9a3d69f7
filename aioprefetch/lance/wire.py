"""The protobuf wire format, read by tables: no generated code, no protobuf package.

A ``MessageTable`` says what a message's field numbers mean. ``parse`` gives a plain ``dict`` that holds what was
present, under the names of the table: ``parsed.get("rows", 0)`` is how a default is said. Every length is checked
against the bytes at hand before anything is made of it, so what a parse can take is bounded by its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aioprefetch.errors import Unsupported, UntrustedMetadata

Kind = Literal["uint", "int", "bool", "bytes", "text", "message", "map", "fixed64", "fixed32"]
Parsed = dict[str, Any]

# The maximum depth of messages: far above real schemas and encodings, far below the limit of Python's stack.
DEPTH_MAX = 100

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES: dict[str, int] = {
    "uint": _VARINT,
    "int": _VARINT,
    "bool": _VARINT,
    "bytes": _LENGTH,
    "text": _LENGTH,
    "message": _LENGTH,
    "map": _LENGTH,
    "fixed64": _FIXED64,
    "fixed32": _FIXED32,
}
_FIELD_NUMBER_MAX = (1 << 29) - 1


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One field of a message.

    ``kind``: ``uint`` is a varint of up to 64 bits, ``int`` the same as a signed number (negative ones take 10 bytes),
    ``bytes`` and ``text`` are themselves, ``message`` needs ``table``, ``map`` is ``map<string, bytes>``. What is
    ``repeated`` becomes a list; repeated numbers may be packed or not.
    """

    name: str
    kind: Kind = "uint"
    repeated: bool = False
    table: MessageTable | None = None


@dataclass(slots=True, eq=False)
class MessageTable:
    """The fields of a message by number. ``rules`` may be filled later, for messages that hold themselves."""

    name: str
    rules: dict[int, FieldRule] = field(default_factory=dict)


def uint(name: str, *, repeated: bool = False) -> FieldRule:
    """A rule for an unsigned number or an enumeration."""
    return FieldRule(name, "uint", repeated)


def message(name: str, table: MessageTable, *, repeated: bool = False) -> FieldRule:
    """A rule for a message within the message."""
    return FieldRule(name, "message", repeated, table)


def parse(
    table: MessageTable, data: bytes | memoryview, *, path: str = "", strict: bool = False, depth: int = 0
) -> Parsed:
    """The fields of a message by name.

    Of a singular field that comes twice the last one counts. A field that the table does not know is skipped; with
    ``strict`` it is ``Unsupported``, which names message and number, also in the messages within: for encodings, where
    skipping a field would mean decoding something else. Anything that is no message of this kind is
    ``UntrustedMetadata``. ``path`` is for the errors.
    """
    if depth > DEPTH_MAX:
        raise _broken(table, f"messages are nested more than {DEPTH_MAX} deep", path)
    parsed: Parsed = {}
    if not isinstance(data, bytes):
        data = bytes(data)  # Indexing bytes is faster than indexing a view.
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(table, data, position, end, path)
        number, wire_type = key >> 3, key & 7
        rule = table.rules.get(number)
        value: int | bytes
        if wire_type == _VARINT:
            value, position = _varint(table, data, position, end, path)
        else:
            start, position = _span(table, data, position, end, wire_type, path)
            value = data[start:position]
        if rule is not None:
            _store(parsed, table, rule, wire_type, value, path, strict, depth)
        elif not 1 <= number <= _FIELD_NUMBER_MAX:
            raise _broken(table, f"{number} is not a valid field number", path)
        elif strict:
            raise Unsupported(f"{table.name} has a field {number} that is not known here", path=path)
    return parsed


def _varint(table: MessageTable, data: bytes | memoryview, position: int, end: int, path: str) -> tuple[int, int]:
    if position < end and data[position] < 0x80:  # Most numbers are small.
        return data[position], position + 1
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift >= 70:
            raise _broken(table, "a number takes more than 10 bytes", path)
    raise _broken(table, "it ends within a number", path)


def _span(
    table: MessageTable, data: bytes | memoryview, position: int, end: int, wire_type: int, path: str
) -> tuple[int, int]:
    """Start and end of the bytes of a field that is not a varint."""
    if wire_type == _LENGTH:
        size, position = _varint(table, data, position, end, path)
    elif wire_type == _FIXED64:
        size = 8
    elif wire_type == _FIXED32:
        size = 4
    else:
        raise _broken(table, f"wire type {wire_type} is not in use", path)
    if size > end - position:
        raise _broken(table, f"a field of {size} bytes begins {end - position} bytes before its end", path)
    return position, position + size


def _store(
    parsed: Parsed,
    table: MessageTable,
    rule: FieldRule,
    wire_type: int,
    value: Any,
    path: str,
    strict: bool,
    depth: int,
) -> None:
    if wire_type == _LENGTH and rule.repeated and _WIRE_TYPES[rule.kind] == _VARINT:
        parsed.setdefault(rule.name, []).extend(_packed(table, rule, value, path))
        return
    if wire_type != _WIRE_TYPES[rule.kind]:
        raise _broken(table, f"its field {rule.name} has wire type {wire_type}", path)
    if rule.kind == "map":
        key, content = _map_entry(value, path, depth)
        parsed.setdefault(rule.name, {})[key] = content
        return
    content = _value(table, rule, value, path, strict, depth)
    if rule.repeated:
        parsed.setdefault(rule.name, []).append(content)
    else:
        parsed[rule.name] = content


def _value(table: MessageTable, rule: FieldRule, value: Any, path: str, strict: bool, depth: int) -> Any:
    match rule.kind:
        case "message":
            assert rule.table is not None
            return parse(rule.table, value, path=path, strict=strict, depth=depth + 1)
        case "bytes":
            return bytes(value)
        case "text":
            return _text(table, rule.name, value, path)
        case "fixed64" | "fixed32":
            return int.from_bytes(value, "little")
        case _:
            return _number(rule.kind, value)


def _number(kind: str, value: int) -> int | bool:
    if kind == "bool":
        return value != 0
    if kind == "int" and value >> 63:
        return value - (1 << 64)
    return value


def _packed(table: MessageTable, rule: FieldRule, data: bytes | memoryview, path: str) -> list[int | bool]:
    numbers: list[int | bool] = []
    position, end = 0, len(data)
    while position < end:
        value, position = _varint(table, data, position, end, path)
        numbers.append(_number(rule.kind, value))
    return numbers


def _text(table: MessageTable, name: str, value: bytes | memoryview, path: str) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise _broken(table, f"its field {name} is not UTF-8 text", path) from error


_MAP_ENTRY = MessageTable("map entry", {1: FieldRule("key", "text"), 2: FieldRule("value", "bytes")})


def _map_entry(value: bytes | memoryview, path: str, depth: int) -> tuple[str, bytes]:
    entry = parse(_MAP_ENTRY, value, path=path, depth=depth + 1)
    return entry.get("key", ""), entry.get("value", b"")


def one_of(parsed: Mapping[str, Any], table: MessageTable, *, path: str = "") -> tuple[str, Any]:
    """Name and value of the member of a message of alternatives. ``UntrustedMetadata`` unless it has exactly one.

    Parse with ``strict``: an unknown alternative is ``Unsupported`` already there.
    """
    if len(parsed) != 1:
        members = "none" if not parsed else " and ".join(parsed)
        raise _broken(table, f"one alternative is needed, and it holds {members}", path)
    return next(iter(parsed.items()))


def _broken(table: MessageTable, what: str, path: str) -> UntrustedMetadata:
    return UntrustedMetadata(f"the {table.name} message is damaged: {what}", path=path)
