"""Values of a fixed width, with and without nulls: numbers, bitmaps, packed structs, fixed-size lists, nulls alone.

A packed struct (the encoding ``PackedStruct``) is stored row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.compression import decompress
from aioprefetch.lance.physical.protocols import (
    Capacity,
    Direct,
    PartScheduler,
    PhysicalPageDecoder,
    RowBits,
    RowBuffer,
    RowField,
    RowItems,
    RowValues,
    check_nulls,
    packed,
)
from aioprefetch.lance.physical.reads import check_fits, joined
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges


@dataclass(frozen=True, slots=True)
class Value:
    """Scheduler of ``rows`` values of ``width`` bytes in ``buffer`` (the encoding ``Flat``).

    A compressed buffer is read whole.
    """

    buffer: Range
    rows: int
    width: int
    compression: str = ""

    def __post_init__(self) -> None:
        if not self.compression:
            check_fits(self.rows * self.width, self.buffer, f"{self.rows} values of {self.width} bytes")

    def plan(self, ranges: RowRanges) -> list[Range]:
        """One read for each range."""
        return [self.buffer] if self.compression else ranges.bytes_at(self.buffer[0], self.width)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PhysicalPageDecoder:
        return PhysicalPageDecoder(ranges.rows, [self.values(ranges, reads)])

    def values(self, ranges: RowRanges, reads: Iterator[memoryview]) -> RowValues:
        """The values of the rows. ``UntrustedMetadata`` if there are fewer of them in a compressed buffer."""
        if not self.compression:
            return RowValues(joined(reads, len(ranges)), self.width)
        content = decompress(self.compression, next(reads))
        if len(content) < self.rows * self.width:
            raise UntrustedMetadata(f"{self.rows} values of {self.width} bytes are compressed to {len(content)} bytes")
        parts = [content[start:end] for start, end in ranges.bytes_at(0, self.width)]
        return RowValues(np.concatenate(parts), self.width)


@dataclass(frozen=True, slots=True)
class Bitmap:
    """Scheduler of ``rows`` bits in ``buffer``: booleans or validity, where 1 is true or valid."""

    buffer: Range
    rows: int

    def __post_init__(self) -> None:
        check_fits((self.rows + 7) // 8, self.buffer, f"{self.rows} bits")

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The bytes that hold the bits of each range."""
        return RowRanges(ranges.starts // 8, (ranges.ends + 7) // 8).bytes_at(self.buffer[0], 1)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PhysicalPageDecoder:
        return PhysicalPageDecoder(ranges.rows, [self.bits(ranges, reads)])

    def bits(self, ranges: RowRanges, reads: Iterator[memoryview]) -> RowBits:
        """The bits of the rows: of one range where they lie in the bytes that were read."""
        bits = joined(reads, len(ranges))
        if len(ranges) == 1:
            return RowBits(bits, int(ranges.starts[0]) % 8)
        sizes = (ranges.ends + 7) // 8 - ranges.starts // 8
        first_bits = 8 * (np.cumsum(sizes) - sizes) + ranges.starts % 8
        places = np.repeat(first_bits - ranges.positions[:-1], ranges.lengths) + np.arange(ranges.rows)
        return RowBits(packed(np.unpackbits(bits, bitorder="little")[places].view(np.bool_)))


@dataclass(frozen=True, slots=True)
class PackedChild:
    """A field of the struct: values of ``width`` bytes, after ``depth`` unused validity buffers in the output.

    The depth is 1 for a plain value, and 2 for a fixed-size list of plain values.
    """

    width: int
    depth: int = 1


@dataclass(frozen=True, slots=True)
class PackedStructScheduler(Direct):
    """Scheduler of ``rows`` rows in ``buffer``. A row is the values of ``children`` back to back."""

    buffer: Range
    rows: int
    children: tuple[PackedChild, ...]

    def __post_init__(self) -> None:
        check_fits(self.rows * self.width, self.buffer, f"{self.rows} rows of {self.width} bytes")

    @property
    def width(self) -> int:
        """The size of a row in bytes."""
        return sum(child.width for child in self.children)

    def plan(self, ranges: RowRanges) -> list[Range]:
        """One read for each range."""
        return ranges.bytes_at(self.buffer[0], self.width)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PhysicalPageDecoder:
        matrix = joined(reads, len(ranges)).reshape(ranges.rows, self.width)
        buffers: list[RowBuffer] = [RowBits(None)]  # Neither the struct nor its fields have nulls.
        first = 0
        for child in self.children:
            buffers += [*(RowBits(None) for _ in range(child.depth)), RowField(matrix, first, child.width)]
            first += child.width
        return PhysicalPageDecoder(ranges.rows, buffers)


# --- values with validity ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Basic(Direct):
    """Scheduler of values with their validity (the encoding ``Nullable``), which is ``None`` if no row is null."""

    validity: Bitmap | None
    values: PartScheduler[PhysicalPageDecoder]

    @property
    def rows(self) -> int:
        return self.values.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the validity and then of the values."""
        validity = [] if self.validity is None else self.validity.plan(ranges)
        return validity + self.values.plan(ranges)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> BasicRows:
        validity = RowBits(None) if self.validity is None else self.validity.bits(ranges, reads)
        values = self.values.decoder(ranges, reads)
        return BasicRows(values.rows, [validity, *values.buffers])


class BasicRows(PhysicalPageDecoder):
    """Loaded values with their validity."""


@dataclass(frozen=True, slots=True)
class FixedSizeListScheduler:
    """Scheduler of lists of ``size`` items each, stored as an array of items."""

    items: PartScheduler[PhysicalPageDecoder]
    rows: int
    size: int

    def plan(self, ranges: RowRanges) -> list[Range]:
        return self.items.plan(ranges.scaled(self.size))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PhysicalPageDecoder:
        items = self.items.decoder(ranges.scaled(self.size), reads)
        return PhysicalPageDecoder(ranges.rows, [RowItems(buffer, self.size) for buffer in items.buffers])


class NullRows(Direct, PhysicalPageDecoder):
    """Scheduler and decoder of a page of nulls, which has no bytes in the file."""

    def plan(self, ranges: RowRanges) -> list[Range]:
        return []

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> NullRows:
        return NullRows(ranges.rows, self.buffers)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add the zeros. ``Unsupported`` if a batch may not have that many."""
        super().update_capacity(skip, rows, capacities)
        for buffer, capacity in zip(self.buffers, capacities, strict=True):
            capacity.null_size += buffer.size_bytes(skip, rows)
            check_nulls(capacity.null_size)
