"""Layers: accessors that wrap an accessor, one concern each. Recipes are ``XxxLayer``, live layers ``XxxAccessor``."""

from __future__ import annotations

from aioprefetch.accessor.protocols import Layer
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.layers.complete import CompleteLayer
from aioprefetch.layers.concurrent_limit import ConcurrentLimitLayer
from aioprefetch.layers.error_context import ErrorContextLayer
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.layers.timeout import TimeoutLayer

__all__ = [
    "CompleteLayer",
    "ConcurrentLimitLayer",
    "ErrorContextLayer",
    "Layer",
    "LruCacheLayer",
    "RetryLayer",
    "TimeoutLayer",
    "WrappedAccessor",
]
