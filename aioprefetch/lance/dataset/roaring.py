"""Roaring bitmaps in their portable form: sets of 32-bit numbers, in containers of those that share their upper half.

After the published format (RoaringFormatSpec): a cookie, a table of (upper half, count - 1), offsets of the containers
(left out for a few containers where some are runs), and the containers: sorted 16-bit numbers, a bitmap of 8 KiB, or
runs of (first, length - 1).
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import UntrustedMetadata

_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_CONTAINERS_MAX = 1 << 16
_OFFSETS_ALWAYS_FROM = 4

Numbers = npt.NDArray[np.uint32]


def parse_roaring(data: bytes | memoryview, *, path: str = "") -> Numbers:
    """The numbers of a bitmap, ascending. ``UntrustedMetadata`` for what is none."""
    try:
        return _Bitmap(data).numbers()
    except (struct.error, ValueError) as error:
        raise UntrustedMetadata(f"the bitmap of deleted rows is damaged: {error}", path=path) from error


class _Bitmap:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._position = 0

    def numbers(self) -> Numbers:
        (cookie,) = struct.unpack("<I", self._take(4))
        with_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
        if with_runs:
            count = (cookie >> 16) + 1
            flags = np.unpackbits(np.frombuffer(self._take((count + 7) // 8), np.uint8), bitorder="little")
        elif cookie == _COOKIE:
            (count,) = struct.unpack("<I", self._take(4))
        else:
            raise ValueError(f"it begins with {cookie}")
        if count > _CONTAINERS_MAX:
            raise ValueError(f"it claims {count} containers")
        table = np.frombuffer(self._take(4 * count), "<u2").reshape(count, 2)
        if np.any(table[1:, 0] <= table[:-1, 0]):
            raise ValueError("its containers are out of order")
        if not with_runs or count >= _OFFSETS_ALWAYS_FROM:
            self._take(4 * count)  # Where containers begin: they follow one another anyway.
        parts = [
            (np.uint32(int(key) << 16) | self._container(int(size) + 1, bool(with_runs and flags[index])))
            for index, (key, size) in enumerate(table)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def _container(self, size: int, is_runs: bool) -> Numbers:
        if is_runs:
            return self._runs(size)
        if size > _ARRAY_MAX:
            bits = np.unpackbits(np.frombuffer(self._take(_BITMAP_BYTES), np.uint8), bitorder="little")
            found = np.flatnonzero(bits)
            if len(found) != size:
                raise ValueError(f"a container holds {len(found)} numbers where {size} are due")
            return found.astype(np.uint32)
        numbers = np.frombuffer(self._take(2 * size), "<u2").astype(np.uint32)
        if np.any(numbers[1:] <= numbers[:-1]):
            raise ValueError("the numbers of a container are out of order")
        return numbers

    def _runs(self, size: int) -> Numbers:
        (count,) = struct.unpack("<H", self._take(2))
        pairs = np.frombuffer(self._take(4 * count), "<u2").reshape(count, 2).astype(np.int64)
        firsts, lasts = pairs[:, 0], pairs[:, 0] + pairs[:, 1]
        if np.any(firsts[1:] <= lasts[:-1]) or np.any(lasts > 0xFFFF):
            raise ValueError("the runs of a container are out of order")
        lengths = pairs[:, 1] + 1
        if int(lengths.sum()) != size:
            raise ValueError(f"a container holds {int(lengths.sum())} numbers where {size} are due")
        before = np.cumsum(lengths) - lengths
        numbers: Numbers = (np.arange(size) + np.repeat(firsts - before, lengths)).astype(np.uint32)
        return numbers

    def _take(self, size: int) -> memoryview:
        end = self._position + size
        if end > len(self._data):
            raise ValueError(f"it ends after {len(self._data)} bytes")
        view = self._data[self._position : end]
        self._position = end
        return view
