"""Arithmetic of byte ranges: checking, the block grid, coalescing. Pure, no I/O.

Ranges are half open, ``[start, end)``, in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import SupportsIndex

from aioprefetch.errors import ConfigInvalid, InvalidRange, InvalidType, RangeNotSatisfied
from aioprefetch.lean_dataclass import dataclass

Range = tuple[int, int]
# A number of bytes from a caller, also as text: see ``byte_count``.
ByteCount = int | str

# A number, whole or with a fraction, and a unit. It is compiled at the first text.
_BYTE_COUNT = r"([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*(?:([KMGT])I?B?|B)?"

# Beyond this no store has an object (S3 ends at 5 TiB, a signed 64-bit offset at 8 EiB): a larger number is a slip.
OFFSET_MAX = (1 << 63) - 1

# Gaps up to this size are always read through where gaps are bridged, as pyarrow does.
SMALL_GAP_BYTES = 8 << 10


def checked_int(value: object, name: str, *, operation: str, path: str) -> int:
    """``value`` as an ``int``. ``InvalidType`` for anything that is not an integer (nor is a bool here)."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidType(
            f"{name} must be an integer, not {value!r} of type {type(value).__name__}", operation=operation, path=path
        )
    return value.__index__()


def at_least(lowest: int, value: object, name: str, *, operation: str, path: str) -> int:
    """``value`` as an integer that is not below ``lowest``. ``InvalidType`` or ``ConfigInvalid``."""
    number = checked_int(value, name, operation=operation, path=path)
    if number < lowest:
        raise ConfigInvalid(f"{name} must be at least {lowest}, not {number}", operation=operation, path=path)
    return number


def byte_count(value: object, name: str, *, operation: str, path: str = "") -> object:
    """The number of bytes of a text (``"64MiB"``, ``"1.5 GB"``, ``"4096"``); another value stays as it is.

    Units are powers of 1024, with and without their ``i``, in any case: ``K``, ``KB`` and ``KiB`` are the same, as in
    the tools of AWS and in Spark; so are ``M``, ``G`` and ``T``. ``ConfigInvalid`` for other text, and for a fraction
    of a byte.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_BYTE_COUNT, value.strip(), re.ASCII | re.IGNORECASE)
    if match is not None:
        whole, fraction, unit = match[1], match[2] or "", match[3]
        scaled = int(whole + fraction) << (" KMGT".index(unit.upper()) * 10 if unit else 0)
        count, rest = divmod(scaled, 10 ** len(fraction))
        if not rest:
            return count
    raise ConfigInvalid(
        f"{name}={value!r} must be a number of bytes, such as 67108864 or '64 MiB'; the units KiB, MiB, GiB and TiB are"
        " powers of 1024",
        operation=operation,
        path=path,
    )


def bytes_at_least(lowest: int, value: object, name: str, *, operation: str, path: str) -> int:
    """``at_least`` for a number of bytes, which may be text."""
    number = byte_count(value, name, operation=operation, path=path)
    return at_least(lowest, number, name, operation=operation, path=path)


def checked_range(
    offset: object, size: object | None, *, operation: str, path: str, total: int | None = None
) -> tuple[int, int | None]:
    """The check of an offset and a size from outside.

    Returns both as integers; ``size`` stays ``None`` when it means "to the end". Raises ``InvalidType`` or
    ``InvalidRange``, and with ``total`` (the object's size, for sizes and offsets claimed by a file's metadata)
    ``RangeNotSatisfied`` when the range leaves the object.
    """
    if type(offset) is int and type(size) is int and total is None and 0 <= offset <= OFFSET_MAX - size <= OFFSET_MAX:
        return offset, size  # As nearly all of them are.
    start = checked_int(offset, "offset", operation=operation, path=path)
    length = None if size is None else checked_int(size, "size", operation=operation, path=path)
    if start < 0 or start > OFFSET_MAX:
        raise InvalidRange(f"offset must be between 0 and {OFFSET_MAX}, not {start}", operation=operation, path=path)
    if length is not None and (length < 0 or length > OFFSET_MAX):
        raise InvalidRange(f"size must be between 0 and {OFFSET_MAX}, not {length}", operation=operation, path=path)
    if length is not None:  # The maximum number in a header. It is beyond the end of every object.
        length = min(length, OFFSET_MAX - start)
    if total is not None and start + (length or 0) > total:
        raise RangeNotSatisfied(
            f"[{start}, {start + (length or 0)}) leaves the object of {total} bytes", operation=operation, path=path
        )
    return start, length


def checked_ranges(ranges: Iterable[Sequence[object]], *, operation: str, path: str) -> list[Range]:
    """``[(start, end), ...]`` from outside, as integers. ``InvalidType``, or ``InvalidRange`` (reversed ones too)."""
    if not isinstance(ranges, Iterable) or isinstance(ranges, (str, bytes)):
        raise InvalidType(f"ranges must be a list of (start, end), not {ranges!r}", operation=operation, path=path)
    checked: list[Range] = []
    for pair in ranges:
        if not isinstance(pair, Sequence) or isinstance(pair, (str, bytes)) or len(pair) != 2:
            raise InvalidType(f"a range must be (start, end), not {pair!r}", operation=operation, path=path)
        start = checked_int(pair[0], "start", operation=operation, path=path)
        end = checked_int(pair[1], "end", operation=operation, path=path)
        if start < 0 or end < start or end > OFFSET_MAX:
            raise InvalidRange(
                f"a range must have 0 <= start <= end, not ({start}, {end})", operation=operation, path=path
            )
        checked.append((start, end))
    return checked


def overlaps(ranges: Iterable[Range], start: int, end: int) -> bool:
    """Whether one of the ranges has a byte of ``[start, end)``."""
    for low, high in ranges:  # noqa: SIM110 - a generator in ``any`` costs more than the answer
        if low < end and start < high:
            return True
    return False


@dataclass(frozen=True, slots=True)
class MergedRange:
    """One request that serves several wanted ranges: ``members`` are their positions in the caller's list."""

    start: int
    end: int
    members: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of the request, gaps included."""
        return self.end - self.start


def coalesce(ranges: Sequence[Range], *, gap_bytes: int, request_bytes_max: int) -> list[MergedRange]:
    """Fewer requests for the same bytes: neighbours ``gap_bytes`` or less apart become one of ``request_bytes_max``.

    Overlapping and equal ranges share bytes. Empty ranges cost no request and are omitted. A single range larger
    than the maximum stays one piece here (the reader cuts it at its blocks). The result is ordered by position and
    its pieces never overlap, unless the maximum forbids the merge of two that do.
    """
    order = sorted((r[0], r[1], position) for position, r in enumerate(ranges) if r[1] > r[0])
    merged: list[MergedRange] = []
    members: list[int] = []
    start = end = 0
    for low, high, position in order:
        joined = max(end, high)
        if members and low <= end + gap_bytes and (joined == end or joined - start <= request_bytes_max):
            end = joined
            members.append(position)
            continue
        if members:
            merged.append(MergedRange(start, end, tuple(members)))
        start, end, members = low, high, [position]
    if members:
        merged.append(MergedRange(start, end, tuple(members)))
    return merged


def subtract(wanted: Range, present: Iterable[Range]) -> list[Range]:
    """The parts of ``wanted`` that are not in ``present`` (ordered, not overlapping)."""
    position, end = wanted
    missing: list[Range] = []
    for low, high in present:
        if high <= position:
            continue
        if low >= end:
            break
        if low > position:
            missing.append((position, low))
        position = max(position, high)
    if position < end:
        missing.append((position, end))
    return missing


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The union of the ranges: ascending, disjoint, without empty ones. Ranges that touch become one."""
    union: list[Range] = []
    for start, end in sorted(pair for pair in ranges if pair[0] < pair[1]):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def bridged(pieces: Iterable[Range], *, gap_bytes: int, gaps_bytes_max: int | None) -> list[Range]:
    """Pieces, joined over gaps of at most ``gap_bytes``, smallest gaps first.

    All gaps above ``SMALL_GAP_BYTES`` have at most ``gaps_bytes_max`` bytes together (``None``: any number).
    """
    wanted = joined(pieces)
    gaps = sorted((after[0] - before[1], number) for number, (before, after) in enumerate(pairwise(wanted), 1))
    taken, closed = 0, set()
    for size, number in gaps:
        taken += size
        if size > gap_bytes or (size > SMALL_GAP_BYTES and gaps_bytes_max is not None and taken > gaps_bytes_max):
            break
        closed.add(number)
    runs: list[Range] = []
    for number, (start, end) in enumerate(wanted):
        if number in closed:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    return runs


def intersected(left: Sequence[Range], right: Sequence[Range]) -> list[Range]:
    """The intersection of two lists of ranges, each ascending and disjoint."""
    common: list[Range] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low < high:
            common.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return common


def total_length(ranges: Iterable[Range]) -> int:
    """The sum of the lengths of the ranges."""
    return sum(end - start for start, end in ranges)


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """The grid of blocks over an object of ``size`` bytes; the last block may be short, an empty object has none."""

    size: int
    block_bytes: int

    @property
    def count(self) -> int:
        """The number of blocks."""
        return -(-self.size // self.block_bytes)

    def index(self, offset: int) -> int:
        """The block that holds ``offset``."""
        return offset // self.block_bytes

    def bounds(self, index: int) -> Range:
        """The range of block ``index``, cut at the end of the object."""
        start = index * self.block_bytes
        return start, min(start + self.block_bytes, self.size)

    def indices(self, start: int, end: int) -> range:
        """The blocks that ``[start, end)`` touches."""
        stop = min(end, self.size)
        if stop <= start:
            return range(0)
        return range(start // self.block_bytes, (stop - 1) // self.block_bytes + 1)


def resolve_range(offset: int, size: int | None, suffix: int | None, total: int) -> Range | None:
    """The bytes that a request means in an object of ``total`` bytes, ``None`` when it starts at or beyond the end.

    An empty object has one range only, the empty one, and every request means it.
    """
    if total == 0:
        return 0, 0
    if suffix is not None:
        return max(0, total - suffix), total
    if offset >= total:
        return None
    return offset, total if size is None else min(total, offset + size)
