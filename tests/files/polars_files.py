"""Random frames of polars, the files of them, and predicates on their columns."""

import io
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from hypothesis import strategies as st

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
# Those that no predicate is about.
NESTED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "many": (pl.List(pl.Int64), st.lists(st.none() | st.integers(-5, 5), max_size=3)),
    "point": (
        pl.Struct({"x": pl.Int32, "y": pl.String}),
        st.fixed_dictionaries({"x": st.none() | st.integers(-5, 5), "y": st.none() | st.sampled_from(WORDS)}),
    ),
}


@st.composite
def predicates(draw: st.DrawFn, names: Collection[str], depth: int = 2) -> pl.Expr:
    """Comparisons of columns, put together. A column that no file has is one of integers."""
    if depth and draw(st.booleans()):
        one, other = draw(predicates(names, depth - 1)), draw(predicates(names, depth - 1))
        either: pl.Expr = draw(st.sampled_from([one & other, one | other, ~one]))
        return either
    plain = [name for name in names if name not in NESTED]
    if not plain:
        return pl.lit(value=True)
    name = draw(st.sampled_from(plain))
    dtype, values = TYPES.get(name, TYPES["i64"])
    column, value = pl.col(name), draw(values)
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
def frames(draw: st.DrawFn, rows_max: int = 24) -> pl.DataFrame:
    """A frame of some columns."""
    types = TYPES | NESTED
    names = draw(st.lists(st.sampled_from(list(types)), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(0, rows_max))
    columns = {}
    for name in names:
        dtype, values = types[name]
        several = st.lists(draw(st.sampled_from([values, st.none() | values])), min_size=rows, max_size=rows)
        column = pl.Series(draw(several), dtype=dtype)
        columns[name] = column.sort() if name not in NESTED and draw(st.booleans()) else column
    return pl.DataFrame(columns)


@st.composite
def stored(draw: st.DrawFn, frame: pl.DataFrame) -> bytes:
    """The file of a frame, as pyarrow or polars writes it, in small row groups and pages."""
    sink = io.BytesIO()
    if draw(st.booleans()):
        frame.write_parquet(sink, row_group_size=draw(st.integers(1, 9)), data_page_size=1, statistics="full")
    else:
        pq.write_table(
            frame.to_arrow(),
            sink,
            row_group_size=draw(st.integers(1, 9)),
            write_page_index=draw(st.booleans()),
            use_dictionary=draw(st.booleans()),
            # Lists in smaller pages begin with one without values, behind which pyarrow itself reads no row.
            data_page_size=10 if NESTED.keys() & {*frame.columns} else 1,
            write_batch_size=2,
        )
    return sink.getvalue()
