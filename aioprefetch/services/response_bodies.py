"""Bodies of responses over HTTP: of errors, short ones collected within bounds, and long ones at the pace of a sink.

Of the body of an error the beginning is kept for the message, and the rest is not received.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import ProtocolError, excerpt
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport.connection import Connection, Destination
from aioprefetch.transport.responses import ResponseHead

# The texts of stores have a few hundred bytes.
ERROR_BODY_BYTES_MAX = 64 << 10
_TAG = re.compile(r"<[^<>]*>")


def text_of(body: bytes, scrub: Callable[[str], str]) -> str:
    """A line of the text for people in a body, ``""`` for none. ``scrub`` takes out the secrets that are known."""
    import html

    # Scrubbed before it is cut: half of a secret must not remain.
    text = scrub(body.decode("utf-8", "replace"))
    text = scrub(html.unescape(_TAG.sub(" ", text)))
    return excerpt(" ".join("".join(char if char.isprintable() else " " for char in text).split()))


class ErrorBody:
    """The destination of a body that explains an error. A body that is too long is cancelled."""

    def __init__(self, connection: Connection) -> None:
        self.body = bytearray()
        self._connection = connection
        self._room = memoryview(b"")

    def writable(self) -> memoryview:
        self._room = memoryview(bytearray(4096))
        return self._room

    def advance(self, count: int) -> None:
        self.feed(self._room[:count])

    def feed(self, chunk: memoryview) -> int:
        """Keep what fits of a chunk, and stop the response when the buffer is full."""
        self.body += chunk[: ERROR_BODY_BYTES_MAX - len(self.body)]
        if len(self.body) >= ERROR_BODY_BYTES_MAX:
            self._connection.stop()
        return len(chunk)


# The longest response that is not an object is a page of a listing: a thousand keys of 1 KiB make some 4 MiB.
BODY_BYTES_MAX = 8 << 20
_PIECE_BYTES = 64 << 10


class BodyCollector:
    """The receiver of one response: its ``head``, and its ``body``; an error needs only its beginning."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = bytearray()
        self._room = memoryview(b"")

    def begin(self, head: ResponseHead, connection: Connection) -> Destination | None:
        """Take the head. Raises ``ProtocolError`` for a success that is too long."""
        self.head = head
        length = head.length or 0
        if head.status >= 300:
            if length > ERROR_BODY_BYTES_MAX:
                return None
            error = ErrorBody(connection)
            self.body = error.body
            return error
        if length > BODY_BYTES_MAX:
            raise _too_long()
        return self

    def writable(self) -> memoryview:
        self._room = memoryview(bytearray(_PIECE_BYTES))
        return self._room

    def advance(self, count: int) -> None:
        self.feed(self._room[:count])

    def feed(self, chunk: memoryview) -> int:
        """Keep a chunk. Raises ``ProtocolError`` when the body is too long."""
        self.body += chunk
        if len(self.body) > BODY_BYTES_MAX:
            raise _too_long()
        return len(chunk)


def _too_long() -> ProtocolError:
    """A permanent error: another attempt would cost as much and bring the same response."""
    return ProtocolError(
        f"the response is longer than {BODY_BYTES_MAX} bytes: no response of S3 is", status="permanent"
    )


class PacedReceiver:
    """Receives a body in place for a sink that may be slower than the server, and pauses the connection meanwhile."""

    def __init__(self, runtime: Runtime, sink: Sink, connection: Connection) -> None:
        self._runtime = runtime
        self._sink = sink
        self._connection = connection
        self._is_waiting = False

    def writable(self) -> memoryview:
        return self._sink.writable()

    def advance(self, count: int) -> None:
        self._sink.advance(count)
        self._pause_if_full()

    def feed(self, chunk: memoryview) -> int:
        count = self._sink.feed(chunk)
        self._pause_if_full()
        return count

    def _pause_if_full(self) -> None:
        if self._sink.is_full and not self._is_waiting and not self._sink.complete:
            self._is_waiting = True
            self._connection.pause()
            self._runtime.supervisor.spawn(self._resume(), name="a body waits for the disk")

    async def _resume(self) -> None:
        await self._sink.drained()
        self._is_waiting = False
        self._connection.resume()


def receiver_of(runtime: Runtime, sink: Sink, connection: Connection) -> PacedReceiver | Sink:
    """A receiver of a body in place for a sink, at the pace of the sink."""
    return PacedReceiver(runtime, sink, connection) if sink.is_paced else sink
