"""The module that the wheel installs as ``pyspark_aioprefetch``: PySpark looks through top-level modules of such names.

So ``spark.read.format("aioprefetch")`` works without ``register`` if the driver's Python has the wheel. The
settings of Hadoop's S3A then come from files alone; see ``aioprefetch.spark.hadoop``.

PySpark imports this before the first query of any Python source. So it imports nothing of ours, and a missing package
is reported only when this source is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """``aioprefetch.spark.AioPrefetchDataSource``, loaded when it is needed."""

    _loaded: DataSource | None = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "aioprefetch"

    def schema(self) -> StructType | str:
        """The inferred schema."""
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of all files that are there now."""
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A reader of new files."""
        return self._source().streamReader(schema)

    def _source(self) -> DataSource:
        """One source for all calls, pickled with this object: readers need the result of ``schema()``."""
        if self._loaded is None:
            # Through the package: it says which extra is missing.
            source_class: Any = importlib.import_module("aioprefetch.spark").AioPrefetchDataSource
            self._loaded = source_class(self.options)
        return self._loaded
