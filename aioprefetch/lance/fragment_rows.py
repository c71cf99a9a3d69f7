"""The rows of a fragment: which of them are deleted, and the numbers of the living ones.

**Deleted rows.** A deletion file is an Arrow file or a Roaring bitmap in its portable form (RoaringFormatSpec): a set
of 32-bit numbers, in containers of numbers with the same upper half. The layout is a cookie, a table of (upper half,
count - 1), the offsets of the containers (absent for a few containers if some are runs), and the containers: sorted
16-bit numbers, a bitmap of 8 KiB, or runs of (first, length - 1).

**Row numbers.** The columns ``_rowid`` and ``_rowaddr`` are computed and not read. The address of a row is its fragment
and its place there: ``fragment << 32 | place``, deleted rows counted. Its id is its address as well, unless the dataset
has stable row ids. Then the manifest holds the ids of the rows of each fragment, in segments: a range of ids, one with
holes or a bitmap, or a list.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.manifest import Fragment
from aioprefetch.lance.output import ArrayTask, FieldWithoutReads
from aioprefetch.lance.physical.protocols import check_size
from aioprefetch.lance.schema import Field
from aioprefetch.lance.wire import FieldRule, MessageTable, ParsedMessage, message, parse, uint
from aioprefetch.operator.operator import Operator
from aioprefetch.row_ranges import RowNumbers, RowRanges, runs

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


# --- deleted rows -----------------------------------------------------------------------------------------------------

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


def physical_ranges(living: RowRanges, deleted: RowNumbers) -> RowRanges:
    """Ranges of living rows (counted without deleted rows) as ranges of physical rows."""
    if not deleted.size or not living.rows:
        return living
    before = deleted - np.arange(len(deleted))  # The number of living rows before each deleted row.
    starts = living.starts + np.searchsorted(before, living.starts, "right")
    stops = living.ends + np.searchsorted(before, living.ends - 1, "right")
    holes = runs(deleted)
    # A range begins and ends with a living row, so a hole that begins within it lies within it.
    owners = np.searchsorted(starts, holes.starts, "right") - 1
    inside = (owners >= 0) & (holes.starts < stops[owners])
    return RowRanges(
        np.sort(np.concatenate((starts, holes.ends[inside]))), np.sort(np.concatenate((holes.starts[inside], stops)))
    )


# --- row numbers ------------------------------------------------------------------------------------------------------

Ids = npt.NDArray[np.uint64]

_ID_BYTES = 8
_PLACE_BITS = 32
_ID_MAX = (1 << 64) - 1

# Fields of no file, with numbers that Lance does not give.
ROW_ID = Field("_rowid", -2, "uint64", True, {}, (), pa.field("_rowid", pa.uint64()))
ROW_ADDRESS = Field("_rowaddr", -3, "uint64", True, {}, (), pa.field("_rowaddr", pa.uint64()))
ROW_FIELDS = (ROW_ID, ROW_ADDRESS)

_ENCODED_OFFSETS = MessageTable("offsets", {1: uint("base"), 2: FieldRule("offsets", "bytes")})
_ENCODED_NUMBERS = MessageTable(
    "EncodedU64Array",
    {1: message("u16", _ENCODED_OFFSETS), 2: message("u32", _ENCODED_OFFSETS), 3: message("u64", _ENCODED_OFFSETS)},
)
_RANGE = MessageTable("Range", {1: uint("start"), 2: uint("end"), 3: message("holes", _ENCODED_NUMBERS)})
_RANGE_WITH_BITMAP = MessageTable(
    "RangeWithBitmap", {1: uint("start"), 2: uint("end"), 3: FieldRule("bitmap", "bytes")}
)
_SEGMENT = MessageTable(
    "U64Segment",
    {
        1: message("range", _RANGE),
        2: message("range", _RANGE),
        3: message("bitmap", _RANGE_WITH_BITMAP),
        4: message("numbers", _ENCODED_NUMBERS),
        5: message("numbers", _ENCODED_NUMBERS),
    },
)
_SEQUENCE = MessageTable("RowIdSequence", {1: message("segments", _SEGMENT, repeated=True)})


@dataclass(frozen=True, slots=True)
class _Range:
    """The numbers from ``start`` on, without ``holes``, which ascend. ``rows`` is their number."""

    start: int
    rows: int
    holes: RowNumbers

    def at(self, positions: RowNumbers) -> Ids:
        """The numbers at ``positions``."""
        before = self.holes - np.arange(len(self.holes))  # The number of numbers before each hole.
        skipped = np.searchsorted(before, positions, "right") if len(before) else 0
        return np.asarray(positions + skipped).astype(np.uint64) + np.uint64(self.start)


@dataclass(frozen=True, slots=True)
class _Listed:
    """Numbers as they stand."""

    numbers: Ids

    @property
    def rows(self) -> int:
        return len(self.numbers)

    def at(self, positions: RowNumbers) -> Ids:
        """The numbers at ``positions``."""
        return self.numbers[positions]


class RowIds:
    """The ids of the rows of a fragment, from the bytes in its manifest. ``UntrustedMetadata`` for other bytes."""

    def __init__(self, data: bytes, rows: int, *, path: str = "") -> None:
        parsed = parse(_SEQUENCE, data, path=path, strict=True)
        try:
            self._segments = [_segment(segment) for segment in parsed.get("segments", ())]
        except ValueError as error:
            raise UntrustedMetadata(f"the ids of rows are damaged: {error}", path=path) from error
        counts = [segment.rows for segment in self._segments]
        if sum(counts) != rows:
            raise UntrustedMetadata(f"there are ids of {sum(counts)} rows where {rows} are due", path=path)
        self._ends = np.cumsum(counts, dtype=np.int64)

    def at(self, places: RowNumbers) -> Ids:
        """The ids of rows at ascending places of the fragment."""
        bounds = np.searchsorted(places, self._ends, "left").tolist()
        parts: list[Ids] = []
        first = 0
        for segment, end, bound in zip(self._segments, self._ends.tolist(), bounds, strict=True):
            if bound > first:
                parts.append(segment.at(places[first:bound] - (end - segment.rows)))
            first = bound
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _segment(parsed: ParsedMessage) -> _Range | _Listed:
    if len(parsed) != 1:
        raise ValueError(f"a segment has {len(parsed)} forms")
    if (listed := parsed.get("numbers")) is not None:
        return _Listed(_numbers(listed))
    form = parsed.get("range") or parsed.get("bitmap") or {}
    start, size = form.get("start", 0), form.get("end", 0) - form.get("start", 0)
    if not 0 <= size <= np.iinfo(np.int64).max:
        raise ValueError(f"a range of {size} ids")
    if "bitmap" in parsed:
        bits = np.unpackbits(np.frombuffer(form.get("bitmap", b""), np.uint8), bitorder="little")
        if size > len(bits):
            raise ValueError(f"a bitmap of {len(bits)} bits for {size} ids")
        return _Listed(np.flatnonzero(bits[:size]).astype(np.uint64) + np.uint64(start))
    holes = _numbers(form["holes"]) if "holes" in form else np.empty(0, np.uint64)
    if len(holes) and (bool(np.any(holes[1:] <= holes[:-1])) or holes[0] < start or holes[-1] >= form.get("end", 0)):
        raise ValueError("the holes in a range are out of order, or lie outside")
    return _Range(start, size - len(holes), (holes - np.uint64(start)).astype(np.int64))


def _numbers(parsed: ParsedMessage) -> Ids:
    if len(parsed) != 1:
        raise ValueError(f"an array has {len(parsed)} forms")
    ((form, array),) = parsed.items()
    base, data = array.get("base", 0), array.get("offsets", b"")
    offsets = np.frombuffer(data, {"u16": "<u2", "u32": "<u4", "u64": "<u8"}[form]).astype(np.uint64)
    if len(offsets) and base + int(offsets.max()) > _ID_MAX:
        raise ValueError(f"ids from {base} on are too large")
    return offsets + np.uint64(base)


class RowNumbersField(FieldWithoutReads):
    """The ids or addresses of the rows of ``ranges`` in a fragment."""

    def __init__(self, field: Field, fragment: Fragment, ranges: RowRanges) -> None:
        if fragment.id >> _PLACE_BITS or fragment.rows >> _PLACE_BITS:
            raise UntrustedMetadata(f"row {fragment.rows} of fragment {fragment.id} has no address")
        self._base = fragment.id << _PLACE_BITS
        self._ids = _ids_of(fragment) if field.id == ROW_ID.id else None
        self._ranges = ranges
        self._drained = 0

    def size_bytes(self, rows: int) -> int:
        return rows * _ID_BYTES

    def drain(self, rows: int) -> ArrayTask:
        """The numbers of the next ``rows`` rows."""
        check_size(rows * _ID_BYTES)
        start, self._drained = self._drained, self._drained + rows
        return ArrayTask(decode=partial(self._decode, start, start + rows))

    def _decode(self, start: int, stop: int) -> pa.Array:
        places = self._ranges.rows_between(start, stop)
        numbers = places.astype(np.uint64) + np.uint64(self._base) if self._ids is None else self._ids.at(places)
        return pa.array(numbers)


def _ids_of(fragment: Fragment) -> RowIds | None:
    """The ids of a fragment of a dataset with stable row ids; ``None`` where an id is an address."""
    if fragment.row_ids is None:
        return None
    if fragment.rows and not fragment.row_ids:
        raise Unsupported(f"the row ids of fragment {fragment.id} are not in the manifest, which is not supported")
    return RowIds(fragment.row_ids, fragment.rows)
