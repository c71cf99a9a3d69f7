"""The live parts of an Operator: one runtime for each process and event loop, made at first use.

An Operator is a recipe; the operators of a **family** (see ``family``) share runtimes. A runtime holds the supervisor,
the byte budget, clock, random generator, executor, counters and events. Other parts keep theirs under ``shared``:
connections, semaphores, the block store.

Two more parts are here. ``LoopTurn`` bounds how much is read in one turn of the event loop without waiting for
anything. ``Drains`` has the drained responses: such a response is received for the sake of its connection alone, and
meanwhile it holds a slot, that connection and memory. When a read waits for one of these, drained responses are
cancelled, and no further one begins. A prefetch that waits ends nothing: a stream has some in the queue at almost any
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from aioprefetch.errors import Closed, WrongLoop
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.runtime.events import EventBus, clock_of
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.statistics import Counters, Ledger, StatisticsSnapshot, Timer
from aioprefetch.runtime.supervisor import Supervisor
from aioprefetch.values import Lane

if TYPE_CHECKING:
    from random import Random

    from aioprefetch.runtime.threads import Threads

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
        # For durations: two calls less than ``now``, at the beginning and the end of all that a request consists of.
        self.clock = self.events.clock = clock_of(self.loop.time)
        self.budget = MemoryBudget(options.memory_bytes, self.loop)
        self.drains = Drains(self.budget)
        self.turn = LoopTurn(self.loop)
        self.supervisor = Supervisor()
        self.budget.on_first_use = lambda: self.supervisor.on_close(self._close_budget)
        self._executor: Threads | None = None
        self._random: Random | None = None
        self._shared: dict[Hashable, Any] = {}
        self._finishers: list[Callable[[], Awaitable[None]]] = []
        self._holds: dict[int, weakref.finalize[..., object]] = {}
        # On the loop, once the last operator that used it was collected. A closed one ends it at once.
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
        """The counters of the running task: of the reader that it fetches for, otherwise of the runtime."""
        return self.ledger.current

    def timer(self, name: str) -> Timer:
        """``with runtime.timer(name):`` counts the block and measures its duration."""
        return Timer(self.ledger.current, name, self.clock)

    def statistics(self) -> StatisticsSnapshot:
        """All counts so far, readers included, and the gauges, which are 0 once it is closed."""
        return self.ledger.total().snapshot(self.gauged())

    def gauged(self) -> Counter[str]:
        """The sum of the gauges of all parts, and the budget's."""
        total: Counter[str] = Counter()
        if not self.closed:
            total["stream_read_active_memory_in_use"] = self.budget.used_bytes
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
            from aioprefetch.runtime.threads import Threads

            self._executor = Threads(self.options.executor_threads, "aioprefetch-blocking")
            self.supervisor.on_close(self._shut_executor)
        try:
            started = self.loop.run_in_executor(self._executor, call, *arguments)
        except RuntimeError:  # The interpreter is shutting down and starts no more threads, while others still read.
            return call(*arguments)
        try:
            return await started
        finally:
            del started  # The traceback of its error holds this frame.

    @property
    def random(self) -> Random:
        """The random generator; the same one each time."""
        if self._random is None:
            from random import Random  # A process whose requests succeed needs none.

            self._random = Random(self.options.random_seed)
        return self._random

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
        """Count an operator as a user of this runtime, until it lets go or is collected."""
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


def _holder_collected(runtime: Runtime, holder_id: int) -> None:
    if runtime.generation == _generation:
        runtime.drop(holder_id)
    else:
        leak_after_fork(runtime)


# --- turns of the loop ------------------------------------------------------------------------------------------------

# The kernel copies this much in 10 µs into memory in use; into fresh memory, whose pages it zeroes, in 60 to 120 µs.
TURN_BYTES = 64 << 10
# What a read counts at least: the calls around it take longer than the copy of a few bytes.
_LEAST_BYTES = 4 << 10
# The most tasks that begin in one turn.
_BEGINNERS_MAX = TURN_BYTES // _LEAST_BYTES


class LoopTurn:
    """Counts the bytes that tasks read on the loop, since a task that only reads what is in memory never waits.

    ``spend`` them; when ``left_bytes`` is not positive, ``await end()`` before the next read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.left_bytes = TURN_BYTES
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._beginners = 1

    def spend(self, size_bytes: int) -> None:
        """A read of ``size_bytes`` was made."""
        self.left_bytes -= size_bytes if size_bytes > _LEAST_BYTES else _LEAST_BYTES

    async def end(self) -> None:
        """Wait for another turn of the loop, behind those waiting already."""
        waiting = self._waiting
        if not waiting:
            self._loop.call_soon(self._begin)
        waiter = self._loop.create_future()
        waiting.append(waiter)
        await waiter

    def _begin(self) -> None:
        # A task that reads on and on uses the turn up, so one of them begins in each. Where tasks read once and then do
        # something else, more begin together.
        self._beginners = min(2 * self._beginners, _BEGINNERS_MAX) if self.left_bytes > 0 else 1
        self.left_bytes = TURN_BYTES
        waiting = self._waiting
        for _ in range(min(self._beginners, len(waiting))):
            waiter = waiting.popleft()
            if not waiter.done():  # Its task was cancelled.
                waiter.set_result(None)
        if waiting:
            self._loop.call_soon(self._begin)


# --- drained responses ------------------------------------------------------------------------------------------------

# The turns of the loop until a cancelled response has returned its slot and its connection is closed.
_CANCEL_TURNS = 4


class Drained(Protocol):
    """A response whose rest no read needs."""

    @property
    def left_bytes(self) -> int:
        """The bytes that have not arrived."""

    def cancel(self) -> None:
        """Break it off."""


class Waiting:
    """A request that waits, for as long as its ``with`` block runs."""

    def __init__(self, drains: Drains, lane: Lane) -> None:
        self.lane: Lane = lane
        self._drains = drains

    def __enter__(self) -> Self:
        self._drains.demand_waiting += self.lane == "demand"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drains.demand_waiting -= self.lane == "demand"

    def promote(self) -> None:
        """A read waits for this prefetch now."""
        self._drains.demand_waiting += self.lane == "prefetch"
        self.lane = "demand"


class Drains:
    """The drained responses of a runtime.

    ``demand_waiting`` is the number of requests for reads that wait for a slot, and of all requests that wait
    for a connection, where lanes are not known. The budget knows by itself how many bytes of reads wait for memory.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.demand_waiting = 0
        self._budget = budget
        self._responses: set[Drained] = set()

    def waits(self, lane: Lane) -> Waiting:
        """``with drains.waits(lane):`` around the wait of a request."""
        return Waiting(self, lane)

    def begin(self, response: Drained) -> bool:
        """Let a response be drained; ``False`` if a read waits, which needs what the response holds."""
        if self.demand_waiting or self._budget.queued_bytes:
            return False
        self._responses.add(response)
        return True

    def end(self, response: Drained) -> None:
        """It has ended, or a read waits for its bytes."""
        self._responses.discard(response)

    def cancel_one(self) -> bool:
        """Cancel the response that misses most bytes; ``False`` without any."""
        if not self._responses:
            return False
        response = max(self._responses, key=lambda drained: drained.left_bytes)
        self._responses.discard(response)
        response.cancel()
        return True

    async def give_way(self, is_over: Callable[[], bool]) -> None:
        """Cancel responses, one after the other, until the wait of a request ``is_over`` or none is left."""
        while not is_over() and self.cancel_one():
            for _ in range(_CANCEL_TURNS):
                await asyncio.sleep(0)
