"""The protocols of a page of one column: reads to plan, and rows to decode into memory of the caller.

After the document's ``PhysicalPageScheduler`` and ``PhysicalPageDecoder``. Both are stateless: a page is shared by the
batches that its rows fall into, which may be decoded on several threads at once.

The output of a page is a list of buffers in the order of ``aioprefetch.lance.output.layout``: for most types validity
and values, for strings validity, offsets and bytes, for lists of fixed size validity and the buffers of their items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from aioprefetch.lance.physical.memory import copy_bits, fill_bits
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import Range

Bytes = npt.NDArray[np.uint8]
DecodedT = TypeVar("DecodedT")
DecodedT_co = TypeVar("DecodedT_co", covariant=True)


@dataclass(slots=True)
class Capacity:
    """What the rows of a batch need of one output buffer: bytes, bits of a bitmap, or offsets.

    ``is_needed``: a validity bitmap is needed only when a page of the batch may hold nulls. ``null_size``: how much of
    ``size`` is for nulls that no byte of the file stands behind.
    """

    size: int = 0
    is_needed: bool = False
    null_size: int = 0


@dataclass(slots=True)
class Target:
    """One output buffer of a batch, shared by all its pages, and where the next rows go.

    ``memory`` is uint8 for bytes and bitmaps, int32 or int64 for offsets; ``position`` counts its elements, for a
    bitmap its bits.
    """

    memory: npt.NDArray[Any]
    position: int = 0

    def part(self, size: int) -> npt.NDArray[Any]:
        """The next ``size`` elements, to be written."""
        start, self.position = self.position, self.position + size
        return self.memory[start : self.position]

    def put_bits(self, bits: Bytes, offset: int, count: int) -> None:
        """Write ``count`` bits from bit ``offset`` of ``bits``."""
        copy_bits(bits, offset, self.memory, self.position, count)
        self.position += count

    def fill_bits(self, value: bool, count: int) -> None:
        """Write ``count`` equal bits."""
        fill_bits(self.memory, self.position, count, value)
        self.position += count


# One buffer of a page's output, or of the array that becomes of it: bytes, bits from bit 0 on, offsets from 0 on.
Slice = npt.NDArray[Any]


class PhysicalPageDecoder(Protocol):
    """The wanted rows of one page, loaded. Rows are counted from 0 over the wanted ones."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    def size_bytes(self, skip: int, rows: int) -> int:
        """About how much memory ``rows`` rows behind the first ``skip`` take when decoded."""
        ...

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add what ``rows`` rows behind the first ``skip`` need of each output buffer.

        ``UntrustedMetadata`` where the page contradicts itself: what is claimed here is going to be allocated.
        """
        ...

    def decode_into(self, skip: int, rows: int, targets: Sequence[Target | None]) -> None:
        """Write the same rows into the output buffers, each of which has room. ``None``: that buffer is not needed."""
        ...

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        """The same rows as buffers of their own, without a copy of the values; ``None`` where that cannot be.

        Validity is ``None`` where no row is null.
        """
        ...


class EncodedPage(Protocol):
    """The wanted rows of a page that take more memory than they have, as much as their decoding will tell."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    def size_bytes(self, skip: int, rows: int) -> int:
        """About how much memory ``rows`` rows behind the first ``skip`` take when decoded."""
        ...

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        """The same rows decoded: a page, and how many of its rows come before them."""
        ...


class PhysicalPageScheduler(Protocol[DecodedT_co]):
    """One page of a column: which bytes of the file some of its rows need, and what to make of them.

    All ranges are checked against the page's buffers. ``ranges`` are rows of the page, ``reads`` the responses to
    ``plan`` and, if there is one, to ``follow_up``; who planned several takes as many.
    """

    @property
    def rows(self) -> int:
        """How many rows the page has."""
        ...

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The bytes that are needed first. Pure."""
        ...

    def is_indirect(self, ranges: RowRanges) -> bool:
        """Whether the rest can only be planned when those have come."""
        ...

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """The rest of the bytes. Pure. Called when ``is_indirect``."""
        ...

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> DecodedT_co:
        """The rows of ``ranges``, from all reads in order."""
        ...


class Direct:
    """A page whose reads are all planned from its metadata."""

    __slots__ = ()

    def is_indirect(self, ranges: RowRanges) -> bool:
        """Never."""
        return False

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """Never asked for."""
        return []


@dataclass(frozen=True, slots=True)
class Piece(Generic[DecodedT]):
    """Rows of one page that go into a batch: ``rows`` behind the first ``skip``.

    ``is_last``: no row of the page comes after them, so that its memory is given back with this batch.
    """

    page: DecodedT
    skip: int
    rows: int
    is_last: bool = False
