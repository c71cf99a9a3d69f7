"""The two streams of a store: a response read piece by piece, and an object written piece by piece."""

from __future__ import annotations

from typing import Protocol

from aioprefetch.values import Metadata, ReadHead


class ReadBody(Protocol):
    """A response whose head has come and been checked, and whose body is read piece by piece."""

    @property
    def head(self) -> ReadHead:
        """The checked head."""
        ...

    async def read_chunk(self) -> bytes | bytearray | memoryview:
        """The next bytes in order, ``b""`` after the last one. Raises ``Unavailable`` when the body breaks off.

        If cancelled, bytes may be lost: the body must be closed then.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back, or break it off when the body was not read to its end. May be called twice."""
        ...


class WriteBody(Protocol):
    """An object being written piece by piece. Nothing appears before ``close``; after ``abort`` nothing ever does."""

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        ...

    async def close(self) -> Metadata:
        """Let the object appear. If it fails or is cancelled, call ``abort``."""
        ...

    async def abort(self) -> None:
        """Leave nothing behind. May be called at any time, twice, and after ``close``."""
        ...
