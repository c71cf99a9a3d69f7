"""Objects in this process's memory: for tests, examples, and as a cache."""

from aioprefetch.services.memory.recipe import Memory
from aioprefetch.services.memory.store import Store

__all__ = ["Memory", "Store"]
