"""Python's garbage collector, kept off the threads that callers wait for.

A collection runs on the thread whose allocation makes it due, with the destructors of garbage of the whole program. One
that wants a lock, as h5py's do, would wait on a thread of ours for a caller that has the lock and waits for that
thread. So collections that begin there find no object, and a thread for which none waits collects in their place.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import threading

from aioprefetch.runtime.threads import awaited_thread

# All objects are collected once this share of them is new, as by Python's own rule.
NEW_SHARE = 4
NEW_MIN = 7_000
# From 3.12 on Python itself freezes some hundred objects. A program that calls ``gc.freeze`` freezes thousands.
FROZEN_MAX = 2_000
# How long an exit waits for a collection whose destructors wait.
EXIT_SECONDS = 10.0


class _Collector:
    def __init__(self) -> None:
        # The step of an iterator is not a call, at whose end Python would switch threads and let others allocate.
        self._hide = iter(gc.freeze, False)
        self._is_hidden = self._is_off = self._is_ended = False
        self._new, self._new_max = 0, NEW_MIN
        self._none_due = threading.Lock()
        self._none_due.acquire()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            gc.callbacks.append(self._watch)
            atexit.register(self._end)
        if self._thread is None or not (self._thread.is_alive() or self._is_ended):  # A fork leaves it behind.
            self._thread = threading.Thread(target=self._serve, name="aioprefetch-collector", daemon=True)
            self._thread.start()

    def _watch(self, phase: str, _: object) -> None:
        """Before and after a collection, on its thread. Meanwhile Python begins no other."""
        if self._is_off or not getattr(awaited_thread, "is_set", False):
            return
        if phase == "start":
            # ``gc.unfreeze`` would free what the program has frozen, too: then Python collects here, and these are not
            # counted again, which takes a while.
            self._is_off = gc.get_freeze_count() > FROZEN_MAX
            self._is_hidden = not self._is_off
            if self._is_hidden:
                self._new += gc.get_count()[0]
                for _ in self._hide:
                    return
        elif self._is_hidden:
            if self._new >= self._new_max:
                self._new_max = max(NEW_MIN, gc.get_freeze_count() // NEW_SHARE)
            gc.unfreeze()
            if self._new >= self._new_max and self._none_due.locked():
                self._new = 0
                self._none_due.release()

    def _serve(self) -> None:
        while not self._is_ended:
            self._none_due.acquire()
            if not self._is_ended:
                gc.collect()

    def _end(self) -> None:
        """Otherwise Python ends the thread in a destructor of h5py, with its lock held and garbage half freed."""
        self._is_ended = True
        with contextlib.suppress(RuntimeError):  # One is due already.
            self._none_due.release()
        if self._thread is not None:
            self._thread.join(EXIT_SECONDS)


_collector = _Collector()


def collect_elsewhere() -> None:
    """Let nothing be collected on threads marked by ``never_collect_here``; a thread of its own does it for them."""
    _collector.start()
