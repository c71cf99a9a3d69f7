"""Pages of version 2.0, and their protocols: a scheduler plans the reads, a decoder writes rows into buffers.

They follow ``PhysicalPageScheduler`` and ``PhysicalPageDecoder`` of the format's documentation. Both are stateless: the
batches that share a page may be decoded on several threads at once.

The output of a page is a list of buffers in the order of ``aioprefetch.lance.output.layout``: for most types validity
and values, for strings validity, offsets and bytes, for lists of fixed size validity and the buffers of their items.

Bit ``i`` of a bitmap is bit ``i % 8`` of byte ``i // 8``, lowest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.ranges import Range

DecodedT = TypeVar("DecodedT")
DecodedT_co = TypeVar("DecodedT_co", covariant=True)

# The maximum size of one buffer of a batch, far above real pages and rows.
BUFFER_BYTES_MAX = 1 << 32
# The maximum memory for the nulls of one column of a batch: a file can claim any number without storing a byte.
NULL_BYTES_MAX = 1 << 28
INT32_MAX = (1 << 31) - 1


def allocate(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory for one buffer, aligned to 64 bytes, not initialised. ``Unsupported`` beyond ``BUFFER_BYTES_MAX``.

    It comes from Arrow's pool, which keeps freed memory for the next batch; numpy returns it to the kernel each time.
    """
    check_size(size_bytes)
    return np.frombuffer(pa.allocate_buffer(size_bytes), np.uint8)


def zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros that take no memory until they are used. ``Unsupported`` beyond ``NULL_BYTES_MAX``."""
    check_nulls(size_bytes)
    return np.zeros(size_bytes, np.uint8)


def check_size(size_bytes: int) -> None:
    """Raise ``Unsupported`` for more than ``BUFFER_BYTES_MAX``."""
    if size_bytes > BUFFER_BYTES_MAX:
        raise Unsupported(f"one column of a batch takes {size_bytes} bytes: ask for fewer rows a batch")


def check_nulls(size_bytes: int) -> None:
    """Raise ``Unsupported`` for more than ``NULL_BYTES_MAX``: a tiny file can claim any number of nulls."""
    if size_bytes > NULL_BYTES_MAX:
        raise Unsupported(f"the nulls of one column of a batch take {size_bytes} bytes: ask for fewer rows a batch")


def check_offsets(size: int, width: int) -> None:
    """Raise ``Unsupported`` if ``size`` bytes or items exceed offsets of ``width`` bytes."""
    if width == 4 and size > INT32_MAX:
        raise Unsupported(f"32-bit offsets cannot count {size} bytes or items in one batch: ask for fewer rows a batch")


# --- bitmaps ----------------------------------------------------------------------------------------------------------

Bytes = npt.NDArray[np.uint8]


def aligned(bits: Bytes, offset: int, count: int) -> Bytes:
    """``count`` bits from bit ``offset`` on, moved to bit 0: no copy where ``offset`` is a multiple of eight.

    Bits after the last one are undefined.
    """
    if count == 0:
        return bits[:0]
    return _shifted(bits, offset, (count + 7) // 8)


def _shifted(bits: Bytes, offset: int, size: int) -> Bytes:
    """``size`` bytes whose first bit is bit ``offset``, which may be negative. Bits outside of ``bits`` are 0."""
    first, shift = offset // 8, offset % 8
    if first >= 0 and shift == 0 and first + size <= len(bits):
        return bits[first : first + size]
    window = np.zeros(size + 1, np.uint8)
    low, high = max(first, 0), min(first + size + 1, len(bits))
    if high > low:
        window[low - first : high - first] = bits[low:high]
    if shift == 0:
        return window[:size]
    low_bits, high_bits = np.uint8(shift), np.uint8(8 - shift)
    return (window[:-1] >> low_bits) | (window[1:] << high_bits)


def copy_bits(bits: Bytes, offset: int, target: Bytes, position: int, count: int) -> None:
    """Write ``count`` bits from bit ``offset`` of ``bits`` to bit ``position`` of ``target``.

    Bits before ``position`` are kept. Bits after the last one, up to the end of its byte, become undefined.
    """
    if count == 0:
        return
    first, kept = position // 8, position % 8
    source = _shifted(bits, offset - kept, (kept + count + 7) // 8)
    mask = (1 << kept) - 1
    start = (int(target[first]) & mask) | (int(source[0]) & ~mask & 0xFF)
    target[first : first + len(source)] = source
    target[first] = start


def fill_bits(target: Bytes, position: int, count: int, value: bool) -> None:
    """Write ``count`` equal bits to bit ``position`` of ``target``, as ``copy_bits`` does."""
    if count == 0:
        return
    first, kept = position // 8, position % 8
    mask = (1 << kept) - 1
    start = (int(target[first]) & mask) | ((~mask & 0xFF) if value else 0)
    target[first : (position + count + 7) // 8] = 0xFF if value else 0
    target[first] = start


def packed(flags: npt.NDArray[np.bool_]) -> Bytes:
    """Pack booleans into bits."""
    return np.packbits(flags, bitorder="little")


# --- protocols --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Capacity:
    """The size of one output buffer of a batch: bytes, bits of a bitmap, or offsets.

    ``is_needed`` is false for the validity bitmap of a batch whose pages have no nulls. ``null_size`` is the part of
    ``size`` for nulls without any bytes in the file.
    """

    size: int = 0
    is_needed: bool = False
    null_size: int = 0


@dataclass(slots=True)
class OutputBuffer:
    """One output buffer of a batch, which its pages fill one after the other.

    ``memory`` is uint8 for bytes and bitmaps, int32 or int64 for offsets. ``position`` is where the next rows are
    written, counted in elements, or in bits of a bitmap.
    """

    memory: npt.NDArray[Any]
    position: int = 0

    def part(self, size: int) -> npt.NDArray[Any]:
        """The next ``size`` elements, for the caller to write."""
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


# One output buffer as an array: bytes, bits that start at bit 0, or offsets that start with 0.
Slice = npt.NDArray[Any]


class LoadedPage(Protocol):
    """The loaded, wanted rows of one page. Row numbers count the wanted rows from 0."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    def size_bytes(self, skip: int, rows: int) -> int:
        """The approximate memory of ``rows`` decoded rows after the first ``skip``, in bytes."""


class PhysicalPageDecoder(LoadedPage, Protocol):
    """The rows of a page that are decoded into output buffers."""

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add the sizes of ``rows`` rows after the first ``skip`` to the capacity of each output buffer.

        ``UntrustedMetadata`` if the page contradicts itself: the caller allocates these sizes.
        """

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        """Write the rows into the output buffers, which have room for them. A target of ``None`` is not needed."""

    def slice(self, skip: int, rows: int) -> Sequence[Slice | None] | None:
        """The rows as output buffers, without a copy of the values; ``None`` if that is impossible.

        The validity is ``None`` if no row is null.
        """


class EncodedPage(LoadedPage, Protocol):
    """The rows of a page in an encoded form, whose size is known only after decoding."""

    def decoded(self, skip: int, rows: int) -> tuple[PhysicalPageDecoder, int]:
        """Decode the rows: a decoded page, and the number of its rows before them."""


class PartScheduler(Protocol[DecodedT_co]):
    """A part of a page, such as its values: the metadata of the page suffices to plan its reads.

    All ranges are checked against the page's buffers. ``ranges`` are rows of the page. ``reads`` are the responses; a
    scheduler takes as many of them as it has planned.
    """

    @property
    def rows(self) -> int:
        """The number of rows."""

    def plan(self, ranges: RowRanges) -> list[Range]:
        """The byte ranges of the rows ``ranges``; of a page in two steps for the first. Pure."""

    def decoder(self, ranges: RowRanges, reads: Iterator[memoryview]) -> DecodedT_co:
        """The rows of ``ranges``, from the responses of all steps in order."""


class PhysicalPageScheduler(PartScheduler[DecodedT_co], Protocol[DecodedT_co]):
    """One page of a column: plans the reads of some of its rows, and makes the decoder of the loaded rows."""

    def is_indirect(self, ranges: RowRanges) -> bool:
        """Whether there is a second step, planned from the responses of the first."""

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """The byte ranges of the second step. Pure. Called only if ``is_indirect``."""


class Direct:
    """A base for schedulers whose pages are read in one step."""

    __slots__ = ()

    def is_indirect(self, ranges: RowRanges) -> bool:
        """Always false."""
        return False

    def follow_up(self, ranges: RowRanges, reads: Sequence[memoryview]) -> list[Range]:
        """Not called, since ``is_indirect`` is false."""
        return []


@dataclass(frozen=True, slots=True)
class PageRows(Generic[DecodedT]):
    """Rows of one page for a batch: ``rows`` rows after the first ``skip``.

    ``is_last`` says that they are the last rows of the page, whose memory is released with this batch.
    """

    page: DecodedT
    skip: int
    rows: int
    is_last: bool = False
