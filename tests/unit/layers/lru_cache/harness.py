"""A store and a cache in memory, both behind an accessor that counts, fails and waits on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from aioprefetch.accessor.protocols import Accessor, WrappedAccessor, WriteBody
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.layers.complete import CompleteLayer
from aioprefetch.layers.error_context import ErrorContextLayer
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.runtime.events import Event
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory
from aioprefetch.values import (
    Capability,
    Metadata,
    ReadHead,
    ReadReply,
    ReadRequest,
    Request,
    ServiceInfo,
    WriteRequest,
)
from tests.stores.layer_stack import LAYER_EVENTS

R = TypeVar("R", bound=Request)
T = TypeVar("T")

YIELDS = 80


async def settle() -> None:
    """Let everything run that can run."""
    for _ in range(YIELDS):
        await asyncio.sleep(0)


async def after(seconds: float) -> None:
    """Wait on the virtual clock."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(seconds, future.set_result, None)
    await future


class ScriptedAccessor(WrappedAccessor):
    """Counts what is asked of a store, and asks ``before`` first, which may raise or wait.

    A ``version`` id can be given to every object by ``amend``. Bodies come in chunks of ``chunk_bytes``.
    """

    def __init__(self, inner: Accessor, *, info: ServiceInfo | None = None) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.requests: list[Request] = []
        self.before: Callable[[str], Awaitable[None] | None] | None = None
        self.amend: Callable[[ReadHead], ReadHead] | None = None
        self.chunk_bytes = 1 << 20
        self.open_bodies = 0
        self.broken_off = 0
        self._info = info

    @property
    def info(self) -> ServiceInfo:
        return self._info or self.inner.info

    @property
    def capability(self) -> Capability:
        return replace(self.inner.capability, read_version=True)

    async def step(self, name: str) -> None:
        self.calls[name] += 1
        if self.before is not None:
            waited = self.before(name)
            if waited is not None:
                await waited

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        self.requests.append(request)
        await self.step(request.operation)
        return await forward(request)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        async def received(asked: ReadRequest) -> tuple[ReadHead, bytes]:
            whole = CollectSink()
            reply = await self.inner.read(replace(asked, version=None), whole)
            return reply.head, whole.to_bytes()

        head, data = await self.around(request, received)
        head = self.amend(head) if self.amend else head
        self.open_bodies += 1
        position = 0
        try:
            sink.begin(head)
            while position < len(data):
                await asyncio.sleep(0)  # A response arrives in several turns of the loop.
                await self.step("chunk")
                chunk = data[position : position + self.chunk_bytes]
                position += len(chunk)
                sink.feed(chunk)
        finally:
            self.open_bodies -= 1
            self.broken_off += position < head.size
        return ReadReply(head=head, received=position)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        self.requests.append(request)
        await self.step("open_write")
        return ScriptedWriteBody(self, await self.inner.open_write(request))


class ScriptedWriteBody:
    """A body being written, step by step."""

    def __init__(self, owner: ScriptedAccessor, body: WriteBody) -> None:
        self._owner = owner
        self._body = body

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        await self._owner.step("body_write")
        await self._body.write(chunk)

    async def close(self) -> Metadata:
        await self._owner.step("body_close")
        metadata = await self._body.close()
        await self._owner.step("body_closed")
        return metadata

    async def abort(self) -> None:
        self._owner.calls["body_abort"] += 1
        await self._body.abort()


class Gate:
    """Lets a number of calls of one name through, then holds the others until it is opened."""

    def __init__(self, name: str, passing: int = 0) -> None:
        self.name = name
        self.passing = passing
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, name: str) -> None:
        if name != self.name:
            return
        if self.passing > 0:
            self.passing -= 1
            return
        self.reached.set()
        await self.opened.wait()


class Stubborn(Gate):
    """A gate that a cancellation does not open: a thread on a disk that hangs."""

    async def __call__(self, name: str) -> None:
        while name == self.name and not self.opened.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await super().__call__(name)


@dataclass
class Holder:
    """What the layer needs of an Operator."""

    built: Accessor

    def accessor(self) -> Accessor:
        return self.built


@dataclass
class Bed:
    """One store and one cache; ``restart`` makes new live parts over the same two."""

    store: Memory = field(default_factory=lambda: Memory("", ""))
    cache_store: Memory = field(default_factory=Memory)
    info: ServiceInfo | None = None
    options: RuntimeOptions = field(default_factory=RuntimeOptions)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.runtime = Runtime(self.options)
        self.cache_runtime = Runtime(RuntimeOptions())
        self.source = ScriptedAccessor(self.store.build(self.runtime), info=self.info)
        self.cache = ScriptedAccessor(self.cache_store.build(self.cache_runtime))
        self.holder = Holder(complete(self.cache, self.cache_runtime))
        self.events: list[Event] = []
        self.runtime.events.subscribe(self.events.append, *LAYER_EVENTS)

    async def aclose(self) -> None:
        await self.runtime.aclose()
        await self.cache_runtime.aclose()
        assert self.runtime.budget.used_bytes == 0
        assert self.source.open_bodies == self.cache.open_bodies == 0

    async def restart(self) -> None:
        await self.aclose()
        self.start()

    def stack(self, **options: Any) -> Accessor:
        layer = LruCacheLayer(cache=self.holder, **options)
        return layer.wrap(complete(self.source, self.runtime), self.runtime)

    def put(self, path: str, data: bytes) -> str:
        """Write an object behind the layer's back; returns its ETag."""
        etag = self.store.store.put(WriteRequest(path=path, content_type="text/x"), data).etag
        assert etag is not None
        return etag

    @property
    def counters(self) -> dict[str, int]:
        return {name[6:]: count for name, count in self.runtime.counters.items() if name.startswith("cache_") and count}

    @property
    def files(self) -> dict[str, bytes]:
        return {key: found.data for key, found in self.cache_store.store.objects.items()}

    @property
    def gets(self) -> int:
        return self.source.calls["read"]


def complete(accessor: Accessor, runtime: Runtime) -> Accessor:
    """The stack of a bare operator."""
    return CompleteLayer().wrap(ErrorContextLayer().wrap(accessor, runtime), runtime)


async def read(stack: Accessor, path: str, **fields: Any) -> bytes:
    """The bytes of one read, its head checked against what was delivered."""
    sink = CollectSink()
    reply = await stack.read(ReadRequest(path=path, **fields), sink)
    assert sink.head == reply.head
    assert len(sink.to_bytes()) == reply.head.size == reply.received
    return sink.to_bytes()


async def read_settled(stack: Accessor, path: str, **fields: Any) -> bytes:
    """Read, and let the cache be filled."""
    data = await read(stack, path, **fields)
    await settle()
    return data
