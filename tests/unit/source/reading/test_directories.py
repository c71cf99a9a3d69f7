"""Files in ``name=value`` directories: their values in batches, schemas, filters and plans, of every format."""

import itertools
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.options import FailureOptions, FormatOptions, ListOptions, PartitionOptions, ReadOptions
from aioprefetch.source.reading import ReadTask, infer_schema, list_files, plan_batch
from tests.stores.source_files import URL, Shelf, jsonl, parquet

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int32()), ("v", pa.string())])


def data_of(kind: str, number: int) -> bytes:
    row = {"id": number, "v": f"v{number}"}
    if kind == "parquet":
        return parquet(pa.Table.from_pylist([row]))
    return jsonl([row]) if kind == "jsonl" else f"id,v\n{number},v{number}\n".encode()


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "csv without header"])
async def test_values_in_directories_are_columns(kind: str) -> None:
    """Small files of one layout are parsed together, whatever their values are."""
    suffix = kind.split()[0]
    options = FormatOptions(header=kind == "csv", unknown_fields="fail")
    async with Shelf() as shelf:
        files = []
        for number in range(6):
            data = data_of(suffix, number)
            place = "__HIVE_DEFAULT_PARTITION__" if number == 3 else str(number % 2)
            data = data.partition(b"\n")[2] if kind == "csv without header" else data
            files.append(await shelf.put(f"k={place}/{number}.{suffix}", data))
        found = await shelf.rows(files, ReadTask(schema=SCHEMA, url=URL, format=options))
        assert found == [{"id": n, "k": None if n == 3 else n % 2, "v": f"v{n}"} for n in range(6)]
        found = await shelf.rows(
            files[:2], ReadTask(schema=pa.schema([("k", pa.string())]), url=URL, format=FormatOptions(header=True))
        )
        if kind != "csv without header":
            assert found == [{"k": "0"}, {"k": "1"}]


@pytest.mark.parametrize(
    ("zone", "offsets"), [("America/New_York", (-17_762, -18_000)), ("Asia/Tokyo", (33_539, 32_400))]
)
async def test_both_ends_of_the_calendar_are_values_in_every_zone(zone: str, offsets: tuple[int, int]) -> None:
    """Together with others, and by a filter: in UTC they may lie in the year 0 or 10000."""
    texts = ("0001-01-01 00:00:00", "9999-12-31 23:59:59")
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    async with Shelf() as shelf:
        directories = (f"t={text.replace(':', '%3A')}" for text in texts)
        files = [await shelf.put(f"{place}/a.txt", b"x\n") for place in directories]
        instants = []
        for filters in (None, [("t", ">", "9999-12-31 23:59:58")]):
            read = ReadOptions(filters=filters)
            batches = await shelf.read(
                files, ReadTask(schema=schema, url=URL, format=FormatOptions(time_zone=zone), read=read)
            )
            instants.append([one for batch in batches for one in batch.column(0).cast(pa.int64()).to_pylist()])
    wanted = [
        (seconds - offset) * 1_000_000
        for seconds, offset in zip((-62_135_596_800, 253_402_300_799), offsets, strict=True)
    ]
    assert instants == [wanted, wanted[1:]]


async def test_text_and_binary_have_them_too() -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"k={n}/{n}.txt", b"line\n") for n in range(2)]
        for format_name, column, value in (
            ("text", pa.field("value", pa.string()), "line"),
            ("binary", pa.field("content", pa.binary()), b"line\n"),
        ):
            task = ReadTask(
                schema=pa.schema([("k", pa.int64()), column]), url=URL, format=FormatOptions(format=format_name)
            )
            assert await shelf.rows(files, task) == [{"k": n, column.name: value} for n in range(2)]


async def test_a_directory_wins_over_the_file_as_in_spark() -> None:
    async with Shelf() as shelf:
        rows = [{"id": 1, "k": 7, "v": "x"}]
        files = [await shelf.put("k=1/a.jsonl", jsonl(rows)), await shelf.put("b.jsonl", jsonl(rows))]
        task = ReadTask(schema=SCHEMA, url=URL, format=FormatOptions(unknown_fields="fail"))
        assert [row["k"] for row in await shelf.rows(files, task)] == [1, 7]


async def test_a_value_that_does_not_fit_names_key_and_column() -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"k={text}/a.jsonl", jsonl([{"id": 1}])) for text in ("1", "x")]
        with pytest.raises(UntrustedMetadata, match=r"'k=x/a.jsonl': column 'k' is 'x' in a directory"):
            await shelf.rows(files, ReadTask(schema=SCHEMA, url=URL))
        skipping = ReadTask(schema=SCHEMA, url=URL, failures=FailureOptions(on_corrupt="skip"))
        assert [row["k"] for row in await shelf.rows(files, skipping)] == [1]


async def test_they_are_inferred_at_the_end() -> None:
    async with Shelf() as shelf:
        for number in range(30):
            await shelf.put(f"day=2024-01-{number + 1:02}/k={number}/a.jsonl", jsonl([{"id": number}]))
        options = FormatOptions(sample_files=3)
        inferred = await infer_schema(shelf.operator, list_files(shelf.operator, options), options)
        assert inferred.schema == pa.schema([("id", pa.int64()), ("day", pa.date32()), ("k", pa.int64())])
        assert inferred.directories == ("day", "k")
        assert len(set(shelf.seen.paths)) == 3
        await shelf.put("day=2024-01-30/k=x/a.jsonl", jsonl([{"id": 1}]))
        inferred = await infer_schema(shelf.operator, list_files(shelf.operator, options), options)
        assert inferred.schema.field("k").type == pa.string()


@pytest.mark.parametrize(("suffix", "data", "names"), [
    ("jsonl", b'{"id": 1}\n', ["id"]), ("csv", b"1,2\n", ["_c0", "_c1", "_c2"]), ("txt", b"1,2\n", ["value"]),
])  # fmt: skip
async def test_a_file_outside_of_directories_takes_no_column_away(
    suffix: str, data: bytes, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"{key}.{suffix}", data) for key in ("k=1/a", "k=2/a")]
        files.append(await shelf.put(f"readme.{suffix}", b"7,8,9\n" if suffix != "jsonl" else data))
        options = FormatOptions()
        inferred = await infer_schema(shelf.operator, list_files(shelf.operator, options), options)
        assert inferred.schema.names == [*names, "k"]
        assert f"'readme.{suffix}' are in no name=value directory, as 'k=1/a.{suffix}' is" in caplog.text
        task = ReadTask(
            schema=inferred.schema,
            url=URL,
            format=FormatOptions(unknown_fields="fail"),
            directory_columns=inferred.directories,
        )
        assert [row["k"] for row in await shelf.rows(files, task)] == [1, 2, None]


async def test_keys_with_a_literal_star_may_be_missing() -> None:
    """A source that finds nothing is empty, also where its prefix looks like a pattern."""
    async with Shelf() as shelf:
        for glob in ("a[*]b/*.jsonl", "a[*]b/c.jsonl"):
            assert [one async for one in list_files(shelf.operator, FormatOptions(), glob=glob)] == []
        await shelf.put("a*b/c.jsonl", jsonl([{"id": 1}]))
        found = [one.key async for one in list_files(shelf.operator, FormatOptions(), glob="a[*]b/*.jsonl")]
        assert found == ["a*b/c.jsonl"]


FILTERS: list[tuple[Any, list[int]]] = [
    ([("k", "=", 1)], [1]),
    ([("k", "in", [0, 2]), ("id", ">", 0)], [2]),
    ([[("k", "=", 1)], [("k", ">", 1), ("v", "=", "v2")]], [1, 2]),
]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(("filters", "kept"), FILTERS)
async def test_filters_leave_files_out_of_plan_and_reading(kind: str, filters: Any, kept: list[int]) -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"k={n}/a.{kind}", data_of(kind, n)) for n in range(4)]
        task = ReadTask(schema=SCHEMA, url=URL, read=ReadOptions(filters=filters))
        assert [row["id"] for row in await shelf.rows(files, task)] == kept
        assert not [path for path in shelf.seen.paths if path.startswith("k=3") and kept == [1]]
        parts = await plan_batch(
            shelf.operator, ListOptions(), PartitionOptions(), FormatOptions(), schema=SCHEMA, filters=filters
        )
        planned = [item.file.key for item in itertools.chain(*parts)]
        assert {f"k={n}/a.{kind}" for n in kept} <= set(planned)
        assert "k=0/a.jsonl" not in planned or 0 in (filters[0][2] if isinstance(filters[0], tuple) else ())


async def test_statistics_of_a_column_that_a_directory_tells_drop_nothing() -> None:
    async with Shelf() as shelf:
        await shelf.put("k=1/a.parquet", parquet(pa.table({"id": [1], "k": pa.array([7], pa.int32()), "v": ["x"]})))
        parts = await plan_batch(
            shelf.operator, ListOptions(), PartitionOptions(), FormatOptions(), schema=SCHEMA, filters=[("k", "=", 1)]
        )
        items = list(itertools.chain(*parts))
        task = ReadTask(schema=SCHEMA, url=URL, read=ReadOptions(filters=[("k", "=", 1)]))
        assert await shelf.rows(items, task) == [{"id": 1, "k": 1, "v": "x"}]


async def test_explicit_small_targets_are_kept_to() -> None:
    async with Shelf() as shelf:
        await shelf.put("a.csv", b"12345\n" * 10_000)
        options = PartitionOptions(target_bytes=10_000, slots=1)
        parts = await plan_batch(shelf.operator, ListOptions(), options, FormatOptions())
        assert len(parts) == 6
        assert max(item.bytes for item in itertools.chain(*parts)) == 10_000
