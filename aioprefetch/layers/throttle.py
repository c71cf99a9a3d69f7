"""Throttle: a maximum of bytes a second, for reads and writes together.

A **token bucket** fills by ``bytes_per_second``, and holds what comes in a tenth of a second. A write pays for its
bytes before it sends them. A read pays as they arrive: it begins when no debt is left, its connection pauses while
there is one (``Sink.is_paced``), and it ends when its bytes are paid for. So any number of calls at once share the
rate. Bytes in a reader's memory, and copies by the store itself, cost nothing.

It is the outermost layer, so that its pauses take nothing of the time of Retry and Timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor, WriteBody
from aioprefetch.accessor.sink import ForwardingSink, Sink
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import SIZE
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Metadata, PartRequest, ReadReply, ReadRequest, Request, UploadedPart, WriteRequest

R = TypeVar("R", bound=Request)
T = TypeVar("T")

# What the bucket holds at most.
BURST_SECONDS = 0.1
# Bodies that are in memory are received in pieces of at least this size.
PIECE_BYTES_MIN = 16 << 10


@dataclass(frozen=True, slots=True, eq=False)
class ThrottleLayer(Layer):
    """The recipe of Throttle.

    Operators that share the layer object share its rate, on each event loop. A call waits until its deadline at most.

    Parameters
    ----------
    bytes_per_second
        The bytes of all bodies in a second: a number, or a text such as ``"10MiB"``.
    """

    bytes_per_second: int

    def __post_init__(self) -> None:
        rate = SIZE.checked(self.bytes_per_second, "bytes_per_second of ThrottleLayer")
        object.__setattr__(self, "bytes_per_second", rate)

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        rate = self.bytes_per_second
        return ThrottleAccessor(runtime.shared(("throttle", self), lambda: TokenBucket(runtime, rate)), inner)


class TokenBucket:
    """Tokens for bytes, or for requests; below zero is a debt, which time repays."""

    def __init__(self, runtime: Runtime, bytes_per_second: float) -> None:
        self._runtime = runtime
        self.bytes_per_second = bytes_per_second
        self._burst = self._tokens = bytes_per_second * BURST_SECONDS
        self._filled_at = runtime.now()

    @property
    def debt_seconds(self) -> float:
        """How long it takes to repay the debt; 0 without one."""
        now = self._runtime.now()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self.bytes_per_second)
        self._filled_at = now
        return max(0.0, -self._tokens / self.bytes_per_second)

    def take(self, count: int) -> None:
        """Take tokens, which may leave a debt."""
        self._tokens -= count

    async def repaid(self, deadline: float | None = None) -> None:
        """Wait until the present debt is repaid, but not beyond a deadline."""
        seconds = self.debt_seconds
        if seconds:
            await asyncio.sleep(seconds if deadline is None else min(seconds, deadline - self._runtime.now()))

    async def pay(self, count: int, request: Request) -> None:
        """Take tokens, and wait for them. A wait that fails or is cancelled gives them back."""
        self.take(count)
        try:
            await self.repaid(request.deadline)
        except BaseException:
            self.take(-count)
            raise


@dataclass(frozen=True, slots=True)
class RequestRateLayer(Layer):
    """A maximum of requests a second. Operators with an equal one share its rate in a runtime.

    It belongs within Retry, so that each attempt counts.
    """

    requests_per_second: float

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        rate = self.requests_per_second
        return RequestRateAccessor(runtime.shared(("requests", rate), lambda: TokenBucket(runtime, rate)), inner)


class RequestRateAccessor(WrappedAccessor):
    """The live layer of ``RequestRateLayer``."""

    def __init__(self, bucket: TokenBucket, inner: Accessor) -> None:
        super().__init__(inner)
        self._bucket = bucket

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        await self._bucket.pay(1, request)
        return await forward(request)


class ThrottleAccessor(WrappedAccessor):
    """The live layer."""

    rename = WrappedAccessor.rename  # Neither bytes nor names are changed here.

    def __init__(self, bucket: TokenBucket, inner: Accessor) -> None:
        super().__init__(inner)
        self._bucket = bucket

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        await self._bucket.repaid(request.deadline)
        reply = await self.inner.read(request, ThrottledSink(sink, self._bucket))
        await self._bucket.repaid()
        return reply

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        await self._bucket.pay(memoryview(data).nbytes, request)
        return await self.inner.write(request, data)

    async def write_part(self, request: PartRequest, data: bytes | bytearray | memoryview) -> UploadedPart:
        await self._bucket.pay(memoryview(data).nbytes, request)
        return await self.inner.write_part(request, data)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return ThrottledWriteBody(await self.inner.open_write(request), self._bucket, request)


class ThrottledSink(ForwardingSink):
    """Pays for the bytes that arrive, and is full while there is a debt."""

    __slots__ = ("_bucket",)
    is_paced = True

    def __init__(self, target: Sink, bucket: TokenBucket) -> None:
        super().__init__(target)
        self._bucket = bucket

    @property
    def is_full(self) -> bool:  # type: ignore[override]  # A constant for sinks that are never behind.
        return self._bucket.debt_seconds > 0 or self.target.is_full

    def writable(self) -> memoryview:
        return self.target.writable()[: max(PIECE_BYTES_MIN, int(self._bucket.bytes_per_second * BURST_SECONDS))]

    def advance(self, count: int) -> None:
        self._bucket.take(count)
        self.target.advance(count)

    def feed(self, chunk: bytes | bytearray | memoryview) -> int:
        count = self.target.feed(chunk)
        self._bucket.take(count)
        return count

    async def pour(self, body: memoryview) -> None:
        await Sink.pour(self, body)

    async def drained(self) -> None:
        await self._bucket.repaid()
        if self.target.is_full:
            await self.target.drained()


class ThrottledWriteBody:
    """A body that is written; each piece is paid for before it is."""

    def __init__(self, body: WriteBody, bucket: TokenBucket, request: WriteRequest) -> None:
        self._body = body
        self._bucket = bucket
        self._request = request
        self.close, self.abort = body.close, body.abort

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        await self._bucket.pay(memoryview(chunk).nbytes, self._request)
        await self._body.write(chunk)
