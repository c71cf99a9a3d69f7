"""Schemas of several files as one: every value of each file has a place in it."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.columns.casts import cast_plain, plain_schema, plain_type
from aioprefetch.source.columns.schemas import united, wider

LEAVES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(5, 2)),
    *(pa.decimal128(38, 10), pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
    *(pa.null(), pa.binary()),
]
ONE: dict[pa.DataType, Any] = {
    **dict.fromkeys(LEAVES[:8], 1),
    pa.string(): "x",
    pa.bool_(): True,
    pa.date32(): 1,
    pa.timestamp("us"): 1,
    pa.timestamp("us", "UTC"): 1,
    pa.null(): None,
    pa.binary(): b"x",
}


def schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema(list(fields.items()))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(LEAVES), st.sampled_from(LEAVES))
def test_values_of_both_fit(one: pa.DataType, other: pa.DataType) -> None:
    strict, lenient = (wider(one, other, is_lenient=flag) for flag in (False, True))
    assert strict == wider(other, one, is_lenient=False)
    assert lenient == wider(other, one, is_lenient=True)
    assert wider(one, one, is_lenient=False) == one
    assert lenient is not None
    assert strict in (None, lenient)
    if strict is not None:
        for kind in (one, other):
            assert cast_plain(pa.array([ONE[kind], None], kind), strict).null_count == (
                2 if pa.types.is_null(kind) else 1
            )


def test_fields_are_united_in_order_and_within() -> None:
    one = schema(a=pa.int32(), s=pa.struct([("x", pa.int8()), ("y", pa.list_(pa.float32()))]))
    other = schema(
        b=pa.large_string(), s=pa.struct([("y", pa.large_list(pa.float64())), ("z", pa.bool_())]), a=pa.int64()
    )
    found = united([("1", one), ("2", other)], is_lenient=False)
    inner = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.float64())), ("z", pa.bool_())])
    assert found.equals(schema(a=pa.int64(), s=inner, b=pa.string()))


def test_a_conflict_names_column_and_files_or_becomes_text() -> None:
    schemas = [("1.x", schema(s=pa.struct([("a", pa.int64())]))), ("2.x", schema(s=pa.struct([("a", pa.bool_())])))]
    with pytest.raises(UntrustedMetadata, match=r"'s' is .* in '1\.x' and .* in '2\.x'"):
        united(schemas, is_lenient=False)
    assert united(schemas, is_lenient=True).equals(schema(s=pa.struct([("a", pa.string())])))
    numbers = [("1", schema(a=pa.int64())), ("2", schema(a=pa.float64()))]
    with pytest.raises(UntrustedMetadata):
        united(numbers, is_lenient=False)  # 2**53 + 1 is no double.
    assert united(numbers, is_lenient=True).equals(schema(a=pa.float64()))


def test_types_of_pyarrow_become_those_of_engines() -> None:
    assert plain_type(pa.dictionary(pa.int8(), pa.large_string())) == pa.string()
    assert plain_type(pa.uint32()) == pa.int64()
    assert plain_type(pa.uint64()) == pa.decimal128(20, 0)
    assert plain_type(pa.timestamp("ns", "Asia/Tokyo")) == pa.timestamp("us", "UTC")
    assert plain_type(pa.timestamp("s")) == pa.timestamp("us")
    assert plain_type(pa.list_(pa.binary(16), 3)) == pa.list_(pa.binary())
    assert plain_type(pa.uuid()) == pa.binary()
    assert plain_type(pa.map_(pa.string_view(), pa.float16())) == pa.map_(pa.string(), pa.float32())
    required = pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"k": "v"})], metadata={"k": "v"})
    assert plain_schema(required).equals(pa.schema([("a", pa.int64())]), check_metadata=True)
