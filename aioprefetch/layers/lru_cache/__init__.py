"""The LruCache layer: a second store holds what was read, bounded in bytes."""

from aioprefetch.layers.lru_cache.layer import LruCacheLayer

__all__ = ["LruCacheLayer"]
