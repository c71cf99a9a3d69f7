"""The schema of a Lance file or dataset: a tree of Arrow fields, and the columns that hold them.

A schema is stored as a flat list of fields, parents first, each with the id of its parent. In version 2.0 every struct,
list and leaf has a column, in later versions only leaves do. A packed struct is one column in all versions.

A type name is a word with parameters after colons: ``timestamp:us:UTC``, ``fixed_size_list:float:128``. Lists and
structs take their contents from child fields; the names of all other types are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from aioprefetch.errors import Error, InvalidArgument, Unsupported, UntrustedMetadata
from aioprefetch.lance.wire import FieldRule, MessageTable, ParsedMessage, message, uint
from aioprefetch.scan import column_names

_UNITS = ("s", "ms", "us", "ns")
_ALIASES = (
    *("null", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "halffloat", "float"),
    *("double", "string", "large_string", "binary", "large_binary"),
)
_PLAIN: dict[str, pa.DataType] = {
    **{name: pa.type_for_alias(name) for name in _ALIASES},
    **{f"duration:{unit}": pa.duration(unit) for unit in _UNITS},
    # Types of Lance's own, as they are stored.
    "json": pa.large_binary(),
    "lance.bfloat16": pa.binary(2),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
}
_INT32_MAX = (1 << 31) - 1

# The maximum depth of nested fixed-size lists: a name of a few kilobytes could nest thousands.
_TYPE_DEPTH_MAX = 32


def arrow_type(name: str, *, path: str = "", depth: int = 0) -> pa.DataType:
    """The Arrow type of a type name, other than ``list``, ``struct`` and ``map``.

    ``Unsupported`` for an unknown type, ``UntrustedMetadata`` for impossible parameters.
    """
    if (plain := _PLAIN.get(name)) is not None:
        return plain
    word, _, parameters = name.partition(":")
    make = _PARAMETRIC.get(word)
    if make is None:
        raise Unsupported(f"the logical type {name[:100]!r} is not supported", path=path)
    if depth > _TYPE_DEPTH_MAX:
        raise UntrustedMetadata(f"a logical type nests more than {_TYPE_DEPTH_MAX} deep", path=path)
    try:
        return make(parameters, path, depth)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        if isinstance(error, Error):
            raise
        raise UntrustedMetadata(f"the logical type {name[:100]!r} is damaged: {error}", path=path) from error


def list_size(name: str, *, path: str = "") -> int:
    """The number of items of ``fixed_size_list:item:size``."""
    size = name.rpartition(":")[2]
    if not size.isdecimal() or not size.isascii() or not 1 <= int(size[:12]) <= _INT32_MAX:
        raise UntrustedMetadata(f"the logical type {name[:100]!r} has no size of a list", path=path)
    return int(size)


def _timestamp(parameters: str, path: str, depth: int) -> pa.DataType:
    unit, _, zone = parameters.partition(":")
    if unit not in _UNITS:
        raise ValueError(f"{unit!r} is not a unit of time")
    return pa.timestamp(unit, None if zone in ("", "-") else zone)


def _fixed_size_binary(parameters: str, path: str, depth: int) -> pa.DataType:
    width = int(parameters)
    if not 0 <= width <= _INT32_MAX:
        raise ValueError(f"{width} is not a valid width")
    return pa.binary(width)


def _fixed_size_list(parameters: str, path: str, depth: int) -> pa.DataType:
    size = list_size(parameters, path=path)
    return pa.list_(arrow_type(parameters.rpartition(":")[0], path=path, depth=depth + 1), size)


def _decimal(parameters: str, path: str, depth: int) -> pa.DataType:
    bits, precision, scale = (int(part) for part in parameters.split(":"))
    match bits:
        case 128:
            return pa.decimal128(precision, scale)
        case 256:
            return pa.decimal256(precision, scale)
    raise Unsupported(f"decimals of {bits} bits are not supported", path=path)


def _dictionary(parameters: str, path: str, depth: int) -> pa.DataType:
    values, indices, ordered = parameters.rsplit(":", 2)
    index_type = arrow_type(indices, path=path, depth=depth + 1)
    if not pa.types.is_integer(index_type):
        raise ValueError(f"{indices!r} cannot count")
    return pa.dictionary(index_type, arrow_type(values, path=path, depth=depth + 1), ordered == "true")


_PARAMETRIC: dict[str, Callable[[str, str, int], pa.DataType]] = {
    "timestamp": _timestamp,
    "fixed_size_binary": _fixed_size_binary,
    "fixed_size_list": _fixed_size_list,
    "decimal": _decimal,
    "dict": _dictionary,
}


FIELD_TABLE = MessageTable(
    "Field",
    {
        1: uint("kind"),
        2: FieldRule("name", "text"),
        3: FieldRule("id", "int"),
        4: FieldRule("parent_id", "int"),
        5: FieldRule("logical_type", "text"),
        6: FieldRule("nullable", "bool"),
        9: FieldRule("extension_name", "text"),
        10: FieldRule("metadata", "map"),
    },
)
SCHEMA_TABLE = MessageTable(
    "Schema", {1: message("fields", FIELD_TABLE, repeated=True), 5: FieldRule("metadata", "map")}
)

_LISTS = ("list", "large_list", "list.struct", "large_list.struct")
_PACKED_KEYS = ("packed", "lance-encoding:packed")
_BLOB_KEY = "lance-encoding:blob"

# The maximum depth of fields, far above real schemas: each level takes a level of Python's stack.
_DEPTH_MAX = 64


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema with its children.

    ``arrow`` is the whole Arrow field: type, nullability and metadata (a string keeps the name of its extension type
    there, under ``ARROW:extension:name``). ``columns`` are the indices of the file's columns that hold the field and
    its children, in depth-first order; where children were left out by a projection it still spans all of them, so
    take a child's columns from the child. ``metadata`` values are bytes as stored. ``is_known`` is false for a type
    of a later version of Lance; ``arrow`` is null then.
    """

    name: str
    id: int
    logical_type: str
    nullable: bool
    metadata: Mapping[str, bytes]
    children: tuple[Field, ...]
    arrow: pa.Field
    columns: range = field(default=range(0))
    is_known: bool = True

    @property
    def is_packed(self) -> bool:
        """Whether it is a struct that is stored row by row in one column."""
        return self.logical_type == "struct" and any(
            self.metadata.get(key, b"").lower() == b"true" for key in _PACKED_KEYS
        )

    @property
    def is_blob(self) -> bool:
        """Whether its values lie outside the pages, which hold only descriptors."""
        return self.metadata.get(_BLOB_KEY, b"").lower() == b"true"

    @property
    def is_struct(self) -> bool:
        """Whether it is a struct."""
        return self.logical_type == "struct"

    @property
    def is_list(self) -> bool:
        """Whether it is a list of any number of items, of either offset width."""
        return self.logical_type in _LISTS

    @property
    def is_map(self) -> bool:
        """Whether it is a map."""
        return self.logical_type == "map"

    def is_one_column(self, version: tuple[int, int]) -> bool:
        """Whether a file of ``version`` keeps the whole field in one column."""
        if self.is_packed or not self.children:
            return True
        # Later versions store a fixed-size list of structs like any other list.
        return version == (2, 0) and not (self.is_struct or self.is_list or self.is_map)

    def with_children(self, children: Sequence[Field]) -> Field:
        """A copy with other children and the matching Arrow type."""
        arrow = _arrow_field(self.name, self.logical_type, self.nullable, self.metadata, children, "")
        return replace(self, children=tuple(children), arrow=arrow)


# The type of the description of a blob of version 2.0: its absolute position in the file, and its size in bytes.
BLOB_DESCRIPTION = pa.struct([("position", pa.uint64()), ("size", pa.uint64())])


def with_descriptions(member: Field) -> Field:
    """The field with descriptions in place of the blobs in it."""
    if member.is_blob:
        return replace(member, arrow=member.arrow.with_type(BLOB_DESCRIPTION))
    children = [with_descriptions(child) for child in member.children]
    return member if children == list(member.children) else member.with_children(children)


def walk(fields: Sequence[Field]) -> Iterator[Field]:
    """Every field, parents before their children."""
    for member in fields:
        yield member
        yield from walk(member.children)


def build_fields(rows: Sequence[ParsedMessage], *, path: str = "") -> tuple[Field, ...]:
    """Build the tree of a stored schema, without columns. ``UntrustedMetadata`` if the rows are not a tree."""
    children: dict[int, list[ParsedMessage]] = {-1: []}
    for row in rows:
        parent, identity = row.get("parent_id", 0), row.get("id", 0)
        if identity == -1:  # A part of a blob's description in 2.2, which is one column.
            continue
        if parent not in children or parent < -1:
            raise UntrustedMetadata(f"field {identity} stands before its parent {parent}", path=path)
        if identity < 0 or identity in children:
            raise UntrustedMetadata(f"two fields have the id {identity}, or it is negative", path=path)
        children[identity] = []
        children[parent].append(row)
    return tuple(_build(row, children, path, 0) for row in children[-1])


def _build(row: ParsedMessage, children: Mapping[int, Sequence[ParsedMessage]], path: str, depth: int) -> Field:
    if depth > _DEPTH_MAX:
        raise UntrustedMetadata(f"fields are nested more than {_DEPTH_MAX} deep", path=path)
    below = tuple(_build(child, children, path, depth + 1) for child in children[row.get("id", 0)])
    name, logical_type, nullable = row.get("name", ""), row.get("logical_type", ""), row.get("nullable", False)
    metadata = dict(row.get("metadata", {}))
    extension = row.get("extension_name", "")
    if extension:
        metadata.setdefault("ARROW:extension:name", extension.encode())
    try:
        arrow, is_known = _arrow_field(name, logical_type, nullable, metadata, below, path), True
    except Unsupported:
        arrow, is_known = pa.field(name, pa.null(), metadata=metadata or None), False
    return Field(name, row.get("id", 0), logical_type, nullable, metadata, below, arrow, is_known=is_known)


def _arrow_field(
    name: str, logical_type: str, nullable: bool, metadata: Mapping[str, bytes], children: Sequence[Field], path: str
) -> pa.Field:
    try:
        kind = _nested_type(logical_type, children, path)
    except (pa.ArrowException, ValueError, TypeError) as error:
        if isinstance(error, Error):
            raise
        raise UntrustedMetadata(f"field {name!r} cannot be a {logical_type[:100]!r}: {error}", path=path) from error
    return pa.field(name, kind, nullable, metadata=dict(metadata) or None)


def _nested_type(logical_type: str, children: Sequence[Field], path: str) -> pa.DataType:
    if logical_type == "struct":
        return pa.struct([child.arrow for child in children])
    if logical_type in _LISTS:
        item = _only_child(logical_type, children, path).arrow
        return pa.large_list(item) if logical_type.startswith("large") else pa.list_(item)
    if logical_type == "map":
        entries = _only_child(logical_type, children, path)
        if len(entries.children) != 2:
            raise UntrustedMetadata(f"a map has {len(entries.children)} fields in its entries", path=path)
        if not entries.children[0].is_known:
            raise Unsupported("keys of an unknown type", path=path)
        return pa.map_(*(child.arrow for child in entries.children))
    if children and logical_type.startswith("fixed_size_list:"):
        return pa.list_(_only_child(logical_type, children, path).arrow, list_size(logical_type, path=path))
    kind = arrow_type(logical_type, path=path)
    if children:
        raise UntrustedMetadata(f"a {logical_type[:100]!r} cannot have child fields", path=path)
    return kind


def _only_child(logical_type: str, children: Sequence[Field], path: str) -> Field:
    if len(children) != 1:
        raise UntrustedMetadata(f"a {logical_type[:100]!r} has {len(children)} child fields", path=path)
    return children[0]


def number_columns(fields: Sequence[Field], version: tuple[int, int], first: int = 0) -> tuple[tuple[Field, ...], int]:
    """The fields with their columns in a file of ``version``, and the index after the last column."""
    numbered: list[Field] = []
    column = first
    for member in fields:
        if member.is_one_column(version):
            end = column + 1
            children = member.children
        else:
            own = 1 if version == (2, 0) else 0
            children, end = number_columns(member.children, version, column + own)
        numbered.append(replace(member, children=children, columns=range(column, end)))
        column = end
    return tuple(numbered), column


def arrow_schema(fields: Sequence[Field], metadata: Mapping[str, bytes] | None = None) -> pa.Schema:
    """The Arrow schema of top-level fields."""
    return pa.schema([field.arrow for field in fields], metadata=dict(metadata) if metadata else None)


# --- projection -------------------------------------------------------------------------------------------------------


def check_known(fields: Sequence[Field], *, path: str = "", above: str = "") -> None:
    """Raise ``Unsupported`` for a field of an unknown type."""
    for member in fields:
        name = f"{above}{member.name}"
        check_known(member.children, path=path, above=f"{name}.")
        if not member.is_known:
            why = f"column {name!r} is of the type {member.logical_type[:100]!r}, which is not supported"
            raise Unsupported(f"{why}; columns= leaves it out", operation="scan", path=path)


def with_whole_rows(wanted: Field, stored: Field) -> Field:
    """A field to read for ``wanted``, a projection of ``stored``: packed structs are stored, and so decoded, whole."""
    if stored.is_packed:
        return stored
    by_name = {child.name: child for child in stored.children}
    children = tuple(with_whole_rows(child, by_name[child.name]) for child in wanted.children)
    return wanted if children == wanted.children else wanted.with_children(children)


def project(fields: Sequence[Field], columns: object | None, *, path: str = "") -> tuple[Field, ...]:
    """The fields named by ``columns``, in that order; all fields for ``None``.

    ``"a.b"`` is field ``b`` of struct ``a``: the result has ``a`` with its named children, in the order of the schema.
    A repeated name counts once. ``InvalidArgument`` for an unknown name lists the known ones. ``InvalidType`` if
    ``columns`` is not a list of names.
    """
    if columns is None:
        return tuple(fields)
    wanted: dict[str, set[tuple[str, ...]]] = {}
    by_name = {field.name: field for field in fields}
    for name in column_names(columns, path=path):
        top, inner = (name, ()) if name in by_name else _split(name)
        if top not in by_name:
            raise _unknown(name, by_name, path)
        wanted.setdefault(top, set()).add(inner)
    return tuple(_prune(by_name[top], inner, top, path) for top, inner in wanted.items())


def _split(name: str) -> tuple[str, tuple[str, ...]]:
    top, *inner = name.split(".")
    return top, tuple(inner)


def _prune(field: Field, wanted: set[tuple[str, ...]], name: str, path: str) -> Field:
    """A field with its wanted descendants. The empty path stands for all of them."""
    if () in wanted:
        return field
    children = {child.name: child for child in field.children} if field.is_struct else {}
    below: dict[str, set[tuple[str, ...]]] = {}
    for inner in wanted:
        if inner[0] not in children:
            raise _unknown(".".join((name, *inner)), [f"{name}.{child}" for child in children], path)
        below.setdefault(inner[0], set()).add(inner[1:])
    kept = [
        _prune(child, below[child.name], f"{name}.{child.name}", path)
        for child in field.children
        if child.name in below
    ]
    return field.with_children(kept)


def _unknown(name: str, field_names: Iterable[str], path: str) -> InvalidArgument:
    names = list(field_names)
    shown = ", ".join(names[:50]) + (", ..." if len(names) > 50 else "") if names else "none"
    return InvalidArgument(f"there is no column {name!r}; there are: {shown}", operation="scan", path=path)


def needed_columns(fields: Sequence[Field], version: tuple[int, int]) -> Iterator[int]:
    """The indices of the file's columns that hold the fields of a schema or of a projection."""
    for member in fields:
        if member.is_one_column(version):
            yield from member.columns
            continue
        if version == (2, 0):
            yield member.columns.start
        yield from needed_columns(member.children, version)
