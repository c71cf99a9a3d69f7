"""The rows of pages: a scheduler plans their reads, a decoder writes them into buffers.

Both follow ``PhysicalPageScheduler`` and ``PhysicalPageDecoder`` of the format's documentation. They are stateless: the
batches that share a page may be decoded on several threads at once.

The rows of a page are a list of **row buffers**, the same as Arrow's: for most types validity and values, for
strings validity, offsets and bytes, for lists of fixed size validity and the buffers of their items, for packed structs
validity and the buffers of their fields. Each knows its part of some rows, as a slice without a copy where that is
possible, and writes it behind the rows of other pages. All versions of the format have the same ones.

Bit ``i`` of a bitmap is bit ``i % 8`` of byte ``i // 8``, lowest first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges

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


# --- rows -------------------------------------------------------------------------------------------------------------


class RowBuffer(ABC):
    """One buffer of the rows of a page. Rows are given as ``rows`` rows after the first ``skip``."""

    __slots__ = ()

    @abstractmethod
    def size_bytes(self, skip: int, rows: int) -> int:
        """The memory of the rows in bytes."""

    def need(self, skip: int, rows: int, capacity: Capacity) -> None:
        """Add the rows to the capacity of the output buffer, which is allocated next."""
        capacity.size += self.size_bytes(skip, rows)

    def target(self, capacity: Capacity) -> OutputBuffer | None:
        """An output buffer of that capacity for buffers of this kind; ``None`` if no page needs it."""
        return OutputBuffer(allocate(capacity.size))

    @abstractmethod
    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        """Append the rows to the output buffer."""

    @abstractmethod
    def slice(self, skip: int, rows: int) -> Slice | None:
        """The rows alone, without a copy if that is possible; ``None`` for bits that are all set."""


class RowBits(RowBuffer):
    """A bit for each row, from bit ``offset`` on: booleans, or validity. ``None``: all are set."""

    __slots__ = ("bits", "offset")

    def __init__(self, bits: Bytes | None, offset: int = 0) -> None:
        self.bits = bits
        self.offset = offset

    @classmethod
    def of(cls, flags: npt.NDArray[Any] | None) -> RowBits:
        """The bits of flags, in memory of Arrow's; ``None``: all are set."""
        if flags is None:
            return cls(None)
        bits = packed(flags)
        memory = allocate(bits.size)
        memory[:] = bits
        return cls(memory)

    def size_bytes(self, skip: int, rows: int) -> int:
        return 0 if self.bits is None else (rows + 7) // 8

    def need(self, skip: int, rows: int, capacity: Capacity) -> None:
        capacity.size += rows
        capacity.is_needed |= self.bits is not None

    def target(self, capacity: Capacity) -> OutputBuffer | None:
        return OutputBuffer(allocate((capacity.size + 7) // 8)) if capacity.is_needed else None

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        if self.bits is None:
            target.fill_bits(True, rows)
        else:
            target.put_bits(self.bits, self.offset + skip, rows)

    def slice(self, skip: int, rows: int) -> Slice | None:
        return None if self.bits is None else aligned(self.bits, self.offset + skip, rows)


class RowZeroBits(RowBits):
    """Zeros: the validity, or the booleans, of rows that are all null."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None)

    def size_bytes(self, skip: int, rows: int) -> int:
        return (rows + 7) // 8

    def need(self, skip: int, rows: int, capacity: Capacity) -> None:
        super().need(skip, rows, capacity)
        capacity.is_needed = True

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        target.fill_bits(False, rows)

    def slice(self, skip: int, rows: int) -> Slice:
        return zeros((rows + 7) // 8)


class RowValues(RowBuffer):
    """Values of ``width`` bytes for each row."""

    __slots__ = ("data", "width")

    def __init__(self, data: Bytes, width: int) -> None:
        self.data = data
        self.width = width

    def size_bytes(self, skip: int, rows: int) -> int:
        return rows * self.width

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        target.part(rows * self.width)[:] = self.slice(skip, rows)

    def slice(self, skip: int, rows: int) -> Slice:
        return self.data[skip * self.width : (skip + rows) * self.width]


class RowZeros(RowBuffer):
    """Zeros in place of the values of null rows, ``width`` bytes each. A slice takes no memory until it is read."""

    __slots__ = ("width",)

    def __init__(self, width: int) -> None:
        self.width = width

    def size_bytes(self, skip: int, rows: int) -> int:
        return rows * self.width

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        target.part(rows * self.width)[:] = 0

    def slice(self, skip: int, rows: int) -> Slice:
        return zeros(rows * self.width)


class RowField(RowBuffer):
    """One field of rows of several, which are a matrix of bytes: ``width`` columns of it from ``first`` on."""

    __slots__ = ("_columns",)

    def __init__(self, matrix: Bytes, first: int, width: int) -> None:
        self._columns = matrix[:, first : first + width]

    def size_bytes(self, skip: int, rows: int) -> int:
        return rows * int(self._columns.shape[1])

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        part = target.part(self.size_bytes(skip, rows))
        part.reshape(rows, self._columns.shape[1])[:] = self._columns[skip : skip + rows]

    def slice(self, skip: int, rows: int) -> Slice:
        target = OutputBuffer(allocate(self.size_bytes(skip, rows)))
        self.write(skip, rows, target)
        return target.memory


class RowOffsets(RowBuffer):
    """Offsets of strings, numbers of ``width`` bytes in Arrow's memory, which continue from the page before."""

    __slots__ = ("_offsets", "width")

    def __init__(self, offsets: npt.NDArray[np.integer], width: int) -> None:
        self._offsets = offsets
        self.width = width

    def size_bytes(self, skip: int, rows: int) -> int:
        return rows * self.width

    def need(self, skip: int, rows: int, capacity: Capacity) -> None:
        capacity.size += rows

    def target(self, capacity: Capacity) -> OutputBuffer | None:
        return OutputBuffer(new_offsets(capacity.size, self.width), 1)

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        base = int(target.memory[target.position - 1])
        part = self._offsets[skip : skip + rows + 1]
        np.add(part[1:], base - int(part[0]), out=target.part(rows), casting="unsafe")

    def slice(self, skip: int, rows: int) -> Slice:
        part = self._offsets[skip : skip + rows + 1]
        check_offsets(int(part[-1]) - int(part[0]), self.width)
        if part[0] == part[-1]:  # As in a page of nulls.
            return zeros(part.size * self.width)
        if part.size == self._offsets.size and part.itemsize == self.width and part[0] == 0:
            return part
        moved = new_offsets(rows, self.width)
        np.subtract(part, part[0], out=moved, casting="unsafe")
        return moved


class RowText(RowBuffer):
    """The bytes of strings: row i has ``data[offsets[i]:offsets[i + 1]]``. ``width`` is 4 or 8 bytes, as in Arrow."""

    __slots__ = ("_data", "_offsets", "_width")

    def __init__(self, data: Bytes, offsets: npt.NDArray[np.integer], width: int) -> None:
        self._data = data
        self._offsets = offsets
        self._width = width

    def size_bytes(self, skip: int, rows: int) -> int:
        return int(self._offsets[skip + rows]) - int(self._offsets[skip])

    def need(self, skip: int, rows: int, capacity: Capacity) -> None:
        super().need(skip, rows, capacity)
        check_offsets(capacity.size, self._width)

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        target.part(self.size_bytes(skip, rows))[:] = self.slice(skip, rows)

    def slice(self, skip: int, rows: int) -> Slice:
        return self._data[int(self._offsets[skip]) : int(self._offsets[skip + rows])]


class RowItems(RowBuffer):
    """A buffer of the items of lists of fixed size: each row has ``count`` of them."""

    __slots__ = ("_count", "_items")

    def __init__(self, items: RowBuffer, count: int) -> None:
        self._items = items
        self._count = count

    def size_bytes(self, skip: int, rows: int) -> int:
        return self._items.size_bytes(skip * self._count, rows * self._count)

    def need(self, skip: int, rows: int, capacity: Capacity) -> None:
        self._items.need(skip * self._count, rows * self._count, capacity)

    def target(self, capacity: Capacity) -> OutputBuffer | None:
        return self._items.target(capacity)

    def write(self, skip: int, rows: int, target: OutputBuffer) -> None:
        self._items.write(skip * self._count, rows * self._count, target)

    def slice(self, skip: int, rows: int) -> Slice | None:
        return self._items.slice(skip * self._count, rows * self._count)


def new_offsets(rows: int, width: int) -> npt.NDArray[Any]:
    """Memory for ``rows + 1`` offsets, starting with 0."""
    memory = allocate((rows + 1) * width)
    offsets: npt.NDArray[Any] = memory.view(np.int32) if width == 4 else memory.view(np.int64)
    offsets[0] = 0
    return offsets


def concatenated(parts: Sequence[npt.NDArray[np.bool_] | None], sizes: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """The flags of all parts as one array. ``None`` stands for flags that are all true."""
    if all(part is None for part in parts):
        return None
    whole = [np.ones(size, bool) if part is None else part for part, size in zip(parts, sizes, strict=True)]
    return whole[0] if len(whole) == 1 else np.concatenate(whole)


class LoadedPage(Protocol):
    """The loaded, wanted rows of one page. Row numbers count the wanted rows from 0."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    def size_bytes(self, skip: int, rows: int) -> int:
        """The approximate memory of ``rows`` decoded rows after the first ``skip``, in bytes."""


class PhysicalPageDecoder:
    """The rows of a page as row buffers, in the order of Arrow's."""

    def __init__(self, rows: int, buffers: Sequence[RowBuffer]) -> None:
        self.rows = rows
        self.buffers = buffers

    def size_bytes(self, skip: int, rows: int) -> int:
        return sum(buffer.size_bytes(skip, rows) for buffer in self.buffers)

    def update_capacity(self, skip: int, rows: int, capacities: Sequence[Capacity]) -> None:
        """Add ``rows`` rows after the first ``skip`` to the capacity of each output buffer."""
        for buffer, capacity in zip(self.buffers, capacities, strict=True):
            buffer.need(skip, rows, capacity)

    def decode_into(self, skip: int, rows: int, targets: Sequence[OutputBuffer | None]) -> None:
        """Write the rows into the output buffers, which have room for them. A target of ``None`` is not needed."""
        for buffer, target in zip(self.buffers, targets, strict=True):
            if target is not None:
                buffer.write(skip, rows, target)

    def slice(self, skip: int, rows: int) -> list[Slice | None]:
        """The rows as output buffers. The validity is ``None`` if no row is null."""
        return [buffer.slice(skip, rows) for buffer in self.buffers]


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
