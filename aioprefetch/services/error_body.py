"""The body of an error response: its beginning is kept for the message, the rest is not received."""

from __future__ import annotations

import re
from collections.abc import Callable

from aioprefetch.errors import excerpt
from aioprefetch.transport import Connection

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
