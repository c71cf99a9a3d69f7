"""Hedge: a read whose first byte is late is requested a second time, and the response that begins first is received.

A few responses of a store take many times as long as the others, and a job that needs hundreds of them waits for the
slowest. A second request, sent when the first one takes longer than most of the last ones did, is mostly answered at
once (Dean and Barroso, "The Tail at Scale", 2013: 2 % more requests took a 99.9th percentile from 1,800 to 74 ms).

Both requests have one sink. The one whose checked head arrives first begins it and receives its body straight into the
caller's memory; the other one is cancelled before a byte of its body. So a hedge takes no memory, and bytes of two
versions cannot mix. A body that is slow after its head is not hedged: Timeout and the transport watch for those.

**Few requests more.** At most ``extra_max`` of the reads are requested twice. None is while requests wait for a slot of
ConcurrentLimit: their time says nothing about the store, and a second request would wait behind them. ``Throttled``
takes the allowance away, which grows again with the reads that follow. A prefetch is hedged when a reader waits for it.
Only reads are hedged.

Directly within Retry each attempt may be hedged, and both requests take a slot::

    op.layer(HedgeLayer(), inside=RetryLayer)
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor, stall_seconds_of
from aioprefetch.accessor.sink import ForwardingSink, Sink
from aioprefetch.errors import ConfigInvalid, Error, Throttled
from aioprefetch.layers.concurrent_limit import ConcurrentLimitAccessor, SlotQueue
from aioprefetch.layers.timeout import Watch
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import stopped
from aioprefetch.values import Lane, ReadHead, ReadReply, ReadRequest

# The percentile is of the last reads: few enough to follow a store that changes, enough to know a 99th percentile.
SAMPLES_MAX = 400
SAMPLES_MIN = 20
# A read is late when it takes that much longer: where all take about the same time, none is.
LATE_FACTOR = 1.2
# A wait that is shorter than this is not worth a request.
HEDGE_SECONDS_MIN = 0.01
# How many reads in a row may be hedged after many that were not.
HEDGES_IN_A_ROW_MAX = 10

FIRST, SECOND = 1, 2


@dataclass(frozen=True, slots=True)
class HedgeLayer(Layer):
    """The recipe of Hedge.

    A read is requested a second time when its first byte takes a fifth longer than for ``percentile`` of the last
    400 reads did, and longer than 10 ms; not before 20 reads. At most the share ``extra_max`` of all reads is. A read
    fails when both of its requests have failed, or the first one with an error that another request would not change. A
    cancelled read cancels both.

    ``hedges`` and ``hedges_won`` count the second requests, and how many of their responses were received; the event
    ``request.hedged`` tells of each. Raises ``ConfigInvalid`` for a ``percentile`` outside of [0.5, 1) or an
    ``extra_max`` outside of (0, 1].
    """

    percentile: float = 0.95
    extra_max: float = 0.05

    def __post_init__(self) -> None:
        if not (_is_number(self.percentile) and 0.5 <= self.percentile < 1):
            raise ConfigInvalid(
                f"percentile of HedgeLayer must be at least 0.5 and below 1, such as 0.95, not {self.percentile!r}",
                operation="configure",
            )
        if not (_is_number(self.extra_max) and 0 < self.extra_max <= 1):
            raise ConfigInvalid(
                f"extra_max of HedgeLayer must be above 0 and at most 1, such as 0.05, not {self.extra_max!r}",
                operation="configure",
            )

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return HedgeAccessor(self, inner, runtime)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class FirstByteTimes:
    """The seconds to the first byte of the last reads. Pure: no loop, no clock."""

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        """Add a read, and forget the oldest one of more than ``SAMPLES_MAX``."""
        if len(self._last) == SAMPLES_MAX:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]
        self._last.append(seconds)
        insort(self._sorted, seconds)

    def percentile(self, share: float) -> float | None:
        """The time within which that share of the reads had their first byte; ``None`` for too few reads."""
        count = len(self._sorted)
        return self._sorted[min(count - 1, int(share * count))] if count >= SAMPLES_MIN else None


class HedgeAllowance:
    """How many reads may be requested twice: a share of all reads, saved up to a bound. Pure."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved = 0.0

    def read(self) -> None:
        """Count a read."""
        self._saved = min(HEDGES_IN_A_ROW_MAX, self._saved + self._share)

    def take(self) -> bool:
        """Use the allowance for a second request; ``False`` without one."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True

    def withdraw(self) -> None:
        """Begin at zero again: the store asks for fewer requests."""
        self._saved = 0.0


class HedgeAccessor(WrappedAccessor):
    """The live layer."""

    rename = WrappedAccessor.rename  # Neither bytes nor names are changed here.

    def __init__(self, layer: HedgeLayer, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self.stall_seconds = stall_seconds_of(inner)
        self.times = FirstByteTimes()
        self.allowance = HedgeAllowance(layer.extra_max)
        self.runtime = runtime
        self._percentile = layer.percentile
        self._slots = _slots_within(inner)

    def read(self, request: ReadRequest, sink: Sink) -> Coroutine[Any, Any, ReadReply]:
        self.allowance.read()
        lane: Lane = "demand" if sink.is_promoted else request.lane
        if self._slots is not None and not self._slots.is_free(lane):
            return self.inner.read(request, sink)  # Its time would measure the queue.
        return _Race(self, request, sink).run()

    def late_seconds(self) -> float | None:
        """The time to the first byte after which a read is late; ``None`` as long as that is not known."""
        seconds = self.times.percentile(self._percentile)
        return None if seconds is None else max(LATE_FACTOR * seconds, HEDGE_SECONDS_MIN)

    def may_hedge(self) -> bool:
        """Take the allowance for a second request, if it would be sent now."""
        return (self._slots is None or self._slots.is_free("demand")) and self.allowance.take()


class _Race:
    """One read: its first request, perhaps a second one, and which of the two receives the response."""

    def __init__(self, layer: HedgeAccessor, request: ReadRequest, sink: Sink) -> None:
        self.on_promote: Callable[[], None] | None = None  # Of the first request, while it waits for a slot.
        self.head_before, self.received_before = sink.head, sink.received
        self._layer = layer
        self._loop = layer.runtime.loop
        self._request = request
        self._sink = sink
        self._began = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._watch: Watch | None = None  # While the first request runs, in the task of the caller.
        self._second: asyncio.Task[ReadReply] | None = None
        self._winner: int | None = None

    async def run(self) -> ReadReply:
        if self._request.lane == "demand" or self._sink.is_promoted:
            self._arm()
        else:
            self._sink.on_promote = self._promoted
        try:
            reply = await self._first_reply()
            return await self._second_reply() if reply is None else reply
        except Throttled:
            self._layer.allowance.withdraw()
            raise
        finally:
            if self._sink.on_promote == self._promoted:
                self._sink.on_promote = None
            if self._timer is not None:
                self._timer.cancel()
            second, self._second = self._second, None
            if second is not None:
                await stopped(second)
                if not second.cancelled() and isinstance(second.exception(), Throttled):
                    self._layer.allowance.withdraw()
            del second  # The traceback of its error holds this frame.

    async def _first_reply(self) -> ReadReply | None:
        """The reply to the first request; ``None`` if the second one decides the read."""
        watch = self._watch = Watch()
        try:
            return await self._layer.inner.read(self._request, _RacingSink(self._sink, self, FIRST))
        except asyncio.CancelledError:
            if not watch.end():
                raise
        except Error as error:
            if not self._second_goes_on(error):
                raise
        finally:
            watch.end()
            self._watch = None
            del watch  # It holds the task, whose error may hold this frame.
        return None

    async def _second_reply(self) -> ReadReply:
        assert self._second is not None
        await asyncio.wait((self._second,))
        return self._second.result()

    def _second_goes_on(self, error: Error) -> bool:
        """Whether the second request may still succeed, now that the first one failed with ``error``."""
        if self._winner is not None:
            return self._winner == SECOND
        is_running = self._second is not None and not self._second.done()
        return is_running and error.is_temporary and not isinstance(error, Throttled)

    def _arm(self) -> None:
        seconds = self._layer.late_seconds()
        if seconds is not None and self._winner is None and self._timer is None:
            self._timer = self._loop.call_at(self._began + seconds, self._hedge)

    def _promoted(self) -> None:
        if self.on_promote is not None:
            self.on_promote()
        self._arm()

    def _hedge(self) -> None:
        """The first byte is late: send the second request."""
        layer, request = self._layer, self._request
        if self._winner is not None or self._watch is None or self._sink.is_drained or not layer.may_hedge():
            return
        layer.runtime.counters["hedges"] += 1
        waited_seconds = self._loop.time() - self._began
        layer.runtime.events.publish("request.hedged", request.path, waited_seconds=waited_seconds)
        read = layer.inner.read(request, _RacingSink(self._sink, self, SECOND))
        self._second = self._loop.create_task(read, name="aioprefetch hedge")

    def has_lost(self, number: int) -> bool:
        """Whether the other request receives the response."""
        return self._winner not in (None, number)

    def begin(self, number: int, head: ReadHead, path: str) -> None:
        """The head of a response to one of the requests is here: the first that is accepted wins."""
        if self.has_lost(number):
            raise _Superseded("another request for these bytes was answered first", operation="read", path=path)
        self._sink.begin(head, path=path)
        if self._winner is None:
            self._won(number)

    def _won(self, number: int) -> None:
        self._winner = number
        self._layer.times.add(self._loop.time() - self._began)
        if number == SECOND:
            self._layer.runtime.counters["hedges_won"] += 1
            if self._watch is not None:
                self._watch.expire("limit")
        elif self._second is not None:
            self._second.cancel()


class _RacingSink(ForwardingSink):
    """The sink of one of two requests. Only one of them begins; the other one's sink receives nothing."""

    def __init__(self, target: Sink, race: _Race, number: int) -> None:
        super().__init__(target)
        self._race = race
        self._number = number

    @property
    def head(self) -> ReadHead | None:  # type: ignore[override]
        return self._race.head_before if self._race.has_lost(self._number) else self.target.head

    @property
    def received(self) -> int:  # type: ignore[override]
        return self._race.received_before if self._race.has_lost(self._number) else self.target.received

    @property
    def on_promote(self) -> Callable[[], None] | None:
        return self._race.on_promote

    @on_promote.setter
    def on_promote(self, call: Callable[[], None] | None) -> None:
        if self._number == FIRST:  # The second request is demand from its beginning.
            self._race.on_promote = call

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        self._race.begin(self._number, head, path)


class _Superseded(Error):
    """Raised within the request that lost, to refuse its response; no caller sees it."""


def _slots_within(accessor: Accessor) -> SlotQueue | None:
    """The slots of the ConcurrentLimit that both requests go through, if there is one."""
    inner: Accessor | None = accessor
    while inner is not None and not isinstance(inner, ConcurrentLimitAccessor):
        inner = getattr(inner, "inner", None)
    return None if inner is None else inner.slots
