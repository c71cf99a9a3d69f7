"""A parser of the protobuf wire format, driven by tables instead of generated code.

A ``MessageTable`` defines the fields of a message. ``parse`` returns a ``dict`` of the present fields under their names
in the table; callers give defaults, as in ``parsed.get("rows", 0)``. Every length is checked against the input before
it is used, so the memory of a parse is bounded by its input.

An ``EncodingTree`` is a table for the trees of encodings in the metadata of pages. An encoding is a message of
alternatives, and an alternative may hold other encodings. A row of the table is one alternative: its number, its name,
its fields, and the class or function that takes the values of the fields in order. Trees are read strictly: an unknown
alternative or field raises ``Unsupported`` with its name, since skipping it would decode wrong values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from aioprefetch.errors import Unsupported, UntrustedMetadata

Kind = Literal["uint", "int", "bool", "bytes", "text", "message", "map", "fixed64", "fixed32"]
ParsedMessage = dict[str, Any]
T = TypeVar("T")

# The maximum depth of messages: far above real schemas and encodings, far below Python's recursion limit.
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
    ``text`` is UTF-8, ``message`` needs ``table``, and ``map`` is ``map<string, bytes>``. A ``repeated`` field becomes
    a list; repeated numbers may be packed or not.
    """

    name: str
    kind: Kind = "uint"
    repeated: bool = False
    table: MessageTable | None = None


@dataclass(slots=True, eq=False)
class MessageTable:
    """The fields of a message by number. ``rules`` of recursive messages are filled later."""

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
) -> ParsedMessage:
    """Parse a message into its fields by name.

    The last occurrence of a singular field counts. Unknown fields are skipped, unless ``strict``: then they are
    ``Unsupported``, in nested messages too, with the message and the number. Encodings are parsed strictly, since
    skipping a field would decode wrong values. ``UntrustedMetadata`` if the bytes are not such a message. ``path`` is
    named in errors.
    """
    if depth > DEPTH_MAX:
        raise _broken(table, f"messages are nested more than {DEPTH_MAX} deep", path)
    parsed: ParsedMessage = {}
    if not isinstance(data, bytes):
        data = bytes(data)  # Indexing bytes is faster than indexing a memoryview.
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
    if position < end and data[position] < 0x80:  # The fast path of small numbers, which most are.
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
    """The start and the end of the content of a field that is not a varint."""
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
    parsed: ParsedMessage,
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
    """The name and the value of the member of a message of alternatives.

    ``UntrustedMetadata`` unless it has exactly one.

    The message must be parsed with ``strict``, so that an unknown alternative is ``Unsupported``.
    """
    if len(parsed) != 1:
        members = "none" if not parsed else " and ".join(parsed)
        raise _broken(table, f"one alternative is needed, and it holds {members}", path)
    return next(iter(parsed.items()))


def _broken(table: MessageTable, what: str, path: str) -> UntrustedMetadata:
    return UntrustedMetadata(f"the {table.name} message is damaged: {what}", path=path)


# --- trees of encodings -----------------------------------------------------------------------------------------------

_DEFAULTS: dict[str, Any] = {"bool": False, "bytes": b"", "text": "", "message": {}}


@dataclass(frozen=True, slots=True)
class _Alternative(Generic[T]):
    fields: Collection[FieldRule]
    make: Callable[..., T]
    convert: Mapping[str, Callable[[Any], Any]]
    optional: Collection[str]
    refused: Collection[str]


class EncodingTree(MessageTable, Generic[T]):
    """A message of alternatives; each becomes a ``T``.

    ``refusal`` is the error text for an unsupported alternative; ``{}`` in it is replaced by the alternative's name.
    """

    def __init__(self, name: str, refusal: str) -> None:
        super().__init__(name)
        self._refusal = refusal
        self._alternatives: dict[str, _Alternative[T]] = {}

    def add(
        self,
        number: int,
        name: str,
        make: Callable[..., T],
        fields: Mapping[int, FieldRule] | None = None,
        *,
        convert: Mapping[str, Callable[[Any], Any]] | None = None,
        optional: Collection[str] = (),
        refused: Collection[str] = (),
    ) -> None:
        """Add an alternative. ``make`` takes the values of ``fields`` in order; encodings among them are trees.

        ``convert`` maps names of fields to functions that convert their values. An absent field has the default of its
        type, or ``None`` if it is ``optional``; an absent encoding that is not optional is ``UntrustedMetadata``. The
        presence of a field in ``refused`` is ``Unsupported``.
        """
        fields = fields or {}
        self.rules[number] = message(name, MessageTable(name, dict(fields)))
        self._alternatives[name] = _Alternative(tuple(fields.values()), make, convert or {}, optional, refused)

    def delegate(self, number: int, name: str, tree: EncodingTree[T]) -> None:
        """Add an alternative that is itself a message of alternatives, read by ``tree``."""
        self.rules[number] = message(name, tree)

    def refuse(self, number: int, name: str) -> None:
        """Add an alternative of the format that is not supported."""
        self.rules[number] = FieldRule(name, "bytes")

    def read(self, data: bytes) -> T:
        """Parse the tree of a serialized message.

        ``Unsupported`` names an unsupported alternative or field. ``UntrustedMetadata`` if the bytes are not a message.
        """
        return self.build(parse(self, data, strict=True))

    def build(self, parsed: ParsedMessage) -> T:
        """The tree of a parsed message. Raises as ``read`` does."""
        name, content = one_of(parsed, self)
        alternative = self._alternatives.get(name)
        if alternative is not None:
            return alternative.make(*_values(name, alternative, content))
        for rule in self.rules.values():
            if rule.name == name and isinstance(rule.table, EncodingTree):
                tree: EncodingTree[T] = rule.table
                return tree.build(content)
        raise Unsupported(self._refusal.format(name))


def _values(name: str, alternative: _Alternative[Any], content: ParsedMessage) -> Iterator[Any]:
    for rule in alternative.fields:
        if rule.name in alternative.refused:
            if content.get(rule.name, False) is not False:
                raise Unsupported(f"{name} with a field {rule.name} is not supported")
        elif rule.name not in content and rule.name in alternative.optional:
            yield None
        elif not isinstance(rule.table, EncodingTree):
            value = content.get(rule.name, () if rule.repeated else _DEFAULTS.get(rule.kind, 0))
            yield alternative.convert[rule.name](value) if rule.name in alternative.convert else value
        elif rule.repeated:
            yield tuple(rule.table.build(child) for child in content.get(rule.name, ()))
        elif rule.name in content:
            yield rule.table.build(content[rule.name])
        else:
            raise UntrustedMetadata(f"{name} without the encoding of its {rule.name}")
