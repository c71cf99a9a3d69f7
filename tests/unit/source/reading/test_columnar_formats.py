"""Parquet and Lance as formats of items: ranges, columns, types, versions; against pyarrow and pylance."""

import datetime as dt
import io
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioprefetch.errors import ObjectChanged, Unsupported, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.source.formats import can_split, format_of
from aioprefetch.source.formats.columnar import RowCounter
from aioprefetch.source.options import FormatOptions, ListOptions, PartitionOptions, ReadOptions
from aioprefetch.source.reading import ReadTask, list_files, plan_batch, read_items
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.testing.conformance.suite import checks
from tests.stores.dict_store import DictStore
from tests.stores.source_files import URL, Shelf, parquet

DEFAULTS = FormatOptions(), ReadOptions()
NUMBERS = pa.schema([("n", pa.int64()), ("_offset", pa.int64())])


def cut(file: SourceFile, cuts: list[int]) -> list[FetchItem]:
    """Items that meet and cover the file."""
    edges = [0, *sorted({one % (file.size + 1) for one in cuts}), file.size]
    return [FetchItem(file, start, end) for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("rows", [4000, 40_000], ids=["small file", "scan"])
async def test_batches_of_wide_rows_are_a_share_of_the_bytes_in_flight(rows: int) -> None:
    """Also of one text, over and over, which takes no room in the file."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * (16_000_000 // rows)]))
    schema = pa.schema([("text", pa.string())])
    in_flight = 4 << 20
    async with Shelf() as shelf:
        file = await shelf.put("k.parquet", parquet(pa.table({"text": texts})))
        task = ReadTask(schema=schema, url=URL, read=ReadOptions(bytes_in_flight=in_flight))
        sizes = [(one.num_rows, one.nbytes) async for one in read_items(shelf.operator, [FetchItem(file)], task)]
    assert sum(count for count, _ in sizes) == rows
    assert max(size for _, size in sizes) <= in_flight // 8


@checks("source:F5")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 60), st.integers(1, 25), st.booleans(), st.lists(st.integers(0, 10_000), max_size=6))
async def test_row_groups_belong_to_the_item_in_which_they_start(
    rows: int, group_rows: int, use_dictionary: bool, cuts: list[int]
) -> None:
    table = pa.table({"x": [f"{n % 3}" for n in range(rows)], "n": pa.array(range(rows), pa.int64())})
    data = parquet(table, row_group_size=group_rows, use_dictionary=use_dictionary)
    async with Shelf() as shelf:
        items = cut(await shelf.put("k.parquet", data), cuts)
        found = [await shelf.rows([item], ReadTask(schema=NUMBERS, url=URL, metadata=("_offset",))) for item in items]
    assert [row for rows in found for row in rows] == [{"n": n, "_offset": n} for n in range(rows)]
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    starts = []
    for number in range(metadata.num_row_groups):
        chunk = metadata.row_group(number).column(0)
        starts.append(chunk.dictionary_page_offset or chunk.data_page_offset)
    for item, rows_found in zip(items, found, strict=True):
        assert len(rows_found) == sum(
            metadata.row_group(number).num_rows
            for number, start in enumerate(starts)
            if item.start <= start < item.stop
        )


async def test_named_row_groups_count_whatever_the_bytes_say() -> None:
    async with Shelf() as shelf:
        file = await shelf.put("k.parquet", parquet(pa.table({"n": range(40)}), row_group_size=10))
        found = await shelf.rows(
            [FetchItem(file, 0, 1, (3, 1))], ReadTask(schema=NUMBERS, url=URL, metadata=("_offset",))
        )
    assert [row["_offset"] for row in found] == [*range(10, 20), *range(30, 40)]


async def test_only_wanted_columns_are_requested() -> None:
    wide = pa.table({f"c{n}": pa.array([f"{n}-{row}" * 20 for row in range(2000)]) for n in range(40)})
    async with Shelf() as shelf:
        data = parquet(wide, compression="none", use_dictionary=False)
        file = await shelf.put("k.parquet", data)
        await shelf.rows([file], ReadTask(schema=pa.schema([("C7", pa.string())]), url=URL))
        assert len(data) > 3 << 20
        assert shelf.operator.statistics["stream_read_total_bytes"] < len(data) / 4
        assert len(shelf.seen.paths) == 2


@pytest.mark.parametrize("rows", [300, 300_000])
async def test_page_checksums_are_verified(rows: int) -> None:
    """Of files that come whole with their footer, and of those that are scanned."""
    options = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    data = bytearray(parquet(pa.table({"n": pa.array(range(rows), pa.int64())}), **options))
    data[1000] ^= 1
    async with Shelf() as shelf:
        file = await shelf.put("k.parquet", bytes(data))
        with pytest.raises(UntrustedMetadata, match=r"k\.parquet.*column 'n'.*checksum"):
            await shelf.rows([file], ReadTask(schema=NUMBERS, url=URL, metadata=("_offset",)))


async def test_types_and_columns_of_files_differ() -> None:
    schema = pa.schema(
        [
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("s", pa.string()),
            ("t", pa.timestamp("us", "UTC")),
            ("st", pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ("l", pa.list_(pa.int64())),
        ]
    )
    time = dt.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
    whole = {"i": 1, "f": 1.5, "s": "x", "t": time, "st": {"a": 1, "b": "y"}, "l": [1, None]}
    narrow = pa.table(
        {
            "more": [0],
            "st": pa.array([{"B": "y", "a": 1}], pa.struct([("B", pa.large_string()), ("a", pa.int8())])),
            "L": pa.array([[1, None]], pa.large_list(pa.int16())),
            "t": pa.array([time], pa.timestamp("ns", "Europe/Paris")),
            "S": pa.array(["x"]).dictionary_encode(),
            "f": pa.array([1.5], pa.float32()),
            "i": pa.array([1], pa.int32()),
        }
    )
    async with Shelf() as shelf:
        files = [
            await shelf.put("0.parquet", parquet(pa.Table.from_pylist([whole], schema=schema))),
            await shelf.put("1.parquet", parquet(narrow)),
            await shelf.put("2.parquet", parquet(pa.table({"other": [1]}))),
        ]
        found = await shelf.rows(files, ReadTask(schema=schema, url=URL))
    assert found == [whole, whole, dict.fromkeys(schema.names)]


@pytest.mark.parametrize("version", ["1.0", "2.6"])
async def test_int96_is_an_instant_whatever_its_year(version: str) -> None:
    """As Spark writes its timestamps: years that nanoseconds of 64 bits do not hold, before 1970 too."""
    times = [
        dt.datetime(2024, 5, 6, 7, 8, 9, 123456), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999), None,
    ]  # fmt: skip
    table = pa.table({"t": pa.array(times, pa.timestamp("us")), "l": pa.array([[one] for one in times])})
    data = parquet(table, use_deprecated_int96_timestamps=True, store_schema=False, version=version)
    instant = pa.timestamp("us", "UTC")
    async with Shelf() as shelf:
        file = await shelf.put("k.parquet", data)
        sampled = await format_of(file.key, FormatOptions()).sample(shelf.operator, file, *DEFAULTS)
        assert [sampled.field("t").type, sampled.field("l").type.value_type] == [instant, instant]
        schema = pa.schema([("t", instant), ("l", pa.list_(instant))])
        found = await shelf.rows([file], ReadTask(schema=schema, url=URL))
    wanted = [None if one is None else one.replace(tzinfo=dt.UTC) for one in times]
    assert found == [{"t": one, "l": [one]} for one in wanted]


async def test_filters_leave_out_row_groups_and_no_row() -> None:
    data = parquet(pa.table({"n": range(100_000), "x": ["y" * 50] * 100_000}), row_group_size=10_000)
    read = ReadOptions(filters=[("n", ">=", 95_000)])
    async with Shelf() as shelf:
        file = await shelf.put("k.parquet", data)
        for schema in (pa.schema([("n", pa.int32())]), pa.schema([("n", pa.float64())]), NUMBERS):
            found = await shelf.rows([file], ReadTask(schema=schema, url=URL, read=read))
            assert [row["n"] for row in found] == list(range(95_000, 100_000))


async def test_unknown_columns_can_fail() -> None:
    task = ReadTask(schema=pa.schema([("n", pa.int64())]), url=URL, format=FormatOptions(unknown_fields="fail"))
    async with Shelf() as shelf:
        good = await shelf.put("good.parquet", parquet(pa.table({"n": [1]})))
        bad = await shelf.put("bad.parquet", parquet(pa.table({"n": [1], "m": [1]})))
        assert await shelf.rows([good], task) == [{"n": 1}]
        with pytest.raises(Unsupported, match=r"bad\.parquet.*'m'"):
            await shelf.rows([bad], task)


NESTED = pa.table(
    {
        "n": pa.array([1, 2, 3]),
        "s": pa.array([{"A": 1, "b": 2}, None, {"A": 3, "b": None}]),
        "l": pa.array([[{"x": {"y": 1, "z": 2.5}}, None], [], [{"x": None}]]),
        "m": pa.array(
            [[("k", {"a": 1, "q": b"\xff"})], None, []],
            pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("q", pa.binary())])),
        ),
        "d": pa.array([math.nan, -math.inf, None]),
        "h": pa.array([b"\x00\xff", None, None]),
    }
)
KNOWN = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.struct([("a", pa.int64())])),
        ("l", pa.list_(pa.struct([("x", pa.struct([("y", pa.int64())]))]))),
        ("m", pa.map_(pa.string(), pa.struct([("a", pa.int64())]))),
    ]
)


def lance_bytes(table: pa.Table, directory: Path) -> bytes:
    """A file of Lance."""
    lance_file = pytest.importorskip("lance.file")
    path = directory / "one.lance"
    with lance_file.LanceFileWriter(str(path), table.schema) as writer:
        writer.write_batch(table)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["parquet", "lance"])
async def test_unknown_fields_within_columns_are_unknown_too(kind: str, tmp_path: Path) -> None:
    table = NESTED if kind == "parquet" else NESTED.drop_columns(["m"])
    data = parquet(table) if kind == "parquet" else lance_bytes(table, tmp_path)
    known = pa.schema([field for field in KNOWN if field.name in table.column_names])
    async with Shelf() as shelf:
        file = await shelf.put(f"k.{kind}", data)
        within = r"'s\.b', 'l\[\]\.x\.z', " + (r"'m\.value\.q', " if kind == "parquet" else "")
        with pytest.raises(Unsupported, match=within + "'d', 'h', which the schema does not have"):
            await shelf.rows([file], ReadTask(schema=known, url=URL, format=FormatOptions(unknown_fields="fail")))
        for chosen in (known, known.remove(1)):
            task = ReadTask(
                schema=chosen.append(pa.field("_rescued", pa.string())),
                url=URL,
                format=FormatOptions(unknown_fields="rescue"),
                known_schema=None if chosen is known else known,
            )
            rows = await shelf.rows([file], task)
            first = {"s": {"b": 2}, "l": [{"x": {"z": 2.5}}, None], "d": "NaN", "h": "AP8="}
            more = {"m": [["k", {"q": "/w=="}]]} if kind == "parquet" else {}
            rescued = [one["_rescued"] and json.loads(one["_rescued"]) for one in rows]
            assert rescued == [first | more, {"d": "-Infinity"}, None]


async def test_another_size_is_another_version_where_there_are_no_etags() -> None:
    async with Shelf() as shelf:
        file = await shelf.put("k.parquet", parquet(pa.table({"n": [1]})))
        with pytest.raises(ObjectChanged):
            await shelf.rows(
                [SourceFile(file.key, file.size + 1)], ReadTask(schema=NUMBERS, url=URL, metadata=("_offset",))
            )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=5), st.lists(st.integers(0, 7), max_size=9))
def test_row_numbers_come_in_turn(pairs: list[tuple[int, int]], takes: list[int]) -> None:
    ranges, position = [], 0
    for gap, length in pairs:
        ranges.append((position + gap, position + gap + length))
        position += gap + length
    wanted = [row for start, end in ranges for row in range(start, end)]
    numbers = RowCounter(ranges)
    found = [row for count in takes for row in numbers.take(count).to_pylist()]
    assert found == wanted[: len(found)]
    assert len(found) == min(sum(takes), len(wanted))


# --- lance ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Two fragments of which rows were deleted."""
    lance = pytest.importorskip("lance")
    path = tmp_path_factory.mktemp("lance") / "d.lance"
    table = pa.table({"n": pa.array(range(100), pa.int64()), "s": [str(n) for n in range(100)]})
    made = lance.write_dataset(table, str(path), max_rows_per_file=60)
    made.delete("n % 10 = 3")
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def data_files(dataset: dict[str, bytes]) -> list[bytes]:
    """The data of the fragments."""
    return [data for path, data in sorted(dataset.items()) if path.startswith("data/")]


@pytest.mark.parametrize("root", ["", "tables/d.lance/"])
async def test_a_dataset_is_one_file_of_a_batch(dataset: dict[str, bytes], root: str) -> None:
    memory = Memory()
    async with Operator(memory) as operator:
        for path, data in dataset.items():
            await operator.write(root + path, data)
        options = FormatOptions(format="lance")
        (found,) = [file async for file in list_files(operator, options, glob="**/*.lance" if root else None)]
        assert (found.key, found.version) == (root, "2")
        half = found.size // 2
        task = ReadTask(schema=NUMBERS, url=URL, metadata=("_offset",), format=options)
        items = [FetchItem(found, 0, half), FetchItem(found, half)]
        rows = [row async for batch in read_items(operator, items, task) for row in batch.to_pylist()]
    assert [row["n"] for row in rows] == [n for n in range(100) if n % 10 != 3]
    assert [row["_offset"] for row in rows] == list(range(90))


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_datasets_are_found_in_every_order_of_a_listing(
    dataset: dict[str, bytes], seed: int | None, recursive: bool
) -> None:
    """Their data files are never read by themselves, which would bring back what was deleted."""
    objects = {f"{root}/{path}": data for root in ("x/a.lance", "x/b.lance") for path, data in dataset.items()}
    objects["x/a.lance.copy/one.lance"] = data_files(dataset)[0]
    names = sorted(objects)
    async with DictStore({name: objects[name] for name in names}, recursive=True, ordered=True).operator() as operator:
        expected = [file async for file in list_files(operator, FormatOptions(), glob="x/**")]
    assert [(file.key, file.version) for file in expected] == [
        ("x/a.lance.copy/one.lance", None),
        ("x/a.lance/", "2"),
        ("x/b.lance/", "2"),
    ]
    names = names[::-1] if seed is None else random.Random(seed).sample(names, len(names))
    async with DictStore({name: objects[name] for name in names}, recursive=recursive).operator() as operator:
        assert [file async for file in list_files(operator, FormatOptions(), glob="x/**")] == expected


@checks("source:F5")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 10_000), max_size=5))
async def test_ranges_of_a_lance_file_share_its_rows(
    dataset: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    lance_file = pytest.importorskip("lance.file")
    path = tmp_path_factory.mktemp("one") / "one.lance"
    async with Shelf() as shelf:
        for number, data in enumerate(data_files(dataset)):
            path.write_bytes(data)
            wanted = lance_file.LanceFileReader(str(path)).read_all().to_table()["n"].to_pylist()
            file = await shelf.put(f"{number}.lance", data)
            assert can_split(file, FormatOptions())
            found = await shelf.rows(cut(file, cuts), ReadTask(schema=NUMBERS, url=URL, metadata=("_offset",)))
            assert [row["n"] for row in found] == wanted
            assert [row["_offset"] for row in found] == list(range(len(wanted)))
            sampled: Any = await format_of(file.key, FormatOptions()).sample(shelf.operator, file, *DEFAULTS)
            assert sampled.names == ["n", "s"]


async def test_a_lance_file_is_read_at_its_version(dataset: dict[str, bytes]) -> None:
    data = data_files(dataset)[0]
    async with Shelf() as shelf:
        file = await shelf.put("0.lance", data)
        await shelf.put("0.lance", data)
        with pytest.raises(ObjectChanged):
            await shelf.rows([file], ReadTask(schema=NUMBERS, url=URL, metadata=("_offset",)))


async def test_statistics_drop_no_row_that_a_filter_keeps() -> None:
    """They leave out NaN, which is above all numbers; and nanoseconds are cut off before they are compared."""
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    table = pa.table(
        {
            "d": pa.array([1.0, math.nan, 2.0, 3.0]),
            "t": pa.array([int(at.timestamp()) * 10**9 + 123] * 4, pa.timestamp("ns", "UTC")),
        }
    )
    schema = pa.schema([("d", pa.float64()), ("t", pa.timestamp("us", "UTC"))])
    async with Shelf() as shelf:
        file = await shelf.put("a.parquet", parquet(table, row_group_size=2, write_page_index=True))
        for clause, rows in [
            (("d", ">", 5.0), 1),
            (("d", ">=", 3.0), 2),
            (("d", "=", math.nan), 1),
            (("d", "in", [math.nan, 3.0]), 2),
            (("d", "<", 2.0), 1),
            (("d", "<", math.nan), 3),
            (("t", "=", at), 4),
        ]:
            parts = await plan_batch(
                shelf.operator, ListOptions(), PartitionOptions(), FormatOptions(), schema=schema, filters=[clause]
            )
            task = ReadTask(schema=schema, url=URL, read=ReadOptions(filters=[clause]))
            assert len(await shelf.rows([item for part in parts for item in part], task)) == rows, clause
            assert len(await shelf.rows([file], task)) == rows, clause
