"""Columns of a Parquet object in Spark's Python workers: libraries inside of functions, and the source itself.

Neither fetches anything of columns that are not read.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import aioprefetch as ap
from aioprefetch.ranges import Range, intersected, total_length
from aioprefetch.reader.policy import PolicyName
from aioprefetch.spark import read
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import CountingS3Server, Fault, Rule
from tests.files.column_file import EXPECTED, GROUPS, NAMES, OTHERS, PARQUET, ROWS, WANTED
from tests.profile import chosen
from tests.stores.computed_store import MIB, repeated
from tests.stores.s3_options import options_of
from tests.stores.stored_object import StoredObject, stored

# PySpark warns of pandas 3, and leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

TAIL_BYTES = MIB
FAR_AWAY = Fault(delay_head_seconds=0.02)  # Long enough for a footer to be understood while a few reads wait.
SUMS = {name: pytest.approx(EXPECTED[name].to_numpy().sum()) for name in NAMES}


@pytest.fixture
def remote() -> Iterator[StoredObject]:
    """The file of twelve columns on a server, a little far away."""
    with stored(PARQUET) as found:
        found.server.add(Rule(fault=FAR_AWAY, times=None))
        yield found


READS: dict[str, Callable[[Any, list[str]], pd.DataFrame]] = {
    "pandas": lambda file, names: pd.read_parquet(file, columns=names),
    "pyarrow": lambda file, names: pq.read_table(file, columns=names).to_pandas(),
}


@pytest.mark.parametrize(("way", "policy"), [("pandas", "adaptive"), ("pyarrow", "parquet")])
def test_a_library_in_a_function_reads_three_of_twelve_columns(
    spark: SparkSession, remote: StoredObject, way: str, policy: PolicyName
) -> None:
    url, options, names, load = remote.url, remote.store, NAMES, READS[way]

    def summed(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for _ in frames:
            with ap.sync.open(url, policy=policy, **options) as file:
                found = load(file, names)
                counts = file.statistics
            row = {
                "rows": len(found),
                **found.sum(),
                "ahead": counts["stream_read_prefetch_operations"],
                "wasted": counts["prefetch_bytes_wasted"],
            }
            yield pd.DataFrame([row])

    schema = f"rows long, {', '.join(f'{name} double' for name in NAMES)}, ahead long, wasted long"
    (row,) = spark.range(0, 1, 1, 1).mapInPandas(summed, schema).collect()
    assert row.rows == GROUPS * ROWS
    assert {name: row[name] for name in NAMES} == SUMS
    tail, *requests = remote.ranges
    assert tail == (len(PARQUET) - TAIL_BYTES, len(PARQUET))
    assert intersected(sorted(requests), OTHERS) == []
    assert repeated(remote.ranges) == []
    assert len(requests) <= len(WANTED) + 2
    assert remote.bytes_sent <= 1.1 * total_length(WANTED)
    # Most chunks were on their way before the library asked for them.
    assert row.ahead >= len(WANTED) // 3
    assert row.wasted == 0


@pytest.fixture
def object_of_twelve_columns(s3_server: CountingS3Server, random_name: Callable[[], str]) -> str:
    """The URL of the file in a bucket of its own."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    with BlockingOperator(ap.Operator.from_uri(f"s3://{bucket}", **options_of(s3_server))) as store:
        store.write("columns.parquet", PARQUET)
    return f"s3://{bucket}/columns.parquet"


def ends_of(header: str) -> Range:
    """The range that a header asks for."""
    first, last = header.removeprefix("bytes=").split("-")
    if not first:
        return max(0, len(PARQUET) - int(last)), len(PARQUET)
    return int(first), min(int(last) + 1, len(PARQUET)) if last else len(PARQUET)


AS_OPTION = {"columns": NAMES}
AS_SCHEMA = {"schema": ", ".join(f"{name} double" for name in NAMES)}


@pytest.mark.parametrize("projection", chosen(quick=[AS_OPTION], full=[AS_OPTION, AS_SCHEMA]))
def test_the_source_plans_three_of_twelve_columns(
    spark: SparkSession, s3_server: CountingS3Server, object_of_twelve_columns: str, projection: dict[str, Any]
) -> None:
    s3_server.reset()
    frame = read(spark, object_of_twelve_columns, **options_of(s3_server), **projection)
    (row,) = frame.agg(f.count(f.lit(1)).alias("rows"), *(f.sum(name).alias(name) for name in NAMES)).collect()
    assert row.rows == GROUPS * ROWS
    assert {name: row[name] for name in NAMES} == SUMS
    ranges = [ends_of(request.range) for request in s3_server.requests if request.range is not None]
    tails = [one for one in ranges if one[1] == len(PARQUET)]
    requests = sorted(one for one in ranges if one[1] != len(PARQUET))
    assert intersected(requests, OTHERS) == []
    assert repeated(requests) == []
    assert len(requests) <= len(WANTED)
    assert s3_server.bytes_sent <= 1.1 * total_length(WANTED)
    # One for the schema where that is inferred, one for the plan, and one in each of two tasks.
    assert len(tails) <= 4
