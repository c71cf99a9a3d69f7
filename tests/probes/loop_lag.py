"""Measures how long callbacks hold an event loop, in CPU time of the loop's thread, and finds the code that did.

While a loop decodes, parses or imports, no timeout fires and no other task runs. Tools that look for blocking calls do
not see this, since the thread is busy. CPU time is measured instead of wall time, so that a busy machine does not
change the result. Garbage collections, which belong to the process, do not count, nor does time in the kernel, which
grows with the load of the machine when memory is allocated or freed.
"""

import asyncio
import gc
import inspect
import resource
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, repeat
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

import aioprefetch

SAMPLE_SECONDS = 0.005
STACK_FRAMES_MAX = 25
OWN_PACKAGE = Path(aioprefetch.__file__).resolve().parent
# Frames of these files do not identify the caller: the interpreter, the standard library, dependencies.
_PASSED_OVER = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# Code for tests or commands has its own loop or process; loading a package at first use belongs to the caller.
_NOT_OURS = tuple(str(OWN_PACKAGE / name) for name in ("testing", "cli", "__init__.py"))

# The file, line and function of frames, outermost first.
Frames = tuple[tuple[str, int, str], ...]
_AWAITED = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR


@dataclass(frozen=True, slots=True)
class HeldLoop:
    """A callback that held its loop for too long.

    Attributes:
        cpu_seconds: CPU time of the thread in one call of the watched package, nested calls included.
        stack: The frames of the thread when most of that time had passed, outermost first.
    """

    cpu_seconds: float
    stack: Frames

    def __str__(self) -> str:
        """The figures on one line, and the stack below it."""
        frames = (traceback.FrameSummary(*frame) for frame in self.stack)
        stack = "".join(traceback.StackSummary.from_list(list(frames)).format())
        return f"{self.cpu_seconds * 1000:.0f} ms of CPU without a turn of the loop\n{stack}"


class _Running:
    """The callback that runs on one thread, and the call into the package that it is in.

    Most callbacks end before the thread looks at them, and cost no read of a clock: time counts from the first look.
    """

    def __init__(self, thread_id: int) -> None:
        self.thread_id = thread_id
        self.is_running = False
        # Set at every look: the kernel's time is then read again before the next callback.
        self.is_stale = True
        self.callback = self.looked_into = self._seen = 0
        self._clock = time.pthread_getcpuclockid(thread_id)
        self._lock = threading.Lock()
        self._collecting_since = self._began = self._looked = 0.0
        self._kernel_seconds = self._garbage_seconds = 0.0
        self._clear()

    def _clear(self) -> None:
        self._call: FrameType | None = None
        self._call_seconds = self._longest_seconds = 0.0
        self._worst = HeldLoop(0.0, ())

    def refresh(self) -> None:
        self.is_stale = False
        self._kernel_seconds = kernel_seconds()

    def end(self) -> HeldLoop:
        """The longest call of a callback that the thread has looked into; time after the last look counts for it."""
        with self._lock:
            if self._call is not None:
                self._add(time.clock_gettime(self._clock) - self._looked, self._worst.stack)
            self._call = None
            left_out = self._garbage_seconds + kernel_seconds() - self._kernel_seconds
            return HeldLoop(self._worst.cpu_seconds - left_out, self._worst.stack)

    def look(self, package: str, quiet_seconds: float) -> None:
        """Look at the running code, once the callback has used ``quiet_seconds``.

        Not earlier, since a frame that is looked at lives longer, with all its variables.
        """
        with self._lock:
            if not self.is_running:
                return
            now = time.clock_gettime(self._clock)
            if self._seen != self.callback:
                self._seen = self.callback
                self._began = self._looked = now
                self._garbage_seconds = 0.0
            spent, self._looked = now - self._looked, now
            if now - self._began < quiet_seconds:
                return
            if self.looked_into != self.callback:
                self.looked_into = self.callback
                self._clear()
            frames = frames_of(self.thread_id)
            call = entered(frames, package)
            if call is not self._call:
                self._call, self._call_seconds, self._longest_seconds = call, 0.0, 0.0
            if call is not None:
                self._add(spent, stack_of(frames))

    def _add(self, spent: float, stack: Frames) -> None:
        self._call_seconds += spent
        if self._call_seconds > self._worst.cpu_seconds:
            is_longest = spent >= self._longest_seconds
            self._worst = HeldLoop(self._call_seconds, stack if is_longest else self._worst.stack)
        self._longest_seconds = max(self._longest_seconds, spent)

    def collect(self, phase: str) -> None:
        """Record the start or the end of a garbage collection."""
        now = time.clock_gettime(self._clock)
        if phase == "start":
            self._collecting_since = now
        else:
            self._garbage_seconds += now - self._collecting_since


def kernel_seconds() -> float:
    """The CPU time of this thread in the kernel, in seconds."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_stime if sys.platform == "linux" else 0.0


def frames_of(thread_id: int) -> list[FrameType]:
    """The frames of a thread, innermost first.

    They are walked in one call, without the interpreter's lock being given away: the thread would run on, and a frame
    that ends during the walk may have something else in the place of its caller. The walk makes objects, so the
    collector is off meanwhile: its callbacks are code of Python, which gives the lock away.
    """
    frames: list[Any] = []
    collects = gc.isenabled()
    gc.disable()
    try:
        frames.extend(accumulate(repeat("f_back"), getattr, initial=sys._current_frames().get(thread_id)))
    except AttributeError:  # Of None: the outermost frame has no caller.
        pass
    finally:
        if collects:
            gc.enable()
    return frames[:-1]


def stack_of(frames: Sequence[FrameType]) -> Frames:
    """The file, line and function of the innermost frames, outermost first; without source, which takes memory."""
    innermost = frames[:STACK_FRAMES_MAX]
    return tuple((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in reversed(innermost))


def entered(frames: Sequence[FrameType], package: str) -> FrameType | None:
    """The call by which the package holds the loop, or None: one that other code awaited or the loop called.

    A plain function of the package is the responsibility of the code that calls it on a loop.
    """
    call: FrameType | None = None
    for frame in frames:
        path = frame.f_code.co_filename
        if path == __file__:  # called by the loop
            break
        if path.startswith(package) and not path.startswith(_NOT_OURS):
            call = frame
        elif not path.startswith("<") and not path.startswith(_PASSED_OVER):
            return call if call is not None and call.f_code.co_flags & _AWAITED else None
    return call


class LoopLag:
    """Watches the event loops of asyncio in this process while it is entered, but not those of uvloop.

    A thread checks every 5 ms whether a callback has run for long, and if so which code it runs.

    Args:
        limit_seconds: Maximum CPU seconds of a call without a turn of the loop.
        package: Folder of the package whose calls count. By default this package.
    """

    def __init__(self, limit_seconds: float = 0.05, package: Path = OWN_PACKAGE) -> None:
        self.limit_seconds = limit_seconds
        self.held: list[HeldLoop] = []
        self._package = str(package)
        self._here = threading.local()
        # By thread. The thread itself keeps its entry alive.
        self._running: WeakValueDictionary[int, _Running] = WeakValueDictionary()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="aioprefetch-loop-lag", daemon=True)

    def __enter__(self) -> Self:
        self._run = asyncio.Handle._run
        lag, run, here = self, self._run, self._here

        def measured(self: asyncio.Handle) -> None:
            try:
                running: _Running = here.running
            except AttributeError:
                running = lag.add_thread()
            if running.is_running:  # A loop within a callback of a loop: it is part of that one.
                run(self)
                return
            if running.is_stale:
                running.refresh()
            running.callback += 1
            running.is_running = True
            try:
                run(self)
            finally:
                del self  # As asyncio does: the traceback of an exception holds this frame, and would hold the result.
                running.is_running = False
                if running.looked_into == running.callback:
                    lag.end(running)

        asyncio.Handle._run = measured  # type: ignore[method-assign]  # runs each callback
        gc.callbacks.append(self._collect)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        gc.callbacks.remove(self._collect)
        self._stop.set()
        self._thread.join()

    def take(self) -> list[HeldLoop]:
        """The callbacks that held a loop since the last call."""
        held, self.held = self.held, []
        return held

    def add_thread(self) -> _Running:
        running = self._here.running = self._running[threading.get_ident()] = _Running(threading.get_ident())
        return running

    def end(self, running: _Running) -> None:
        held = running.end()
        if held.cpu_seconds > self.limit_seconds:
            self.held.append(held)

    def _collect(self, phase: str, info: Mapping[str, int]) -> None:
        running: _Running | None = getattr(self._here, "running", None)
        if running is not None:
            running.collect(phase)

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for running in list(self._running.values()):
                running.is_stale = True
                with suppress(OSError):  # The thread has ended since.
                    running.look(self._package, self.limit_seconds / 5)
