"""The part of a predicate of polars that statistics can decide, as filters of a scan.

polars applies the predicate itself to all that is read, so these filters may keep too much, and never too little. Of
the predicate's tree only a few forms are understood: comparisons of a column with a literal of its type, ``is_in``,
``is_between``, columns of booleans, and combinations of these by ``&``, ``|`` and ``~``. Any other form, now or in
later versions of polars, leaves nothing out.

NaN is the greatest number to polars, and statistics do not speak of it. So a lower bound of a floating-point column
counts only beside an upper one, which NaN does not meet.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import polars as pl
import pyarrow as pa

Clause = tuple[str, str, Any]
# Alternatives of clauses that must all hold. ``None``: any row may match.
Alternatives = list[list[Clause]] | None

# A tree that is larger holds many literals, and reading it would take longer than it saves.
_TREE_CHARACTERS_MAX = 1 << 20
# More alternatives than this are compared slower than they save reads.
_ALTERNATIVES_MAX = 32
# More values than this count as the range that they span.
_VALUES_MAX = 64

_AND, _OR = ("And", "LogicalAnd"), ("Or", "LogicalOr")
_OPERATORS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INVERTED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_BETWEEN = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_UPPER = ("<", "<=", "==")


def scan_filters(predicate: pl.Expr, schema: pa.Schema, dtypes: Mapping[str, pl.DataType]) -> Alternatives:
    """Filters that every row meets for which ``predicate`` is true, as alternatives of clauses; ``None`` if all may.

    ``schema`` and ``dtypes`` are the columns in Arrow and in polars.
    """
    try:
        text = predicate.meta.serialize(format="json")
        if len(text) > _TREE_CHARACTERS_MAX:
            return None
        tree = json.loads(text)
    except (pl.exceptions.PolarsError, ValueError, TypeError):
        return None  # A function of Python is in it.
    return _without_nan(_Columns(schema, dtypes).alternatives(tree, negated=False), dtypes)


def _without_nan(alternatives: Alternatives, dtypes: Mapping[str, pl.DataType]) -> Alternatives:
    """The clauses that may be believed although a floating-point column may have NaN."""
    kept = []
    for clauses in alternatives or []:
        below = {column for column, operator, _ in clauses if operator in _UPPER}
        safe = [
            clause
            for clause in clauses
            if not dtypes[clause[0]].is_float() or (clause[0] in below and clause[1] != "!=")
        ]
        if not safe:
            return None
        kept.append(safe)
    return kept or None


class _Columns:
    """The columns that clauses are about."""

    def __init__(self, schema: pa.Schema, dtypes: Mapping[str, pl.DataType]) -> None:
        self._schema = schema
        self._dtypes = dtypes

    def alternatives(self, node: Any, *, negated: bool) -> Alternatives:
        """Alternatives that hold where ``node`` is true; with ``negated`` where it is false. Null is neither."""
        match node:
            case {"Alias": [inner, _]}:
                return self.alternatives(inner, negated=negated)
            case {"Column": str(name)}:
                return self._clauses(name, ("==", pl.Series([not negated])))
            case {"BinaryExpr": {"left": left, "op": str(operator), "right": right}}:
                if operator in (*_AND, *_OR):
                    both = self.alternatives(left, negated=negated), self.alternatives(right, negated=negated)
                    return _all(*both) if (operator in _AND) != negated else _any(*both)
                return self._compared(left, _OPERATORS.get(operator), right, negated=negated)
            case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
                return self.alternatives(inner, negated=not negated)
            case {"Function": {"input": [{"Column": str(name)}, *values], "function": {"Boolean": dict() as function}}}:
                return None if negated else self._called(name, function, values)
        return None

    def _compared(self, left: Any, operator: str | None, right: Any, *, negated: bool) -> Alternatives:
        if operator is None:
            return None
        if not _is_column(left):
            left, operator, right = right, _TURNED[operator], left
        value = _literal(right)
        if not _is_column(left) or value is None:
            return None
        return self._clauses(left["Column"], (_INVERTED[operator] if negated else operator, value))

    def _called(self, name: str, function: Mapping[str, Any], arguments: Sequence[Any]) -> Alternatives:
        values = [_literal(argument) for argument in arguments]
        match function, values:
            case {"IsBetween": {"closed": str(closed)}}, [pl.Series() as low, pl.Series() as high]:
                if closed not in _BETWEEN:
                    return None
                return self._clauses(name, *zip(_BETWEEN[closed], (low, high), strict=True))
            case {"IsIn": {"nulls_equal": False}}, [pl.Series() as members]:
                if isinstance(members.dtype, pl.List):
                    members = members.explode()
                return self._one_of(name, members.drop_nulls())
        return None

    def _one_of(self, name: str, members: pl.Series) -> Alternatives:
        values = self._values(name, members)
        if not values:
            return None
        if self._dtypes[name].is_float() or len(values) > _VALUES_MAX:
            ordered = members.sort()
            return self._clauses(name, (">=", ordered.head(1)), ("<=", ordered.tail(1)))
        return [[(name, "in", values)]]

    def _clauses(self, name: str, *comparisons: tuple[str, pl.Series]) -> Alternatives:
        """Clauses that must all hold; ``None`` if a scan does not take one of them."""
        clauses = []
        for operator, value in comparisons:
            values = self._values(name, value)
            if len(values) != 1 or (operator != "==" and not self._is_ordered(name)):
                return None
            clauses.append((name, operator, values[0]))
        return [clauses]

    def _is_ordered(self, name: str) -> bool:
        """Whether polars compares the values as their bounds in Parquet do."""
        is_category = isinstance(self._dtypes[name], (pl.Categorical, pl.Enum))
        return not is_category and not pa.types.is_dictionary(self._schema.field(name).type)

    def _values(self, name: str, values: pl.Series) -> list[pa.Scalar]:
        """Literals as values of a column; empty if one of them is of another type, or has no order in statistics."""
        if name not in self._schema.names or not self._is_alike(self._dtypes[name], values.dtype):
            return []
        kind = self._schema.field(name).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not any(is_kind(kind) for is_kind in _KINDS) or values.null_count():
            return []
        try:
            found = list(values.to_arrow().cast(kind))
        except pa.ArrowException:
            return []
        is_float = pa.types.is_floating(kind)
        return [] if is_float and any(math.isnan(value.as_py()) for value in found) else found

    @staticmethod
    def _is_alike(column: pl.DataType, literal: pl.DataType) -> bool:
        if isinstance(column, (pl.Categorical, pl.Enum)):
            return literal in (pl.String, column)
        if column.is_integer() or column.is_decimal():
            return literal.is_integer() if column.is_integer() else literal.is_decimal()
        return column == literal


_KINDS = (
    *(pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_boolean, pa.types.is_decimal),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_date32, pa.types.is_timestamp),
)


def _is_column(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("Column"), str)


def _literal(node: Any) -> pl.Series | None:
    """The values of a literal, as polars itself reads them; ``None`` for anything else."""
    match node:
        case {"Alias": [inner, _]}:
            return _literal(inner)
        case {"Literal": _}:
            text = io.BytesIO(json.dumps(node).encode())
            try:
                return pl.select(pl.Expr.deserialize(text, format="json")).to_series()
            except pl.exceptions.PolarsError:
                return None
    return None


def _all(one: Alternatives, other: Alternatives) -> Alternatives:
    """Alternatives that hold where both do."""
    if one is None or other is None or len(one) * len(other) > _ALTERNATIVES_MAX:
        return one or other
    return [first + second for first, second in product(one, other)]


def _any(one: Alternatives, other: Alternatives) -> Alternatives:
    """Alternatives that hold where one of both does."""
    if one is None or other is None or len(one) + len(other) > _ALTERNATIVES_MAX:
        return None
    return one + other
