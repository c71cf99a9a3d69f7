"""Thrift's compact protocol: real footers come back byte by byte, and no claim makes it allocate or run away."""

import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.parquet import thrift
from aioprefetch.parquet.thrift import (
    BINARY,
    DEPTH_MAX,
    DOUBLE,
    FALSE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    UUID,
    MalformedThrift,
    ThriftList,
    ThriftMap,
    TruncatedThrift,
    read_struct,
    skip_value,
    write_struct,
)
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of
from tests.unit.parquet.parquet_files import footer_of, nested_table, written

SMALL = footer_of(written(pa.table({"a": [1, 2], "s": ["x", None]}), write_page_index=True))

FOOTERS = {
    "small": SMALL,
    "nested": footer_of(written(nested_table(), row_group_size=7, write_page_index=True)),
    "wide": footer_of(written(pa.table({f"c{n}": np.arange(30) for n in range(40)}), row_group_size=10)),
    "empty": footer_of(written(pa.table({"a": pa.array([], pa.int8())}))),
    "no columns": footer_of(written(pa.table({}))),
    "metadata": footer_of(
        written(
            pa.table({"t": pa.array([1], pa.timestamp("us", "UTC")), "b": [True]}).replace_schema_metadata(
                {f"key {n}": "v" * n for n in range(40)}
            ),
            store_decimal_as_integer=True,
            sorting_columns=None,
        )
    ),
}


@each_of("name", FOOTERS)
def test_a_footer_comes_back_byte_by_byte(name: str) -> None:
    raw = FOOTERS[name]
    tree, end = read_struct(raw)
    assert end == len(raw) == skip_value(raw, 0, STRUCT)
    assert write_struct(tree) == raw
    assert read_struct(memoryview(b"xyz" + raw), 3) == (tree, len(raw) + 3)


def test_page_headers_are_read_one_after_the_other() -> None:
    data = written(pa.table({"a": np.arange(1000)}), data_page_size=512, compression="none", use_dictionary=False)
    position, rows = 4, 0
    while rows < 1000:
        header, after = read_struct(data, position)
        assert write_struct(header) == data[position:after]
        assert header[1][1] == 0
        rows += header[5][1][1][1]
        position = after + header[3][1]
    assert rows == 1000


def test_every_beginning_of_a_struct_asks_for_more() -> None:
    for end in range(len(SMALL)):
        with pytest.raises(TruncatedThrift):
            read_struct(SMALL[:end])
        with pytest.raises(TruncatedThrift):
            skip_value(SMALL[:end], 0, STRUCT)


# --- any tree ---------------------------------------------------------------------------------------------------------

integers = st.integers(-(1 << 63), (1 << 63) - 1)
leaves: dict[int, st.SearchStrategy[Any]] = {
    I8: st.integers(0, 255),
    I16: st.integers(-(1 << 15), (1 << 15) - 1),
    I32: st.integers(-(1 << 31), (1 << 31) - 1),
    I64: integers,
    DOUBLE: st.floats(allow_nan=False),
    BINARY: st.binary(max_size=40),
    UUID: st.binary(min_size=16, max_size=16),
}


@st.composite
def structs(draw: st.DrawFn, depth: int = 3) -> thrift.Struct:
    """Structs with ids in any order."""
    ids = draw(st.lists(st.integers(-100, 200), unique=True, max_size=5))
    return {number: draw(values(depth)) for number in ids}


@st.composite
def values(draw: st.DrawFn, depth: int) -> tuple[int, Any]:
    """Type and value of a field."""
    kinds = [*leaves, TRUE, FALSE, *((LIST, SET, MAP, STRUCT) if depth else ())]
    kind = draw(st.sampled_from(kinds))
    if kind in (TRUE, FALSE):
        return kind, kind == TRUE
    if kind in (LIST, SET):
        element, items = draw(elements(depth - 1, 20))
        return kind, ThriftList(element, items)
    if kind == MAP:
        (key, keys), (value, items) = draw(elements(depth - 1, 4)), draw(elements(depth - 1, 4))
        pairs = list(zip(keys, items, strict=False))
        return kind, ThriftMap(key, value, pairs) if pairs else ThriftMap(0, 0, [])
    return kind, draw(structs(depth - 1)) if kind == STRUCT else draw(leaves[kind])


@st.composite
def elements(draw: st.DrawFn, depth: int, most: int) -> tuple[int, list[Any]]:
    """Type and items of a list; a bool is a byte there."""
    kind = draw(st.sampled_from([*leaves, TRUE, *((STRUCT,) if depth else ())]))
    item = st.sampled_from([0, 1, 2]) if kind == TRUE else structs(0) if kind == STRUCT else leaves[kind]
    return kind, draw(st.lists(item, max_size=most))


@given(structs())
def test_any_tree_comes_back(tree: thrift.Struct) -> None:
    raw = write_struct(tree)
    assert read_struct(raw) == (tree, len(raw))
    assert list(read_struct(raw)[0]) == list(tree)
    assert skip_value(raw, 0, STRUCT) == len(raw)
    assert write_struct(read_struct(raw)[0]) == raw


@given(st.binary(max_size=200), st.integers(0, 30))
def test_any_bytes_are_read_or_refused(raw: bytes, position: int) -> None:
    try:
        _, end = read_struct(raw, position)
    except MalformedThrift:
        return
    assert position < end <= len(raw)
    assert skip_value(raw, position, STRUCT) == end


@given(st.data())
def test_a_changed_footer_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        _, end = read_struct(bytes(raw))
    except MalformedThrift:
        return
    assert end <= len(raw)


# --- claims -----------------------------------------------------------------------------------------------------------

HUGE = b"\xff\xff\xff\xff\x07"  # 2^31 - 1
CLAIMS = {
    "a list of 2^31 structs": b"\x19\xfc" + HUGE,
    "a list of 2^31 bytes": b"\x19\xf3" + HUGE,
    "a string of 2 GiB": b"\x18" + HUGE,
    "a map of 2^31 pairs": b"\x1b" + HUGE + b"\x88",
}


@checks("reliability:I18", "reliability:K24")
@each_of("name", CLAIMS)
def test_nothing_is_allocated_by_claimed_size(name: str) -> None:
    raw = CLAIMS[name] + bytes(200)
    tracemalloc.start()
    try:
        for read in (read_struct, lambda buffer: skip_value(buffer, 0, STRUCT)):
            with pytest.raises(TruncatedThrift):
                read(raw)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


REFUSED = {
    "a number of eleven bytes": b"\x16" + b"\x80" * 11 + b"\x00\x00",
    "an unknown type": b"\x1e\x00",
    "a field that comes twice": b"\x15\x00\x05\x02\x00\x00",
    "structs without end": b"\x1c" * 10_000,
    "lists without end": b"\x19" + b"\x19" * 10_000,
}


@each_of("name", REFUSED)
def test_what_no_bytes_can_mend_is_malformed(name: str) -> None:
    with pytest.raises(MalformedThrift) as raised:
        read_struct(REFUSED[name])
    assert not isinstance(raised.value, TruncatedThrift)


def test_depth_is_bounded_at_the_limit() -> None:
    for levels, fits in ((DEPTH_MAX - 2, True), (DEPTH_MAX + 1, False)):
        raw = b"\x1c" * levels + bytes(levels + 1)
        if fits:
            assert read_struct(raw)[1] == skip_value(raw, 0, STRUCT) == len(raw)
            continue
        with pytest.raises(MalformedThrift):
            read_struct(raw)
        with pytest.raises(MalformedThrift):
            skip_value(raw, 0, STRUCT)


def test_a_type_that_does_not_exist_is_not_written() -> None:
    with pytest.raises(ValueError, match="no type 14"):
        write_struct({1: (14, 0)})
