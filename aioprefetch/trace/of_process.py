"""``AIOPREFETCH_TRACE=FILE``: a process records all of its operators, and writes the trace when it ends.

``{pid}`` in the name is the number of the process. The variable is changed in the process to a name with it, so that
the processes that it starts write files of their own beside that of their parent. A process whose file another one has
written since this one began puts its number into the name, too. Importing this module begins.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from aioprefetch.errors import excerpt, printable
from aioprefetch.trace.process_files import PID, VARIABLE, identity, identity_before, numbered
from aioprefetch.trace.trace import record

logger = logging.getLogger("aioprefetch")


class ProcessTrace:
    """The recording of a process and the name of its file. A forked child that ends by itself has its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._identity_before = identity_before(name)
        self._trace = record().__enter__()
        self._is_written = False
        atexit.register(self.write)
        os.register_at_fork(after_in_child=self._forked)
        self._register_with_multiprocessing()

    def write(self) -> None:
        """End the recording and write it, once. A failure is logged on a line: the program has done its work."""
        if self._is_written:
            return
        self._is_written = True
        if _is_child_of_multiprocessing():  # Its parent may not have imported aioprefetch, nor changed the variable.
            self._name = numbered(self._name)
        path = self._name.replace(PID, str(os.getpid()))
        try:
            self._trace.stop()
            if PID in self._name and not self._trace.recording.requests:
                return  # One of many processes, and not one that reads.
            if PID in self._name or (os.path.exists(path) and not os.path.isfile(path)):
                self._trace.write(path)
                return
            with _locked(os.path.dirname(path)):
                if identity(path) != self._identity_before:  # A process that a shell script has started, say.
                    path = numbered(path).replace(PID, str(os.getpid()))
                self._trace.write(path)
        except Exception as error:
            reason = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            logger.error("the trace could not be written to %s: %s", printable(path), excerpt(str(reason)))

    def _forked(self) -> None:
        self._name = numbered(self._name)
        self._is_written = False
        self._trace.forget()
        self._register_with_multiprocessing()

    def _register_with_multiprocessing(self) -> None:
        """Its children end by ``os._exit``, which runs finalizers and nothing of ``atexit``.

        A child drops those that it has when its work begins, and calls then what is registered for after a fork.
        """
        if util := sys.modules.get("multiprocessing.util"):
            util.register_after_fork(self, ProcessTrace._finalize_at_exit)
            self._finalize_at_exit()

    def _finalize_at_exit(self) -> None:
        # The lowest priority: what the program has registered may still read.
        sys.modules["multiprocessing.util"].Finalize(None, self.write, exitpriority=-sys.maxsize)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Alone among the processes that write traces there, where the file system has locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _exit_by_signal(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # A second one ends the process at once.
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    # Functions of ``atexit`` run below none of these: the program ends already. ``_shutdown`` waits for threads.
    if frame is not None and frame.f_code.co_name in ("<module>", "_run_module_as_main", "_shutdown"):
        sys.exit(128 + number)


def end_orderly_at_sigterm() -> None:
    """Let SIGTERM end the program like ``sys.exit``: by default it ends at once, and would write nothing."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_by_signal)


def _is_child_of_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


if name := os.environ.get(VARIABLE):
    name = os.path.abspath(name)  # Children may work in another directory.
    os.environ[VARIABLE] = numbered(name)
    end_orderly_at_sigterm()
    ProcessTrace(name)
