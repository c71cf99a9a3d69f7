"""aioprefetch in Spark: files of an object store as tables and streams, and asynchronous code in UDFs.

``register`` makes ``format("aioprefetch")`` known to a session; ``read`` and ``stream`` are the short way. Inside of
functions that Spark runs, ``map_batches`` and ``with_operator`` bring the engine along. Needs the extra ``spark``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.spark.counting import count
    from aioprefetch.spark.data_source import AioPrefetchDataSource, read, register, stream
    from aioprefetch.spark.state_table import source_state
    from aioprefetch.spark.udf import WarmOperator, map_batches, with_operator

__all__ = [
    "AioPrefetchDataSource",
    "WarmOperator",
    "count",
    "map_batches",
    "read",
    "register",
    "source_state",
    "stream",
    "with_operator",
]

# A worker that runs a UDF needs no data source.
load_at_first_use(
    __name__,
    {
        "counting": ("count",),
        "data_source": ("AioPrefetchDataSource", "read", "register", "stream"),
        "state_table": ("source_state",),
        "udf": ("WarmOperator", "map_batches", "with_operator"),
    },
    extra="spark",
    hint=" (PySpark 4.2 or later)",
)
