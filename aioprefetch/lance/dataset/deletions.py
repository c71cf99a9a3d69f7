"""The deleted rows of a fragment, and the positions of its living rows.

A deletion file is an Arrow file or a Roaring bitmap in its portable form (RoaringFormatSpec): a set of 32-bit numbers,
in containers of numbers with the same upper half. The layout is a cookie, a table of (upper half, count - 1), the
offsets of the containers (absent for a few containers if some are runs), and the containers: sorted 16-bit numbers, a
bitmap of 8 KiB, or runs of (first, length - 1).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.dataset.manifest import Fragment
from aioprefetch.lance.row_ranges import RowNumbers, runs
from aioprefetch.ranges import Range

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator

_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_CONTAINERS_MAX = 1 << 16
_OFFSETS_ALWAYS_FROM = 4

Numbers = npt.NDArray[np.uint32]


def parse_roaring(data: bytes | memoryview, *, path: str = "") -> Numbers:
    """The numbers of a bitmap, ascending. ``UntrustedMetadata`` for other bytes."""
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
            self._take(4 * count)  # The offsets of containers are redundant, since containers are adjacent.
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
            positions = np.flatnonzero(bits)
            if len(positions) != size:
                raise ValueError(f"a container holds {len(positions)} numbers where {size} are due")
            return positions.astype(np.uint32)
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


# From this number of deleted rows on, the search for their positions takes milliseconds and runs on another thread.
THREAD_ROWS_MIN = 20_000


async def read_deletions(operator: Operator, fragment: Fragment) -> RowNumbers:
    """The deleted rows of a fragment, ascending: one request if it has any."""
    file = fragment.deletion_file
    if file is None:
        return np.empty(0, np.int64)
    data = await operator.read(file.path)
    parse = partial(_parsed, data, is_bitmap=file.is_bitmap, path=file.path)
    claimed = len(data) if file.rows is None else file.rows
    deleted = parse() if claimed < THREAD_ROWS_MIN else await operator.runtime().run_blocking(parse)
    if file.rows is not None and len(deleted) != file.rows:
        raise UntrustedMetadata(f"{len(deleted)} rows are deleted where the manifest says {file.rows}", path=file.path)
    if deleted.size and int(deleted[-1]) >= fragment.rows:
        raise UntrustedMetadata(f"row {int(deleted[-1])} of {fragment.rows} rows is deleted", path=file.path)
    return deleted


def _parsed(data: bytes, *, is_bitmap: bool, path: str) -> RowNumbers:
    numbers = parse_roaring(data, path=path) if is_bitmap else parse_arrow(data, path=path)
    return np.unique(numbers).astype(np.int64)


def parse_arrow(data: bytes, *, path: str = "") -> RowNumbers:
    """The numbers in an Arrow file with one column of numbers. ``UntrustedMetadata`` for other bytes."""
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        if table.num_columns != 1 or not pa.types.is_uint32(table.schema.types[0]):
            raise ValueError(f"its columns are {table.schema.types}")
        column = table.column(0)
        column.validate(full=True)
        if column.null_count:
            raise ValueError("it has nulls")
        numbers: RowNumbers = column.to_numpy().astype(np.int64)
        return numbers
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        raise UntrustedMetadata(f"the file of deleted rows is damaged: {error}", path=path) from error


def physical_ranges(living: Sequence[Range], deleted: RowNumbers) -> tuple[Range, ...]:
    """Ranges of living rows (counted without deleted rows) as ranges of physical rows. Both are sorted and disjoint."""
    if not deleted.size or not living:
        return tuple(living)
    before = deleted - np.arange(len(deleted))  # The number of living rows before each deleted row.
    edges = np.asarray(living, np.int64)
    starts = edges[:, 0] + np.searchsorted(before, edges[:, 0], "right")
    stops = edges[:, 1] + np.searchsorted(before, edges[:, 1] - 1, "right")
    holes = np.asarray(runs(deleted), np.int64)
    first = np.searchsorted(holes[:, 0], starts, "left")
    last = np.searchsorted(holes[:, 0], stops, "left")
    places: list[Range] = []
    for start, stop, low, high in zip(starts.tolist(), stops.tolist(), first.tolist(), last.tolist(), strict=True):
        for hole_start, hole_stop in holes[low:high].tolist():
            places.append((start, hole_start))
            start = hole_stop
        places.append((start, stop))
    return tuple(places)
