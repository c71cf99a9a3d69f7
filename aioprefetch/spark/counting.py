"""Counts of rows by metadata: Spark tells a Python source of a ``count()`` neither that it is one nor which columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from aioprefetch import lance, parquet
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.source.formats import format_of
from aioprefetch.source.reading import list_files
from aioprefetch.spark import worker
from aioprefetch.spark.data_source import read, settings_of
from aioprefetch.spark.operators import explaining, locate, outlasted, planning_operator, task_operator
from aioprefetch.spark.settings import SourceSettings, with_location
from aioprefetch.sync import run

if TYPE_CHECKING:
    from aioprefetch.spark.read_options import BatchOptions

# The footers of more files than this are read by a Spark job, and the files of each of its tasks.
_FILES_MAX = 1000
_TASK_FILES = 500
_FOOTERS_AT_ONCE = 64
_COUNTS: dict[str, Any] = {"lance": lance.count_rows, "parquet": partial(parquet.count_rows, partitioning=None)}


def count(
    spark: SparkSession,
    url: str,
    *,
    schema: StructType | str | None = None,
    filters: Sequence[Any] | None = None,
    format: str | None = None,  # noqa: A002 - the name of the option
    **options: Unpack[BatchOptions],
) -> int:
    """The number of rows of the files at ``url``: that of ``read(...).count()`` with the same arguments.

    For Parquet and Lance without ``filters`` the metadata alone is read, of more than 1,000 files by a Spark job. With
    ``filters`` the columns that they name are read; CSV and JSON, and files under a policy other than ``fail``, as a
    whole. Errors are those of ``read``.
    """
    settings = settings_of(spark, url, options, filters, format)
    keys: list[str] = []
    if filters is None and set(settings.failures.policies.values()) == {"fail"}:
        with explaining(settings):
            settings = with_location(settings, outlasted(settings, lambda: locate(settings)))
            keys = outlasted(settings, lambda: _counted_keys(settings))
            if keys and len(keys) <= _FILES_MAX:
                return run(_rows_of(settings, keys))
    if keys:
        return rows_by_job(spark, settings, keys)
    columns = [*dict.fromkeys(clause[0] for clauses in settings.reading.filters or () for clause in clauses)] or None
    return read(spark, url, schema=schema, columns=columns, filters=filters, format=format, **options).count()


async def _counted_keys(settings: SourceSettings) -> list[str]:
    """The keys of all files, if each of them has its number of rows in its metadata."""
    listing, formats = settings.listing, settings.formats
    files = list_files(planning_operator(settings), formats, listing)
    keys = [file.key async for file in files if file.size]
    return keys if all(format_of(key, formats).name in _COUNTS for key in keys) else []


async def _rows_of(settings: SourceSettings, keys: Sequence[str]) -> int:
    operator = task_operator(settings, settings.location.root)
    counts = [partial(_COUNTS[format_of(key, settings.formats).name], operator, key) for key in keys]
    return sum(await gather_all(counts, at_once=_FOOTERS_AT_ONCE))


def rows_by_job(spark: SparkSession, settings: SourceSettings, keys: list[str]) -> int:
    """The rows of Parquet and Lance files with these keys, counted by tasks of a Spark job."""

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker.prepare()
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [run(_rows_of(settings, batch["key"].to_pylist()))]})

    frame = spark.createDataFrame(pa.table({"key": keys})).repartition(-(-len(keys) // _TASK_FILES))
    (row,) = frame.mapInArrow(counted, "rows bigint").agg(f.sum("rows")).collect()
    return int(row[0])
