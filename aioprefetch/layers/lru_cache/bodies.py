"""What a read gets from the layer: a part of an object in memory, or a part of a fill."""

from __future__ import annotations

from aioprefetch.layers.lru_cache.fill import Fill
from aioprefetch.layers.lru_cache.reservation import Reservation
from aioprefetch.values import ReadHead

CHUNK_BYTES = 1 << 20


class HeldBody:
    """A body out of memory that was reserved for it."""

    def __init__(self, head: ReadHead, data: bytes | bytearray, reservation: Reservation | None) -> None:
        self.head = head
        self._view = memoryview(data).toreadonly()
        self._reservation = reservation

    async def read_chunk(self) -> memoryview:
        chunk, self._view = self._view[:CHUNK_BYTES], self._view[CHUNK_BYTES:]
        return chunk

    async def aclose(self) -> None:
        self._view = memoryview(b"")
        if self._reservation is not None:
            self._reservation.release()


class FillBody:
    """A part of an object that is read as a stream while the fill runs. Its chunks are views of the fill's memory."""

    def __init__(self, fill: Fill, head: ReadHead, *, deadline: float | None) -> None:
        self.head = head
        self._fill = fill
        self._deadline = deadline
        self._position = head.start
        self._is_open = True

    async def read_chunk(self) -> memoryview | bytes:
        if self._position >= self.head.end or not self._is_open:
            return b""
        await self._fill.wait_until(self._position + 1, deadline=self._deadline)
        end = min(self._fill.received, self.head.end, self._position + CHUNK_BYTES)
        chunk = memoryview(self._fill.buffer)[self._position : end].toreadonly()
        self._position = end
        return chunk

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._fill.leave(served=self._position >= self.head.end)
