"""aioprefetch in Spark: files of an object store as tables and streams, and asynchronous code in UDFs.

``register`` makes ``format("aioprefetch")`` known to a session; ``read`` and ``stream`` are the short way. Inside of
functions that Spark runs, ``map_batches`` and ``with_operator`` bring the engine along. Needs the extra ``spark``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aioprefetch.errors import MissingDependency

if TYPE_CHECKING:
    from aioprefetch.spark.data_source import AioPrefetchDataSource
    from aioprefetch.spark.session import read, register, stream
    from aioprefetch.spark.udf import WarmOperator, map_batches, with_operator

__all__ = ["AioPrefetchDataSource", "WarmOperator", "map_batches", "read", "register", "stream", "with_operator"]

# All load on first use: a worker that runs a UDF needs no data source.
_MODULES = {
    "AioPrefetchDataSource": "aioprefetch.spark.data_source",
    "WarmOperator": "aioprefetch.spark.udf",
    "map_batches": "aioprefetch.spark.udf",
    "read": "aioprefetch.spark.session",
    "register": "aioprefetch.spark.session",
    "stream": "aioprefetch.spark.session",
    "with_operator": "aioprefetch.spark.udf",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ImportError as error:
        missing = error.name or ""
        if isinstance(error, MissingDependency) or missing.partition(".")[0] == "aioprefetch":
            raise
        # A module, or a name in one: PySpark before 4.2 has neither all modules nor all names.
        what = missing if isinstance(error, ModuleNotFoundError) else f"a later {missing}"
        raise MissingDependency(
            f"aioprefetch.spark.{name} needs {what}: pip install 'aioprefetch[spark]' (PySpark 4.2 or later)",
            operation="import",
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
