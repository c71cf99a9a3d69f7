"""CSV: columns by name, types, quotes, and errors."""

import csv
import io
import itertools
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid, Unsupported, UntrustedMetadata
from aioprefetch.source.formats import can_split
from aioprefetch.source.formats.csv_records import Quoting
from aioprefetch.source.options import FormatOptions
from aioprefetch.source.reading import ReadTask
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of
from tests.stores.source_files import URL, Shelf
from tests.unit.source.formats.written_files import cut_at, new_operator, put, read

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])
INSTANT = pa.timestamp("us", "UTC")


async def rows_of(data: bytes, schema: pa.Schema, **options: Any) -> list[dict[str, Any]]:
    options = {"header": True} | options
    async with new_operator() as operator:
        return (await read(operator, await put(operator, "dir/a.csv", data), schema, **options)).rows


async def failure(data: bytes, schema: pa.Schema, kind: type[Exception] = UntrustedMetadata, **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        await rows_of(data, schema, **options)
    return caught.value


@each_of(
    ("text", "kind", "value"),
    [
        ("12", pa.int32(), 12),
        ("-1.5e3", pa.float64(), -1500.0),
        ("TRUE", pa.bool_(), True),
        ("tRuE", pa.bool_(), True),
        ("1.20", pa.decimal128(10, 2), Decimal("1.20")),
        (" 1.2 ", pa.decimal128(10, 2), Decimal("1.20")),
        ("1.5", pa.float16(), 1.5),
        ('""', pa.decimal128(10, 2), None),
        ("2020-02-29", pa.date32(), date(2020, 2, 29)),
        ("2020-01-01 10:00:00", INSTANT, datetime(2020, 1, 1, 10, tzinfo=UTC)),
        ("2020-01-01T10:00:00.25Z", INSTANT, datetime(2020, 1, 1, 10, 0, 0, 250_000, UTC)),
        ("2020-01-01T10:00:00+01:00", INSTANT, datetime(2020, 1, 1, 9, tzinfo=UTC)),
        ("2020-01-01T10:00:00", pa.timestamp("us"), datetime(2020, 1, 1, 10)),
        ('""', pa.int64(), None),
        ('""', pa.string(), ""),
        ("", INSTANT, None),
        ('"x,""y"""', pa.string(), 'x,"y"'),
        ('x"y', pa.string(), 'x"y'),
        (" x ", pa.string(), " x "),
        ("é", pa.binary(), "é".encode()),
    ],
)
async def test_values(text: str, kind: pa.DataType, value: object) -> None:
    data = f"z,a\n0,{text}\n0,\n".encode()
    assert await rows_of(data, pa.schema([("a", kind)])) == [{"a": value}, {"a": None}]


@each_of("neighbour", ["2020-01-01", "2020-1-1", "2020-01-01T00:00:00Z"])
@each_of("zone", ["UTC", "Europe/Berlin"])
async def test_an_hour_alone_is_a_time_next_to_any_values(neighbour: str, zone: str) -> None:
    data = f"a\n2020-01-01 10\n2020-01-01T10Z\n{neighbour}\n".encode()
    rows = await rows_of(data, pa.schema([("a", INSTANT)]), time_zone=zone)
    assert [row["a"].hour for row in rows[:2]] == [10 if zone == "UTC" else 9, 10]


async def test_infinities_are_those_that_are_written() -> None:
    rows = await rows_of(b"a\ninf\n-Infinity\n1e38\n", pa.schema([("a", pa.float32())]))
    assert [row["a"] for row in rows[:2]] == [float("inf"), float("-inf")]


async def test_offsets_of_some_times_but_not_of_others() -> None:
    data = b"a\n2020-01-01\n2020-01-01 00:00:00+01\n2020-01-01T00:00:00Z\n"
    rows = await rows_of(data, pa.schema([("a", INSTANT)]))
    assert [row["a"].hour for row in rows] == [0, 23, 0]


async def test_a_quoted_empty_field_is_an_empty_text_beside_other_types() -> None:
    rows = await rows_of(b'a,b\n"",""\n1,\n', AB)
    assert rows == [{"a": None, "b": ""}, {"a": 1, "b": None}]
    assert await rows_of(b"a,b\nNULL,NULL\n1,\n", AB, null_value="NULL") == [
        {"a": None, "b": None},
        {"a": 1, "b": None},
    ]


@each_of(
    ("row", "kind", "shown"),
    [
        ("x", pa.int64(), "x"),
        ("1.0", pa.int64(), "1.0"),
        ("128", pa.int8(), "128"),
        ("1_0", pa.float64(), "1_0"),
        ("yes", pa.bool_(), "yes"),
        ("1.255", pa.decimal128(10, 2), "1.255"),
        ("100000000", pa.decimal128(10, 2), "100000000"),
        ("1e39", pa.float32(), "1e+39"),
        ("123456789012345678901234567890", pa.decimal128(38, 18), "123456789012345678901234567890"),
        ("2020-02-30", pa.date32(), "2020-02-30"),
        ("noon", INSTANT, "noon"),
        ("9999-01-01 00:00:00", pa.timestamp("ns", "UTC"), "9999-01-01 00:00:00"),
    ],
)
async def test_a_value_that_does_not_fit_is_named_with_column_and_offset(
    row: str, kind: pa.DataType, shown: str
) -> None:
    error = await failure(f"a,b\n,1\n\n{row},2\n".encode(), pa.schema([("a", kind)]))
    assert (error.context["column"], error.context["value"], error.context["offset"]) == ("a", shown, 8)
    assert error.path == "dir/a.csv"


@each_of(
    ("data", "offset", "message"),
    [
        (b"a,b\n1,2\n\n3\n4,5\n", 9, "has 1 fields, not 2"),
        (b"a,b\n1,2\n3,4,5\n", 8, "has 3 fields, not 2"),
        (b'a,b\n1,"x\ny"\n2,z\n', 4, "need multi_line"),
        (b'a,b\n1,"x\n', 4, "need multi_line"),
        (b"a,b\n1,\xff\n", 6, "option encoding"),
    ],
)
async def test_a_broken_record_is_named_by_its_offset(data: bytes, offset: int, message: str) -> None:
    error = await failure(data, AB)
    assert error.context["offset"] == offset
    assert message in str(error)


@checks("source:F5")
async def test_a_ragged_item_fails_as_the_whole_does() -> None:
    data = b"a,b\n1,x\n" + b"2\n" * 20
    async with new_operator() as operator:
        file = await put(operator, "a.csv", data)
        with pytest.raises(UntrustedMetadata, match="has 1 fields, not 2"):
            await read(operator, cut_at(file, [20])[1:], AB)


async def test_columns_are_found_by_name_and_unknown_ones_by_policy() -> None:
    data = b"c,b,a,c\n1,x,2,\n3,y,4,5\n"
    assert await rows_of(data, AB) == [{"a": 2, "b": "x"}, {"a": 4, "b": "y"}]
    error = await failure(data, AB, Unsupported, unknown_fields="fail")
    assert error.context["field"] == "c0"
    async with new_operator() as operator:
        found = await read(operator, await put(operator, "a.csv", data), AB, unknown_fields="rescue", header=True)
        assert found.unknown == ['{"c0":"1"}', '{"c0":"3","c3":"5"}']
        assert found.rows == [{"a": 2, "b": "x"}, {"a": 4, "b": "y"}]
        file = await put(operator, "b.csv", b"a\n1\n")
        assert (await read(operator, file, AB, unknown_fields="rescue", header=True)).unknown == [None]


async def test_without_a_header_columns_are_known_by_place_or_number() -> None:
    data = b"1,x,9\n2,y,8\n"
    assert await rows_of(data, AB, header=False) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert await rows_of(data, pa.schema([("_c2", pa.int64())]), header=False) == [{"_c2": 9}, {"_c2": 8}]
    async with new_operator() as operator:
        file = await put(operator, "a.csv", data)
        found = await read(operator, cut_at(file, [3, 6, 8]), AB, header=False)
        assert found.rows == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


async def test_without_wanted_fields_rows_are_still_counted() -> None:
    assert await rows_of(b"a,b\n1,2\n3,4\n", pa.schema([])) == [{}, {}]


@each_of("data", [b"", b"a,b", b"a,b\r\n", b"\n\n\n", b"\xef\xbb\xbfa,b\n"])
async def test_files_without_records(data: bytes) -> None:
    assert await rows_of(data, AB) == []
    assert await rows_of(data, AB, multi_line=True) == []


async def test_delimiter_quote_and_escape() -> None:
    data = b"a;b\n1;'x;''y'\n2;'z\\'w'\n"
    rows = await rows_of(data, AB, delimiter=";", quote="'", escape="\\")
    assert [row["b"] for row in rows] == ["x;'y", "z'w"]
    assert (await rows_of(b'a\tb\n1\t"x\n', AB, delimiter="\t", quote=None))[0]["b"] == '"x'
    wrong: Any
    for wrong in (
        {"delimiter": "||"},
        {"delimiter": "\0"},
        {"quote": "é"},
        {"delimiter": '"'},
        {"multi_line": True, "line_separator": "|"},
    ):
        await failure(b"a\n", AB, ConfigInvalid, **wrong)
        async with Shelf() as shelf:
            task = ReadTask(schema=AB, url=URL, format=FormatOptions(**wrong))
            with pytest.raises(ConfigInvalid):
                await shelf.rows([await shelf.put("a.csv", b"a\n")], task)


async def test_a_line_break_in_a_header_that_ends_otherwise_is_an_error_with_its_place() -> None:
    error = await failure(b"|a,b\rc|1,2|", AB, line_separator="|")
    assert error.context["offset"] == 1


async def test_encodings() -> None:
    text = "a,b\n1,é€\n2,x\n"
    for encoding in ("utf-16", "utf-16-le", "cp1252", "utf-8-sig"):
        assert [row["b"] for row in await rows_of(text.encode(encoding), AB, encoding=encoding)] == ["é€", "x"]
    for wrong in ("utf-99", "idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "rot13"):
        await failure(text.encode(), AB, ConfigInvalid, encoding=wrong)
    assert (await failure(b"a,b\n1,+2AA-\n", AB, encoding="utf-7")).context["encoding"] == "utf-7"
    error = await failure(text.encode("utf-16")[:-1], AB, encoding="utf-16")
    assert error.context["offset"] == 2 * len(text)


async def test_names_of_a_header_match_exactly_first_and_then_in_any_case() -> None:
    assert await rows_of(b"B,A,b\n1,2,3\n", AB) == [{"a": 2, "b": "3"}]
    async with new_operator() as operator:
        file = await put(operator, "a.csv", b"B,A,b\n1,2,3\n")
        assert (await read(operator, file, AB, header=True, unknown_fields="rescue")).unknown == ['{"B":"1"}']
    error = await failure(b"A,B,aA,Aa\n1,2,3,4\n", pa.schema([("aa", pa.int64())]))
    assert (error.path, "may be any of 'aA', 'Aa'" in str(error)) == ("dir/a.csv", True)


async def test_a_name_that_a_header_has_twice_is_nobodys() -> None:
    data = b"id,id,name,\n1,2,x,y\n"
    error = await failure(data, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    assert (error.path, "'id' may be any of 'id', 'id'" in str(error)) == ("dir/a.csv", True)
    assert await rows_of(data, pa.schema([("name", pa.string())])) == [{"name": "x"}]
    numbered = pa.schema([(name, pa.string()) for name in ("ID1", "_c3", "id0")])
    assert await rows_of(data, numbered) == [{"ID1": "2", "_c3": "y", "id0": "1"}]
    async with new_operator() as operator:
        file = await put(operator, "a.csv", data)
        found = await read(operator, file, pa.schema([("name", pa.string())]), header=True, unknown_fields="rescue")
        assert found.unknown == ['{"id0":"1","id1":"2","_c3":"y"}']
    taken = pa.schema([("a0", pa.int64()), ("a0_", pa.int64())])
    assert await rows_of(b"a,a,a0\n1,2,3\n", taken) == [{"a0": 3, "a0_": 1}]


async def test_a_header_without_any_of_the_names_is_an_error_with_both() -> None:
    error = await failure(b"1,x\n2,y\n", AB)
    assert "it is 1, x, the schema has a, b" in str(error)
    assert (error.path, error.context["offset"]) == ("dir/a.csv", 0)
    assert await rows_of(b"1,x\n2,y\n", AB, header=FormatOptions().header) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


# Files of Spark and of other writers: their quoted values, and those that Spark reads with this escape.
ESCAPED = [
    (r'"a \"b\" c"', 'a "b" c'),
    (r'"x, \"y, z"', 'x, "y, z'),
    (r'"e\\f"', "e\\f"),
    (r"g\h", r"g\h"),
    (r'"i\j"', r"i\j"),
    (r'"a\\\"b"', r"a\"b"),
    ("end\\", "end\\"),
    (r'"\""', '"'),
    (r'"a ""b"" \"c\""', 'a "b" "c"'),
    (r"x\"y", r"x\"y"),
]


@each_of(("text", "value"), ESCAPED)
async def test_an_escape_counts_within_quotes_before_a_quote_or_itself(text: str, value: str) -> None:
    for end, multi_line in itertools.product(("", "\n"), (False, True)):
        data = f"a,b\n1,{text}\n2,{text}{end}".encode()
        rows = await rows_of(data, AB, escape="\\", multi_line=multi_line)
        assert rows == [{"a": 1, "b": value}, {"a": 2, "b": value}], (end, multi_line)


async def test_an_escape_outside_quotes_hides_no_delimiter() -> None:
    assert await rows_of(
        rb"a\,b,1" + b"\n", pa.schema([(name, pa.string()) for name in "xyz"]), header=False, escape="\\"
    ) == [{"x": "a\\", "y": "b", "z": "1"}]


@each_of("multi_line", [False, True])
@each_of(("text", "at"), [(r'"a \"b\" c"', 3), (r'"x, \"y, z"', 4), (r'"C:\"', 3), (r'"\""', 1), (r'"a""\"', 4)])
async def test_a_backslash_before_a_quote_is_refused_until_the_escape_is_given(
    text: str, at: int, multi_line: bool
) -> None:
    head = 'a,b\n1,"x"\n2,'
    error = await failure(f"{head}{text}\n3,y\n".encode(), AB, multi_line=multi_line)
    assert "set the option escape to \\ where" in str(error)
    assert (error.path, error.context["offset"]) == ("dir/a.csv", len(head) + at)
    await failure(f"{text},b\n1,2\n".encode(), AB, multi_line=multi_line)


class Searching(Quoting):
    """Quoting without the fast path."""

    def _is_plain(self, data: bytes) -> bool:
        return False


@settings(max_examples=300, deadline=None)
@given(st.text('",\\\n\rax', max_size=14), st.sampled_from([None, '"', "\\"]), st.booleans())
def test_quotes_are_plain_at_a_glance_only_if_a_search_agrees(text: str, escape: str | None, multi_line: bool) -> None:
    data = text.encode()
    quick = Quoting(delimiter=",", quote='"', escape=escape, multi_line=multi_line)
    exact = Searching(delimiter=",", quote='"', escape=escape, multi_line=multi_line)
    assert quick.fault(data) == exact.fault(data)
    if exact.fault(data) is None:
        assert quick.doubled(data) == exact.doubled(data)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text('",\\ax ', max_size=6), min_size=1, max_size=5), st.booleans())
async def test_files_of_spark_are_read_with_its_escape(values: list[str], always: bool) -> None:
    def written(value: str) -> str:
        if not always and not set('",') & set(value):
            return value
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    data = "".join(f"1,{written(value)}\n" for value in values).encode()
    found = await rows_of(data, AB, header=False, escape="\\")
    assert [row["b"] or "" for row in found] == values


async def test_a_backslash_is_not_an_escape_outside_quotes_or_if_the_quote_escapes() -> None:
    assert (await rows_of(b'a,b\n1,x\\"y\n', AB))[0]["b"] == 'x\\"y'
    assert (await rows_of(b'a,b\n1,"C:\\"\n', AB, escape='"'))[0]["b"] == "C:\\"


@each_of("multi_line", [False, True])
@each_of("text", ['"a"b', '"a" ', '"a"b"', '"a,b"c,"'])
async def test_text_behind_a_closing_quote_is_refused(text: str, multi_line: bool) -> None:
    error = await failure(f'a,b\n1,"x"\n2,{text}\n3,"y"\n'.encode(), AB, multi_line=multi_line)
    assert "text follows the quote that closes a field" in str(error)
    assert error.context["offset"] == 12
    await failure(b"a,b|1,x|2," + text.encode() + b"|", AB, line_separator="|")


async def test_an_unquoted_empty_value_is_null_with_every_option() -> None:
    schema = pa.schema([("i", pa.int64()), ("s", pa.string()), ("n", pa.int64())])
    rows = await rows_of(b'i,s,n\n1,NA,NA\n2,"NA",3\n3,,\n4,"",5\n', schema, null_value="NA")
    assert [(row["s"], row["n"]) for row in rows] == [(None, None), ("NA", 3), (None, None), ("", 5)]
    assert await rows_of(b'i,s\n"",x\n,y\n', pa.schema([("i", pa.int64())]), null_value="NA") == [{"i": None}] * 2
    assert await rows_of(b'i\n""\n"x"\n', pa.schema([("i", pa.binary())])) == [{"i": b""}, {"i": b"x"}]


@each_of("end", [b"", b"\n", b"\r"])
@each_of("null_value", ["", "NULL"])
async def test_a_null_at_the_end_of_a_file_is_one_behind_a_quoted_field(end: bytes, null_value: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())])
    data = b'1,y,z\n0,"x",' + null_value.encode() + end
    last = {"a": 0, "b": "x", "c": None}
    for multi_line in (False, True):
        found = await rows_of(data, schema, header=False, null_value=null_value, multi_line=multi_line)
        assert found == [{"a": 1, "b": "y", "c": "z"}, last]


async def test_lines_of_spaces_are_no_records() -> None:
    data = b"  \na,b\n \t\n1,x\n   \r\n\n2, \n \x00 "
    async with new_operator() as operator:
        file = await put(operator, "a.csv", data)
        whole = await read(operator, file, AB, header=True)
        assert whole.rows == [{"a": 1, "b": "x"}, {"a": 2, "b": " "}]
        assert [data[offset : offset + 2] for offset in whole.offsets] == [b"1,", b"2,"]
        for cut in range(1, len(data)):
            parts = await read(operator, cut_at(file, [cut]), AB, header=True)
            assert (parts.rows, parts.offsets) == (whole.rows, whole.offsets)
    assert await rows_of(b"a\n  \nx\n", pa.schema([("a", pa.string())])) == [{"a": "x"}]
    assert await rows_of(b"a|  |x|", pa.schema([("a", pa.string())]), line_separator="|") == [{"a": "x"}]
    kept = await rows_of(b'a\n"x\n  \ny"\n', pa.schema([("a", pa.string())]), multi_line=True)
    assert kept == [{"a": "x\n  \ny"}]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int8(), pa.uint32()])
async def test_hexadecimal_numbers_are_refused(kind: pa.DataType) -> None:
    for text in ("0x1F", "-0x1F", "0X1f", " 0x1"):
        error = await failure(f"a,b\n,0x2\n{text},0x1\n".encode(), pa.schema([("a", kind), ("b", pa.string())]))
        assert (error.context["column"], error.context["offset"]) == ("a", 9), text
    assert await rows_of(b"a,b\n1,0x1\n", AB) == [{"a": 1, "b": "0x1"}]


CELL = st.text('ab,"\n\ré ', max_size=6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(CELL, CELL)), st.sampled_from(["\n", "\r\n"]))
async def test_records_over_several_lines_against_the_csv_module(rows: list[tuple[str, str]], end: str) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    data = out.getvalue().encode()
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    async with new_operator() as operator:
        file = await put(operator, "a.csv", data)
        assert not can_split(file, FormatOptions(multi_line=True))
        found = await read(operator, file, schema, multi_line=True, header=True)
        assert [(row["a"], row["b"]) for row in found.rows] == rows
        for row, offset in zip(found.rows, found.offsets, strict=True):
            assert next(csv.reader(io.StringIO(data[offset:].decode(), newline=""))) == list(row.values())


async def test_multi_line_files_larger_than_a_part_and_a_quote_that_is_never_closed() -> None:
    rows = [(str(number), "line\n" * (number % 7)) for number in range(60_000)]
    out = io.StringIO(newline="")
    csv.writer(out).writerows([("a", "b"), *rows])
    found = await rows_of(out.getvalue().encode(), AB, multi_line=True)
    assert [(str(row["a"]), row["b"] or "") for row in found] == rows
    error = await failure(b'a,b\n1,"x\ny\n', AB, multi_line=True)
    assert error.context["offset"] == 6
