"""Timeout: a limit for each attempt.

There are two limits for two kinds of waits. A control operation (``stat``, ``list``, ``delete``, ...) has
``timeout_seconds`` for its response. A read has ``stall_seconds`` **without progress**: until the head and then from
byte to byte, however long the whole body takes. In addition, the ``deadline`` of a request bounds all of its waits.

A wait ends by a cancellation of its task, which is distinguished from a cancellation by the caller in the way of
``asyncio.timeout`` (``Task.cancel`` and ``Task.uncancel``). A read has no timer of its own: one timer watches all reads
of an accessor, because they have the same limit and so expire in the order in which they began.

Retry belongs outside of this layer, so that each attempt has its own limit. Inside of it, the first attempt that hangs
would use up the time of all attempts::

    op.layer(TimeoutLayer()).layer(RetryLayer())      # right: Retry is the outer one
    op.layer(RetryLayer()).layer(TimeoutLayer())      # wrong: one limit for all attempts
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Literal, TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor, WriteBody, stall_seconds_of
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Stalled, TimedOut
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import SECONDS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    CompleteUploadRequest,
    CopyPartRequest,
    CopyRequest,
    Metadata,
    PartRequest,
    ReadHead,
    ReadReply,
    ReadRequest,
    Request,
    StatRequest,
    UploadedPart,
    WriteRequest,
)

R = TypeVar("R", bound=Request)
T = TypeVar("T")

Reason = Literal["limit", "deadline"]

# The progress of a read is checked this often within its limit, so it ends at most a quarter of the limit late.
PROGRESS_CHECKS = 4
# Loops may call a timer early, by the resolution of their clock.
CLOCK_SLACK_SECONDS = 1e-6
# A write shows no progress, so its limit grows with its size: by ``timeout_seconds`` for each piece of this size.
WRITE_BYTES_PER_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutLayer(Layer):
    """The recipe of Timeout.

    ``timeout_seconds`` bounds one attempt of a control operation, and of a write for each 16 MiB. ``stall_seconds``
    bounds the time of a read without progress; progress is checked four times within it, so a read may last a quarter
    longer after its last byte. ``None`` switches a limit off; ``request.deadline`` always holds.

    On expiry the inner call is cancelled and the caller gets ``TimedOut`` before the head or ``Stalled`` within a body,
    both temporary, or a permanent ``TimedOut`` at the deadline. A cancellation by the caller passes unchanged, even at
    the moment of expiry.
    """

    timeout_seconds: float | None = 60.0
    stall_seconds: float | None = 20.0

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "stall_seconds"):
            if getattr(self, name) is not None:
                SECONDS.checked(getattr(self, name), f"{name} of TimeoutLayer")

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return TimeoutAccessor(self, inner, runtime)


class TimeoutAccessor(WrappedAccessor):
    """The live layer."""

    rename = WrappedAccessor.rename  # Neither bytes nor names are changed here.

    def __init__(self, layer: TimeoutLayer, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        stall_seconds, inner_seconds = layer.stall_seconds, stall_seconds_of(inner)
        if stall_seconds is not None and inner_seconds is not None and inner_seconds <= stall_seconds:
            stall_seconds = None  # The inner accessor keeps the limit by itself.
        self._ends_waits = inner_seconds is not None and inner_seconds <= (layer.timeout_seconds or inner_seconds)
        self._timeout_seconds = layer.timeout_seconds
        self._stall_seconds = stall_seconds
        self._loop = runtime.loop
        self._watchdog = None if stall_seconds is None else StallWatchdog(runtime.loop, stall_seconds)

    def read(self, request: ReadRequest, sink: Sink) -> Coroutine[Any, Any, ReadReply]:
        # Without a limit the inner read is returned itself, which saves a coroutine.
        if self._watchdog is None and request.deadline is None:
            return self.inner.read(request, sink)
        return self._read_watched(request, sink)

    async def _read_watched(self, request: ReadRequest, sink: Sink) -> ReadReply:
        watchdog, timer = self._watchdog, None
        watch = Watch(sink)
        try:
            if request.deadline is not None:
                timer = self._arm(watch, request, None)
            if watchdog is not None:
                watchdog.start(watch)
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
            del watch  # It holds the task, whose error may hold this frame.

    def stat(self, request: StatRequest) -> Coroutine[Any, Any, Metadata]:
        # Where the inner accessor ends its own waits, the stat of an object needs no timer: its response has no body.
        # The ``stat`` of a directory may be a listing, with a body that a store can send slowly.
        if self._ends_waits and request.deadline is None and not request.path.endswith("/"):
            return self.inner.stat(request)
        return self.around(request, self.inner.stat)

    def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        return self.bounded(request, self._timeout_seconds, lambda: forward(request))

    def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Coroutine[Any, Any, Metadata]:
        limit = self._write_limit(memoryview(data).nbytes)
        return self.bounded(request, limit, lambda: self.inner.write(request, data))

    def write_part(
        self, request: PartRequest, data: bytes | bytearray | memoryview
    ) -> Coroutine[Any, Any, UploadedPart]:
        limit = self._write_limit(memoryview(data).nbytes)
        return self.bounded(request, limit, lambda: self.inner.write_part(request, data))

    def complete_upload(self, request: CompleteUploadRequest) -> Coroutine[Any, Any, Metadata]:
        # Stores put a large object together before they respond.
        limit = self._write_limit(request.size)
        return self.bounded(request, limit, lambda: self.inner.complete_upload(request))

    def copy(self, request: CopyRequest) -> Coroutine[Any, Any, Metadata]:
        # A store responds when it has copied all bytes.
        return self.bounded(request, self._write_limit(request.size or 0), lambda: self.inner.copy(request))

    def copy_part(self, request: CopyPartRequest) -> Coroutine[Any, Any, UploadedPart]:
        limit = self._write_limit(request.end - request.start)
        return self.bounded(request, limit, lambda: self.inner.copy_part(request))

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return TimeoutWriteBody(await self.around(request, self.inner.open_write), self, request)

    async def write_chunk(self, request: WriteRequest, count: int, call: Callable[[], Awaitable[T]]) -> T:
        """A call of the inner write, which may send ``count`` bytes."""
        return await self.bounded(request, self._write_limit(count), call)

    async def bounded(self, request: Request, limit_seconds: float | None, call: Callable[[], Awaitable[T]]) -> T:
        """``call()``, ended after ``limit_seconds`` or at the deadline of the request, whichever comes first."""
        if limit_seconds is None and request.deadline is None:
            return await call()
        watch, timer = Watch(), None
        try:
            timer = self._arm(watch, request, limit_seconds)
            return await call()
        except asyncio.CancelledError:
            if not watch.end():
                raise
            raise self._expired(watch, request, limit_seconds) from None
        finally:
            watch.end()
            if timer is not None:
                timer.cancel()
            del watch  # It holds the task, whose error may hold this frame.

    async def aclose(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
        await self.inner.aclose()

    def _arm(self, watch: Watch, request: Request, limit_seconds: float | None) -> asyncio.TimerHandle:
        now = self._loop.time()
        deadline = request.deadline
        if deadline is not None and deadline <= now:
            del watch  # It holds the task, whose error will hold this frame.
            raise self._too_late(request, None, 0)
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
            return self._too_late(request, head, received)
        facts = self._facts(request, received) | {"limit_seconds": limit_seconds}
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

    def _facts(self, request: Request, received: int) -> dict[str, object]:
        # An inner layer that would name the service sees a cancellation alone.
        facts: dict[str, object] = {"service": self.inner.info.location}
        if isinstance(request, ReadRequest):
            facts |= {"range": request.describe(), "received": received}
        return facts

    def _too_late(self, request: Request, head: ReadHead | None, received: int) -> TimedOut:
        return TimedOut(
            "the caller's deadline has passed",
            status="permanent",
            operation=request.operation,
            path=request.path,
            context=self._facts(request, received),
            head=head,
            received=received,
        )


class TimeoutWriteBody:
    """A body that is written with a limit for each call, by the bytes that the call may send."""

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
        # A service that collects the object sends all of it now.
        return await self._layer.write_chunk(self._request, self._written, self._body.close)

    async def abort(self) -> None:
        # Cleaning up has a limit of its own: the deadline of the caller may have passed.
        await self._layer.write_chunk(replace(self._request, deadline=None), 0, self._body.abort)


class Watch:
    """A wait of the current task, from its creation to ``end``."""

    def __init__(self, sink: Sink | None = None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] = task
        self._cancelling = task.cancelling()
        self._sink = sink
        self._received = 0 if sink is None else sink.received
        self._idle_checks = 0
        self._is_alone: bool | None = None
        self.due = 0.0
        self.expired: Reason | None = None

    def expire(self, reason: Reason) -> None:
        """End the wait by cancelling the task."""
        if self.expired is None:
            self.expired = reason
            self._task.cancel()

    def end(self) -> bool:
        """Take back the cancellation by this watch; whether the watch alone had cancelled the task.

        Call it after every wait, before the task continues. Later calls return the same value.
        """
        if self.expired is None:
            return False
        if self._is_alone is None:
            self._is_alone = self._task.uncancel() <= self._cancelling
        return self._is_alone

    def look(self) -> bool:
        """Check for progress; ``False`` after a whole limit without any."""
        # A sink that is full waits by itself, and not for the store.
        if self._sink is not None and (self._sink.received != self._received or self._sink.is_full):
            self._received = self._sink.received
            self._idle_checks = 0
            return True
        self._idle_checks += 1
        return self._idle_checks < PROGRESS_CHECKS


class StallWatchdog:
    """Expires the watches that see no progress for ``stall_seconds``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self._loop = loop
        self._interval_seconds = stall_seconds / PROGRESS_CHECKS
        # In the order of ``due``: a watch is appended with a time one interval from now.
        self._watches: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._watches)

    def start(self, watch: Watch) -> None:
        """Watch a wait from now on."""
        watch.due = self._loop.time() + self._interval_seconds
        self._watches[watch] = None
        if self._timer is None:
            self._timer = self._loop.call_at(watch.due, self._look)

    def stop(self, watch: Watch) -> None:
        """Watch a wait no longer. The timer stays for the next read, and ends if none comes."""
        self._watches.pop(watch, None)

    def close(self) -> None:
        """Stop all watches and the timer."""
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        while self._watches:
            watch = next(iter(self._watches))
            if watch.due > now + CLOCK_SLACK_SECONDS:
                break
            del self._watches[watch]
            if watch.look():
                watch.due = now + self._interval_seconds
                self._watches[watch] = None
            else:
                watch.expire("limit")
        first = next(iter(self._watches), None)
        self._timer = None if first is None else self._loop.call_at(first.due, self._look)
