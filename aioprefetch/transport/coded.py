"""A body whose length only its chunks, or the end of its connection, tell: copied, piece by piece. No I/O."""

from __future__ import annotations

from typing import Protocol

from aioprefetch.errors import ProtocolError
from aioprefetch.transport.chunked import ChunkedDecoder


class Taker(Protocol):
    """Takes bytes that were received elsewhere; returns how many."""

    def feed(self, chunk: memoryview) -> int:
        """Copy bytes in, before they are overwritten."""
        ...


class CodedBody:
    """``ended``: its last byte was given on. ``is_clean``: nothing came after it."""

    __slots__ = ("_decoder", "_taker", "ended", "is_clean", "received_bytes")

    def __init__(self, taker: Taker, *, is_chunked: bool) -> None:
        self._taker = taker
        self._decoder = ChunkedDecoder() if is_chunked else None
        self.ended = False
        self.is_clean = False
        self.received_bytes = 0

    @property
    def is_chunked(self) -> bool:
        """Whether its own last chunk ends it."""
        return self._decoder is not None

    def feed(self, data: memoryview) -> None:
        """Give on what ``data`` carries. ``ProtocolError`` for bad chunks, and for more than the taker takes."""
        decoder = self._decoder
        pieces = [data] if decoder is None else decoder.feed(data)
        for piece in pieces:
            if self._taker.feed(piece) != len(piece):
                raise ProtocolError("the body has more bytes than were asked for")
            self.received_bytes += len(piece)
        if decoder is not None and decoder.ended:
            self.ended = True
            self.is_clean = not decoder.rest

    def end_with_connection(self) -> bool:
        """The connection has ended; whether the body has too."""
        self.ended = self.ended or self._decoder is None
        return self.ended
