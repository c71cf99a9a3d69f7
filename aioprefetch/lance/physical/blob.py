"""Large binary values that lie outside the pages (the column encoding ``Blob``).

A page holds descriptors: the absolute position and the size of each value. Once the descriptors are loaded, the values
are read in groups of some megabytes, each a small page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.physical.memory import packed
from aioprefetch.lance.physical.protocols import Direct
from aioprefetch.lance.physical.reads import check_fits, joined
from aioprefetch.lance.physical.strings import TextRows
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import Range

# The size of a group, unless it is a single larger value.
GROUP_BYTES = 8 << 20

# The descriptor of a null has this position and size 0.
_NULL_POSITION = 1
_WIDTH = 16

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlobDescriptors(Direct):
    """Scheduler of the descriptors of ``rows`` values in ``buffer``."""

    buffer: Range
    rows: int
    file_size: int
    offset_width: int

    def __post_init__(self) -> None:
        check_fits(self.rows * _WIDTH, self.buffer, f"{self.rows} descriptors of blobs")

    def plan(self, ranges: RowRanges) -> list[Range]:
        """One read for each range."""
        return ranges.bytes_at(self.buffer[0], _WIDTH)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> list[BlobGroup]:
        """The values of ``ranges`` in groups. ``UntrustedMetadata`` for a value that leaves the file."""
        pairs = joined(reads, len(ranges)).view("<u8").reshape(-1, 2)
        positions, sizes = pairs[:, 0], pairs[:, 1]
        size = np.uint64(self.file_size)
        if bool(np.any(sizes > size)) or bool(np.any(positions > size - sizes)):
            raise UntrustedMetadata(f"a blob leaves the file of {self.file_size} bytes")
        is_null = (sizes == 0) & (positions == _NULL_POSITION)
        ends = np.cumsum(sizes, dtype=np.int64) if len(sizes) else np.zeros(0, np.int64)
        if len(ends) and (ends[-1] < 0 or bool(np.any(ends[1:] < ends[:-1]))):
            raise UntrustedMetadata("the sizes of blobs have no sum")
        # A group ends where the bytes before a value reach the next multiple of the group size.
        marks = (ends - sizes.astype(np.int64)) // GROUP_BYTES
        bounds = [0, *(np.flatnonzero(marks[1:] != marks[:-1]) + 1).tolist(), len(sizes)]
        return [
            BlobGroup(positions[a:b].astype(np.int64), sizes[a:b].astype(np.int64), is_null[a:b], self.offset_width)
            for a, b in pairwise(bounds)
            if b > a
        ]


@dataclass(frozen=True, slots=True)
class BlobGroup(Direct):
    """Scheduler of a group of values, all of which are wanted."""

    positions: Numbers
    sizes: Numbers
    is_null: npt.NDArray[np.bool_]
    offset_width: int

    @property
    def rows(self) -> int:
        """The number of values."""
        return len(self.sizes)

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the values."""
        kept = self.sizes > 0
        starts, ends = self.positions[kept], (self.positions + self.sizes)[kept]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> TextRows:
        """The loaded values."""
        count = int(np.count_nonzero(self.sizes))
        content = joined(reads, count) if count else np.zeros(0, np.uint8)
        offsets = np.zeros(self.rows + 1, np.int64)
        np.cumsum(self.sizes, out=offsets[1:])
        validity = packed(~self.is_null) if bool(self.is_null.any()) else None
        return TextRows(offsets, content, validity, self.offset_width)
