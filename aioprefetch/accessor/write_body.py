"""An object written piece by piece, as returned by ``Accessor.open_write``."""

from __future__ import annotations

from typing import Protocol

from aioprefetch.values import Metadata


class WriteBody(Protocol):
    """An object being written piece by piece. Nothing appears before ``close``; after ``abort`` nothing ever does.

    Every method raises errors of ``aioprefetch.errors`` alone. If one fails or is cancelled, call ``abort``.
    """

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append ``chunk``. The caller may change its memory as soon as the call returns."""
        ...

    async def close(self) -> Metadata:
        """Make the object visible and return its metadata."""
        ...

    async def abort(self) -> None:
        """Discard the written bytes, and remove them from the store.

        Allowed at any time, more than once, and after ``close``, where it does nothing.
        """
        ...
