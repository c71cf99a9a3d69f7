"""The requests and bytes of reads, of versions, settings and samples."""

import gzip
import json
from contextlib import aclosing
from typing import Any

import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.errors import ConfigInvalid, InvalidArgument, ObjectChanged, Unsupported, UntrustedMetadata
from aioprefetch.source.formats import Wanted, can_split, compression_of, format_of
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of
from tests.unit.source.formats.written_files import cut_at, new_operator, put, read

TEXT = pa.schema([("value", pa.string())])
MIB = 1 << 20


def cost(operator: ap.Operator) -> tuple[int, int]:
    """The number of requests of any kind, and the received bytes."""
    found = operator.statistics
    return found["action_http_get_request"] + found["action_http_head_request"], found["stream_read_total_bytes"]


@each_of("key", ["a.txt", "a.jsonl", "a.csv", "a.bin", "a.txt.gz"])
async def test_a_small_file_costs_one_request(key: str) -> None:
    data = b'{"value":1}\n' * 10
    data = gzip.compress(data) if key.endswith("gz") else data
    schema = pa.schema([("content", pa.binary())]) if key == "a.bin" else TEXT
    async with new_operator() as operator:
        file = await put(operator, key, data)
        await read(operator, file, schema)
        assert cost(operator) == (1, len(data))


async def test_items_of_a_large_file_bring_little_more_than_their_bytes() -> None:
    data = b"".join(b"%063d\n" % number for number in range(MIB // 2))
    async with new_operator(memory_bytes=64 * MIB) as operator:
        file = await put(operator, "a.txt", data)
        items = cut_at(file, [9 * MIB + 5, 20 * MIB + 1])
        total = 0
        for item in items:
            total += len((await read(operator, item, TEXT, offsets=False)).rows)
        assert total == MIB // 2
        assert cost(operator)[1] <= len(data) + 3 * 64 * 1024 + 2


@checks("source:F5")
async def test_csv_items_ask_once_more_for_the_head() -> None:
    data = b"b,a\n" + b"x,1\n" * 50_000
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    async with new_operator() as operator:
        file = await put(operator, "a.csv", data)
        found = await read(operator, FetchItem(file, 150_000, file.size), schema, header=True)
        assert len(found.rows) == (len(data) - 150_000) // 4
        assert cost(operator)[0] == 2


@checks("source:Q6", "reliability:P08")
async def test_a_file_that_was_overwritten_or_has_grown_is_never_mixed() -> None:
    async with new_operator() as operator:
        for key in ("a.txt", "a.jsonl", "a.csv", "a.bin"):
            file = await put(operator, key, b'{"value":1}\n')
            await operator.write(key, b'{"value":1}\n{"value":2}\n')
            with pytest.raises(ObjectChanged):
                await read(operator, file, pa.schema([("content", pa.binary())]) if key == "a.bin" else TEXT)


async def test_settings_of_open_file_reach_every_file() -> None:
    must = "mapreduce.job.input.file.must."
    async with new_operator() as operator:
        for key in ("a.txt", "a.jsonl", "a.csv", "a.bin"):
            file = await put(operator, key, b'{"value":1}\n')
            schema = pa.schema([("content", pa.binary())]) if key == "a.bin" else TEXT
            with pytest.raises(ConfigInvalid, match=r"fs\.unknown\.key"):
                await read(operator, file, schema, settings={must + "fs.unknown.key": "1"})
            settings = {must + "fs.option.openfile.read.policy": "random", "other": "x"}
            await read(operator, file, schema, settings=settings)


@each_of("key", ["a.jsonl", "a.csv", "a.jsonl.gz", "a.parquet", "a.lance"])
async def test_settings_of_open_file_reach_samples(key: str) -> None:
    wrong = ReadOptions(open_file={"mapreduce.job.input.file.must.fs.unknown.key": "1"})
    async with new_operator() as operator:
        for size in (10, 100_000):
            file = await put(operator, key, b"x" * size)
            with pytest.raises(ConfigInvalid, match=r"fs\.unknown\.key"):
                await format_of(key, FormatOptions()).sample(operator, file, FormatOptions(sample_bytes=1000), wrong)


async def test_a_read_that_ends_early_leaves_no_request_in_flight() -> None:
    data = b"".join(b"%015d\n" % number for number in range(MIB))
    async with new_operator() as operator:
        file = await put(operator, "a.txt", data)
        want = Wanted(TEXT, FormatOptions(), ReadOptions(), offsets=False)
        async with aclosing(format_of("a.txt", want.options).read(operator, FetchItem(file), want)) as batches:
            assert (await anext(batches)).batch.num_rows
        assert operator.statistics["stream_read_active_prefetch_operations"] == 0


async def test_binary_files_as_spark_has_them() -> None:
    async with new_operator() as operator:
        file = await put(operator, "dir/a.bin", b"\x00\xff")
        schema = pa.schema([(name, pa.string()) for name in ("path", "modificationTime", "length", "content")])
        found = await read(operator, file, schema)
        assert found.rows[0]["path"].endswith("/dir/a.bin")
        assert (found.rows[0]["length"], found.rows[0]["content"]) == (2, b"\x00\xff")
        assert found.rows[0]["modificationTime"].timestamp() == 1_700_000_000.123
        assert found.offsets == [0]
        before = cost(operator)
        assert list((await read(operator, file, pa.schema([("length", pa.int64())]))).rows[0]) != []
        assert cost(operator) == before


async def sample(key: str, data: bytes, **options: Any) -> pa.Schema:
    async with new_operator() as operator:
        file = await put(operator, key, data)
        chosen = FormatOptions(**options)
        found = await format_of(key, chosen).sample(operator, file, chosen, ReadOptions())
        assert cost(operator)[0] == (1 if data else 0)
        assert cost(operator)[1] <= chosen.sample_bytes
        return found


async def test_the_schema_of_json_lines_is_that_of_spark() -> None:
    records: list[dict[str, Any]] = [
        {"n": 1, "x": 1, "s": "2020-01-01", "b": True, "z": None, "o": {"a": 1}, "l": [1, None], "big": 1 << 70},
        {"n": 2, "x": 1.5, "mixed": 1, "o": {"b": "x"}, "l": [2.5], "big": 5, "e": []},
        {"mixed": "x", "l": None},
    ]
    found = await sample("a.jsonl", "\n".join(map(json.dumps, records)).encode())
    assert found == pa.schema(
        [
            ("n", pa.int64()),
            ("x", pa.float64()),
            ("s", pa.string()),
            ("b", pa.bool_()),
            ("z", pa.null()),
            ("o", pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ("l", pa.list_(pa.float64())),
            ("big", pa.decimal128(22, 0)),
            ("mixed", pa.string()),
            ("e", pa.list_(pa.null())),
        ]
    )


async def test_the_schema_of_csv_is_that_of_spark() -> None:
    data = b"n,x,b,d,t,s,z,big\n1,1.5,true,2020-01-01,2020-01-01 10:00:00,x,,12345678901234567890\n,2,False,,,,,1\n"
    found = await sample("a.csv", data, header=True)
    expected = [pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.string(), pa.null()]
    assert found.types == [*expected, pa.decimal128(20, 0)]
    assert (await sample("a.csv", data)).names == [f"_c{number}" for number in range(8)]
    assert (await sample("a.csv", b"a,b\n", header=True)).types == [pa.null(), pa.null()]


async def test_a_sample_is_of_whole_records_alone() -> None:
    data = b'{"a":1}\n' * 10 + b'{"a":"text"}\n' * 10
    assert (await sample("a.jsonl", data, sample_bytes=85)).field("a").type == pa.int64()
    assert (await sample("a.jsonl.gz", gzip.compress(data), sample_bytes=85)).field("a").type == pa.int64()
    assert (await sample("a.jsonl", data)).field("a").type == pa.string()
    with pytest.raises(InvalidArgument, match="sample_bytes=4"):
        await sample("a.jsonl", data, sample_bytes=4)
    with pytest.raises(UntrustedMetadata, match="no JSON object"):
        await sample("a.jsonl", b"a,b\n1,2\n")
    for key in ("a.jsonl", "a.csv", "a.jsonl.gz"):
        assert len(await sample(key, b"")) == 0


def test_an_option_or_the_suffix_chooses_the_format() -> None:
    for key, name in (
        ("a.JSON.gz", "jsonl"),
        ("x/a.csv", "csv"),
        ("a.log.zst", "text"),
        ("a.snappy.parquet", "parquet"),
    ):
        assert format_of(key, FormatOptions()).name == name
    assert format_of("a.csv", FormatOptions(format="text")).name == "text"
    with pytest.raises(ConfigInvalid, match="suffix of the key is of no format"):
        format_of("csv", FormatOptions())
    with pytest.raises(ConfigInvalid, match="format='avro' must be one of"):
        format_of("a.csv", FormatOptions(format="avro"))


@each_of("suffix", [".bz2", ".deflate", ".lz4", ".br", ".xz", ".BZ2"])
def test_compression_that_cannot_be_undone_is_named(suffix: str) -> None:
    key = f"a.csv{suffix}"
    with pytest.raises(Unsupported, match=suffix.lower()) as caught:
        compression_of(key, FormatOptions(format="csv"))
    assert caught.value.path == key
    assert compression_of(key, FormatOptions(format="csv", compression="none")) == "none"
    assert compression_of(key, FormatOptions(format="binary")) == "none"


@pytest.mark.parametrize("name", ["value", "line"])
async def test_text_comes_in_the_one_column_there_is(name: str) -> None:
    async with new_operator() as operator:
        file = await put(operator, "a.txt", b"x\ny\n")
        schema = pa.schema([(name, pa.string())])
        assert (await read(operator, file, schema)).rows == [{name: "x"}, {name: "y"}]
        for wrong in ([(name, pa.int64())], [(name, pa.string()), ("b", pa.string())]):
            with pytest.raises(ConfigInvalid, match="one column, a string"):
                await read(operator, file, pa.schema(wrong))


def test_files_that_can_be_split() -> None:
    for key, options, expected in (
        ("a.csv", {}, True),
        ("a.csv", {"multi_line": True}, False),
        ("a.csv", {"encoding": "utf-16"}, False),
        ("a.csv", {"encoding": "latin-1"}, True),
        ("a.txt", {"line_separator": "--"}, False),
        ("a.txt", {"line_separator": "-|"}, True),
        ("a.jsonl.gz", {}, False),
        ("a.bin", {}, False),
        ("a.parquet", {}, True),
        ("a.lance", {}, True),
        ("a.lance/", {"format": "lance"}, False),
    ):
        assert can_split(SourceFile(key, 10), FormatOptions(**options)) is expected
