"""ConcurrentLimit: a maximum of requests in flight, lowered while the store asks for that; demand before prefetch.

A slot is taken just before a request goes to the layer below, and returned when the call ends. A call that holds a slot
queues for nothing else, so a reader of many blocks finishes with any limit, also 1. A streaming write holds a slot
during each call only, because between two calls nothing is in flight.

**Throttling.** ``Throttled`` halves the slots that may be in use, at most once a second and never below one. Each full
round of responses, as many as there are slots and none of them ``Throttled``, returns one, until all may be used again
(additive increase, multiplicative decrease, as in TCP). A missing or unchanged object is a response too; other errors
say nothing about the load.

**Drained responses** hold slots too. They are cancelled while a demand request queues, and no further one begins
meanwhile.

Retry belongs outside of this layer, so that its pauses hold no slot, and Timeout inside, so that the wait for a slot is
not part of the wait for a response.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY
from functools import partial
from typing import TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor, WriteBody
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import ConditionNotMatch, Error, NotFound, RangeNotSatisfied, Throttled, TimedOut
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import COUNT, SECONDS, check, option
from aioprefetch.runtime.runtime import Runtime, Waiting
from aioprefetch.values import Lane, Metadata, ReadReply, ReadRequest, Request, WriteRequest

R = TypeVar("R", bound=Request)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ConcurrentLimitLayer(Layer):
    """The recipe of ConcurrentLimit.

    Prefetches take at most ``concurrency - 1`` slots (one, if there is only one). The gauge ``slots_withheld`` and the
    events ``limit.lowered`` and ``limit.restored`` show how many slots may not be used because the store asked for
    fewer requests.

    Parameters
    ----------
    concurrency
        The number of slots, ``None`` for the operator's option. They are one set for each layer object and runtime:
        operators that share the object share the slots.
    wait_seconds
        A request fails with a persistent ``TimedOut`` if no slot at all becomes free for this long, and with a
        permanent one at its deadline.
    """

    concurrency: int | None = option(None, COUNT)
    _: KW_ONLY
    wait_seconds: float = option(60.0, SECONDS)

    def __post_init__(self) -> None:
        check(self, "{} of ConcurrentLimitLayer")

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return ConcurrentLimitAccessor(self, inner, runtime)

    def slots(self, runtime: Runtime) -> SlotQueue:
        """The slots of this layer in a runtime, which show the requests in flight and in the queue."""
        limit = runtime.options.concurrency if self.concurrency is None else self.concurrency

        def make() -> SlotQueue:
            slots = SlotQueue(limit)
            runtime.gauges.append(lambda: {"slots_withheld": slots.limit_max - slots.limit})
            return slots

        return runtime.shared(("concurrent_limit", self), make)


class ConcurrentLimitAccessor(WrappedAccessor):
    """The live layer."""

    rename = WrappedAccessor.rename  # Neither bytes nor names are changed here.

    def __init__(self, layer: ConcurrentLimitLayer, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self.slots = layer.slots(runtime)
        self._runtime = runtime
        self._wait_seconds = layer.wait_seconds

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        lane: Lane = "demand" if sink.is_promoted else request.lane
        slots = self.slots
        if not slots.try_acquire(lane):
            lane = await self._wait(request, lane, sink)
        try:
            response = await self.inner.read(request, sink)
        except Error as error:
            self.failed(error)
            raise
        else:
            if slots.limit < slots.limit_max:
                self._responded()
            return response
        finally:
            slots.release(lane)

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        slots = self.slots
        lane: Lane = "demand" if slots.try_acquire("demand") else await self._wait(request, "demand")
        try:
            response = await forward(request)
        except Error as error:
            self.failed(error)
            raise
        else:
            if slots.limit < slots.limit_max:
                self._responded()
            return response
        finally:
            slots.release(lane)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return ConcurrentLimitWriteBody(await self.around(request, self.inner.open_write), self, request)

    async def acquire(self, request: Request, lane: Lane) -> Lane:
        """Take a slot; returns the lane for its release."""
        return lane if self.slots.try_acquire(lane) else await self._wait(request, lane)

    async def observed(self, call: Awaitable[T]) -> T:
        """Await a request that holds a slot, and adapt the number of slots to its outcome."""
        try:
            result = await call
        except Error as error:
            self.failed(error)
            raise
        self._responded()
        return result

    def failed(self, error: Error) -> None:
        """Adapt the number of slots to the error of a request."""
        slots = self.slots
        if isinstance(error, NotFound | ConditionNotMatch | RangeNotSatisfied):
            self._responded()
        elif isinstance(error, Throttled) and slots.refused(self._runtime.now()):
            self._runtime.events.publish("limit.lowered", error.path, limit=slots.limit, limit_max=slots.limit_max)

    def _responded(self) -> None:
        if self.slots.responded():
            self._runtime.events.publish("limit.restored", limit=self.slots.limit)

    def _restore(self) -> None:
        if self.slots.limit < self.slots.limit_max:
            self.slots.restore()
            self._runtime.events.publish("limit.restored", limit=self.slots.limit)

    async def _wait(self, request: Request, lane: Lane, sink: Sink | None = None) -> Lane:
        with self._runtime.timer("action_executor_acquired"), self._runtime.drains.waits(lane) as waiting:
            return await self._queue(request, waiting, sink)

    async def _queue(self, request: Request, waiting: Waiting, sink: Sink | None) -> Lane:
        """Queue for a slot. If cancelled, the ticket leaves the queue, or its slot goes to the next one."""
        slots, loop, lane = self.slots, self._runtime.loop, waiting.lane
        waiter = loop.create_future()
        ticket = slots.enqueue(lane, lambda: _wake(waiter))
        if lane == "prefetch" and sink is not None:
            sink.on_promote = partial(self._promote, ticket, waiting)
        try:
            if lane == "demand":
                await self._runtime.drains.give_way(lambda: ticket.granted)
            while not ticket.granted:
                releases, waiter = slots.releases, loop.create_future()
                until = loop.time() + self._wait_seconds
                deadline = request.deadline
                beyond_deadline = deadline is not None and deadline <= until
                timer = loop.call_at(until if deadline is None else min(until, deadline), _wake, waiter)
                try:
                    await waiter
                finally:
                    timer.cancel()
                # While slots are released the queue gets shorter; give up only if none was.
                stands_still = slots.releases == releases
                if stands_still and not (ticket.granted or beyond_deadline):
                    # Endless responses may hold all slots that throttling has left: then none could raise the limit.
                    self._restore()
                if not ticket.granted and (beyond_deadline or stands_still):
                    raise self._no_slot(request, beyond_deadline=beyond_deadline)
        except BaseException:
            slots.withdraw(ticket)
            raise
        finally:
            if sink is not None:
                sink.on_promote = None
        return ticket.lane

    def _promote(self, ticket: SlotTicket, waiting: Waiting) -> None:
        self.slots.promote(ticket)
        waiting.promote()
        if not ticket.granted:
            self._runtime.drains.cancel_one()

    def _no_slot(self, request: Request, *, beyond_deadline: bool) -> TimedOut:
        slots = self.slots
        when = "before the caller's deadline" if beyond_deadline else f"became free for {self._wait_seconds:g} seconds"
        withheld = slots.limit_max - slots.limit
        advice = "raise concurrency, or lower the timeouts of reads that hang"
        if withheld:
            advice = f"{withheld} slots are withheld, because the store asks for fewer requests"
        return TimedOut(
            f"no slot {when}: {slots.in_flight} of {slots.limit} requests in flight, {slots.queued} queued; {advice}",
            operation=request.operation,
            path=request.path,
            status="permanent" if beyond_deadline else "persistent",
            context={
                "concurrency": slots.limit_max,
                "slots_withheld": withheld,
                "in_flight": slots.in_flight,
                "queued": slots.queued,
                "prefetch_max": slots.prefetch_max,
            },
        )


class ConcurrentLimitWriteBody:
    """A body that is written: each call takes a slot of its own, except ``abort``, which never waits for one."""

    def __init__(self, body: WriteBody, layer: ConcurrentLimitAccessor, request: WriteRequest) -> None:
        self._body = body
        self._layer = layer
        self._request = request

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        lane = await self._layer.acquire(self._request, "demand")
        try:
            await self._body.write(chunk)  # Most writes send nothing, so a success says nothing about the load.
        except Error as error:
            self._layer.failed(error)
            raise
        finally:
            self._layer.slots.release(lane)

    async def close(self) -> Metadata:
        lane = await self._layer.acquire(self._request, "demand")
        try:
            return await self._layer.observed(self._body.close())
        finally:
            self._layer.slots.release(lane)

    async def abort(self) -> None:
        await self._body.abort()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


# --- slots ------------------------------------------------------------------------------------------------------------

# Requests in flight at one time are refused at one time: they halve the limit once.
HALVING_SECONDS = 1.0


class SlotTicket:
    """A place in the queue. ``lane`` changes by promotion; ``granted`` is set when the ticket becomes a slot."""

    def __init__(self, lane: Lane, wake: Callable[[], object]) -> None:
        self.lane: Lane = lane
        self.granted = False
        self._wake = wake

    def grant(self) -> None:
        """Make the ticket a slot. For the queue alone."""
        self.granted = True
        self._wake()


class SlotQueue:
    """At most ``limit`` slots are taken at any time.

    Demand goes before prefetch; within a lane the order is first come, first served. Prefetches never take the last
    free slot, so that demand does not wait for many prefetches; if ``limit`` is 1, both lanes share the one slot.

    A slot is taken by ``try_acquire``, or by ``enqueue`` and a later grant. ``release`` returns it, with the lane in
    which it was taken. ``withdraw`` returns a ticket, granted or not, so a waiter that is cancelled at the moment of
    its grant loses no slot.

    ``limit`` begins at ``limit_max``, is lowered by ``refused`` and raised by ``responded``, which has no effect while
    the two are equal. Requests in flight stay in flight when the limit is lowered, so ``in_flight`` may exceed it.
    """

    def __init__(self, limit_max: int) -> None:
        self.limit = self.limit_max = limit_max
        self.prefetch_max = max(1, limit_max - 1)
        self._responses = 0
        self._halved_seconds = float("-inf")
        self.in_flight = 0
        self.prefetch_in_flight = 0
        self.releases = 0
        self._demand: deque[SlotTicket] = deque()
        self._prefetch: deque[SlotTicket] = deque()

    @property
    def queued(self) -> int:
        """The number of tickets that wait."""
        return len(self._demand) + len(self._prefetch)

    def try_acquire(self, lane: Lane) -> bool:
        """Take a slot if one is free for this lane. This overtakes no ticket: while a slot is free, none waits."""
        if self.in_flight >= self.limit:
            return False
        if lane == "prefetch":
            if self.prefetch_in_flight >= self.prefetch_max:
                return False
            self.prefetch_in_flight += 1
        self.in_flight += 1
        return True

    def is_free(self, lane: Lane) -> bool:
        """Whether ``try_acquire`` would take a slot."""
        if self.in_flight >= self.limit:
            return False
        return lane == "demand" or self.prefetch_in_flight < self.prefetch_max

    def enqueue(self, lane: Lane, wake: Callable[[], object]) -> SlotTicket:
        """A ticket at the end of its lane, after ``try_acquire`` has failed; ``wake`` is called once, at its grant."""
        ticket = SlotTicket(lane, wake)
        self._line(lane).append(ticket)
        return ticket

    def release(self, lane: Lane) -> None:
        """Return a slot, which goes to the next ticket."""
        self.in_flight -= 1
        self.releases += 1
        if lane == "prefetch":
            self.prefetch_in_flight -= 1
        if self._demand or self._prefetch:
            self._grant()

    def withdraw(self, ticket: SlotTicket) -> None:
        """Return a ticket: remove it from the queue, or release its slot if it was granted meanwhile."""
        if ticket.granted:
            self.release(ticket.lane)
        else:
            self._line(ticket.lane).remove(ticket)

    def promote(self, ticket: SlotTicket) -> None:
        """Make a prefetch demand, because a reader waits for it; it queues behind the demand that waits already."""
        if ticket.lane == "demand":
            return
        if ticket.granted:
            self.prefetch_in_flight -= 1
        else:
            self._prefetch.remove(ticket)
            self._demand.append(ticket)
        ticket.lane = "demand"
        self._grant()

    def refused(self, now: float) -> bool:
        """Lower the limit because the store asked for fewer requests, at ``now`` in seconds; whether it was lowered.

        The count of responses starts again: a round with a refusal is not a full one.
        """
        self._responses = 0
        if self.limit == 1 or now < self._halved_seconds + HALVING_SECONDS:
            return False
        self._halved_seconds = now
        self._set_limit(self.limit // 2)
        return True

    def responded(self) -> bool:
        """Count a response of the store; whether the limit has returned to its maximum by it."""
        if self.limit == self.limit_max:
            return False
        self._responses += 1
        if self._responses < self.limit:
            return False
        self._set_limit(self.limit + 1)
        return self.limit == self.limit_max

    def restore(self) -> None:
        """Return the limit to its maximum, without regard to the store."""
        self._set_limit(self.limit_max)

    def _set_limit(self, limit: int) -> None:
        self.limit = limit
        self.prefetch_max = max(1, limit - 1)
        self._responses = 0
        self._grant()

    def _line(self, lane: Lane) -> deque[SlotTicket]:
        return self._demand if lane == "demand" else self._prefetch

    def _grant(self) -> None:
        while self.in_flight < self.limit:
            if self._demand:
                ticket = self._demand.popleft()
            elif self._prefetch and self.prefetch_in_flight < self.prefetch_max:
                ticket = self._prefetch.popleft()
                self.prefetch_in_flight += 1
            else:
                return
            self.in_flight += 1
            ticket.grant()
