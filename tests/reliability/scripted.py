"""An Operator over a scripted server, and what must hold after every fault: nothing is lost, the next read works."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest

from aioprefetch.accessor.protocols import Layer
from aioprefetch.errors import Error
from aioprefetch.layers import RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services.http import Http
from aioprefetch.services.s3 import S3
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.oracle import assert_same_bytes, content

Service = Literal["s3", "http"]
SERVICES: tuple[Service, ...] = ("s3", "http")

SIZE = 100_000
OFFSET, LENGTH = 1000, 50_000
ATTEMPTS = RetryLayer().attempts_max
# The default policy without its pauses: what is counted here are requests, and pauses are tested on the virtual clock.
NO_PAUSES = RetryLayer(base_seconds=0, throttle_base_seconds=0)
# For servers that hang, where nothing has to come before the time is up.
HANG_SECONDS = 0.15
# For those that answer first or afterwards: long enough for a busy machine to do that within it.
PATIENT_HANG_SECONDS = 0.6
PAGE = b"<!doctype html><html><title>Log in</title><h1>Welcome to the hotel</h1></html>"


_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")


def once(fault: Fault, index: int = 0) -> Rule:
    """The fault for one request, by default the first of all."""
    return Rule(fault=fault, index=index)


def always(fault: Fault) -> Rule:
    """The fault for every GET."""
    return Rule(fault=fault, times=None, method="GET")


@dataclass(frozen=True, slots=True)
class Scripted:
    """A server with the one object `k`, and an Operator that reads it."""

    service: Service
    server: FaultServer
    operator: Operator

    @property
    def data(self) -> bytes:
        """The object as the server has it now."""
        return self.server.objects["bucket/k"]

    async def read(self, offset: int = OFFSET, size: int | None = LENGTH, **options: Any) -> None:
        """A read that must bring exactly its bytes."""
        expected = self.data[offset:] if size is None else self.data[offset : offset + size]
        found = await self.operator.read("k", offset=offset, size=size, **options)
        assert_same_bytes(found, expected, offset=offset)

    async def fail(
        self,
        kind: type[Error],
        *,
        requests: int | None = None,
        offset: int = OFFSET,
        size: int | None = LENGTH,
        **options: Any,
    ) -> Error:
        """The error of a read, which must be exactly of this kind and come after this number of requests."""
        before = len(self.server.requests)
        with pytest.raises(Error) as caught:
            await self.operator.read("k", offset=offset, size=size, **options)
        assert type(caught.value) is kind, repr(caught.value)
        assert (caught.value.operation, caught.value.path) == ("read", "k")
        if requests is not None:
            assert len(self.server.requests) - before == requests
        return caught.value

    def ranges(self) -> list[tuple[int, int]]:
        """First and last byte of each range that was asked for."""
        found = []
        for request in self.server.requests:
            match = _RANGE.fullmatch(request.range or "")
            if match is not None and match[1] and match[2]:
                found.append((int(match[1]), int(match[2])))
        return found

    async def check_nothing_is_left(self) -> None:
        """With a server that behaves again the next reads succeed, as many at once as there are slots."""
        self.server.behave()
        slots = self.operator.options.concurrency
        async with asyncio.timeout(10):
            await asyncio.gather(*(self.read(number, 100) for number in range(slots)))
        await self.server.wait_until_quiet()
        # What S3's SDK sends, such as a HEAD, has connections of its own; and the connection of a streamed answer comes
        # back a moment after its last byte, so that the next request may have taken another one.
        await self.server.wait_until_idle(connections_max=2 * slots)
        for request in self.server.requests:
            check_range(request.range)


def check_range(text: str | None) -> None:
    """Fail for a range that names no byte: servers answer such a one with the whole object."""
    if text is None:
        return
    match = _RANGE.fullmatch(text)
    assert match is not None, text
    first, last, suffix = match.groups()
    assert int(suffix) > 0 if suffix else not last or int(first) <= int(last), text


def service_for(kind: Service, url: str, **options: Any) -> S3 | Http:
    """The recipe for the objects below `bucket/` of a server."""
    if kind == "http":
        return Http(f"{url}/bucket/", **{"proxies": {}, **options})
    keys = {"access_key_id": FaultServer.access_key_id, "secret_access_key": FaultServer.secret_access_key}
    if options.get("anonymous") or options.get("profile"):
        keys = {}
    # One connection more would hide one that was lost.
    given = {"region": FaultServer.region, "connections_max": 1, "proxies": {}, **keys, **options}
    return S3(bucket="bucket", endpoint_url=url, **given)


async def warm_up() -> None:
    """Load what services load for their first request in a process: it takes longer than the limits of the tests."""
    async with FaultServer({"bucket/k": b"there"}) as server:
        for kind in SERVICES:
            async with Operator(service_for(kind, server.url), concurrency=1) as operator:
                await operator.read("k")
                await operator.stat("k")


@asynccontextmanager
async def serving(
    kind: Service,
    *script: Rule,
    size: int = SIZE,
    layers: tuple[Layer, ...] = (NO_PAUSES,),
    operator_options: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Scripted]:
    """Serve `content(size)` as `k` by script, to an Operator with one slot and `options`; then check what is left."""
    given = {"concurrency": 1, **(operator_options or {})}
    if kind == "s3":
        options = {"connections_max": given["concurrency"], **options}
    async with FaultServer({"bucket/k": content(size)}, script) as server:
        operator = Operator(service_for(kind, server.url, **options), **given)
        for layer in layers:
            operator = operator.layer(layer)
        async with operator:
            scripted = Scripted(kind, server, operator)
            yield scripted
            assert server.faults or not script  # A fault that did not happen has shown nothing.
            await scripted.check_nothing_is_left()
        await server.wait_until_idle()


Serve = Callable[..., AbstractAsyncContextManager[Scripted]]


def serve_over(kind: Service) -> Serve:
    """`serving` over one service."""
    return partial(serving, kind)
