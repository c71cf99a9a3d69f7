"""An expression of pyarrow as a tree: the columns that it names, and the conditions on some of them.

pyarrow does not show the tree. The bytes to which an expression is pickled hold it, as pairs in the metadata of an
Arrow file: a call and its end around the arguments, fields by their names, literals and options by the number of a
column. An expression that names fields by position is not pickled, and has no tree here: what goes by its columns has
to take all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from aioprefetch import arrow_compute as pc

Pair = tuple[bytes, bytes]
# The names of a column and of fields of structs below it, from the outermost on.
FieldPath = tuple[str, ...]

AND, OR = ("and_kleene", "and"), ("or_kleene", "or")
# Each comparison as an operator, and as the operator with both sides exchanged.
_COMPARISONS = {
    "equal": ("==", "=="),
    "not_equal": ("!=", "!="),
    "less": ("<", ">"),
    "less_equal": ("<=", ">="),
    "greater": (">", "<"),
    "greater_equal": (">=", "<="),
}
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
# The fields of tables in the format of Arrow files.
_HEADER_OF_MESSAGE, _METADATA_OF_SCHEMA = 2, 2
_MAGIC_BYTES = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression: ``name`` is the function, the column, or the number of a literal.

    ``arguments`` and ``options`` are numbers: of nodes, and of the column that has the options. ``pairs`` is where it
    stands, ``fields`` are the columns and fields of structs in it.
    """

    kind: Literal["call", "field", "literal"]
    name: str
    pairs: slice
    fields: frozenset[FieldPath]
    arguments: tuple[int, ...] = ()
    options: int | None = None


class ExpressionTree:
    """The nodes of an expression, arguments before their calls, the whole last."""

    def __init__(self, expression: pc.Expression) -> None:
        self.expression = expression
        self._restored, (pickled,) = expression.__reduce__()
        self._pairs = _pairs(pickled)
        self._values = pa.ipc.open_file(pickled).get_batch(0)
        self.nodes = list(_nodes(self._pairs))

    @classmethod
    def of(cls, expression: pc.Expression) -> ExpressionTree | None:
        """The tree of an expression; ``None`` if it names columns by position, or pyarrow cannot pickle it."""
        try:
            return cls(expression)
        except (pa.ArrowException, ValueError, TypeError, IndexError, struct.error):
            return None

    @property
    def columns(self) -> frozenset[str]:
        """The top-level columns that the expression names."""
        return frozenset(path[0] for path in self.fields)

    @property
    def fields(self) -> list[FieldPath]:
        """The columns, and fields of structs, that the expression names."""
        return sorted(self.nodes[-1].fields)

    def about(self, columns: Collection[str]) -> pc.Expression | None:
        """The condition on ``columns`` alone that holds wherever the expression does, or ``None``."""
        return self._part([all(path[0] in columns for path in node.fields) for node in self.nodes])

    def about_ranges(self, schema: pa.Schema) -> pc.Expression | None:
        """The condition that bounds and null counts of the columns of ``schema`` can decide; ``None`` without one.

        It names fields of structs by their ``flat_name``. Only forms that are known: a comparison of a column with a
        literal, ``is_in``, ``is_valid``, ``is_null``, and what ``and``, ``or`` and ``invert`` make of these. Bounds say
        nothing of NaN, which is in no range, but matches an inversion and ``!=``: of floating-point columns no form is
        known that a NaN may match.
        """
        known = self._about_ranges(schema)
        return self._part(known, is_flat=True)

    def is_decided_by_ranges(self, schema: pa.Schema) -> bool:
        """Whether it is true or false, by forms that are known, wherever none of its columns is null or NaN."""
        literals = [node for node in self.nodes if node.kind == "literal"]
        return all(self._about_ranges(schema)) and all(self._value(literal).is_valid for literal in literals)

    def _about_ranges(self, schema: pa.Schema) -> list[bool]:
        """For each node whether its form is known."""
        columns = {path: field_at(schema, path) for path in self.fields}
        types = {path: _value_type(column.type) for path, column in columns.items() if column is not None}
        floats = {path for path, kind in types.items() if _has_floats(kind)}
        known: list[bool] = []
        for node in self.nodes:
            known.append(self._is_about_ranges(node, known, types, floats))
        return known

    def _is_about_ranges(
        self, node: Node, known: Sequence[bool], types: Mapping[FieldPath, pa.DataType], floats: Collection[FieldPath]
    ) -> bool:
        arguments = [self.nodes[number] for number in node.arguments]
        has_floats = not node.fields.isdisjoint(floats)
        if node.kind != "call":
            return node.kind == "literal" or not has_floats
        if node.name in (*AND, *OR):
            return all(known[number] for number in node.arguments)
        if node.name in _COMPARISONS:
            kinds = sorted(argument.kind for argument in arguments)
            is_exact = not any(argument.kind == "literal" and self._is_nan(argument) for argument in arguments)
            return kinds == ["field", "literal"] and is_exact and not (has_floats and node.name == "not_equal")
        if node.name == "invert":
            return known[node.arguments[0]] and not has_floats
        if [argument.kind for argument in arguments] != ["field"]:
            return False
        if node.name == "is_in":
            members, behavior = self._option(node, "value_set"), self._option(node, "null_matching_behavior")
            (path,) = node.fields
            is_alike = members is not None and _are_alike(members.type.value_type, types.get(path))
            return is_alike and not has_floats and behavior is not None and behavior.as_py() == 0
        counts_nan = self._option(node, "nan_is_null")
        return node.name == "is_valid" or (node.name == "is_null" and counts_nan is not None and not counts_nan.as_py())

    def clause(self, node: Node) -> tuple[FieldPath, str, Any] | None:
        """A comparison of a column with a literal, or with the members of a list; ``None`` for other nodes."""
        arguments = [self.nodes[number] for number in node.arguments]
        kinds = [argument.kind for argument in arguments]
        members = self._option(node, "value_set") if node.name == "is_in" and kinds == ["field"] else None
        if members is None and (node.name not in _COMPARISONS or sorted(kinds) != ["field", "literal"]):
            return None
        (path,) = node.fields
        if members is not None:
            return path, "in", members.values
        is_turned = kinds[0] == "literal"
        return path, _COMPARISONS[node.name][is_turned], self._value(arguments[not is_turned])

    def _value(self, literal: Node) -> pa.Scalar:
        return self._values.column(int(literal.name))[0]

    def _is_nan(self, literal: Node) -> bool:
        value = self._value(literal)
        return bool(pa.types.is_floating(value.type) and value.as_py() != value.as_py())

    def _option(self, node: Node, name: str) -> pa.Scalar | None:
        options = None if node.options is None else self._values.column(node.options)[0]
        return options[name] if options is not None and name in options else None

    def _part(self, kept: Sequence[bool], *, is_flat: bool = False) -> pc.Expression | None:
        """The expression of the nodes that are kept: less of an ``and``, all of an ``or`` or nothing.

        ``is_flat``: with fields of structs as columns.
        """
        parts: list[list[Pair] | None] = []
        for node, is_kept in zip(self.nodes, kept, strict=True):
            if is_kept or node.name not in (*AND, *OR) or node.kind != "call":
                parts.append(self._pairs[node.pairs] if is_kept else None)
                continue
            left = [part for number in node.arguments if (part := parts[number]) is not None]
            name = node.name.encode()
            if node.name in OR and len(left) < len(node.arguments):
                left = []
            call = [(b"call", name), *(pair for part in left for pair in part), (b"end", name)]
            parts.append(call if len(left) > 1 else next(iter(left), None))
        whole = parts[-1]
        if whole is None:
            return None
        return self._expression(_flat(whole) if is_flat else whole)

    def _expression(self, pairs: list[Pair]) -> pc.Expression:
        batch, sink = self._values.replace_schema_metadata(pa.KeyValueMetadata(pairs)), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as file:
            file.write_batch(batch)
        return self._restored(sink.getvalue())


def flat_name(path: FieldPath) -> str:
    """The name of a field of structs as a column of its own; that of a column as it is."""
    return "\0".join(path)


def field_at(schema: pa.Schema, path: FieldPath) -> pa.Field | None:
    """A column of a schema, or a field of structs; ``None`` if there is none, or another of its name."""
    found, inner = None, schema
    for name in path:
        place = inner.get_field_index(name) if isinstance(inner, (pa.Schema, pa.StructType)) else -1
        if place < 0:
            return None
        found = inner.field(place)
        inner = found.type
    return found


def _flat(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with each field of structs as a column."""
    left, flat = iter(pairs), list[Pair]()
    for key, text in left:
        if key == b"nested_field_ref":
            path = tuple(next(left)[1].decode() for _ in range(int(text)))
            key, text = b"field_ref", flat_name(path).encode()
        flat.append((key, text))
    return flat


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_floats(_value_type(kind.field(number).type)) for number in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _are_alike(members: pa.DataType, kind: pa.DataType | None) -> bool:
    """Whether the members of a list, which are cast to the type of a column, are the same values then.

    A time is a day after it, and pyarrow compares the time with the bounds.
    """
    return kind is not None and (
        members == kind
        or pa.types.is_null(members)
        or (pa.types.is_integer(members) and pa.types.is_integer(kind))
        or (members in _TEXTS and kind in _TEXTS)
    )


@dataclass(slots=True)
class _Begun:
    """A call whose end has not come yet."""

    start: int
    arguments: list[int] = field(default_factory=list)
    fields: set[FieldPath] = field(default_factory=set)
    options: int | None = None


def _nodes(pairs: Sequence[Pair]) -> Iterator[Node]:
    """The nodes of a tree, arguments before their calls. ``ValueError`` for a pair that is not known."""
    calls, count, at = [_Begun(0)], 0, 0
    while at < len(pairs):
        key, text = pairs[at][0], pairs[at][1].decode()
        start, at = at, at + 1
        if key == b"call":
            calls.append(_Begun(start))
            continue
        if key == b"options":
            calls[-1].options = int(text)
            continue
        if key == b"end":
            call = calls.pop()
            place, fields = slice(call.start, at), frozenset(call.fields)
            node = Node("call", text, place, fields, tuple(call.arguments), call.options)
        elif key == b"literal":
            node = Node("literal", text, slice(start, at), frozenset())
        elif key == b"field_ref":
            node = Node("field", text, slice(start, at), frozenset({(text,)}))
        elif key == b"nested_field_ref":
            at += int(text)
            path = tuple(name.decode() for _, name in pairs[start + 1 : at])
            node = Node("field", path[0], slice(start, at), frozenset({path}))
        else:
            raise ValueError(f"unknown part of an expression: {key!r}")
        calls[-1].arguments.append(count)
        calls[-1].fields.update(node.fields)
        count += 1
        yield node


def _pairs(file: pa.Buffer) -> list[Pair]:
    """The metadata of an Arrow file, in which a key may stand several times. pyarrow gives the first of each."""
    raw = memoryview(pa.ipc.read_message(file.slice(_MAGIC_BYTES)).metadata)

    def number(form: str, at: int) -> int:
        found: int = struct.unpack_from(form, raw, at)[0]
        return found

    def followed(at: int) -> int:
        return at + number("<I", at)

    def value(table: int, place: int) -> int:
        places = table - number("<i", table)
        return table + number("<H", places + 4 + 2 * place)

    def text(at: int) -> bytes:
        start = followed(at) + 4
        return bytes(raw[start : start + number("<I", start - 4)])

    schema = followed(value(followed(0), _HEADER_OF_MESSAGE))
    items = followed(value(schema, _METADATA_OF_SCHEMA))
    tables = [followed(items + 4 + 4 * place) for place in range(number("<I", items))]
    return [(text(value(table, 0)), text(value(table, 1))) for table in tables]
