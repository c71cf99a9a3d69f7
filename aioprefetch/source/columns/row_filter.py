"""Filters on conformed batches: the same meaning for every format, and as Spark's ``where``.

Statistics of Parquet only leave out rows that cannot match; each row is decided here, on the types of the requested
schema. NaN is above all numbers and equal to itself, and a null matches nothing, not even ``not in``.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import numbers
import operator as operators
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import InvalidArgument
from aioprefetch.filters import Clause, Filters, check_expression, checked_filters, filtered
from aioprefetch.source.columns.casts import WALL_CLOCK, CannotCast, cast_plain, in_zone, is_number
from aioprefetch.source.columns.schemas import match_names

_COMPARISONS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "=": operators.eq,
    "==": operators.eq,
    "!=": operators.ne,
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}


class RowFilter:
    """``filters`` as ``aioprefetch.parquet.scan`` takes them, over batches of ``schema``.

    A time without a zone is in ``time_zone`` if the column has instants. ``InvalidArgument`` for an invalid filter,
    a missing column, and a value that is null or does not fit the column's type.
    """

    def __init__(self, filters: Any, schema: pa.Schema, *, time_zone: str | None = None) -> None:
        checked = normalized(filters, schema, time_zone=time_zone)
        self._expression = checked if isinstance(checked, pc.Expression) else _expression(checked, schema)
        self._columns = schema.names
        check_expression(schema, self._expression, self._columns, path="")

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match, in order."""
        return filtered(batch, self._expression, self._columns, path="")


def normalized(filters: Any, schema: pa.Schema, *, may_miss: bool = False, time_zone: str | None = None) -> Filters:
    """Filters with the names of ``schema``, and with values of its types.

    ``may_miss``: clauses on columns that the schema lacks stay unchanged.
    """
    checked = checked_filters(filters)
    if checked is None or isinstance(checked, pc.Expression):
        return checked
    return [[_clause(clause, schema, may_miss, time_zone) for clause in clauses] for clauses in checked]


def compares_local_times(filters: Any, schema: pa.Schema) -> bool:
    """Whether a column of instants is compared with a time without a zone, which means one in some zone alone."""
    checked = checked_filters(filters)
    clauses = [] if checked is None or isinstance(checked, pc.Expression) else [one for all_ in checked for one in all_]
    for name, operator, value in clauses:
        place = match_names(schema.names, [name])[0]
        kind = pa.null() if place is None else schema.field(place).type
        values = value if operator in ("in", "not in") else [value]
        if pa.types.is_timestamp(kind) and kind.tz and any(_instant(one, WALL_CLOCK, None) for one in values):
            return True
    return False


def is_nan(value: Any) -> bool:
    """Whether a value is NaN, which statistics do not cover."""
    return isinstance(value, (float, decimal.Decimal)) and bool(value != value)


def _clause(clause: Clause, schema: pa.Schema, may_miss: bool, time_zone: str | None) -> Clause:
    name, operator, value = clause
    place = match_names(schema.names, [name])[0]
    if place is None:
        if may_miss:
            return clause
        raise InvalidArgument(
            f"there is no column {name!r} to filter by; the schema has {', '.join(map(repr, schema.names))}",
            operation="read_items",
        )
    field = schema.field(place)
    if operator in ("in", "not in"):
        return field.name, operator, [_value(member, field, time_zone) for member in value]
    return field.name, operator, _value(value, field, time_zone)


# --- values -----------------------------------------------------------------------------------------------------------


def _value(value: Any, field: pa.Field, time_zone: str | None) -> Any:
    """A value as one of the column's type. Text may mean a date, a time or a number, since JSON has no others."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if value is None:
        raise InvalidArgument(
            f"filters: {field.name!r} is compared with null, which nothing matches; keep rows with nulls, or without,"
            " by where() on what is read",
            operation="read_items",
        )
    typed = _typed(value, field.type, time_zone)
    if typed is None:
        raise InvalidArgument(
            f"filters: the column {field.name!r} is {field.type}, with which the {type(value).__name__} {value!r} does"
            " not go",
            operation="read_items",
            context={"column": field.name},
        )
    return typed


def _typed(value: Any, kind: pa.DataType, time_zone: str | None) -> Any:
    """The value for a type; ``None`` if it does not fit."""
    types = pa.types
    if types.is_string(kind):
        return value if isinstance(value, str) else None
    if types.is_binary(kind):
        return bytes(value) if isinstance(value, (bytes, bytearray)) else None
    if types.is_nested(kind):
        return None
    if types.is_timestamp(kind):
        return _instant(value, kind, time_zone)
    if isinstance(value, str):
        return _spelled(value, kind)
    if types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if is_number(kind):
        return _number(value, kind)
    if types.is_date(kind):
        return value if isinstance(value, dt.date) and not isinstance(value, dt.datetime) else None
    return value  # A rare type: pyarrow compares it, or refuses to.


def _number(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, decimal.Decimal)):
        return None
    # Decimals compare with integers only where those have few digits.
    if pa.types.is_decimal(kind) and isinstance(value, numbers.Integral):
        return decimal.Decimal(int(value))
    return value


def _spelled(text: str, kind: pa.DataType) -> Any:
    try:
        return cast_plain(pa.array([text]), kind)[0].as_py()
    except CannotCast:
        return None


def _instant(value: Any, kind: pa.TimestampType, time_zone: str | None) -> dt.datetime | None:
    """A date is its first moment, as in Spark. A column without a zone takes no time with one."""
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    elif isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = dt.datetime.combine(value, dt.time())
    if not isinstance(value, dt.datetime):
        return None
    if kind.tz is None:
        return value if value.tzinfo is None else None
    return in_zone(value, time_zone)


# --- expressions ------------------------------------------------------------------------------------------------------


def _expression(alternatives: Sequence[Sequence[Clause]], schema: pa.Schema) -> pc.Expression:
    return functools.reduce(
        operators.or_,
        [
            functools.reduce(operators.and_, [_compared(clause, schema) for clause in clauses])
            for clauses in alternatives
        ],
    )


def _compared(clause: Clause, schema: pa.Schema) -> pc.Expression:
    name, operator, value = clause
    column, kind = pc.field(name), schema.field(schema.get_field_index(name)).type
    try:
        if operator == "in":
            return _one_of(column, kind, value)
        if operator == "not in":
            # As in Spark, an empty list excludes no row, not even one with a null.
            return column.is_valid() & ~_one_of(column, kind, value) if value else pc.scalar(True)
        return _than(column, kind, operator, value)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(
            f"filters: the column {name!r} is {kind}, with which {value!r} does not go: {error}",
            operation="read_items",
            context={"column": name},
        ) from error


def _one_of(column: pc.Expression, kind: pa.DataType, values: Sequence[Any]) -> pc.Expression:
    if not pa.types.is_floating(kind):
        fitting = [member for member in values if not is_number(kind) or _fits(member, kind)]
        return column.isin(pa.array([_exact(member, kind) for member in fitting], kind))
    floats = [float(member) for member in values if not is_nan(member)]
    # ``isin`` distinguishes the two zeros, Spark does not.
    zeros = [0.0, -0.0] if 0.0 in floats else []
    is_member = column.cast(pa.float64()).isin(pa.array([*floats, *zeros], pa.float64()))
    return is_member if len(floats) == len(values) else is_member | pc.is_nan(column)


def _exact(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        return int(value)
    return decimal.Decimal(str(value)) if pa.types.is_decimal(kind) else value


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a column of the type can hold the number."""
    try:
        pa.scalar(_exact(value, kind), kind)
    except (pa.ArrowException, ValueError, OverflowError):
        return False
    return pa.types.is_decimal(kind) or bool(int(value) == value)


def _than(column: pc.Expression, kind: pa.DataType, operator: str, value: Any) -> pc.Expression:
    if not is_number(kind):
        return _COMPARISONS[operator](column, pa.scalar(value, kind))
    if is_nan(value):
        return _than_nan(pc.is_nan(column), operator)
    if pa.types.is_decimal(kind) and isinstance(value, decimal.Decimal):
        return _than_decimal(column, kind, operator, value)
    comparison = _COMPARISONS[operator](column, value)
    return comparison | pc.is_nan(column) if operator in (">", ">=") and pa.types.is_floating(kind) else comparison


def _than_decimal(column: pc.Expression, kind: pa.DataType, operator: str, value: decimal.Decimal) -> pc.Expression:
    """A comparison with a value of the column's type: pyarrow may lack a type for both."""
    exact = decimal.Context(prec=2 * kind.precision)
    limit = exact.scaleb(decimal.Decimal(10**kind.precision - 1), -kind.scale)
    if value.copy_abs() > limit:
        is_all = operator == "!=" or operator.startswith("<" if value > 0 else ">")
        return column.is_valid() if is_all else pc.scalar(False)
    below = value.quantize(decimal.Decimal(1).scaleb(-kind.scale), rounding=decimal.ROUND_FLOOR, context=exact)
    if below != value:
        if operator in ("=", "==", "!="):
            return column.is_valid() if operator == "!=" else pc.scalar(False)
        operator = "<=" if operator.startswith("<") else ">"
    return _COMPARISONS[operator](column, pa.scalar(below, kind))


def _than_nan(nan: pc.Expression, operator: str) -> pc.Expression:
    """A comparison with NaN, which no number exceeds."""
    if operator in ("=", "==", ">="):
        return nan
    if operator in ("!=", "<"):
        return ~nan
    return nan | ~nan if operator == "<=" else nan & ~nan
