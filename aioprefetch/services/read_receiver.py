"""The response to a read, as the transport brings it: checked at its head, then received in the reader's memory."""

from __future__ import annotations

from collections.abc import Callable

from aioprefetch.accessor.sink import Sink
from aioprefetch.transport import Connection, Destination, ResponseHead, StreamedAnswer
from aioprefetch.values import ReadHead, ReadRequest

# What is kept of a response that is no success: the texts of stores have a few hundred bytes. The rest is not received.
ERROR_BODY_BYTES_MAX = 64 << 10


class Excerpt:
    """The destination of a body that only explains: its beginning is kept, and what is too long is broken off."""

    __slots__ = ("_connection", "_room", "body")

    def __init__(self, connection: Connection) -> None:
        self.body = bytearray()
        self._connection = connection
        self._room = memoryview(b"")

    def writable(self) -> memoryview:
        """Memory for the next bytes."""
        self._room = memoryview(bytearray(4096))
        return self._room

    def advance(self, count: int) -> None:
        """Keep them."""
        self.feed(self._room[:count])

    def feed(self, chunk: memoryview) -> int:
        """Keep what there is room for."""
        self.body += chunk[: ERROR_BODY_BYTES_MAX - len(self.body)]
        if len(self.body) >= ERROR_BODY_BYTES_MAX:
            self._connection.stop()
        return len(chunk)


class ReadReceiver:
    """The receiver of one read. ``checked`` is set for a success, after which the sink gets the body.

    ``head`` is whatever came; of a body that is no success ``excerpt`` has the beginning.
    """

    __slots__ = ("_check", "_request", "_sink", "checked", "excerpt", "head")

    head: ResponseHead

    def __init__(
        self, request: ReadRequest, sink: Sink, check: Callable[[ReadRequest, ResponseHead], ReadHead]
    ) -> None:
        self._request = request
        self._sink = sink
        self._check = check
        self.checked: ReadHead | None = None
        self.excerpt: Excerpt | None = None

    def begin(self, head: ResponseHead, connection: Connection) -> Destination | None:
        """Check the head. Raises what the check raises, and what the sink does."""
        self.head = head
        if head.status not in (200, 206):
            if head.length is not None and head.length > ERROR_BODY_BYTES_MAX:
                return None
            self.excerpt = Excerpt(connection)
            return self.excerpt
        checked = self._check(self._request, head)
        self._sink.begin(checked, path=self._request.path)
        self.checked = checked
        return self._sink

    @property
    def error_body(self) -> bytes:
        """The beginning of a body that is no success."""
        return b"" if self.excerpt is None else bytes(self.excerpt.body)


async def error_body_of(response: StreamedAnswer) -> bytes:
    """The same of a stream."""
    length = response.head.length
    body = bytearray()
    if length is None or length <= ERROR_BODY_BYTES_MAX:
        while len(body) < ERROR_BODY_BYTES_MAX and (chunk := await response.read_chunk()):
            body += chunk
    return bytes(body[:ERROR_BODY_BYTES_MAX])
