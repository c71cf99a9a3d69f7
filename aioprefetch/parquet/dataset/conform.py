"""Batches of one file as batches of the dataset: columns in its order and of its types, with those of the path.

What a file lacks is null. Filters are applied here, to columns as the dataset has them: what is true of a row does not
depend on how a file stores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import InvalidArgument, Unsupported
from aioprefetch.filters import Filters, can_read, filter_expression, kept_rows, named_columns, row_mask
from aioprefetch.parquet.chunks import resolve_columns
from aioprefetch.parquet.dataset.union import SchemaUnion, merged
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.projection import Projection


@dataclass(frozen=True, slots=True)
class Target:
    """The columns of every batch of the dataset.

    ``names`` are the columns as they were asked for, ``schema`` has their fields; ``filter_schema`` those that
    ``expression`` reads.
    """

    names: Sequence[str]
    schema: pa.Schema
    expression: pc.Expression | None
    filter_schema: pa.Schema


class WantedColumns:
    """The columns that a scan asks for, collected from the footers of its files.

    Those that its files lack may be had from ``add_other``: a name that is asked for, or filtered by, is then a column
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
            projection = Projection(footer.metadata, footer.shape.paths, leaves, [name])
            self._nested.setdefault(name, []).append((projection.schema.field(0), footer.path))

    def _has(self, name: str) -> bool:
        return name in self.union or name in self._nested or name in self._others

    def _known(self) -> pa.Schema:
        """The columns whose types agree, those of other files behind."""
        known = self.union.known()
        return pa.schema([*known, *(field for field in self._others.known() if field.name not in self.union)])

    def declare(self, schema: pa.Schema, path: str) -> None:
        """Take the columns of a schema that the caller gave, in its order, instead of those of files."""
        self.union.add(schema, path)
        if self._columns is None:
            self._columns = schema.names

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
    """Makes batches of the dataset from those of one file.

    ``columns`` are to be read of it; ``values`` are those of its path.
    """

    def __init__(self, target: Target, footer: Footer, values: Mapping[str, pa.Scalar], *, is_filtered: bool) -> None:
        self._target = target
        self._footer = footer
        self._values = values
        self._present = [name for name in target.names if name not in values and has_column(footer, name)]
        self._filter_schema = target.filter_schema if is_filtered else pa.schema([])
        self._expression = target.expression if is_filtered else None
        filtered = [name for name in self._filter_schema.names if name not in values and name in footer.schema.names]
        self.columns: list[str] = list(dict.fromkeys([*self._present, *filtered]))
        self._projection: Projection | None = None

    def projection(self, leaves: Sequence[int]) -> Projection:
        """The projection of batches that have these leaves of the file."""
        footer = self._footer
        self._projection = Projection(footer.metadata, footer.shape.paths, leaves, self._present)
        return self._projection

    def finish(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The batch of the dataset from one that was read; ``None`` if no row of it matches."""
        assert self._projection is not None
        if self._expression is not None:
            batch = kept_rows(batch, self._matching(batch, self._expression), path=self._footer.path)
            if not batch.num_rows:
                return None
        read = iter(self._projection.apply(batch).columns)
        present = set(self._present)
        arrays = [
            self._cast(next(read), field) if name in present else self._constant(name, field, batch.num_rows)
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
                arrays.append(self._constant(field.name, field, batch.num_rows))
            else:
                arrays.append(self._cast(batch.column(place), field))
        seen = pa.Table.from_arrays(arrays, names=self._filter_schema.names)
        return row_mask(seen, expression, rows=batch.num_rows, path=self._footer.path)

    def _constant(self, name: str, field: pa.Field, rows: int) -> pa.Array:
        value = self._values.get(name)
        return pa.nulls(rows, field.type) if value is None else pa.repeat(value.cast(field.type), rows)

    def _cast(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if array.type.equals(field.type):
            return array
        try:
            return array.cast(field.type)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise Unsupported(
                f"column {field.name!r}, {array.type} in this file, does not fit {field.type}, which other files need:"
                f" {error}",
                operation="scan",
                path=self._footer.path,
            ) from error


def columns_alike(footer: Footer, schema: pa.Schema) -> set[str]:
    """The columns that a file has as ``schema`` has them: its statistics tell of them."""
    return {
        field.name
        for field in schema
        if field.name in footer.schema.names and footer.schema.field(field.name).type.equals(field.type)
    }


def prunable_filters(filters: Any, alike: set[str]) -> Filters:
    """The part of alternatives of clauses that the statistics of a file can decide; ``None`` if there is none."""
    if filters is None:
        return None
    alternatives = [[clause for clause in clauses if clause[0] in alike] for clauses in filters]
    return alternatives if alternatives and all(alternatives) else None
