"""Everyday files and options beside Spark's own readers, after Spark's pages of options, and what becomes of each.

A case gives the same rows, or is ``REFUSED`` with a sentence that says what to do, or is one of the ``DIFFERENCES``,
which the page docs/guides/spark.md lists.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Files = Mapping[str, "str | bytes | list[dict[str, Any]]"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files by their names (rows: Parquet) and options of both readers. ``only`` are options of ours alone."""

    name: str
    format: str
    files: Files
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, str] = field(default_factory=dict)
    path: str = ""


def csv(name: str, text: str | bytes | Files, schema: str | None = None, **more: Any) -> Case:
    """A case of CSV. Keywords that are no fields of ``Case`` are options."""
    return _case("csv", name, {"a.csv": text} if isinstance(text, (str, bytes)) else text, schema, more)


def json(name: str, text: str | bytes | Files, schema: str | None = None, **more: Any) -> Case:
    """A case of JSON."""
    return _case("json", name, {"a.json": text} if isinstance(text, (str, bytes)) else text, schema, more)


def text(name: str, content: str | bytes | Files, schema: str | None = None, **more: Any) -> Case:
    """A case of text."""
    return _case("text", name, {"a.txt": content} if isinstance(content, (str, bytes)) else content, schema, more)


def other(kind: str, name: str, files: Files, schema: str | None = None, **more: Any) -> Case:
    """A case of another format."""
    return _case(kind, name, files, schema, more)


def _case(kind: str, name: str, files: Files, schema: str | None, more: dict[str, Any]) -> Case:
    own = {key: more.pop(key) for key in ("only", "path") if key in more}
    return Case(name=f"{kind}: {name}", format=kind, files=files, schema=schema, options=more, **own)


AB = "a int, b string"
CASES = [
    # --- CSV: header and schema ---
    csv("no header, nothing inferred", "1,x\n2,y\n"),
    csv("header, nothing inferred", "a,b\n007,x\n+49,y\n", header="true"),
    csv("header, inferSchema=false", "a,b\n1,x\n", header="true", inferSchema="false"),
    csv("inferSchema", "a,b,c,d\n1,1.5,x,true\n2,2.5,y,false\n", header="true", inferSchema="true"),
    csv("inferSchema without header", "1,x\n2,y\n", inferSchema="true"),
    csv("inferSchema of leading zeros", "a\n007\n", header="true", inferSchema="true"),
    csv("inferSchema of large integers", "a\n12345678901\n", header="true", inferSchema="true"),
    csv("inferSchema of dates", "a\n2024-01-31\n", header="true", inferSchema="true"),
    csv("inferSchema of times", "a\n2024-01-31 12:00:00\n", header="true", inferSchema="true"),
    csv("inferSchema of empty columns", "a,b\n1,\n2,\n", header="true", inferSchema="true"),
    csv("inferSchema of mixed columns", "a\n1\nx\n", header="true", inferSchema="true"),
    csv("schema", "1,x\n2,y\n", AB),
    csv("schema and header", "a,b\n1,x\n", AB, header="true"),
    csv("schema and header in another case", "A,B\n1,x\n", AB, header="true"),
    csv("header in another order", "b,a\n5,1\n", AB, header="true"),
    csv("header with more columns", "a,b,c\n1,x,2\n", AB, header="true"),
    csv("header with fewer columns", "a\n1\n", AB, header="true"),
    csv("header with other names", "x,y\n1,x\n", AB, header="true"),
    csv("header with a name twice", "a,a\n1,2\n", header="true"),
    csv("header with an empty name", "a,\n1,2\n", header="true"),
    csv("header in each of two files", {"a.csv": "a,b\n1,x\n", "b.csv": "a,b\n2,y\n"}, header="true"),
    csv("headers in two orders", {"a.csv": "a,b\n1,x\n", "b.csv": "b,a\n5,2\n"}, header="true"),
    csv("header alone", "a,b\n", AB, header="true"),
    csv("enforceSchema", "a,b\n1,x\n", AB, header="true", enforceSchema="false"),
    csv("samplingRatio", "a\n1\n", header="true", inferSchema="true", samplingRatio="0.5"),
    csv("preferDate", "a\n2024-01-31\n", header="true", inferSchema="true", preferDate="true"),
    # --- CSV: text of fields ---
    csv("sep", "1;x\n", AB, sep=";"),
    csv("delimiter", "1|x\n", AB, delimiter="|"),
    csv("tab", "1\tx\n", AB, sep="\t"),
    csv("escaped tab", "1\tx\n", AB, sep="\\t"),
    csv("sep of two characters", "1||x\n", AB, sep="||"),
    csv("quotes", '1,"x, y"\n', AB),
    csv("another quote", "1,'x, y'\n", AB, quote="'"),
    csv("no quote", '1,"x\n', AB, quote=""),
    csv("doubled quotes", '1,"x ""y"" z"\n', AB),
    csv("escaped quotes", '1,"x \\"y\\" z"\n', AB),
    csv("escape", '1,"x \\"y\\" z"\n', AB, escape="\\"),
    csv("escape is the quote", '1,"x ""y"" z"\n', AB, escape='"'),
    csv("charToEscapeQuoteEscaping", "1,x\n", AB, charToEscapeQuoteEscaping="\\"),
    csv("quote within a field", '1,x "y" z\n', AB),
    csv("quote that is not closed", '1,"x\n2,y\n', AB),
    csv("text behind a quote", '1,"x"y\n', AB),
    csv("unescapedQuoteHandling", '1,x"y\n', AB, unescapedQuoteHandling="STOP_AT_DELIMITER"),
    csv("line ends in quotes", '1,"x\ny"\n', AB, multiLine="true"),
    csv("line ends in quotes without multiLine", '1,"x\ny"\n', AB),
    csv("comment", "#c\n1,x\n", AB, comment="#"),
    csv("no comment", "#c,x\n", "a string, b string"),
    csv("empty lines", "1,x\n\n2,y\n", AB),
    csv("CRLF", "1,x\r\n2,y\r\n", AB),
    csv("CR", "1,x\r2,y\r", AB),
    csv("lineSep", "1,x|2,y|", AB, lineSep="|"),
    csv("no line end at the end", "1,x\n2,y", AB),
    csv("BOM", b"\xef\xbb\xbf1,x\n", AB),
    csv("latin-1", "1,\xe9\n".encode("latin-1"), AB, encoding="ISO-8859-1"),
    csv("charset", "1,\xe9\n".encode("latin-1"), AB, charset="ISO-8859-1"),
    csv("utf-16", "1,\xe9\n2,x\n".encode("utf-16-le"), AB, encoding="UTF-16LE"),
    csv("bytes that are no UTF-8", b"1,\xff\n", AB),
    csv("rows that are short", "1,x\n2\n", AB),
    csv("rows that are long", "1,x\n2,y,z\n", AB),
    csv("blanks around strings", "1, x \n", AB),
    csv("blanks around integers", " 1 ,x\n", AB),
    csv("blanks around doubles", " 1.5 ,x\n", "a double, b string"),
    csv("ignoreLeadingWhiteSpace", " 1, x\n", AB, ignoreLeadingWhiteSpace="true"),
    csv("ignoreTrailingWhiteSpace", "1 ,x \n", AB, ignoreTrailingWhiteSpace="true"),
    csv("maxColumns", "1,x\n", AB, maxColumns="10"),
    csv("maxCharsPerColumn", "1,x\n", AB, maxCharsPerColumn="10"),
    csv("locale", "1,x\n", AB, locale="de-DE"),
    # --- CSV: nulls and values ---
    csv("empty fields", ",x\n1,\n", AB),
    csv("empty fields in quotes", '1,""\n', AB),
    csv("nullValue", "1,NA\nNA,x\n", AB, nullValue="NA"),
    csv("nullValue in quotes", '1,"NA"\n', AB, nullValue="NA"),
    csv("nullValue and empty fields", "1,\n,NA\n", AB, nullValue="NA"),
    csv("emptyValue", '1,""\n', AB, emptyValue="E"),
    csv("nanValue", "n/a,x\n", "a double, b string", nanValue="n/a"),
    csv("positiveInf", "inf!,x\n", "a double, b string", positiveInf="inf!"),
    csv("negativeInf", "-inf!,x\n", "a double, b string", negativeInf="-inf!"),
    csv("NaN and infinities", "NaN,x\nInf,y\n-Inf,z\n", "a double, b string"),
    csv("integers that are none", "1,x\nz,y\n", AB),
    csv("integers with a fraction", "1.0,x\n", AB),
    csv("integers too large", "3000000000,x\n", AB),
    csv("plus signs", "+1,x\n", AB),
    csv("booleans", "true,x\nFALSE,y\n", "a boolean, b string"),
    csv("booleans that are none", "yes,x\n", "a boolean, b string"),
    csv("decimals", "1.25,x\n", "a decimal(10,2), b string"),
    csv("decimals to be rounded", "1.005,x\n", "a decimal(10,2), b string"),
    csv("doubles with exponents", "1e3,x\n", "a double, b string"),
    csv("dates", "2024-01-31,x\n", "a date, b string"),
    csv("dates of other forms", "2024-1-1,x\n", "a date, b string"),
    csv("times", "2024-01-31 12:00:00.123456,x\n2024-01-31T12:00:00Z,y\n", "a timestamp, b string"),
    csv("times that are dates", "2024-01-31,x\n", "a timestamp, b string"),
    csv("timestamp_ntz", "2024-01-31 12:00:00,x\n", "a timestamp_ntz, b string"),
    csv("the end of the calendar", "9999-12-31 23:59:59,x\n", "a timestamp, b string", timeZone="UTC"),
    csv("timeZone", "2024-01-31 12:00:00,x\n", "a timestamp, b string", timeZone="Asia/Tokyo"),
    csv("dateFormat", "31.01.2024,x\n", "a date, b string", dateFormat="dd.MM.yyyy"),
    csv("timestampFormat", "31.01.2024 12,x\n", "a timestamp, b string", timestampFormat="dd.MM.yyyy HH"),
    csv("offsets beyond 18 hours", "2024-01-31 12:00:00+19:00,x\n", "a timestamp, b string"),
    csv("mode=PERMISSIVE", "1,x\n", AB, mode="PERMISSIVE"),
    csv("mode=DROPMALFORMED", "1,x\nz,y\n", AB, mode="DROPMALFORMED"),
    csv("mode=FAILFAST", "1,x\n", AB, mode="FAILFAST"),
    csv("columnNameOfCorruptRecord", "z,y\n", AB + ", _c string", columnNameOfCorruptRecord="_c"),
    # --- JSON ---
    json("fields", '{"a": 1, "b": "x"}\n{"a": 2}\n'),
    json("schema", '{"a": 1, "b": "x"}\n', AB),
    json("names in another case", '{"A": 1}\n', AB),
    json("integers and doubles", '{"a": 1}\n{"a": 1.5}\n'),
    json("integers and texts", '{"a": 1}\n{"a": "x"}\n'),
    json("structs and lists", '{"s": {"x": 1}, "l": [1, 2]}\n{"s": {"y": "z"}, "l": []}\n'),
    json("nulls alone", '{"a": null, "b": 1}\n'),
    json(
        "a field in one of 15 files", {f"{n:02}.json": '{"a": 1, "z": 2}' if n == 14 else '{"a": 1}' for n in range(15)}
    ),
    json("maps", '{"m": {"x": 1, "y": 2}}\n', "m map<string,int>"),
    json("objects in a string", '{"b": {"x": 1, "x": 2}}\n', "b string"),
    json("numbers in a string", '{"b": 1}\n{"b": 1.10}\n', "b string"),
    json("booleans in a string", '{"b": true}\n', "b string"),
    json("texts in a number", '{"a": "1"}\n', AB),
    json("doubles in an integer", '{"a": 1.5}\n', AB),
    json("integers too large", '{"a": 3000000000}\n', AB),
    json("NaN", '{"a": NaN}\n{"a": "Infinity"}\n', "a double"),
    json("dates and times", '{"d": "2024-01-31", "t": "2024-01-31T12:00:00"}\n', "d date, t timestamp"),
    json("times as numbers", '{"t": 1700000000}\n', "t timestamp"),
    json("decimals", '{"a": 1.25}\n', "a decimal(10,2)"),
    json("base64", '{"a": "YWJj"}\n', "a binary"),
    json("single quotes", "{'a': 1}\n", AB),
    json("a line that is no object", '{"a": 1}\nx\n', AB),
    json("empty lines", '{"a": 1}\n\n{"a": 2}\n', AB),
    json("an array of records", '[{"a": 1}, {"a": 2}]\n', AB),
    json("multiLine", '[{"a": 1},\n {"a": 2}]\n', AB, multiLine="true"),
    json("primitivesAsString", '{"a": 1}\n', primitivesAsString="true"),
    json("prefersDecimal", '{"a": 1.5}\n', prefersDecimal="true"),
    json("allowComments", '{"a": /* c */ 1}\n', AB, allowComments="true"),
    json("dropFieldIfAllNull", '{"a": 1, "b": null}\n', dropFieldIfAllNull="true"),
    json("mode=DROPMALFORMED", '{"a": 1}\nx\n', AB, mode="DROPMALFORMED"),
    json("inferSchema", '{"a": 1}\n', inferSchema="true"),
    json("encoding", '{"b": "\xe9"}\n'.encode("utf-16-le"), "b string", encoding="UTF-16LE", lineSep="\n"),
    json("names of metadata", '{"_file": "x", "_offset": 7}\n', "_file string, _offset int"),
    json("names of metadata, inferred", '{"_file": "x", "_offset": 7, "_etag": "e", "_mtime": 1}\n'),
    json("a repeated name", '{"a": 1, "a": 2}\n', AB),
    # --- text and binary ---
    text("lines", "x\ny\n"),
    text("line ends", "x\r\ny\rz"),
    text("empty lines", "x\n\ny\n"),
    text("lineSep", "x|y|", lineSep="|"),
    text("wholetext", "x\ny\n", wholetext="true"),
    other("binaryFile", "content", {"a.dat": b"\x00\x01"}, only={"columns": "length,content"}),
    # --- Parquet ---
    other("parquet", "rows", {"a.parquet": [{"a": 1, "b": "x"}]}),
    other("parquet", "schema", {"a.parquet": [{"a": 1, "b": "x"}]}, "b string, a bigint"),
    other("parquet", "a column that files lack", {"a.parquet": [{"a": 1}]}, "a bigint, z string"),
    other("parquet", "a wider type", {"a.parquet": [{"a": 1}]}, "a decimal(20,0)"),
    other("parquet", "different columns", {"a.parquet": [{"a": 1}], "b.parquet": [{"a": 2, "b": "x"}]}),
    other("parquet", "mergeSchema", {"a.parquet": [{"a": 1}], "b.parquet": [{"a": 2, "b": "x"}]}, mergeSchema="true"),
    other("parquet", "datetimeRebaseMode", {"a.parquet": [{"a": 1}]}, datetimeRebaseMode="CORRECTED"),
    # --- files and directories ---
    json("directories of columns", {"k=1/a.json": '{"a": 1}', "k=2/a.json": '{"a": 2}'}),
    json("directories and a schema", {"k=1/a.json": '{"a": 1}'}, AB),
    json("directories and a schema with them", {"k=1/a.json": '{"a": 1}'}, "a int, k int"),
    json("directories of texts and dates", {"d=2024-01-31/s=x/a.json": '{"a": 1}'}),
    json("directories without a value", {"k=1/a.json": '{"a": 1}', "k=__HIVE_DEFAULT_PARTITION__/a.json": '{"a": 2}'}),
    json("directories of different depth", {"k=1/a.json": '{"a": 1}', "k=1/h=2/a.json": '{"a": 2}'}),
    json("a stray file", {"k=1/a.json": '{"a": 1}', "a.json": '{"a": 2}'}),
    json("a glob of directories", {"k=1/a.json": '{"a": 1}', "k=2/a.json": '{"a": 2}'}, path="k=*"),
    json("basePath", {"k=1/a.json": '{"a": 1}'}, basePath="/"),
    json("nested directories", {"a.json": '{"a": 1}', "sub/a.json": '{"a": 2}'}, AB),
    json("recursiveFileLookup", {"a.json": '{"a": 1}', "sub/a.json": '{"a": 2}'}, AB, recursiveFileLookup="true"),
    json("a glob", {"a1.json": '{"a": 1}', "b1.json": '{"a": 2}'}, AB, path="a*.json"),
    json("alternatives", {"a1.json": '{"a": 1}', "b1.json": '{"a": 2}'}, AB, path="{a,b}1.json"),
    json("pathGlobFilter", {"a1.json": '{"a": 1}', "b1.json": '{"a": 2}'}, AB, pathGlobFilter="b*"),
    json("hidden files", {"a.json": '{"a": 1}', "_b.json": '{"a": 2}', ".c.json": '{"a": 3}', "_d/e.json": "{}"}, AB),
    json("an empty file", {"a.json": '{"a": 1}', "b.json": ""}, AB),
    json("modifiedAfter", {"a.json": '{"a": 1}'}, AB, modifiedAfter="2000-01-01T00:00:00"),
    json("ignoreMissingFiles", {"a.json": '{"a": 1}'}, AB, ignoreMissingFiles="true"),
    json("ignoreCorruptFiles", {"a.json": '{"a": 1}'}, AB, ignoreCorruptFiles="true"),
]

NUMBER = "is not a valid (int32|bool|decimal|timestamp)"
OPEN_QUOTE = "a quote is open at the end of the line.*multiLine"
PARSER = 'have with parser="spark"'
REFUSED = {
    "csv: header with other names": "has none of the columns of the schema",
    "csv: enforceSchema": PARSER,
    "csv: samplingRatio": PARSER,
    "csv: preferDate": PARSER,
    "csv: sep of two characters": "is not one character of ASCII",
    "csv: escaped quotes": r"set the option escape to \\ where it escapes",
    "csv: charToEscapeQuoteEscaping": PARSER,
    "csv: quote that is not closed": OPEN_QUOTE,
    "csv: text behind a quote": "text follows the quote that closes a field",
    "csv: unescapedQuoteHandling": PARSER,
    "csv: line ends in quotes without multiLine": OPEN_QUOTE,
    "csv: comment": PARSER,
    "csv: bytes that are no UTF-8": "set the option encoding",
    "csv: rows that are short": "a record has 1 fields, not 2",
    "csv: rows that are long": "a record has 3 fields, not 2",
    "csv: ignoreLeadingWhiteSpace": PARSER,
    "csv: ignoreTrailingWhiteSpace": PARSER,
    "csv: maxColumns": PARSER,
    "csv: maxCharsPerColumn": PARSER,
    "csv: locale": PARSER,
    "csv: emptyValue": PARSER,
    "csv: nanValue": PARSER,
    "csv: positiveInf": PARSER,
    "csv: negativeInf": PARSER,
    "csv: integers that are none": NUMBER,
    "csv: integers with a fraction": NUMBER,
    "csv: integers too large": NUMBER,
    "csv: booleans that are none": NUMBER,
    "csv: decimals to be rounded": NUMBER,
    "csv: offsets beyond 18 hours": NUMBER,
    "csv: dateFormat": PARSER,
    "csv: timestampFormat": PARSER,
    "csv: mode=PERMISSIVE": PARSER,
    "csv: columnNameOfCorruptRecord": PARSER,
    "json: texts in a number": NUMBER,
    "json: doubles in an integer": NUMBER,
    "json: integers too large": NUMBER,
    "json: times as numbers": NUMBER,
    "json: single quotes": "enclosed in double quotes",
    "json: a line that is no object": "no JSON object",
    "json: an array of records": "a record must be an object",
    "json: multiLine": "multiLine is for csv",
    "json: primitivesAsString": PARSER,
    "json: prefersDecimal": PARSER,
    "json: allowComments": PARSER,
    "json: dropFieldIfAllNull": PARSER,
    "parquet: datetimeRebaseMode": "leave it out",
    "json: directories of different depth": "name=value directories differ",  # by Spark, too
    "json: basePath": "without wildcards are columns",
}
# Our rows, and the sentence of the page, which a warning has too: its kind, or some of its words.
DIFFERENT: dict[str, tuple[list[dict[str, Any]], str]] = {
    "csv: header in another order": ([{"a": 1, "b": "5"}], "header"),
    "csv: headers in two orders": ([{"a": "1", "b": "x"}, {"a": "2", "b": "5"}], "header"),
    "csv: doubled quotes": ([{"a": 1, "b": 'x "y" z'}], "quotes"),
    "csv: empty fields in quotes": ([{"a": 1, "b": ""}], "nulls"),
    "csv: nullValue in quotes": ([{"a": 1, "b": "NA"}], "nulls"),
    "csv: blanks around integers": ([{"a": 1, "b": "x"}], "blanks"),
    "csv: utf-16": ([{"a": 1, "b": "\xe9"}, {"a": 2, "b": "x"}], "Files in UTF-16 are cut into lines"),
    "json: objects in a string": ([{"b": '{"x":1,"x":2}'}], "objects"),
    "parquet: different columns": ([{"a": 1, "b": None}, {"a": 2, "b": "x"}], "union"),
    "json: directories and a schema": ([{"a": 1, "b": None}], "directories"),
    "json: a stray file": ([{"a": 1, "k": 1}, {"a": 2, "k": None}], "has nulls there"),
    "json: a glob of directories": ([{"a": 1, "k": 1}, {"a": 2, "k": 2}], "wildcards"),
    "json: nested directories": ([{"a": 1, "b": None}, {"a": 2, "b": None}], "nested"),
}
