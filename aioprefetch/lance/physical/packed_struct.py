"""Structs whose rows are stored one after the other (the encoding ``PackedStruct``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aioprefetch.lance.physical.protocols import Bytes, Capacity, Direct, Slice, Target
from aioprefetch.lance.physical.reads import check_fits, joined
from aioprefetch.lance.physical.row_ranges import RowRanges
from aioprefetch.ranges import Range


@dataclass(frozen=True, slots=True)
class PackedChild:
    """A field within the rows: ``width`` bytes, behind ``depth`` validity buffers that no row needs.

    A plain value has one of them, a list of fixed size of plain values two.
    """

    width: int
    depth: int = 1


@dataclass(frozen=True, slots=True)
class PackedStruct(Direct):
    """Scheduler of ``rows`` rows in ``buffer``, each the values of ``children`` back to back."""

    buffer: Range
    rows: int
    children: tuple[PackedChild, ...]

    def __post_init__(self) -> None:
        check_fits(self.rows * self.width, self.buffer, f"{self.rows} rows of {self.width} bytes")

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return sum(child.width for child in self.children)

    def plan(self, ranges: RowRanges) -> list[Range]:
        """One read for each range."""
        return ranges.bytes_at(self.buffer[0], self.width)

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> PackedStructRows:
        """The rows of ``ranges``."""
        values = joined(reads, len(ranges)).reshape(ranges.rows, self.width)
        return PackedStructRows(values, self.children)


@dataclass(frozen=True, slots=True)
class PackedStructRows:
    """Loaded rows, a matrix of bytes."""

    values: Bytes
    children: tuple[PackedChild, ...]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.values)

    def size_bytes(self, skip: int, rows: int) -> int:
        """Exactly."""
        return rows * int(self.values.shape[1])

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """The struct has no nulls, and neither have its children."""
        slot = 1
        for child in self.children:
            capacities[slot + child.depth].size += rows * child.width
            slot += child.depth + 1

    def decode_into(self, skip: int, rows: int, targets: Sequence[Target | None]) -> None:
        """Copy column by column."""
        slot = 1
        first = 0
        for child in self.children:
            target = targets[slot + child.depth]
            assert target is not None
            part = target.part(rows * child.width).reshape(rows, child.width)
            part[:] = self.values[skip : skip + rows, first : first + child.width]
            slot += child.depth + 1
            first += child.width

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        """No value lies beside the next one."""
        return None
