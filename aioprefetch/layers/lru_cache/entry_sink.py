"""Where a part of an entry is received, before a reader sees any of it."""

from __future__ import annotations

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.sink import Sink
from aioprefetch.values import ReadHead


class EntrySink(Sink):
    """``size`` bytes at ``start`` of a file of ``file_bytes``; any other answer is ``UntrustedMetadata``."""

    __slots__ = ("_due", "data")

    def __init__(self, *, start: int, size: int, file_bytes: int) -> None:
        super().__init__()
        self._due = (start, size, file_bytes)
        self.data = bytearray()

    def _begun(self, head: ReadHead) -> None:
        start, size, file_bytes = self._due
        if (head.start, head.size) != (start, size) or head.total not in (None, file_bytes):
            raise UntrustedMetadata(
                f"the file of a cache entry has [{head.start}, {head.end}) of {head.total} bytes where"
                f" [{start}, {start + size}) of {file_bytes} are due",
                operation="read",
            )
        self.data = bytearray(size)

    def _allocate(self, position: int, size: int) -> memoryview:
        return memoryview(self.data)[position:size]
