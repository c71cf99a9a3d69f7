"""One schema for many files: the union of their columns by name, each of the narrowest type that holds all. No I/O.

The rules are those of ``pyarrow.unify_schemas`` with ``promote_options="permissive"``: wider integers and decimals,
integers with floating point (decimals never), finer timestamps, large strings; but integers and decimals make decimals
with room for all values of both. A column that a file lacks is null there. Where a file and its path have a column of
one name, the path's value counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pyarrow as pa

from aioprefetch.errors import InvalidArgument, Unsupported

# The number of names that an error lists.
_NAMES_MAX = 20

# The number of schemas that are remembered: a file with one of them costs a comparison.
_SCHEMAS_MAX = 8


class SchemaUnion:
    """The columns of files, file after file, in the order in which they come up; partition columns are last.

    Columns whose types have nothing in common are an error of the scans that ask for them, and of no others.
    """

    def __init__(self, partitions: pa.Schema) -> None:
        self._partitions = partitions
        self._fields: dict[str, pa.Field] = {}
        self._typed_by: dict[str, str] = {}  # The file that gave a column the type that it has.
        self._conflicts: dict[str, str] = {}
        self.metadata: dict[bytes, bytes] | None = None
        self._seen: deque[pa.Schema] = deque(maxlen=_SCHEMAS_MAX)
        self.path = ""

    def __contains__(self, name: str) -> bool:
        return name in self._fields or name in self._partitions.names

    def add(self, schema: pa.Schema, path: str) -> bool:
        """Take the schema of one more file. Whether it is another one than those of the files before."""
        if any(schema.equals(known, check_metadata=True) for known in self._seen):
            return False
        if len(set(schema.names)) < len(schema.names):
            raise Unsupported("two columns have one name: such a file is read alone", operation="scan", path=path)
        is_first = not self._seen
        if is_first:
            self.metadata, self.path = schema.metadata, path
        self._seen.append(schema)
        for field in schema:
            self._add_field(field, path, is_new=not is_first)
        present = set(schema.names)
        for name, field in self._fields.items():
            if name not in present and not field.nullable:
                self._fields[name] = field.with_nullable(True)
        return True

    def _add_field(self, field: pa.Field, path: str, *, is_new: bool) -> None:
        known = self._fields.get(field.name)
        if known is None:
            self._fields[field.name] = field.with_nullable(True) if is_new else field
            self._typed_by[field.name] = path
        elif not known.equals(field):
            try:
                self._fields[field.name] = wider = _wider(known, field)
            except (pa.ArrowException, TypeError):
                before = self._typed_by[field.name]
                self._conflicts.setdefault(
                    field.name, f"column {field.name!r} is {field.type} in {path!r} and {known.type} in {before!r}"
                )
            else:
                if not wider.type.equals(known.type):
                    self._typed_by[field.name] = path

    def schema(self) -> pa.Schema:
        """All columns. ``Unsupported`` if the types of one have nothing in common."""
        names = [*(name for name in self._fields if name not in self._partitions.names), *self._partitions.names]
        return pa.schema([self.field(name) for name in names], metadata=self.metadata)

    def field(self, name: str) -> pa.Field:
        """A column. ``InvalidArgument`` if no file has it, ``Unsupported`` if its types have nothing in common."""
        if name in self._partitions.names:
            return self._partitions.field(name)
        if name not in self._fields:
            names = [*self._fields, *self._partitions.names]
            more = f", … ({len(names)} in all)" if len(names) > _NAMES_MAX else ""
            raise InvalidArgument(
                f"there is no column {name!r}; the files have {', '.join(map(repr, names[:_NAMES_MAX]))}{more}",
                operation="scan",
                path=self.path,
            )
        if name in self._conflicts:
            raise Unsupported(
                f"{self._conflicts[name]}: leave it out by columns=, or read these files apart",
                operation="scan",
                path=self.path,
            )
        return self._fields[name]

    def known(self) -> pa.Schema:
        """The columns whose types agree: what an expression may be about."""
        names = [name for name in self._fields if name not in self._conflicts and name not in self._partitions.names]
        return pa.schema([*(self._fields[name] for name in names), *self._partitions])


def merged(fields: Sequence[tuple[pa.Field, str]], name: str) -> pa.Field:
    """The field that holds all ``fields``, each with the path of its file, of which there is at least one."""
    found, before = fields[0]
    for field, path in fields[1:]:
        if not found.equals(field):
            try:
                found = _wider(found, field)
            except (pa.ArrowException, TypeError) as error:
                raise Unsupported(
                    f"column {name!r} is {field.type} in {path!r} and {found.type} in {before!r}",
                    operation="scan",
                    path=path,
                ) from error
            before = path
    return found


def _wider(one: pa.Field, other: pa.Field) -> pa.Field:
    kinds = one.type, other.type
    if any(map(pa.types.is_decimal, kinds)) and any(map(pa.types.is_floating, kinds)):
        raise TypeError("a decimal does not keep its value as a floating-point number")
    if any(map(pa.types.is_decimal, kinds)):  # pyarrow's own rule leaves an integer no room for the decimal places.
        one, other = one.with_type(_exact(one.type)), other.with_type(_exact(other.type))
    schemas = [pa.schema([one]), pa.schema([other.with_name(one.name)])]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0)
    except (pa.ArrowException, TypeError):
        plain = [pa.schema([schema.field(0).with_type(_plain(schema.field(0).type))]) for schema in schemas]
        return pa.unify_schemas(plain, promote_options="permissive").field(0)


def _exact(kind: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of an integer type; any other type as it is."""
    if not pa.types.is_integer(kind):
        return kind
    bits = kind.bit_width if pa.types.is_unsigned_integer(kind) else kind.bit_width - 1
    return pa.decimal128(len(str((1 << bits) - 1)))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, where ``kind`` is one of dictionaries."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind
