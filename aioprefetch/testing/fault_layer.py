"""A layer that injects faults by plan, for tests of readers and of the layers around it.

A plan is a tuple of :class:`Injection`: each has the calls that it applies to, the point within a call, and the fault.
A plan prints, compares and pickles, and a property test can draw and shrink it::

    plan = (Injection(operation="read", occurrence=0, at=65536, error=Unavailable),)
    op = ap.Operator.bare(ap.services.Memory("m")).layer(FaultLayer(plan)).layer(RetryLayer())

Put it next to the service, inside of the tested layers. Unlike the memory service alone, every call lets other tasks
run, and a body arrives in small chunks, so that cancellations and races can occur at many points.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.errors import Error, Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, ReadReply, ReadRequest, Request

R = TypeVar("R", bound=Request)
T = TypeVar("T")

Point = Literal["call", "head", "reply"] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault.

    Calls: with ``operation`` and ``path`` (``None``: any), from number ``occurrence`` on, counted from 0 (``None``:
    from the first), and ``times`` of them (``None``: all later ones).

    Point: ``at="call"`` before the request is sent, ``"head"`` after the response's head (of a read), ``"reply"`` after
    a control operation has taken effect, or an integer, after that number of bytes of the body.

    Fault: a pause of ``delay_seconds``; then, with ``hang``, an endless wait; or ``error`` is raised, with
    ``retry_after_seconds``; or, with ``truncate``, the body ends there as if it were complete.

    The head of a read can be falsified: ``etag``, ``total`` and ``last_modified`` replace its values (an empty ``etag``
    removes it), ``size_delta_bytes`` and ``start_delta_bytes`` change the stated range.
    """

    operation: str | None = None
    path: str | None = None
    occurrence: int | None = None
    times: int | None = 1
    at: Point = "call"
    delay_seconds: float = 0.0
    hang: bool = False
    error: type[Error] | None = None
    retry_after_seconds: float | None = None
    truncate: bool = False
    etag: str | None = None
    total: int | None = None
    last_modified: datetime | None = None
    size_delta_bytes: int = 0
    start_delta_bytes: int = 0

    def fits(self, request: Request) -> bool:
        """Whether the injection applies to the call."""
        return self.operation in (None, request.operation) and self.path in (None, request.path)

    def falsify(self, head: ReadHead) -> ReadHead:
        """The head with the changes of the injection."""
        return replace(
            head,
            etag=head.etag if self.etag is None else self.etag or None,
            total=head.total if self.total is None else self.total,
            last_modified=self.last_modified or head.last_modified,
            size=head.size + self.size_delta_bytes,
            start=head.start + self.start_delta_bytes,
        )


@dataclass(frozen=True, slots=True)
class FaultLayer(Layer):
    """The recipe of the layer: a plan, and the size of the chunks of bodies. Each live layer counts its own calls."""

    plan: tuple[Injection, ...] = ()
    chunk_bytes: int = 64 << 10

    def wrap(self, inner: Accessor, runtime: Runtime) -> FaultAccessor:
        """The live layer, whose counts start at zero."""
        return FaultAccessor(self, inner)


class FaultAccessor(WrappedAccessor):
    """The live layer.

    ``requests`` are the calls so far, ``in_flight`` the calls that have not ended, ``in_flight_peak`` their maximum.
    """

    rename = WrappedAccessor.rename  # Neither bytes nor names are changed here.

    def __init__(self, layer: FaultLayer, inner: Accessor) -> None:
        super().__init__(inner)
        self.requests: list[Request] = []
        self.in_flight = self.in_flight_peak = 0
        self._layer = layer
        self._seen = [0] * len(layer.plan)

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        """Forward a control operation by the plan."""
        chosen = self._choose(request)
        self._count_in()
        try:
            await asyncio.sleep(0)
            await self.strike(chosen, "call", request)
            response = await forward(request)
            await self.strike(chosen, "reply", request)
            return response
        finally:
            self.in_flight -= 1

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """A read that follows the plan: the response of the inner read, delivered chunk by chunk."""
        chosen = self._choose(request)
        self._count_in()
        try:
            await asyncio.sleep(0)
            await self.strike(chosen, "call", request)
            inner = CollectSink()
            response = await self.inner.read(request, inner)
            head = response.head
            for injection in chosen:
                head = injection.falsify(head)
            await self.strike(chosen, "head", request)
            sink.begin(head, path=request.path)
            await self._deliver(inner.to_view(), sink, request, chosen)
            return ReadReply(head=head, received=head.size)
        finally:
            self.in_flight -= 1

    async def _deliver(self, body: memoryview, sink: Sink, request: ReadRequest, chosen: tuple[Injection, ...]) -> None:
        """Deliver the body in small chunks. No chunk crosses the next point of the plan."""
        points = sorted({injection.at for injection in chosen if isinstance(injection.at, int)}, reverse=True)
        position, is_truncated = 0, False
        while not sink.complete:
            await asyncio.sleep(0)
            while points and points[-1] == position:
                is_truncated = await self.strike(chosen, points.pop(), request) or is_truncated
            size = self._layer.chunk_bytes if not points else min(self._layer.chunk_bytes, points[-1] - position)
            chunk = body[:0] if is_truncated else body[position : position + size]
            if not chunk:
                raise Unavailable(f"the body ended after {position} bytes", operation="read", path=request.path)
            sink.feed(chunk)
            position += len(chunk)

    async def strike(self, chosen: tuple[Injection, ...], at: Point, request: Request) -> bool:
        """Inject the faults of this point of a call; ``True`` if the body is truncated here."""
        truncate = False
        for injection in chosen:
            if injection.at != at:
                continue
            if injection.delay_seconds:
                await asyncio.sleep(injection.delay_seconds)
            if injection.hang:
                await asyncio.get_running_loop().create_future()
            if injection.error is not None:
                raise injection.error(
                    f"injected at {at}",
                    operation=request.operation,
                    path=request.path,
                    retry_after_seconds=injection.retry_after_seconds,
                )
            truncate = truncate or injection.truncate
        return truncate

    def _choose(self, request: Request) -> tuple[Injection, ...]:
        """Count the call, and return its injections."""
        self.requests.append(request)
        chosen = []
        for index, injection in enumerate(self._layer.plan):
            if not injection.fits(request):
                continue
            number, first = self._seen[index], injection.occurrence or 0
            self._seen[index] += 1
            if number >= first and (injection.times is None or number < first + injection.times):
                chosen.append(injection)
        return tuple(chosen)

    def _count_in(self) -> None:
        self.in_flight += 1
        self.in_flight_peak = max(self.in_flight_peak, self.in_flight)
