"""The job ``spark-batches``: what a micro-batch of our stream costs beside one of a Python source that does nothing."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import Column, Contestant, Job, Sample, Target
from tests.benchmarks.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 30
# The first ones start workers and compile.
WARM_BATCHES = 6
ROWS = 10


def empty(spark: SparkSession, scratch: Path) -> DataFrame:
    """The source that does nothing."""
    from tests.benchmarks.spark_empty import EmptySource

    spark.dataSource.register(EmptySource)
    return spark.readStream.format("empty").load()


def ours(spark: SparkSession, scratch: Path) -> DataFrame:
    """Our stream over small files of JSON lines, two in a batch."""
    from aioprefetch.spark import stream

    landing = scratch / "landing"
    landing.mkdir()
    for number in range(2 * BATCHES):
        (landing / f"{number:04}.jsonl").write_text('{"id": 1, "text": "x"}\n' * ROWS)
    return stream(
        spark,
        f"{landing.as_uri()}/*.jsonl",
        checkpoint=str(scratch / "state"),
        schema="id bigint, text string",
        max_files_per_trigger=2,
    )


def contestant(source: Any) -> Contestant:
    """The median batch of a query with a sink that drops its rows."""

    async def run(target: Target) -> Sample:
        scratch = Path(target.scratch)
        with session() as spark:
            query = (
                source(spark, scratch)
                .writeStream.format("noop")
                .option("checkpointLocation", str(scratch / "checkpoint"))
                .start()
            )
            try:
                query.processAllAvailable()
                batches = [one for one in query.recentProgress if one["numInputRows"]][WARM_BATCHES:]
            finally:
                query.stop()
        spent = [one["durationMs"] for one in batches]
        return {
            "batch_ms": statistics.median(one["triggerExecution"] for one in spent),
            "run_ms": statistics.median(one["addBatch"] for one in spent),
            "latest_offset_ms": statistics.median(one.get("latestOffset", 0) for one in spent),
        }

    return run


SPARK_BATCHES = Job(
    name="spark-batches",
    title="A micro-batch of two small files",
    contestants={"an empty Python source": contestant(empty), "aioprefetch": contestant(ours)},
    columns=(
        Column(name="batch_ms", heading="batch ms", digits=0, ratio=True),
        Column(name="run_ms", heading="of it running ms", digits=0),
        Column(name="latest_offset_ms", heading="planning ms", digits=0),
    ),
    quick_contestants=(),
)
