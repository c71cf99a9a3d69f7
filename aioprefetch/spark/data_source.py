"""``format("aioprefetch")``: the object that Spark creates from options in a separate process, and then pickles.

Spark calls ``schema()`` in one planning process, ``reader()`` and ``partitions()`` in another one, a stream's offsets
in a third that lives as long as the query, and ``read()`` in tasks. Nothing but plain settings goes between them.
"""

from __future__ import annotations

from typing import ClassVar

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from aioprefetch.errors import ConfigInvalid
from aioprefetch.runtime.events import logger
from aioprefetch.spark import worker
from aioprefetch.spark.hadoop import SessionSettings, from_files
from aioprefetch.spark.operators import explaining
from aioprefetch.spark.options import check_scope
from aioprefetch.spark.readers import SAFE_SINCE, BatchReader, FilteringBatchReader, StreamReader, is_safe
from aioprefetch.spark.schema import Inferred, batch_fields, projected, stream_fields, with_policy
from aioprefetch.spark.settings import SourceSettings, parse_options

NAME = "aioprefetch"


class AioPrefetchDataSource(DataSource):
    """Files of an object store or a file system as a table or a stream. The options: docs/reference/spark-options.md.

    ``session`` has the settings that ``register`` read from the session; without it configuration files count
    (``hadoop``).
    """

    session: ClassVar[SessionSettings | None] = None
    # The result of ``schema()``. Spark then pickles the source, and asks it for readers in other processes.
    inferred: Inferred | None = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return NAME

    def schema(self) -> StructType:
        """The inferred schema, narrowed to ``columns``, with the requested metadata columns.

        A stream's is inferred once and kept with its state, so that a restart sees the same one.
        """
        with worker.short_errors():
            settings = self._settings()
        with explaining(settings):
            infer = batch_fields if settings.state_location is None else stream_fields
            self.inferred = infer(settings)
            return projected(self.inferred, settings)

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of all files that are there now. ``schema`` is also the projection."""
        with worker.short_errors():
            return self._reader(schema)

    def _reader(self, schema: StructType) -> BatchReader:
        check_scope(self.options, "batch")
        settings = with_policy(self._settings(), self.inferred, "fail")
        if not settings.push_filters:
            return BatchReader(settings, schema, self.inferred)
        if not is_safe(pyspark.__version__):
            raise ConfigInvalid(
                f"pushFilters gives wrong results on Spark {pyspark.__version__}, where a DataFrame that is used twice "
                f"keeps the filters of its first use; it is safe from {SAFE_SINCE[0]}.{SAFE_SINCE[1]} on. Use the "
                "option filters, or aioprefetch.spark.read(spark, url, filters=...)",
                operation="configure",
            )
        return FilteringBatchReader(settings, schema, self.inferred)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """A reader of new files.

        Not under ``short_errors``: after an error here Spark's own process fails over the missing reader, and shows our
        error in the traceback alone.
        """
        check_scope(self.options, "stream")
        # A stream runs unattended with the schema of its first start: a new field must not end it.
        settings = with_policy(self._settings(), self.inferred, "warn")
        return StreamReader(settings, schema, self.inferred)

    def _settings(self) -> SourceSettings:
        worker.freeze_gc_once()
        settings = parse_options(dict(self.options), self.session if self.session is not None else from_files())
        if settings.left_out is not None:
            logger.warning("%s: %s", settings.url, settings.left_out)
        return settings
