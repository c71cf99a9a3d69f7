"""What all stacks of one runtime with the same LruCache layer share."""

from __future__ import annotations

import asyncio

from aioprefetch.errors import Closed
from aioprefetch.layers.lru_cache.cache_store import CacheStore
from aioprefetch.layers.lru_cache.fill import Fill
from aioprefetch.layers.lru_cache.index import PassedBy
from aioprefetch.layers.lru_cache.reservation import ObjectMemory
from aioprefetch.runtime.runtime import Runtime


class Fills:
    """The fills of one runtime that can still be joined, by slot."""

    def __init__(self) -> None:
        self._running: dict[str, list[Fill]] = {}
        self._ended_once = asyncio.Event()

    def start(self, fill: Fill) -> None:
        """Start a fill and keep it until it ends."""
        self._running.setdefault(fill.slot, []).append(fill)
        fill.start(self._ended)

    def of(self, slot: str) -> list[Fill]:
        """The fills of a slot that later readers may join."""
        return [fill for fill in self._running.get(slot, ()) if not fill.is_doomed]

    def doom(self, slot: str) -> None:
        """The object was changed: what is on its way is not stored, nor joined any more."""
        for fill in self._running.get(slot, ()):
            fill.is_doomed = True

    def doom_older(self, newest: Fill) -> None:
        """A later answer showed another version: the earlier ones must not be stored after it."""
        for fill in self._running.get(newest.slot, ()):
            if fill is newest:
                return
            if fill.head is not None and newest.head is not None and fill.head.etag != newest.head.etag:
                fill.is_doomed = True

    async def finish(self) -> None:
        """Wait until what has arrived is stored: a process that reads and ends shall find it next time."""
        while any(fill.has_arrived and not fill.is_doomed for fills in self._running.values() for fill in fills):
            self._ended_once.clear()
            await self._ended_once.wait()

    async def aclose(self) -> None:
        """Let no reader wait for a fill that will never run."""
        for fills in list(self._running.values()):
            for fill in list(fills):
                fill.fail(Closed("the operator was closed", operation="read", path=fill.request.path))

    def _ended(self, fill: Fill) -> None:
        fills = self._running.get(fill.slot, [])
        if fill in fills:
            fills.remove(fill)
        if not fills:
            self._running.pop(fill.slot, None)
        self._ended_once.set()


class CacheState:
    """The cache, the fills, and the memory for them."""

    def __init__(self, cache: CacheStore, runtime: Runtime) -> None:
        self.runtime = runtime
        self.cache = cache
        self.memory = ObjectMemory(runtime.budget, wait_seconds=runtime.options.budget_wait_seconds)
        self.passed_by = PassedBy()
        self.fills = Fills()
        self._closes_fills = False

    def start(self, fill: Fill) -> None:
        """Start a fill; the readers of those that never ran are told when the runtime ends."""
        if not self._closes_fills:
            self._closes_fills = True
            self.runtime.before_close(self.fills.finish)
            self.runtime.supervisor.on_close(self.fills.aclose)
        self.fills.start(fill)
