"""Where a part of an entry is received, before a reader sees any of it."""

from __future__ import annotations

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import UntrustedMetadata
from aioprefetch.layers.lru_cache.index import IndexEntry
from aioprefetch.values import ReadHead


class EntrySink(Sink):
    """``size`` bytes at ``start`` of an entry's file; any other response is ``UntrustedMetadata``.

    So is one of a file that is not the one that was read before, by what the store says of it.
    """

    __slots__ = ("_due", "_entry", "data")

    def __init__(self, entry: IndexEntry, *, start: int, size: int) -> None:
        super().__init__()
        self._due = (start, size, entry.size_bytes)
        self._entry = entry
        self.data = bytearray()

    def _begun(self, head: ReadHead) -> None:
        start, size, file_bytes = self._due
        if (head.start, head.size) != (start, size) or head.total not in (None, file_bytes):
            raise UntrustedMetadata(
                f"the file of a cache entry has [{head.start}, {head.end}) of {head.total} bytes where"
                f" [{start}, {start + size}) of {file_bytes} are due",
                operation="read",
            )
        known = self._entry
        if known.store_etag not in (None, head.etag) or known.store_modified not in (None, head.last_modified):
            raise UntrustedMetadata("the file of a cache entry was replaced since it was first read", operation="read")
        if known.store_etag is None:
            known.store_etag, known.store_modified = head.etag, head.last_modified
        self.data = bytearray(size)

    def _allocate(self, position: int, size: int) -> memoryview:
        return memoryview(self.data)[position:size]
