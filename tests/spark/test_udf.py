"""Functions of the user's inside Spark: each kind of UDF with its operator, asynchronous ones in order and in bounds.

The functions are made within the tests, so that Spark sends them by value, as it does those of a notebook.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.pandas.functions import pandas_udf

from aioprefetch.operator.operator import Operator
from aioprefetch.spark import map_batches, with_operator
from aioprefetch.spark.worker import ARROW_CPU_THREADS, ARROW_IO_THREADS
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing.conformance.suite import checks

# PySpark warns of pandas 3 at each UDF, and leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

as_pandas_udf: Any = pandas_udf  # its overloads know no functions that a decorator made

ALPHABET = b"abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A URL of a directory with the alphabet in it."""
    (tmp_path / "abc").write_bytes(ALPHABET)
    return tmp_path.as_uri()


@pytest.fixture(scope="module")
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Ten rows in a batch."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "10")
    yield
    spark.conf.set(name, str(before))


def test_each_kind_of_function_reads_through_its_operator(spark: SparkSession, store: str) -> None:
    @with_operator(store)
    def plain(start: int, operator: BlockingOperator) -> str:
        return operator.read_at("abc", start, 2).decode()

    @with_operator(store)
    def series(starts: pd.Series, operator: BlockingOperator) -> pd.Series:
        return starts.map(lambda start: operator.read_at("abc", start, 2).decode())

    @map_batches
    @with_operator(store)
    async def later(starts: pd.Series, operator: Operator) -> pd.Series:
        parts = await operator.read_ranges("abc", [(start, start + 2) for start in starts])
        return pd.Series([part.decode() for part in parts])

    @with_operator(store)
    async def alone(start: int, operator: Operator) -> str:
        return (await operator.read("abc", offset=start, size=2)).decode()

    @with_operator(store)
    async def series_alone(starts: pd.Series, operator: Operator) -> pd.Series:
        parts = await operator.read_ranges("abc", [(start, start + 2) for start in starts])
        return pd.Series([part.decode() for part in parts])

    kinds = {
        "plain": udf(plain, "string", useArrow=False),
        "series": as_pandas_udf(series, "string"),
        "later": as_pandas_udf(later, "string"),
        "alone": udf(alone, "string", useArrow=False),
        "alone_by_arrow": udf(alone, "string", useArrow=True),
        "series_alone": as_pandas_udf(series_alone, "string"),
    }
    columns = [kind("id").alias(name) for name, kind in kinds.items()]
    rows = spark.range(0, 20, 1, 2).select("id", *columns).collect()
    expected = [ALPHABET[start : start + 2].decode() for start in range(20)]
    assert [tuple(row) for row in rows] == [(n, *len(kinds) * [expected[n]]) for n in range(20)]


def test_an_asynchronous_generator_that_spark_calls_itself_is_refused(spark: SparkSession, store: str) -> None:
    @with_operator(store)
    async def parts(batches: Iterable[pa.RecordBatch], operator: Operator) -> AsyncIterator[pa.RecordBatch]:
        for batch in batches:
            await operator.read("abc")
            yield batch

    with pytest.raises(PythonException, match=r"asynchronous generator.*map_batches"):
        spark.range(0, 1, 1, 1).mapInArrow(parts, "id long").collect()


def test_iterators_of_arrow_and_pandas_batches(spark: SparkSession, store: str) -> None:
    @with_operator(store)
    def arrow(batches: Iterable[pa.RecordBatch], operator: BlockingOperator) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            parts = [operator.read_at("abc", start, 1).decode() for start in batch["id"].to_pylist()]
            yield batch.append_column("letter", pa.array(parts))

    @with_operator(store)
    def pandas(frames: Iterable[pd.DataFrame], operator: BlockingOperator) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(again=[operator.read_at("abc", start, 1).decode() for start in frame["id"]])

    frame = spark.range(0, 26, 1, 2).mapInArrow(arrow, "id long, letter string")
    rows = frame.mapInPandas(pandas, "id long, letter string, again string").collect()
    assert "".join(row.letter for row in rows) == "".join(row.again for row in rows) == ALPHABET.decode()


@pytest.mark.usefixtures("small_batches")
def test_batches_are_mapped_in_order_within_the_window(spark: SparkSession) -> None:
    async def slowest_first(batch: pa.RecordBatch) -> pa.RecordBatch:
        at_work.append(batch)
        most = len(at_work)
        for _ in range(300 - batch["id"][0].as_py()):
            await asyncio.sleep(0)
            most = max(most, len(at_work))
        at_work.pop()
        return batch.append_column("most", pa.array([most] * len(batch)))

    at_work: list[pa.RecordBatch] = []
    mapped = map_batches(slowest_first, window=3)
    rows = spark.range(0, 300, 1, 1).mapInArrow(mapped, "id long, most long").collect()
    assert [row.id for row in rows] == list(range(300))
    assert {row.most for row in rows} <= {1, 2, 3}
    assert max(row.most for row in rows) == 3


@pytest.mark.usefixtures("small_batches")
def test_one_batch_may_become_several(spark: SparkSession) -> None:
    async def halves(frame: pd.DataFrame) -> AsyncIterator[pd.DataFrame]:
        yield frame[:5]
        await asyncio.sleep(0)
        yield frame[5:]

    rows = spark.range(0, 60, 1, 2).mapInPandas(map_batches(halves), "id long").collect()
    assert [row.id for row in rows] == list(range(60))


@pytest.mark.usefixtures("small_batches")
def test_an_error_says_in_which_batch(spark: SparkSession) -> None:
    async def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() == 50:
            raise LookupError("nothing under that key")
        return batch

    with pytest.raises(PythonException, match="nothing under that key") as caught:
        spark.range(0, 100, 1, 1).mapInArrow(map_batches(fail), "id long").collect()
    assert "in batch 5 of this task" in str(caught.value)


def test_a_limit_ends_what_is_in_work(spark: SparkSession) -> None:
    async def endless(batch: pa.RecordBatch) -> AsyncIterator[pa.RecordBatch]:
        while True:
            await asyncio.sleep(0)
            yield batch

    assert len(spark.range(0, 10, 1, 1).mapInArrow(map_batches(endless), "id long").limit(25).collect()) == 25


@checks("reliability:P19")
def test_a_worker_that_is_used_again_has_its_pool_and_its_blocks(spark: SparkSession, store: str) -> None:
    @with_operator(store)
    def look(batches: Iterable[pa.RecordBatch], operator: BlockingOperator) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            operator.read_at("abc", 3, 4)
            seen = {
                "pid": os.getpid(),
                "pool": id(operator.operator),
                "requests": operator.statistics["action_http_get_request"],
                "threads": f"{pa.cpu_count()} {pa.io_thread_count()}",
            }
            yield pa.RecordBatch.from_pylist([seen])

    visits: defaultdict[int, set[tuple[int, int, str]]] = defaultdict(set)
    count = 0
    while count == len(visits) and count < 6:  # until one of the workers comes again
        (row,) = (
            spark.range(0, 1, 1, 1).mapInArrow(look, "pid long, pool long, requests long, threads string").collect()
        )
        visits[row.pid].add((row.pool, row.requests, row.threads))
        count += 1
    assert count > len(visits), "no worker was used again"
    for of_worker in visits.values():
        ((_, requests, threads),) = of_worker
        assert requests == 1
        assert threads == f"{ARROW_CPU_THREADS} {ARROW_IO_THREADS}"


def test_an_operator_travels_in_a_closure(spark: SparkSession, store: str) -> None:
    operator = Operator.from_uri(store, memory_bytes=32 << 20)
    blocking = BlockingOperator(operator)

    async def later(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"x": (await operator.read("abc", size=3)).decode()}])

    def now(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"x": blocking.read("abc", offset=3, size=3).decode()}])

    one = spark.range(0, 1, 1, 1)
    assert one.mapInArrow(map_batches(later), "x string").collect()[0].x == "abc"
    assert one.mapInArrow(now, "x string").collect()[0].x == "def"
    blocking.close()


def test_keys_that_stayed_behind_are_named_in_the_error(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @with_operator(
        "s3://bucket",
        endpoint_url="http://127.0.0.1:9",
        region="us-east-1",
        access_key_id="AKIAEXAMPLE",
        secret_access_key="do-not-tell",
    )
    def read(batches: Iterable[pa.RecordBatch], operator: BlockingOperator) -> Iterator[pa.RecordBatch]:
        os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # or it looks for a role of the machine
        operator.read("k")
        yield from batches

    assert "access_key_id is not sent to Spark's workers" in caplog.text
    with pytest.raises(PythonException, match="env:") as caught:
        spark.range(0, 1, 1, 1).mapInArrow(read, "id long").collect()
    assert "do-not-tell" not in str(caught.value)
