"""A pipeline that dies at a given point: started by the crash matrix as a process of its own.

``python pipeline.py config.json`` streams all that is there from a source into a sink and ends; with the same
checkpoint it goes on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from aioprefetch.spark import register
from tests.spark.crash.kill_points import JVM, reached
from tests.spark.crash.killed_source import KilledSource


def session(config: dict[str, Any]) -> SparkSession:
    """A small session; the executors of a local cluster find what the driver finds."""
    builder = SparkSession.builder.master(config["master"]).appName("crash matrix")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def overwrite_batch(directory: Path, frame: DataFrame, batch_id: int) -> None:
    """A sink that writes a batch again under the same name."""
    frame.write.mode("overwrite").parquet(str(directory / f"batch={batch_id}"))
    reached("after-sink", nth=2)


def main() -> None:
    """Run until everything that is there has been read."""
    config = json.loads(Path(sys.argv[1]).read_text())
    spark = session(config)
    spark.sparkContext.setLogLevel("OFF")
    assert spark._jvm is not None
    Path(os.environ[JVM]).write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
    register(spark)
    spark.dataSource.register(KilledSource)
    frame = (
        spark.readStream.format("killed")
        .options(**config["options"])
        .option("stateLocation", config["state"])
        .schema("id bigint, text string")
        .load(config["source"])
    )
    writer = frame.writeStream.trigger(availableNow=True).option("checkpointLocation", config["checkpoint"])
    if config["sink"] == "parquet":
        query = writer.format("parquet").start(config["output"])
    else:
        query = writer.foreachBatch(
            lambda one, batch_id: overwrite_batch(Path(config["output"]), one, batch_id)
        ).start()
    query.awaitTermination()

    spark.stop()


if __name__ == "__main__":
    main()
