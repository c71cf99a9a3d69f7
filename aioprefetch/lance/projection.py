"""The columns that a scan reads, and the batches that it makes of them: the rows that match, the wanted columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.filters import (
    Filters,
    check_clauses,
    check_expression,
    filter_expression,
    filtered,
    kept_rows,
    named_columns,
    row_mask,
)
from aioprefetch.lance.reordered import rows_without_columns
from aioprefetch.lance.schema import Field, arrow_schema, project

Finish = Callable[[pa.RecordBatch], pa.RecordBatch | None]


@dataclass(frozen=True, slots=True)
class Projection:
    """The fields to read and their schema; the schema of the result, and ``finish``, which makes it of a batch."""

    fields: tuple[Field, ...]
    read_schema: pa.Schema
    schema: pa.Schema
    finish: Finish | None = None


def make_projection(
    fields: Sequence[Field],
    columns: object | None,
    filters: Filters,
    metadata: Mapping[str, bytes] | None,
    *,
    path: str,
    hidden: Sequence[Field] = (),
) -> Projection:
    """The projection of a scan of a table with ``fields``, and with ``hidden`` ones that are there by name alone.

    Columns that only ``filters`` need are read and dropped.
    ``InvalidArgument`` for columns that the table does not have, and for filters that do not go with their types.
    """
    wanted = tuple(fields) if columns is None else project([*fields, *hidden], columns, path=path)
    schema = arrow_schema(wanted, metadata)
    expression = filter_expression(filters, path=path)
    if expression is None:
        return Projection(wanted, schema, schema)
    fields = [*fields, *hidden]
    whole = arrow_schema(fields)
    check_clauses(filters, whole, path=path)
    names = named_columns(whole, filters, path=path)
    # A struct that the filters read is read whole, since an expression may ask for any of its fields.
    by_name = {field.name: field for field in fields}
    read = {field.name: field for field in wanted} | {name: by_name[name] for name in names}
    read_schema = arrow_schema(tuple(read.values()), metadata)
    check_expression(read_schema, expression, names, path=path)  # A table without rows would not show it.
    finish = partial(_matching_rows, schema, expression, names, path)
    return Projection(tuple(read.values()), read_schema, schema, finish)


def _matching_rows(
    schema: pa.Schema, expression: pc.Expression, names: Sequence[str], path: str, batch: pa.RecordBatch
) -> pa.RecordBatch | None:
    """The wanted columns of the rows that match; ``None`` without such a row."""
    if not names:  # Without columns a batch does not know how many of its rows are left.
        mask = row_mask(pa.schema([]).empty_table(), expression, rows=batch.num_rows, path=path)
        if not schema.names:
            return rows_without_columns(schema, mask.true_count) if mask.true_count else None
        kept = kept_rows(batch, mask, path=path)
    else:
        kept = filtered(batch, expression, names, path=path)
    return _selected(kept, schema) if kept.num_rows else None


def _selected(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not schema.names:
        return rows_without_columns(schema, batch.num_rows)
    columns = [_with_fields(batch.column(place), field.type) for place, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_fields(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of structs with only those fields that the type ``kind`` has, in its order. Others as they are."""
    if array.type.equals(kind) or not pa.types.is_struct(kind):
        return array
    places = [array.type.get_field_index(field.name) for field in kind]
    children = [_with_fields(array.field(place), field.type) for place, field in zip(places, kind, strict=True)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
