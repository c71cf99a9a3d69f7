"""A stack of layers over a memory store that misbehaves by plan, and what the layer tests do with it."""

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, WriteBody
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.layers.complete import CompleteLayer
from aioprefetch.layers.concurrent_limit import ConcurrentLimitAccessor, SlotQueue
from aioprefetch.layers.error_context import ErrorContextLayer
from aioprefetch.runtime.events import EVENTS, REQUEST_EVENTS, Event
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory, Store
from aioprefetch.testing.fault_layer import FaultAccessor, FaultLayer, Injection
from aioprefetch.values import Metadata, ReadRequest, WriteRequest
from tests.stores.verb_layer import VerbLayer

T = TypeVar("T")

# What layers and readers publish of themselves, without each request.
LAYER_EVENTS = ("request.retried", "request.hedged", *(name for name in EVENTS if name not in REQUEST_EVENTS))

KIB = 1 << 10
MIB = 1 << 20


def pattern(size: int) -> bytes:
    """Bytes in which every position differs from its neighbours."""
    return b"".join(index.to_bytes(4, "big") for index in range((size + 3) // 4))[:size]


@dataclass
class Stack:
    """The outermost accessor, the fault layer next to the store, the store itself, and the events published."""

    accessor: Accessor
    faults: FaultAccessor
    store: Store
    runtime: Runtime
    events: list[Event]

    def put(self, data: bytes, path: str = "k") -> None:
        """Store an object behind the layers' back."""
        self.store.put(WriteRequest(path=path), data)

    async def fetch(self, **fields: Any) -> bytes:
        """Read object "k" into a sink."""
        sink = CollectSink()
        reply = await self.accessor.read(ReadRequest(path="k", **fields), sink)
        assert reply.head == sink.head
        assert reply.received == sink.received == reply.head.size
        return sink.to_bytes()

    def ranges(self) -> list[tuple[int, int | None]]:
        """Offset and size of each read that reached the store."""
        return [(one.offset, one.size) for one in self.faults.requests if isinstance(one, ReadRequest)]


@asynccontextmanager
async def open_stack(
    *layers: Layer, plan: Sequence[Injection] = (), data: bytes = b"", concurrency: int = 64
) -> AsyncIterator[Stack]:
    """``layers``, innermost first, over Complete, ErrorContext, the plan and a private store with ``data`` as "k"."""
    runtime = Runtime(RuntimeOptions(random_seed=7, concurrency=concurrency))
    memory = Memory()
    faults = FaultLayer(tuple(plan)).wrap(memory.build(runtime), runtime)
    accessor: Accessor = faults
    for layer in (ErrorContextLayer(), CompleteLayer(), *layers):
        accessor = layer.wrap(accessor, runtime)
    events: list[Event] = []
    runtime.events.subscribe(events.append, *LAYER_EVENTS)
    stack = Stack(accessor, faults, memory.store, runtime, events)
    stack.put(data)
    try:
        yield stack
        assert faults.in_flight == 0
    finally:
        await accessor.aclose()
        armed = [timer for timer in runtime.loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert armed == [], "a layer left a timer behind"
        await runtime.aclose()


Step = Literal["write", "close", "abort"]


@dataclass(frozen=True)
class BodyLayer(VerbLayer):
    """Calls ``before`` at each step of a body that is written piece by piece; it may raise, or hang."""

    before: Callable[[Step], Awaitable[None]]

    async def open_write(self, inner: Accessor, request: WriteRequest) -> WriteBody:
        return _StepBody(await inner.open_write(request), self.before)


class _StepBody:
    def __init__(self, body: WriteBody, before: Callable[[Step], Awaitable[None]]) -> None:
        self._body = body
        self._before = before

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        await self._before("write")
        await self._body.write(chunk)

    async def close(self) -> Metadata:
        await self._before("close")
        return await self._body.close()

    async def abort(self) -> None:
        await self._before("abort")
        await self._body.abort()


def slots_of(stack: Stack) -> SlotQueue:
    """The slots of the stack's ConcurrentLimit."""
    accessor: Any = stack.accessor
    while not isinstance(accessor, ConcurrentLimitAccessor):
        accessor = accessor.inner
    return accessor.slots


async def settle() -> None:
    """Let every task run until it waits for something that does not come by itself."""
    for _ in range(50):
        await asyncio.sleep(0)


def take_slots(slots: SlotQueue, count: int) -> None:
    """Other requests that hold ``count`` slots until ``slots.release("demand")`` for each."""
    for _ in range(count):
        assert slots.try_acquire("demand")


@types.coroutine
def cancel_at(work: Coroutine[Any, Any, T], suspension: int) -> Generator[Any, Any, T]:
    """Await ``work`` in a task that cancels itself at its ``suspension``-th suspension, from 1."""
    steps = work.__await__()
    count, error = 0, None
    while True:
        try:
            yielded = steps.send(None) if error is None else steps.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        count, error = count + 1, None
        if count == suspension:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield yielded
        except BaseException as thrown:
            error = thrown


async def was_cancelled(work: Coroutine[Any, Any, object], suspension: int) -> bool:
    """Run ``work`` in a task of its own under ``cancel_at``; ``False`` when it ended before that."""

    async def run() -> None:
        await cancel_at(work, suspension)

    try:
        await asyncio.create_task(run())
    except asyncio.CancelledError:
        return True
    return False
