"""Parquet files over any store: few requests, known beforehand, decoded by pyarrow while they arrive.

``scan`` streams record batches, ``read_table`` collects them, ``plan`` lists their reads, ``footer`` reads the
metadata alone, once for all scans of a file.

These names load at their first use, and pyarrow with them: ``layout``, which a reader imports when the footer of a
Parquet file passes by, needs neither.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aioprefetch.errors import MissingDependency

if TYPE_CHECKING:
    from aioprefetch.parquet.byte_plan import Plan, PlannedChunk
    from aioprefetch.parquet.footer import Footer, footer
    from aioprefetch.parquet.plan import plan
    from aioprefetch.parquet.scan import read_table, scan

__all__ = ["Footer", "Plan", "PlannedChunk", "footer", "plan", "read_table", "scan"]

_MODULES = {
    "Footer": "footer",
    "Plan": "byte_plan",
    "PlannedChunk": "byte_plan",
    "footer": "footer",
    "plan": "plan",
    "read_table": "scan",
    "scan": "scan",
}


class _Room(ModuleType):
    """This package. Its names are functions and classes, also those that are the name of their module too."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _MODULES or not isinstance(value, ModuleType):  # The import system binds each submodule.
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "aioprefetch":
                raise
            raise MissingDependency(
                f"{__name__}.{name} needs {error.name}: pip install 'aioprefetch[parquet]'", operation="import"
            ) from error
        value = getattr(module, name)
        setattr(self, name, value)
        return value


sys.modules[__name__].__class__ = _Room
