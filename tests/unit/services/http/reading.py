"""Short ways to read for the tests of the http service."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http import Http
from aioprefetch.testing import FaultServer, Rule
from aioprefetch.values import ReadHead, ReadRequest

DATA = bytes(range(256)) * 40
# More than the buffers of both kernels hold: who breaks off early does not get it all.
LARGE = bytes(range(256)) * (16 << 12)


class Servers:
    """Starts FaultServers that stop after the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def start(self, objects: dict[str, bytes] | None = None, script: Sequence[Rule] = ()) -> FaultServer:
        """A running server with the object ``base/k``, or with other objects."""
        objects = {"base/k": DATA} if objects is None else objects
        return await self._stack.enter_async_context(FaultServer(objects, script))


def accessor_for(server: FaultServer, runtime: Runtime, path: str = "/base/", **options: Any) -> Accessor:
    """The live service over a server; no proxy of the environment comes in between."""
    return Http(server.url + path, **{"proxies": {}, **options}).build(runtime)


async def read(accessor: Accessor, path: str = "k", **fields: Any) -> bytes:
    """Bytes read into a sink of its own."""
    sink = CollectSink()
    reply = await accessor.read(ReadRequest(path=path, **fields), sink)
    assert reply.received == sink.received == reply.head.size
    return sink.to_bytes()


async def read_head(accessor: Accessor, path: str = "k", **fields: Any) -> ReadHead:
    """The head of a read."""
    return (await accessor.read(ReadRequest(path=path, **fields), CollectSink())).head
