"""Files cut anywhere: the items together have the records of the file, each once, compared with other readers."""

import csv
import io
import json
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.source.formats import can_split
from aioprefetch.source.options import FormatOptions
from aioprefetch.source.values import SourceFile
from aioprefetch.testing.conformance.suite import checks
from tests.unit.source.formats.written_files import cut_at, new_operator, put, read

EXAMPLES = settings(max_examples=25, deadline=None)
CUTS = st.lists(st.integers(0, 10_000), max_size=6)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
WORD = st.text(st.characters(codec="utf-8", exclude_characters='\r\n\x00"'), max_size=8)
MARK = st.booleans()


def joined(lines: list[tuple[str, str]], *, mark: bool, last_end: bool) -> bytes:
    """Lines with their ends; the last one may lack it."""
    if lines and not last_end:
        lines = [*lines[:-1], (lines[-1][0], "")]
    return (b"\xef\xbb\xbf" if mark else b"") + "".join(text + end for text, end in lines).encode()


async def same_rows(
    key: str, data: bytes, cuts: list[int], schema: pa.Schema, **options: Any
) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows of a file, asserted equal to those of its items."""
    async with new_operator() as operator:
        file = await put(operator, key, data)
        assert not cuts or can_split(file, FormatOptions(**options))
        whole = await read(operator, file, schema, **options)
        parts = await read(operator, cut_at(file, cuts), schema, **options)
        assert parts.rows == whole.rows
        assert parts.offsets == whole.offsets
        return whole.rows, whole.offsets


@pytest.mark.parametrize(
    ("encoding", "separator", "letter"),
    [
        ("shift_jis", "|", "ポ"),
        ("gbk", "|", "亅"),
        ("big5", "|", "四"),
        ("gb18030", "9", "\u3400"),
        ("cp932", "A", "ア"),
    ],
)
async def test_a_separator_is_not_half_of_a_character(encoding: str, separator: str, letter: str) -> None:
    words = [letter * 3, "xy", "", letter + "z", letter] * 9
    data = separator.join(words).encode(encoding)
    chosen: dict[str, Any] = {"encoding": encoding, "line_separator": separator}
    async with new_operator(block_bytes=4096) as operator:
        file = await put(operator, "a.txt", data)
        found = await read(operator, file, pa.schema([("value", pa.string())]), **chosen)
        assert [row["value"] for row in found.rows] == words
        starts = [len(separator.join([*words[:place], ""]).encode(encoding)) for place in range(len(words))]
        assert found.offsets == starts
        assert not can_split(file, FormatOptions(**chosen))
        assert can_split(file, FormatOptions(encoding=encoding))
    assert can_split(SourceFile("a.txt", 9), FormatOptions(encoding="cp1252", line_separator=separator))
    assert can_split(SourceFile("a.txt", 9), FormatOptions(line_separator=separator))


async def test_a_quote_of_records_that_span_lines_is_not_half_of_a_character() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    data = "ポ,|ポ\nx|\n1,2\n".encode("shift_jis")
    async with new_operator() as operator:
        file = await put(operator, "a.csv", data)
        found = await read(operator, file, schema, encoding="shift_jis", quote="|", multi_line=True)
        assert [list(row.values()) for row in found.rows] == [["ポ", "ポ\nx"], ["1", "2"]]


@checks("source:F5")
@EXAMPLES
@given(st.lists(st.tuples(WORD, ENDS)), CUTS, MARK, st.booleans())
async def test_text_in_items_is_text_as_a_whole(
    lines: list[tuple[str, str]], cuts: list[int], mark: bool, last_end: bool
) -> None:
    data = joined(lines, mark=mark, last_end=last_end)
    rows, offsets = await same_rows("a.txt", data, cuts, pa.schema([("value", pa.string())]))
    text = data.removeprefix(b"\xef\xbb\xbf").decode() if mark else data.decode()
    text = text.removeprefix("\ufeff") if not mark else text
    expected = re.split("\r\n|\r|\n", text)
    assert [row["value"] for row in rows] == (expected[:-1] if expected[-1] == "" else expected)
    for row, offset in zip(rows, offsets, strict=True):
        assert data[offset:].startswith(row["value"].encode())


VALUES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | WORD
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(-(1 << 63), (1 << 63) - 1) | st.none(),
        "s": WORD,
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "b": st.booleans(),
        "l": st.lists(st.integers(0, 9)),
        "o": st.fixed_dictionaries({}, optional={"a": WORD, "other": st.integers(0, 9)}),
        "unknown": VALUES,
    },
)
JSON_SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int64())),
        ("o", pa.struct([("a", pa.string())])),
    ]
)


@checks("source:F5")
@EXAMPLES
@given(st.lists(st.tuples(RECORDS | st.none(), ENDS)), CUTS, MARK, st.booleans(), st.booleans())
async def test_json_lines_in_items_are_json_lines_as_a_whole(
    records: list[tuple[dict[str, Any] | None, str]], cuts: list[int], mark: bool, last_end: bool, ascii_only: bool
) -> None:
    texts = [("" if one is None else json.dumps(one, ensure_ascii=ascii_only), end) for one, end in records]
    data = joined(texts, mark=mark, last_end=last_end)
    rows, offsets = await same_rows("a.jsonl", data, cuts, JSON_SCHEMA)
    expected = [{name: one.get(name) for name in JSON_SCHEMA.names} for one, _ in records if one is not None]
    for one in expected:
        if one["o"] is not None:
            one["o"] = {"a": one["o"].get("a")}
    assert rows == expected
    for row, offset in zip(rows, offsets, strict=True):
        line = re.split(b"\r|\n", data[offset:])[0]
        assert json.loads(line).get("n") == row["n"]


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=8)
CSV_SCHEMA = pa.schema([("é", pa.string()), ("number", pa.int64()), ("missing", pa.string()), ("c", pa.string())])


@checks("source:F5")
@EXAMPLES
@given(
    st.lists(st.tuples(CELL, CELL, st.integers(-(1 << 63), (1 << 63) - 1))),
    CUTS,
    MARK,
    ENDS,
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.integers(0, 3),
)
async def test_csv_in_items_is_csv_as_a_whole(
    rows: list[tuple[str, str, int]], cuts: list[int], mark: bool, end: str, quoting: Any, blanks: int
) -> None:
    out = io.StringIO(newline="")
    out.write(end * blanks)
    writer = csv.writer(out, lineterminator=end, quoting=quoting)
    writer.writerows([("c", "é", "number"), *rows])
    data = (b"\xef\xbb\xbf" if mark else b"") + out.getvalue().encode()
    found, offsets = await same_rows("a.csv", data, cuts, CSV_SCHEMA, header=True, escape='"')
    expected = list(csv.DictReader(io.StringIO(out.getvalue().lstrip("\r\n"), newline="")))
    for one, wanted in zip(found, expected, strict=True):
        assert one["number"] == int(wanted["number"])
        # An empty field is null if it is not quoted, or if no other column needs the difference.
        assert (one["c"] or "", one["é"] or "") == (wanted["c"], wanted["é"])
        assert list(one) == ["é", "number", "c"]
    for one, offset in zip(found, offsets, strict=True):
        line = next(csv.reader(io.StringIO(data[offset:].decode(), newline="")))
        assert int(line[2]) == one["number"]


@checks("source:F5")
@EXAMPLES
@given(st.lists(st.text("ab,1", max_size=6)), CUTS, st.sampled_from(["||", "|", "<br>", "\r\n", "\n"]))
async def test_records_end_with_the_separator_that_was_given(lines: list[str], cuts: list[int], end: str) -> None:
    options: dict[str, Any] = {"line_separator": end}
    if not can_split(SourceFile("a.txt", 1), FormatOptions(line_separator=end)):
        assert end == "||"  # Occurrences of this separator can overlap, so the cut depends on the whole file.
        cuts = []
    data = "".join(one + end for one in lines).encode()
    rows, _ = await same_rows("a.txt", data, cuts, pa.schema([("value", pa.string())]), **options)
    assert [row["value"] for row in rows] == lines
    data = "".join(f'{{"n":{index}}}{end}' for index, _ in enumerate(lines)).encode()
    rows, _ = await same_rows("a.jsonl", data, cuts, pa.schema([("n", pa.int64())]), **options)
    assert [row["n"] for row in rows] == list(range(len(lines)))
    data = f"n,m{end}".encode() + "".join(f"{index},x{end}" for index, _ in enumerate(lines)).encode()
    rows, _ = await same_rows("a.csv", data, cuts, pa.schema([("n", pa.int64())]), header=True, **options)
    assert [row["n"] for row in rows] == list(range(len(lines)))


@checks("source:F5")
@EXAMPLES
@given(
    st.lists(st.tuples(st.text("aé€ÿ", max_size=5), st.integers(0, 9))), CUTS, st.sampled_from(["latin-1", "cp1252"])
)
async def test_items_of_an_encoding_of_single_bytes(
    rows: list[tuple[str, int]], cuts: list[int], encoding: str
) -> None:
    rows = [(text.encode(encoding, "ignore").decode(encoding), number) for text, number in rows]
    data = ("text,number\n" + "".join(f"{text},{number}\n" for text, number in rows)).encode(encoding)
    schema = pa.schema([("text", pa.string()), ("number", pa.int64())])
    found, offsets = await same_rows("a.csv", data, cuts, schema, encoding=encoding, header=True)
    assert [(row["text"] or "", row["number"]) for row in found] == rows
    for (text, number), offset in zip(rows, offsets, strict=True):
        assert data[offset:].startswith(f"{text},{number}".encode(encoding))
