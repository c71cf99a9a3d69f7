"""A Python source that does nothing, the least that a micro-batch costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tests.benchmarks.spark_batches import BATCHES


class EmptySource(DataSource):
    """One row for each of two partitions, ``BATCHES`` times."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return "id bigint, text string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return EmptyReader()


class EmptyReader(DataSourceStreamReader):
    """Counts batches."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"seq": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"seq": start["seq"] + 1} if start["seq"] < BATCHES else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        yield 1, "x"
