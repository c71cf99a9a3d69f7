# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[s3,spark]", "pyspark"]
# ///
"""A streaming job: JSON lines and Parquet landing in a bucket become sums per sensor and minute, in Parquet.

python spark_pipeline.py s3://bucket/landing WORK              # reads what is there, and ends
python spark_pipeline.py s3://bucket/landing WORK --follow     # goes on with what lands

Keys and endpoint come from the environment (AWS_ACCESS_KEY_ID, AIOPREFETCH_ENDPOINT_URL, ...). Everything that
survives lies below WORK: kill the job anywhere and start it again. spark_demo.py does that, with a server of its own.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import aioprefetch.spark

READING = "sensor string, time timestamp, value double"
# How much later than its neighbours a reading may land and still be counted.
LATENESS = "1 hour"


def session() -> SparkSession:
    """A session on this machine, with this Python; on a cluster, spark-submit decides."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName("readings per minute")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def readings(spark: SparkSession, url: str, work: Path) -> DataFrame:
    """What lands below ``url``, in two formats, as one stream. Each source has its own state below the checkpoint."""
    lines = aioprefetch.spark.stream(
        spark,
        f"{url}/*.jsonl",
        checkpoint=str(work / "checkpoint" / "lines"),
        schema=READING,
        format="jsonl",
        maxFilesPerTrigger=4,
        listIntervalSeconds=1,
    )
    tables = aioprefetch.spark.stream(
        spark,
        f"{url}/*.parquet",
        checkpoint=str(work / "checkpoint" / "tables"),
        schema=READING,
        format="parquet",
        maxFilesPerTrigger=4,
        listIntervalSeconds=1,
    )
    return lines.unionByName(tables)


def per_minute(frame: DataFrame) -> DataFrame:
    """Sums per sensor and minute; a minute is done when nothing that late can come any more."""
    return (
        frame.withWatermark("time", LATENESS)
        .groupBy(f.window("time", "1 minute"), "sensor")
        .agg(f.count("*").alias("readings"), f.sum("value").alias("total"))
        .select(f.col("window.start").alias("minute"), "sensor", "readings", "total")
    )


def start(spark: SparkSession, url: str, work: Path, *, follow: bool) -> StreamingQuery:
    """Start the query; its checkpoint and its result lie below ``work``."""
    writer = per_minute(readings(spark, url, work)).writeStream.format("parquet").outputMode("append")
    writer = writer.option("checkpointLocation", str(work / "checkpoint")).option("path", str(work / "minutes"))
    trigger = writer.trigger(processingTime="1 second") if follow else writer.trigger(availableNow=True)
    return trigger.start()


def main() -> None:
    """Run until it is done or killed; one line of JSON for each batch."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("url")
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--follow", action="store_true")
    given = arguments.parse_args()
    spark = session()
    query = start(spark, given.url, given.work.resolve(), follow=given.follow)
    last_batch = -1
    while True:
        ended = query.awaitTermination(1)
        for progress in query.recentProgress:
            if progress["batchId"] > last_batch:
                last_batch = progress["batchId"]
                print(json.dumps({"batch": last_batch, "rows": progress["numInputRows"]}), flush=True)
        if ended:
            break
    spark.stop()


if __name__ == "__main__":
    main()
