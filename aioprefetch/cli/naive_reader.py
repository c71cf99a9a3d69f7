"""The reader that the demo compares with: it throws its buffer away on every seek.

This is what a plain range reader under a buffered one does (OpenDAL's reader inside a ``BufReader``, Python's
``io.BufferedReader`` over a file whose seek closes its stream): read-ahead helps until the first seek, and a Parquet
reader seeks before each column chunk. It is written honestly, with a connection that stays open and no needless copy.
"""

from __future__ import annotations

import contextlib
import http.client
import io
from collections.abc import Callable
from urllib.parse import urlsplit

from aioprefetch.errors import ProtocolError

READ_AHEAD_BYTES = 8 << 10  # the default of both buffered readers named above

FetchRange = Callable[[int, int], bytes]


class DropOnSeekReader(io.RawIOBase):
    """A file of ``size`` bytes; ``fetch(start, end)`` brings a range with one request."""

    mode = "rb"

    def __init__(self, fetch: FetchRange, size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._position = 0
        self._buffer = b""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move, and drop what was read ahead."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        self._buffer = b""
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Read from the buffer, and fetch what is missing plus some read-ahead."""
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > len(self._buffer):
            start = self._position + len(self._buffer)
            missing = wanted - len(self._buffer)
            self._buffer += self._fetch(start, min(self._size, start + max(missing, READ_AHEAD_BYTES)))
        data, self._buffer = self._buffer[:wanted], self._buffer[wanted:]
        self._position += len(data)
        return data


class HttpRanges:
    """Plain, synchronous ranged GETs of one URL over one connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port)
        self._target = parts.path + (f"?{parts.query}" if parts.query else "")

    def fetch(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)``."""
        self._connection.request("GET", self._target, headers={"Range": f"bytes={start}-{end - 1}"})
        with contextlib.closing(self._connection.getresponse()) as response:
            body = response.read()
        if response.status != 206 or len(body) != end - start:
            raise ProtocolError(f"status {response.status} with {len(body)} bytes for a range of {end - start}")
        return body

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
