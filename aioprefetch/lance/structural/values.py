"""Decoded values of a page, one entry for each visible item. Validity is kept in the levels.

``pick`` takes ranges of values: a single range without a copy, several ranges with one copy of each value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.physical.protocols import check_size
from aioprefetch.row_ranges import RowRanges

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Levels = npt.NDArray[np.uint16]


def damaged(message: str) -> UntrustedMetadata:
    """The error for a page that contradicts itself or its metadata."""
    return UntrustedMetadata(message, operation="scan")


def as_bytes(view: memoryview) -> Bytes:
    """A view as an array, without a copy."""
    return np.frombuffer(view, np.uint8)


def joined(data: Bytes, starts: Positions, sizes: Positions) -> Bytes:
    """The pieces ``data[start:start + size]`` back to back, which ascend. No copy is made if they already are."""
    if starts.size == 0:
        return data[:0]
    bounds = np.stack((starts, starts + sizes), axis=1).reshape(-1)
    gaps = bounds[2::2] - bounds[1:-1:2]
    if not gaps.any():
        return data[int(bounds[0]) : int(bounds[-1])]
    if int(gaps.min()) < 0:
        raise damaged("pieces of a page that overlap")
    return take_texts(Texts(data, bounds), np.arange(0, bounds.size - 1, 2)).data


def runs(starts: Positions, lengths: Positions) -> Positions:
    """The numbers ``start, start + 1, ..., start + length - 1`` of every run, run by run."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(total, dtype=np.int64)


def little_endian(data: Bytes, size_bytes: int) -> npt.NDArray[np.unsignedinteger]:
    """``data`` as unsigned numbers of 1, 2, 4 or 8 bytes. An incomplete number at the end is ignored."""
    kind = np.dtype(f"<u{size_bytes}")
    whole = data[: data.size // size_bytes * size_bytes]
    return whole.view(kind) if whole.flags.c_contiguous else np.ascontiguousarray(whole).view(kind)


def exclusive_sum(lengths: Positions) -> Positions:
    """The ``n + 1`` boundaries of ``n`` lengths, from 0 to their sum."""
    out = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


@dataclass(frozen=True, slots=True)
class Fixed:
    """``count`` values of ``bits`` bits back to back. Values of 1 bit take a byte here, 0 or 1."""

    data: Bytes
    bits: int
    count: int

    @property
    def width(self) -> int:
        """Bytes of one value in ``data``."""
        return max(1, self.bits // 8)


@dataclass(frozen=True, slots=True)
class Texts:
    """Values of any length: value i is ``data[offsets[i]:offsets[i + 1]]``.

    Bytes before the first offset are unused. With ``symbols``, an FSST table, they are codes, which are expanded when
    the wanted ones are known.
    """

    data: Bytes
    offsets: Positions
    symbols: bytes = b""

    @property
    def count(self) -> int:
        """The number of texts."""
        return self.offsets.size - 1


@dataclass(frozen=True, slots=True)
class FixedLists:
    """``count`` lists of ``dimension`` items each; ``validity`` is per item, ``None`` when none is null."""

    items: Fixed | FixedLists | Nulls
    dimension: int
    validity: Flags | None
    count: int


@dataclass(frozen=True, slots=True)
class Coded:
    """Values as indices into a dictionary. The indices are unsigned and checked."""

    indices: npt.NDArray[np.unsignedinteger]
    dictionary: Fixed | Texts

    @property
    def count(self) -> int:
        """The number of values."""
        return self.indices.size


@dataclass(frozen=True, slots=True)
class Nulls:
    """``count`` nulls."""

    count: int


Values = Fixed | Texts | FixedLists | Coded | Nulls


def pick(values: Values, ranges: RowRanges) -> Values:
    """The values of all ranges, in order. The ranges must be valid."""
    if len(ranges) == 1:
        return _slice(values, int(ranges.starts[0]), int(ranges.ends[0]))
    return take(values, ranges.numbers)


def _slice(values: Values, start: int, end: int) -> Values:
    match values:
        case Fixed(data, bits, _):
            return Fixed(data[start * values.width : end * values.width], bits, end - start)
        case Texts(data, offsets, symbols):
            return Texts(data, offsets[start : end + 1], symbols)
        case FixedLists(items, dimension, validity, _):
            low, high = start * dimension, end * dimension
            inner = _slice(items, low, high)
            assert isinstance(inner, Fixed | FixedLists | Nulls)
            return FixedLists(inner, dimension, None if validity is None else validity[low:high], end - start)
        case Coded(indices, dictionary):
            return Coded(indices[start:end], dictionary)
    return Nulls(end - start)


def is_void(values: Values) -> bool:
    """Whether the file stores nothing for these values."""
    if isinstance(values, FixedLists):
        return values.validity is None and is_void(values.items)
    return isinstance(values, Nulls)


def take(values: Values, indices: Positions) -> Values:
    """The values at ``indices``, which must be valid."""
    match values:
        case Fixed():
            return take_fixed(values, indices)
        case Texts():
            return take_texts(values, indices)
        case FixedLists(items, dimension, validity, _):
            at = (indices[:, None] * dimension + np.arange(dimension, dtype=np.int64)).reshape(-1)
            inner = take(items, at)
            assert isinstance(inner, Fixed | FixedLists | Nulls)
            return FixedLists(inner, dimension, None if validity is None else validity[at], indices.size)
        case Coded(codes, dictionary):
            return Coded(codes[indices], dictionary)
    return Nulls(indices.size)


def take_fixed(values: Fixed, indices: npt.NDArray[np.integer]) -> Fixed:
    """Copy the values at ``indices``, which must be valid."""
    width = values.width
    kind = np.dtype(f"<u{width}") if width in (1, 2, 4, 8) else np.dtype((np.void, width))
    return Fixed(values.data.view(kind)[indices].view(np.uint8), values.bits, indices.size)


def take_texts(values: Texts, indices: npt.NDArray[np.integer]) -> Texts:
    """Copy the texts at ``indices``, which must be valid, back to back. Arrow does it without the interpreter lock."""
    first, last = int(values.offsets[0]), int(values.offsets[-1])
    offsets = np.ascontiguousarray(values.offsets) if first == 0 else values.offsets - first
    data = pa.py_buffer(np.ascontiguousarray(values.data[first:last]))
    table = pa.Array.from_buffers(pa.large_binary(), values.count, [None, pa.py_buffer(offsets), data])
    codes = np.ascontiguousarray(indices)
    at = pa.Array.from_buffers(pa.from_numpy_dtype(codes.dtype), codes.size, [None, pa.py_buffer(codes)])
    _, ends, text = pc.take(table, at, boundscheck=False).buffers()
    content = np.frombuffer(text, np.uint8) if text is not None else np.zeros(0, np.uint8)
    return Texts(content, np.frombuffer(ends, np.int64, codes.size + 1), values.symbols)


def expand(values: Coded) -> Fixed | Texts:
    """Replace indices by values. ``Unsupported`` for more bytes than a column of a batch may take."""
    check_size(expanded_bytes(values))
    if isinstance(values.dictionary, Fixed):
        return take_fixed(values.dictionary, values.indices)
    return take_texts(values.dictionary, values.indices)


def expanded_bytes(values: Coded) -> int:
    """The size of the expanded values in bytes, without offsets."""
    dictionary = values.dictionary
    if isinstance(dictionary, Fixed):
        return values.count * dictionary.width
    if dictionary.count == 1:
        return values.count * int(dictionary.offsets[1] - dictionary.offsets[0])
    counts = np.bincount(values.indices, minlength=dictionary.count)
    return int(np.dot(counts, np.diff(dictionary.offsets)))
