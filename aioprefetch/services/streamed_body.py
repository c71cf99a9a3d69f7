"""The body of a response that is read piece by piece, as the transport brings it."""

from __future__ import annotations

from aioprefetch.errors import Closed, Error, Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport import StreamedAnswer
from aioprefetch.values import ReadHead, ReadRequest


class StreamedBody:
    """The body of one response: ``skip_bytes`` are thrown away first, and after ``head.size`` nothing more is read.

    Closing it before its end breaks the connection off and frees its place at once.
    """

    def __init__(
        self, runtime: Runtime, request: ReadRequest, response: StreamedAnswer, head: ReadHead, *, skip_bytes: int = 0
    ) -> None:
        self.head = head
        self._runtime = runtime
        self._request = request
        self._response = response
        self._skip_bytes = skip_bytes
        self._left_bytes = head.size
        self._closed = False
        runtime.streams.add(self)

    def abort(self) -> None:
        """Break off; a waiting ``read_chunk`` raises ``Closed``."""
        self._closed = True
        self._response.close()

    async def read_chunk(self) -> memoryview:
        """What has arrived, at least one byte; nothing after the last byte that the head promised."""
        while self._left_bytes:
            chunk = await self._receive()
            if len(chunk) <= self._skip_bytes:
                self._skip_bytes -= len(chunk)
                continue
            part = chunk[self._skip_bytes : self._skip_bytes + self._left_bytes]
            self._skip_bytes = 0
            self._left_bytes -= len(part)
            return part
        return memoryview(b"")

    async def _receive(self) -> memoryview:
        received = self.head.size - self._left_bytes
        if self._closed:
            raise self._was_closed()
        try:
            chunk = await self._response.read_chunk()
            if not chunk:
                raise Unavailable(f"the body ended after {received} of {self.head.size} bytes")
        except Error as error:
            if self._closed:
                raise self._was_closed() from None
            error.add_context(operation=self._request.operation, path=self._request.path)
            error.head, error.received = self.head, received
            raise
        self._runtime.counters["stream_read_total_bytes"] += len(chunk)
        return chunk

    async def aclose(self) -> None:
        """Give the connection back, or break it off. Twice is fine."""
        self._closed = True
        self._response.close()

    def _was_closed(self) -> Closed:
        return Closed("the body or its operator is closed", operation="read", path=self._request.path)
