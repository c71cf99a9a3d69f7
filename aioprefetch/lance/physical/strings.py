"""Strings and binary values: the ends of rows, and their bytes back to back (the encodings ``Binary`` and ``Fsst``).

**Ends.** Strings and lists store where the bytes or items of each row end, as unsigned 64-bit numbers. The first row
starts at 0. For a null the stored number is the end of the row before plus an adjustment that exceeds every end: ``v >=
adjustment`` means null, and ``v - adjustment`` is the end.

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
from aioprefetch.lance.compression import decode_fsst, decompress
from aioprefetch.lance.physical.protocols import (
    Bytes,
    Capacity,
    Direct,
    EncodedPage,
    OutputBuffer,
    PhysicalPageDecoder,
    Slice,
    allocate,
    check_offsets,
    copy_bits,
    packed,
)
from aioprefetch.lance.physical.reads import check_fits, joined
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import OFFSET_MAX, Range

Numbers = npt.NDArray[np.uint64]
_WIDTH = 8


@dataclass(frozen=True, slots=True)
class StoredEnds(Direct):
    """Scheduler of the ends of ``rows`` rows in ``buffer``.

    Their contents have ``content_size`` bytes or items in all.
    """

    buffer: Range
    rows: int
    adjustment: int
    content_size: int

    def __post_init__(self) -> None:
        check_fits(self.rows * _WIDTH, self.buffer, f"{self.rows} ends")
        if not 0 < self.adjustment <= OFFSET_MAX:
            raise UntrustedMetadata(f"{self.adjustment} cannot mark rows that are null")

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the ends of each range and of the row before it, whose end is the start of the range."""
        return RowRanges(np.maximum(ranges.starts - 1, 0), ranges.ends).bytes_at(self.buffer[0], _WIDTH)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> tuple[Ends, RowRanges]:
        """The ends of the rows of ``ranges``, and the range of contents of each range of rows.

        ``UntrustedMetadata`` if the ranges of contents do not ascend. Ends within a range are checked when they are
        used.
        """
        values = joined(reads, len(ranges)).view(np.uint64)
        if len(ranges) == 1:
            return self._single(ranges, values)
        return self._many(ranges, values)

    def _single(self, ranges: RowRanges, values: Numbers) -> tuple[Ends, RowRanges]:
        has_before = int(ranges.starts[0]) > 0
        start = _true_end(int(values[0]), self.adjustment) if has_before else 0
        ends = Ends(values[1:] if has_before else values, start, self.adjustment, self.content_size)
        return ends, RowRanges.one(start, ends.bounds(0, ranges.rows)[1])

    def _many(self, ranges: RowRanges, values: Numbers) -> tuple[Ends, RowRanges]:
        has_before = ranges.starts > 0  # True for all ranges except one that starts at row 0.
        sizes = ranges.lengths + has_before
        firsts = np.cumsum(sizes) - sizes
        is_null = values >= np.uint64(self.adjustment)
        ends = np.where(is_null, values - np.uint64(self.adjustment), values)
        starts = np.where(has_before, ends[firsts], np.uint64(0))
        lasts = ends[firsts + sizes - 1]
        if bool(np.any(lasts < starts)) or bool(np.any(starts[1:] < lasts[:-1])) or lasts[-1] > self.content_size:
            raise UntrustedMetadata(f"ends of rows do not ascend, or leave the {self.content_size} that there are")
        lengths = (lasts - starts).astype(np.int64)
        is_row = np.ones(len(values), np.bool_)
        is_row[firsts[has_before]] = False
        rows = ends[is_row]
        if bool(np.any(rows > np.repeat(lasts, ranges.lengths))):
            raise UntrustedMetadata("ends of rows do not ascend")
        moved = starts - (np.cumsum(lengths) - lengths).astype(np.uint64)  # Unsigned differences may wrap around.
        total = int(lengths.sum())
        mark = np.uint64(total + 1)
        kept = rows - np.repeat(moved, ranges.lengths) + np.where(is_null[is_row], mark, np.uint64(0))
        kept_ranges = lengths > 0
        contents = RowRanges(starts[kept_ranges].astype(np.int64), lasts[kept_ranges].astype(np.int64))
        return Ends(kept, 0, total + 1, total), contents


@dataclass(frozen=True, slots=True)
class Ends:
    """The loaded ends of wanted rows. The first row starts at ``start``."""

    values: Numbers
    start: int
    adjustment: int
    content_size: int

    @property
    def rows(self) -> int:
        return len(self.values)

    def bounds(self, skip: int, rows: int) -> Range:
        """The range of contents of ``rows`` rows after the first ``skip``.

        ``UntrustedMetadata`` for impossible ends.
        """
        start = self._end(skip - 1) if skip else self.start
        end = self._end(skip + rows - 1) if rows else start
        if not start <= end <= self.content_size:
            raise UntrustedMetadata(f"contents of rows lie in [{start}, {end}) of {self.content_size}")
        return start, end

    def has_nulls(self, skip: int, rows: int) -> bool:
        """Whether one of the rows is null."""
        return rows > 0 and int(self.values[skip : skip + rows].max()) >= self.adjustment

    def write(self, skip: int, rows: int, base: int, out: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """Write the ends of the rows to ``out`` (int32 or int64) as offsets; the first row starts at ``base``.

        Returns flags of the valid rows, ``None`` if all are valid. ``UntrustedMetadata`` unless the ends ascend within
        ``bounds``. The caller has checked that they fit into ``out``.
        """
        start, _ = self.bounds(skip, rows)
        values = self.values[skip : skip + rows]
        is_valid: npt.NDArray[np.bool_] | None = None
        if self.has_nulls(skip, rows):
            is_valid = values < np.uint64(self.adjustment)
            values = np.where(is_valid, values, values - np.uint64(self.adjustment))
        if int(values[0]) < start or bool(np.any(values[1:] < values[:-1])):
            raise UntrustedMetadata("ends of rows do not ascend")
        np.subtract(values, np.uint64((start - base) & 0xFFFF_FFFF_FFFF_FFFF), out=out, casting="unsafe")
        return is_valid

    def row_finder(self) -> RowFinder:
        """A function that finds the row of a position in the wanted contents."""
        is_null = self.values >= np.uint64(self.adjustment)
        return RowFinder(np.where(is_null, self.values - np.uint64(self.adjustment), self.values), self.start)

    def _end(self, row: int) -> int:
        return _true_end(int(self.values[row]), self.adjustment)


@dataclass(frozen=True, slots=True)
class RowFinder:
    """Finds rows by their ends, which carry no adjustment here."""

    ends: Numbers
    start: int

    def __call__(self, position: int) -> int:
        """The row that holds the content at ``position``, counted from where the first row starts."""
        return int(np.searchsorted(self.ends, np.uint64(self.start + position), side="right"))


def _true_end(value: int, adjustment: int) -> int:
    return value - adjustment if value >= adjustment else value


# --- strings ----------------------------------------------------------------------------------------------------------

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
        contents = self.ends.decoder(ranges, iter(reads))[1]
        return contents.bytes_at(self.content[0], 1)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PhysicalPageDecoder | EncodedPage:
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
        return self.codes.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        """An estimate: the size is known only after decoding."""
        start, end = self.codes.ends.bounds(skip, rows)
        return _FSST_GROWTH * (end - start) + rows * self.codes.offset_width

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        ends = self.codes.ends
        start, end = ends.bounds(skip, rows)
        offsets = np.zeros(rows + 1, np.int64)
        is_valid = ends.write(skip, rows, 0, offsets[1:]) if rows else None
        first = self.codes.content_start
        text, bounds = decode_fsst(self.symbol_table, self.codes.content[start - first : end - first], offsets)
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
