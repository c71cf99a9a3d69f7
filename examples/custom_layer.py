# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch"]
# ///
"""A layer of one's own: it writes down what every request was, how long it took, and how it ended.

``AuditLayer`` is the recipe: immutable, shared by all event loops. ``AuditAccessor`` is what is live on one of them.
Added with ``.layer()`` it becomes the outermost: it sees each request once, with its retries inside.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aioprefetch as ap
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Request

R = TypeVar("R", bound=Request)
T = TypeVar("T")
Record = Callable[[str, str, str, float], None]


@dataclass(frozen=True)
class AuditLayer(ap.Layer):
    """Calls ``record(operation, path, outcome, seconds)`` after each request. It must not raise."""

    record: Record

    def wrap(self, inner: ap.Accessor, runtime: Runtime) -> ap.Accessor:
        return AuditAccessor(inner, self.record, runtime.now)


class AuditAccessor(ap.WrappedAccessor):
    def __init__(self, inner: ap.Accessor, record: Record, now: Callable[[], float]) -> None:
        super().__init__(inner)
        self._record, self._now = record, now

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        started, outcome = self._now(), "ok"
        try:
            return await forward(request)
        except BaseException as error:  # a cancellation too; it goes on unchanged
            outcome = type(error).__name__
            raise
        finally:
            self._record(request.operation, request.path, outcome, self._now() - started)


async def main() -> None:
    """Use it."""

    def record(operation: str, path: str, outcome: str, seconds: float) -> None:
        print(f"{operation} {path} {outcome} in less than {1 + int(seconds)} s")

    async with ap.Operator.from_uri("memory://custom-layer").layer(AuditLayer(record)) as op:
        await op.write("a.txt", b"hello")
        async with op.reader("a.txt") as reader:
            await reader.read_at(0, 2)
            await reader.read_at(2, 3)  # resident: no request, so nothing is recorded
        with contextlib.suppress(ap.NotFound):
            await op.read("missing")


if __name__ == "__main__":
    asyncio.run(main())
