"""The reading half of batches and streams: the items of a partition as record batches, in a task."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.fetch.cleaning_notes import DEAD
from aioprefetch.source.files import FetchItem
from aioprefetch.source.options import METADATA_COLUMNS, RESCUED_COLUMN
from aioprefetch.source.reading import ReadTask, quarantine_to, read_items
from aioprefetch.spark import worker
from aioprefetch.spark.inference import FileFields
from aioprefetch.spark.operators import explaining, operator_at, source_operator, state_operator
from aioprefetch.spark.schema import arrow_schema
from aioprefetch.spark.settings import SourceSettings
from aioprefetch.sync import iterate


class ItemsPartition(InputPartition):
    """The items of a task. Their keys are relative to ``root``; ``label`` names the task in files that it writes.

    A thousand items take about 20 KB.
    """

    def __init__(self, items: Sequence[FetchItem], *, root: str, label: str) -> None:
        text = json.dumps([item.to_json() for item in items], separators=(",", ":"))
        super().__init__(zlib.compress(text.encode("utf-8", "surrogatepass")))
        self.count = len(items)
        self.root = root
        self.label = label

    def __repr__(self) -> str:
        return f"<ItemsPartition {self.label}: {self.count} items below {self.root}>"

    def items(self) -> list[FetchItem]:
        """The items, in their order."""
        text = zlib.decompress(self.value).decode("utf-8", "surrogatepass")
        return [FetchItem.from_json(fields) for fields in json.loads(text)]


WINDOW_ITEMS = 4


class TaskReader:
    """Plain data: settings and schemas. It is pickled at every stage, and opens nothing before ``batches``."""

    def __init__(self, settings: SourceSettings, schema: StructType, fields: FileFields) -> None:
        self.settings = settings
        self.schema = arrow_schema(schema)
        self.filter_schema = None if fields.filtered is None else arrow_schema(fields.filtered)
        self.known_schema = None if fields.known is None else arrow_schema(fields.known)
        self.directory_columns = fields.directories

    @property
    def filtered_schema(self) -> pa.Schema:
        """The fields that filters may name: those of the output, and those that only filters need."""
        return pa.schema([*self.schema, *(self.filter_schema or ())])

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition. Leaving early, as under ``limit``, closes what is open."""
        if not isinstance(partition, ItemsPartition):
            return  # A partition of Spark's own, for a plan without partitions.
        worker.prepare()
        operator = source_operator(self.settings, partition.root)
        task = self._task(partition)
        window_bytes = max(1, self.settings.reading.bytes_in_flight // WINDOW_ITEMS)
        source = iterate(
            lambda: read_items(operator, partition.items(), task), window_items=WINDOW_ITEMS, window_bytes=window_bytes
        )
        with explaining(self.settings), source as batches:
            yield from batches

    def _task(self, partition: ItemsPartition) -> ReadTask:
        settings = self.settings
        quarantine = None
        if settings.quarantines:
            if settings.quarantine_location is not None:
                store, directory = operator_at(settings.quarantine_location, settings.quarantine_operator), ""
            else:
                store, directory = state_operator(settings), DEAD
            quarantine = quarantine_to(store, f"{directory}{partition.label}.jsonl")
        return ReadTask(
            schema=self.schema,
            url=partition.root,
            format=settings.formats,
            read=settings.reading,
            failures=settings.failures,
            filter_schema=self.filter_schema,
            known_schema=self.known_schema,
            directory_columns=self.directory_columns,
            quarantine=quarantine,
        )


def check_projection(settings: SourceSettings, schema: StructType) -> None:
    """``ConfigInvalid`` if the user gave both a schema and the option ``columns``, and they differ."""
    if settings.columns is None:
        return
    added = {RESCUED_COLUMN, *METADATA_COLUMNS}
    given, wanted = ({name.lower() for name in names} - added for names in (schema.names, settings.columns))
    if given != wanted:
        raise ConfigInvalid(
            f"columns={','.join(settings.columns)} goes beside a schema of {','.join(schema.names)}: a schema is the "
            "projection already, so leave columns out",
            operation="configure",
        )
