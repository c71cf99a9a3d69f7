"""``AIOPREFETCH_TRACE=FILE``: a process records all of its operators, and its page is written when it ends.

``{pid}`` in the name is the number of the process. With ``AIOPREFETCH_TRACE_STACKS=1`` requests know the lines of the
program that they are for. Its child processes are on its page, however they start: each appends what it records to the
spool of the page, ten times a second while it reads, so that a kill loses little. No signal is handled, and no process
is waited for. Importing this module starts the recording.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aioprefetch.errors import excerpt, printable
from aioprefetch.runtime.events import Event, subscribe_to_all
from aioprefetch.runtime.forks import free_in_child
from aioprefetch.trace.spool import PID, SPOOL_BYTES_MAX, SPOOL_VARIABLE, VARIABLE, Spool, numbered, spool_of
from aioprefetch.trace.trace import STACKS_VARIABLE, record

if TYPE_CHECKING:
    from multiprocessing.util import Finalize

logger = logging.getLogger("aioprefetch")

# A process that is killed loses what is younger.
WRITE_SECONDS = 0.1
# The thread that writes ends when it has found nothing new this number of times, and begins with the next read.
IDLE_TIMES_MAX = 10


class ProcessTrace:
    """The recording of a process. A forked child starts its own."""

    def __init__(self, name: str) -> None:
        self._writes_empty = PID not in name  # With {pid} many programs run, most of which read nothing.
        self._path = os.path.abspath(name.replace(PID, str(os.getpid())))  # Children may work in another directory.
        is_root = os.environ.get(SPOOL_VARIABLE) != spool_of(self._path)
        if is_root and _is_child_of_multiprocessing():  # Its parent has not imported this, and does not wait for it.
            self._path = numbered(self._path)
        self._lock = free_in_child(threading.Lock())
        self._has_ended = False
        self._waking: list[Callable[[], None]] = []
        self._finalizer: Finalize | None = None
        self._leave_writing_through: Callable[[], None] | None = None
        self._spool = Spool(spool_of(self._path), is_root=is_root)
        self._append(None, is_end=False)
        os.environ[VARIABLE], os.environ[SPOOL_VARIABLE] = self._path, self._spool.folder
        self._trace = record(stacks=bool(os.environ.get(STACKS_VARIABLE))).__enter__()
        self._wait_for_a_read()
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._forked)
        self._register_with_multiprocessing()

    def end(self) -> None:
        """Write what is left, and the page, unless a process lives that will. A failure is logged on a line."""
        if self._has_ended:
            return
        try:
            self._trace.stop()
            self._write(is_end=True)
            self._has_ended = True
            if self._spool.written_bytes:
                self._spool.end(self._path, even_empty=self._writes_empty)
        except Exception as error:
            self._fail(error)

    def _write(self, *, is_end: bool = False) -> bool:
        """Write what is new. Whether there was anything, or a request is in flight."""
        # On the thread that reads, or in a finalizer on top of it: a thread that is writing now will write this, too.
        if not self._lock.acquire(timeout=WRITE_SECONDS):
            return True
        try:
            if self._has_ended:
                return False
            facts = self._trace.take_out()
            if facts is not None or (is_end and self._spool.written_bytes):
                self._append(facts, is_end=is_end)
            return facts is not None or self._trace.is_in_flight
        except Exception as error:
            self._fail(error)
            return False
        finally:
            self._lock.release()

    def _append(self, facts: dict[str, Any] | None, *, is_end: bool) -> None:
        try:
            self._spool.append(_label(), facts, is_end=is_end)
        except FileNotFoundError:  # The last process but this one has ended, and the page is written.
            self._path = numbered(self._path)
            self._spool = Spool(spool_of(self._path), is_root=True)
            self._spool.append(_label(), facts, is_end=is_end)
        if self._spool.written_bytes > SPOOL_BYTES_MAX:
            self._trace.recording.keep_counts_only()
            if self._leave_writing_through is not None:
                self._leave_writing_through()

    def _fail(self, error: Exception) -> None:
        self._has_ended = True
        self._trace.stop()
        log_failure(self._path, error)

    # --- when it is written ------------------------------------------------------------------------------------------

    def _wait_for_a_read(self) -> None:
        """Start the writing thread at the next request or read: a process that reads nothing needs no thread."""
        self._waking.append(subscribe_to_all(self._wake, "request.started", "read.served"))

    def _wake(self, event: Event) -> None:
        with suppress(IndexError, RuntimeError):  # Another thread was woken; or no thread begins while Python ends.
            self._waking.pop()()
            threading.Thread(target=self._write_at_intervals, name="aioprefetch trace", daemon=True).start()
        if _is_child_of_multiprocessing() and self._leave_writing_through is None:
            # A pool may kill its worker as soon as it has the result: write at the end of each read and request.
            ends = ("read.served", "request.finished", "request.failed")
            self._leave_writing_through = subscribe_to_all(lambda event: self._write(), *ends)
            self._write()

    def _write_at_intervals(self) -> None:
        idle_times = 0
        while idle_times < IDLE_TIMES_MAX and not self._has_ended:
            time.sleep(WRITE_SECONDS)
            idle_times = 0 if self._write() else idle_times + 1
        if not self._has_ended:
            self._wait_for_a_read()
            self._write()

    # --- where a process ends ----------------------------------------------------------------------------------------

    def _forked(self) -> None:
        self._spool.close()
        self._spool = Spool(self._spool.folder, is_root=False)
        self._has_ended = False
        self._trace.forget()
        if not self._waking:  # The thread is one of the parent.
            self._wait_for_a_read()
        self._register_with_multiprocessing()

    def _at_exit(self) -> None:
        # ``multiprocessing`` ends the children after this function, where it was imported before it was registered.
        if self._finalizer is None or not self._finalizer.still_active():
            self.end()

    def _register_with_multiprocessing(self) -> None:
        """Its children end by ``os._exit``, which runs finalizers and nothing of ``atexit``.

        A child drops the inherited ones when its work begins, and then calls what is registered for after a fork.
        """
        if util := sys.modules.get("multiprocessing.util"):
            util.register_after_fork(self, ProcessTrace._finalize_at_exit)
            self._finalize_at_exit()

    def _finalize_at_exit(self) -> None:
        # The lowest priority: what the program has registered may still read, and children have ended.
        util = sys.modules["multiprocessing.util"]
        self._finalizer = util.Finalize(None, self.end, exitpriority=-sys.maxsize)


def log_failure(path: str, error: Exception) -> None:
    """Tell the user, once the program's work is done."""
    reason = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    logger.error("the trace could not be written to %s: %s", printable(path), excerpt(str(reason)))


def _label() -> str:
    """The name of this process as people know it; without its folder and arguments, which may hold secrets."""
    if _is_child_of_multiprocessing():
        return str(sys.modules["multiprocessing.process"].current_process().name)
    return os.path.basename(next(iter(getattr(sys, "argv", ())), "")) or "python"


def _is_child_of_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


if name := os.environ.get(VARIABLE):
    try:
        ProcessTrace(name)
    except Exception as error:
        log_failure(os.path.abspath(name), error)
