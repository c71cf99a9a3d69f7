"""Filters of a scan: their forms, the columns that they read, and the rows of a decoded batch that match."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from aioprefetch import arrow_compute as pc
from aioprefetch.errors import InvalidArgument, InvalidType, Unsupported
from aioprefetch.expressions import ExpressionTree

if TYPE_CHECKING:
    from aioprefetch.runtime.runtime import Runtime

OPERATORS = ("=", "==", "!=", "<", ">", "<=", ">=", "in", "not in")

Clause = tuple[str, str, Any]
# Alternatives of clauses that must all hold: pyarrow's disjunctive normal form.
Dnf = list[list[Clause]]
# Alternatives, an expression of pyarrow's (which has no types), or ``None``.
Filters: TypeAlias = Any


def checked_filters(filters: Any, *, path: str = "") -> Filters:
    """Filters in one of two forms, alternatives of clauses or an expression as it is, checked without the file.

    A list of ``(column, operator, value)`` is one alternative. A column is a name, or the tuple of names of a field of
    a struct, which makes an expression of the filters. Lists of values are copied, since a scan may begin long after
    the call. ``InvalidArgument`` for unknown operators, ``InvalidType`` for other than a list of clauses.
    """
    if filters is None or isinstance(filters, pc.Expression):
        return filters
    listed = _as_list(filters, path)
    if not listed or [] in listed:
        raise InvalidArgument("filters= has an empty list; leave it away", operation="scan", path=path)
    if isinstance(listed[0], (list, tuple)) and len(listed[0]) == 3 and isinstance(listed[0][1], str):
        listed = [listed]
    checked = [[_clause(clause, path) for clause in _as_list(alternative, path)] for alternative in listed]
    names_fields = any(isinstance(clause[0], tuple) for clauses in checked for clause in clauses)
    return filter_expression(checked, path=path) if names_fields else checked


def _as_list(value: Any, path: str) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise InvalidType(
            f"filters must be a list of (column, operator, value), lists of them or an Expression, not {value!r}",
            operation="scan",
            path=path,
        )
    return list(value)


def _clause(clause: Any, path: str) -> Clause:
    if not isinstance(clause, (list, tuple)) or len(clause) != 3 or not _is_name(clause[0]):
        raise InvalidType(f"a filter is (column, operator, value), not {clause!r}", operation="scan", path=path)
    column, operator, value = clause
    if operator not in OPERATORS:
        raise InvalidArgument(f"{operator!r} must be one of {', '.join(OPERATORS)}", operation="scan", path=path)
    if operator in ("in", "not in"):
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise InvalidType(f"{operator!r} needs a list, not {value!r}", operation="scan", path=path)
        value = list(value)
    return column, operator, value


def _is_name(column: Any) -> bool:
    names = column if isinstance(column, tuple) and len(column) > 1 else (column,)
    return all(isinstance(name, str) for name in names)


def filter_expression(filters: Any, *, path: str = "") -> pc.Expression | None:
    """Normalized filters as an expression. ``InvalidArgument`` if pyarrow cannot make an expression."""
    if filters is None or isinstance(filters, pc.Expression):
        return filters
    import pyarrow.parquet as pq  # Imported late: scans of other formats have no other use for it.

    try:
        return pq.filters_to_expression(filters)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"filters={filters!r}: {error}", operation="scan", path=path) from error


def check_clauses(filters: Filters, schema: pa.Schema, *, path: str) -> None:
    """``InvalidArgument`` for clauses of normalized filters on columns that ``schema`` does not have."""
    if isinstance(filters, list):
        for column in (clause[0] for clauses in filters for clause in clauses):
            if column not in schema.names:
                raise InvalidArgument(f"there is no column {column!r} to filter by", operation="scan", path=path)


def named_columns(schema: pa.Schema, filters: Filters, *, path: str) -> list[str]:
    """The top-level columns of a schema that normalized filters read, in the order of the schema.

    Raises ``InvalidArgument`` for an expression that names other columns, or does not go with their types.
    """
    if filters is None:
        return []
    if not isinstance(filters, pc.Expression):
        in_clauses = {clause[0] for clauses in filters for clause in clauses}
        return [name for name in schema.names if name in in_clauses]
    return _columns_of(schema, filters, path)


def _columns_of(schema: pa.Schema, expression: pc.Expression, path: str) -> list[str]:
    tree = ExpressionTree.of(expression)
    fields = [field for field in schema if tree is None or field.name in tree.columns]
    _evaluate(pa.schema(fields), expression, path)
    return [field.name for field in fields]


def can_read(schema: pa.Schema, expression: pc.Expression) -> bool:
    """Whether a schema has the columns of an expression, of types that go with it."""
    try:
        _evaluate(schema, expression, "")
    except InvalidArgument:
        return False
    return True


def _evaluate(schema: pa.Schema, expression: pc.Expression, path: str) -> None:
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidArgument(f"filters={expression}: {error}", operation="scan", path=path) from error


def filtered(batch: pa.RecordBatch, expression: pc.Expression, columns: Sequence[str], *, path: str) -> pa.RecordBatch:
    """The rows of a batch that match, in order; ``columns`` are the columns that the expression reads.

    ``InvalidArgument`` if it does not fit the types of the columns, ``Unsupported`` if the batch has a column of a type
    that pyarrow cannot filter.
    """
    places = [batch.schema.get_field_index(name) for name in columns]
    seen = pa.Table.from_arrays([batch.column(place) for place in places], names=list(columns))
    return kept_rows(batch, row_mask(seen, expression, rows=batch.num_rows, path=path), path=path)


def kept_rows(batch: pa.RecordBatch, mask: pa.BooleanArray, *, path: str) -> pa.RecordBatch:
    """The rows of a batch that a mask keeps. ``Unsupported`` if pyarrow cannot filter a column of this type."""
    if mask.true_count == batch.num_rows:
        return batch
    try:
        return batch.filter(mask)
    except pa.ArrowNotImplementedError as error:
        raise Unsupported(
            f"pyarrow does not filter columns of these types: {error}; read them without filters",
            operation="scan",
            path=path,
        ) from error


def check_expression(schema: pa.Schema, expression: pc.Expression, columns: Sequence[str], *, path: str) -> None:
    """Raise the error of ``filtered`` if the expression does not fit batches of ``schema``."""
    fields = [schema.field(schema.get_field_index(name)) for name in columns]
    row_mask(pa.schema(fields).empty_table(), expression, rows=0, path=path)


def row_mask(seen: pa.Table, expression: pc.Expression, *, rows: int | None = None, path: str) -> pa.BooleanArray:
    """For each row whether it matches; ``seen`` has the columns that the expression reads, ``rows`` their number.

    ``InvalidArgument`` if the expression does not fit their types.
    """
    mask = evaluated(seen, {"matches": expression}, rows=rows, argument="filters", path=path).column(0).combine_chunks()
    if not pa.types.is_boolean(mask.type):
        raise InvalidArgument(f"filters={expression}: it gives {mask.type}, not bool", operation="scan", path=path)
    return mask


async def load_evaluation(filters: Filters, runtime: Runtime) -> None:
    """Import what ``row_mask`` needs for filters, if there are any, on a thread: with pandas a third of a second."""
    if filters is not None and "pyarrow.dataset" not in sys.modules:
        await runtime.run_blocking(partial(import_module, "pyarrow.dataset"))


def evaluated(
    seen: pa.Table, expressions: Mapping[str, pc.Expression], *, rows: int | None, argument: str, path: str
) -> pa.Table:
    """The values of expressions for each row; ``seen`` has the columns that they read, ``rows`` their number.

    ``InvalidArgument``, which names the caller's ``argument``, if an expression does not fit their types.
    """
    import pyarrow.dataset as ds  # Imported late: see ``load_evaluation``.

    # An expression sees its own columns, and one more: without any, it would not know the number of rows.
    counted = pa.nulls(seen.num_rows if rows is None else rows)
    seen = pa.Table.from_arrays(
        [*seen.columns, counted], schema=pa.schema([*seen.schema, pa.field(_rows_name(seen.column_names), pa.null())])
    )
    try:
        # A dataset keeps the order of rows; the filter of a table is not documented to.
        return ds.InMemoryDataset(seen).to_table(columns=dict(expressions), use_threads=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        shown = ", ".join(map(str, expressions.values()))
        raise InvalidArgument(f"{argument}={shown}: {error}", operation="scan", path=path) from error


def _rows_name(columns: Sequence[str]) -> str:
    name = "rows"
    while name in columns:
        name += "_"
    return name
