"""One piece of work for all who wait for its result."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from aioprefetch.errors import Closed, Error
from aioprefetch.runtime.runtime import Runtime

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs ``make`` in the background, once for all who ask meanwhile.

    A cancelled caller does not end it for the others. A failure is raised by all of them, and the next call begins
    again; so does a call after a success.
    """

    def __init__(self, runtime: Runtime, make: Callable[[], Awaitable[T]], name: str) -> None:
        self._runtime = runtime
        self._make = make
        self._name = name
        self._running: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """The result. Raises what ``make`` raises, and ``Closed`` if the runtime is closed first."""
        running = self.start()
        try:
            return await asyncio.shield(running)
        except Error as error:
            # Every waiter gets a copy, to which its operation and path are added.
            own = copy.copy(error)
            own.__cause__ = error.__cause__
        raise own from own.__cause__

    def start(self) -> asyncio.Future[T]:
        """The result in the making, begun now unless it was begun before."""
        if self._running is not None:
            return self._running
        if self._runtime.closed:
            raise Closed("the operator is closed")
        running: asyncio.Future[T] = self._runtime.loop.create_future()
        self._running = running
        self._runtime.supervisor.spawn(self._run(running), name=self._name, on_end=lambda: self._end(running))
        return running

    async def _run(self, running: asyncio.Future[T]) -> None:
        try:
            result = await self._make()
        except Exception as error:
            _fail(running, error.with_traceback(None))
        else:
            running.set_result(result)

    def _end(self, running: asyncio.Future[T]) -> None:
        self._running = None
        if not running.done():
            _fail(running, Closed("the operator was closed before its first request was sent"))


def _fail(running: asyncio.Future[Any], error: Exception) -> None:
    running.set_exception(error)
    running.exception()  # Retrieved, even if every waiter is gone.
