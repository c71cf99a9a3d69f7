"""A layer outside the package: one file, no registration, any place in the stack, and it crosses a pickle."""

import pickle
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aioprefetch as ap
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.runtime.runtime import Runtime

REQUESTS: Counter[str] = Counter()


class CountingLayer(ap.Layer):
    """Counts requests by operation."""

    def wrap(self, inner: ap.Accessor, runtime: Runtime) -> ap.Accessor:
        return CountingAccessor(inner)


class CountingAccessor(ap.WrappedAccessor):
    async def around(self, request: Any, forward: Callable[[Any], Awaitable[Any]]) -> Any:
        REQUESTS[request.operation] += 1
        return await forward(request)


class UpperLayer(ap.Layer):
    """Serves text in capitals."""

    def wrap(self, inner: ap.Accessor, runtime: Runtime) -> ap.Accessor:
        return UpperAccessor(inner)


class UpperAccessor(ap.WrappedAccessor):
    async def read(self, request: ap.ReadRequest, sink: Sink) -> ap.ReadReply:
        collected = CollectSink()
        reply = await self.inner.read(request, collected)
        sink.begin(reply.head)
        sink.feed(collected.to_bytes().upper())
        return reply


class FailsOnce(ap.Layer):
    """Fails the first read, which Retry then repeats."""

    def wrap(self, inner: ap.Accessor, runtime: Runtime) -> ap.Accessor:
        return FailsOnceAccessor(inner)


class FailsOnceAccessor(ap.WrappedAccessor):
    failures = 1

    async def read(self, request: ap.ReadRequest, sink: Sink) -> ap.ReadReply:
        if self.failures:
            self.failures -= 1
            raise ap.Unavailable("not yet", operation="read", path=request.path, retry_after_seconds=0.0)
        return await self.inner.read(request, sink)


async def counted(operator: ap.Operator) -> Counter[str]:
    REQUESTS.clear()
    async with operator:
        await operator.write("k", b"hello")
        assert await operator.read("k", offset=1) == b"ello"
        assert await operator.exists("k")
    return Counter(REQUESTS)


async def test_it_sees_every_operation() -> None:
    operator = ap.Operator.from_uri("memory://layer-of-your-own").layer(CountingLayer())
    assert await counted(operator) == {"write": 1, "read": 1, "stat": 1}
    assert await counted(pickle.loads(pickle.dumps(operator))) == {"write": 1, "read": 1, "stat": 1}


async def test_its_place_decides_what_it_sees() -> None:
    """Inside of Retry it counts attempts, outside of it reads."""
    failing = ap.Operator.from_uri("memory://layer-of-your-own").layer(FailsOnce(), inside=ap.layers.RetryLayer)
    assert (await counted(failing.layer(CountingLayer())))["read"] == 1
    assert (await counted(failing.layer(CountingLayer(), inside=ap.layers.RetryLayer)))["read"] == 2


async def test_it_may_change_bytes_for_reads_and_readers() -> None:
    async with ap.Operator.from_uri("memory://layer-of-your-own").layer(UpperLayer()) as operator:
        await operator.write("k", b"hello")
        assert await operator.read("k") == b"HELLO"
        async with operator.reader("k") as reader:
            assert await reader.read_at(1, 3) == b"ELL"
