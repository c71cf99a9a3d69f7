"""Filters on rows: NaN and nulls as in Spark's ``where``, values of the type of their column, zones."""

import datetime as dt
import math
import operator as op
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import InvalidArgument
from aioprefetch.source.columns.row_filter import RowFilter
from tests.profile import each_of

NAN = math.nan
COMPARISONS = {"=": op.eq, "!=": op.ne, "<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge}
BATCH = pa.RecordBatch.from_pydict(
    {
        "row": pa.array(range(5)),
        "d": pa.array([1.0, NAN, 9.0, None, -0.0]),
        "f": pa.array([1.0, NAN, 9.0, None, -0.0], pa.float32()),
        "i": pa.array([1, 2, 3, None, 5]),
        "c": pa.array([1, 2, 3, None, 5], pa.decimal128(38, 2)),
        "s": pa.array(["x", None, "y", "z", "x"]),
        "b": pa.array([True, False, None, True, False]),
        "day": pa.array([0, None, 1, 2, 3], pa.date32()),
        "t": pa.array([0, None, 1, 2, 3], pa.timestamp("s", "UTC")).cast(pa.timestamp("us", "UTC")),
        "n": pa.array([0, None, 1, 2, 3], pa.timestamp("s")).cast(pa.timestamp("us")),
    }
)


def rows(*clauses: tuple[str, str, Any], zone: str | None = None) -> list[int]:
    found: list[int] = RowFilter(list(clauses), BATCH.schema, time_zone=zone).apply(BATCH)["row"].to_pylist()
    return found


def test_nan_is_above_all_numbers_and_equal_to_itself() -> None:
    """What Spark's ``where`` keeps of the same rows, operator by operator."""
    for name in ("d", "f"):
        kept = {op: rows((name, op, NAN)) for op in ("=", "!=", "<", "<=", ">", ">=")}
        assert kept == {"=": [1], "!=": [0, 2, 4], "<": [0, 2, 4], "<=": [0, 1, 2, 4], ">": [], ">=": [1]}
        kept = {op: rows((name, op, 5)) for op in ("=", "!=", "<", "<=", ">", ">=")}
        assert kept == {"=": [], "!=": [0, 1, 2, 4], "<": [0, 4], "<=": [0, 4], ">": [1, 2], ">=": [1, 2]}
        assert rows((name, "in", [NAN, 0])) == [1, 4]
        assert rows((name, "not in", [NAN, 0])) == [0, 2]
        assert rows((name, "not in", [1.0])) == [1, 2, 4]
    assert rows(("i", "<", NAN)) == [0, 1, 2, 4]


def test_not_in_drops_nulls_as_sql_does() -> None:
    assert rows(("s", "not in", ["x"])) == [2, 3]
    assert rows(("s", "!=", "x")) == [2, 3]
    assert rows(("s", "in", [])) == []
    assert rows(("s", "not in", [])) == [0, 1, 2, 3, 4]


@each_of("clause", [("s", "=", None), ("s", "in", ["x", None]), ("i", "not in", [None])])
def test_null_is_no_value_to_compare_with(clause: tuple[str, str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"is compared with null.*where\(\)"):
        rows(clause)


@each_of(
    ("column", "value"),
    [
        ("s", 3),
        ("s", b"x"),
        ("i", "x"),
        ("i", True),
        ("i", dt.date(2024, 1, 1)),
        ("b", 1),
        ("day", dt.datetime(2024, 1, 1)),
        ("day", 5),
        ("t", 5),
        ("t", "noon"),
        ("n", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    ],
)
def test_values_of_another_type_are_refused_with_column_type_and_value(column: str, value: Any) -> None:
    kind = str(BATCH.schema.field(column).type)
    for comparison, operand in (("=", value), ("in", [value])):
        with pytest.raises(InvalidArgument) as caught:
            rows((column, comparison, operand))
        text = str(caught.value)
        assert repr(column) in text
        assert kind in text
        assert repr(value) in text


def test_numbers_of_other_types_compare_by_value() -> None:
    assert rows(("i", "in", [2.5, 3.0, 1 << 70])) == [2]
    assert rows(("i", ">", 2.5)) == [2, 4]
    assert rows(("c", ">", 2)) == [2, 4]
    assert rows(("c", "in", [1, "3"])) == [0, 2]
    assert rows(("d", "in", list(range(50_000)))) == [0, 2, 4]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 38).flatmap(lambda digits: st.tuples(st.just(digits), st.integers(0, digits))),
    st.decimals(allow_nan=False, places=6) | st.integers(-(10**40), 10**40) | st.just(Decimal("1e-99")),
    st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
    st.data(),
)
def test_decimals_compare_with_any_number(
    size: tuple[int, int], value: Decimal | int, comparison: str, data: st.DataObject
) -> None:
    digits, scale = size
    whole = data.draw(st.lists(st.integers(1 - 10**digits, 10**digits - 1), max_size=4))
    values = [Decimal(one).scaleb(-scale, Context(prec=99)) for one in whole]
    batch = pa.RecordBatch.from_pydict({"x": pa.array([*values, None], pa.decimal128(digits, scale))})
    found = RowFilter([("x", comparison, value)], batch.schema).apply(batch)["x"].to_pylist()
    assert found == [one for one in values if COMPARISONS[comparison](one, value)]


def test_times_without_a_zone_are_of_the_zone_that_is_meant() -> None:
    start = dt.datetime(1970, 1, 1)
    assert rows(("t", ">", start)) == [2, 3, 4]
    assert rows(("t", ">=", start), zone="America/New_York") == []
    assert rows(("t", ">", dt.datetime(1969, 12, 31, 19)), zone="America/New_York") == [2, 3, 4]
    assert rows(("t", ">", start + dt.timedelta(hours=2)), zone="+02:00") == [2, 3, 4]
    assert rows(("t", "=", "1970-01-01 00:00:01")) == [2]
    assert rows(("t", "=", "1970-01-01T01:00:01+01:00"), zone="America/New_York") == [2]
    assert rows(("t", ">=", dt.date(1970, 1, 1))) == [0, 2, 3, 4]
    assert rows(("n", "=", start), zone="America/New_York") == [0]
