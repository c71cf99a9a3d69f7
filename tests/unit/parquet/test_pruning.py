"""Pruning never drops a row that a filter matches: any table, any filter, statistics and page bounds of any kind."""

import asyncio
import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import InvalidArgument, InvalidType
from aioprefetch.parquet import thrift
from aioprefetch.parquet.chunks import column_chunks
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.page_metadata import ColumnIndex, OffsetIndex, load_page_indexes
from aioprefetch.parquet.pruning import (
    filter_columns,
    filter_tree,
    normalized_filters,
    page_leaves,
    prune_pages,
    prune_row_groups,
)
from aioprefetch.ranges import intersected, joined
from tests.profile import each_of
from tests.unit.parquet.parquet_files import (
    chunk_of,
    footer_at_hand,
    nested_table,
    tree_of,
    with_tree,
    written,
)

NAN = float("nan")
DAY = dt.date(2020, 1, 1)
NOON = dt.datetime(2020, 1, 1, 12)


def kept_rows(footer: Footer, filters: Any) -> list[tuple[int, int]]:
    """Rows of the file that are left after both kinds of pruning."""
    normalized = normalized_filters(filters, footer)
    groups = prune_row_groups(footer, normalized, range(footer.row_groups))
    tree = filter_tree(normalized)
    if tree is None:
        return joined((footer.first_rows[number], footer.first_rows[number + 1]) for number in groups)
    leaves = page_leaves(footer, tree)
    chunks = column_chunks(footer, groups, list(leaves.values()), with_indexes=True)
    indexes = asyncio.run(load_page_indexes(footer.pinned, chunks, bounds_of=leaves.values()))
    found = []
    for number in groups:
        first = footer.first_rows[number]
        found += [(low + first, high + first) for low, high in prune_pages(footer, tree, leaves, number, indexes)]
    return joined(found)


def pages_kept(footer: Footer, clause: tuple[str, str, Any], offset: OffsetIndex, column: ColumnIndex) -> Any:
    """The rows of the first row group that a clause about its first column leaves, with these indexes."""
    tree = filter_tree(normalized_filters([clause], footer))
    assert tree is not None
    return prune_pages(footer, tree, page_leaves(footer, tree), 0, {(0, 0): (offset, column)})


def matching_rows(table: pa.Table, filters: Any) -> set[int]:
    """By pyarrow, on the whole table."""
    numbered = table.append_column("#row", pa.array(range(table.num_rows)))
    return set(numbered.filter(pq.filters_to_expression(filters))["#row"].to_pylist())


def assert_kept(table: pa.Table, data: bytes, filters: Any) -> list[tuple[int, int]]:
    """No matching row is dropped."""
    kept = kept_rows(footer_at_hand(data), filters)
    rows = {row for low, high in kept for row in range(low, high)}
    assert matching_rows(table, filters) <= rows, f"{filters} keeps {kept}"
    return kept


def paged(table: pa.Table, **options: Any) -> bytes:
    """A file with small row groups and small pages."""
    settings = {"row_group_size": 8, "write_page_index": True, "data_page_size": 1, "write_batch_size": 2}
    return written(table, **(settings | options))


# --- any filter -------------------------------------------------------------------------------------------------------

TIMES = st.datetimes(NOON, NOON + dt.timedelta(days=1))
DECIMALS = st.decimals(min_value=-99, max_value=99, places=2)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int32": (pa.int32(), st.integers(-5, 5)),
    "int64": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "uint32": (pa.uint32(), st.integers(0, (1 << 32) - 1)),
    "uint64": (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    "double": (pa.float64(), st.sampled_from([NAN, -0.0, 0.0, 1.0, 5.0, float("inf"), -float("inf")])),
    "float": (pa.float32(), st.sampled_from([NAN, 0.1, 1.0, -1.0])),
    "half": (pa.float16(), st.sampled_from([np.float16(1), np.float16(2)])),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=3)),
    "large_string": (pa.large_string(), st.sampled_from(["", "a", "b" * 70, "b" * 69 + "c", "é"])),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "c"])),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "decimal": (pa.decimal128(6, 2), DECIMALS),
    "decimal256": (pa.decimal256(50, 2), DECIMALS),
    "date": (pa.date32(), st.dates(DAY, dt.date(2020, 1, 9))),
    "timestamp_s": (pa.timestamp("s"), TIMES.map(lambda time: time.replace(microsecond=0))),
    "timestamp_us": (pa.timestamp("us"), TIMES),
    "timestamp_utc": (
        pa.timestamp("ns", "UTC"),
        st.datetimes(NOON, NOON + dt.timedelta(days=1), timezones=st.just(dt.UTC)),
    ),
    "time": (pa.time64("us"), st.times()),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Table, bytes, list[list[tuple[str, str, Any]]]]:
    """A table of two columns, its file, and a filter on them."""
    names = [draw(st.sampled_from(sorted(VALUES))) for _ in range(2)]
    columns = {}
    for place, name in enumerate(names):
        kind, values = VALUES[name]
        found = draw(st.lists(st.none() | values, min_size=20, max_size=20))
        columns[f"c{place}"] = pa.array(sorted(found, key=repr) if draw(st.booleans()) else found, kind)
    table = pa.table(columns)

    def clause() -> tuple[str, str, Any]:
        place = draw(st.integers(0, 1))
        _, values = VALUES[names[place]]
        operator = draw(st.sampled_from(["=", "==", "!=", "<", ">", "<=", ">=", "in", "not in"]))
        value = draw(st.lists(values, min_size=1, max_size=3)) if operator.endswith("in") else draw(values)
        return f"c{place}", operator, value

    filters = [[clause() for _ in range(draw(st.integers(1, 2)))] for _ in range(draw(st.integers(1, 2)))]
    options = draw(
        st.sampled_from(
            [{}, {"use_dictionary": False}, {"write_statistics": False}, {"store_decimal_as_integer": True}]
        )
    )
    return table, paged(table, **options), filters


@given(cases())
def test_no_matching_row_is_dropped(case: tuple[pa.Table, bytes, list[list[tuple[str, str, Any]]]]) -> None:
    table, data, filters = case
    try:
        matching_rows(table, filters)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        # pyarrow has no such comparison: the scan says so, and pruning does not care.
        kept_rows(footer_at_hand(data), filters)
        return
    assert_kept(table, data, filters)


# --- what is dropped --------------------------------------------------------------------------------------------------

SORTED: dict[str, tuple[pa.Array, Any]] = {
    "int64": (pa.array(range(32)), 13),
    "int16": (pa.array(range(32), pa.int16()), 13),
    "uint64": (
        pa.array(range((1 << 64) - 32, 1 << 64), pa.uint64()),
        pa.scalar((1 << 64) - 19, pa.uint64()),
    ),
    "double": (pa.array([float(n) for n in range(32)]), 13.0),
    "string": (pa.array([f"{n:02}" for n in range(32)]), "13"),
    "binary": (pa.array([b"%02d" % n for n in range(32)]), b"13"),
    "fixed": (pa.array([b"%02d" % n for n in range(32)], pa.binary(2)), b"13"),
    "decimal": (pa.array([Decimal(n) for n in range(32)], pa.decimal128(20, 3)), Decimal(13)),
    "date": (pa.array([DAY + dt.timedelta(n) for n in range(32)]), DAY + dt.timedelta(13)),
    "timestamp": (
        pa.array([NOON + dt.timedelta(n) for n in range(32)], pa.timestamp("ms")),
        NOON + dt.timedelta(13),
    ),
    "time": (pa.array([dt.time(0, n) for n in range(32)], pa.time32("ms")), dt.time(0, 13)),
    "dictionary": (pa.array([f"{n:02}" for n in range(32)]).dictionary_encode(), "13"),
}
EXPECTED = {"==": [(12, 14)], "<": [(0, 14)], ">": [(12, 32)], "<=": [(0, 14)], ">=": [(12, 32)]}


@each_of("name", SORTED)
def test_sorted_columns_keep_their_pages_alone(name: str) -> None:
    array, value = SORTED[name]
    table = pa.table({"a": array, "b": range(32)})
    data = paged(table, use_dictionary=False)
    for operator, expected in EXPECTED.items():
        kept = assert_kept(table, data, [("a", operator, value)])
        if operator in ("<", ">"):  # The value may be the bound of its own page, on one side.
            assert kept in (expected, [(0, 12)] if operator == "<" else [(14, 32)]), operator
        else:
            assert kept == expected, operator


def test_clauses_of_one_alternative_narrow_and_alternatives_add() -> None:
    table = pa.table({"a": range(32), "b": [f"{n:02}" for n in range(32)]})
    data = paged(table, use_dictionary=False)
    assert assert_kept(table, data, [("a", ">=", 4), ("b", "<", "06")]) == [(4, 6)]
    assert assert_kept(table, data, [[("a", "=", 1)], [("b", "in", ["03", "30"])]]) == [(0, 4), (30, 32)]
    assert assert_kept(table, data, [("a", ">", 99)]) == []
    assert assert_kept(table, data, [("a", "in", [])]) == []
    assert assert_kept(table, data, [("a", "!=", 4)]) == [(0, 32)]


@each_of(
    ("operator", "value", "kept"),
    [
        ("==", 5, [(0, 3)]),
        ("<", 100, [(0, 3), (7, 10)]),
        ("!=", 5, [(0, 3), (7, 10)]),
        ("!=", 8, [(0, 3)]),
        ("in", [8, 9], [(7, 10)]),
        ("in", [None, 8], [(0, 10)]),
        ("in", [], []),
        ("not in", [8], [(0, 10)]),
        ("==", "x", [(0, 10)]),
    ],
)
def test_pages_of_nulls(operator: str, value: Any, kept: list[tuple[int, int]]) -> None:
    """Three pages, of which the second has nulls alone; once more with bounds that are not of the width of an int64."""
    check_pages_of_nulls(operator, value, kept, width=8)
    if (3, 7) not in intersected(kept, [(3, 7)]):
        kept = [(0, 3), (7, 10)]
    check_pages_of_nulls(operator, value, kept, width=7)


def check_pages_of_nulls(operator: str, value: Any, kept: list[tuple[int, int]], *, width: int) -> None:
    """Prune three pages of a column whose bounds have ``width`` bytes."""
    footer = footer_at_hand(written(pa.table({"a": range(10)})))
    bounds = [number.to_bytes(width, "little") for number in (1, 0, 8)]
    column = ColumnIndex([False, True, False], bounds, [(5).to_bytes(width, "little"), b"", bounds[2]], None)
    offset = OffsetIndex([4, 5, 6], [1, 1, 1], [0, 3, 7], 10)
    assert pages_kept(footer, ("a", operator, value), offset, column) == kept


@pytest.mark.parametrize("bounds", [(NAN, NAN), (1.0, NAN), (NAN, 3.0), (3.0, 1.0)], ids=str)
def test_bounds_that_cannot_be_true_drop_no_page(bounds: tuple[float, float]) -> None:
    footer = footer_at_hand(written(pa.table({"a": [float(n) for n in range(10)]})))
    low, high = (struct.pack("<d", one) for one in bounds)
    good = struct.pack("<d", 50.0)
    column = ColumnIndex([False, False], [low, good], [high, good], None)
    offset = OffsetIndex([4, 5], [1, 1], [0, 6], 10)
    for clause in (("a", "==", 2.0), ("a", "<", 0.0), ("a", "in", [2.0])):
        assert pages_kept(footer, clause, offset, column) == [(0, 6)], clause


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_a_list_is_rounded_to_the_type_of_the_column(kind: pa.DataType) -> None:
    table = pa.table({"a": pa.array([0.1] * 16 + [7.0] * 16, pa.float64()).cast(kind)})
    kept = assert_kept(table, paged(table, use_dictionary=False), [("a", "in", [0.1])])
    assert kept == [(0, 16)]


def test_one_value_is_dropped_by_unequal() -> None:
    table = pa.table({"a": [7] * 16 + [8] * 16})
    assert assert_kept(table, paged(table, use_dictionary=False), [("a", "!=", 7)]) == [(16, 32)]


def test_nulls() -> None:
    table = pa.table({"a": pa.array([None] * 8 + list(range(8)) + [None, None, 1, 2, None, None, None, 3])})
    data = paged(table, use_dictionary=False)
    assert assert_kept(table, data, [("a", "<", 100)]) == [(8, 24)]
    everything = [(0, 24)]
    assert assert_kept(table, data, [("a", "not in", [1])]) == everything
    assert assert_kept(table, data, [("a", "in", [None])])[0] == (0, 8)
    assert assert_kept(table, data, pc.field("a").is_null()) == [(0, 8), (16, 24)]


@pytest.mark.parametrize(
    "filters",
    [
        [("x", "!=", 5.0)],
        [("x", "not in", [5.0])],
        [("x", "in", [NAN])],
        pc.field("x") != 5,
        ~(pc.field("x") == 5),
        ~(pc.field("x") < 6),
        pc.is_nan(pc.field("x")),
        pc.field("x").is_null(nan_is_null=True),
        (pc.field("y") >= 0) & pc.field("x").is_null(nan_is_null=True),
        pc.field("x").isin([NAN, 1.0]),
        (pc.field("y") >= 0) & ~(pc.field("x") <= 5),
        pc.field(0) != 5,
        pc.if_else(pc.field("x") == 5, False, True),
    ],
    ids=str,
)
def test_nan_is_kept_where_it_matches(filters: Any) -> None:
    """Statistics are of other values alone; pyarrow's own reading by filters loses these rows."""
    table = pa.table({"x": [5.0, NAN, 5.0, NAN, 5.0, NAN, 5.0, NAN], "y": range(8)})
    assert matching_rows(table, filters)
    assert_kept(table, paged(table), filters)


@each_of(
    ("expression", "kept"),
    [
        (pc.field("a") < 5, [(0, 6)]),
        ((pc.field("a") >= 8) & (pc.field("x") < 10.0), [(8, 10)]),
        (pc.field("x") == 31.0, [(30, 32)]),
        (pc.scalar(31.0) <= pc.field("x"), [(30, 32)]),
        (pc.field("a").isin([1, 30]), [(0, 2), (30, 32)]),
        (~(pc.field("a") < 24), [(24, 32)]),
        (pc.field("a") + 1 < 5, [(0, 32)]),
        (pc.field("s", "t") < 5, [(0, 6)]),
        ((pc.field("s", "t") < 5) | (pc.field("a") > 28), [(0, 6), (28, 32)]),
        ((pc.field("s", "t") < 5) & (pc.field("a") > 20), []),
        ((pc.field("s", "t") < 5) & (pc.field("a") + 1 > 20), [(0, 6)]),
    ],
)
def test_expressions_drop_row_groups_and_pages(expression: pc.Expression, kept: list[tuple[int, int]]) -> None:
    table = pa.table(
        {"a": range(32), "x": [float(n) for n in range(32)], "s": [{"t": n} for n in range(32)], "b": ["x"] * 32}
    )
    assert assert_kept(table, paged(table, use_dictionary=False), expression) == kept


def test_the_order_of_row_groups_stays() -> None:
    footer = footer_at_hand(paged(pa.table({"a": range(32)})))
    assert prune_row_groups(footer, pc.field("a") > 10, [3, 1, 0]) == [3, 1]
    assert prune_row_groups(footer, None, [3, 1]) == [3, 1]
    assert prune_row_groups(footer, pc.field("a") > 10, []) == []


def test_values_of_another_type_drop_nothing() -> None:
    table = pa.table({"a": range(32)})
    for value in ("x", DAY, b"x", [1], object(), 1 << 70):
        assert kept_rows(footer_at_hand(paged(table)), [("a", "==", value)]) == [(0, 32)]


# --- which columns ----------------------------------------------------------------------------------------------------


@each_of(
    ("filters", "columns"),
    [
        (None, []),
        ([("l", "=", 1)], ["l"]),
        ([[("i", "=", 1)], [("x.y", "=", 1.0), ("i", ">", 0)]], ["i", "x.y"]),
        (pc.field("i") > 1, ["i"]),
        ((pc.field("x.y") > 1) | (pc.field("b", "c") == 1), ["b", "x.y"]),
        (pc.field("i").cast(pa.string()) != "l, m, n and x.y", ["i"]),
        (pc.field(2) > 1, ["i", "b", "x.y", "l", "m", "k", "n"]),
    ],
)
def test_columns_of_filters(filters: Any, columns: list[str]) -> None:
    footer = footer_at_hand(written(nested_table()))
    assert filter_columns(footer, normalized_filters(filters, footer)) == columns


def test_leaves_that_can_be_pruned_by() -> None:
    footer = footer_at_hand(written(nested_table()))
    filters = [[("i", "=", 1), ("b", "=", 1), (("b", "d"), "=", "1"), ("l", "=", 1), ("x.y", "=", 1), ("k", "=", 1)]]
    tree = filter_tree(normalized_filters(filters, footer))
    assert page_leaves(footer, tree) == {("i",): 0, ("b", "d"): 2, ("x.y",): 3}
    assert page_leaves(footer, filter_tree(pc.field(0) == 1)) == {}


def test_columns_of_one_name_are_not_pruned_by() -> None:
    table = pa.Table.from_arrays([pa.array(range(4)), pa.array(range(4, 8)), pa.array(range(4))], names=["a", "a", "b"])
    footer = footer_at_hand(written(table, row_group_size=2))
    filters = normalized_filters([("a", ">", 5), ("b", ">", 5)], footer)
    assert page_leaves(footer, filter_tree(filters)) == {("b",): 2}
    assert prune_row_groups(footer, normalized_filters([("a", "<", 4)], footer), [0, 1]) == [0, 1]


@each_of("expression", [pc.field("nope") > 1, pc.field("i") == "x", pc.field("i"), pc.field(99) == 1])
def test_expressions_that_do_not_go_with_the_file(expression: pc.Expression) -> None:
    footer = footer_at_hand(written(nested_table()))
    with pytest.raises(InvalidArgument, match="filters="):
        filter_columns(footer, expression)


@each_of(
    ("filters", "error"),
    [
        ([], InvalidArgument),
        ([[]], InvalidArgument),
        ([("nope", "=", 1)], InvalidArgument),
        ([("i", "~", 1)], InvalidArgument),
        ([("i", "in", "abc")], InvalidType),
        ([("i", "in", 7)], InvalidType),
        ([("i", "=")], InvalidType),
        ([1], InvalidType),
        ("i = 1", InvalidType),
        (7, InvalidType),
        ([("i", "=", 1), ["i", "=", 1, 2]], InvalidType),
    ],
)
def test_invalid_filters_are_refused(filters: Any, error: type[Exception]) -> None:
    footer = footer_at_hand(written(nested_table()))
    with pytest.raises(error):
        normalized_filters(filters, footer)


# --- statistics that cannot be true -----------------------------------------------------------------------------------


def implausible_bounds(draw: st.DrawFn, low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Two bounds that no values lie between, made of true ones."""
    how = draw(st.sampled_from(["swapped", "cut", "long", "nan", "empty"]))
    if how == "swapped" and low != high:
        return high, low
    if how == "cut":
        return low[:-1], high[:-1]
    if how == "nan":
        return struct.pack("<d", NAN), high
    return (b"", b"") if how == "empty" else (low + b"\0", high + b"\0")


@st.composite
def lying_files(draw: st.DrawFn) -> tuple[pa.Table, bytes]:
    """A file of numbers whose statistics were changed into such as cannot be true."""
    nullable = draw(st.booleans())
    kind = draw(st.sampled_from([pa.int64(), pa.float64()]))
    values = [kind_of_value(kind, n) if not nullable or n % 3 else None for n in range(32)]
    schema = pa.schema([pa.field("a", kind, nullable=nullable)])
    table = pa.table({"a": pa.array(values, kind)}, schema=schema)
    data = bytearray(paged(table, use_dictionary=False, compression="none"))
    footer = footer_at_hand(bytes(data))
    if draw(st.booleans()):
        lie_of_pages(draw, data, footer, nullable=nullable)
    tree = tree_of(bytes(data))
    for group in range(footer.row_groups):
        statistics = chunk_of(tree, group, 0)[3][1][12][1]
        how = draw(st.sampled_from(["bounds", "nulls", "truth"]))
        if how == "bounds":
            for low, high in ((6, 5), (2, 1)):
                if low in statistics:
                    made = implausible_bounds(draw, statistics[low][1], statistics[high][1])
                    statistics[low], statistics[high] = ((thrift.BINARY, one) for one in made)
        elif how == "nulls":  # As many as there are rows, with bounds beside them; or more.
            statistics[3] = (thrift.I64, draw(st.sampled_from([-1, 8, 9, 1 << 40])))
    return table, with_tree(bytes(data), tree)


def kind_of_value(kind: pa.DataType, number: int) -> Any:
    return float(number) if pa.types.is_floating(kind) else number


def lie_of_pages(draw: st.DrawFn, data: bytearray, footer: Footer, *, nullable: bool) -> None:
    """Column indexes in place of the file's, of the same length; where a lie does not fit, the truth stays."""
    chunks = column_chunks(footer, range(footer.row_groups), (0,), with_indexes=True)
    for chunk in chunks:
        assert chunk.column_index is not None
        start, end = chunk.column_index
        tree, _ = thrift.read_struct(bytes(data[start:end]))
        pages = len(tree[2][1].items)
        for page in range(pages):
            if draw(st.booleans()):
                low, high = tree[2][1].items[page], tree[3][1].items[page]
                tree[2][1].items[page], tree[3][1].items[page] = high, low
            if draw(st.booleans()) and (not nullable or 5 in tree):
                tree[1][1].items[page] = thrift.TRUE
                if nullable:
                    tree[5][1].items[page] = draw(st.sampled_from([-1, 0, 1]))
        made = thrift.write_struct(tree)
        if len(made) == end - start:
            data[start:end] = made


@given(lying_files(), st.sampled_from(["=", "<", ">", "<=", ">=", "!=", "in"]), st.integers(-1, 33))
def test_statistics_that_cannot_be_true_lose_no_row(file: tuple[pa.Table, bytes], operator: str, value: int) -> None:
    table, data = file
    probe = kind_of_value(table.schema.field("a").type, value)
    assert_kept(table, data, [("a", operator, [probe] if operator == "in" else probe)])
