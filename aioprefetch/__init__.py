"""aioprefetch reads bytes from object storage: the fewest requests, the least waiting, and never a wrong byte.

The way of a read::

    caller ─► Operator ─► RangeReader ── read_at ─► BlockStore ── hit ─► bytes / view
                               │ seek: moves the cursor only  │ miss: join the block's one fetch
                               ▼                              ▼ request into the block's buffer
     layers, outermost first:  LruCache · Retry · ConcurrentLimit · Timeout · Complete · ErrorContext · service

Importing the package loads no optional dependency: those come with their first use.
"""

from __future__ import annotations

from aioprefetch import errors, layers, services, sync
from aioprefetch.accessor import Accessor, Layer, Service
from aioprefetch.errors import *  # noqa: F403
from aioprefetch.layers import WrappedAccessor
from aioprefetch.operator import Operator
from aioprefetch.reader import RangeReader
from aioprefetch.values import Capability, DiskCache, Entry, Metadata, ReadHead, ReadReply, ReadRequest, ServiceInfo

__version__ = "0.1.0"

__all__ = [
    "Accessor",
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
