"""Values with a validity bitmap, fixed-size lists, and pages of nulls alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aioprefetch.lance.physical.memory import check_nulls, zeros
from aioprefetch.lance.physical.protocols import Capacity, Direct, OutputBuffer, PhysicalPageDecoder, Slice
from aioprefetch.lance.physical.value import Bitmap, BitmapRows
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import Range


class DirectScheduler(Protocol):
    """The scheduler of a part of a page. The metadata of the page suffices to plan its reads."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        ...

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the rows ``ranges``."""
        ...

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PhysicalPageDecoder:
        """The loaded rows of ``ranges``."""
        ...


@dataclass(frozen=True, slots=True)
class Basic(Direct):
    """Scheduler of values with their validity (the encoding ``Nullable``), which is ``None`` if no row is null."""

    validity: Bitmap | None
    values: DirectScheduler

    @property
    def rows(self) -> int:
        """The number of rows."""
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
        """The number of rows."""
        return self.values.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        """The exact size."""
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

    items: DirectScheduler
    rows: int
    size: int

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the items."""
        return self.items.plan(ranges.scaled(self.size))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> FixedSizeListRows:
        """The loaded lists of ``ranges``."""
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
        """Write the items."""
        self.items.decode_into(skip * self.size, rows * self.size, targets)

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        """A slice of the items."""
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
        """The nulls of ``rows`` rows."""
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
