"""The floor: ranged GETs by a bare ``asyncio.BufferedProtocol`` over connections that are open already.

It does what no client can leave out, and nothing else: write the request, receive into the caller's memory, find the
end of the head, read status and length. No pool limits, no timeouts, no retries, no chunked bodies, no version: this
is a yardstick, not a client.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

from tests.benchmarks.job import Target

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


class FloorClient:
    """As many open connections, each with a buffer of its own, as there are requests at once."""

    def __init__(self, target: Target, buffers: list[tuple[FloorConnection, memoryview]]) -> None:
        self._prefix = f"GET /{target.bucket}/".encode()
        self._free = buffers
        self._all = list(buffers)

    @classmethod
    async def connect(cls, target: Target, connections: int, range_bytes: int) -> FloorClient:
        """Open all connections."""
        loop = asyncio.get_running_loop()
        address = urlsplit(target.endpoint_url)
        assert address.hostname is not None
        assert address.port is not None
        context = ssl.create_default_context(cafile=target.ca_bundle) if target.ca_bundle else None
        found = []
        for _ in range(connections):
            _, protocol = await loop.create_connection(FloorConnection, address.hostname, address.port, ssl=context)
            found.append((protocol, memoryview(bytearray(range_bytes))))
        return cls(target, found)

    async def get(self, key: str, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)``, in memory that the next request uses again."""
        slot = self._free.pop()
        connection, buffer = slot
        request = b"%s%s HTTP/1.1\r\nHost: x\r\nRange: bytes=%d-%d\r\n\r\n" % (
            self._prefix,
            key.encode(),
            start,
            end - 1,
        )
        body = buffer[: end - start]
        await connection.get(request, body)
        self._free.append(slot)
        return body

    def close(self) -> None:
        """Hang up all."""
        for connection, _ in self._all:
            connection.close()
