"""Layers: accessors that wrap an accessor, one concern each. Recipes are ``XxxLayer``, live layers ``XxxAccessor``.

Those of the default stack load at once, a cache at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aioprefetch.accessor.protocols import Layer
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.layers.complete import CompleteLayer
from aioprefetch.layers.concurrent_limit import ConcurrentLimitLayer
from aioprefetch.layers.error_context import ErrorContextLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.layers.timeout import TimeoutLayer

if TYPE_CHECKING:
    from aioprefetch.layers.lru_cache import LruCacheLayer

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

if not TYPE_CHECKING:  # A type checker knows the names, and reports others.

    def __getattr__(name: str) -> Any:
        if name != "LruCacheLayer":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        layer = globals()[name] = importlib.import_module(f"{__name__}.lru_cache").LruCacheLayer
        return layer


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
