"""Layers: accessors that wrap an accessor, one concern each. Recipes are ``XxxLayer``, live layers ``XxxAccessor``.

The default stack loads at once, the others at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.accessor.protocols import Layer, WrappedAccessor
from aioprefetch.first_use import load_at_first_use
from aioprefetch.layers.complete import CompleteLayer
from aioprefetch.layers.concurrent_limit import ConcurrentLimitLayer
from aioprefetch.layers.error_context import ErrorContextLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.layers.timeout import TimeoutLayer

if TYPE_CHECKING:
    from aioprefetch.layers.hedge import HedgeLayer
    from aioprefetch.layers.lru_cache import LruCacheLayer
    from aioprefetch.layers.throttle import ThrottleLayer

__all__ = [
    "CompleteLayer",
    "ConcurrentLimitLayer",
    "ErrorContextLayer",
    "HedgeLayer",
    "Layer",
    "LruCacheLayer",
    "RetryLayer",
    "ThrottleLayer",
    "TimeoutLayer",
    "WrappedAccessor",
]

load_at_first_use(__name__, {"hedge": ("HedgeLayer",), "lru_cache": ("LruCacheLayer",), "throttle": ("ThrottleLayer",)})
