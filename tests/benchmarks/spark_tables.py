"""The jobs ``spark-table``, ``spark-column``, ``spark-csv``: local files through us and through Spark's own readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.job import CPU, PEAK, ROOT, WALL, Contestant, Job, Sample, Target
from tests.benchmarks.spark_session import session, take_all, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Made once, outside of any clock: 132 MB of Parquet, 105 MB of CSV.
DATA = ROOT / "build" / "benchmarks" / "spark-data"
TABLE_ROWS, TABLE_FILES = 4_000_000, 8
CSV_ROWS, CSV_FILES = 2_000_000, 4
CSV_SCHEMA = "id bigint, number double, text string, flag int"


def table_files() -> str:
    """Eight Parquet files of five columns: long, int, double, string, timestamp."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(path: Path, number: int) -> None:
        random = np.random.default_rng(number)
        rows = TABLE_ROWS // TABLE_FILES
        first = number * rows
        table = pa.table(
            {
                "id": pa.array(np.arange(first, first + rows)),
                "part": pa.array(random.integers(0, 1000, rows).astype("int32")),
                "value": pa.array(random.random(rows)),
                "text": pa.array(np.char.add("text-", random.integers(0, 50_000, rows).astype("U6"))),
                "time": pa.array((random.integers(0, 10**9, rows) * 1000).astype("datetime64[us]")).cast(
                    pa.timestamp("us", "UTC")
                ),
            }
        )
        pq.write_table(table, path, compression="snappy")

    return made("table", "parquet", TABLE_FILES, write)


def csv_files() -> str:
    """Four CSV files of four columns."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as csv

    def write(path: Path, number: int) -> None:
        random = np.random.default_rng(number)
        rows = CSV_ROWS // CSV_FILES
        table = pa.table(
            {
                "id": pa.array(np.arange(rows) + number * rows),
                "number": pa.array(random.random(rows)),
                "text": pa.array(np.char.add("text-", random.integers(0, 50_000, rows).astype("U6"))),
                "flag": pa.array(random.integers(0, 2, rows)),
            }
        )
        csv.write_csv(table, path)

    return made("csv", "csv", CSV_FILES, write)


def made(name: str, suffix: str, count: int, write: Callable[[Path, int], None]) -> str:
    """The directory of some files, written unless they are there."""
    directory = DATA / name
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = directory / f"{number}.{suffix}"
        if not path.exists():
            hidden = path.with_name(f".{number}")
            write(hidden, number)
            hidden.rename(path)
    return str(directory)


def contestant(files: Callable[[], str], query: Callable[[SparkSession, str], DataFrame]) -> Contestant:
    """Runs a query over files in a warm session, to its last row."""

    async def run(target: Target) -> Sample:
        directory = files()
        with session() as spark:
            return timed(lambda: take_all(query(spark, directory)))

    return run


def ours(spark: SparkSession, directory: str) -> DataFrame:
    """The batch source, all columns."""
    from aioprefetch.spark import read

    return read(spark, f"file://{directory}/*.parquet")


def ours_one_column(spark: SparkSession, directory: str) -> DataFrame:
    """The batch source, with the column in its options."""
    from aioprefetch.spark import read

    return read(spark, f"file://{directory}/*.parquet", columns=["value"]).agg({"value": "sum"})


def ours_csv(spark: SparkSession, directory: str) -> DataFrame:
    """The batch source over CSV."""
    from aioprefetch.spark import read

    return read(spark, f"file://{directory}/*.csv", schema=CSV_SCHEMA, header=True)


COLUMNS = (WALL, CPU, PEAK)
SPARK_TABLE = Job(
    name="spark-table",
    title="4,000,000 rows of 5 columns in 8 local Parquet files, to a sink that drops them",
    contestants={
        "spark.read.parquet": contestant(table_files, lambda spark, path: spark.read.parquet(path)),
        "aioprefetch": contestant(table_files, ours),
    },
    columns=COLUMNS,
    quick_contestants=("aioprefetch",),
)
SPARK_COLUMN = Job(
    name="spark-column",
    title="The sum of one of the 5 columns",
    contestants={
        "spark.read.parquet": contestant(
            table_files, lambda spark, path: spark.read.parquet(path).agg({"value": "sum"})
        ),
        "aioprefetch, columns=": contestant(table_files, ours_one_column),
    },
    columns=COLUMNS,
    quick_contestants=(),
)
SPARK_CSV = Job(
    name="spark-csv",
    title="2,000,000 rows of 4 columns in 4 local CSV files",
    contestants={
        "spark.read.csv": contestant(
            csv_files, lambda spark, path: spark.read.schema(CSV_SCHEMA).csv(path, header=True)
        ),
        "aioprefetch": contestant(csv_files, ours_csv),
    },
    columns=COLUMNS,
    quick_contestants=(),
)
TABLE_JOBS = (SPARK_TABLE, SPARK_COLUMN, SPARK_CSV)
