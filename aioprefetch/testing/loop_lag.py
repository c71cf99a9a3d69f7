"""How long callbacks hold an event loop, in CPU time of the loop's thread, and whose code it was.

A loop that decodes, parses or imports serves nobody meanwhile: no timeout fires, no other task runs. Tools that look
for blocking calls do not see this, since the thread is busy. CPU time is measured, not wall time, so that a busy
machine does not change the result. Collections of garbage are left out: they belong to the process, not to the
callback.
"""

import asyncio
import gc
import inspect
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

SAMPLE_SECONDS = 0.005
STACK_FRAMES_MAX = 25
OWN_PACKAGE = Path(__file__).resolve().parents[1]
# Frames of these files say nothing about who asked for the work: the interpreter, the standard library, dependencies.
_PASSED_OVER = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# What serves tests or a command has a loop, or a process, of its own; loading a room on first use is the caller's.
_NOT_OURS = tuple(str(OWN_PACKAGE / name) for name in ("testing", "cli", "__init__.py"))

_AWAITED = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR


@dataclass(frozen=True, slots=True)
class HeldLoop:
    """One callback that held its loop for too long.

    Attributes:
        cpu_seconds: CPU time of the thread while code of the watched package ran, or what it called.
        stack: File, line and function of where the thread was when most of that time had gone, outermost first.
    """

    cpu_seconds: float
    stack: tuple[tuple[str, int, str], ...]

    def __str__(self) -> str:
        """The figures on one line and the stack below it."""
        frames = (traceback.FrameSummary(*frame) for frame in self.stack)
        stack = "".join(traceback.StackSummary.from_list(list(frames)).format())
        return f"{self.cpu_seconds * 1000:.0f} ms of CPU without a turn of the loop\n{stack}"


class _Running:
    """The callback that runs on one thread."""

    def __init__(self, thread_id: int) -> None:
        self.thread_id = thread_id
        self.clock = time.pthread_getcpuclockid(thread_id)
        self.depth = 0
        self.garbage_seconds = 0.0
        self._collecting_since = 0.0
        self._lock = threading.Lock()
        self._clear(0.0)

    def _clear(self, now: float) -> None:
        self.sampled_at = now
        self.own_seconds = 0.0
        self._longest = 0.0
        self.is_own = False
        self.stack: tuple[tuple[str, int, str], ...] = ()

    def begin(self) -> None:
        with self._lock:
            self.garbage_seconds = 0.0
            self._clear(time.clock_gettime(self.clock))
            self.depth = 1

    def end(self) -> float:
        """CPU seconds that were the package's own; what came after the last sample counts as that sample did."""
        with self._lock:
            self.depth = 0
            if self.is_own:
                self.own_seconds += time.clock_gettime(self.clock) - self.sampled_at
            return self.own_seconds - self.garbage_seconds

    def sample(self, package: str, quiet_seconds: float) -> None:
        """Look whose code runs, once the callback has used ``quiet_seconds``.

        Not before: a frame that is looked at lives longer, with all that its variables hold.
        """
        with self._lock:
            now = time.clock_gettime(self.clock)
            spent = now - self.sampled_at
            if not self.depth or (spent < quiet_seconds and not self.stack):
                return
            self.sampled_at = now
            frame = sys._current_frames().get(self.thread_id)
            self.is_own = is_own(frame, package)
            if self.is_own:
                self.own_seconds += spent
                if spent >= self._longest:
                    self._longest, self.stack = spent, stack_of(frame)

    def collect(self, phase: str) -> None:
        now = time.clock_gettime(self.clock)
        if phase == "start":
            self._collecting_since = now
        else:
            self.garbage_seconds += now - self._collecting_since


def stack_of(frame: FrameType | None) -> tuple[tuple[str, int, str], ...]:
    """File, line and function of the innermost frames, outermost first. Reads no source, which would cost memory."""
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < STACK_FRAMES_MAX:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


def is_own(frame: FrameType | None, package: str) -> bool:
    """Whether the package holds the loop: it runs, or what it called, and it was awaited or called by the loop.

    A plain function of the package that somebody else calls on a loop is that caller's to answer for.
    """
    entered: FrameType | None = None
    while frame is not None:
        path = frame.f_code.co_filename
        if path == __file__:  # the loop called
            break
        if path.startswith(package):
            if path.startswith(_NOT_OURS):
                break
            entered = frame
        elif not path.startswith("<") and not path.startswith(_PASSED_OVER):
            return entered is not None and bool(entered.f_code.co_flags & _AWAITED)
        frame = frame.f_back
    return entered is not None


class LoopLag:
    """Watches the event loops of this process while it is entered. asyncio's own loops only, not uvloop's.

    A thread looks every 5 ms whether a callback takes long, and then at what it does; a callback costs two reads of a
    clock more.

    Args:
        limit_seconds: CPU seconds that one callback may take.
        package: Folder of the package whose code counts, with whatever it calls. By default this one.
    """

    def __init__(self, limit_seconds: float = 0.05, package: Path = OWN_PACKAGE) -> None:
        self.limit_seconds = limit_seconds
        self.held: list[HeldLoop] = []
        self._package = str(package)
        self._here = threading.local()
        self._running: dict[int, _Running] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="aioprefetch-loop-lag", daemon=True)

    def __enter__(self) -> Self:
        self._run = asyncio.Handle._run
        lag, run = self, self._run

        def measured(self: asyncio.Handle) -> None:
            lag._measure(self, run)

        asyncio.Handle._run = measured  # type: ignore[method-assign]  # each callback passes here
        gc.callbacks.append(self._collect)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        gc.callbacks.remove(self._collect)
        self._stop.set()
        self._thread.join()

    def take(self) -> list[HeldLoop]:
        """What held a loop since the last call."""
        held, self.held = self.held, []
        return held

    def _measure(self, handle: Any, run: Any) -> None:
        running: _Running | None = getattr(self._here, "running", None)
        if running is None:
            running = self._here.running = _Running(threading.get_ident())
        if running.depth:  # a loop within a callback of a loop: it is part of that callback
            run(handle)
            return
        self._running[running.thread_id] = running
        running.begin()
        try:
            run(handle)
        finally:
            spent = running.end()
            del self._running[running.thread_id]
            if spent > self.limit_seconds:
                self.held.append(HeldLoop(spent, running.stack))

    def _collect(self, phase: str, info: Mapping[str, int]) -> None:
        running: _Running | None = getattr(self._here, "running", None)
        if running is not None:
            running.collect(phase)

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for running in list(self._running.values()):
                running.sample(self._package, self.limit_seconds / 2)
