"""The body of an answer that had to be read ahead into memory."""

from __future__ import annotations

from aioprefetch.values import ReadHead

CHUNK_BYTES = 1 << 20


class BufferedBody:
    """A body whose server does not tell lengths."""

    def __init__(self, head: ReadHead, view: memoryview) -> None:
        self.head = head
        self._view = view

    async def read_chunk(self) -> memoryview:
        chunk, self._view = self._view[:CHUNK_BYTES], self._view[CHUNK_BYTES:]
        return chunk

    async def aclose(self) -> None:
        self._view = memoryview(b"")
