"""The position of a reader: seek, tell, and the rules of ``whence``. No I/O.

A seek moves the cursor and nothing else: resident blocks and requests in flight stay. (OpenDAL's RangeReader dropped
its stream on every seek, which made 600 requests out of a Parquet file of 50 row groups and 12 columns.)
"""

from __future__ import annotations

import asyncio
import os

from aioprefetch.blocks.file import ReaderPosition
from aioprefetch.errors import InvalidRange, SizeUnknown
from aioprefetch.runtime.statistics import Counters


class Cursor:
    """The position of the next ``read``.

    ``from_end`` is the offset of a seek relative to an end that is not known yet, otherwise ``None``. ``turn`` is held
    by the one read that moves the cursor. ``mark`` is the position for the block store, once it is open.
    ``keeps_behind``: what was read may be wanted again, from the first seek on that leads behind the end of a read.
    """

    def __init__(self, path: str, counters: Counters, *, keeps_behind: bool) -> None:
        self.position = 0
        self.from_end: int | None = None
        self.turn = asyncio.Lock()
        self.keeps_behind = keeps_behind
        self.mark: ReaderPosition | None = None
        self._path = path
        self._read_end = 0  # The highest end of a read.
        self._sought = 0  # The target of the last seek: a position elsewhere is the end of a read.
        self._counters = counters

    def seek(self, offset: int, whence: int, size: int | None) -> int | None:
        """Move in an object of ``size`` bytes; the new position, ``None`` while it depends on an unknown size.

        Raises ``InvalidRange`` for a position before the start or an unknown ``whence``.
        """
        if whence == os.SEEK_END:
            if size is None:
                self.from_end = offset
                return None
            target = size + offset
        elif whence == os.SEEK_CUR:
            target = self.tell(size) + offset
        elif whence == os.SEEK_SET:
            target = offset
        else:
            raise InvalidRange(f"whence must be 0, 1 or 2, not {whence!r}", operation="seek", path=self._path)
        self._jump(target)
        return target

    def tell(self, size: int | None) -> int:
        """The position in an object of ``size`` bytes. ``SizeUnknown`` if it depends on a size of ``None``."""
        if self.from_end is None:
            return self.position
        if size is None:
            raise SizeUnknown(
                "the position depends on the object's size: read, or await ensure_size()",
                operation="tell",
                path=self._path,
            )
        return self.settle(size)

    def settle(self, size: int) -> int:
        """Turn a position relative to the end into an absolute one, now that the size is known."""
        if self.from_end is not None:
            target, self.from_end = size + self.from_end, None
            self._jump(target)
        return self.position

    def move(self, position: int) -> None:
        """A read has ended at ``position``."""
        self.position = position
        if self.mark is not None:
            self.mark.position = position

    def _jump(self, target: int) -> None:
        if target < 0:
            raise InvalidRange(f"the position {target} lies before the start", operation="seek", path=self._path)
        self.count_seek(self.position, target)
        self.from_end = None
        self.move(target)

    def count_seek(self, position: int, target: int) -> None:
        """Count a move from ``position`` to ``target`` without a read, of this cursor or of a file over the reader."""
        distance = target - position
        if position != self._sought and position > self._read_end:
            self._read_end = position
        self._sought = target
        if target < self._read_end and distance < 0:
            self.keeps_behind = True
            if self.mark is not None:
                self.mark.keeps_behind = True
        counters = self._counters
        counters["stream_read_seek_operations"] += distance != 0
        counters["stream_read_seek_forward_operations"] += distance > 0
        counters["stream_read_seek_bytes_skipped"] += max(0, distance)
        counters["stream_read_seek_backward_operations"] += distance < 0
        counters["stream_read_bytes_backwards_on_seek"] += max(0, -distance)
