"""Items read through the window: order, concurrency, memory, batches, metadata columns, filters, leaving early."""

import asyncio
import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import ConfigInvalid, Error, InvalidArgument, PermissionDenied, Unavailable
from aioprefetch.source.options import METADATA_COLUMNS, FormatOptions, ReadOptions
from aioprefetch.source.reading import ReadTask, read_items
from aioprefetch.source.values import FetchItem
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of, in_turns
from tests.stores.source_files import URL, Shelf, jsonl, parquet

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def rows_of(file: int, count: int) -> list[dict[str, Any]]:
    return [{"n": file * 1000 + row, "s": f"{file}/{row}"} for row in range(count)]


def data_of(kind: str, file: int, count: int) -> bytes:
    if kind == "parquet":
        return parquet(pa.Table.from_pylist(rows_of(file, count), schema=SCHEMA))
    return jsonl(rows_of(file, count))


def task_of(schema: pa.Schema = SCHEMA, **read: Any) -> ReadTask:
    return ReadTask(schema=schema, url=URL, metadata=METADATA_COLUMNS, read=ReadOptions(**read))


# --- the window -------------------------------------------------------------------------------------------------------


@pytest.mark.virtual
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_small_files_are_read_at_once_and_come_in_order(kind: str) -> None:
    """400 files, 20 ms each, 32 at once: as long as 12.5 of them one after the other."""
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number:04}.{kind}", data_of(kind, number, 2)) for number in range(400)]
        shelf.seen.latency_seconds = 0.02
        loop = asyncio.get_running_loop()
        start = loop.time()
        found = await shelf.rows(files, task_of(files_in_flight=32))
        took = loop.time() - start
        assert found == [row for number in range(400) for row in rows_of(number, 2)]
        assert took == pytest.approx(0.02 * 400 / 32, rel=0.1)
        assert shelf.seen.most_in_flight == 32
        assert sorted(shelf.seen.paths) == [file.key for file in files]  # One GET each.


@pytest.mark.virtual
async def test_one_slow_file_holds_back_rows_and_no_requests() -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number:04}.jsonl", data_of("jsonl", number, 2)) for number in range(100)]
        shelf.seen.latency_seconds = 0.02
        shelf.seen.slow["0000.jsonl"] = 10.0
        loop = asyncio.get_running_loop()
        start = loop.time()
        found = await shelf.rows(files, task_of(files_in_flight=4))
        assert found == [row for number in range(100) for row in rows_of(number, 2)]
        assert loop.time() - start == pytest.approx(10.0, rel=0.01)


@checks("reliability:C23")
async def test_a_slow_consumer_stops_the_reads() -> None:
    """What is decoded ahead stays within ``bytes_in_flight``."""
    async with Shelf() as shelf:
        data = parquet(pa.table({"n": pa.array(range(20_000)), "s": pa.nulls(20_000, pa.string())}))
        files = [await shelf.put(f"{number:04}.parquet", data) for number in range(60)]
        task = task_of(bytes_in_flight=2 << 20, batch_rows=20_000)
        batches = read_items(shelf.operator, [FetchItem(file) for file in files], task)
        first = await anext(batches)
        for _ in range(300):
            await asyncio.sleep(0)
        assert len(set(shelf.seen.paths)) < 30
        assert first.num_rows + sum([batch.num_rows async for batch in batches]) == 60 * 20_000
        assert len(set(shelf.seen.paths)) == 60


@pytest.mark.parametrize(("files_in_flight", "bytes_in_flight"), in_turns([1, 3, 64], [1, 1 << 20]))
async def test_every_window_gives_the_same_rows(bytes_in_flight: int, files_in_flight: int) -> None:
    """A window of one byte reads one item after the other."""
    async with Shelf() as shelf:
        files = []
        for number in range(30):
            kind = ("jsonl", "parquet")[number % 2]
            files.append(await shelf.put(f"{number:04}.{kind}", data_of(kind, number, number * 10)))
        task = task_of(files_in_flight=files_in_flight, bytes_in_flight=bytes_in_flight, batch_rows=64)
        assert await shelf.rows(files, task) == [row for number in range(30) for row in rows_of(number, number * 10)]
        assert shelf.operator.runtime().budget.used_bytes == 0 or bytes_in_flight > 1


@checks("reliability:P01", "reliability:P02")
async def test_a_task_that_is_run_again_gives_the_same_rows() -> None:
    """Also at once with itself, as an engine does with a slow task; nothing is left in the store."""
    async with Shelf() as shelf:
        items = [await shelf.put(f"{number}.jsonl", data_of("jsonl", number, 40)) for number in range(8)]
        task, keys = task_of(batch_rows=16), sorted(item.key for item in items)
        shelf.seen.failing["3.jsonl"] = Unavailable("no", operation="read", path="3.jsonl")
        with pytest.raises(Unavailable):
            await shelf.rows(items, task)
        shelf.seen.failing.clear()
        again, twin = await asyncio.gather(shelf.rows(items, task), shelf.rows(items, task))
        assert again == twin == [row for n in range(8) for row in rows_of(n, 40)]
        assert sorted([entry.path async for entry in shelf.operator.list("", recursive=True)]) == keys


@checks("reliability:P20")
@pytest.mark.virtual
async def test_left_early_everything_is_broken_off() -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number:04}.parquet", data_of("parquet", number, 50)) for number in range(50)]
        shelf.seen.latency_seconds = 0.02
        budget = shelf.operator.runtime().budget
        batches = read_items(shelf.operator, map(FetchItem, files), task_of(batch_rows=50, files_in_flight=8))
        await anext(batches)
        assert shelf.seen.in_flight > 0
        await batches.aclose()
        assert shelf.seen.in_flight == 0
        assert budget.used_bytes == 0
        for _ in range(3):  # A task that was cancelled while it waited.
            batches = read_items(shelf.operator, map(FetchItem, files), task_of(files_in_flight=8))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(batches)
            await batches.aclose()
            assert shelf.seen.in_flight == 0
            assert budget.used_bytes == 0


async def test_a_closed_operator_ends_the_reading() -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number:04}.jsonl", data_of("jsonl", number, 50)) for number in range(5)]
        shelf.seen.latency_seconds = 1000.0
        batches = read_items(shelf.operator, map(FetchItem, files), task_of())
        waiting = asyncio.ensure_future(anext(batches))
        for _ in range(20):
            await asyncio.sleep(0)
        await shelf.base.aclose()
        with pytest.raises(Error, match="closed"):
            await waiting


async def test_no_items_give_no_batches() -> None:
    async with Shelf() as shelf:
        assert await shelf.read([], task_of()) == []
        empty = [await shelf.put(f"empty.{kind}", b"") for kind in ("jsonl", "parquet", "text", "csv", "lance")]
        assert await shelf.read(empty, task_of()) == []
        assert shelf.seen.paths == []


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_small_batches_are_put_together_up_to_batch_rows(kind: str) -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number:04}.{kind}", data_of(kind, number, 3)) for number in range(200)]
        batches = await shelf.read(files, task_of(batch_rows=100))
        assert sum(batch.num_rows for batch in batches) == 600
        assert len(batches) <= 12
        assert all(50 <= batch.num_rows <= 100 for batch in batches[:-1])


async def test_metadata_columns_tell_file_offset_etag_and_time() -> None:
    metadata = [
        ("_mtime", pa.timestamp("us", "UTC")), ("_offset", pa.int64()), ("_file", pa.string()), ("_etag", pa.string())
    ]  # fmt: skip
    schema = pa.schema([metadata[0], SCHEMA.field("s"), *metadata[1:], SCHEMA.field("n")])
    async with Shelf() as shelf:
        files = []
        for number in range(6):
            kind = ("jsonl", "parquet")[number // 2 % 2]
            key, data = f"d/{number}.{kind}", data_of(kind, number, 3)
            files.append(await shelf.put(key, data, modified_ms=1_700_000_000_123 + number if number else None))
        found = await shelf.rows(files, task_of(schema))
    wanted = []
    for number, file in enumerate(files):
        position = 0
        for place, row in enumerate(rows_of(number, 3)):
            time = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC) + dt.timedelta(milliseconds=123 + number)
            wanted.append(
                row
                | {
                    "_file": f"{URL}/{file.key}",
                    "_etag": file.etag,
                    "_mtime": time if number else None,
                    "_offset": position if file.key.endswith("jsonl") else place,
                }
            )
            position += len(jsonl([row]))
    assert found == wanted


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_fields_of_files_keep_their_names_where_no_metadata_is_asked_for(kind: str) -> None:
    rows = [{"_file": "f", "_offset": n, "_etag": None, "_mtime": dt.date(2024, 1, n), "_metadata": n} for n in (1, 2)]
    schema = pa.schema(
        [
            ("_file", pa.string()), ("_offset", pa.int64()), ("_etag", pa.string()), ("_mtime", pa.date32()),
            ("_metadata", pa.int64()),
        ]
    )  # fmt: skip
    text = b"".join(b"%s\n" % json.dumps(row, default=str).encode() for row in rows)
    data = text if kind == "jsonl" else parquet(pa.Table.from_pylist(rows, schema))
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number}.{kind}", data) for number in range(3)]
        strict = FormatOptions(unknown_fields="fail")
        assert await shelf.rows(files, ReadTask(schema=schema, url=URL, format=strict)) == rows * 3
        some = pa.schema([("_offset", pa.int64()), ("_etag", pa.string())])
        task = ReadTask(schema=some, url=URL, metadata=("_etag",))
        assert await shelf.rows(files[:1], task) == [{"_offset": n, "_etag": files[0].etag} for n in (1, 2)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_the_struct_of_metadata_has_what_sparks_own_formats_have_and_more(kind: str) -> None:
    metadata = pa.struct(
        [
            ("file_path", pa.string()), ("file_name", pa.string()), ("file_size", pa.int64()),
            ("file_block_start", pa.int64()), ("file_block_length", pa.int64()),
            ("file_modification_time", pa.timestamp("us", "UTC")), ("etag", pa.string()), ("offset", pa.int64()),
        ]
    )  # fmt: skip
    schema = pa.schema([("_metadata", metadata), SCHEMA.field("n")])
    async with Shelf() as shelf:
        files = [
            await shelf.put(f"d/{number}.{kind}", data_of(kind, number, 2), modified_ms=1_700_000_000_123)
            for number in range(3)
        ]
        task = ReadTask(schema=schema, url=URL, metadata=("_metadata",))
        found = await shelf.rows(files, task)
        end = len(jsonl(rows_of(0, 1)))
        pieces = [FetchItem(files[0], 0, end), FetchItem(files[0], end)] if kind == "jsonl" else []
        cut = await shelf.rows(pieces, task)
    assert found == [
        {
            "_metadata": {
                "file_path": f"{URL}/{file.key}",
                "file_name": file.key.removeprefix("d/"),
                "file_size": file.size,
                "file_block_start": 0,
                "file_block_length": file.size,
                "file_modification_time": dt.datetime.fromtimestamp(1_700_000_000.123, dt.UTC),
                "etag": file.etag,
                "offset": row if kind == "parquet" else row * len(jsonl(rows_of(number, 1))),
            },
            "n": rows_of(number, 2)[row]["n"],
        }
        for number, file in enumerate(files)
        for row in range(2)
    ]
    blocks = [(row["_metadata"]["file_block_start"], row["_metadata"]["file_block_length"]) for row in cut]
    assert blocks == ([(0, end), (end, files[0].size - end)] if pieces else [])


async def test_metadata_columns_alone_and_no_columns_at_all() -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"{kind}.{kind}", data_of(kind, 1, 7)) for kind in ("jsonl", "parquet")]
        files += [await shelf.put(f"{kind}2.{kind}", data_of(kind, 1, 5)) for kind in ("jsonl", "parquet")]
        assert sum(batch.num_rows for batch in await shelf.read(files, task_of(pa.schema([])))) == 24
        found = await shelf.rows(files, task_of(pa.schema([("_file", pa.string())])))
        counts = {"jsonl.jsonl": 7, "parquet.parquet": 7, "jsonl2.jsonl": 5, "parquet2.parquet": 5}
        wanted = [name for name, count in counts.items() for _ in range(count)]
        assert [row["_file"].rpartition("/")[2] for row in found] == wanted


async def test_rescued_fields_of_every_format() -> None:
    schema = pa.schema([("n", pa.int64()), ("_rescued", pa.string())])
    options = FormatOptions(unknown_fields="rescue")
    async with Shelf() as shelf:
        files = [await shelf.put(f"{kind}.{kind}", data_of(kind, 0, 2)) for kind in ("jsonl", "parquet")]
        files.append(await shelf.put("more.jsonl", jsonl([{"n": 5}])))
        files.append(await shelf.put("none.parquet", parquet(pa.table({"n": [6], "s": pa.nulls(1, pa.string())}))))
        found = await shelf.rows(files, ReadTask(schema=schema, url=URL, format=options))
    texts = [row["_rescued"] and row["_rescued"].replace(" ", "") for row in found]
    assert texts == ['{"s":"0/0"}', '{"s":"0/1"}'] * 2 + [None, None]


# --- filters ----------------------------------------------------------------------------------------------------------


@each_of(
    ("filters", "keep"),
    [
        ([("n", ">=", 1001)], lambda row: row["n"] >= 1001),
        ([("N", "in", [1, 2001])], lambda row: row["n"] in (1, 2001)),
        ([("s", "=", "1/1")], lambda row: row["s"] == "1/1"),
        ([[("n", "<", 1)], [("s", ">", "2/1"), ("n", "!=", 2002)]], lambda row: row["n"] < 1 or row["n"] > 2002),
        ([("_file", "=", f"{URL}/1.x")], lambda row: row["n"] // 1000 == 1),
        ([("n", ">", "2001")], lambda row: row["n"] > 2001),
    ],
)  # fmt: skip
@each_of("kind", ["jsonl", "parquet"])
async def test_filters_mean_the_same_for_every_format(kind: str, filters: Any, keep: Any) -> None:
    schema = SCHEMA.append(pa.field("_file", pa.string()))
    chosen: Any = {"format": FormatOptions(format=kind), "read": ReadOptions(filters=filters)}
    task = ReadTask(schema=schema, url=URL, metadata=("_file",), **chosen)
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number}.x", data_of(kind, number, 4)) for number in range(4)]
        found = await shelf.rows(files, task)
    rows = [row for number in range(4) for row in rows_of(number, 4)]
    assert [{"n": row["n"], "s": row["s"]} for row in found] == [row for row in rows if keep(row)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_filters_on_columns_that_are_not_given_and_that_files_lack(kind: str) -> None:
    """Offsets count rows of the file, whatever is left of them."""
    schema = pa.schema([("s", pa.string()), ("_offset", pa.int64())])
    more = pa.schema([("n", pa.int64()), ("absent", pa.int64())])
    read = ReadOptions(filters=[[("n", ">", 1)], [("absent", "=", 1)]])
    task = ReadTask(schema=schema, url=URL, metadata=("_offset",), read=read, filter_schema=more)
    async with Shelf() as shelf:
        file = await shelf.put(f"0.{kind}", data_of(kind, 0, 4))
        found = await shelf.rows([file], task)
    starts = [2, 3] if kind == "parquet" else [2 * len(jsonl(rows_of(0, 1))), 3 * len(jsonl(rows_of(0, 1)))]
    assert found == [{"s": "0/2", "_offset": starts[0]}, {"s": "0/3", "_offset": starts[1]}]


async def test_invalid_filters_are_refused_before_any_request() -> None:
    async with Shelf() as shelf:
        file = await shelf.put("0.jsonl", data_of("jsonl", 0, 1))
        for filters in ([("nowhere", "=", 1)], [("n", "~", 1)], [("n", "=", "x")], "n = 1", [("s", ">", 1)]):
            with pytest.raises(InvalidArgument):
                await shelf.read([file], task_of(filters=filters))
        assert shelf.seen.paths == []


async def test_options_that_cannot_be_are_refused() -> None:
    for name in ("batch_rows", "files_in_flight", "bytes_in_flight"):
        with pytest.raises(ConfigInvalid, match=name):
            task_of(**{name: 0})


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_settings_of_openfile_are_checked_for_every_format(kind: str) -> None:
    prefix = "mapreduce.job.input.file."
    async with Shelf() as shelf:
        file = await shelf.put(f"0.{kind}", data_of(kind, 0, 2))
        known = {f"{prefix}must.fs.option.openfile.read.policy": "random", f"{prefix}option.fs.x": "1"}
        assert await shelf.rows([file], task_of(open_file=known)) == rows_of(0, 2)
        with pytest.raises(ConfigInvalid, match=r"fs\.x.*not a known key"):
            await shelf.rows([file], task_of(open_file={f"{prefix}must.fs.x": "1"}))


@checks("source:Q6")
async def test_an_archived_object_fails_with_what_to_do() -> None:
    """It is not missing: no policy passes over it."""
    async with Shelf() as shelf:
        file = await shelf.put("0.jsonl", data_of("jsonl", 0, 2))
        shelf.seen.failing["0.jsonl"] = PermissionDenied("the object is archived (GLACIER): restore it first")
        with pytest.raises(PermissionDenied, match="restore it first") as caught:
            await shelf.rows([file], task_of())
        assert caught.value.context["file"] == f"{URL}/0.jsonl"


async def test_a_file_that_comes_whole_leaves_no_blocks_behind() -> None:
    task = ReadTask(schema=pa.schema([("content", pa.binary())]), url=URL, format=FormatOptions(format="binary"))
    async with Shelf() as shelf:
        data = bytes(range(256)) * (80 << 10)  # More than two blocks.
        assert await shelf.rows([await shelf.put("large.bin", data)], task) == [{"content": data}]
        assert shelf.operator.runtime().budget.used_bytes == 0


@pytest.mark.virtual
async def test_files_that_come_whole_reserve_their_size() -> None:
    """Files of 1 MB, in memory twice each: six fit into 12.4 MB, and one of 8 MB is read alone."""
    schema = pa.schema([("length", pa.int64()), ("content", pa.binary())])
    task = ReadTask(
        schema=schema,
        url=URL,
        format=FormatOptions(format="binary"),
        read=ReadOptions(bytes_in_flight=(8 << 20) + 4_100_000, files_in_flight=8),
    )
    async with Shelf() as shelf:
        shelf.seen.latency_seconds = 0.02
        files = [await shelf.put(f"{number}.bin", bytes(1_000_000)) for number in range(8)]
        assert [row["length"] for row in await shelf.rows(files, task)] == [1_000_000] * 8
        assert shelf.seen.most_in_flight == 6
        shelf.seen.most_in_flight = 0
        large = [await shelf.put(f"large{number}.bin", bytes(8_000_000)) for number in range(2)]
        assert [row["length"] for row in await shelf.rows(large, task)] == [8_000_000] * 2
        assert shelf.seen.most_in_flight == 1
