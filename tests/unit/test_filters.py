"""Filters on batches: the rows that pyarrow keeps, in order."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from aioprefetch.errors import InvalidArgument, Unsupported
from aioprefetch.filters import check_expression, filter_expression, filtered

ROWS = 70_000
BATCH = pa.record_batch(
    {
        "n": pa.array([None if n % 11 == 0 else n for n in range(ROWS)], pa.int64()),
        "f": np.random.default_rng(2).random(ROWS),
        "s": [f"v{n % 5}" for n in range(ROWS)],
        "st": pa.array([{"x": n % 7} if n % 3 else None for n in range(ROWS)]),
    }
)


@pytest.mark.parametrize(
    ("filters", "columns"),
    [
        ([[("n", ">", 69_000)]], ["n"]),
        ([[("n", "<", 10)], [("s", "==", "v3"), ("f", ">", 0.9)]], ["n", "f", "s"]),
        ([[("s", "in", ["v1", "v2"])]], ["s"]),
        ([[("s", "not in", ["v1", "v2"])]], ["s"]),
        ([[("n", "!=", 5)]], ["n"]),
        (pc.field("st", "x") == 3, ["st"]),
        (pc.field("n").is_null() | (pc.field("f") < 0.01), ["n", "f"]),
        (pc.scalar(True), []),
        (pc.field("n") >= 0, ["n"]),
    ],
)
def test_the_rows_that_pyarrow_keeps(filters: object, columns: list[str]) -> None:
    expression = filter_expression(filters)
    assert expression is not None
    expected = pa.Table.from_batches([BATCH]).filter(expression).sort_by("f")
    found = filtered(BATCH, expression, columns, path="k")
    assert pa.Table.from_batches([found]).sort_by("f").equals(expected)
    numbers = [n for n in found.column("n").to_pylist() if n is not None]
    assert numbers == sorted(numbers), "the order of rows"


def test_a_batch_that_matches_whole_is_not_copied() -> None:
    kept = filtered(BATCH, pc.field("f") >= 0, ["f"], path="k")
    assert kept is BATCH


def test_nothing_matches() -> None:
    assert filtered(BATCH, pc.field("n") < 0, ["n"], path="k").num_rows == 0
    assert filtered(BATCH.slice(0, 0), pc.field("n") < 0, ["n"], path="k").num_rows == 0


def test_a_column_with_the_name_of_the_helper() -> None:
    batch = pa.record_batch({"rows": [1, 2, 3], "rows_": [4, 5, 6]})
    kept = filtered(batch, pc.field("rows") > pc.field("rows_") - 3, ["rows", "rows_"], path="k")
    assert kept.num_rows == 0


def test_filters_that_do_not_go_with_the_types() -> None:
    for expression in (pc.field("s") > 5, pc.field("n"), pc.field("st", "y") > 1):
        with pytest.raises(InvalidArgument, match="filters="):
            filtered(BATCH, expression, ["n", "s", "st"], path="k")


def test_filters_are_checked_without_rows() -> None:
    for expression in (pc.field("s") > 5, pc.field("n"), pc.field("st", "y") > 1):
        with pytest.raises(InvalidArgument, match="filters="):
            check_expression(BATCH.schema, expression, ["n", "s", "st"], path="k")
    check_expression(BATCH.schema, pc.field("n") > 5, ["n"], path="k")
    check_expression(BATCH.schema, pc.scalar(True), [], path="k")


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_columns_that_pyarrow_does_not_filter(kind: pa.DataType) -> None:
    batch = pa.record_batch({"n": [1, 2, 3], "v": pa.array(["a", "b", "c" * 30]).cast(kind)})
    with pytest.raises(Unsupported, match="_view"):
        filtered(batch, pc.field("n") > 1, ["n"], path="k")
    assert filtered(batch, pc.field("n") > 0, ["n"], path="k") is batch


def test_filters_that_make_no_expression() -> None:
    with pytest.raises(InvalidArgument, match="filters="):
        filter_expression([[("n", "~", 3)]], path="k")
    assert filter_expression(None) is None


def test_random_thresholds_against_plain_python() -> None:
    rng = random.Random(1)
    numbers = BATCH.column("n").to_pylist()
    for _ in range(20):
        low, high = sorted(rng.sample(range(ROWS), 2))
        expression = (pc.field("n") >= low) & (pc.field("n") < high)
        kept = filtered(BATCH, expression, ["n"], path="k").column("n").to_pylist()
        assert kept == [n for n in numbers if n is not None and low <= n < high]
