"""Batches conformed to a schema: values by Python's own arithmetic and pyarrow's casts, schemas by equality."""

import datetime as dt
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.columns.schemas import Conformer
from tests.profile import each_of

UTC = dt.UTC
INSTANT = pa.timestamp("us", "UTC")
EXAMPLES = settings(max_examples=50, deadline=None)


def conform(batch: pa.RecordBatch, schema: pa.Schema, *, path: str = "") -> pa.RecordBatch:
    return Conformer(schema).conform(batch, path=path)


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def one(array: pa.Array, kind: pa.DataType, *, nullable: bool = True) -> list[Any]:
    """The values of a column after it was conformed."""
    schema = pa.schema([pa.field("c", kind, nullable)])
    found = conform(batch_of(c=array), schema, path="a/b.parquet")
    assert found.schema.equals(schema)
    found.validate(full=True)
    values: list[Any] = found.column(0).to_pylist()
    return values


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_put_in_order_and_missing_ones_are_null() -> None:
    batch = batch_of(b=pa.array([1, 2], pa.int32()), x=pa.array([0, 0]), a=pa.array(["p", "q"]))
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.list_(pa.int32()))])
    found = conform(batch, schema)
    assert found.schema.equals(schema)
    assert found.to_pylist() == [{"a": "p", "b": 1, "c": None}, {"a": "q", "b": 2, "c": None}]


def test_nothing_is_copied_where_nothing_changes() -> None:
    batch = batch_of(a=pa.array([1, 2, None]), b=pa.array(["x", "y", "z"]), l=pa.array([[1], None, []]))
    schema = pa.schema([("b", pa.string()), ("l", pa.list_(pa.int64())), ("a", pa.int64())])
    found = conform(batch, schema)
    for name in ("a", "b", "l"):
        before = [buffer and buffer.address for buffer in batch.column(name).buffers()]
        assert [buffer and buffer.address for buffer in found.column(name).buffers()] == before
    assert conform(batch, batch.schema) is not None
    flat = batch_of(a=pa.array([1, 2]))
    assert conform(flat, flat.schema) is flat


def test_rows_without_columns_keep_their_number() -> None:
    assert conform(batch_of(a=pa.array([1, 2, 3])), pa.schema([])).num_rows == 3
    empty = batch_of(a=pa.array([1, 2, 3])).select([])
    found = conform(empty, pa.schema([("a", pa.int64())]))
    assert found.column(0).to_pylist() == [None, None, None]


def test_names_are_exact_first_and_then_without_case() -> None:
    schema = pa.schema([("Name", pa.int64())])
    assert conform(batch_of(name=pa.array([1]), Name=pa.array([2])), schema).column(0).to_pylist() == [2]
    assert conform(batch_of(NAME=pa.array([1])), schema).column(0).to_pylist() == [1]
    found = Conformer(schema, exact_case=True).conform(batch_of(NAME=pa.array([1]), name=pa.array([2])))
    assert found.column(0).to_pylist() == [None]
    both = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    assert conform(batch_of(a=pa.array([1])), both).to_pylist() == [{"a": 1, "A": None}]
    with pytest.raises(UntrustedMetadata, match="'NAME', 'name'"):
        conform(batch_of(NAME=pa.array([1]), name=pa.array([2])), schema, path="f")


def test_what_must_not_be_null_is_not() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert conform(batch_of(a=pa.array([1])), schema).schema.equals(schema)
    with pytest.raises(UntrustedMetadata, match=r"f\.parquet.*'a' must not be null, and 1 of 2"):
        conform(batch_of(a=pa.array([1, None])), schema, path="f.parquet")
    with pytest.raises(UntrustedMetadata, match=r"f\.parquet.*no column 'a'"):
        conform(batch_of(b=pa.array([1])), schema, path="f.parquet")
    same = pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=schema)
    with pytest.raises(UntrustedMetadata, match="must not be null"):
        conform(same, schema)


def test_one_conformer_serves_files_of_different_schemas() -> None:
    conformer = Conformer(pa.schema([("a", pa.int64())]))
    for _ in range(2):
        assert conformer.conform(batch_of(a=pa.array([1]))).column(0).to_pylist() == [1]
        assert conformer.conform(batch_of(b=pa.array([1]), a=pa.array([2]))).column(0).to_pylist() == [2]
        assert conformer.conform(batch_of(b=pa.array([1]))).column(0).to_pylist() == [None]


# --- types ------------------------------------------------------------------------------------------------------------

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def limits(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, (1 << bits) - 1)


@EXAMPLES
@given(st.data())
def test_integers_go_where_they_fit_and_overflow_names_column_and_value(data: st.DataObject) -> None:
    found, wanted = data.draw(st.sampled_from(INTEGERS)), data.draw(st.sampled_from(INTEGERS))
    values = data.draw(st.lists(st.none() | st.integers(*limits(found)), max_size=5))
    low, high = limits(wanted)
    bad = [value for value in values if value is not None and not low <= value <= high]
    if not bad:
        assert one(pa.array(values, found), wanted) == values
        return
    with pytest.raises(UntrustedMetadata) as caught:
        one(pa.array(values, found), wanted)
    assert caught.value.path == "a/b.parquet"
    assert caught.value.context["column"] == "c"
    assert any(str(value) in caught.value.message for value in bad)


TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@EXAMPLES
@given(
    st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=5),
    st.sampled_from(list(TICKS)),
    st.sampled_from([None, "UTC", "Europe/Paris", "+02:00"]),
    st.booleans(),
)
def test_timestamps_of_any_unit_and_zone_become_microseconds(
    ticks: list[int | None], unit: str, zone: str | None, is_instant: bool
) -> None:
    """By floor division; a naive time is one of UTC."""
    wanted = INSTANT if is_instant else pa.timestamp("us")
    array = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone))
    exact = [None if tick is None else tick * 10**6 // TICKS[unit] for tick in ticks]
    if any(value is not None and not -(2**63) <= value < 2**63 for value in exact):
        with pytest.raises(UntrustedMetadata, match="overflow"):
            one(array, wanted)
        return
    schema = pa.schema([("c", wanted)])
    found = conform(batch_of(c=array), schema)
    assert found.schema.equals(schema)
    assert found.column(0).cast(pa.int64()).to_pylist() == exact


@EXAMPLES
@given(st.lists(st.none() | st.text(max_size=5), max_size=8), st.integers(0, 3))
def test_wrapped_texts_come_plain(values: list[str | None], cut: int) -> None:
    for kind in (pa.large_string(), pa.string_view()):
        array = pa.array(values, kind)[cut:]
        assert one(array, pa.string()) == values[cut:]
    assert one(pa.array(values).dictionary_encode()[cut:], pa.string()) == values[cut:]
    encoded = pa.array([None if value is None else value.encode() for value in values], pa.large_binary())
    assert one(encoded[cut:], pa.binary()) == [None if value is None else value.encode() for value in values[cut:]]
    assert one(encoded[cut:], pa.string()) == values[cut:]


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UntrustedMetadata, match="UTF8"):
        one(pa.array([b"\xff"]), pa.string())


@EXAMPLES
@given(st.lists(st.decimals(-9999, 9999, places=2), max_size=4), st.integers(4, 38), st.integers(0, 6))
def test_decimals_are_rescaled_without_loss_or_refused(
    values: list[decimal.Decimal], precision: int, scale: int
) -> None:
    if scale > precision:
        return
    wanted = pa.decimal128(precision, scale)
    step = decimal.Decimal(1).scaleb(-scale)
    fits = all(value % step == 0 and abs(value) < 10 ** (precision - scale) for value in values)
    array = pa.array(values, pa.decimal128(6, 2))
    if fits:
        assert one(array, wanted) == values
    else:
        with pytest.raises(UntrustedMetadata):
            one(array, wanted)


@EXAMPLES
@given(st.integers(1 - 10**38, 10**38 - 1), st.integers(0, 38), st.integers(1, 38), st.integers(0, 38), st.booleans())
@example(123456789012345678901234567890, 0, 38, 18, False)
@example(99999999999999999999999999995000000000, 0, 38, 0, False)
@example(123456789012345678901234567890, 0, 38, 18, True)
def test_large_decimals_and_texts_of_them_are_never_wrapped(
    digits: int, places: int, precision: int, scale: int, is_text: bool
) -> None:
    exact = decimal.Context(prec=100)
    value = exact.scaleb(decimal.Decimal(digits), -places)
    scale = min(scale, precision)
    array = pa.array([f"{value:f}"]) if is_text else pa.array([value], pa.decimal128(38, places))
    moved = exact.scaleb(value, scale)
    if moved == moved.to_integral_value() and moved.copy_abs() < 10**precision:  # abs() rounds to 28 digits
        assert one(array, pa.decimal128(precision, scale)) == [value]
    else:
        with pytest.raises(UntrustedMetadata):
            one(array, pa.decimal128(precision, scale))


@EXAMPLES
@given(st.integers(-(10**15), 10**15), st.integers(0, 15))
def test_decimals_become_the_nearest_doubles_and_again_what_they_were(digits: int, places: int) -> None:
    value, kind = decimal.Decimal(digits).scaleb(-places), pa.decimal128(38, places)
    found = one(pa.array([value], kind), pa.float64())
    assert found == [float(value)]
    assert one(pa.array(found), kind) == [value]


@each_of(
    "text",
    ["123456789012345678901234567890", "1" * 80, "6e76", "1532495540865888858358347027150309183618739122183602176e76"],
)
def test_texts_that_wrap_in_any_number_of_bits_are_refused(text: str) -> None:
    with pytest.raises(UntrustedMetadata, match="cannot become decimal128"):
        one(pa.array(["1.5", text]), pa.decimal128(38, 18))


@each_of("text", ["0" * 90 + "2.5", "2.5" + "0" * 90, "250e-2", "0.25e1", "+2.5"])
def test_decimals_may_be_written_at_length(text: str) -> None:
    assert one(pa.array(["-1", None, text, "0e99"]), pa.decimal128(10, 2)) == [-1, None, decimal.Decimal("2.5"), 0]


def test_numbers_change_kind_where_nothing_is_lost() -> None:
    assert one(pa.array([1.5, None], pa.float32()), pa.float64()) == [1.5, None]
    assert one(pa.array([7, None], pa.int32()), pa.float64()) == [7.0, None]
    assert one(pa.array([7]), pa.decimal128(10, 2)) == [decimal.Decimal("7.00")]
    assert one(pa.array([7], pa.uint64()), pa.decimal128(38, 30)) == [decimal.Decimal(7)]
    assert one(pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)) == [2**64 - 1]
    assert one(pa.array([math.inf, 1.0, math.nan]), pa.float32())[:2] == [math.inf, 1.0]
    with pytest.raises(UntrustedMetadata, match=r"1e\+300 is too large"):
        one(pa.array([1.0, 1e300]), pa.float32())
    with pytest.raises(UntrustedMetadata, match="truncated"):
        one(pa.array([1.5]), pa.int64())
    with pytest.raises(UntrustedMetadata, match="precision"):
        one(pa.array([12345]), pa.decimal128(4, 2))
    for kind in (pa.float64(), pa.float32()):
        assert one(pa.array([0.1, None, -2.5], kind), pa.decimal128(10, 2)) == [decimal.Decimal("0.10"), None, -2.5]
        with pytest.raises(UntrustedMetadata, match="would be rounded"):
            one(pa.array([0.5, 1.239], kind), pa.decimal128(10, 2))
    with pytest.raises(UntrustedMetadata, match="'c' is double"):
        one(pa.array([math.nan]), pa.decimal128(10, 2))


def test_dates_and_times() -> None:
    day = dt.date(2024, 5, 6)
    assert one(pa.array([day], pa.date64()), pa.date32()) == [day]
    assert one(pa.array([day]), INSTANT) == [dt.datetime(2024, 5, 6, tzinfo=UTC)]
    assert one(pa.array([day]), pa.timestamp("us")) == [dt.datetime(2024, 5, 6)]
    assert one(pa.array([dt.timedelta(seconds=1)], pa.duration("s")), pa.duration("us")) == [dt.timedelta(seconds=1)]
    texts = pa.array(["2024-05-06", "2024-05-06T07:08:09", "2024-05-06 07:08:09+02:00", "2024-05-06T07:08:09Z", None])
    assert one(texts, INSTANT) == [
        dt.datetime(2024, 5, 6, tzinfo=UTC),
        dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        dt.datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC),
        dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        None,
    ]
    with pytest.raises(UntrustedMetadata, match="yesterday"):
        one(pa.array(["yesterday"]), INSTANT)


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pa.array([1]), pa.bool_()),
        (pa.array([True]), pa.int64()),
        (pa.array([1]), INSTANT),
        (pa.array([1]), pa.date32()),
        (pa.array([dt.datetime(2024, 1, 1)]), pa.date32()),
        (pa.array([1]), pa.binary()),
        (pa.array([[1]]), pa.int64()),
        (pa.array([[1]]), pa.string()),
        (pa.array([1]), pa.list_(pa.int64())),
        (pa.array([{"a": 1}]), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_what_would_be_guessed_is_refused(array: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(UntrustedMetadata, match=r"'c' is .* in the file and cannot become") as caught:
        one(array, wanted)
    assert caught.value.path == "a/b.parquet"


def test_nulls_become_anything() -> None:
    for kind in (pa.int64(), pa.string(), INSTANT, pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.null()):
        assert one(pa.nulls(2), kind) == [None, None]


# --- nested types -----------------------------------------------------------------------------------------------------

NARROW = pa.struct(
    [("x", pa.int32()), ("L", pa.large_list(pa.large_string())), ("m", pa.map_(pa.string(), pa.int16()))]
)
WIDE = pa.struct(
    [("more", pa.date32()), ("m", pa.map_(pa.string(), pa.int64())), ("l", pa.list_(pa.string())), ("x", pa.int64())]
)
RECORDS = st.none() | st.fixed_dictionaries(
    {
        "x": st.none() | st.integers(-5, 5),
        "L": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "m": st.none() | st.dictionaries(st.text(max_size=2), st.none() | st.integers(-5, 5), max_size=2),
    }
)


def as_wide(record: dict[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    pairs = None if record["m"] is None else list(record["m"].items())
    return {"more": None, "m": pairs, "l": record["L"], "x": record["x"]}


@EXAMPLES
@given(st.lists(st.none() | st.lists(RECORDS, max_size=3), max_size=6), st.integers(0, 3), st.integers(0, 6))
def test_nested_types_are_conformed_within(rows: list[list[dict[str, Any] | None] | None], cut: int, end: int) -> None:
    """Lists of structs of lists and maps; slices, nulls at every level, other order, case and widths."""
    as_pairs = [
        row and [one and {**one, "m": one["m"] and list(one["m"].items())} for one in row] if row else row
        for row in rows
    ]
    for kind in (pa.list_(NARROW), pa.large_list(NARROW), pa.list_view(NARROW)):
        array = pa.array(as_pairs, kind)[cut:end]
        wanted = [None if row is None else [as_wide(record) for record in row] for row in rows[cut:end]]
        assert one(array, pa.list_(pa.field("element", WIDE))) == wanted
    structs = [record for row in rows if row for record in row]
    array = pa.array([one and {**one, "m": one["m"] and list(one["m"].items())} for one in structs], NARROW)
    assert one(array[cut:end], WIDE) == [as_wide(record) for record in structs[cut:end]]


def test_lists_of_fixed_length_and_nulls_within() -> None:
    array = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2))
    assert one(array, pa.list_(pa.int64())) == [[1, 2], None, [3, None]]
    assert one(array[1:], pa.list_(pa.int64())) == [None, [3, None]]
    with pytest.raises(UntrustedMetadata, match=r"'c\.element' must not be null"):
        one(array, pa.list_(pa.field("element", pa.int64(), nullable=False)))


@each_of("start", [0, 1])
@each_of("rows", [[None], [None, {"a": None}], [None, {"a": "x"}, None], [{"a": None}, None]])
def test_a_dictionary_below_a_struct_that_is_null(rows: list[Any], start: int) -> None:
    array = pa.array(rows, pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]))
    assert one(array[start:], pa.struct([("a", pa.string())])) == rows[start:]
    deep = pa.StructArray.from_arrays([array], names=["s"])
    wanted = pa.struct([("s", pa.struct([("a", pa.string())]))])
    assert one(deep[start:], wanted) == [{"s": row} for row in rows[start:]]


def test_fields_of_structs_that_must_not_be_null() -> None:
    required = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    assert one(pa.array([{"a": 1}, None]), required) == [{"a": 1}, None]
    with pytest.raises(UntrustedMetadata, match=r"'c\.a' must not be null"):
        one(pa.array([{"a": 1}, {"a": None}, None]), required)
    with pytest.raises(UntrustedMetadata, match=r"no field 'c\.a'"):
        one(pa.array([{"b": 1}]), required)
    assert one(pa.nulls(1, pa.struct([("b", pa.int64())])), required) == [None]
    with pytest.raises(UntrustedMetadata, match=r"'c\.a'.*99999"):
        one(pa.array([{"a": 99999}]), pa.struct([("a", pa.int8())]))
