"""The columns of a result: the leaves that they need, one schema for many files, and batches that conform to it.

**Projection**, as in ``pyarrow.parquet.read_table``: ``"a.b"`` is field ``b`` of struct ``a``, and comes as a column
``b``, null where the struct is. Below a list or a map pyarrow's table reader has no names; there ``"l.list.element.b"``
gives the column ``l`` with the leaves that were named alone, as ``pyarrow.parquet.ParquetFile`` does.

**One schema** is the union of the columns by name, each of the narrowest type that holds all. The rules are as in
``pyarrow.unify_schemas`` with ``promote_options="permissive"``: wider integers and decimals, integers with floating
point (decimals never), finer timestamps, large strings; but integers and decimals make decimals with room for all
values of both. A column that a file lacks is null there. Where a file and its path have a column of one name, the
path's value counts.

What a file lacks is null. Filters are applied here, to columns as the dataset has them: what is true of a row does not
depend on how a file stores it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch import arrow_compute as pc
from aioprefetch.errors import InvalidArgument, Unsupported
from aioprefetch.filters import Filters, can_read, filter_expression, kept_rows, named_columns, row_mask
from aioprefetch.parquet.byte_plan import Plan
from aioprefetch.parquet.chunks import resolve_columns
from aioprefetch.parquet.decoded_values import check_cast
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.row_groups import read_schema
from aioprefetch.row_ranges import RowNumbers, RowRanges


@dataclass(frozen=True, slots=True)
class _ResultColumn:
    """A column of the result: the column at ``place`` of the batches that are read, or its field at ``path``."""

    place: int
    path: tuple[str, ...]
    field: pa.Field


class Projection:
    """``read`` is the schema of the ``leaves`` that are read, ``schema`` the result's.

    ``places`` has, for each leaf, the column of ``read`` that it is part of.
    """

    def __init__(self, footer: Footer, leaves: Sequence[int], columns: Sequence[str] | None) -> None:
        self.leaves = tuple(leaves)
        paths, int96 = footer.shape.paths, footer.int96
        self.read: pa.Schema = read_schema(footer.metadata, self.leaves, None if int96 is None else int96.unit)
        self.places = _places(paths, self.leaves)
        if self.places and self.places[-1] + 1 != len(self.read):
            raise Unsupported("two columns of structs or lists side by side have one name", operation="scan")
        names = [paths[leaf][0] for leaf in self.leaves]
        place_of = dict(zip(names, self.places, strict=True))
        if columns is None:
            self._outputs = [_ResultColumn(place, (), field) for place, field in enumerate(self.read)]
        else:
            self._outputs = [_output(name, place_of, self.read) for name in columns]
        fields = [output.field for output in self._outputs]
        self.schema = pa.schema(fields, metadata=self.read.metadata)
        self.is_identity = [(output.place, output.path) for output in self._outputs] == [
            (place, ()) for place in range(len(self.read))
        ]

    def apply(self, batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        """The result's columns of a batch that was read; where its rows stand does not matter."""
        if self.is_identity:
            return batch
        if not self._outputs:
            return batch.select([])
        arrays = []
        for output in self._outputs:
            array = batch.column(output.place)
            arrays.append(pc.struct_field(array, list(output.path)) if output.path else array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _places(paths: Sequence[tuple[str, ...]], leaves: Sequence[int]) -> list[int]:
    """The top-level column of each leaf, among the leaves that are read."""
    starts = top_level_starts(paths)
    found = [starts[leaf] for leaf in leaves]
    places = {start: place for place, start in enumerate(dict.fromkeys(found))}
    return [places[start] for start in found]


def top_level_starts(paths: Sequence[tuple[str, ...]]) -> list[int]:
    """For each leaf the first leaf of its top-level column."""
    starts: list[int] = []
    for leaf, path in enumerate(paths):
        is_same = leaf > 0 and len(path) > 1 and len(paths[leaf - 1]) > 1 and paths[leaf - 1][0] == path[0]
        starts.append(starts[-1] if is_same else leaf)
    return starts


def _output(name: str, place_of: dict[str, int], read: pa.Schema) -> _ResultColumn:
    if name in place_of:
        place = place_of[name]
        return _ResultColumn(place, (), read.field(place))
    # The longest name of a top-level column that the dotted name begins with.
    top = max((prefix for prefix in place_of if name.startswith(prefix + ".")), key=len)
    place = place_of[top]
    field = read.field(place)
    steps: list[str] = []
    rest = name[len(top) + 1 :]
    nullable = field.nullable
    inner = field
    while rest:
        step = _field_named(inner.type, rest)
        if step is None:
            return _ResultColumn(place, (), field)
        inner = inner.type.field(step)
        steps.append(step)
        nullable = nullable or inner.nullable
        rest = rest[len(step) + 1 :]
    return _ResultColumn(place, tuple(steps), pa.field(inner.name, inner.type, nullable, inner.metadata))


def _field_named(kind: pa.DataType, dotted: str) -> str | None:
    """The field of a struct whose name ``dotted`` is or begins with."""
    if not pa.types.is_struct(kind):
        return None
    names = [kind.field(place).name for place in range(kind.num_fields)]
    matches = [candidate for candidate in names if dotted == candidate or dotted.startswith(candidate + ".")]
    return max(matches, key=len) if matches else None


# --- one schema -------------------------------------------------------------------------------------------------------

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

    def has_in_files(self, name: str) -> bool:
        """Whether a file has the column itself, and not its path alone."""
        return name in self._fields

    def add(self, schema: pa.Schema, path: str) -> bool:
        """Take the schema of one more file. Whether it differs from the files before."""
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

    def declare(self, schema: pa.Schema, path: str) -> None:
        """Take a schema that the caller gave: it says of partitions too whether they may be null."""
        self.add(schema, path)
        given = {field.name: field for field in schema}
        self._partitions = pa.schema([given.get(field.name, field) for field in self._partitions])

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
    """The field that holds all ``fields``, each with the path of its file. There is at least one."""
    union = SchemaUnion(pa.schema([]))
    for field, path in fields:
        union.add(pa.schema([field.with_name(name)]), path)
    return union.field(name).with_name(fields[0][0].name)


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


# --- batches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """The columns of every batch of the dataset.

    ``names`` are the columns as they were asked for, ``schema`` has their fields; ``filter_schema`` the fields that
    ``expression`` reads.
    """

    names: Sequence[str]
    schema: pa.Schema
    expression: pc.Expression | None
    filter_schema: pa.Schema


class WantedColumns:
    """The columns that a scan asks for, collected from the footers of its files.

    Columns that its files lack may come from ``add_other``: a name that is asked for, or filtered by, is then a column
    of nulls, of the type that files have which the filters left out.
    """

    def __init__(self, columns: Sequence[str] | None, partitions: pa.Schema) -> None:
        self.union = SchemaUnion(partitions)
        self._others = SchemaUnion(partitions)
        self._partitions = partitions
        self._columns = columns
        self._nested: dict[str, list[tuple[pa.Field, str]]] = {}
        self._schemas = 0

    def add(self, footer: Footer) -> None:
        """Take the columns of one more file."""
        if not self.union.add(footer.schema, footer.path):
            return
        self._schemas += 1
        for name in self._columns or ():
            self._add_nested(name, footer)

    def add_other(self, footer: Footer) -> None:
        """Take the columns that are still missing from a file that is not read."""
        missing = [name for name in self._columns or () if not self._has(name)]
        self._others.add(footer.schema, footer.path)
        self._schemas += 1  # Fields of structs that were found here are null elsewhere.
        for name in missing:
            self._add_nested(name, footer)

    def lacks(self, filters: Filters) -> bool:
        """Whether a column that is asked for, or filtered by, was in none of the files so far.

        Of an expression it is not known which one: it lacks something where it cannot be evaluated.
        """
        if not all(self._has(name) for name in self._columns or ()):
            return True
        if isinstance(filters, pc.Expression):
            return not can_read(self._known(), filters)
        return not all(self._has(clause[0]) for alternative in filters or () for clause in alternative)

    def _add_nested(self, name: str, footer: Footer) -> None:
        if "." in name and name not in footer.schema.names and has_column(footer, name):
            leaves = resolve_columns(footer, [name])
            projection = Projection(footer, leaves, [name])
            self._nested.setdefault(name, []).append((projection.schema.field(0), footer.path))

    def _has(self, name: str) -> bool:
        return name in self.union or name in self._nested or name in self._others

    def _known(self) -> pa.Schema:
        """The columns whose types agree, the columns of other files behind."""
        known = self.union.known()
        return pa.schema([*known, *(field for field in self._others.known() if field.name not in self.union)])

    def declare(self, schema: pa.Schema, path: str, added: Sequence[str] = ()) -> None:
        """Take the columns of a schema that the caller gave, in its order and with the ``added`` ones."""
        self.union.declare(schema, path)
        if self._columns is None:
            self._columns = [*schema.names, *(name for name in added if name not in schema.names)]

    def target(self, filters: Filters) -> Target:
        """The columns of all batches. ``InvalidArgument`` for unknown columns, ``Unsupported`` for clashing types."""
        whole = self.union.schema() if self._columns is None else None
        names = whole.names if whole is not None else list(self._columns or ())
        schema = whole if whole is not None else pa.schema([self._field(name) for name in names], self.union.metadata)
        expression = filter_expression(filters, path=self.union.path)
        return Target(names, schema, expression, self._filter_schema(filters, expression))

    def _field(self, name: str) -> pa.Field:
        found = self._nested.get(name)
        if not found:
            return self._flat_field(name)
        field = merged(found, name)
        return field.with_nullable(True) if len(found) < self._schemas else field

    def _flat_field(self, name: str) -> pa.Field:
        if name in self._others and name not in self.union:
            return self._others.field(name).with_nullable(True)
        return self.union.field(name)

    def _filter_schema(self, filters: Filters, expression: pc.Expression | None) -> pa.Schema:
        if expression is None:
            return pa.schema([])
        if isinstance(filters, pc.Expression):
            names = named_columns(self._known(), filters, path=self.union.path)
        else:
            names = list(dict.fromkeys(clause[0] for clauses in filters for clause in clauses))
        schema = pa.schema([self._flat_field(name) for name in names])
        row_mask(schema.empty_table(), expression, path=self.union.path)  # Files without rows would not show an error.
        return schema


def has_column(footer: Footer, name: str) -> bool:
    """Whether a file has a column, or a field below one."""
    if name in footer.schema.names:
        return True
    if "." not in name:
        return False
    try:
        resolve_columns(footer, [name])
    except InvalidArgument:
        return False
    return True


class FileBatches:
    """Makes batches of the dataset from the batches of one file.

    ``columns`` are to be read of it; ``values`` come from its path. Unless ``fills``, a column that it lacks is an
    error. The column ``row_index`` has the numbers of the file's rows; those ``dropped`` (ascending) are left out.
    """

    def __init__(
        self,
        target: Target,
        footer: Footer,
        values: Mapping[str, pa.Scalar],
        *,
        is_filtered: bool,
        fills: bool = True,
        row_index: str | None = None,
        dropped: RowNumbers | None = None,
    ) -> None:
        self._target = target
        self._footer = footer
        self._values = values
        self._present = [name for name in target.names if name not in values and has_column(footer, name)]
        self._filter_schema = target.filter_schema if is_filtered else pa.schema([])
        self._expression = target.expression if is_filtered else None
        filtered = [name for name in self._filter_schema.names if name not in values and name in footer.schema.names]
        self.columns: list[str] = list(dict.fromkeys([*self._present, *filtered]))
        self._projection: Projection | None = None
        self._row_index = row_index
        self._dropped = dropped
        self._numbered = row_index or _unused_name(footer.schema.names)
        self._rows = RowRanges.of([])
        known = {*self._present, *filtered, row_index, *(name for name, value in values.items() if value.is_valid)}
        names = [*target.names, *self._filter_schema.names]
        for name, field in zip(names, (*target.schema, *self._filter_schema), strict=True):
            if not field.nullable and name not in known:
                raise self._unfit(name, " is not in this file, and not null in the table")
            if not (fills or name in known or name in values):
                raise self._unfit(name, " is not in this file, and missing_columns= says that it must be")

    def projection(self, plan: Plan) -> Projection:
        """The projection of batches of the leaves and rows of a plan."""
        self._projection = Projection(self._footer, plan.columns, self._present)
        self._rows = RowRanges.of(plan.rows)
        return self._projection

    def finish(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch | None:
        """The dataset's batch of a batch read, which starts at ``first_row`` of the plan; ``None`` if none matches."""
        assert self._projection is not None
        if self._row_index is not None or self._dropped is not None:
            numbers = self._rows.rows_between(first_row, first_row + batch.num_rows)
            batch = batch.append_column(self._numbered, pa.array(numbers, pa.int64()))
            if self._dropped is not None:
                places = np.searchsorted(self._dropped, numbers)
                is_left = np.append(self._dropped, -1)[places] != numbers
                batch = kept_rows(batch, pa.array(is_left), path=self._footer.path)
        if self._expression is not None:
            batch = kept_rows(batch, self._matching(batch, self._expression), path=self._footer.path)
            if not batch.num_rows:
                return None
        read = iter(self._projection.apply(batch).columns)
        present = set(self._present)
        arrays = [
            self._cast(next(read), field) if name in present else self._made(name, field, batch)
            for name, field in zip(self._target.names, self._target.schema, strict=True)
        ]
        if not arrays:
            return batch.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self._target.schema)

    def _matching(self, batch: pa.RecordBatch, expression: pc.Expression) -> pa.BooleanArray:
        arrays = []
        for field in self._filter_schema:
            place = -1 if field.name in self._values else batch.schema.get_field_index(field.name)
            if place < 0:
                arrays.append(self._made(field.name, field, batch))
            else:
                arrays.append(self._cast(batch.column(place), field))
        seen = pa.Table.from_arrays(arrays, names=self._filter_schema.names)
        return row_mask(seen, expression, rows=batch.num_rows, path=self._footer.path)

    def _made(self, name: str, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
        """A column that the file does not have: the numbers of the rows, a value of the path, or nulls."""
        if name == self._row_index:
            return batch.column(batch.num_columns - 1)
        value, rows = self._values.get(name), batch.num_rows
        return pa.nulls(rows, field.type) if value is None else pa.repeat(value.cast(field.type), rows)

    def _cast(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if not array.type.equals(field.type):
            try:
                cast = array.cast(field.type)
                check_cast(array, cast)
            except (pa.ArrowException, ValueError, TypeError) as error:
                why = f", {array.type} in this file, does not fit {field.type}: {error}"
                raise self._unfit(field.name, why) from error
            array = cast
        if array.null_count and not field.nullable:
            raise self._unfit(field.name, " has a null in this file, and is not null in the table")
        return array

    def _unfit(self, name: str, why: str) -> Unsupported:
        return Unsupported(f"column {name!r}{why}", operation="scan", path=self._footer.path)


def _unused_name(names: Sequence[str]) -> str:
    name = "row"
    while name in names:
        name += "_"
    return name


def columns_alike(footer: Footer, schema: pa.Schema) -> set[str]:
    """The columns that a file has as ``schema`` has them: its statistics tell of them."""
    return {
        field.name
        for field in schema
        if field.name in footer.schema.names and _small(footer.schema.field(field.name).type).equals(_small(field.type))
    }


def _small(kind: pa.DataType) -> pa.DataType:
    """The type whose values have the same order, and offsets of 32 bits."""
    return pa.string() if pa.types.is_large_string(kind) else pa.binary() if pa.types.is_large_binary(kind) else kind


def prunable_filters(filters: Any, alike: set[str]) -> Filters:
    """The part of alternatives of clauses that the statistics of a file can decide, or ``None``."""
    if filters is None:
        return None
    alternatives = [[clause for clause in clauses if clause[0] in alike] for clauses in filters]
    return alternatives if alternatives and all(alternatives) else None
