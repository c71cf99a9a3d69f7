"""Hostile lines: whatever the bytes are, a file is read, or it is corrupt and its policy counts."""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid, Error, Unsupported, UntrustedMetadata
from aioprefetch.source.formats.jsonl import JsonLinesFormat
from aioprefetch.source.options import FailureOptions, FormatOptions
from aioprefetch.source.reading import ReadTask, infer_schema
from tests.files.packed_files import PACKERS, SUFFIXES
from tests.stores.source_files import URL, Shelf

N = pa.schema([("n", pa.int64())])
MAPPED = pa.schema([("m", pa.map_(pa.string(), pa.int64()))])
RESCUED = pa.schema([("n", pa.int64()), ("_rescued", pa.string())])
GOOD = b'{"n": 1}\n'
# More than is decoded on the loop's own thread.
LARGE = 100_000
# The bound that docs/reference/spark-options.md names.
DEPTH_MAX = 200


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each example that is left out logs a warning."""
    caplog.set_level(logging.ERROR)


def task_of(schema: pa.Schema, policy: Any = "skip", **options: Any) -> ReadTask:
    failures = FailureOptions(on_corrupt=policy)
    return ReadTask(schema=schema, url=URL, metadata=("_offset",), format=FormatOptions(**options), failures=failures)


def nested(depth: int, begin: str = '{"a":', end: str = "}") -> str:
    return begin * depth + "1" + end * depth


def in_record(name: str, value: str) -> str:
    return '{"' + name + '":' + value + "}"


TOO_MUCH = [
    pytest.param(in_record("s", nested(300)), pa.schema([("s", pa.string())]), "ignore", id="deep in a string column"),
    pytest.param(in_record("s", nested(300, "[", "]")), pa.schema([("s", pa.string())]), "ignore", id="deep list"),
    pytest.param(in_record("x", nested(500)), RESCUED, "rescue", id="deep and unknown"),
    pytest.param(in_record("x", nested(500)), N, "fail", id="deep and unknown, to fail"),
    pytest.param(in_record("x", nested(90_000, "[", "]")), RESCUED, "rescue", id="a bomb"),
    pytest.param('{"m": {"\\ud800": 1}}', MAPPED, "ignore", id="half a pair as a key of a map"),
    pytest.param('{"x": "\\ud800"}', RESCUED, "rescue", id="half a pair in an unknown field"),
    pytest.param('{"x": [{"y": "\\udfff"}]}', RESCUED, "rescue", id="half a pair within an unknown field"),
    pytest.param('{"\\ud800": 1}', RESCUED, "rescue", id="half a pair as an unknown name"),
    pytest.param('{"t": "9999-01-01"}', pa.schema([("t", pa.timestamp("ns"))]), "ignore", id="a time beyond its type"),
    pytest.param('{"l": [1]}', pa.schema([("l", pa.list_(pa.int64(), 2))]), "ignore", id="a list of another length"),
]


@pytest.mark.parametrize("rest", [0, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("line", "schema", "unknown"), TOO_MUCH)
async def test_a_line_that_cannot_be_kept_makes_its_file_corrupt(
    line: str, schema: pa.Schema, unknown: str, rest: int
) -> None:
    first = b"{}\n"
    data = first + line.encode() + b"\n" + b"{}\n" * (rest // 3)
    async with Shelf() as shelf:
        bad, good = await shelf.put("0.jsonl", data), await shelf.put("1.jsonl", b"{}\n")
        assert len(await shelf.rows([bad, good], task_of(schema, unknown_fields=unknown))) == 1
        with pytest.raises(UntrustedMetadata) as caught:
            await shelf.rows([good, bad], task_of(schema, "fail", unknown_fields=unknown))
    assert caught.value.path == "0.jsonl"
    assert caught.value.context["offset"] == len(first)


async def test_what_is_nested_up_to_the_bound_is_kept() -> None:
    texts = [
        nested(DEPTH_MAX - 1),
        nested(DEPTH_MAX - 1, "[", "]"),
        '"' + "[" * 400 + '"',
        "[%s]" % ("[1]," * 400 + "1"),
    ]
    async with Shelf() as shelf:
        file = await shelf.put("0.jsonl", "".join(in_record("x", text) + "\n" for text in texts).encode())
        rows = await shelf.rows([file], task_of(RESCUED, unknown_fields="rescue"))
    assert [row["_rescued"] for row in rows] == [in_record("x", text) for text in texts]


DEPTHS = st.sampled_from([1, 50, DEPTH_MAX - 2, DEPTH_MAX - 1, DEPTH_MAX, 250, 400, 1100])
TEXTS = st.text(max_size=3) | st.sampled_from(["\ud800", "a\udfff", "{", '"', "NaN"])
LEAVES = st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False) | TEXTS
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=5
)
DEEP = st.builds(
    lambda depth, is_list: json.loads(nested(depth, "[", "]")) if is_list else json.loads(nested(depth)),
    DEPTHS.filter(lambda depth: depth < 500),
    st.booleans(),
)
VALUES = TREES | DEEP
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(-5, 5) | st.none(),
        "m": st.dictionaries(TEXTS, st.integers(0, 9), max_size=2),
        "s": VALUES,
        "unknown": VALUES,
        "\ud800": st.integers(0, 9),
    },
)
TREE_SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("s", pa.string()),
        ("_offset", pa.int64()),
        ("_rescued", pa.string()),
    ]
)


def is_text(value: Any) -> bool:
    """Whether all names and texts of a tree can be written."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=4))
@example([{"unknown": {"\ud800": 1}}])
@example([{"n": 1}, {"m": {"\udfff": 1}}])
async def test_trees_are_rescued_whole_or_refused_with_their_place(records: list[dict[str, Any]]) -> None:
    lines = [json.dumps(one).encode() + b"\n" for one in records]
    wrong = [place for place, one in enumerate(records) if not is_text(one) or depth_of(one) > DEPTH_MAX]
    async with Shelf() as shelf:
        file = await shelf.put("0.jsonl", b"".join(lines))
        task = task_of(TREE_SCHEMA, "fail", unknown_fields="rescue")
        if wrong:
            with pytest.raises(UntrustedMetadata) as caught:
                await shelf.rows([file], task)
            assert caught.value.context["offset"] == len(b"".join(lines[: wrong[0]]))
            assert await shelf.rows([file], task_of(TREE_SCHEMA, unknown_fields="rescue")) == []
            return
        for row, one in zip(await shelf.rows([file], task), records, strict=True):
            assert (row["n"], dict(row["m"] or [])) == (one.get("n"), one.get("m", {}))
            unknown = {"unknown": one["unknown"]} if "unknown" in one else None
            assert (None if row["_rescued"] is None else json.loads(row["_rescued"])) == unknown


# --- any bytes ------------------------------------------------------------------------------------------------------

SEEDS = {
    "jsonl": b'{"n":1,"s":"x\\u00e9","m":{"k":2},"l":[1,{"y":"\\ud83d\\ude00"}]}\n{"n":null,"t":"2020-01-01"}\n',
    "csv": b'n,s,t\n1,"a ""b"" \xc3\xa9",2020-01-01\n2,,"x,y"\n',
    "txt": b"one\r\ntwo\xc3\xa9\n\nthree",
}
COLUMNS = {
    "jsonl": pa.schema([("n", pa.int64()), ("s", pa.string()), ("m", pa.map_(pa.string(), pa.string()))]),
    "csv": pa.schema([("n", pa.decimal128(10, 2)), ("s", pa.string()), ("t", pa.timestamp("us", "UTC"))]),
    "txt": pa.schema([("value", pa.string())]),
}
BITS = [b"\xff", b"\0", b'"', b"\\", b"\\ud800", b"\n", b"\r", b",", b"{", b"[[", b"\xed\xa0\x80", b"9" * 400, b"1e400"]
EDITS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 6), st.sampled_from(BITS) | st.binary(max_size=3)), max_size=4
)
OPTIONS = st.fixed_dictionaries(
    {"unknown_fields": st.sampled_from(["ignore", "fail", "rescue"])},
    optional={
        "header": st.just(True),
        "multi_line": st.just(True),
        "escape": st.sampled_from(["\\", "!"]),
        "delimiter": st.sampled_from([",", "\0", "|"]),
        "line_separator": st.sampled_from(["|", "--", "\r"]),
        "encoding": st.sampled_from(["utf-8", "utf-16", "latin-1", "utf-7", "shift_jis", "iso2022_jp"]),
    },
)


def edited(data: bytes, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    for place, length, more in edits:
        at = place % (len(data) + 1)
        data = data[:at] + more + data[at + length :]
    return data


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(SEEDS)),
    st.sampled_from(["", "", *PACKERS]),
    EDITS,
    EDITS,
    OPTIONS,
    st.sampled_from([0, 0, LARGE]),
)
@example("csv", "", [], [], {"unknown_fields": "ignore", "delimiter": "\0"}, 0)
@example("csv", "", [], [], {"unknown_fields": "ignore", "line_separator": "|"}, 0)
@example("txt", "", [(0, 0, b"+2AA-")], [], {"unknown_fields": "ignore", "encoding": "utf-7"}, 0)
async def test_of_any_bytes_no_error_is_a_foreign_one_and_none_gets_past_the_policy(
    name: str,
    packer: str,
    edits: list[tuple[int, int, bytes]],
    packed_edits: list[tuple[int, int, bytes]],
    options: dict[str, Any],
    rest: int,
) -> None:
    data = edited(SEEDS[name], edits) + SEEDS[name] * (rest // len(SEEDS[name]))
    if packer:
        data = edited(PACKERS[packer](data), packed_edits)
    async with Shelf() as shelf:
        file = await shelf.put(f"0.{name}{SUFFIXES.get(packer, '')}", data)
        try:
            await shelf.rows([file], task_of(COLUMNS[name], **options))
        except UntrustedMetadata as error:
            raise AssertionError("a corrupt file was not left out") from error
        except (ConfigInvalid, Unsupported):
            pass
        with suppress(Error):
            await infer_schema(shelf.operator, _only(file), task_of(N, **options).format)


@pytest.mark.parametrize(
    ("key", "data", "message"),
    [
        ("a.jsonl", b'{"n":1}\n{"o":{"\\ud800":1}}\n', "unpaired surrogate"),
        ("a.jsonl", b'{"n":1}\n{"o":' + nested(250, "[", "]").encode() + b"}\n", "more than 200 deep"),
    ],
)
async def test_a_sample_without_a_schema_is_refused_with_its_place(key: str, data: bytes, message: str) -> None:
    async with Shelf() as shelf:
        file = await shelf.put(key, data)
        with pytest.raises(UntrustedMetadata, match=message) as caught:
            await infer_schema(shelf.operator, _only(file), FormatOptions())
    assert (caught.value.path, caught.value.context["offset"]) == (key, 8)


@pytest.mark.parametrize("error", [RecursionError("too deep"), OverflowError("too wide")])
async def test_a_sample_meets_the_policy_for_corrupt_files_whatever_a_decoder_raises(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("aioprefetch.source.formats.jsonl.parse_record", fail)
    async with Shelf() as shelf:
        file = await shelf.put("a.jsonl", b'{"n":1}\n')
        with pytest.raises(UntrustedMetadata, match="cannot be decoded"):
            await infer_schema(shelf.operator, _only(file), FormatOptions())
        with pytest.raises(UntrustedMetadata, match="none of 1 files"):
            await infer_schema(shelf.operator, _only(file), FormatOptions(), failures=FailureOptions(on_corrupt="skip"))


async def test_a_number_of_thousands_of_digits_is_a_text_in_csv() -> None:
    async with Shelf() as shelf:
        file = await shelf.put("a.csv", b"n,m\n%s,%s\n" % (b"9" * 5000, b"0" * 5000 + b"7"))
        found = await infer_schema(shelf.operator, _only(file), FormatOptions(header=True))
    assert found.schema.equals(pa.schema([("n", pa.string()), ("m", pa.int64())]))


async def _only(file: Any) -> Any:
    yield file


@pytest.mark.parametrize("rest", [0, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("foreign", [RecursionError("deep"), OverflowError("large"), UnicodeError("half")])
async def test_what_a_decoder_raises_unforeseen_is_about_the_file(
    foreign: Exception, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JsonLinesFormat, "parser", _parser_that_raises(foreign))
    monkeypatch.setattr(JsonLinesFormat, "joined", _parser_that_raises(foreign)())
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number}.jsonl", GOOD + b"\n" * rest) for number in range(2)]
        assert await shelf.rows(files, task_of(N)) == []
        with pytest.raises(UntrustedMetadata, match="cannot be decoded") as caught:
            await shelf.rows(files, task_of(N, "fail"))
    assert caught.value.__cause__ is foreign


@pytest.mark.parametrize("rest", [0, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("short", [MemoryError("none left"), pa.ArrowMemoryError("none left")])
async def test_want_of_memory_is_not_the_files_fault(
    short: Exception, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JsonLinesFormat, "parser", _parser_that_raises(short))
    async with Shelf() as shelf:
        file = await shelf.put("0.jsonl", GOOD + b"\n" * rest)
        with pytest.raises(MemoryError):
            await shelf.rows([file], task_of(N))


def _parser_that_raises(error: Exception) -> Callable[..., Any]:
    def parse(*_: object) -> None:
        raise error

    return lambda *_: parse
