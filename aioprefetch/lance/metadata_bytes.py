"""The end of a file that is in memory, and reads of what lies before it."""

from __future__ import annotations

from aioprefetch.scheduler.pinned_file import PinnedFile


class MetadataBytes:
    """The metadata of one file: its tail, lengthened once where it was too short, and single reads otherwise."""

    def __init__(self, pinned: PinnedFile) -> None:
        self._pinned = pinned
        self._view = pinned.tail
        self.start = pinned.tail_start

    def resident(self, start: int, end: int) -> memoryview | None:
        """The bytes ``[start, end)`` when all of them are in memory."""
        if start == end:
            return memoryview(b"")
        if start < self.start:
            return None
        return self._view[start - self.start : end - self.start]

    async def read(self, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)``, by one request when they are not in memory."""
        view = self.resident(start, end)
        return await self._pinned.read(start, end) if view is None else view

    async def lengthen(self, start: int) -> None:
        """Have everything from ``start`` on in memory, by one request when it is not."""
        if start < self.start:
            before = await self._pinned.read(start, self.start)
            self._view = memoryview(b"".join((before, self._view)))
            self.start = start
