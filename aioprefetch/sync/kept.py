"""The last file of a store leaves connections and credentials behind for the next one, for some seconds.

Programs open many files of one store by URL, one after the other. The runtime that such files share would close
with each of them. So the operator of the last one is kept, as a holder without a file. It keeps no bytes in memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.family import KEPT_SECONDS
from aioprefetch.sync.loop_thread import LoopThread, leak_in_child, loop_thread

OPERATORS_MAX = 8


class KeptOperators:
    """The kept operators of one loop thread, the least recently used first. Everything runs on that thread."""

    def __init__(self, thread: LoopThread, *, kept_seconds: float = KEPT_SECONDS) -> None:
        self.thread = thread
        self._kept_seconds = kept_seconds
        self._kept: OrderedDict[int, tuple[Operator, asyncio.TimerHandle]] = OrderedDict()

    async def take_over(self, operator: Operator) -> None:
        """Close the operator of a file that was closed, or keep it if it is the last one with connections."""
        runtime = operator.runtime()
        if not runtime.gauged()["transport_connections_open"]:
            await operator.aclose()
            return
        # Operators that share a runtime are of one service object.
        kept, timer = self._kept.pop(id(operator.service), (None, None))
        if timer is not None:
            timer.cancel()
        later = self.thread.loop.call_later(self._kept_seconds, self._expire, id(operator.service))
        self._kept[id(operator.service)] = operator, later
        if kept is not None:
            await kept.aclose()
        if runtime.holders == 1:
            runtime.free_memory()
        while len(self._kept) > OPERATORS_MAX:
            _, (oldest, timer) = self._kept.popitem(last=False)
            timer.cancel()
            await oldest.aclose()

    def _expire(self, service_id: int) -> None:
        operator, _ = self._kept.pop(service_id)
        self.thread.keep(self.thread.loop.create_task(operator.aclose()))


_kept: KeptOperators | None = None


def kept_operators() -> KeptOperators:
    """Those of the loop thread of this process."""
    global _kept
    thread = loop_thread()
    kept = _kept
    if kept is None or kept.thread is not thread:
        if kept is not None:  # Of a thread that stayed behind at a fork.
            leak_in_child(kept)
        kept = _kept = KeptOperators(thread)
    return kept
