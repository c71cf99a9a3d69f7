"""aioprefetch reads bytes from object storage: the fewest requests, the least waiting, and never a wrong byte.

The way of a read::

    caller ─► Operator ─► RangeReader ── read_at ─► BlockStore ── hit ─► bytes / view
                               │ seek: moves the cursor only  │ miss: join the block's one fetch
                               ▼                              ▼ request into the block's buffer
     layers, outermost first:  LruCache · Retry · ConcurrentLimit · Timeout · Complete · ErrorContext · service

Importing the package loads no optional dependency: each is loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aioprefetch import errors, layers, services, sync
from aioprefetch.accessor.protocols import Accessor, Layer, Service
from aioprefetch.errors import *  # noqa: F403
from aioprefetch.layers import WrappedAccessor
from aioprefetch.operator.operator import Operator
from aioprefetch.reader import RangeReader
from aioprefetch.runtime.options import DiskCache
from aioprefetch.scan import BatchScan
from aioprefetch.values import Capability, Entry, Metadata, ReadHead, ReadReply, ReadRequest, ServiceInfo

if TYPE_CHECKING:
    from aioprefetch import lance as lance
    from aioprefetch import parquet as parquet
    from aioprefetch import spark as spark
    from aioprefetch import testing as testing

__version__ = "0.1.0"

# Rooms that need the extra of their name; they load with their first use.
_EXTRAS = ("lance", "parquet", "spark", "testing")

__all__ = [
    "Accessor",
    "BatchScan",
    "Capability",
    "DiskCache",
    "Entry",
    "Layer",
    "Metadata",
    "Operator",
    "RangeReader",
    "ReadHead",
    "ReadReply",
    "ReadRequest",
    "Service",
    "ServiceInfo",
    "WrappedAccessor",
    "errors",
    "layers",
    "services",
    "sync",
]
__all__ += errors.__all__


def __getattr__(name: str) -> Any:
    if name not in _EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(__name__):
            raise
        raise errors.MissingDependency(
            f"aioprefetch.{name} needs {error.name}: pip install 'aioprefetch[{name}]'", operation="import"
        ) from error


def __dir__() -> list[str]:
    """The public names, the rooms among them: completion shows no import of this module."""
    return sorted({*__all__, *_EXTRAS, *(name for name in globals() if name.startswith("__"))})
