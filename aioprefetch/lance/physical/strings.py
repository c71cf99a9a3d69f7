"""Strings and binary values: the ends of rows, and their bytes back to back (the encodings ``Binary`` and ``Fsst``).

The byte ranges of some rows are known only from their ends, which makes the read indirect. If all rows are wanted, or
the bytes are compressed or few, all bytes are read at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance import fsst
from aioprefetch.lance.compression import decompress
from aioprefetch.lance.physical.memory import allocate, check_offsets, copy_bits, packed
from aioprefetch.lance.physical.offsets import Ends, StoredEnds
from aioprefetch.lance.physical.protocols import Bytes, Capacity, EncodedPage, OutputBuffer, PhysicalPageDecoder, Slice
from aioprefetch.lance.physical.reads import joined
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import Range

# Up to this size the bytes of a page are read together with the ends: a second round trip takes longer.
DIRECT_BYTES = 64 << 10

# The estimated expansion of FSST codes, for the sizes of batches.
_FSST_GROWTH = 3


@dataclass(frozen=True, slots=True)
class BinaryScheduler:
    """Scheduler of strings with their ``ends`` and their bytes in ``content``.

    ``offset_width`` is that of the Arrow type, 4 or 8 bytes. ``symbol_table`` is set if the bytes are FSST codes.
    """

    ends: StoredEnds
    content: Range
    offset_width: int
    compression: str = ""
    symbol_table: bytes | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.ends.rows

    def _takes_all(self, ranges: RowRanges) -> bool:
        size_bytes = self.content[1] - self.content[0]
        return bool(self.compression) or size_bytes <= DIRECT_BYTES or ranges.is_whole(self.rows)

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the ends, and of all bytes if they are read at once."""
        ends = self.ends.plan(ranges)
        return [*ends, self.content] if self._takes_all(ranges) else ends

    def is_indirect(self, ranges: RowRanges) -> bool:
        """Whether the bytes are planned from the ends."""
        return not self._takes_all(ranges)

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """The byte ranges of the rows."""
        contents = self.ends.decoder(ranges, iter(reads))[1]
        return contents.bytes_at(self.content[0], 1)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PhysicalPageDecoder | EncodedPage:
        """The rows of ``ranges``."""
        ends, contents = self.ends.decoder(ranges, reads)
        if self.compression:
            return CompressedStrings(self, ends, contents if len(ranges) > 1 else None, next(reads))
        if self._takes_all(ranges):
            content = joined(reads, 1)
            if len(ranges) > 1:
                content = selected(content, contents)
            rows = BinaryRows(ends, content, 0, self.offset_width)
        elif len(ranges) == 1:
            bytes_read = joined(reads, 1) if contents.rows else np.zeros(0, np.uint8)
            rows = BinaryRows(ends, bytes_read, ends.start, self.offset_width)
        else:
            rows = BinaryRows(ends, joined(reads, len(contents)), 0, self.offset_width)
        return rows if self.symbol_table is None else FsstRows(rows, self.symbol_table)


@dataclass(frozen=True, slots=True)
class BinaryRows:
    """Loaded strings. ``content`` starts at position ``content_start`` of the ends."""

    ends: Ends
    content: Bytes
    content_start: int
    offset_width: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.ends.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        """The exact size without nulls."""
        start, end = self.ends.bounds(skip, rows)
        return end - start + rows * self.offset_width

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add validity, offsets and the bytes between the ends."""
        start, end = self._bounds(skip, rows)
        capacities[0].size += rows
        capacities[0].is_needed |= self.ends.has_nulls(skip, rows)
        capacities[1].size += rows
        capacities[2].size += end - start
        check_offsets(capacities[2].size, self.offset_width)

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        """Write the rows. Offsets continue those of earlier pages."""
        validity, offsets, content = targets
        assert offsets is not None
        assert content is not None
        start, end = self._bounds(skip, rows)
        is_valid = self.ends.write(skip, rows, content.position, offsets.part(rows))
        content.part(end - start)[:] = self.content[start - self.content_start : end - self.content_start]
        put_validity(validity, is_valid, rows)

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None]:
        """New offsets, and a slice of the received bytes."""
        start, end = self._bounds(skip, rows)
        check_offsets(end - start, self.offset_width)
        offsets = new_offsets(rows, self.offset_width)
        is_valid = self.ends.write(skip, rows, 0, offsets[1:])
        content = self.content[start - self.content_start : end - self.content_start]
        return [None if is_valid is None else packed(is_valid), offsets, content]

    def _bounds(self, skip: int, rows: int) -> Range:
        start, end = self.ends.bounds(skip, rows)
        if not self.content_start <= start <= end <= self.content_start + len(self.content):
            raise UntrustedMetadata(
                f"strings lie in [{start}, {end}) where [{self.content_start}, "
                f"{self.content_start + len(self.content)}) was read"
            )
        return start, end


@dataclass(slots=True)
class CompressedStrings:
    """Loaded strings whose bytes are compressed together. The first batch decompresses all of them.

    ``contents`` are the ranges of the bytes that the ends count; ``None`` if they count all bytes.
    """

    scheduler: BinaryScheduler
    ends: Ends
    contents: RowRanges | None
    data: memoryview
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _plain: PhysicalPageDecoder | EncodedPage | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.ends.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        """The size between the ends: exact for plain text, an estimate for FSST."""
        start, end = self.ends.bounds(skip, rows)
        growth = 1 if self.scheduler.symbol_table is None else _FSST_GROWTH
        return growth * (end - start) + rows * self.scheduler.offset_width

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        """Decompress all rows of the page."""
        with self._lock:
            if self._plain is None:
                self._plain = self._decompress()
        if isinstance(self._plain, FsstRows):
            return self._plain.decoded(skip, rows)
        assert isinstance(self._plain, BinaryRows)
        return self._plain, skip

    def _decompress(self) -> PhysicalPageDecoder | EncodedPage:
        stored = self.scheduler
        content = decompress(stored.compression, self.data)
        if self.contents is not None:
            content = selected(content, self.contents)
        rows = BinaryRows(self.ends, content, 0, stored.offset_width)
        return rows if stored.symbol_table is None else FsstRows(rows, stored.symbol_table)


def selected(content: Bytes, contents: RowRanges) -> Bytes:
    """The bytes of the ranges ``contents``, in order. ``UntrustedMetadata`` for ranges beyond the end."""
    wanted = contents.bytes_at(0, 1)
    if wanted and wanted[-1][1] > len(content):
        raise UntrustedMetadata(f"strings end at {wanted[-1][1]} of {len(content)} bytes")
    return np.concatenate([content[:0], *(content[start:end] for start, end in wanted)])


@dataclass(frozen=True, slots=True)
class FsstRows:
    """Loaded strings whose bytes are FSST codes. Each batch decodes its own rows."""

    codes: BinaryRows
    symbol_table: bytes

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.codes.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        """An estimate: the size is known only after decoding."""
        start, end = self.codes.ends.bounds(skip, rows)
        return _FSST_GROWTH * (end - start) + rows * self.codes.offset_width

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        """Decode these rows."""
        ends = self.codes.ends
        start, end = ends.bounds(skip, rows)
        offsets = np.zeros(rows + 1, np.int64)
        is_valid = ends.write(skip, rows, 0, offsets[1:]) if rows else None
        first = self.codes.content_start
        text, bounds = fsst.decode(self.symbol_table, self.codes.content[start - first : end - first], offsets)
        validity = None if is_valid is None else packed(is_valid)
        return TextRows(bounds, text, validity, self.codes.offset_width), 0


@dataclass(frozen=True, slots=True)
class TextRows:
    """Decoded strings: ``rows + 1`` int64 offsets into ``content``, and a validity bitmap."""

    offsets: npt.NDArray[np.int64]
    content: Bytes
    validity: Bytes | None
    offset_width: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1

    def size_bytes(self, skip: int, rows: int) -> int:
        """The exact size without nulls."""
        return int(self.offsets[skip + rows] - self.offsets[skip]) + rows * self.offset_width

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add validity, offsets and the bytes between them."""
        capacities[0].size += rows
        capacities[0].is_needed |= self.validity is not None
        capacities[1].size += rows
        capacities[2].size += int(self.offsets[skip + rows] - self.offsets[skip])
        check_offsets(capacities[2].size, self.offset_width)

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        """Write the rows. Offsets continue those of earlier pages."""
        validity, offsets, content = targets
        assert offsets is not None
        assert content is not None
        start, end = int(self.offsets[skip]), int(self.offsets[skip + rows])
        offsets.part(rows)[:] = self.offsets[skip + 1 : skip + rows + 1] + (content.position - start)
        content.part(end - start)[:] = self.content[start:end]
        if validity is not None and self.validity is not None:
            validity.put_bits(self.validity, skip, rows)
        elif validity is not None:
            validity.fill_bits(True, rows)

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None]:
        """New offsets, and a slice of the bytes."""
        start, end = int(self.offsets[skip]), int(self.offsets[skip + rows])
        check_offsets(end - start, self.offset_width)
        offsets = new_offsets(rows, self.offset_width)
        offsets[:] = self.offsets[skip : skip + rows + 1] - start
        validity = self.validity
        if validity is not None and skip:
            moved = allocate((rows + 7) // 8)
            copy_bits(validity, skip, moved, 0, rows)
            validity = moved
        return [validity, offsets, self.content[start:end]]


def new_offsets(rows: int, width: int) -> npt.NDArray[Any]:
    """Memory for ``rows + 1`` offsets, the first of which is 0."""
    memory = allocate((rows + 1) * width)
    offsets: npt.NDArray[Any] = memory.view(np.int32) if width == 4 else memory.view(np.int64)
    offsets[0] = 0
    return offsets


def put_validity(target: OutputBuffer | None, is_valid: npt.NDArray[np.bool_] | None, rows: int) -> None:
    """Write validity, if the batch needs it. ``is_valid`` is ``None`` if all rows are valid."""
    if target is None:
        return
    if is_valid is None:
        target.fill_bits(True, rows)
    else:
        target.put_bits(packed(is_valid), 0, rows)
