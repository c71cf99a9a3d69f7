"""Timeout: no single attempt waits for ever.

Two limits for two kinds of waiting. A control operation (``stat``, ``list``, ``delete``, ...) has ``timeout_seconds``
for its response. A read has ``stall_seconds`` **without progress**: until the head and then from byte to byte, however
long the whole body takes. That means the same for ``read`` (bytes that reached the sink) and for a body (each
``read_chunk``; the time between two calls is the caller's). Besides, a request's own ``deadline`` bounds every wait.

Retry belongs outside of this layer: each attempt then has its own limit. The other way round the first attempt that
hangs uses up the time of all::

    op.layer(TimeoutLayer()).layer(RetryLayer())      # right: Retry is the outer one
    op.layer(RetryLayer()).layer(TimeoutLayer())      # wrong: one limit for all attempts together
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, stall_seconds_of
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.accessor.write_body import WriteBody
from aioprefetch.errors import Stalled, TimedOut
from aioprefetch.layers.watchdog import StallWatchdog, Watch
from aioprefetch.runtime.options import checked_seconds
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Metadata, ReadHead, ReadReply, ReadRequest, Request, WriteRequest

R = TypeVar("R", bound=Request)
T = TypeVar("T")

# The seam shows no progress within a write, so its limit grows with its size: once more for each of these begun.
WRITE_BYTES_PER_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutLayer(Layer):
    """The recipe of Timeout.

    ``timeout_seconds`` bounds one attempt of a control operation, and a write for each 16 MiB of it. ``stall_seconds``
    bounds the time without progress of a read; a read is looked at four times within it, so it may last a quarter
    longer after the last byte. ``None`` switches the limit off (``request.deadline`` still holds).

    On expiry: ``TimedOut`` before the head, ``Stalled`` within a body, both temporary; ``TimedOut``, permanent, when it
    was the caller's deadline. The inner call is cancelled and an inner body is closed. A cancellation by the caller
    passes unchanged, even in the moment of expiry.
    """

    timeout_seconds: float | None = 60.0
    stall_seconds: float | None = 20.0

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "stall_seconds"):
            if getattr(self, name) is not None:
                checked_seconds(f"{name} of TimeoutLayer", getattr(self, name))

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return TimeoutAccessor(self, inner, runtime)


class TimeoutAccessor(WrappedAccessor):
    """The live layer."""

    def __init__(self, layer: TimeoutLayer, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        stall_seconds, inner_seconds = layer.stall_seconds, stall_seconds_of(inner)
        if stall_seconds is not None and inner_seconds is not None and inner_seconds <= stall_seconds:
            stall_seconds = None  # What lies within keeps the limit by itself.
        self._timeout_seconds = layer.timeout_seconds
        self._stall_seconds = stall_seconds
        self._loop = runtime.loop
        self._watchdog = None if stall_seconds is None else StallWatchdog(runtime.loop, stall_seconds)

    def read(self, request: ReadRequest, sink: Sink) -> Coroutine[Any, Any, ReadReply]:
        # Where nothing is armed the inner read is handed out itself, so that this layer is no step on its way.
        if self._watchdog is None and request.deadline is None:
            return self.inner.read(request, sink)
        return self._read_watched(request, sink)

    async def _read_watched(self, request: ReadRequest, sink: Sink) -> ReadReply:
        watchdog, timer = self._watchdog, None
        watch = Watch(sink)
        if request.deadline is not None:
            timer = self._arm(watch, request, None)
        if watchdog is not None:
            watchdog.start(watch)
        try:
            return await self.inner.read(request, sink)
        except asyncio.CancelledError:
            if not watch.end():
                raise
            raise self._expired(watch, request, self._stall_seconds, sink) from None
        finally:
            if watch.expired is not None:
                watch.end()
            if watchdog is not None:
                watchdog.stop(watch)
            if timer is not None:
                timer.cancel()

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        return await self.bounded(request, self._timeout_seconds, lambda: forward(request))

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        limit = self._write_limit(memoryview(data).nbytes)
        return await self.bounded(request, limit, lambda: self.inner.write(request, data))

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return TimeoutWriteBody(await self.around(request, self.inner.open_write), self, request)

    async def write_chunk(self, request: WriteRequest, count: int, call: Callable[[], Awaitable[T]]) -> T:
        """One call on an inner body being written, which may have to send ``count`` bytes."""
        return await self.bounded(request, self._write_limit(count), call)

    async def bounded(self, request: Request, limit_seconds: float | None, call: Callable[[], Awaitable[T]]) -> T:
        """``call()``, ended after ``limit_seconds`` or at the request's deadline. Nothing is armed without either."""
        if limit_seconds is None and request.deadline is None:
            return await call()
        watch = Watch()
        timer = self._arm(watch, request, limit_seconds)
        try:
            return await call()
        except asyncio.CancelledError:
            if not watch.end():
                raise
            raise self._expired(watch, request, limit_seconds) from None
        finally:
            watch.end()
            timer.cancel()

    async def aclose(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
        await self.inner.aclose()

    def _arm(self, watch: Watch, request: Request, limit_seconds: float | None) -> asyncio.TimerHandle:
        now = self._loop.time()
        deadline = request.deadline
        if deadline is not None and deadline <= now:
            raise _too_late(request, None, 0)
        if deadline is not None and (limit_seconds is None or deadline <= now + limit_seconds):
            return self._loop.call_at(deadline, watch.expire, "deadline")
        assert limit_seconds is not None
        return self._loop.call_at(now + limit_seconds, watch.expire, "limit")

    def _write_limit(self, count: int) -> float | None:
        return None if self._timeout_seconds is None else self._timeout_seconds * (1 + count // WRITE_BYTES_PER_LIMIT)

    def _expired(
        self, watch: Watch, request: Request, limit_seconds: float | None, sink: Sink | None = None
    ) -> TimedOut:
        head, received = (None, 0) if sink is None else (sink.head, sink.received)
        if watch.expired == "deadline":
            return _too_late(request, head, received)
        facts = _facts(request, received) | {"limit_seconds": limit_seconds}
        operation, path = request.operation, request.path
        if head is None:
            return TimedOut(
                f"no response within {limit_seconds:g} seconds", operation=operation, path=path, context=facts
            )
        return Stalled(
            f"the body stopped after {received} of {head.size} bytes: no more came for {limit_seconds:g} seconds",
            operation=operation,
            path=path,
            context=facts,
            head=head,
            received=received,
        )


class TimeoutWriteBody:
    """A body being written of which each call has to end in time, according to the bytes it may have to send."""

    def __init__(self, body: WriteBody, layer: TimeoutAccessor, request: WriteRequest) -> None:
        self._body = body
        self._layer = layer
        self._request = request
        self._written = 0

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        count = memoryview(chunk).nbytes
        await self._layer.write_chunk(self._request, count, lambda: self._body.write(chunk))
        self._written += count

    async def close(self) -> Metadata:
        # Where a service collects, all of the object is sent now.
        return await self._layer.write_chunk(self._request, self._written, self._body.close)

    async def abort(self) -> None:
        # Cleaning up has a limit of its own: the caller's deadline may be what made it necessary.
        await self._layer.write_chunk(replace(self._request, deadline=None), 0, self._body.abort)


def _facts(request: Request, received: int) -> dict[str, object]:
    if not isinstance(request, ReadRequest):
        return {}
    return {"range": request.describe(), "received": received}


def _too_late(request: Request, head: ReadHead | None, received: int) -> TimedOut:
    return TimedOut(
        "the caller's deadline has passed",
        status="permanent",
        operation=request.operation,
        path=request.path,
        context=_facts(request, received),
        head=head,
        received=received,
    )
