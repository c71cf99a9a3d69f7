"""The columns ``_rowid`` and ``_rowaddr``, which are computed and not read.

The address of a row is its fragment and its place there: ``fragment << 32 | place``, deleted rows counted. Its id is
its address as well, unless the dataset has stable row ids. Then the manifest holds the ids of the rows of each
fragment, in segments: a range of ids, one with holes or a bitmap, or a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.dataset.manifest import Fragment
from aioprefetch.lance.field_decoder import ArrayTask
from aioprefetch.lance.physical.memory import check_size
from aioprefetch.lance.row_ranges import RowNumbers, RowRanges
from aioprefetch.lance.schema import Field
from aioprefetch.lance.wire import FieldRule, MessageTable, ParsedMessage, message, parse, uint

Ids = npt.NDArray[np.uint64]

_WIDTH = 8
_PLACE_BITS = 32
_ID_MAX = (1 << 64) - 1

# Fields of no file, whose numbers are none that Lance gives.
ROW_ID = Field("_rowid", -2, "uint64", True, {}, (), pa.field("_rowid", pa.uint64()))
ROW_ADDRESS = Field("_rowaddr", -3, "uint64", True, {}, (), pa.field("_rowaddr", pa.uint64()))
ROW_FIELDS = (ROW_ID, ROW_ADDRESS)

_OFFSETS = MessageTable("offsets", {1: uint("base"), 2: FieldRule("offsets", "bytes")})
_NUMBERS = MessageTable(
    "EncodedU64Array", {1: message("u16", _OFFSETS), 2: message("u32", _OFFSETS), 3: message("u64", _OFFSETS)}
)
_RANGE = MessageTable("Range", {1: uint("start"), 2: uint("end"), 3: message("holes", _NUMBERS)})
_BITMAP = MessageTable("RangeWithBitmap", {1: uint("start"), 2: uint("end"), 3: FieldRule("bitmap", "bytes")})
_SEGMENT = MessageTable(
    "U64Segment",
    {
        1: message("range", _RANGE),
        2: message("range", _RANGE),
        3: message("bitmap", _BITMAP),
        4: message("numbers", _NUMBERS),
        5: message("numbers", _NUMBERS),
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


class RowNumbersField:
    """A ``FieldDecoder`` of the ids or addresses of the rows of ``ranges`` in a fragment."""

    def __init__(self, field: Field, fragment: Fragment, ranges: RowRanges) -> None:
        if fragment.id >> _PLACE_BITS or fragment.rows >> _PLACE_BITS:
            raise UntrustedMetadata(f"row {fragment.rows} of fragment {fragment.id} has no address")
        self._base = fragment.id << _PLACE_BITS
        self._ids = _ids_of(fragment) if field.id == ROW_ID.id else None
        self._ranges = ranges
        self._drained = 0

    def accept(self, page: None) -> None:
        """Do nothing: the page is empty."""

    def promote(self, rows: int) -> None:
        """Do nothing: there are no reads."""

    async def wait(self, rows: int) -> None:
        """Do nothing: there are no reads."""

    def loaded_rows(self, rows: int) -> int:
        return rows

    def size_bytes(self, rows: int) -> int:
        return rows * _WIDTH

    def drain(self, rows: int) -> ArrayTask:
        """The numbers of the next ``rows`` rows."""
        check_size(rows * _WIDTH)
        start, self._drained = self._drained, self._drained + rows
        return ArrayTask(decode=partial(self._decode, start, start + rows))

    def _decode(self, start: int, stop: int) -> pa.Array:
        places = self._ranges.rows_between(start, stop)
        numbers = places.astype(np.uint64) + np.uint64(self._base) if self._ids is None else self._ids.at(places)
        return pa.array(numbers)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _ids_of(fragment: Fragment) -> RowIds | None:
    """The ids of a fragment of a dataset with stable row ids; ``None`` where an id is an address."""
    if fragment.row_ids is None:
        return None
    if fragment.rows and not fragment.row_ids:
        raise Unsupported(f"the row ids of fragment {fragment.id} are not in the manifest, which is not supported")
    return RowIds(fragment.row_ids, fragment.rows)
