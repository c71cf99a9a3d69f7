"""A schema that the user did not give, through the data source as Spark drives it: nothing is lost silently."""

import asyncio
import datetime as dt
import json
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.source.columns.casts import warn_of_no_zone
from aioprefetch.spark import AioPrefetchDataSource
from aioprefetch.spark.hadoop import SessionSettings
from aioprefetch.spark.registration import DefaultSource
from aioprefetch.testing import Fault, FaultServer, ReceivedRequest, Rule

Row = dict[str, Any]
dumped: Any = cloudpickle.dumps

HEADERLESS = {f"{n:02}.csv": "1,2\n" for n in range(15)} | {"06.csv": "1,2,3\n"}
WITH_HEADER = {f"{n:02}.csv": "id,v\n1,2\n" for n in range(15)} | {"06.csv": "id,v,w\n1,2,3\n"}
JSON_LINES = {f"{n:02}.json": f'{{"id": {n}}}\n' for n in range(15)} | {"06.json": '{"id": 6, "w": 3}\n'}
LATE = pytest.mark.parametrize(
    ("files", "options", "field"),
    [(JSON_LINES, {}, "w"), (WITH_HEADER, {"header": "true"}, "w"), (HEADERLESS, {}, "_c2")],
    ids=["json", "csv", "csv-without-header"],
)


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def source(root: Path, **options: str) -> DataSource:
    return of_kind(AioPrefetchDataSource, root, **options)


def of_kind(kind: type[DataSource], root: Path, **options: str) -> DataSource:
    given: Any = CaseInsensitiveDict({"path": str(root), **options})
    return kind(given)


def sent(one: Any) -> Any:
    """As it arrives in another process of Spark's."""
    return pickle.loads(dumped(one))


def batch(given: DataSource, schema: StructType | None = None) -> list[Row]:
    """The rows of a batch: its schema, its plan and its tasks, each in another process."""
    found: Any = given.schema() if schema is None else schema
    planned = sent(given).reader(found)
    reader = sent(planned)
    return [row for part in planned.partitions() for one in reader.read(sent(part)) for row in one.to_pylist()]


def first_batch_of_a_stream(given: DataSource) -> list[Row]:
    found: Any = given.schema()
    reader: Any = sent(given).streamReader(found)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    parts: list[InputPartition] = reader.partitions(start, end)
    rows = [row for part in parts for one in reader.read(part) for row in one.to_pylist()]
    reader.stop()
    return rows


def test_a_column_that_only_the_last_file_has_is_there(tmp_path: Path) -> None:
    write(tmp_path, {f"{n:02}.json": json.dumps({"id": n, **({"late": n} if n == 14 else {})}) for n in range(15)})
    assert [row["late"] for row in batch(source(tmp_path, inferSampleFiles="3"))] == [*14 * [None], 14]


@LATE
def test_few_small_files_are_all_sampled(
    tmp_path: Path, files: Mapping[str, str], options: dict[str, str], field: str
) -> None:
    write(tmp_path, files)
    rows = batch(source(tmp_path, **options))
    assert sorted(str(row[field]) for row in rows) == ["3", *14 * ["None"]]


@LATE
def test_a_field_that_the_sample_has_not_ends_a_batch(
    tmp_path: Path, files: Mapping[str, str], options: dict[str, str], field: str
) -> None:
    write(tmp_path, files)
    with pytest.raises(Unsupported, match=rf"'06\.\w+': the field '{field}'.*hint: .*raise inferSampleFiles"):
        batch(source(tmp_path, inferSampleFiles="3", **options))
    for chosen in ({"unknownFields": "ignore"}, {"columns": "_c0" if field == "_c2" else "id"}):
        rows = batch(source(tmp_path, inferSampleFiles="3", **options, **chosen))
        assert len(rows) == 15
        assert not any(field in row for row in rows)


@LATE
def test_an_unknown_field_is_warned_of_once_for_each_file_of_a_stream(
    tmp_path: Path, files: Mapping[str, str], options: dict[str, str], field: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "in", files)
    state = str(tmp_path / "state")
    with caplog.at_level(logging.WARNING, "aioprefetch"):
        rows = first_batch_of_a_stream(source(tmp_path / "in", inferSampleFiles="3", stateLocation=state, **options))
    assert len(rows) == 15
    warnings = [one.getMessage() for one in caplog.records if "does not have" in one.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("06.")
    assert repr(field) in warnings[0]


def test_a_schema_of_the_users_leaves_out_what_it_does_not_have(tmp_path: Path) -> None:
    write(tmp_path, JSON_LINES)
    assert len(batch(source(tmp_path), StructType([StructField("id", LongType())]))) == 15


def test_the_source_that_spark_finds_by_itself_does_the_same(tmp_path: Path) -> None:
    write(tmp_path, JSON_LINES)
    with pytest.raises(Unsupported, match="the field 'w'"):
        batch(of_kind(DefaultSource, tmp_path, inferSampleFiles="3"))


def test_times_without_a_zone_are_in_the_sessions_or_a_warning_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    write(tmp_path, {"a.csv": "2024-07-01 12:00:00\n"})

    class Registered(AioPrefetchDataSource):
        session = SessionSettings(time_zone="America/New_York")

    warn_of_no_zone.cache_clear()
    for kind, hour in ((Registered, 16), (DefaultSource, 12)):
        assert not caplog.records
        (row,) = batch(of_kind(kind, tmp_path, inferSchema="true"))
        assert row["_c0"] == dt.datetime(2024, 7, 1, hour, tzinfo=dt.UTC)
    assert "give the option timeZone, or call aioprefetch.spark.register(spark)" in caplog.text
    warn_of_no_zone.cache_clear()


def test_a_stray_file_takes_no_partition_column_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, dict.fromkeys(("k=1/a.json", "k=2/a.json", "readme.json"), '{"id": 1}\n'))
    assert [(row["id"], row["k"]) for row in batch(source(tmp_path))] == [(1, 1), (1, 2), (1, None)]
    assert "'readme.json' are in no name=value directory" in caplog.text


def test_partition_columns_of_two_depths_are_refused_with_both_paths(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(("k=1/a.json", "k=1/h=2/b.json"), '{"id": 1}\n'))
    with pytest.raises(UntrustedMetadata, match=r"'k=1/a\.json' has .*'k=1/h=2/b\.json' has k, h"):
        source(tmp_path).schema()


def test_a_stream_keeps_which_columns_are_of_directories(tmp_path: Path) -> None:
    write(tmp_path / "in", {"k=1/a.csv": "1,2\n", "stray.csv": "7,8\n"})
    state = str(tmp_path / "state")
    for _ in range(2):  # The second start has what the first one kept.
        given = source(tmp_path / "in", stateLocation=state, inferSchema="true")
        rows = first_batch_of_a_stream(given)
        assert sorted((row["_c0"], row["k"] or 0) for row in rows) == [(1, 1), (7, 0)]


LISTING = """<ListBucketResult><Name>bkt</Name><IsTruncated>false</IsTruncated><Contents><Key>in/a.json</Key>
<Size>9</Size><ETag>"f3e56c602771e9541aef61d502562b89"</ETag></Contents></ListBucketResult>"""


async def test_inference_and_the_plan_of_a_batch_outlast_a_store_that_fails() -> None:
    """Each listing fails more often than a request is sent elsewhere."""

    def is_list(request: ReceivedRequest) -> bool:
        return "list-type" in request.target

    def read(url: str) -> list[InputPartition]:
        options = {"endpointUrl": url, "accessKeyId": "k", "secretAccessKey": "s", "region": "us-east-1"}
        source = AioPrefetchDataSource({"path": "s3://bkt/in/", **options})
        return source.reader(source.schema()).partitions()

    failing = Rule(fault=Fault(status=500), matches=is_list, times=6)
    listing = Rule(fault=Fault(status=200, body=LISTING.encode()), matches=is_list, times=None)
    async with FaultServer({"bkt/in/a.json": b'{"id": 1}'}, [failing, listing]) as server:
        assert len(await asyncio.to_thread(read, server.url)) == 1
