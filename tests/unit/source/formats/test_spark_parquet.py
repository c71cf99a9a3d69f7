"""Parquet files of Spark: types of its own, and dates of the old calendar."""

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import Unsupported
from aioprefetch.source.options import FormatOptions
from aioprefetch.source.reading import ReadTask, infer_schema, list_files
from tests.stores.source_files import URL, Shelf, parquet

VERSION = "org.apache.spark.version"
LEGACY = {VERSION: "4.0.0", "org.apache.spark.legacyDateTime": "", "org.apache.spark.legacyINT96": ""}
INSTANT = pa.timestamp("us", "UTC")
OLD, NEW = dt.datetime(1800, 1, 1), dt.datetime(1900, 1, 1)


def written(table: pa.Table, keys: dict[str, str], **options: Any) -> bytes:
    return parquet(table.replace_schema_metadata(keys), **options)


@pytest.mark.parametrize(
    ("array", "old", "new"),
    [
        (pa.date32(), dt.date(1582, 10, 14), dt.date(1582, 10, 15)),
        (INSTANT, OLD, NEW),
        (pa.list_(INSTANT), [NEW, OLD], [NEW]),
        (pa.struct([("x", pa.date32())]), {"x": dt.date(1500, 1, 1)}, {"x": None}),
        (pa.map_(pa.string(), pa.date32()), [("k", dt.date(1500, 1, 1))], [("k", None)]),
    ],
)
async def test_values_of_the_old_calendar_are_refused_where_they_occur(array: pa.DataType, old: Any, new: Any) -> None:
    schema = pa.schema([("n", pa.int64()), ("c", array)])
    task = ReadTask(schema=schema, url=URL)
    async with Shelf() as shelf:

        async def rows(value: Any, keys: dict[str, str], **options: Any) -> list[Any]:
            table = pa.table({"n": [1, 2], "c": pa.array([value, None], array)})
            file = await shelf.put("a.parquet", written(table, keys, **options))
            return [row["n"] for row in await shelf.rows([file], task)]

        for keys in (LEGACY, {VERSION: "2.4.8"}):
            with pytest.raises(Unsupported, match=r"'a.parquet': column 'c' has dates before 1582"):
                await rows(old, keys)
            assert await rows(new, keys) == [1, 2]
        for keys in ({}, {VERSION: "3.0.0"}, {"org.apache.spark.legacyDateTime": ""}):
            assert await rows(old, keys) == [1, 2]
        file = await shelf.put(
            "a.parquet", written(pa.table({"n": [1] * 50_000, "c": pa.array([old] * 50_000, array)}), LEGACY)
        )
        with pytest.raises(Unsupported, match="'c' has dates"):
            await shelf.rows([file], task)
        assert len(await shelf.rows([file], ReadTask(schema=schema.remove(1), url=URL))) == 50_000


async def test_times_of_96_bits_have_a_key_of_their_own() -> None:
    schema = pa.schema([("t", INSTANT)])
    async with Shelf() as shelf:
        for keys, value, is_refused in [
            (LEGACY, OLD, True),
            (LEGACY, NEW, False),
            ({VERSION: "3.0.3"}, OLD, True),
            ({VERSION: "3.1.0", "org.apache.spark.legacyDateTime": ""}, OLD, False),
        ]:
            table = pa.table({"t": pa.array([value], pa.timestamp("us"))})
            file = await shelf.put("a.parquet", written(table, keys, use_deprecated_int96_timestamps=True))
            if is_refused:
                with pytest.raises(Unsupported, match="'t' has dates"):
                    await shelf.rows([file], ReadTask(schema=schema, url=URL))
            else:
                assert len(await shelf.rows([file], ReadTask(schema=schema, url=URL))) == 1


async def test_wall_clocks_are_of_no_calendar_but_todays() -> None:
    async with Shelf() as shelf:
        table = pa.table({"t": pa.array([OLD], pa.timestamp("us"))})
        file = await shelf.put("a.parquet", written(table, LEGACY))
        assert await shelf.rows([file], ReadTask(schema=table.schema, url=URL)) == [{"t": OLD}]


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("variant", "VARIANT"),
        ("interval day to second", "INTERVAL DAY TO SECOND"),
        ({"type": "array", "elementType": "interval year", "containsNull": True}, "INTERVAL YEAR"),
        ({"type": "struct", "fields": [{"name": "x", "type": "variant"}]}, "VARIANT"),
    ],
)
async def test_types_that_only_spark_reads_are_refused(kind: Any, shown: str) -> None:
    fields = [{"name": "interval", "type": "long"}, {"name": "v", "type": kind}]
    keys = {"org.apache.spark.sql.parquet.row.metadata": json.dumps({"type": "struct", "fields": fields})}
    async with Shelf() as shelf:
        file = await shelf.put("a.parquet", written(pa.table({"interval": [1], "v": [2]}), keys))
        options = FormatOptions()
        with pytest.raises(Unsupported, match=f"column 'v' is {shown}"):
            await infer_schema(shelf.operator, list_files(shelf.operator, options), options)
        with pytest.raises(Unsupported, match=f"column 'v' is {shown}"):
            await shelf.rows([file], ReadTask(schema=pa.schema([("v", pa.int64())]), url=URL))
        assert await shelf.rows([file], ReadTask(schema=pa.schema([("interval", pa.int64())]), url=URL)) == [
            {"interval": 1}
        ]
