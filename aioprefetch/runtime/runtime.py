"""The live parts of an Operator: one runtime for each process and event loop, made at first use.

An Operator is a recipe; its **family** (itself and all that is derived from it by ``.layer()``) shares runtimes. A
runtime holds the supervisor, the byte budget, clock, random generator, executor, counters and events. Other parts
keep theirs under ``shared``: connections, semaphores, the block store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from aioprefetch.errors import Closed, WrongLoop
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.runtime.events import EventBus
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.statistics import Counters, Ledger, Statistics, Timer
from aioprefetch.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

# How long a finisher (a cache being written) may take before a runtime closes.
FINISH_SECONDS_MAX = 5.0


# A process counts its forks: a runtime of the parent is never touched in the child. Its sockets and its epoll
# descriptor are shared with the parent, so even destructors must not run: these objects are kept for ever.
_generation = 0
_kept_after_fork: list[object] = []


def _after_fork_in_child() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_after_fork_in_child)


def fork_generation() -> int:
    """The number of forks between this process and the first one."""
    return _generation


class Runtime:
    """The live parts for one loop of one process. Everything in here belongs to that loop's thread."""

    def __init__(self, options: RuntimeOptions) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.generation = _generation
        self.random = random.Random(options.random_seed)
        self.ledger = Ledger()
        self.gauges: list[Callable[[], Mapping[str, int]]] = []
        self.events = EventBus()
        self.budget = MemoryBudget(options.memory_bytes, self.loop)
        self.supervisor = Supervisor()
        self.budget.on_lend = lambda: self.supervisor.on_close(self._close_budget)
        self._executor: ThreadPoolExecutor | None = None
        self._shared: dict[Hashable, Any] = {}
        self._finishers: list[Callable[[], Awaitable[None]]] = []

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its loop was."""
        return self.supervisor.closed or self.loop.is_closed()

    def now(self) -> float:
        """The clock for deadlines: the loop's own, so that a virtual clock is one for all."""
        return self.loop.time()

    @property
    def counters(self) -> Counters:
        """The counters of the running task: those of the reader that it fetches for, otherwise of the runtime."""
        return self.ledger.current

    def timer(self, name: str) -> Timer:
        """``with runtime.timer(name):`` counts the block and measures its duration."""
        return Timer(self.ledger.current, name, self.loop.time)

    def statistics(self) -> Statistics:
        """All counts so far, those of readers included, and the gauges, which are 0 once it is closed."""
        return self.ledger.total().snapshot(self.gauged())

    def gauged(self) -> Counter[str]:
        """The sum of the gauges of all parts."""
        total: Counter[str] = Counter()
        if not self.closed:
            for gauges in tuple(self.gauges):
                total.update(gauges())
        return total

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """The one object of this runtime under ``key``, made at the first call."""
        try:
            return cast("T", self._shared[key])
        except KeyError:
            part = self._shared[key] = make()
            return part

    def peek(self, key: Hashable) -> Any | None:
        """The shared object under ``key`` if it was made already."""
        return self._shared.get(key)

    async def run_blocking(self, call: Callable[..., T], *arguments: object) -> T:
        """Run a blocking call on the runtime's own small executor, so that user code cannot starve it."""
        if self.closed:
            raise Closed("the operator is closed", operation="run_blocking")
        if self._executor is None:
            self._executor = self._start_executor()
        try:
            started = self.loop.run_in_executor(self._executor, call, *arguments)
        except RuntimeError:
            # The interpreter is shutting down and starts no more threads, while other threads still read.
            return call(*arguments)
        return await started

    def _start_executor(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        self.supervisor.on_close(self._shut_executor)
        return ThreadPoolExecutor(self.options.executor_threads, thread_name_prefix="aioprefetch-blocking")

    def is_current(self) -> bool:
        """Whether the caller runs on this runtime's loop, in its process."""
        return self.generation == _generation and asyncio._get_running_loop() is self.loop

    def is_usable(self) -> bool:
        """Whether the caller runs on this runtime's loop, in its process, and it was not closed. Asked at each call."""
        # A loop that runs is not closed.
        return (
            asyncio._get_running_loop() is self.loop and not self.supervisor.closed and self.generation == _generation
        )

    def check_loop(self, *, operation: str, path: str) -> None:
        """``WrongLoop`` unless the caller runs on this runtime's loop."""
        if not self.is_current():
            where = "process" if self.generation != _generation else "event loop or thread"
            raise WrongLoop(
                f"it was made on another {where}; make one on this one, or use aioprefetch.sync from threads",
                operation=operation,
                path=path,
            )

    def before_close(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Await ``finish`` before anything is cancelled at closing, for as long as ``FINISH_SECONDS_MAX``."""
        self._finishers.append(finish)

    async def aclose(self) -> None:
        """End all background work and close every connection. Needs no response from the network."""
        try:
            async with asyncio.timeout(FINISH_SECONDS_MAX) as limit:
                while self._finishers and not self.closed:
                    await self._finishers.pop()()
        except TimeoutError:
            if not limit.expired():
                raise
        await self.supervisor.aclose()
        self._shared.clear()
        self.gauges.clear()
        self.budget.close()

    async def _close_budget(self) -> None:
        self.budget.close()

    async def _shut_executor(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


class RuntimeFamily:
    """The runtimes of one recipe, by loop. Pickles as its options: the copy starts its own runtimes."""

    def __init__(self, options: RuntimeOptions) -> None:
        self.options = options
        self._reset()

    def _reset(self) -> None:
        self._generation = _generation
        self._lock = threading.Lock()
        self._past = Counters()
        self._ended: list[Ledger] = []
        self._runtimes: dict[asyncio.AbstractEventLoop, Runtime] = {}
        # A family that is dropped without closing: its runtimes end when the last operator and reader are gone.
        self._finalizer = weakref.finalize(self, _end_all, self._runtimes)
        self._finalizer.atexit = False

    def current(self) -> Runtime:
        """The runtime of the running loop, made if there is none or the last one was closed."""
        if self._generation != _generation:
            _kept_after_fork.append((self._runtimes, self._lock))
            self._finalizer.detach()
            self._reset()
        loop = asyncio.get_running_loop()
        with self._lock:
            runtime = self._runtimes.get(loop)
            if runtime is None or runtime.closed:
                self._retire()
                runtime = self._runtimes[loop] = Runtime(self.options)
            return runtime

    def _retire(self) -> None:
        """Forget the runtimes that ended, but keep their counts, and the ledgers of readers that are still open."""
        for loop in [loop for loop, runtime in self._runtimes.items() if runtime.closed]:
            self._ended.append(self._runtimes.pop(loop).ledger)
        for ledger in [ledger for ledger in self._ended if ledger.is_settled()]:
            self._ended.remove(ledger)
            self._past.merge(ledger.total())

    def existing(self) -> Runtime | None:
        """The open runtime of the running loop, if there is one."""
        loop = asyncio._get_running_loop()
        if loop is None or self._generation != _generation:
            return None
        with self._lock:
            runtime = self._runtimes.get(loop)
        return None if runtime is None or runtime.closed else runtime

    def statistics(self) -> Statistics:
        """All counts in this process, those of runtimes that ended included, and the gauges of the others."""
        total = Counters()
        gauges: Counter[str] = Counter()
        if self._generation == _generation:
            with self._lock:
                total.merge(self._past)
                for ledger in self._ended:
                    total.merge(ledger.total())
                for runtime in self._runtimes.values():
                    total.merge(runtime.ledger.total())
                    gauges.update(runtime.gauged())
        return total.snapshot(gauges)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)


def _end_all(runtimes: dict[asyncio.AbstractEventLoop, Runtime]) -> None:
    for loop, runtime in runtimes.items():
        if runtime.generation == _generation and not runtime.closed:
            with contextlib.suppress(RuntimeError):  # The loop closed in between, and with it all that ran on it.
                loop.call_soon_threadsafe(runtime.supervisor.end)
