"""The bodies of answers: one that comes over the wire, perhaps from further ahead, and one that is in memory."""

from __future__ import annotations

from aioprefetch.errors import Closed, Error, Unavailable
from aioprefetch.runtime import Runtime
from aioprefetch.services.http.wire_answer import Answer
from aioprefetch.values import ReadHead, ReadRequest

CHUNK_BYTES = 1 << 20


class WireBody:
    """The body of one answer: ``skip_bytes`` are thrown away first, and after ``head.size`` nothing more is read."""

    def __init__(
        self, runtime: Runtime, request: ReadRequest, answer: Answer, head: ReadHead, *, skip_bytes: int = 0
    ) -> None:
        self.head = head
        self._counters = runtime.counters
        self._request = request
        self._answer = answer
        self._skip_bytes = skip_bytes
        self._left_bytes = head.size
        self._aborted = False
        runtime.streams.add(self)

    def abort(self) -> None:
        """Break off; a waiting ``read_chunk`` raises ``Closed``."""
        self._aborted = True
        self._answer.close()

    async def read_chunk(self) -> bytes | memoryview:
        while self._left_bytes:
            chunk = await self._receive()
            if len(chunk) <= self._skip_bytes:
                self._skip_bytes -= len(chunk)
                continue
            if self._skip_bytes == 0 and len(chunk) <= self._left_bytes:
                self._left_bytes -= len(chunk)
                return chunk
            part = memoryview(chunk)[self._skip_bytes : self._skip_bytes + self._left_bytes]
            self._skip_bytes = 0
            self._left_bytes -= len(part)
            return part
        return b""

    async def _receive(self) -> bytes:
        received = self.head.size - self._left_bytes
        try:
            chunk = await self._answer.read_chunk()
            if not chunk:
                raise Unavailable(f"the body ended after {received} of {self.head.size} bytes")
        except Error as error:
            if self._aborted:
                raise Closed(
                    "the operator was closed while the body was read", operation="read", path=self._request.path
                ) from None
            error.add_context(operation=self._request.operation, path=self._request.path)
            error.head, error.received = self.head, received
            raise
        self._counters["stream_read_total_bytes"] += len(chunk)
        return chunk

    async def aclose(self) -> None:
        self._left_bytes = 0
        self._answer.close()


class BufferedBody:
    """A body that had to be read ahead into memory, since its server does not tell lengths."""

    def __init__(self, head: ReadHead, view: memoryview) -> None:
        self.head = head
        self._view = view

    async def read_chunk(self) -> memoryview:
        chunk, self._view = self._view[:CHUNK_BYTES], self._view[CHUNK_BYTES:]
        return chunk

    async def aclose(self) -> None:
        self._view = memoryview(b"")
