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
    Bytes,
    Capacity,
    Direct,
    OutputBuffer,
    PartScheduler,
    PhysicalPageDecoder,
    Slice,
    aligned,
    check_nulls,
    packed,
    zeros,
)
from aioprefetch.lance.physical.reads import check_fits, joined
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import Range


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

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> ValueRows:
        if not self.compression:
            return ValueRows(joined(reads, len(ranges)), ranges.rows, self.width)
        content = decompress(self.compression, next(reads))
        if len(content) < self.rows * self.width:
            raise UntrustedMetadata(f"{self.rows} values of {self.width} bytes are compressed to {len(content)} bytes")
        parts = [content[start:end] for start, end in ranges.bytes_at(0, self.width)]
        return ValueRows(np.concatenate(parts), ranges.rows, self.width)


@dataclass(frozen=True, slots=True)
class ValueRows:
    """Loaded values without validity. They have one output buffer."""

    values: Bytes
    rows: int
    width: int

    def size_bytes(self, skip: int, rows: int) -> int:
        return rows * self.width

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        capacities[0].size += rows * self.width

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        target = targets[0]
        assert target is not None
        target.part(rows * self.width)[:] = self._part(skip, rows)

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None]:
        return [self._part(skip, rows)]

    def _part(self, skip: int, rows: int) -> Bytes:
        return self.values[skip * self.width : (skip + rows) * self.width]


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

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> BitmapRows:
        bits = joined(reads, len(ranges))
        if len(ranges) == 1:
            return BitmapRows(bits, int(ranges.starts[0]) % 8, ranges.rows)
        sizes = (ranges.ends + 7) // 8 - ranges.starts // 8
        first_bits = 8 * (np.cumsum(sizes) - sizes) + ranges.starts % 8
        places = np.repeat(first_bits - ranges.positions[:-1], ranges.lengths) + np.arange(ranges.rows)
        return BitmapRows(packed(np.unpackbits(bits, bitorder="little")[places].view(np.bool_)), 0, ranges.rows)


@dataclass(frozen=True, slots=True)
class BitmapRows:
    """Loaded bits, from bit ``offset`` on. They have one output buffer."""

    bits: Bytes
    offset: int
    rows: int

    def size_bytes(self, skip: int, rows: int) -> int:
        return (rows + 7) // 8

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add the bits. The buffer is needed if any page of the batch has bits."""
        capacities[0].size += rows
        capacities[0].is_needed = True

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        """Copy the bits to the next bit position of the target."""
        target = targets[0]
        assert target is not None
        target.put_bits(self.bits, self.offset + skip, rows)

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None]:
        """A slice of the received bytes if it starts at the lowest bit of a byte; otherwise a copy."""
        return [aligned(self.bits, self.offset + skip, rows)]


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

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PackedStructRows:
        values = joined(reads, len(ranges)).reshape(ranges.rows, self.width)
        return PackedStructRows(values, self.children)


@dataclass(frozen=True, slots=True)
class PackedStructRows:
    """Loaded rows of a packed struct, as a matrix of bytes."""

    values: Bytes
    children: tuple[PackedChild, ...]

    @property
    def rows(self) -> int:
        return len(self.values)

    def size_bytes(self, skip: int, rows: int) -> int:
        return rows * int(self.values.shape[1])

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add the values of each field. Neither the struct nor its fields have nulls."""
        buffer = 1
        for child in self.children:
            capacities[buffer + child.depth].size += rows * child.width
            buffer += child.depth + 1

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        buffer = 1
        first = 0
        for child in self.children:
            target = targets[buffer + child.depth]
            assert target is not None
            part = target.part(rows * child.width).reshape(rows, child.width)
            part[:] = self.values[skip : skip + rows, first : first + child.width]
            buffer += child.depth + 1
            first += child.width

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        """Return ``None``: the values of a field are not adjacent."""
        return None


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
        validity = None if self.validity is None else self.validity.decoder(ranges, reads)
        return BasicRows(validity, self.values.decoder(ranges, reads))


@dataclass(frozen=True, slots=True)
class BasicRows:
    """Loaded values with their validity."""

    validity: BitmapRows | None
    values: PhysicalPageDecoder

    @property
    def rows(self) -> int:
        return self.values.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        return self.values.size_bytes(skip, rows) + (0 if self.validity is None else (rows + 7) // 8)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add the validity, if the page has nulls, and the values."""
        capacities[0].size += rows
        capacities[0].is_needed |= self.validity is not None
        self.values.update_capacity(skip, rows, capacities[1:])

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        """Write the rows. A page without nulls fills in validity if another page of the batch has nulls."""
        if self.validity is not None:
            self.validity.decode_into(skip, rows, targets)
        elif (target := targets[0]) is not None:
            target.fill_bits(True, rows)
        self.values.decode_into(skip, rows, targets[1:])

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        """Slices of validity and values; ``None`` if the values cannot be sliced."""
        values = self.values.slice(skip, rows)
        if values is None:
            return None
        validity = [None] if self.validity is None else self.validity.slice(skip, rows)
        return [*validity, *values]


@dataclass(frozen=True, slots=True)
class FixedSizeListScheduler:
    """Scheduler of lists of ``size`` items each, stored as an array of items."""

    items: PartScheduler[PhysicalPageDecoder]
    rows: int
    size: int

    def plan(self, ranges: RowRanges) -> list[Range]:
        return self.items.plan(ranges.scaled(self.size))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> FixedSizeListRows:
        return FixedSizeListRows(self.items.decoder(ranges.scaled(self.size), reads), ranges.rows, self.size)


@dataclass(frozen=True, slots=True)
class FixedSizeListRows:
    """Loaded lists without validity. Their output buffers are those of the items."""

    items: PhysicalPageDecoder
    rows: int
    size: int

    def size_bytes(self, skip: int, rows: int) -> int:
        return self.items.size_bytes(skip * self.size, rows * self.size)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        self.items.update_capacity(skip * self.size, rows * self.size, capacities)

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        self.items.decode_into(skip * self.size, rows * self.size, targets)

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        return self.items.slice(skip * self.size, rows * self.size)


@dataclass(frozen=True, slots=True)
class NullBuffer:
    """An output buffer of nulls: its kind (as in ``output.BufferLayout``), elements of a row, bytes of an element."""

    kind: str
    size: int
    width: int = 1

    def size_bytes(self, rows: int) -> int:
        """The memory for the nulls of ``rows`` rows, in bytes."""
        if self.kind == "bits":
            return (self.size * rows + 7) // 8
        return self.size * self.width * rows


@dataclass(frozen=True, slots=True)
class NullRows(Direct):
    """Scheduler and decoder of a page of nulls, which has no bytes in the file."""

    rows: int
    buffers: tuple[NullBuffer, ...]

    def plan(self, ranges: RowRanges) -> list[Range]:
        return []

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> NullRows:
        return NullRows(ranges.rows, self.buffers)

    def size_bytes(self, skip: int, rows: int) -> int:
        """The approximate size of the zeros that stand for the values."""
        return sum(buffer.size_bytes(rows) for buffer in self.buffers)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add the zeros. ``Unsupported`` if a batch may not have that many."""
        for index, (buffer, capacity) in enumerate(zip(self.buffers, capacities, strict=True)):
            capacity.size += buffer.size * rows
            capacity.null_size += buffer.size_bytes(rows)
            check_nulls(capacity.null_size)
            capacity.is_needed |= index == 0 or (buffer.kind == "bits" and self._is_value(index))

    def _is_value(self, index: int) -> bool:
        """Whether a bitmap holds booleans. The last buffer does."""
        return index == len(self.buffers) - 1

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        """Write zeros. The rows are null, so their values are invisible."""
        for index, (buffer, target) in enumerate(zip(self.buffers, targets, strict=True)):
            if target is None:
                continue
            if buffer.kind == "bits":
                target.fill_bits(index > 0 and not self._is_value(index), buffer.size * rows)
            elif buffer.kind == "offsets":
                content = targets[index + 1]
                assert content is not None
                target.part(rows)[:] = content.position
            else:
                target.part(buffer.size * rows)[:] = 0

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None]:
        """Zeros that take no memory until they are read."""
        return [self._zeros(index, buffer, rows) for index, buffer in enumerate(self.buffers)]

    def _zeros(self, index: int, buffer: NullBuffer, rows: int) -> Slice | None:
        if buffer.kind == "offsets":
            return zeros((rows + 1) * buffer.width)
        if buffer.kind == "bits":
            is_shown = index == 0 or self._is_value(index)
            return zeros((buffer.size * rows + 7) // 8) if is_shown else None
        return zeros(buffer.size * rows)
