# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[s3,spark]", "pyarrow", "pyspark"]
# ///
"""A batch job that enriches rows by ranged reads: each row names a piece of an object, each task reads many at once.

python spark_enrich.py                     # makes its objects in a directory
python spark_enrich.py s3://bucket/blobs    # an index.parquet with key, offset and size, and the objects it names

The rows come through mapInArrow. All tasks of a Python worker share one warm Operator, with its connections and what it
has in memory.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import aioprefetch as ap
import aioprefetch.spark

RECORD_BYTES = 200
RECORDS = 2_000


def make_objects(directory: Path) -> str:
    """Four objects of records one after another, and an index of them in no order."""
    index: list[dict[str, Any]] = []
    for number in range(4):
        name = f"blob-{number}"
        (directory / name).write_bytes(
            b"".join(f"{name}:{n:06}".encode().ljust(RECORD_BYTES, b".") for n in range(RECORDS // 4))
        )
        index += [{"key": name, "offset": n * RECORD_BYTES, "size": RECORD_BYTES} for n in range(RECORDS // 4)]
    index.sort(key=lambda row: row["offset"] * 7919 % 10_007)
    pq.write_table(pa.Table.from_pylist(index), directory / "index.parquet")
    return directory.as_uri()


def enrich(index: DataFrame, url: str) -> DataFrame:
    """Each row with the bytes that it names."""

    @aioprefetch.spark.with_operator(url)
    async def read_batch(batch: pa.RecordBatch, operator: ap.Operator) -> pa.RecordBatch:
        rows = batch.to_pylist()
        readers = {key: operator.reader(key) for key in {row["key"] for row in rows}}
        try:
            parts = await asyncio.gather(
                *(readers[row["key"]].read_exactly_at(row["offset"], row["size"]) for row in rows)
            )
        finally:
            for reader in readers.values():
                await reader.aclose()
        return batch.append_column("record", pa.array(parts, pa.binary()))

    return index.mapInArrow(
        aioprefetch.spark.map_batches(read_batch), "key string, offset long, size long, record binary"
    )


def main(url: str) -> None:
    """Read the index as a table, enrich it, count what came."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need what we have installed
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    index = aioprefetch.spark.read(spark, f"{url}/index.parquet", format="parquet")
    enriched = enrich(index, url)
    right = enriched.where("record like concat(key, ':', lpad(cast(offset / size as int), 6, '0'), '%')")
    print(f"enriched: {enriched.count()} rows, {right.count()} of them with the record they name")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(make_objects(Path(directory)))
