"""Bodies of listings, writes and errors: collected within bounds."""

from __future__ import annotations

from aioprefetch.errors import ProtocolError
from aioprefetch.services.error_body import ERROR_BODY_BYTES_MAX
from aioprefetch.transport import Connection, Destination, ResponseHead

# The longest response that is not an object is a page of a listing: a thousand keys of 1 KiB make some 4 MiB.
BODY_BYTES_MAX = 8 << 20
_PIECE_BYTES = 64 << 10


class BodyCollector:
    """The receiver of one response: its ``head``, and its ``body``, of which an error needs the beginning alone."""

    __slots__ = ("_connection", "_room", "body", "head")

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = bytearray()
        self._connection: Connection | None = None
        self._room = memoryview(b"")

    def begin(self, head: ResponseHead, connection: Connection) -> Destination | None:
        """Take the head. Raises ``ProtocolError`` for a success that is too long."""
        self.head = head
        self._connection = connection
        length = head.length or 0
        if head.status >= 300:
            return self if length <= ERROR_BODY_BYTES_MAX else None
        if length > BODY_BYTES_MAX:
            raise _too_long()
        return self

    def writable(self) -> memoryview:
        """Memory for the next bytes."""
        self._room = memoryview(bytearray(_PIECE_BYTES))
        return self._room

    def advance(self, count: int) -> None:
        """Keep the bytes that were received into ``writable``."""
        self.feed(self._room[:count])

    def feed(self, chunk: memoryview) -> int:
        """Keep a chunk. Of an error no more than its beginning is received."""
        self.body += chunk
        if self.head is not None and self._connection is not None and len(self.body) > ERROR_BODY_BYTES_MAX:
            if self.head.status >= 300:
                del self.body[ERROR_BODY_BYTES_MAX:]
                self._connection.stop()
            elif len(self.body) > BODY_BYTES_MAX:
                raise _too_long()
        return len(chunk)


def _too_long() -> ProtocolError:
    """A permanent error: another attempt would cost as much and bring the same response."""
    return ProtocolError(
        f"the response is longer than {BODY_BYTES_MAX} bytes: no response of S3 is", status="permanent"
    )
