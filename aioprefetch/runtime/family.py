"""The runtimes that operators share: one family for all copies of an operator, and for all that look the same one up.

A family has one runtime for each event loop. An operator that uses it there is one of its **holders**, from its first
use until its ``aclose`` or until it is collected. A runtime closes with its last holder. Statistics are the family's.

Runtimes that copies from another process left behind are **kept** for some seconds, for the copies that follow: Spark
and dask unpickle an operator for each task and drop it with the task, and each task would connect, and look credentials
up, again. A kept runtime has connections and credentials, and no bytes in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

from aioprefetch.runtime.events import EventBus, log_requests
from aioprefetch.runtime.forks import free_in_child
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime, fork_generation, leak_after_fork
from aioprefetch.runtime.statistics import Counters, Ledger, StatisticsSnapshot

T = TypeVar("T")

# How long a runtime is kept without an operator, and how many are.
KEPT_SECONDS = 15.0
RUNTIMES_MAX = 8


class KeptRuntimes:
    """Kept runtimes of this process, of any loop, the first left in front. Each may be used again meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Runtime, asyncio.TimerHandle] = OrderedDict()

    def keep(self, runtime: Runtime) -> None:
        """Schedule the end of an unused runtime after ``KEPT_SECONDS``, or sooner when too many are kept. On its loop.

        A runtime that an operator uses again goes on.
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


# --- families ---------------------------------------------------------------------------------------------------------

# The maximum of recipes that a family keeps for copies which are still pickled. A copy of an older one has layers and
# connections of its own.
RECIPES_MAX = 256


class RuntimeFamily:
    """The runtimes of one recipe, by loop."""

    def __init__(self, options: RuntimeOptions, token: str = "") -> None:
        self.options = options
        self._token = token
        self._came_pickled = bool(token)
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self.events = EventBus()
        if log := os.environ.get("AIOPREFETCH_LOG"):
            log_requests(self.events, log)
        self._reset()

    @classmethod
    def find(cls, key: Hashable, options: RuntimeOptions, token: str = "") -> RuntimeFamily:
        """The family of this process under ``key``; a new one, named ``token``, if it is gone."""
        with _register.lock:
            family = _register.families.get((key, options))
            if family is None:
                family = _register.families[key, options] = cls(options, token)
            return family

    @property
    def token(self) -> str:
        """The name of the family in pickles: random, and no secret."""
        if not self._token:
            self._token = os.urandom(16).hex()
        return self._token

    def join(self, key: Hashable) -> None:
        """Let ``find`` return this family under ``key``, unless it has another one there already."""
        with _register.lock:
            _register.families.setdefault((key, self.options), self)

    def keep(self, name: str, made: T) -> T:
        """The object of the first call for ``name``: copies of one operator then share its service and layers.

        Of more than ``RECIPES_MAX`` the least recently used one is forgotten.
        """
        with _register.lock:
            first: T = self._kept.setdefault(name, made)
            self._kept.move_to_end(name)
            if len(self._kept) > RECIPES_MAX:
                self._kept.popitem(last=False)
        return first

    def _reset(self) -> None:
        self._generation = fork_generation()
        self._lock = threading.Lock()
        self._past = Counters()
        self._ended: list[Ledger] = []
        self._runtimes: dict[asyncio.AbstractEventLoop, Runtime] = {}

    def current(self, holder: object) -> Runtime:
        """The runtime of the running loop, made at first use, and again after it was closed, held by ``holder``."""
        if self._generation != fork_generation():
            leak_after_fork(self._runtimes, self._lock)
            self._reset()
        loop = asyncio.get_running_loop()
        with self._lock:
            while True:
                runtime = self._runtimes.get(loop)
                if runtime is None or runtime.closed:
                    self._retire()
                    runtime = self._runtimes[loop] = self._new_runtime()
                runtime.hold(holder)
                # The collector may run at any line, and take the last other holder before this one counted.
                if not runtime.closed:
                    return runtime

    def _new_runtime(self) -> Runtime:
        runtime = Runtime(self.options, self.events)
        if self._came_pickled:
            runtime.on_collected = functools.partial(self._keep, runtime)  # Then the next copy finds this family.
        return runtime

    def _keep(self, runtime: Runtime) -> None:
        _register.runtimes.keep(runtime)

    async def leave(self, holders: Iterable[object]) -> None:
        """Give up holds on the runtime of the running loop; the last holder closes it."""
        runtime = self.existing()
        if runtime is not None and sum(map(runtime.let_go, holders)):
            await runtime.close_unheld()

    def _retire(self) -> None:
        """Forget the runtimes that ended, but keep their counts, and the ledgers of readers that are still open."""
        for loop in [loop for loop, runtime in self._runtimes.items() if runtime.closed]:
            runtime = self._runtimes.pop(loop)
            runtime.forget_holders()
            self._ended.append(runtime.ledger)
        for ledger in [ledger for ledger in self._ended if ledger.is_settled()]:
            self._ended.remove(ledger)
            self._past.merge(ledger.total())

    def existing(self) -> Runtime | None:
        """The open runtime of the running loop, if there is one."""
        loop = asyncio._get_running_loop()
        if loop is None or self._generation != fork_generation():
            return None
        with self._lock:
            runtime = self._runtimes.get(loop)
        return None if runtime is None or runtime.closed else runtime

    def statistics(self) -> StatisticsSnapshot:
        """All counts in this process, of ended runtimes too, and the gauges of the others."""
        total = Counters()
        gauges: Counter[str] = Counter()
        if self._generation == fork_generation():
            with self._lock:
                total.merge(self._past)
                for ledger in self._ended:
                    total.merge(ledger.total())
                for runtime in self._runtimes.values():
                    total.merge(runtime.ledger.total())
                    gauges.update(runtime.gauged())
        return total.snapshot(gauges)


class Member:
    """One operator in its family: a holder of runtimes, together with the operators made from it by ``layer``.

    ``live`` is what it uses on the loop where it was used last.
    """

    def __init__(self, family: RuntimeFamily, maker: Member | None = None, token: str = "") -> None:
        self.family = family
        self.live: Any = None
        self._token = token
        self._derived: weakref.WeakSet[Member] = weakref.WeakSet()
        makers = () if maker is None else maker._lineage
        self._lineage: tuple[weakref.WeakSet[Member], ...] = (*makers, self._derived)
        for derived in makers:
            derived.add(self)

    def pickled(self, recipe: object, identity: Hashable) -> tuple[RuntimeOptions, str, str]:
        """The arguments of ``unpickled``, which then finds this family and recipe in this process."""
        if not self._token:
            self._token = os.urandom(16).hex()
        self.family.join(("pickled", self.family.token, identity))
        self.family.keep(self._token, recipe)
        return self.family.options, self.family.token, self._token

    @classmethod
    def unpickled(cls, identity: Hashable, options: RuntimeOptions, family_token: str, token: str) -> Member:
        """A member of the family that copies of that operator have in this process, for that identity."""
        return cls(RuntimeFamily.find(("pickled", family_token, identity), options, family_token), token=token)

    def recipe(self, own: T) -> T:
        """The recipe of the first copy: all copies share its objects."""
        return self.family.keep(self._token, own)

    async def leave(self) -> None:
        """Give up the holds of the operator, and of those made from it, on the running loop."""
        members = (self, *self._derived)
        for member in members:
            member.live = None
        await self.family.leave(members)


class _Register:
    """The families of this process that can be found. They live with their operators, and with kept runtimes."""

    def __init__(self) -> None:
        self.lock = free_in_child(threading.Lock())
        self.families: weakref.WeakValueDictionary[Any, RuntimeFamily] = weakref.WeakValueDictionary()
        self.runtimes = KeptRuntimes()

    def forked(self) -> None:
        """In a child: the kept runtimes are the parent's."""
        leak_after_fork(self.runtimes)
        self.runtimes = KeptRuntimes()


_register = _Register()
os.register_at_fork(after_in_child=_register.forked)
