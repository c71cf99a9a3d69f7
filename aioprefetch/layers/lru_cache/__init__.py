"""The LruCache layer: a second store keeps objects that were read, bounded in bytes."""

from aioprefetch.layers.lru_cache.layer import LruCacheLayer

__all__ = ["LruCacheLayer"]
