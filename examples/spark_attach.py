# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[spark]", "pyspark"]
# ///
"""Two streams over one directory, and one listing: `attachTo`.

The first query lists the directory, and keeps what it has found in its state. The second one follows that state: it
asks the store for no listing, reads the same files at its own pace, and has its own checkpoint.
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import aioprefetch.spark

FILES = 6


def land(landing: Path) -> None:
    """Some files of ten lines each."""
    landing.mkdir()
    for number in range(FILES):
        (landing / f"{number}.jsonl").write_text("".join(f'{{"n": {number * 10 + line}}}\n' for line in range(10)))


def run(spark: SparkSession, landing: Path, work: Path, **options: object) -> tuple[int, int]:
    """Read what is there as a stream into a table; its rows, and their sum."""
    frame = aioprefetch.spark.stream(
        spark, landing.as_uri(), checkpoint=str(work / "checkpoint"), schema="n long", format="jsonl", **options
    )
    writer = frame.writeStream.option("checkpointLocation", str(work / "checkpoint")).option(
        "path", str(work / "table")
    )
    writer.format("parquet").trigger(availableNow=True).start().awaitTermination()
    result = spark.read.parquet(str(work / "table"))
    return result.count(), result.agg({"n": "sum"}).first()[0]


def main(folder: Path) -> None:
    """The lister, and then the follower, for which the directory could be of any size."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    land(folder / "landing")
    state = (folder / "first" / "checkpoint" / "aioprefetch").as_uri()
    listed = run(spark, folder / "landing", folder / "first")
    followed = run(spark, folder / "landing", folder / "second", attachTo=state)
    print(f"listed: {listed}, followed: {followed}")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
