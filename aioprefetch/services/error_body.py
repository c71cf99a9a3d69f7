"""The body of an error response: its beginning is kept for the message, the rest is not received."""

from __future__ import annotations

from aioprefetch.transport import Connection

# The texts of stores have a few hundred bytes.
ERROR_BODY_BYTES_MAX = 64 << 10


class ErrorBody:
    """The destination of a body that explains an error. A body that is too long is cancelled."""

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
        """Keep the bytes that were received into ``writable``."""
        self.feed(self._room[:count])

    def feed(self, chunk: memoryview) -> int:
        """Keep a chunk as far as there is room, and stop the response when there is none left."""
        self.body += chunk[: ERROR_BODY_BYTES_MAX - len(self.body)]
        if len(self.body) >= ERROR_BODY_BYTES_MAX:
            self._connection.stop()
        return len(chunk)
