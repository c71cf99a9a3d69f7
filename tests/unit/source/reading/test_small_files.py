"""Small files, read by one GET each and parsed together: what comes is what each gives alone, whatever is in it."""

import gzip
import itertools
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioprefetch.errors import ConfigInvalid, ObjectChanged, Unsupported, UntrustedMetadata
from aioprefetch.source.formats import parquet as parquet_format
from aioprefetch.source.options import FailureOptions, FormatOptions, ReadOptions
from aioprefetch.source.reading import ReadTask
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of
from tests.stores.source_files import URL, Shelf, jsonl, parquet

ADDED = [("_file", pa.string()), ("_offset", pa.int64()), ("_rescued", pa.string())]
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), *ADDED])
TEXT = pa.schema([("value", pa.string()), *ADDED])
MUST = "mapreduce.job.input.file.must."

USUAL = {
    "jsonl": [b'{"n":1,"s":"a"}\n{"n":2}\n', b'{"s":"\xc3\xa9","n":3}', b'{"n":4}\n'],
    "csv": [b"n,s\n1,a\n2,\n", b"n,s\n3,\xc3\xa9", b"n,s\n4,b\n"],
    "text": [b"a\nb\n", b"\xc3\xa9", b"\n\nc\n"],
}
ODD = {
    "jsonl": [
        *(b"", b"\n", b'{"n":5}\r\n{"n":6}\r\n', b'\xef\xbb\xbf{"n":7}\n', b'{"n":8}\n\n{"n":9}\n'),
        b'{"n":1,"x":[2]}\n',
    ],
    "csv": [
        *(b"", b"\n\n", b"n,s\n", b"n,s", b"n,s\r\n5,a\r\n", b"\xef\xbb\xbfn,s\n6,a\n", b'n,s\n7,"a,b"\n\n8,c\n'),
        *(b"s,n\na,9\n", b"s,n\nb,10\n", b"n,x\n11,y\n", b"n\n12\n"),
    ],
    "text": [b"", b"a\r\nb\rc\n", b"\xef\xbb\xbfa\n", b"a\r"],
}  # fmt: skip


def task_of(schema: pa.Schema, **options: Any) -> ReadTask:
    return ReadTask(
        schema=schema,
        url=URL,
        metadata=("_file", "_offset"),
        format=FormatOptions(unknown_fields="rescue", **{"header": True, **options}),
    )


@checks("source:Q7")
@each_of("is_compressed", [False, True])
@each_of("kind", ["jsonl", "csv", "text"])
async def test_files_parsed_together_give_what_each_gives_alone(kind: str, is_compressed: bool) -> None:
    contents = [*USUAL[kind], *itertools.chain.from_iterable((odd, *USUAL[kind][:2]) for odd in ODD[kind])]
    task = task_of(TEXT if kind == "text" else SCHEMA)
    async with Shelf() as shelf:
        files = []
        for number, data in enumerate(contents):
            key = f"{number:02}.{kind}" + (".gz" if is_compressed else "")
            files.append(await shelf.put(key, gzip.compress(data) if is_compressed else data))
        together = await shelf.rows(files, task)
        asked = list(shelf.seen.paths)
        alone = [row for file in files for row in await shelf.rows([file], task)]
    assert together == alone
    assert len(together) >= len(contents)
    assert sorted(asked) == [file.key for file in files if file.size]


async def test_csv_files_without_a_header_go_together_where_they_have_as_many_columns() -> None:
    async with Shelf() as shelf:
        contents = (b"1,a\n2,b\n", b"3,c\n", b"4\n", b"5,d,e\n", b"6,f")
        files = [await shelf.put(f"{number}.csv", data) for number, data in enumerate(contents)]
        found = await shelf.rows(files, task_of(SCHEMA, header=False))
    assert [(row["n"], row["s"], row["_offset"]) for row in found] == [
        *((1, "a", 0), (2, "b", 4), (3, "c", 0), (4, None, 0), (5, "d", 0), (6, "f", 0))
    ]  # fmt: skip


async def test_one_bad_file_among_many_is_the_one_that_is_named() -> None:
    bad = {"jsonl": b'{"n":"x"}\n', "csv": b"n,s\nx,a\n"}
    for kind, data in bad.items():
        async with Shelf() as shelf:
            contents = [USUAL[kind][0], data, USUAL[kind][2]]
            files = [await shelf.put(f"{number}.{kind}", one) for number, one in enumerate(contents)]
            with pytest.raises(UntrustedMetadata) as caught:
                await shelf.rows(files, task_of(SCHEMA))
            assert caught.value.path == f"1.{kind}"
            lenient = FailureOptions(on_corrupt="skip")
            found = await shelf.rows(
                files, ReadTask(schema=SCHEMA, url=URL, format=FormatOptions(header=True), failures=lenient)
            )
            assert [row["n"] for row in found] == [1, 2, 4]


async def test_a_small_file_that_holds_much_comes_in_pieces_from_one_request() -> None:
    data = b'{"n":1}\n' * 400_000
    async with Shelf() as shelf:
        file = await shelf.put("a.jsonl.gz", gzip.compress(data))
        assert file.size < 64 << 10
        batches = await shelf.read([file], ReadTask(schema=pa.schema([("n", pa.int64())]), url=URL))
        assert sum(batch.num_rows for batch in batches) == 400_000
        assert shelf.seen.paths == ["a.jsonl.gz"]


@checks("source:Q6")
@each_of("kind", ["jsonl", "csv", "text", "bin", "jsonl.gz", "parquet"])
async def test_small_files_are_held_to_their_version_and_to_settings_of_open_file(kind: str) -> None:
    plain = USUAL.get(kind.partition(".")[0], [b"n\n1\n"])[0]
    old = {"jsonl.gz": gzip.compress(plain), "parquet": parquet(pa.table({"n": [1]}))}.get(kind, plain)
    schema = {"text": TEXT.remove(TEXT.get_field_index("_rescued")), "bin": pa.schema([("content", pa.binary())])}.get(
        kind, SCHEMA
    )
    async with Shelf() as shelf:
        file = await shelf.put(f"a.{kind}", old)
        settings = {MUST + "fs.option.openfile.read.policy": "random"}
        header = FormatOptions(header=True)
        added: Any = {"schema": schema, "url": URL, "metadata": ("_file", "_offset")}
        task = ReadTask(**added, format=header, read=ReadOptions(open_file=settings))
        assert await shelf.rows([file], task) == await shelf.rows([file], ReadTask(**added, format=header))
        with pytest.raises(ConfigInvalid, match=r"fs\.unknown"):
            await shelf.rows(
                [file], ReadTask(schema=schema, url=URL, read=ReadOptions(open_file={MUST + "fs.unknown": "1"}))
            )
        # Another one: the footer of the first, and the data with it, are kept.
        file = await shelf.put(f"b.{kind}", old)
        await shelf.put(file.key, old[:-1] + b"x")
        with pytest.raises(ObjectChanged):
            await shelf.rows([file], task)


# --- fields that are known, and not wanted ----------------------------------------------------------------------------


@checks("source:Q7")
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
async def test_fields_that_a_projection_left_out_are_no_unknown_ones(kind: str) -> None:
    rows = [{"a": 1, "b": "x", "c": 2.5}, {"a": 2, "b": "y", "c": 0.5}]
    contents = {
        "jsonl": jsonl(rows),
        "csv": b"a,b,c\n1,x,2.5\n2,y,0.5\n",
        "parquet": parquet(pa.Table.from_pylist(rows)),
    }
    known = pa.schema([("a", pa.int64()), ("b", pa.string()), ("_file", pa.string())])
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number}.{kind}", contents[kind]) for number in range(2)]
        for policy in ("fail", "rescue"):
            options = FormatOptions(unknown_fields=policy, header=True)
            schema = pa.schema([("b", pa.string()), ("_rescued", pa.string())])
            everything = ReadTask(
                schema=schema, url=URL, format=options, known_schema=known.append(pa.field("c", pa.float64()))
            )
            found = await shelf.rows(files, everything)
            assert [(row["b"], row["_rescued"]) for row in found] == [("x", None), ("y", None)] * 2
        found = await shelf.rows(files, ReadTask(schema=schema, url=URL, format=options, known_schema=known))
        assert [row["_rescued"].replace(" ", "").replace('"2.5"', "2.5") for row in found[::2]] == ['{"c":2.5}'] * 2
        strict = ReadTask(
            schema=schema.remove(1),
            url=URL,
            format=FormatOptions(unknown_fields="fail", header=True),
            known_schema=known,
        )
        with pytest.raises(Unsupported, match="'c'"):
            await shelf.rows(files, strict)


async def test_columns_of_csv_without_a_header_are_counted_in_all_that_is_known() -> None:
    known = pa.schema([("a", pa.int64()), ("_file", pa.string()), ("b", pa.string()), ("c", pa.float64())])
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number}.csv", b"1,x,2.5\n2,y,0.5\n") for number in range(2)]
        schema = pa.schema([("c", pa.float64()), ("a", pa.int64())])
        task = ReadTask(schema=schema, url=URL, metadata=("_file",), known_schema=known)
        assert await shelf.rows(files, task) == [{"c": 2.5, "a": 1}, {"c": 0.5, "a": 2}] * 2


# --- Parquet ----------------------------------------------------------------------------------------------------------

TABLE = pa.table(
    {
        "n": pa.array([None if n % 7 == 0 else n for n in range(100)], pa.int32()),
        "d": pa.array([f"d{n % 3}" for n in range(100)]).dictionary_encode(),
        "l": pa.array([list(range(n % 4)) for n in range(100)]),
        "o": pa.array([{"x": n, "y": [{"z": str(n)}]} for n in range(100)]),
        "t": pa.array(range(100), pa.timestamp("ms", "UTC")),
    }
)


@pytest.mark.parametrize("columns", [TABLE.schema.names, ["t", "o"], ["d"], []])
@pytest.mark.parametrize("options", [{}, {"row_group_size": 30}, {"use_dictionary": False, "compression": "none"}])
async def test_small_parquet_files_give_what_a_scan_gives(
    columns: list[str], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = parquet(TABLE, **options)
    kinds = {"d": pa.string()}
    schema = pa.schema([(name, kinds.get(name, TABLE.schema.field(name).type)) for name in columns])
    schema = schema.append(pa.field("_offset", pa.int64()))
    async with Shelf() as shelf:
        file = await shelf.put("a.parquet", data)
        task = ReadTask(schema=schema, url=URL, metadata=("_offset",), read=ReadOptions(batch_rows=33))
        found = await shelf.rows([file], task)
        monkeypatch.setattr(parquet_format, "is_small", lambda *_: False)
        assert found == await shelf.rows([file], task)
        assert len(found) == 100


async def test_damaged_pages_of_small_parquet_files_are_the_errors_of_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    good = parquet(TABLE.select(["n", "l"]), compression="snappy")
    end = pq.read_metadata(pa.BufferReader(good)).serialized_size
    task = ReadTask(schema=pa.schema([("n", pa.int32()), ("l", pa.list_(pa.int64()))]), url=URL)

    async def outcome(data: bytes) -> Any:
        async with Shelf() as shelf:
            try:
                return await shelf.rows([await shelf.put("a.parquet", data)], task)
            except UntrustedMetadata as error:
                return "corrupt", error.path

    for place in range(4, len(good) - end - 8, 11):
        data = good[:place] + bytes([good[place] ^ 0x55]) + good[place + 1 :]
        with monkeypatch.context() as patch:
            here = await outcome(data)
            patch.setattr(parquet_format, "is_small", lambda *_: False)
            assert here == await outcome(data)
