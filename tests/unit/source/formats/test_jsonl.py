"""JSON lines: values, errors and unknown fields; the fast and the slow parser agree."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid, Error, Unsupported, UntrustedMetadata
from aioprefetch.source.formats.conversion import read_rows
from aioprefetch.source.formats.jsonl import JsonLinesFormat, JsonParts
from aioprefetch.source.formats.record_format import Wanted
from aioprefetch.source.formats.records import LineEnds, Lines
from aioprefetch.source.options import FormatOptions, ReadOptions
from tests.profile import each_of
from tests.unit.source.formats.written_files import new_operator, put, read

LONG = pa.schema([("a", pa.int64())])


async def rows_of(data: bytes, schema: pa.Schema, **options: Any) -> list[dict[str, Any]]:
    async with new_operator() as operator:
        return (await read(operator, await put(operator, "dir/a.jsonl", data), schema, **options)).rows


async def failure(data: bytes, schema: pa.Schema, kind: type[Exception] = UntrustedMetadata, **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        await rows_of(data, schema, **options)
    error: Any = caught.value
    assert error.path == "dir/a.jsonl"
    return error


@each_of(
    ("text", "kind", "value"),
    [
        ('"2020-02-29"', pa.date32(), date(2020, 2, 29)),
        ('"2020-01-01 02:03:04.5"', pa.timestamp("us", "UTC"), datetime(2020, 1, 1, 2, 3, 4, 500_000, UTC)),
        ('"2020-01-01T02:03:04+02:00"', pa.timestamp("us", "UTC"), datetime(2020, 1, 1, 0, 3, 4, 0, UTC)),
        ('"2020-01-01T00:00:00.1234567Z"', pa.timestamp("us", "UTC"), datetime(2020, 1, 1, 0, 0, 0, 123_456, UTC)),
        ('"2020-01-01"', pa.timestamp("us"), datetime(2020, 1, 1)),
        ("1.25", pa.decimal128(10, 2), Decimal("1.25")),
        ('"1.25"', pa.decimal128(10, 2), Decimal("1.25")),
        ("12", pa.decimal128(10, 2), Decimal(12)),
        ("1." + "0" * 60, pa.decimal128(10, 2), Decimal(1)),
        ("-1e7", pa.decimal128(10, 2), Decimal(-10_000_000)),
        ("0e9999", pa.decimal128(10, 2), Decimal(0)),
        ('"AAE="', pa.binary(), b"\x00\x01"),
        ('{"k":1,"l":null}', pa.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)]),
        ("1.50", pa.string(), "1.50"),
        ("true", pa.string(), "true"),
        ('{"b":[1,"é"]}', pa.string(), '{"b":[1,"é"]}'),
        (
            '{"x":12345678901234567890.123456789,"y":[1.50,-0]}',
            pa.string(),
            '{"x":12345678901234567890.123456789,"y":[1.50,-0]}',
        ),
        ("-0", pa.string(), "-0"),
        ("1" * 5000, pa.string(), "1" * 5000),
        ('"Infinity"', pa.float64(), math.inf),
        ('"+INF"', pa.float32(), math.inf),
        ('"-INF"', pa.float64(), -math.inf),
        ('"-Infinity"', pa.float32(), -math.inf),
        ("1", pa.float64(), 1.0),
        ("3.4028235e38", pa.float32(), 3.4028234663852886e38),
        ("Infinity", pa.float32(), math.inf),
        ("1e400", pa.float64(), math.inf),
        ("Infinity", pa.float64(), math.inf),
        ("9223372036854775807", pa.int64(), (1 << 63) - 1),
        ("-128", pa.int8(), -128),
        ('[{"x":"2020-01-01"},null]', pa.list_(pa.struct([("x", pa.date32())])), [{"x": date(2020, 1, 1)}, None]),
        ("null", pa.int64(), None),
        ('"\\u00e9\\ud83d\\ude00"', pa.string(), "é😀"),
    ],
)
async def test_values(text: str, kind: pa.DataType, value: object) -> None:
    data = f'{{"a":{text}}}\n{{"b":1}}\n'.encode()
    assert await rows_of(data, pa.schema([("a", kind)])) == [{"a": value}, {"a": None}]


@each_of(
    ("text", "kind", "column", "shown"),
    [
        ("1.5", pa.int64(), "a", "1.5"),
        ('"1"', pa.int64(), "a", "1"),
        ("true", pa.int64(), "a", "True"),
        ("99999999999999999999", pa.int64(), "a", "99999999999999999999"),
        ("128", pa.int8(), "a", "128"),
        ("-1e39", pa.float32(), "a", "-1e+39"),
        ('"INF"', pa.float64(), "a", "INF"),
        ("[0.5,1e39]", pa.list_(pa.float32()), "a[]", "1e+39"),
        ('{"x":1e39}', pa.struct([("x", pa.float32())]), "a.x", "1e+39"),
        ('"x"', pa.float64(), "a", "x"),
        ('"2020-02-30"', pa.date32(), "a", "2020-02-30"),
        ('"noon"', pa.timestamp("us", "UTC"), "a", "noon"),
        ("1.255", pa.decimal128(10, 2), "a", "1.255"),
        ("100000000", pa.decimal128(10, 2), "a", "100000000"),
        ("123456789012345678901234567890", pa.decimal128(38, 18), "a", "123456789012345678901234567890"),
        ('[{"x":100000000}]', pa.list_(pa.struct([("x", pa.decimal128(10, 2))])), "a[].x", "100000000"),
        ('"&"', pa.binary(), "a", "&"),
        ('{"x":"y"}', pa.struct([("x", pa.int64())]), "a.x", "y"),
        ("[1,[]]", pa.list_(pa.int64()), "a[]", "[]"),
        ('"\\ud800"', pa.string(), "a", "\\ud800"),
    ],
)
async def test_a_value_that_does_not_fit_is_named_with_column_and_offset(
    text: str, kind: pa.DataType, column: str, shown: str
) -> None:
    first = b'{"a":null}\n\n'
    error = await failure(first + f'{{"a":{text}}}\n{{"a":null}}\n'.encode(), pa.schema([("a", kind)]))
    assert (error.context["column"], error.context["value"], error.context["offset"]) == (column, shown, len(first))


@each_of(
    "line",
    [b"null", b"[1]", b"5", b'"x"', b"{", b'{"a":1}{"a":2}', b'{"a":1} null', b'{"a":1', b"nonsense", b"[" * 9999],
)
@each_of("first", [b"", b'{"a":1}\r\n'])
async def test_a_line_that_is_not_an_object_is_named_by_its_offset(line: bytes, first: bytes) -> None:
    error = await failure(first + line + b"\n" + b'{"a":1}\n', LONG)
    assert error.context["offset"] == len(first)


async def test_an_object_over_two_lines_is_an_error_wherever_parts_end() -> None:
    error = await failure(b'{"a":1}\n{"a":\n2}\n', LONG)
    assert error.context["offset"] == 8


@pytest.mark.parametrize(("data", "offset"), [(b'{"a":1}\n{"b":"\xff"}\n', 14), (b'{"a":1, "\xc3\n', 9)])
async def test_bytes_that_are_not_utf8_are_named_with_the_option(data: bytes, offset: int) -> None:
    error = await failure(data, LONG)
    assert error.context["offset"] == offset
    assert "option encoding" in str(error)


async def test_other_encodings() -> None:
    text = '{"s":"é€"}\r\n\n{"s":"x"}\n'
    schema = pa.schema([("s", pa.string())])
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"):
        async with new_operator() as operator:
            file = await put(operator, "a.jsonl", text.encode(encoding))
            found = await read(operator, file, schema, encoding=encoding)
            assert [row["s"] for row in found.rows] == ["é€", "x"]
            places = [len(text[: text.index(line)].encode(encoding)) for line in ('{"s":"é€"', '{"s":"x"')]
            mark = len("".encode(encoding))
            assert found.offsets == [max(place, mark) for place in places]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
async def test_a_mark_or_an_encoding_gives_the_order_of_bytes(encoding: str) -> None:
    data = '{"a":1}\n'.encode(f"{encoding}-le")
    error = await failure(data, LONG, encoding=encoding)
    assert f"set the option encoding to {encoding}-le or {encoding}-be" in str(error)
    assert await rows_of(data, LONG, encoding=f"{encoding}-le") == [{"a": 1}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1252"])
async def test_offsets_of_blank_lines_alone_are_none(encoding: str) -> None:
    for key in ("a.jsonl", "a.csv"):
        async with new_operator() as operator:
            file = await put(operator, key, "\n \n".encode(encoding))
            assert (await read(operator, file, LONG, encoding=encoding)).rows == []


async def test_types_do_not_depend_on_where_parts_end_and_records_may_be_long() -> None:
    records: list[dict[str, Any]] = [
        {"a": None, "s": "x" * 2_500_000},
        *({"a": n} for n in range(1000)),
        {"a": 5, "s": "y" * 1_100_000},
    ]
    data = "\n".join(map(json.dumps, records)).encode()
    rows = await rows_of(data, pa.schema([("a", pa.int64()), ("s", pa.string())]))
    assert rows == [{"a": one["a"], "s": one.get("s")} for one in records]


async def test_unknown_fields_are_ignored_or_an_error_or_kept_as_text() -> None:
    schema = pa.schema([("a", pa.int64()), ("o", pa.struct([("x", pa.int64())]))])
    data = b'{"a":1}\n{"a":2,"b":[1.50],"o":{"x":1,"y":"\xc3\xa9"}}\n'
    assert len(await rows_of(data, schema)) == 2
    error = await failure(data, schema, Unsupported, unknown_fields="fail")
    assert (error.context["field"], error.context["offset"]) == ("b", 8)
    error = await failure(b'{"o":{"x":1,"y":2}}', schema, Unsupported, unknown_fields="fail")
    assert error.context["field"] == "o.y"
    async with new_operator() as operator:
        file = await put(operator, "a.jsonl", data)
        found = await read(operator, file, schema, unknown_fields="rescue")
        assert found.unknown[0] is None
        assert json.loads(found.unknown[1] or "") == {"b": [1.5], "o": {"y": "é"}}
        assert found.rows[1] == {"a": 2, "o": {"x": 1}}
        file = await put(operator, "b.jsonl", b'{"a":1}\n{"a":2}\n')
        assert (await read(operator, file, schema, unknown_fields="rescue")).unknown == [None, None]


async def test_numbers_keep_their_digits_in_rescued_fields_and_nan_comes_as_text() -> None:
    async with new_operator() as operator:
        file = await put(operator, "a.jsonl", b'{"a":1,"b":{"x":12345678901234567890.123456789,"y":[1.50,-0]}}\n')
        found = await read(operator, file, LONG, unknown_fields="rescue")
    assert found.unknown == ['{"b":{"x":12345678901234567890.123456789,"y":[1.50,-0]}}']
    async with new_operator() as operator:
        file = await put(operator, "a.jsonl", b'{"a":1,"b":NaN,"c":[-Infinity,1e999,"NaN"]}\n')
        found = await read(operator, file, LONG, unknown_fields="rescue")
    assert found.unknown == ['{"b":"NaN","c":["-Infinity",1e999,"NaN"]}']
    rows = await rows_of(b'{"a":"NaN"}\n{"a":1}\n', pa.schema([("a", pa.float64())]))
    assert math.isnan(rows[0]["a"])
    assert rows[1] == {"a": 1.0}


async def test_a_type_that_json_lacks_is_not_corruption() -> None:
    error = await failure(b'{"a":"10:00:00"}\n', pa.schema([("a", pa.time64("us"))]), ConfigInvalid)
    assert "'a' cannot be a time64" in str(error)
    error = await failure(b'{"a":{"1":2}}\n', pa.schema([("a", pa.map_(pa.int64(), pa.int64()))]), ConfigInvalid)
    assert "keys of JSON are texts" in str(error)


async def test_records_over_several_lines_are_not_to_be_had() -> None:
    error = await failure(b'{"a":\n1}\n', LONG, ConfigInvalid, multi_line=True)
    assert "multi_line is for csv" in str(error)


async def test_without_wanted_fields_rows_are_still_counted() -> None:
    async with new_operator() as operator:
        file = await put(operator, "a.jsonl", b'{"a":1}\n\n{"b":"x"}\n')
        assert (await read(operator, file, pa.schema([]))).rows == [{}, {}]


async def test_of_a_key_that_comes_twice_the_last_counts() -> None:
    assert await rows_of(b'{"a":1,"a":2}\n', LONG) == [{"a": 2}]


HALVES = ["\ud800", "a\udfff"]  # Halves of surrogate pairs, which JSON can escape and Arrow cannot store.
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-10, 10)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(HALVES),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y", *HALVES]), inner, max_size=2)
    ),
    max_leaves=4,
)
NESTED = st.builds(lambda depth: json.loads('{"x":' * depth + "1" + "}" * depth), st.integers(5, 190))
KINDS = st.sampled_from(
    [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.decimal128(20, 3),
        pa.list_(pa.int64()),
        pa.list_(pa.decimal128(20, 3)),
        pa.struct([("x", pa.float64())]),
        pa.timestamp("us", "UTC"),
        pa.map_(pa.string(), pa.int64()),
    ]
)


@settings(max_examples=70, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "b", "z", *HALVES]), VALUE | NESTED, max_size=3), min_size=1, max_size=4
    ),
    st.fixed_dictionaries({"a": KINDS, "b": KINDS}),
    st.sampled_from(["ignore", "fail", "rescue"]),
)
def test_pyarrow_and_the_exact_parser_agree(
    records: list[dict[str, Any]], kinds: dict[str, pa.DataType], policy: Any
) -> None:
    lines = Lines("".join(json.dumps(one) + "\n" for one in records).encode(), 7)
    want = Wanted(pa.schema(list(kinds.items())), FormatOptions(unknown_fields=policy), ReadOptions(), offsets=True)
    fast = JsonParts(want, LineEnds(None), "k").at_once(lines)
    if fast is not None:
        slow = read_rows(lines, LineEnds(None), want, "k")
        assert fast.batch.to_pylist() == slow.batch.to_pylist()
        assert fast.offsets == slow.offsets
        assert fast.unknown == slow.unknown


EVERY_KIND = [
    *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary()),
    *(pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(20, 3), pa.time64("us")),
    *(pa.list_(pa.binary()), pa.list_(pa.float32()), pa.struct([("x", pa.timestamp("us"))])),
    *(pa.struct([("x", pa.timestamp("us", "UTC"))]), pa.map_(pa.string(), pa.date32())),
]
TEXTS = [
    *("null", "1", "-0", "1.50", "1e2", "300", "true", '"YWJj"', '"abc"', '"YWI"', '"NaN"', '"2020-01-01"', "18262"),
    *('"2020-01-01T00:00:00+02:00"', '"2020-01-01 10:00:00"', '"2020-03-08 02:30:00"', '"10:00:00"', '"1.005"'),
    *('["YWJj"]', "[1e39]", '{"x":"2020-01-01T00:00:00+02:00"}', '{"x":"2020-01-01 10:00:00"}', '{"x":"2020-01-01"}'),
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=2), min_size=2, max_size=3),
    st.sampled_from(EVERY_KIND),
    st.sampled_from(["UTC", "America/New_York"]),
)
def test_files_parsed_together_or_alone_agree_for_every_type(
    files: list[list[str]], kind: pa.DataType, time_zone: str
) -> None:
    texts = ["".join(f'{{"a":{text}}}\n' for text in file).encode() for file in files]
    want = Wanted(pa.schema([("a", kind)]), FormatOptions(time_zone=time_zone), ReadOptions(), offsets=True)
    reading = JsonLinesFormat()
    try:
        joined = reading.joined(texts, want)
    except Error:
        joined = None
    if joined is None:
        return
    alone = [reading.parser(want, "k")(Lines(text, 0)) for text in texts]
    exact = [read_rows(Lines(text, 0), LineEnds(None), want, "k") for text in texts]
    assert all(one is not None for one in alone)
    for found in (alone, exact):
        rows = [row for one in found if one is not None for row in one.batch.to_pylist()]
        offsets = [place for one in found if one is not None and one.offsets for place in one.offsets.to_pylist()]
        assert repr(joined.found.batch.to_pylist()) == repr(rows)
        assert joined.found.offsets is not None
        assert joined.found.offsets.to_pylist() == offsets
    assert list(joined.rows) == [len(file) for file in files]
