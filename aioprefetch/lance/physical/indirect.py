"""Values that lie elsewhere: in a dictionary of the page (``Dictionary``), or outside the pages (``Blob``).

Writers use dictionaries for strings with few distinct values: index 0 is null, and the items count from 1. The indices
of an Arrow dictionary type count from 0, and null may be an item. Items are read together with the indices.

A page of blobs holds descriptors: the absolute position and the size of each value. Once the descriptors are loaded,
the values are read in groups of some megabytes, each a small page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.physical.protocols import (
    Direct,
    EncodedPage,
    PartScheduler,
    PhysicalPageDecoder,
    RowBits,
    RowValues,
    packed,
)
from aioprefetch.lance.physical.reads import check_fits, joined
from aioprefetch.lance.physical.strings import TextRows
from aioprefetch.lance.physical.value import Value
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges

Assemble = Callable[[PhysicalPageDecoder | EncodedPage], pa.Array]


@dataclass(slots=True)
class Items:
    """The dictionary of a page, decoded once, when the first batch needs it."""

    page: PhysicalPageDecoder | EncodedPage
    assemble: Assemble
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _array: pa.Array | None = None

    def array(self) -> pa.Array:
        """The items as an array. Safe on any thread."""
        with self._lock:
            if self._array is None:
                self._array = self.assemble(self.page)
            return self._array

    def size_bytes(self) -> int:
        return self.page.size_bytes(0, self.page.rows)


@dataclass(frozen=True, slots=True)
class DictionaryScheduler(Direct):
    """Scheduler of indices and items.

    With ``is_text`` the dictionary was the writer's choice, and rows are decoded to strings.
    """

    indices: Value
    items: PartScheduler[PhysicalPageDecoder | EncodedPage]  # every item is wanted
    assemble: Assemble
    is_text: bool
    offset_width: int = 4

    @property
    def rows(self) -> int:
        return self.indices.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the indices of the rows and of all items."""
        return self.indices.plan(ranges) + self.items.plan(RowRanges.one(0, self.items.rows))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> TextDictionaryRows | DictionaryRows:
        indices = self.indices.values(ranges, reads)
        items = Items(self.items.decoder(RowRanges.one(0, self.items.rows), reads), self.assemble)
        if self.is_text:
            return TextDictionaryRows(ranges.rows, indices, items, self.offset_width)
        return DictionaryRows(ranges.rows, indices, items)


def _numbers(indices: RowValues, skip: int, rows: int) -> npt.NDArray[np.unsignedinteger]:
    """Indices as unsigned numbers: a negative index becomes larger than any dictionary."""
    return indices.slice(skip, rows).view(f"<u{indices.width}")


def _check(numbers: npt.NDArray[np.unsignedinteger], size: int) -> None:
    if len(numbers) and int(numbers.max()) >= size:
        raise UntrustedMetadata(f"index {int(numbers.max())} into a dictionary of {size} items")


@dataclass(frozen=True, slots=True)
class TextDictionaryRows:
    """Loaded strings of a writer's dictionary: index 0 is null, index 1 the first of ``items``."""

    rows: int
    indices: RowValues
    items: Items
    offset_width: int

    def size_bytes(self, skip: int, rows: int) -> int:
        """An estimate from the mean size of the items."""
        items = self.items.page
        mean_bytes = items.size_bytes(0, items.rows) // max(items.rows, 1)
        return rows * (mean_bytes + self.offset_width)

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        """Decode these rows by Arrow's ``take``."""
        items = self.items.array()
        numbers = _numbers(self.indices, skip, rows)
        _check(numbers, len(items) + 1)
        is_valid = None if int(numbers.min(initial=1)) else packed(numbers != 0)
        numbers = numbers - numbers.dtype.type(1)  # The index of a null is arbitrary.
        buffers = [None if is_valid is None else pa.py_buffer(is_valid), pa.py_buffer(numbers)]
        taken = items.take(pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), rows, buffers))
        validity, offsets, content = taken.buffers()
        bounds = np.frombuffer(offsets, "<i8" if self.offset_width == 8 else "<i4", rows + 1)
        bits = None if validity is None else np.frombuffer(validity, np.uint8)
        text = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
        return TextRows(bounds, text, RowBits(bits), self.offset_width), 0


@dataclass(frozen=True, slots=True)
class DictionaryRows:
    """Loaded indices of an Arrow dictionary type, checked at use. They decode to validity and indices."""

    rows: int
    indices: RowValues
    items: Items

    def size_bytes(self, skip: int, rows: int) -> int:
        """The size of the indices and of all items, which every batch holds."""
        return self.indices.size_bytes(skip, rows) + self.items.size_bytes()

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        """The validity of the items. ``UntrustedMetadata`` for an index without an item."""
        items = self.items.array()
        numbers = _numbers(self.indices, skip, rows)
        _check(numbers, len(items))
        is_valid = items.is_valid().to_numpy(zero_copy_only=False)[numbers] if items.null_count else None
        validity = RowBits.of(None if is_valid is None or bool(is_valid.all()) else is_valid)
        values = RowValues(self.indices.slice(skip, rows), self.indices.width)
        return PhysicalPageDecoder(rows, [validity, values]), 0


# --- blobs ------------------------------------------------------------------------------------------------------------

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
    """Scheduler of a group of values that are all wanted."""

    positions: Numbers
    sizes: Numbers
    is_null: npt.NDArray[np.bool_]
    offset_width: int

    @property
    def rows(self) -> int:
        return len(self.sizes)

    def plan(self, ranges: RowRanges) -> list[Range]:
        kept = self.sizes > 0
        starts, ends = self.positions[kept], (self.positions + self.sizes)[kept]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> TextRows:
        count = int(np.count_nonzero(self.sizes))
        content = joined(reads, count) if count else np.zeros(0, np.uint8)
        offsets = np.zeros(self.rows + 1, np.int64)
        np.cumsum(self.sizes, out=offsets[1:])
        validity = RowBits.of(~self.is_null if bool(self.is_null.any()) else None)
        return TextRows(offsets, content, validity, self.offset_width)
