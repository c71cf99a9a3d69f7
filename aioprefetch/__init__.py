"""aioprefetch reads and writes object storage: the fewest requests, the least waiting, and never a wrong byte.

The way of a read::

    caller ─► Operator ─► RangeReader ── read_at ─► BlockStore ── hit ─► bytes / view
                               │ seek: moves the cursor only  │ miss: join the block's one fetch
                               ▼                              ▼ request into the block's buffer
     layers, outermost first:  LruCache · Retry · ConcurrentLimit · Timeout · Complete · ErrorContext · service

Importing the package loads operators and errors. Readers, services, further layers, ``sync`` and the rooms of an extra
load at their first use, and so does each optional dependency.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor, Layer, Service, WrappedAccessor
from aioprefetch.errors import *  # noqa: F403
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.statistics import StatisticsSnapshot
from aioprefetch.values import Capability, Entry, Metadata, ReadHead, ReadReply, ReadRequest, ServiceInfo

if TYPE_CHECKING:
    from aioprefetch import arrow as arrow
    from aioprefetch import asgi as asgi
    from aioprefetch import fsspec as fsspec
    from aioprefetch import lance as lance
    from aioprefetch import layers as layers
    from aioprefetch import obspec as obspec
    from aioprefetch import otel as otel
    from aioprefetch import parquet as parquet
    from aioprefetch import polars as polars
    from aioprefetch import progress as progress
    from aioprefetch import prometheus as prometheus
    from aioprefetch import services as services
    from aioprefetch import spark as spark
    from aioprefetch import sync as sync
    from aioprefetch import testing as testing
    from aioprefetch import trace as trace
    from aioprefetch import zarr as zarr
    from aioprefetch.operator.copying import copy as copy
    from aioprefetch.parquet.dataset.catalog import ScanFile as ScanFile
    from aioprefetch.path import Path as Path
    from aioprefetch.reader import RangeReader as RangeReader
    from aioprefetch.scan import BatchScan as BatchScan
    from aioprefetch.verbs.progress import CopyFailure as CopyFailure
    from aioprefetch.verbs.progress import CopyProgress as CopyProgress
    from aioprefetch.verbs.progress import CopyReport as CopyReport
    from aioprefetch.verbs.progress import CopyStep as CopyStep

__version__ = "0.1.0"

# Rooms load at first use; a room that needs an extra says so at its first use.
_EXTRAS = (
    *("arrow", "fsspec", "lance", "obspec", "otel", "parquet", "polars", "progress", "prometheus", "spark", "testing"),
    "zarr",
)
_ROOMS = ("asgi", "layers", "services", "sync", "trace", *_EXTRAS)
# Classes and functions that load at first use.
_CLASSES = {
    "BatchScan": "scan",
    "Path": "path",
    "RangeReader": "reader",
    "ScanFile": "parquet.dataset.catalog",
    "copy": "operator.copying",
    **dict.fromkeys(("CopyFailure", "CopyProgress", "CopyReport", "CopyStep"), "verbs.progress"),
}

__all__ = [
    "Accessor",
    "BatchScan",
    "Capability",
    "CopyFailure",
    "CopyProgress",
    "CopyReport",
    "CopyStep",
    "DiskCache",
    "Entry",
    "Layer",
    "Metadata",
    "Operator",
    "Path",
    "RangeReader",
    "ReadHead",
    "ReadReply",
    "ReadRequest",
    "ScanFile",
    "Service",
    "ServiceInfo",
    "StatisticsSnapshot",
    "WrappedAccessor",
    "asgi",
    "copy",
    "errors",
    "layers",
    "services",
    "sync",
    "trace",
]
__all__ += errors.__all__


if not TYPE_CHECKING:  # A type checker knows the names, and reports others.

    def __getattr__(name: str) -> Any:
        if name in _CLASSES:
            return getattr(importlib.import_module(f"{__name__}.{_CLASSES[name]}"), name)
        if name in _ROOMS:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if os.environ.get("AIOPREFETCH_TRACE"):
    importlib.import_module(f"{__name__}.trace.of_process")


def __dir__() -> list[str]:
    """The public names, the rooms among them: completion shows no import of this module."""
    return sorted({*__all__, *_EXTRAS, *(name for name in globals() if name.startswith("__"))})
