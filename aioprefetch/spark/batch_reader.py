"""A batch of files: planned once for each DataFrame, read in tasks.

Filters that Spark pushes into a scan need a safe version and the option ``pushFilters``. In Spark 4.3 and before, the
planned read of a DataFrame is cached with its filters and used again for others: after ``df.where("part =
2").count()``, ``df.count()`` counts the rows of part 2 alone. Spark also refuses a reader that has ``pushFilters`` at
all while ``spark.sql.python.filterPushdown.enabled`` is off, which is the default, and a reader cannot see that
setting.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
)

from aioprefetch.errors import NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.source.reading import list_files, plan_batch
from aioprefetch.spark.inference import Inferred, file_fields_of_batch
from aioprefetch.spark.operators import explaining, locate, source_operator
from aioprefetch.spark.settings import SourceSettings, with_location
from aioprefetch.spark.task_reader import ItemsPartition, TaskReader, check_projection
from aioprefetch.sync import run


class BatchReader(DataSourceReader):
    """All files that exist when the query is planned, each at its version of that time.

    Plain data: Spark pickles the reader before it asks for partitions, so they carry all results of the planning.
    """

    def __init__(self, settings: SourceSettings, schema: StructType, inferred: Inferred | None = None) -> None:
        check_projection(settings, schema)
        self._settings = settings
        self._schema = schema
        self._reader = TaskReader(settings, schema, file_fields_of_batch(settings, schema, inferred))
        self._run = uuid.uuid4().hex

    def partitions(self) -> list[InputPartition]:
        """The files divided among tasks. ``NotFound`` where there are none, unless ``allowEmpty``."""
        with explaining(self._settings):
            return run(self._plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition, in a task."""
        return self._reader.batches(partition)

    async def _plan(self) -> list[InputPartition]:
        settings = with_location(self._settings, await locate(self._settings))
        operator = source_operator(settings)
        parts = await plan_batch(
            operator,
            settings.listing,
            settings.partitioning,
            settings.formats,
            schema=self._reader.filtered_schema,
            filters=settings.reading.filters,
            open_file=settings.reading.open_file,
        )
        if not parts and not settings.allow_empty:
            await self._check_files(operator, settings)
        root = settings.location.root
        return [ItemsPartition(items, root=root, label=f"{self._run}-{n}") for n, items in enumerate(parts)]

    async def _check_files(self, operator: Operator, settings: SourceSettings) -> None:
        """``NotFound`` if there are no files. Files without work (empty, or filtered out) are fine."""
        listing = settings.listing
        files = list_files(operator, settings.formats, glob=listing.glob, hidden_files=listing.hidden_files)
        async with aclosing(files):
            async for _ in files:
                return
        which = "" if listing.glob is None else f" with glob={listing.glob!r}"
        raise NotFound(
            f"there are no files in {operator.info.url}{which}. If that is expected, give the option allowEmpty=true",
            operation="plan_batch",
        )


class FilteringBatchReader(BatchReader):
    """A reader for versions of Spark on which pushed filters are safe. Spark applies all filters again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep the filters that ours can express, beside those of the options."""
        pushed = clauses(filters, self._schema)
        if pushed:
            own = self._settings.reading.filters or [[]]
            reading = replace(self._settings.reading, filters=[[*one, *pushed] for one in own])
            self._settings = replace(self._settings, reading=reading)
            self._reader.settings = self._settings
        return filters


# The first version whose scans keep their plans apart.
SAFE_SINCE = (5, 0)

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}
_VALUES = (bool, int, str, decimal.Decimal, dt.date)


def is_safe(version: str) -> bool:
    """Whether filters may be pushed on a version of Spark (``4.3.0``, ``5.0.0.dev1``)."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= SAFE_SINCE


def clauses(filters: Sequence[Filter], schema: StructType) -> list[tuple[str, str, Any]]:
    """The clauses for those of ``filters`` (all of which must hold) that drop the same rows here and in Spark.

    Not for fields within columns, nor for floating numbers, where Spark has NaN above all others.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    return [clause for one in filters if (clause := _clause(one, kinds)) is not None]


def _clause(one: Filter, kinds: dict[str, DataType]) -> tuple[str, str, Any] | None:
    operator = _OPERATORS.get(type(one))
    column: Sequence[str] = getattr(one, "attribute", ())
    if operator is None or len(column) != 1 or not _is_plain(kinds.get(column[0])):
        return None
    value = list(one.value) if isinstance(one, In) else getattr(one, "value", None)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, _VALUES) and not isinstance(each, dt.datetime) for each in values):
        return None
    return column[0], operator, value


def _is_plain(kind: DataType | None) -> bool:
    if isinstance(kind, StringType):
        return kind == StringType()  # Other string types compare by a collation.
    return isinstance(kind, (BooleanType, IntegralType, DecimalType, DateType))
