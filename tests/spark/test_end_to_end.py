"""Whole queries: streams of every format, what becomes of files that change, cleaning, keys, and a cancelled job."""

import asyncio
import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from aioprefetch.spark import map_batches, read, register, stream
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks
from tests.spark.conftest import BUILT_IN_BUCKET, BUILT_IN_SECRET
from tests.spark.files import SCHEMA, records, rows, write_csv, write_jsonl, write_lance

pytestmark = pytest.mark.spark

SECRETS = ("AKIDOFANOPTION", "SECRETOFANOPTION", "TOKENOFANOPTION", BUILT_IN_SECRET)
WAIT_SECONDS_MAX = 60.0


def zstd(data: bytes) -> bytes:
    compressed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return compressed


def jsonl(start: int, stop: int) -> bytes:
    return "".join(f"{json.dumps(one)}\n" for one in records(start, stop)).encode()


def run_once(frame: DataFrame, home: Path) -> list[tuple[Any, ...]]:
    """Deliver what is there, and all rows that were delivered so far."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(home / "checkpoint"))
    writer.trigger(availableNow=True).start(str(home / "sink")).awaitTermination()
    return rows(frame.sparkSession.read.schema(frame.schema).parquet(str(home / "sink")))


def test_a_stream_of_each_format(spark: SparkSession, tmp_path: Path) -> None:
    """All in one query: those with records in one source, by their suffixes, text and bytes in one each."""
    register(spark)
    mixed, text, binary = (tmp_path / name for name in ("mixed", "text", "binary"))
    for place in (mixed, text, binary):
        place.mkdir()
    write_csv(mixed / "a.csv", records(0, 2))
    (mixed / "b.jsonl.gz").write_bytes(gzip.compress(jsonl(2, 4)))
    (mixed / "c.jsonl.zst").write_bytes(zstd(jsonl(4, 6)))
    write_lance(mixed / "d.lance", records(6, 8))
    (text / "a.txt").write_text("one\ntwo\n")
    (binary / "a.bin").write_bytes(b"123")
    frames: list[DataFrame] = []
    for place, column in ((mixed, "id"), (text, "value"), (binary, "length")):
        reader = spark.readStream.format("aioprefetch").option("stateLocation", str(tmp_path / "state" / place.name))
        reader = reader.option("listIntervalSeconds", "0")
        reader = reader.option("openfile.option.fs.option.openfile.read.policy", "random")
        reader = (
            reader.schema(SCHEMA).option("header", "true") if place is mixed else reader.option("format", place.name)
        )
        value = f"cast({column} as string) as value"
        frames.append(reader.load(str(place)).selectExpr(f"'{place.name}' as kind", value))
    expected = {"mixed": [str(n) for n in range(8)], "text": ["one", "two"], "binary": ["3"]}
    assert run_once(reduce(DataFrame.union, frames), tmp_path) == sorted(
        (kind, value) for kind, values in expected.items() for value in values
    )


@checks("reliability:P07", "reliability:P08")
def test_files_that_change_between_planning_and_reading(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for n, name in enumerate("abc"):
        write_jsonl(source / f"{name}.jsonl", records(10 * n, 10 * n + 2))

    def frame(**options: Any) -> DataFrame:
        options = {"schema": "id bigint", "list_interval_seconds": 0, "overwrites": "reread", **options}
        return stream(spark, str(source / "*"), checkpoint=str(tmp_path / "checkpoint"), **options)

    # Said when a file is opened: the batch is planned, and nothing of it was delivered.
    with pytest.raises(StreamingQueryException, match=r"unheard\.of"):
        run_once(frame(**{"openfile.must.unheard.of": "1"}), tmp_path)
    (source / "b.jsonl").unlink()
    write_jsonl(source / "c.jsonl", records(25, 28))
    found = run_once(frame(on_missing="skip", on_changed="quarantine"), tmp_path)
    assert found == [(0,), (1,), (25,), (26,), (27,)]
    (dead,) = (tmp_path / "checkpoint" / "aioprefetch" / "dead").iterdir()
    assert [json.loads(line)["key"] for line in dead.read_text().splitlines()] == ["c.jsonl"]


def test_files_are_deleted_behind_the_batches_that_were_committed(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for n in range(3):
        write_jsonl(source / f"{n}.jsonl", records(n, n + 1))
    frame = stream(
        spark,
        str(source),
        checkpoint=str(tmp_path / "checkpoint"),
        schema="id bigint",
        clean_source="delete",
        max_files_per_trigger=1,
    )
    assert run_once(frame, tmp_path) == [(0,), (1,), (2,)]
    # Committed is what the engine has gone on from: the last batch is not yet.
    assert not (source / "0.jsonl").exists()
    assert (source / "2.jsonl").exists()


@pytest.fixture
def built_in(s3_server: CountingS3Server) -> Iterator[str]:
    """The bucket that the session was built with settings for, with a file in it."""
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
    client = boto3.client("s3", endpoint_url=s3_server.endpoint_url, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=BUILT_IN_BUCKET)
    client.put_object(Bucket=BUILT_IN_BUCKET, Key="in/a.jsonl", Body=jsonl(0, 3))
    yield f"s3a://{BUILT_IN_BUCKET}/in"
    client.close()


@checks("reliability:K06")
def test_keys_of_the_builder_are_used_and_no_key_is_in_the_event_log(
    spark: SparkSession, built_in: str, event_log: Path, s3_server: CountingS3Server, tmp_path: Path
) -> None:
    assert rows(read(spark, built_in, schema="id bigint")) == [(0,), (1,), (2,)]
    options: dict[str, Any] = {
        "access_key_id": SECRETS[0],
        "secret_access_key": SECRETS[1],
        "session_token": SECRETS[2],
    }
    s3_server.reset()
    assert read(spark, built_in, schema="id bigint", **options).count() == 3
    assert {request.access_key_id for request in s3_server.requests} == {SECRETS[0]}
    frame = stream(spark, built_in, checkpoint=str(tmp_path / "checkpoint"), schema="id bigint, name string", **options)
    assert [row[0] for row in run_once(frame, tmp_path)] == [0, 1, 2]
    (log,) = event_log.iterdir()
    text = log.read_text()
    assert BUILT_IN_BUCKET in text
    assert "SparkListenerSQLExecutionStart" in text
    assert [secret for secret in SECRETS if secret in text] == []
    kept = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert [path for path in kept for secret in SECRETS if secret.encode() in path.read_bytes()] == []


def test_a_job_that_is_cancelled_inside_map_batches_leaves_no_worker(spark: SparkSession, tmp_path: Path) -> None:
    begun = str(tmp_path / "begun")

    def note() -> None:
        with open(f"{begun}.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{begun}.part", begun)

    async def never(batch: pa.RecordBatch) -> pa.RecordBatch:
        note()
        await asyncio.Event().wait()
        return batch

    ended: list[str] = []

    def job() -> None:
        spark.sparkContext.setJobGroup("stuck", "waits for ever", interruptOnCancel=True)
        try:
            spark.range(0, 10, 1, 1).mapInArrow(map_batches(never), "id long").collect()
        except Exception as error:
            ended.append(str(error))

    thread = InheritableThread(target=job)
    thread.start()
    wait_until(lambda: os.path.exists(begun))
    with open(begun) as file:
        worker = int(file.read())
    spark.sparkContext.cancelJobGroup("stuck")
    thread.join(WAIT_SECONDS_MAX)
    assert not thread.is_alive()
    assert len(ended) == 1
    wait_until(lambda: not is_running(worker))
    assert spark.range(0, 10, 1, 2).mapInArrow(map_batches(same), "id long").count() == 10


async def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def is_running(pid: int) -> bool:
    """Whether there is such a process, other than one that ended and was not asked for yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(int(WAIT_SECONDS_MAX / 0.05)):
        if holds():
            return
        never.wait(0.05)
    pytest.fail("it did not happen in time")
