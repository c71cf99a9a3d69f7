"""The streaming source in a session: exactly once over restarts, triggers and limits, inference, and a state in S3."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from aioprefetch.errors import ConfigInvalid
from aioprefetch.spark import read, register, stream
from aioprefetch.testing import CountingS3Server
from tests.profile import chosen
from tests.spark.files import SCHEMA, expected, records, rows, write_jsonl

pytestmark = pytest.mark.spark


class Query:
    """A stream of JSON lines into Parquet, run to its end each time."""

    def __init__(self, spark: SparkSession, home: Path, **options: Any) -> None:
        self.spark, self.source, self.sink = spark, home / "source", home / "sink"
        self.source.mkdir(exist_ok=True)
        self._checkpoint = home / "checkpoint"
        self._options = {"schema": SCHEMA, "format": "jsonl", "list_interval_seconds": 0, **options}

    def frame(self) -> DataFrame:
        return stream(self.spark, str(self.source), checkpoint=str(self._checkpoint), **self._options)

    def run(self) -> list[int]:
        """The rows of each batch of one run."""
        writer = self.frame().writeStream.format("parquet").option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start(str(self.sink))
        query.awaitTermination()
        return [one["numInputRows"] for one in progress(query) if one["numInputRows"]]

    def delivered(self) -> list[tuple[Any, ...]]:
        return rows(self.spark.read.schema(SCHEMA).parquet(str(self.sink)))


def progress(query: Any) -> list[dict[str, Any]]:
    return [json.loads(one.json) for one in query.recentProgress]


def test_exactly_once_over_batches_restarts_and_other_limits(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, max_files_per_trigger=2)
    for n in range(1, 6):
        write_jsonl(query.source / f"part-{n}.jsonl", records(10 * n, 10 * n + 10))
    assert query.run() == [20, 20, 10]
    write_jsonl(query.source / "part-0.jsonl", records(0, 10))  # sorts first, comes late
    write_jsonl(query.source / "part-6.jsonl", records(60, 70))
    write_jsonl(query.source / "part-7.jsonl", records(70, 80))
    os.utime(query.source / "part-7.jsonl", (4e9, 4e9))  # not there yet, as the store's clock has it
    assert sum(query.run()) == 20
    # Other limits hold from the next start on: a file above the limit of bytes comes in pieces.
    query = Query(spark, tmp_path, max_bytes_per_trigger="16k")
    write_jsonl(query.source / "part-7.jsonl", records(70, 1070))
    assert len(query.run()) > 2
    assert query.delivered() == expected(0, 1070)


def test_a_stream_that_keeps_running_finds_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path)
    running = query.frame().writeStream.format("memory").queryName("landed").start()
    try:
        running.processAllAvailable()
        assert spark.table("landed").count() == 0
        write_jsonl(query.source / "b.jsonl", records(10, 20))
        running.processAllAvailable()
        write_jsonl(query.source / "a.jsonl", records(0, 10))
        running.processAllAvailable()
        assert rows(spark.table("landed")) == expected(0, 20)
        last = [one["sources"][0]["endOffset"] for one in progress(running)][-1]
        assert list(last) == ["v", "state", "seq", "files", "bytes"]
    finally:
        running.stop()


def test_an_inferred_schema_survives_what_comes_later(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, schema=None, columns=["name", "id"], metadata_columns=["_offset"])
    with pytest.raises(PySparkException, match="there are no files"):
        query.frame()
    write_jsonl(query.source / "b.jsonl", records(0, 3))
    first = query.frame().schema
    assert first.names == ["name", "id", "_offset"]
    write_jsonl(query.source / "a.jsonl", [{"other": 1}])
    assert query.frame().schema == first


def test_what_is_missing_is_named(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    frame = spark.readStream.format("aioprefetch").schema(SCHEMA).load(str(tmp_path))
    with pytest.raises(PySparkException, match=r"stateLocation.*aioprefetch\.spark\.stream"):
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
    with pytest.raises(ConfigInvalid, match="readStream with the option stateLocation"):
        stream(spark, "/data", checkpoint="/c", state_location="/s")  # type: ignore[call-arg]


@pytest.fixture
def bucket(
    spark: SparkSession, s3_server: CountingS3Server, random_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """A bucket whose endpoint and keys are settings of S3A in the session, and a client for it."""
    keys = {"endpoint": s3_server.endpoint_url, "access.key": "AKIDTEST", "secret.key": "SECRETTEST"}
    name = random_name()
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        aws_access_key_id="AKIDTEST",
        aws_secret_access_key="SECRETTEST",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=name)
    for key, value in keys.items():
        spark.conf.set(f"spark.hadoop.fs.s3a.bucket.{name}.{key}", value)
    yield name, client
    for key in keys:
        spark.conf.unset(f"spark.hadoop.fs.s3a.bucket.{name}.{key}")
    client.close()


def test_source_and_state_in_s3_by_the_settings_of_s3a(
    spark: SparkSession, bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, client = bucket
    for n in range(4):
        write_jsonl(tmp_path / "one.jsonl", records(10 * n, 10 * n + 10))
        client.upload_file(str(tmp_path / "one.jsonl"), name, f"landing/part-{n}.jsonl")
    assert rows(read(spark, f"s3a://{name}/landing/part-[01].jsonl")) == expected(0, 20)
    register(spark)
    frame = (
        spark.readStream.format("aioprefetch")
        .option("stateLocation", f"s3://{name}/state")
        .option("maxFilesPerTrigger", 3)
        .load(f"s3://{name}/landing")
    )
    for _ in range(chosen(quick=1, full=2)):
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "sink")).awaitTermination()
    assert rows(spark.read.schema(SCHEMA).parquet(str(tmp_path / "sink"))) == expected(0, 40)
    kept = {one["Key"] for one in client.list_objects_v2(Bucket=name, Prefix="state/")["Contents"]}
    assert {"state/meta.json", "state/schema.json"} <= kept
    frame.explain("extended")
    assert "SECRETTEST" not in capsys.readouterr().out
