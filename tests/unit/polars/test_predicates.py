"""Predicates of polars as filters of a scan: what is understood, and that no row is ever lost by it."""

import io
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
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

# For each type what its values are; categories come out of four.
WORDS = ["", "a", "ab", "z", "ä", "\U0001f600"]
NUMBERS = [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan"), 1e300]
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "i8": (pl.Int8, st.integers(-128, 127)),
    "i64": (pl.Int64, st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1)),
    "u32": (pl.UInt32, st.integers(0, 5) | st.integers(0, (1 << 32) - 1)),
    "u64": (pl.UInt64, st.integers(0, 5) | st.integers(0, (1 << 64) - 1)),
    "f32": (pl.Float32, st.sampled_from([number for number in NUMBERS if number != 1e300])),
    "f64": (pl.Float64, st.sampled_from(NUMBERS) | st.floats()),
    "s": (pl.String, st.sampled_from(WORDS) | st.text(max_size=3)),
    "raw": (pl.Binary, st.binary(max_size=2)),
    "b": (pl.Boolean, st.booleans()),
    "day": (pl.Date, st.dates(date(1, 1, 1), date(9999, 1, 1))),
    "ms": (pl.Datetime("ms"), st.datetimes().map(lambda time: time.replace(microsecond=0))),
    "us": (pl.Datetime("us"), st.datetimes()),
    "ns": (pl.Datetime("ns"), st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))),
    "utc": (pl.Datetime("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "long": (pl.Duration("us"), st.timedeltas(timedelta(-1000), timedelta(1000))),
    "money": (pl.Decimal(10, 2), st.integers(-500, 500).map(lambda cents: Decimal(cents) / 100)),
    "cat": (pl.Categorical, st.sampled_from(["x", "y", "z", ""])),
    "kind": (pl.Enum(["z", "x", "", "y"]), st.sampled_from(["x", "y", "z", ""])),
}


@st.composite
def predicates(draw: st.DrawFn, names: list[str], depth: int = 2) -> pl.Expr:
    """Comparisons of columns, put together."""
    if depth and draw(st.booleans()):
        one, other = draw(predicates(names, depth - 1)), draw(predicates(names, depth - 1))
        either: pl.Expr = draw(st.sampled_from([one & other, one | other, ~one]))
        return either
    name = draw(st.sampled_from(names))
    dtype, values = TYPES[name]
    column, value = c(name), draw(values)
    literal = draw(st.sampled_from([value, pl.lit(value, dtype=dtype)]))
    listed = pl.Series(draw(st.lists(st.none() | values, max_size=4)), dtype=dtype)
    low, high = pl.lit(value, dtype=dtype), pl.lit(draw(values), dtype=dtype)
    found = [
        *(column == literal, column != literal, column < literal, column <= literal, column > literal),
        *(column >= literal, column.is_null(), column.is_in(listed.implode()), column.eq_missing(literal)),
        *(column.is_between(low, high, closed=closed) for closed in ("both", "left", "right", "none")),
    ]
    if name == "b":
        found.append(column)
    chosen: pl.Expr = draw(st.sampled_from(found))
    return chosen


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A file of some columns, as pyarrow or polars writes it, in small row groups and pages."""
    names = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3, unique=True))
    rows = draw(st.integers(0, 24))
    columns = {}
    for name in names:
        dtype, values = TYPES[name]
        several = st.lists(draw(st.sampled_from([values, st.none() | values])), min_size=rows, max_size=rows)
        column = pl.Series(draw(several), dtype=dtype)
        columns[name] = column.sort() if draw(st.booleans()) else column
    frame, sink = pl.DataFrame(columns), io.BytesIO()
    if draw(st.booleans()):
        frame.write_parquet(sink, row_group_size=draw(st.integers(1, 9)), data_page_size=1, statistics="full")
    else:
        pq.write_table(
            frame.to_arrow(),
            sink,
            row_group_size=draw(st.integers(1, 9)),
            write_page_index=draw(st.booleans()),
            use_dictionary=draw(st.booleans()),
            data_page_size=1,
            write_batch_size=2,
        )
    return sink.getvalue(), names


OPERATOR = ap.Operator.from_uri("memory://polars-predicates")


@given(st.data())
def test_no_row_is_lost_and_none_is_more(data: st.DataObject) -> None:
    """A filtered frame of ours equals that of polars on the same file, for all types, values and predicates."""
    stored, names = data.draw(files())
    predicate = data.draw(predicates(names))
    ap.sync.run(OPERATOR.write("k", stored))
    expected = pl.read_parquet(stored).filter(predicate)
    found = ap.polars.scan_parquet("k", operator=OPERATOR).filter(predicate).collect(engine="in-memory")
    assert found.equals(expected)
    assert found.schema == expected.schema


@given(st.data())
def test_filters_alone_leave_out_no_match(data: st.DataObject) -> None:
    """What the scan gives polars still has all rows that match; the rest is what polars takes away."""
    stored, names = data.draw(files())
    predicate = data.draw(predicates(names))
    frame = pl.read_parquet(stored)
    ap.sync.run(OPERATOR.write("k", stored))
    schema: pa.Schema = pq.read_schema(io.BytesIO(stored))
    filters = scan_filters(predicate, schema, frame.schema)
    read = ap.parquet.scan(OPERATOR, "k", filters=filters, filter_rows=False).to_reader().read_all()
    kept = pl.from_arrow(read)
    assert isinstance(kept, pl.DataFrame)
    assert kept.filter(predicate).equals(frame.filter(predicate))
