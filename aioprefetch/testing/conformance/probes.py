"""Layers that record, hold back or fail the requests of a reader, so that tests need no timing."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.errors import Error
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadRequest, Request

R = TypeVar("R", bound=Request)
T = TypeVar("T")


class RecordingLayer(Layer):
    """Records every request in `requests`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """The live layer."""
        return _Recording(inner, self.requests)

    @property
    def reads(self) -> list[ReadRequest]:
        """The recorded read requests."""
        return [request for request in self.requests if isinstance(request, ReadRequest)]


class _Recording(WrappedAccessor):
    def __init__(self, inner: Accessor, requests: list[Request]) -> None:
        super().__init__(inner)
        self._requests = requests

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        self._requests.append(request)
        return await forward(request)


class GateLayer(Layer):
    """Holds reads back while it is closed. `arrived` counts the reads, `cancelled` the cancelled ones.

    `holds` selects the reads to hold, by default all.
    """

    def __init__(self, holds: Callable[[ReadRequest], bool] = lambda request: True) -> None:
        self.holds = holds
        self.arrived = 0
        self.cancelled = 0
        self._open: asyncio.Event = asyncio.Event()
        self._change = asyncio.Condition()

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """The live layer."""
        return _Gate(inner, self)

    def open(self) -> None:
        """Let all reads pass, waiting and later ones."""
        self._open.set()

    async def wait_for_arrivals(self, number: int) -> None:
        """Wait until ``number`` reads have arrived in total."""
        async with asyncio.timeout(30), self._change:
            await self._change.wait_for(lambda: self.arrived >= number)

    async def wait_for_cancellations(self, number: int) -> None:
        """Wait until ``number`` of the held reads were cancelled."""
        async with asyncio.timeout(30), self._change:
            await self._change.wait_for(lambda: self.cancelled >= number)

    async def pass_through(self) -> None:
        """Called for each held read; returns when it may pass."""
        self.arrived += 1
        await self._tell()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            await self._tell()
            raise

    async def _tell(self) -> None:
        async with self._change:
            self._change.notify_all()


class _Gate(WrappedAccessor):
    def __init__(self, inner: Accessor, gate: GateLayer) -> None:
        super().__init__(inner)
        self._gate = gate

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        if isinstance(request, ReadRequest) and self._gate.holds(request):
            await self._gate.pass_through()
        return await forward(request)


class FailingLayer(Layer):
    """Fails the reads that `fails` selects, with the error that `error` returns. `failed` counts them."""

    def __init__(self, error: Callable[[ReadRequest], Error], fails: Callable[[ReadRequest], bool]) -> None:
        self.error = error
        self.fails = fails
        self.failed = 0

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """The live layer."""
        return _Failing(inner, self)


class _Failing(WrappedAccessor):
    def __init__(self, inner: Accessor, layer: FailingLayer) -> None:
        super().__init__(inner)
        self._layer = layer

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        if isinstance(request, ReadRequest) and self._layer.fails(request):
            self._layer.failed += 1
            raise self._layer.error(request)
        return await forward(request)
