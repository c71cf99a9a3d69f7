"""Filters that Spark pushes into a scan: on which versions they are safe, and which of them our filters can say. Pure.

In Spark 4.3 and before, the planned read of a DataFrame is kept beside its filters and used again for others: after
``df.where("part = 2").count()``, ``df.count()`` counts the rows of part 2 alone. A reader that has ``pushFilters`` at
all is also refused while ``spark.sql.python.filterPushdown.enabled`` is off, which is the default, and no reader can
see that setting. So it takes a safe version and the option ``pushFilters``.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
)

# The first version without the fault: its scans keep what they planned for themselves.
SAFE_SINCE = (5, 0)

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}
_VALUES = (bool, int, str, decimal.Decimal, dt.date)


def is_safe(version: str) -> bool:
    """Whether filters may be pushed on a version of Spark (``4.3.0``, ``5.0.0.dev1``)."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= SAFE_SINCE


def clauses(filters: Sequence[Filter], schema: StructType) -> list[tuple[str, str, Any]]:
    """Those of ``filters`` (all of which must hold) that drop the same rows here and in Spark.

    Of columns, not of fields in them; not of floating numbers, where Spark has NaN above all others.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    return [clause for one in filters if (clause := _clause(one, kinds)) is not None]


def _clause(one: Filter, kinds: dict[str, DataType]) -> tuple[str, str, Any] | None:
    operator = _OPERATORS.get(type(one))
    column: Sequence[str] = getattr(one, "attribute", ())
    if operator is None or len(column) != 1 or not _is_plain(kinds.get(column[0])):
        return None
    value = list(one.value) if isinstance(one, In) else getattr(one, "value", None)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, _VALUES) and not isinstance(each, dt.datetime) for each in values):
        return None
    return column[0], operator, value


def _is_plain(kind: DataType | None) -> bool:
    if isinstance(kind, StringType):
        return kind == StringType()  # Others compare by a collation.
    return isinstance(kind, (BooleanType, IntegralType, DecimalType, DateType))
