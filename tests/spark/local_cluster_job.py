"""A job as its user writes it: functions in ``__main__``, the package installed on the executors. Run by a test.

It runs the same function twice on two executors, once more with keys that stay on the driver, and writes what its
tasks saw as JSON. The first argument has its settings.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import aioprefetch
from aioprefetch import Operator
from aioprefetch.spark import map_batches, with_operator
from aioprefetch.sync import BlockingOperator

CONFIG = json.loads(sys.argv[1])
STORE: dict[str, Any] = {"endpoint_url": CONFIG["endpoint_url"], "region": "us-east-1"}
NAMED: dict[str, Any] = {"access_key_id": "env:JOB_KEY_ID", "secret_access_key": "env:JOB_SECRET"}
LITERAL = {"access_key_id": CONFIG["literal_key_id"], "secret_access_key": CONFIG["literal_secret"]}
SCHEMA = "executor string, pid long, pool long, budget long, requests long, visits long, package string, data string"

pickled: Any = cloudpickle.dumps  # untyped, as Spark calls it
visits = 0


def sight(operator: Operator, data: bytes) -> pa.RecordBatch:
    """What one task sees."""
    global visits
    visits += 1
    row = {
        "executor": os.environ["SPARK_EXECUTOR_DIRS"],
        "pid": os.getpid(),
        "pool": id(operator),
        "budget": operator.options.memory_bytes,
        "requests": operator.statistics["action_http_get_request"],
        "visits": visits,
        "package": aioprefetch.__file__,
        "data": data.decode(),
    }
    return pa.RecordBatch.from_pylist([row])


@with_operator(CONFIG["url"], **STORE, **NAMED)
def look(batches: Iterable[pa.RecordBatch], operator: BlockingOperator) -> Iterator[pa.RecordBatch]:
    """Read a few bytes, which stay in memory."""
    for _ in batches:
        data = operator.read_at("abc", 3, 4)
        yield sight(operator.operator, data)


@map_batches
@with_operator(CONFIG["url"], **STORE, **NAMED)
async def look_later(_: pa.RecordBatch, operator: Operator) -> pa.RecordBatch:
    """The same operator, awaited."""
    return sight(operator, await operator.read("abc", offset=5, size=4))


@with_operator(CONFIG["url"], **STORE, **LITERAL, fallback="ambient")
def look_with_literals(batches: Iterable[pa.RecordBatch], operator: BlockingOperator) -> Iterator[pa.RecordBatch]:
    """Keys that were written down do not arrive: the executors' own stand in for them, as is wanted here."""
    for _ in batches:
        yield sight(operator.operator, operator.read("abc", offset=7, size=4))


def main() -> None:
    """Run the jobs."""
    builder = SparkSession.builder.master("local-cluster[2,1,1200]")
    for name, value in CONFIG["spark"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    seen: dict[str, Any] = {"plans": []}
    jobs = {"first": look, "second": look, "later": look_later, "literals": look_with_literals}
    for name, function in jobs.items():
        frame = spark.range(0, 4, 1, 4).mapInArrow(function, SCHEMA)
        seen[name] = [row.asDict() for row in frame.collect()]
        seen["plans"].append(frame._jdf.queryExecution().toString())
    seen["pickles"] = [pickled(one).decode("latin-1") for one in jobs.values()]
    spark.stop()
    Path(CONFIG["output"]).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
