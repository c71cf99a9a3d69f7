"""The live parts of an Operator: one runtime for each process and event loop, made at first use.

An Operator is a recipe; the operators of a **family** (see ``family``) share runtimes. A runtime holds the supervisor,
the byte budget, clock, random generator, executor, counters and events. Other parts keep theirs under ``shared``:
connections, semaphores, the block store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from aioprefetch.errors import Closed, WrongLoop
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.runtime.drains import Drains
from aioprefetch.runtime.events import EventBus, clock_of
from aioprefetch.runtime.loop_turn import LoopTurn
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.statistics import Counters, Ledger, StatisticsSnapshot, Timer
from aioprefetch.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from random import Random

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


def leak_after_fork(*parents: object) -> None:
    """In a child: keep objects of the parent process for ever, so that no destructor of them runs."""
    _kept_after_fork.append(parents)


def fork_generation() -> int:
    """The number of forks between this process and the first one."""
    return _generation


class Runtime:
    """The live parts for one loop of one process. Everything in here belongs to that loop's thread."""

    def __init__(self, options: RuntimeOptions, events: EventBus | None = None) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self._loop_ahead_seconds = self.loop.time() - time.monotonic()
        self.thread = threading.get_ident()
        self.generation = _generation
        self.ledger = Ledger()
        self.gauges: list[Callable[[], Mapping[str, int]]] = []
        self.events = EventBus() if events is None else events
        self.events.clock = clock_of(self.loop.time)
        self.budget = MemoryBudget(options.memory_bytes, self.loop)
        self.drains = Drains(self.budget)
        self.turn = LoopTurn(self.loop)
        self.supervisor = Supervisor()
        self.budget.on_first_use = lambda: self.supervisor.on_close(self._close_budget)
        self._executor: ThreadPoolExecutor | None = None
        self._random: Random | None = None
        self._shared: dict[Hashable, Any] = {}
        self._finishers: list[Callable[[], Awaitable[None]]] = []
        self._holds: dict[int, weakref.finalize[..., object]] = {}
        # On the loop, once the last operator that used it was collected. One that is closed ends it at once.
        self.on_collected: Callable[[], None] = self.supervisor.end

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its loop was."""
        return self.supervisor.closed or self.loop.is_closed()

    def now(self) -> float:
        """The clock for deadlines: the loop's own, so that a virtual clock is one for all."""
        return self.loop.time()

    def wall_now(self) -> float:
        """The time of day, in seconds since 1970, by the same clock: the system's, unless the loop's is a virtual one.

        On an ordinary loop the difference of the two clocks is 0, and a system clock that was set is followed.
        """
        return time.time() + self.loop.time() - time.monotonic() - self._loop_ahead_seconds

    @property
    def counters(self) -> Counters:
        """The counters of the running task: those of the reader that it fetches for, otherwise of the runtime."""
        return self.ledger.current

    def timer(self, name: str) -> Timer:
        """``with runtime.timer(name):`` counts the block and measures its duration."""
        return Timer(self.ledger.current, name, self.loop.time)

    def statistics(self) -> StatisticsSnapshot:
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

    @property
    def random(self) -> Random:
        """The random generator; the same one each time."""
        if self._random is None:
            from random import Random  # A process whose requests succeed needs none.

            self._random = Random(self.options.random_seed)
        return self._random

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

    @property
    def holders(self) -> int:
        """The number of operators that use it."""
        return len(self._holds)

    def hold(self, holder: object) -> None:
        """Count an operator as one that uses this runtime, until it lets go or is collected."""
        if id(holder) not in self._holds:
            hold = self._holds[id(holder)] = weakref.finalize(holder, _holder_collected, self, id(holder))
            hold.atexit = False

    def let_go(self, holder: object) -> bool:
        """Give up the hold of an operator. Whether it had one: then the runtime has to be closed if none is left."""
        hold = self._holds.pop(id(holder), None)
        return hold is not None and hold.detach() is not None

    def forget_holders(self) -> None:
        """Release what the holds keep alive: the loop has ended, and with it this runtime."""
        while self._holds:
            self._holds.popitem()[1].detach()

    def drop(self, holder_id: int) -> None:
        """Forget an operator that was collected, from any thread; after the last one ``on_collected`` is called."""
        self._holds.pop(holder_id, None)
        self._leave_if_unheld()

    def _leave_if_unheld(self) -> None:
        if self._holds or self.closed:
            return
        if asyncio._get_running_loop() is self.loop:
            self.on_collected()
            return
        with contextlib.suppress(RuntimeError):  # The loop closed in between, and with it all that ran on it.
            self.loop.call_soon_threadsafe(self._leave_if_unheld)

    def free_memory(self) -> None:
        """Give up all bytes in memory that no read and no view uses."""
        self.budget.room(self.budget.limit_bytes, "demand")
        self.budget.idle.shrink(0)

    def before_close(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Await ``finish`` whenever an operator closes, before anything is cancelled; up to ``FINISH_SECONDS_MAX``."""
        self._finishers.append(finish)

    async def close_unheld(self) -> None:
        """Finish what was read, and close as ``aclose`` does unless an operator has begun to use it meanwhile."""
        try:
            await self._finish()
        finally:  # when it is cancelled too
            if not self._holds:
                self.supervisor.end()
        if not self._holds:
            await self._close()

    async def aclose(self) -> None:
        """Finish what was read, end all background work and close every connection.

        Needs no response from the network. Operators that hold the runtime get another one at their next use.
        """
        try:
            await self._finish()
        finally:  # when it is cancelled too
            self.forget_holders()
            self.supervisor.end()
        await self._close()

    async def _close(self) -> None:
        await self.supervisor.aclose()
        self._shared.clear()
        self.gauges.clear()
        await self._close_budget()

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(FINISH_SECONDS_MAX) as limit:
                for finish in tuple(self._finishers):
                    if not self.closed:
                        await finish()
        except TimeoutError:
            if not limit.expired():
                raise

    async def _close_budget(self) -> None:
        if self.budget.close():
            self.events.publish("budget.closed", budget_id=self.budget.budget_id)

    async def _shut_executor(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


def _holder_collected(runtime: Runtime, holder_id: int) -> None:
    if runtime.generation == _generation:
        runtime.drop(holder_id)
    else:
        leak_after_fork(runtime)
