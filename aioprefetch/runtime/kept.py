"""Runtimes that copies of an operator left behind stay for some seconds, for the copies that follow.

Spark and dask unpickle an operator for each task and drop it with the task. Without this each task would connect, and
look credentials up, again. A kept runtime has connections and credentials, and no bytes in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict

from aioprefetch.runtime.runtime import Runtime

KEPT_SECONDS = 15.0
RUNTIMES_MAX = 8


class KeptRuntimes:
    """Those of this process, of any loop, the one that was left first in front. It may be used again meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Runtime, asyncio.TimerHandle] = OrderedDict()

    def keep(self, runtime: Runtime) -> None:
        """On its loop: end a runtime that no operator uses in ``KEPT_SECONDS``, earlier if too many are kept by then.

        One that an operator uses again goes on.
        """
        runtime.free_memory()
        timer = runtime.loop.call_later(KEPT_SECONDS, self._expire, runtime)
        with self._lock:
            before = self._kept.pop(runtime, None)
            self._kept[runtime] = timer
            surplus = self._kept.popitem(last=False) if len(self._kept) > RUNTIMES_MAX else None
        if before is not None:
            before.cancel()
        if surplus is not None:
            with contextlib.suppress(RuntimeError):  # Its loop has ended, and with it the runtime.
                surplus[0].loop.call_soon_threadsafe(_end, *surplus)

    def _expire(self, runtime: Runtime) -> None:
        with self._lock:
            timer = self._kept.pop(runtime, None)
        if timer is not None:
            _end(runtime, timer)


def _end(runtime: Runtime, timer: asyncio.TimerHandle) -> None:
    timer.cancel()
    if not runtime.holders:
        runtime.supervisor.end()
