"""The source as it is, in processes that die at a kill point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.values import Record
from aioprefetch.spark.data_source import AioPrefetchDataSource
from aioprefetch.spark.readers import StreamReader
from tests.spark.crash.kill_points import reached

# Late enough that batches have been committed, early enough that there is work left.
RECORD, BATCH = 3, 2

_append = SourceState.append


async def _append_or_die(self: SourceState, record: Record) -> None:
    if record.items:
        reached("before-record", nth=RECORD)
    await _append(self, record)
    if record.items:
        reached("after-record", nth=RECORD)


SourceState.append = _append_or_die  # type: ignore[method-assign]  # in the pipeline's own processes


class KilledReader(StreamReader):
    """Dies between the steps of a batch, and in the middle of a file."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        reached("after-offsets", nth=BATCH)
        found = super().partitions(start, end)
        reached("after-partitions", nth=BATCH)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            middle = batch.num_rows // 2
            yield batch.slice(0, middle)
            for point in ("worker-in-file", "jvm-in-file", "executor-in-file"):
                reached(point, nth=BATCH)
            yield batch.slice(middle)

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        reached("in-commit", nth=BATCH)


class KilledSource(AioPrefetchDataSource):
    """``format("killed")``."""

    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamReader(self, schema: StructType) -> KilledReader:  # noqa: N802 - Spark's name
        return KilledReader(self._settings(), schema)
