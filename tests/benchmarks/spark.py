"""Jobs on Spark: local files, small objects and micro-batches, through us and the ways that people read them.

Each contestant has a session of its own, warm before the clock starts. ``make bench-spark`` runs them.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioprefetch.spark.java import use_java
from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    OBJECT,
    OTHERS,
    PEAK,
    ROOT,
    WALL,
    Column,
    Contestant,
    Job,
    Sample,
    Target,
)
from tests.benchmarks.simulator import Conditions

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CORES = 2
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# How often an action runs: the first one starts workers and compiles, and is not counted.
ACTIONS = 4
# Made once, outside of any clock: 132 MB of Parquet, 105 MB of CSV.
DATA = ROOT / "build" / "benchmarks" / "spark-data"
CSV_SCHEMA = "id bigint, number double, text string, flag int"
OBJECTS = 4_000
THREADS = 16
BATCHES = 30
# The first ones start workers and compile.
WARM_BATCHES = 6

Query = Callable[["SparkSession", Target], "DataFrame"]


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """A session on both cores. Its words go to standard error alone, which the harness shows when it fails."""
    from pyspark.sql import SparkSession

    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("benchmark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": os.getcwd(),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def timed(action: Callable[[], object]) -> Sample:
    """An action, run until it is warm and then again: the median of wall and CPU of all processes of the session."""
    action()
    spent: list[tuple[float, float]] = []
    for _ in range(ACTIONS - 1):
        cpu, began = family_cpu_seconds(), time.perf_counter()
        action()
        spent.append((time.perf_counter() - began, family_cpu_seconds() - cpu))
    wall_seconds, cpu_seconds = sorted(spent)[len(spent) // 2]
    return {"wall_seconds": wall_seconds, "cpu_seconds": cpu_seconds, "memory_peak_bytes": family_resident_bytes()}


def family() -> list[int]:
    """This process and everything below it: the JVM, and Python workers."""
    parents: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(directory.name)] = int(_stat(int(directory.name))[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def family_cpu_seconds() -> float:
    """The time on a CPU of all of them, and of those that they have waited for."""
    ticks = 0
    for pid in family():
        with contextlib.suppress(OSError):
            ticks += sum(int(one) for one in _stat(pid)[11:15])
    return ticks / CLOCK_TICKS


def family_resident_bytes() -> int:
    """The memory that is resident in all of them now; pages that workers share with their daemon count for each."""
    found = 0
    for pid in family():
        with contextlib.suppress(OSError):
            found += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# --- local files ------------------------------------------------------------------------------------------------------


def made(folder: str, suffix: str, count: int, write: Callable[[Path, int], None]) -> str:
    """The directory of some files, written unless they are there."""
    directory = DATA / folder
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = directory / f"{number}.{suffix}"
        if not path.exists():
            hidden = path.with_name(f".{number}")
            write(hidden, number)
            hidden.rename(path)
    return str(directory)


def write_parquet(path: Path, number: int, *, rows: int = 500_000) -> None:
    """Write five columns: long, int, double, string, timestamp."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(number)
    times = (random.integers(0, 10**9, rows) * 1000).astype("datetime64[us]")
    columns = {
        "id": pa.array(np.arange(number * rows, (number + 1) * rows)),
        "part": pa.array(random.integers(0, 1000, rows).astype("int32")),
        "value": pa.array(random.random(rows)),
        "text": pa.array(np.char.add("text-", random.integers(0, 50_000, rows).astype("U6"))),
        "time": pa.array(times).cast(pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), path, compression="snappy")


def write_csv(path: Path, number: int, *, rows: int = 500_000) -> None:
    """Write four columns."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as csv

    random = np.random.default_rng(number)
    columns = {
        "id": pa.array(np.arange(rows) + number * rows),
        "number": pa.array(random.random(rows)),
        "text": pa.array(np.char.add("text-", random.integers(0, 50_000, rows).astype("U6"))),
        "flag": pa.array(random.integers(0, 2, rows)),
    }
    csv.write_csv(pa.table(columns), path)


table_files = partial(made, "parquet", "parquet", 8, write_parquet)
csv_files = partial(made, "csv", "csv", 4, write_csv)


def of_files(files: Callable[[], str], query: Callable[[SparkSession, str], DataFrame]) -> Contestant:
    """Run a query over files in a warm session to its last row, which is thrown away as in Spark's own benchmarks."""

    async def run(target: Target) -> Sample:
        directory = files()
        with session() as spark:
            return timed(lambda: query(spark, directory).write.format("noop").mode("overwrite").save())

    return run


def ours(pattern: str, **options: Any) -> Callable[[SparkSession, str], DataFrame]:
    """The batch source."""

    def query(spark: SparkSession, directory: str) -> DataFrame:
        from aioprefetch.spark import read

        return read(spark, f"file://{directory}/{pattern}", **options)

    return query


def summed(query: Callable[[SparkSession, str], DataFrame]) -> Callable[[SparkSession, str], DataFrame]:
    """The sum of one column."""
    return lambda spark, directory: query(spark, directory).agg({"value": "sum"})


# --- objects of a store -----------------------------------------------------------------------------------------------


def of_objects(query: Query) -> Contestant:
    """Sum the lengths of all objects: every byte is fetched, hardly any crosses into the JVM."""

    async def run(target: Target) -> Sample:
        os.environ |= {"AWS_ACCESS_KEY_ID": target.access_key_id, "AWS_SECRET_ACCESS_KEY": target.secret_access_key}
        with session() as spark:
            frame = query(spark, target)

            def action() -> None:
                found = frame.agg({"length": "sum", "*": "count"}).first()
                right = [OBJECTS, OBJECTS * target.size_bytes]
                assert found is not None
                assert sorted(found) == right, f"{found} is not the length of {OBJECTS} objects"

            return timed(action)

    return run


def keys_of(spark: SparkSession) -> DataFrame:
    """The keys, dealt to as many tasks as there are cores: what a job that knows its objects begins with."""
    return spark.createDataFrame([(f"{OBJECT}-{n}",) for n in range(OBJECTS)], "key string").repartition(CORES)


def source(spark: SparkSession, target: Target) -> DataFrame:
    """Our batch source: it lists the objects itself."""
    from aioprefetch.spark import read

    words: Any = target.given("endpointUrl", "region", "accessKeyId", "secretAccessKey")
    return read(spark, f"s3://{target.bucket}/{OBJECT}-*", format="binary", columns=["length", "content"], **words)


def udf(spark: SparkSession, target: Target) -> DataFrame:
    """Our tools for UDFs: a warm Operator in each worker, batches of keys read side by side.

    Keys given to an Operator do not travel; workers find theirs in the environment.
    """
    from aioprefetch.spark import map_batches, with_operator

    @with_operator(f"s3://{target.bucket}", endpoint_url=target.endpoint_url, region=target.region)
    async def lengths(batch: pa.RecordBatch, operator: Any) -> pa.RecordBatch:
        import asyncio

        import pyarrow as pa

        parts = await asyncio.gather(*(operator.read(key) for key in batch.column(0).to_pylist()))
        return pa.record_batch({"length": pa.array([len(part) for part in parts], pa.int64())})

    return keys_of(spark).mapInArrow(map_batches(lengths), "length long")


def by_boto3(spark: SparkSession, target: Target, *, threads: int) -> DataFrame:
    """``mapInPandas`` with a client of boto3 for each task, and threads in each worker."""
    place, bucket = (target.endpoint_url, target.region, target.access_key_id, target.secret_access_key), target.bucket

    def lengths(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import boto3
        import pandas as pd
        from botocore.config import Config

        words = ("endpoint_url", "region_name", "aws_access_key_id", "aws_secret_access_key")
        config = Config(s3={"addressing_style": "path"}, max_pool_connections=threads)
        client: Any = boto3.client("s3", config=config, **dict(zip(words, place, strict=True)))

        def length(key: str) -> int:
            return len(client.get_object(Bucket=bucket, Key=key)["Body"].read())

        with ThreadPoolExecutor(threads) as pool:
            for frame in frames:
                yield pd.DataFrame({"length": list(pool.map(length, frame["key"]))})

    return keys_of(spark).mapInPandas(lengths, "length long")


# --- micro-batches ----------------------------------------------------------------------------------------------------


def empty_stream(spark: SparkSession, scratch: Path) -> DataFrame:
    """A Python source that does nothing, the least that a micro-batch costs: a row for each of two partitions."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    batches = BATCHES

    class EmptyReader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"seq": 0}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"seq": start["seq"] + 1} if start["seq"] < batches else start

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(0), InputPartition(1)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
            yield 1, "x"

    class EmptySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "empty"

        def schema(self) -> str:
            return "id bigint, text string"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return EmptyReader()

    spark.dataSource.register(EmptySource)
    return spark.readStream.format("empty").load()


def our_stream(spark: SparkSession, scratch: Path) -> DataFrame:
    """Our stream over small files of JSON lines, two in a batch."""
    from aioprefetch.spark import stream

    landing = scratch / "landing"
    landing.mkdir()
    for number in range(2 * BATCHES):
        (landing / f"{number:04}.jsonl").write_text('{"id": 1, "text": "x"}\n' * 10)
    return stream(
        spark,
        f"{landing.as_uri()}/*.jsonl",
        checkpoint=str(scratch / "state"),
        schema="id bigint, text string",
        max_files_per_trigger=2,
    )


def of_batches(stream: Callable[[SparkSession, Path], DataFrame]) -> Contestant:
    """The median batch of a query with a sink that drops its rows."""

    async def run(target: Target) -> Sample:
        scratch = Path(target.scratch)
        with session() as spark:
            writer = stream(spark, scratch).writeStream.format("noop")
            query = writer.option("checkpointLocation", str(scratch / "checkpoint")).start()
            try:
                query.processAllAvailable()
                batches = [one for one in query.recentProgress if one["numInputRows"]][WARM_BATCHES:]
            finally:
                query.stop()
        spent = [one["durationMs"] for one in batches]
        steps = {"batch_ms": "triggerExecution", "run_ms": "addBatch", "latest_offset_ms": "latestOffset"}
        return {name: statistics.median(one.get(step, 0) for one in spent) for name, step in steps.items()}

    return run


FILE_COLUMNS = (WALL, CPU, PEAK)
SPARK_JOBS = (
    Job(
        name="spark-table",
        title="4,000,000 rows of 5 columns in 8 local Parquet files, to a sink that drops them",
        contestants={
            "spark.read.parquet": of_files(table_files, lambda spark, path: spark.read.parquet(path)),
            "aioprefetch": of_files(table_files, ours("*.parquet")),
        },
        columns=FILE_COLUMNS,
    ),
    Job(
        name="spark-column",
        title="The sum of one of the 5 columns",
        contestants={
            "spark.read.parquet": of_files(table_files, summed(lambda spark, path: spark.read.parquet(path))),
            "aioprefetch, columns=": of_files(table_files, summed(ours("*.parquet", columns=["value"]))),
        },
        columns=FILE_COLUMNS,
        quick="none",
    ),
    Job(
        name="spark-csv",
        title="2,000,000 rows of 4 columns in 4 local CSV files",
        contestants={
            "spark.read.csv": of_files(
                csv_files, lambda spark, path: spark.read.schema(CSV_SCHEMA).csv(path, header=True)
            ),
            "aioprefetch": of_files(csv_files, ours("*.csv", schema=CSV_SCHEMA, header=True)),
        },
        columns=FILE_COLUMNS,
        quick="none",
    ),
    Job(
        name="spark-objects",
        title="4,000 objects of 2 kB, first byte after 20 ms, a warm session's second action and later ones",
        contestants={
            "aioprefetch": of_objects(source),
            "aioprefetch, map_batches": of_objects(udf),
            "boto3, 16 threads a worker": of_objects(partial(by_boto3, threads=THREADS)),
            "boto3, one at a time": of_objects(partial(by_boto3, threads=1)),
        },
        columns=(WALL, CPU, GETS, OTHERS, IN_FLIGHT, PEAK),
        conditions=Conditions(first_byte_seconds=0.020, bandwidth=None),
        size_bytes=2_000,
        copies=OBJECTS,
    ),
    Job(
        name="spark-batches",
        title="A micro-batch of two small files",
        contestants={"an empty Python source": of_batches(empty_stream), "aioprefetch": of_batches(our_stream)},
        columns=(
            Column(name="batch_ms", heading="batch ms", digits=0, ratio=True),
            Column(name="run_ms", heading="of it running ms", digits=0),
            Column(name="latest_offset_ms", heading="planning ms", digits=0),
        ),
        quick="none",
    ),
)
