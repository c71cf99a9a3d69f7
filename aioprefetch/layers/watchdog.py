"""Ends a wait from outside by cancelling its task, and tells that cancellation from the caller's own.

Works as ``asyncio.timeout`` does (by ``Task.cancel`` and ``Task.uncancel``), but costs a read no timer of its own: all
reads of one accessor are watched by one timer, because they all have the same limit and so expire in the order of
their beginning.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from aioprefetch.accessor.sink import Sink

Reason = Literal["limit", "deadline"]

# A read is looked at this often within its limit: it ends after the limit without a byte, at most a quarter later.
LOOKS = 4
# The loop may call a timer early by the resolution of its clock.
CLOCK_SLACK_SECONDS = 1e-6


class Watch:
    """One wait of the current task, from its making to ``end``."""

    __slots__ = ("_alone", "_cancelling", "_idle_looks", "_received", "_sink", "_task", "due", "expired")

    def __init__(self, sink: Sink | None = None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] = task
        self._cancelling = task.cancelling()
        self._sink = sink
        self._received = 0 if sink is None else sink.received
        self._idle_looks = 0
        self._alone: bool | None = None
        self.due = 0.0
        self.expired: Reason | None = None

    def expire(self, reason: Reason) -> None:
        """End the wait."""
        if self.expired is None:
            self.expired = reason
            self._task.cancel()

    def end(self) -> bool:
        """Take the watch's own cancellation back; ``True`` when it had expired and nobody else had cancelled the task.

        To be called before the task goes on, whatever the outcome of the wait; a second call only answers again.
        """
        if self.expired is None:
            return False
        if self._alone is None:
            self._alone = self._task.uncancel() <= self._cancelling
        return self._alone

    def look(self) -> bool:
        """Note progress; ``False`` when there was none for the whole limit."""
        if self._sink is not None and self._sink.received != self._received:
            self._received = self._sink.received
            self._idle_looks = 0
            return True
        self._idle_looks += 1
        return self._idle_looks < LOOKS


class StallWatchdog:
    """Expires each watch of its own that sees no progress for ``stall_seconds``."""

    __slots__ = ("_interval_seconds", "_loop", "_timer", "_watches")

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self._loop = loop
        self._interval_seconds = stall_seconds / LOOKS
        # In the order of ``due``: each watch is put at the end, one interval from now.
        self._watches: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._watches)

    def start(self, watch: Watch) -> None:
        """Watch it from now on."""
        watch.due = self._loop.time() + self._interval_seconds
        self._watches[watch] = None
        if self._timer is None:
            self._timer = self._loop.call_at(watch.due, self._look)

    def stop(self, watch: Watch) -> None:
        """Watch it no more. The timer stays for the next read, and ends by itself when there is none."""
        self._watches.pop(watch, None)

    def close(self) -> None:
        """Watch nothing more."""
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        while self._watches:
            watch = next(iter(self._watches))
            if watch.due > now + CLOCK_SLACK_SECONDS:
                break
            del self._watches[watch]
            if watch.look():
                watch.due = now + self._interval_seconds
                self._watches[watch] = None
            else:
                watch.expire("limit")
        first = next(iter(self._watches), None)
        self._timer = None if first is None else self._loop.call_at(first.due, self._look)
