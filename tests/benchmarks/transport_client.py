"""Our transport alone: ranges through ``HttpClient`` into memory of the caller's, without service and layers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.benchmarks.job import Target
from tests.benchmarks.range_clients import Get

if TYPE_CHECKING:
    from aioprefetch.transport import Connection, ResponseHead


class Slot:
    """A buffer that takes one body after another: the least that the transport can be given."""

    __slots__ = ("_filled", "view")

    def __init__(self, range_bytes: int) -> None:
        self.view = memoryview(bytearray(range_bytes))
        self._filled = 0

    def begin(self, head: ResponseHead, connection: Connection) -> Slot:
        """The response must be the whole range."""
        assert head.status == 206, head.status
        assert head.length == len(self.view), head.length
        self._filled = 0
        return self

    def writable(self) -> memoryview:
        """What is free."""
        return self.view[self._filled :]

    def advance(self, count: int) -> None:
        """Count bytes that were received there."""
        self._filled += count

    def feed(self, chunk: memoryview) -> int:
        """Copy what came with the head."""
        filled = self._filled
        self._filled = end = filled + len(chunk)
        self.view[filled:end] = chunk
        return len(chunk)


@contextlib.asynccontextmanager
async def transport(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``HttpClient.fetch``, one target for all ranges of a key."""
    from aioprefetch import transport as http
    from aioprefetch.runtime.options import RuntimeOptions
    from aioprefetch.runtime.runtime import Runtime

    address = urlsplit(target.endpoint_url)
    assert address.hostname is not None
    assert address.port is not None
    origin = http.Origin(address.scheme, address.hostname, address.port)
    runtime = Runtime(RuntimeOptions())
    client = http.HttpClient(runtime, http.ClientOptions(ca_bundle=target.ca_bundle or None))
    targets: dict[str, http.Target] = {}
    # The small object, which opens the connections, is read in shorter ranges than large ones are.
    slots: dict[int, list[Slot]] = {}

    async def get(key: str, start: int, end: int) -> memoryview:
        asked = targets.get(key)
        if asked is None:
            asked = targets[key] = http.Target(origin, f"/{target.bucket}/{key}")
        free = slots.setdefault(end - start, [])
        slot = free.pop() if free else Slot(end - start)
        await client.fetch(asked, b"Range: bytes=%d-%d\r\n" % (start, end - 1), slot)
        free.append(slot)
        # The caller looks at it before anything else runs.
        return slot.view

    try:
        yield get
    finally:
        await runtime.aclose()
        await asyncio.sleep(0)
