"""Validity and values: an array of anything that has no nulls by itself. Also lists of fixed size, and all nulls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aioprefetch.lance.physical.memory import check_nulls, zeros
from aioprefetch.lance.physical.protocols import Capacity, Direct, PhysicalPageDecoder, Slice, Target
from aioprefetch.lance.physical.value import Bitmap, BitmapRows
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import Range


class DirectScheduler(Protocol):
    """Part of a page whose reads are all known from the page's metadata."""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        ...

    def plan(self, ranges: RowRanges) -> list[Range]:
        """All bytes that are needed."""
        ...

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PhysicalPageDecoder:
        """The rows of ``ranges``."""
        ...


@dataclass(frozen=True, slots=True)
class Basic(Direct):
    """Scheduler of values with their validity (the encoding ``Nullable``), ``None`` where no row is null."""

    validity: Bitmap | None
    values: DirectScheduler

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.values.rows

    def plan(self, ranges: RowRanges) -> list[Range]:
        """Validity, then values."""
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
        """How many rows there are."""
        return self.values.rows

    def size_bytes(self, skip: int, rows: int) -> int:
        """Exactly."""
        return self.values.size_bytes(skip, rows) + (0 if self.validity is None else (rows + 7) // 8)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Validity is needed if there is some."""
        capacities[0].size += rows
        capacities[0].is_needed |= self.validity is not None
        self.values.update_capacity(skip, rows, capacities[1:])

    def decode_into(self, skip: int, rows: int, targets: Sequence[Target | None]) -> None:
        """Where another page has nulls and this one has none, its validity is filled in."""
        if self.validity is not None:
            self.validity.decode_into(skip, rows, targets)
        elif (target := targets[0]) is not None:
            target.fill_bits(True, rows)
        self.values.decode_into(skip, rows, targets[1:])

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        """Both, where the values can be sliced."""
        values = self.values.slice(skip, rows)
        if values is None:
            return None
        validity = [None] if self.validity is None else self.validity.slice(skip, rows)
        return [*validity, *values]


@dataclass(frozen=True, slots=True)
class FixedSizeList:
    """Scheduler of lists of ``size`` items each, which are an array of their own."""

    items: DirectScheduler
    rows: int
    size: int

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The items of the rows."""
        return self.items.plan(ranges.scaled(self.size))

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> FixedSizeListRows:
        """The items of the rows."""
        return FixedSizeListRows(self.items.decoder(ranges.scaled(self.size), reads), ranges.rows, self.size)


@dataclass(frozen=True, slots=True)
class FixedSizeListRows:
    """Loaded lists, without validity: the output buffers of their items."""

    items: PhysicalPageDecoder
    rows: int
    size: int

    def size_bytes(self, skip: int, rows: int) -> int:
        """That of the items."""
        return self.items.size_bytes(skip * self.size, rows * self.size)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """That of the items."""
        self.items.update_capacity(skip * self.size, rows * self.size, capacities)

    def decode_into(self, skip: int, rows: int, targets: Sequence[Target | None]) -> None:
        """The items."""
        self.items.decode_into(skip * self.size, rows * self.size, targets)

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        """The items."""
        return self.items.slice(skip * self.size, rows * self.size)


@dataclass(frozen=True, slots=True)
class NullSlot:
    """An output buffer of nulls: its kind as in ``output.Slot``, and elements or bytes for each row."""

    kind: str
    size: int
    width: int = 1

    def size_bytes(self, rows: int) -> int:
        """Memory for nulls of ``rows`` rows."""
        if self.kind == "bits":
            return (self.size * rows + 7) // 8
        return self.size * self.width * rows


@dataclass(frozen=True, slots=True)
class AllNulls(Direct):
    """Scheduler and decoder of a page that has nothing but nulls, and no bytes."""

    rows: int
    slots: tuple[NullSlot, ...]

    def plan(self, ranges: RowRanges) -> list[Range]:
        return []

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> AllNulls:
        """The nulls of ``rows`` rows."""
        return AllNulls(ranges.rows, self.slots)

    def size_bytes(self, skip: int, rows: int) -> int:
        """About the zeros that stand below the nulls."""
        return sum(slot.size_bytes(rows) for slot in self.slots)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Room for zeros. ``Unsupported`` for more of them than a batch is given."""
        for index, (slot, capacity) in enumerate(zip(self.slots, capacities, strict=True)):
            capacity.size += slot.size * rows
            capacity.null_size += slot.size_bytes(rows)
            check_nulls(capacity.null_size)
            capacity.is_needed |= index == 0 or (slot.kind == "bits" and self._is_value(index))

    def _is_value(self, index: int) -> bool:
        """Whether a bitmap holds booleans: that is the last buffer."""
        return index == len(self.slots) - 1

    def decode_into(self, skip: int, rows: int, targets: Sequence[Target | None]) -> None:
        """Zeros: the rows are invalid, and their items invisible."""
        for index, (slot, target) in enumerate(zip(self.slots, targets, strict=True)):
            if target is None:
                continue
            if slot.kind == "bits":
                target.fill_bits(index > 0 and not self._is_value(index), slot.size * rows)
            elif slot.kind == "offsets":
                content = targets[index + 1]
                assert content is not None
                target.part(rows)[:] = content.position
            else:
                target.part(slot.size * rows)[:] = 0

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None]:
        """Zeros that take no memory until the bytes below the nulls are read."""
        return [self._zeros(index, slot, rows) for index, slot in enumerate(self.slots)]

    def _zeros(self, index: int, slot: NullSlot, rows: int) -> Slice | None:
        if slot.kind == "offsets":
            return zeros((rows + 1) * slot.width)
        if slot.kind == "bits":
            is_shown = index == 0 or self._is_value(index)
            return zeros((slot.size * rows + 7) // 8) if is_shown else None
        return zeros(slot.size * rows)
