"""Bodies without a length: chunked (RFC 9112, 7.1), or up to the end of the connection. Pure, no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

from aioprefetch.errors import ProtocolError

# A size line with its extensions, and all trailers together.
LINE_BYTES_MAX = 4096
TRAILER_BYTES_MAX = 16 << 10

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[\t ]*;[\t\x20-\x7e\x80-\xff]*)?[\t ]*")
# These search the received bytes in place and copy only the match.
_LINE = re.compile(rb"[^\n]*\n?")
_NEXT_CHUNK = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class ChunkedDecoder:
    """Decodes a chunked body as it arrives.

    ``ended`` after the last chunk and its trailers; ``rest`` are the bytes after them. Trailers are dropped. Raises
    ``ProtocolError`` for an invalid size, a missing line end, and an endless line.
    """

    __slots__ = ("_left_bytes", "_line", "_state", "_trailer_bytes", "ended", "rest")

    def __init__(self) -> None:
        self._state = self._size_line
        self._line = bytearray()
        self._left_bytes = 0
        self._trailer_bytes = 0
        self.ended = False
        self.rest = b""

    def feed(self, data: memoryview) -> list[memoryview]:
        """The content of the chunks in ``data``, as views of it."""
        pieces: list[memoryview] = []
        position = 0
        while position < len(data) and not self.ended:
            if self._left_bytes:
                piece = data[position : position + self._left_bytes]
                pieces.append(piece)
                self._left_bytes -= len(piece)
                position += len(piece)
                continue
            position = self._take_line(data, position)
        self.rest = bytes(data[position:])
        return pieces

    def _take_line(self, data: memoryview, position: int) -> int:
        if not self._line and self._state == self._chunk_end:
            # The usual case: the end of a chunk and the size of the next one are in ``data``.
            match = _NEXT_CHUNK.match(data, position)
            if match is not None and (size_bytes := int(match[1], 16)):
                self._left_bytes = size_bytes
                return match.end()
        match = _LINE.match(data, position, position + LINE_BYTES_MAX + 2)
        assert match is not None
        self._line += match[0]
        if len(self._line) > LINE_BYTES_MAX + 2:
            raise ProtocolError(f"a chunk of the body has a line of more than {LINE_BYTES_MAX} bytes")
        if self._line.endswith(b"\n"):
            if not self._line.endswith(b"\r\n"):
                raise ProtocolError("a line of the chunked body does not end with CRLF")
            line, self._line = bytes(self._line[:-2]), bytearray()
            self._state(line)
        return match.end()

    def _size_line(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise ProtocolError("a chunk of the body does not begin with a size")
        self._left_bytes = int(match[1], 16)
        self._state = self._chunk_end if self._left_bytes else self._trailer

    def _chunk_end(self, line: bytes) -> None:
        if line:
            raise ProtocolError("a chunk of the body is longer than its size")
        self._state = self._size_line

    def _trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if not line:
            self.ended = True
        elif self._trailer_bytes > TRAILER_BYTES_MAX or not _TRAILER.fullmatch(line):
            raise ProtocolError("the chunks of the body are followed by an invalid trailer")


class UnsizedBody:
    """The body of one response whose length only its chunks, or the end of its connection, tell.

    ``feed`` copies bytes to the destination and returns how many it took. ``ended``: the last byte of the body was
    passed on. ``is_clean``: nothing came after it.
    """

    __slots__ = ("_decoder", "_feed", "ended", "is_clean", "received_bytes")

    def __init__(self, feed: Callable[[memoryview], int], *, is_chunked: bool) -> None:
        self._feed = feed
        self._decoder = ChunkedDecoder() if is_chunked else None
        self.ended = False
        self.is_clean = False
        self.received_bytes = 0

    @property
    def is_chunked(self) -> bool:
        """Whether its last chunk ends it, and not the connection."""
        return self._decoder is not None

    def receive(self, data: memoryview) -> None:
        """Pass on the content of ``data``. Raises ``ProtocolError`` for bad chunks, and for more than is taken."""
        decoder = self._decoder
        pieces = [data] if decoder is None else decoder.feed(data)
        for piece in pieces:
            if self._feed(piece) != len(piece):
                raise ProtocolError("the body has more bytes than were asked for")
            self.received_bytes += len(piece)
        if decoder is not None and decoder.ended:
            self.ended = True
            self.is_clean = not decoder.rest

    def end_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the body."""
        self.ended = self.ended or self._decoder is None
        return self.ended
