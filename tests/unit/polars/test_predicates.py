"""Predicates of polars as filters of a scan: what is understood, and that no row is ever lost by it."""

import io
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.io.plugins import register_io_source

import aioprefetch as ap
from aioprefetch.polars.predicates import scan_filters
from tests.files.polars_files import frames, predicates, stored

c = pl.col
DAY, HOUR = date(2024, 5, 1), datetime(2024, 5, 1, 12)
FRAME = pl.DataFrame(
    {
        "small": pl.Series([1, 2], dtype=pl.Int8),
        "i": [1, 2],
        "u": pl.Series([1, 2], dtype=pl.UInt64),
        "f": [1.0, float("nan")],
        "f32": pl.Series([1.0, 2.0], dtype=pl.Float32),
        "s": ["x", "y"],
        "b": [True, False],
        "day": [DAY, DAY],
        "t": [HOUR, HOUR],
        "utc": pl.Series([HOUR, HOUR], dtype=pl.Datetime("us")).dt.replace_time_zone("UTC"),
        "money": pl.Series([Decimal("1.50"), None], dtype=pl.Decimal(10, 2)),
        "cat": pl.Series(["x", "y"], dtype=pl.Categorical),
        "kind": pl.Series(["x", "y"], dtype=pl.Enum(["y", "x"])),
        "raw": [b"a", b"b"],
        "many": [[1], [2]],
    }
)


def understood(predicate: pl.Expr) -> list[list[tuple[str, str, Any]]] | None:
    """The filters of a predicate as polars gives it to a source, with values of Python."""
    found = []

    def source(columns: Any, pushed: pl.Expr | None, rows: Any, batch: Any) -> Iterator[pl.DataFrame]:
        found.append(None if pushed is None else scan_filters(pushed, FRAME.to_arrow().schema, FRAME.schema))
        yield FRAME if pushed is None else FRAME.filter(pushed)

    register_io_source(source, schema=FRAME.schema).filter(predicate).collect(engine="in-memory")
    (filters,) = found
    if filters is None:
        return None
    return [[(name, how, _plain(value)) for name, how, value in clauses] for clauses in filters]


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, list) else value.as_py()


@pytest.mark.parametrize(
    ("predicate", "filters"),
    [
        (c("small") > 1, [[("small", ">", 1)]]),
        (pl.lit(2) <= c("i"), [[("i", ">=", 2)]]),
        (~(c("i") > 3), [[("i", "<=", 3)]]),
        (c("i") != 3, [[("i", "!=", 3)]]),
        (c("i").is_between(0, 1, closed="left"), [[("i", ">=", 0), ("i", "<", 1)]]),
        (c("i").is_in([1, None, 5]), [[("i", "in", [1, 5])]]),
        (c("i").is_in(list(range(100))), [[("i", ">=", 0), ("i", "<=", 99)]]),
        (c("s") == "x", [[("s", "==", "x")]]),
        (c("raw") < b"b", [[("raw", "<", b"b")]]),
        (c("day") >= date(2024, 1, 1), [[("day", ">=", date(2024, 1, 1))]]),
        (c("t") < datetime(2025, 1, 1), [[("t", "<", datetime(2025, 1, 1))]]),
        (c("utc") < datetime(2025, 1, 1, tzinfo=UTC), [[("utc", "<", datetime(2025, 1, 1, tzinfo=UTC))]]),
        (c("money") > Decimal("1.5"), [[("money", ">", Decimal("1.50"))]]),
        (c("cat") == "x", [[("cat", "==", "x")]]),
        (c("kind").is_in(["x"]), [[("kind", "in", ["x"])]]),
        (c("b"), [[("b", "==", True)]]),
        (~c("b"), [[("b", "==", False)]]),
        ((c("i") > 3) & (c("s").str.starts_with("x")), [[("i", ">", 3)]]),
        ((c("i") > 3) | (c("s") == "x"), [[("i", ">", 3)], [("s", "==", "x")]]),
        (~((c("i") > 3) | (c("s") == "x")), [[("i", "<=", 3), ("s", "!=", "x")]]),
        # NaN is greatest: a lower bound alone would lose it.
        (c("f") < 5, [[("f", "<", 5.0)]]),
        (c("f") == 5, [[("f", "==", 5.0)]]),
        ((c("f") > 1) & (c("f") < 5), [[("f", ">", 1.0), ("f", "<", 5.0)]]),
        (c("f").is_between(1, 5), [[("f", ">=", 1.0), ("f", "<=", 5.0)]]),
        (c("f").is_in([3.0, 1.0]), [[("f", ">=", 1.0), ("f", "<=", 3.0)]]),
    ],
    ids=str,
)
def test_what_is_understood(predicate: pl.Expr, filters: Any) -> None:
    found = understood(predicate)
    assert found is not None
    assert [sorted(clauses, key=str) for clauses in found] == [sorted(clauses, key=str) for clauses in filters]


@pytest.mark.parametrize(
    "predicate",
    [
        *(c("f") > 1, c("f") >= 1, c("f") != 1, ~(c("f") < 1), c("f") < float("nan"), c("f32").is_in([float("nan")])),
        *(
            c("i") >= 1.5,
            c("i").is_null(),
            c("i").is_not_null(),
            c("i").ne_missing(3),
            c("i") + 1 > 3,
            c("i") == c("u"),
        ),
        *(~c("i").is_in([1]), c("i").is_in([None], nulls_equal=True), c("u") > -1, c("i").is_in([])),
        *(c("money") < Decimal("1.555"), c("money") < 1.5, c("day") >= HOUR, c("cat") != "x", c("kind") > "y"),
        *((c("i") > 3) | c("s").str.starts_with("x"), (c("i") > 3) ^ c("b"), c("s").str.len_chars() == 1),
        *(c("many").list.len() > 0, pl.lit(value=True), c("i") > pl.len(), c("many").list.contains(c("i"))),
    ],
    ids=str,
)
def test_what_leaves_nothing_out(predicate: pl.Expr) -> None:
    assert understood(predicate) is None


def test_a_large_tree_leaves_nothing_out() -> None:
    """Neither alternatives without end, nor literals without end."""
    predicate = c("i") == 0
    for number in range(1, 50):
        predicate |= (c("i") == 2 * number) & (c("s") != str(number))
    assert understood(predicate) is None
    assert understood(c("i").is_in(list(range(200_000)))) is None


def test_a_product_of_alternatives_keeps_one_side() -> None:
    """Ten in each of two: a hundred together would cost more than they leave out."""

    def either(name: str) -> pl.Expr:
        return pl.any_horizontal(c(name) == number for number in range(10))

    found = understood(either("i") & either("u"))
    assert found is not None
    assert len(found) == 10


# --- against polars itself --------------------------------------------------------------------------------------------

OPERATOR = ap.Operator.from_uri("memory://polars-predicates")


@given(st.data())
def test_no_row_is_lost_and_none_is_more(data: st.DataObject) -> None:
    """A filtered frame of ours equals that of polars on the same file, for all types, values and predicates."""
    raw = data.draw(frames().flatmap(stored))
    predicate = data.draw(predicates(pl.read_parquet_schema(raw)))
    ap.sync.run(OPERATOR.write("k", raw))
    expected = pl.read_parquet(raw).filter(predicate)
    found = ap.polars.scan_parquet("k", operator=OPERATOR).filter(predicate).collect(engine="in-memory")
    assert found.equals(expected)
    assert found.schema == expected.schema


@given(st.data())
def test_filters_alone_leave_out_no_match(data: st.DataObject) -> None:
    """What the scan gives polars still has all rows that match; the rest is what polars takes away."""
    raw = data.draw(frames().flatmap(stored))
    predicate = data.draw(predicates(pl.read_parquet_schema(raw)))
    frame = pl.read_parquet(raw)
    ap.sync.run(OPERATOR.write("k", raw))
    schema: pa.Schema = pq.read_schema(io.BytesIO(raw))
    filters = scan_filters(predicate, schema, frame.schema)
    read = ap.parquet.scan(OPERATOR, "k", filters=filters, filter_rows=False).to_reader().read_all()
    kept = pl.from_arrow(read)
    assert isinstance(kept, pl.DataFrame)
    assert kept.filter(predicate).equals(frame.filter(predicate))
