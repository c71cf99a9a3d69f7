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
    Direct,
    PhysicalPageDecoder,
    RowBits,
    RowOffsets,
    RowText,
    check_offsets,
    new_offsets,
)
from aioprefetch.lance.physical.reads import check_fits, joined
from aioprefetch.ranges import OFFSET_MAX, Range
from aioprefetch.row_ranges import RowRanges

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
        has_before = ranges.starts > 0  # False only for a range that starts at row 0.
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

    ``offset_width`` of the Arrow type is 4 or 8 bytes. ``symbol_table`` is set if the bytes are FSST codes.
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

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> BinaryRows | CompressedStrings:
        ends, contents = self.ends.decoder(ranges, reads)
        if self.compression:
            return CompressedStrings(self, ends, contents if len(ranges) > 1 else None, next(reads))
        start = 0
        if self._takes_all(ranges):
            content = joined(reads, 1)
            if len(ranges) > 1:
                content = selected(content, contents)
        elif len(ranges) == 1:
            content, start = joined(reads, 1) if contents.rows else np.zeros(0, np.uint8), ends.start
        else:
            content = joined(reads, len(contents))
        return BinaryRows(ends, content, start, self.offset_width, self.symbol_table)


@dataclass(frozen=True, slots=True)
class BinaryRows:
    """Loaded strings; each batch decodes its own rows of them: texts, or FSST codes if there is a symbol table.

    ``content`` starts at position ``content_start`` of the ends.
    """

    ends: Ends
    content: Bytes
    content_start: int
    offset_width: int
    symbol_table: bytes | None = None

    @property
    def rows(self) -> int:
        return self.ends.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        """Exact for plain text without nulls. With FSST the size is known only after decoding."""
        start, end = self.ends.bounds(skip, rows)
        return (1 if self.symbol_table is None else _FSST_GROWTH) * (end - start) + rows * self.offset_width

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        """New offsets, and a slice of the received bytes, or new ones for codes."""
        start, end = self.ends.bounds(skip, rows)
        if not self.content_start <= start <= end <= self.content_start + len(self.content):
            raise UntrustedMetadata(
                f"strings lie in [{start}, {end}) where [{self.content_start}, "
                f"{self.content_start + len(self.content)}) was read"
            )
        check_offsets(end - start, self.offset_width)
        offsets = new_offsets(rows, self.offset_width)
        flags = self.ends.write(skip, rows, 0, offsets[1:]) if rows else None
        content = self.content[start - self.content_start : end - self.content_start]
        if self.symbol_table is not None:
            content, offsets = decode_fsst(self.symbol_table, content, offsets)
        return TextRows(offsets, content, RowBits.of(flags), self.offset_width), 0


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
    _plain: BinaryRows | None = None

    @property
    def rows(self) -> int:
        return self.ends.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        return self._rows_of(np.zeros(0, np.uint8)).size_bytes(skip, rows)

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        """Decompress all rows of the page, and decode these."""
        with self._lock:
            if self._plain is None:
                content = decompress(self.scheduler.compression, self.data)
                self._plain = self._rows_of(content if self.contents is None else selected(content, self.contents))
        return self._plain.decoded(skip, rows)

    def _rows_of(self, content: Bytes) -> BinaryRows:
        return BinaryRows(self.ends, content, 0, self.scheduler.offset_width, self.scheduler.symbol_table)


def selected(content: Bytes, contents: RowRanges) -> Bytes:
    """The bytes of the ranges ``contents``, in order. ``UntrustedMetadata`` for ranges beyond the end."""
    wanted = contents.bytes_at(0, 1)
    if wanted and wanted[-1][1] > len(content):
        raise UntrustedMetadata(f"strings end at {wanted[-1][1]} of {len(content)} bytes")
    return np.concatenate([content[:0], *(content[start:end] for start, end in wanted)])


class TextRows(PhysicalPageDecoder):
    """Decoded strings: ``rows + 1`` offsets into ``content``."""

    def __init__(self, offsets: npt.NDArray[np.integer], content: Bytes, validity: RowBits, offset_width: int) -> None:
        buffers = [validity, RowOffsets(offsets, offset_width), RowText(content, offsets, offset_width)]
        super().__init__(len(offsets) - 1, buffers)
