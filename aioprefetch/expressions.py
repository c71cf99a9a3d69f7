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
from typing import Literal

import pyarrow as pa

from aioprefetch import arrow_compute as pc

Pair = tuple[bytes, bytes]

_AND, _OR = ("and_kleene", "and"), ("or_kleene", "or")
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
# The fields of tables in the format of Arrow files.
_HEADER_OF_MESSAGE, _METADATA_OF_SCHEMA = 2, 2
_MAGIC_BYTES = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression: ``name`` is the function, the outermost field, or the number of a literal.

    ``arguments`` and ``options`` are numbers: of nodes, and of the column that has the options. ``pairs`` is where it
    stands, ``columns`` are the top-level fields in it.
    """

    kind: Literal["call", "field", "nested", "literal"]
    name: str
    pairs: slice
    columns: frozenset[str]
    arguments: tuple[int, ...] = ()
    options: int | None = None


class ExpressionTree:
    """The nodes of an expression, arguments before their calls, the whole last."""

    def __init__(self, expression: pc.Expression) -> None:
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
        return self.nodes[-1].columns

    def about(self, columns: Collection[str]) -> pc.Expression | None:
        """The condition on ``columns`` alone that holds wherever the expression does, or ``None``."""
        return self._part([node.columns.issubset(columns) for node in self.nodes])

    def about_ranges(self, schema: pa.Schema) -> pc.Expression | None:
        """The condition that bounds and null counts of the columns of ``schema`` can decide; ``None`` without one.

        Only forms that are known: a comparison of a column with a literal, ``is_in``, ``is_valid``, ``is_null``, and
        what ``and``, ``or`` and ``invert`` make of these. Bounds say nothing of NaN, which is in no range, but matches
        an inversion and ``!=``: of floating-point columns no form is known that a NaN may match.
        """
        types = {column.name: _value_type(column.type) for column in schema}
        floats = {name for name, kind in types.items() if _has_floats(kind)}
        known: list[bool] = []
        for node in self.nodes:
            known.append(self._is_about_ranges(node, known, types, floats))
        return self._part(known)

    def _is_about_ranges(
        self, node: Node, known: Sequence[bool], types: Mapping[str, pa.DataType], floats: Collection[str]
    ) -> bool:
        arguments = [self.nodes[number] for number in node.arguments]
        has_floats = not node.columns.isdisjoint(floats)
        if node.kind != "call":
            return node.kind == "literal" or (node.kind == "field" and not has_floats)
        if node.name in (*_AND, *_OR):
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
            is_alike = members is not None and _are_alike(members.type.value_type, types.get(arguments[0].name))
            return is_alike and not has_floats and behavior is not None and behavior.as_py() == 0
        counts_nan = self._option(node, "nan_is_null")
        return node.name == "is_valid" or (node.name == "is_null" and counts_nan is not None and not counts_nan.as_py())

    def _is_nan(self, literal: Node) -> bool:
        value = self._values.column(int(literal.name))[0]
        return bool(pa.types.is_floating(value.type) and value.as_py() != value.as_py())

    def _option(self, node: Node, name: str) -> pa.Scalar | None:
        options = None if node.options is None else self._values.column(node.options)[0]
        return options[name] if options is not None and name in options else None

    def _part(self, kept: Sequence[bool]) -> pc.Expression | None:
        """The expression of the nodes that are kept: less of an ``and``, all of an ``or`` or nothing."""
        parts: list[list[Pair] | None] = []
        for node, is_kept in zip(self.nodes, kept, strict=True):
            if is_kept or node.name not in (*_AND, *_OR) or node.kind != "call":
                parts.append(self._pairs[node.pairs] if is_kept else None)
                continue
            left = [part for number in node.arguments if (part := parts[number]) is not None]
            name = node.name.encode()
            if node.name in _OR and len(left) < len(node.arguments):
                left = []
            whole = [(b"call", name), *(pair for part in left for pair in part), (b"end", name)]
            parts.append(whole if len(left) > 1 else next(iter(left), None))
        return None if parts[-1] is None else self._expression(parts[-1])

    def _expression(self, pairs: list[Pair]) -> pc.Expression:
        batch, sink = self._values.replace_schema_metadata(pa.KeyValueMetadata(pairs)), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as file:
            file.write_batch(batch)
        return self._restored(sink.getvalue())


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
    columns: set[str] = field(default_factory=set)
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
            place, columns = slice(call.start, at), frozenset(call.columns)
            node = Node("call", text, place, columns, tuple(call.arguments), call.options)
        elif key == b"literal":
            node = Node("literal", text, slice(start, at), frozenset())
        elif key == b"field_ref":
            node = Node("field", text, slice(start, at), frozenset({text}))
        elif key == b"nested_field_ref":
            name, at = pairs[at][1].decode(), at + int(text)
            node = Node("nested", name, slice(start, at), frozenset({name}))
        else:
            raise ValueError(f"unknown part of an expression: {key!r}")
        calls[-1].arguments.append(count)
        calls[-1].columns.update(node.columns)
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
