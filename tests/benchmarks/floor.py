"""The floor: ranged GETs by a bare ``asyncio.BufferedProtocol`` over connections that are open already.

It does what no client can leave out, and nothing else: write the request, receive into the caller's memory, find the
end of the head, read status and length. No pool limits, no timeouts, no retries, no chunked bodies, no version: this
is a yardstick, not a client.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.benchmarks.content import MIB
from tests.benchmarks.job import WARM_BYTES, WARM_OBJECT, Target
from tests.benchmarks.seam import Client

if TYPE_CHECKING:
    from aioprefetch.transport.connection import Connection
    from aioprefetch.transport.responses import ResponseHead

# A head and a small body come in one call of recv; of a large body this much is copied once, the rest never.
SCRATCH_BYTES = 8192
END = b"\r\n\r\n"
STATUS = b"HTTP/1.1 206 "
LENGTH = b"\r\nContent-Length: "


class FloorConnection(asyncio.BufferedProtocol):
    """A connection with one request under way at most."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._scratch = bytearray(SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._filled = 0
        self._body: memoryview | None = None
        self._missing = memoryview(b"")
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get(self, request: bytes, body: memoryview) -> asyncio.Future[None]:
        """Send ``request`` and fill ``body`` with the response's. The future is done at its last byte."""
        self._body = body
        self._filled = 0
        self._done = done = self._loop.create_future()
        self._transport.write(request)
        return done

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: to the scratch until the head has ended, then to the caller.

        TLS asks between answers too, for records that bring no bytes.
        """
        return self._missing or self._scratch_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        if self._body is None:
            self._missing = self._missing[nbytes:]
        else:
            self._filled += nbytes
            if not self._take_head(self._body):
                return
        if not self._missing and self._done is not None:
            self._done.set_result(None)
            self._done = None

    def _take_head(self, body: memoryview) -> bool:
        """Whether the head is complete; what has come of the body is copied then."""
        scratch = self._scratch
        end = scratch.find(END, 0, self._filled)
        if end < 0:
            return False
        at = scratch.find(LENGTH, 0, end) + len(LENGTH)
        length = int(scratch[at : scratch.index(b"\r", at)])
        if not scratch.startswith(STATUS) or length != len(body):
            raise ValueError(f"not the response that was asked for: {scratch[:end]!r}")
        start = end + len(END)
        came = self._filled - start
        body[:came] = self._scratch_view[start : self._filled]
        self._missing = body[came:]
        self._body = None
        self._filled = 0
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error or ConnectionResetError("the server has hung up"))

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()


def address_of(target: Target) -> tuple[str, int]:
    """Host and port of the store."""
    address = urlsplit(target.endpoint_url)
    assert address.hostname is not None
    assert address.port is not None
    return address.hostname, address.port


class Floor(Client):
    """As many open connections, each with a buffer of its own, as there are requests at once."""

    async def open(self) -> None:
        loop, target = asyncio.get_running_loop(), self.target
        context = ssl.create_default_context(cafile=target.ca_bundle) if target.ca_bundle else None
        self.free: list[tuple[FloorConnection, memoryview]] = []
        for _ in range(self.in_flight):
            _, protocol = await loop.create_connection(FloorConnection, *address_of(target), ssl=context)
            self.stack.callback(protocol.close)
            self.free.append((protocol, memoryview(bytearray(self.range_bytes))))
        self.get = self._get

    async def _get(self, key: str, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)``, in memory that the next request uses again."""
        slot = self.free.pop()
        connection, buffer = slot
        line = f"GET /{self.target.bucket}/{key} HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{end - 1}\r\n\r\n"
        body = buffer[: end - start]
        await connection.get(line.encode(), body)
        self.free.append(slot)
        return body

    async def chunks(self, key: str, read_bytes: int = MIB) -> AsyncIterator[Any]:
        """A GET for each buffer, one after another."""
        start, size_bytes = 0, WARM_BYTES if key == WARM_OBJECT else self.target.size_bytes
        while start < size_bytes:
            end = min(start + self.range_bytes, size_bytes)
            yield await self._get(key, start, end)
            start = end


class Slot:
    """A buffer that takes one body after another: the least that our transport can be given."""

    __slots__ = ("_filled", "view")

    def __init__(self, range_bytes: int) -> None:
        self.view = memoryview(bytearray(range_bytes))
        self._filled = 0

    def begin(self, head: ResponseHead, connection: Connection) -> Slot:
        """The response must be the whole range."""
        assert (head.status, head.length) == (206, len(self.view)), head
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


class ByHand(Client):
    """Our transport alone, ``HttpClient.fetch``: without service and layers, one target for all ranges of a key."""

    async def open(self) -> None:
        from aioprefetch.runtime.options import RuntimeOptions
        from aioprefetch.runtime.runtime import Runtime
        from aioprefetch.transport.options import ClientOptions
        from aioprefetch.transport.origin import Origin, Target
        from aioprefetch.transport.pool import HttpClient

        target = self.target
        origin = Origin(urlsplit(target.endpoint_url).scheme, *address_of(target))
        runtime = Runtime(RuntimeOptions())
        self.stack.push_async_callback(runtime.aclose)
        client = HttpClient(runtime, ClientOptions(ca_bundle=target.ca_bundle or None))
        targets: dict[str, Target] = {}
        # The small object, which opens the connections, is read in shorter ranges than large ones are.
        slots: dict[int, list[Slot]] = {}

        async def get(key: str, start: int, end: int) -> memoryview:
            asked = targets.get(key)
            if asked is None:
                asked = targets[key] = Target(origin, f"/{target.bucket}/{key}")
            free = slots.setdefault(end - start, [])
            slot = free.pop() if free else Slot(end - start)
            await client.fetch(asked, b"Range: bytes=%d-%d\r\n" % (start, end - 1), slot)
            free.append(slot)
            # The caller looks at it before anything else runs.
            return slot.view

        self.get = get
