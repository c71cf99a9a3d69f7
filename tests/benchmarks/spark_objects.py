"""The job ``spark-objects``: thousands of small objects with a first byte after 20 ms, by the ways people read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY
from tests.benchmarks.job import CPU, GETS, IN_FLIGHT, OBJECT, OTHERS, PEAK, WALL, Contestant, Job, Sample, Target
from tests.benchmarks.simulator import Conditions
from tests.benchmarks.spark_session import CORES, session, timed

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

OBJECTS = 4_000
OBJECT_BYTES = 2_000
THREADS = 16
Query = Callable[["SparkSession", Target], "DataFrame"]


def contestant(query: Query) -> Contestant:
    """Sums the lengths of all objects: every byte is fetched, hardly any crosses into the JVM."""

    async def run(target: Target) -> Sample:
        os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}
        with session() as spark:
            frame = query(spark, target)

            def action() -> None:
                found = frame.agg({"length": "sum", "*": "count"}).first()
                assert found is not None
                if sorted(found) != sorted([OBJECTS * target.size_bytes, OBJECTS]):
                    raise AssertionError(f"{found} is not the length of {OBJECTS} objects")

            return timed(action)

    return run


def keys_of(spark: SparkSession) -> DataFrame:
    """The keys, dealt to as many tasks as there are cores: what a job that knows its objects begins with."""
    return spark.createDataFrame([(f"{OBJECT}-{n}",) for n in range(OBJECTS)], "key string").repartition(CORES)


def settings(target: Target) -> dict[str, Any]:
    """How the store is reached. Keys given to an Operator do not travel; workers find theirs in the environment."""
    return {"endpoint_url": target.endpoint_url, "region": REGION}


def source(spark: SparkSession, target: Target) -> DataFrame:
    """Our batch source: it lists the objects itself."""
    from aioprefetch.spark import read

    options: dict[str, Any] = {
        "endpointUrl": target.endpoint_url,
        "region": REGION,
        "accessKeyId": ACCESS_KEY_ID,
        "secretAccessKey": SECRET_ACCESS_KEY,
    }
    return read(spark, f"s3://{target.bucket}/{OBJECT}-*", format="binary", columns=["length", "content"], **options)


def udf(spark: SparkSession, target: Target) -> DataFrame:
    """Our tools for UDFs: a warm Operator in each worker, batches of keys read side by side."""
    from aioprefetch.spark import map_batches, with_operator

    @with_operator(f"s3://{target.bucket}", **settings(target))
    async def lengths(batch: pa.RecordBatch, operator: Any) -> pa.RecordBatch:
        import asyncio

        import pyarrow as pa

        parts = await asyncio.gather(*(operator.read(key) for key in batch.column(0).to_pylist()))
        return pa.record_batch({"length": pa.array([len(part) for part in parts], pa.int64())})

    return keys_of(spark).mapInArrow(map_batches(lengths), "length long")


def boto(target: Target) -> Any:
    """A client of boto3, as a worker makes it."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=target.endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=THREADS),
    )


def one_at_a_time(spark: SparkSession, target: Target) -> DataFrame:
    """``mapInPandas`` with a client of boto3 for each task."""

    def lengths(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pandas as pd

        client = boto(target)
        for frame in frames:
            found = [len(client.get_object(Bucket=target.bucket, Key=key)["Body"].read()) for key in frame["key"]]
            yield pd.DataFrame({"length": found})

    return keys_of(spark).mapInPandas(lengths, "length long")


def thread_pool(spark: SparkSession, target: Target) -> DataFrame:
    """The same with 16 threads in each worker."""

    def lengths(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pandas as pd

        client = boto(target)
        with ThreadPoolExecutor(THREADS) as pool:

            def length(key: str) -> int:
                return len(client.get_object(Bucket=target.bucket, Key=key)["Body"].read())

            for frame in frames:
                yield pd.DataFrame({"length": list(pool.map(length, frame["key"]))})

    return keys_of(spark).mapInPandas(lengths, "length long")


SPARK_OBJECTS = Job(
    name="spark-objects",
    title="4,000 objects of 2 kB, first byte after 20 ms, a warm session's second action and later ones",
    contestants={
        "aioprefetch": contestant(source),
        "aioprefetch, map_batches": contestant(udf),
        "boto3, 16 threads a worker": contestant(thread_pool),
        "boto3, one at a time": contestant(one_at_a_time),
    },
    columns=(WALL, CPU, GETS, OTHERS, IN_FLIGHT, PEAK),
    conditions=Conditions(first_byte_seconds=0.020, bandwidth=None),
    size_bytes=OBJECT_BYTES,
    quick_size_bytes=OBJECT_BYTES,
    copies=OBJECTS,
    compare_all=True,
    quick_contestants=("aioprefetch",),
)
