"""Several parts of one object, as zarr asks for them, by the fewest reads. Pure.

zarr has three forms of a part: a range, everything from an offset on, and the last bytes. A part that lies in another
one is cut out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import Range

Part: TypeAlias = RangeByteRequest | OffsetByteRequest | SuffixByteRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsPlan:
    """The reads of one object: of all bytes from ``offset`` on, of the last ``suffix``, and of ``ranges``.

    ``None`` and an empty list stand for no such read.
    """

    offset: int | None
    suffix: int | None
    ranges: list[Range]

    @property
    def is_one_read(self) -> bool:
        """Whether there is only one of the three."""
        return (self.offset is not None) + (self.suffix is not None) + bool(self.ranges) == 1

    def ranges_beside(self, size: int) -> list[Range]:
        """Ranges to be read beside the bytes from ``offset`` on, or beside the last ones, of an object of this size.

        ``ranges``, cut at its end, and then the part of the last bytes that lies before ``offset``, if any does.
        Raises ``RangeNotSatisfied`` for a range that starts beyond the end.
        """
        if beyond := [one for one in self.ranges if one[0] >= size]:
            raise RangeNotSatisfied(f"{beyond[0]} starts past the end of {size} bytes", total=size, operation="read")
        found = [(start, min(end, size)) for start, end in self.ranges]
        if self.offset is not None and self.suffix is not None and size - self.suffix < self.offset:
            found.append((max(0, size - self.suffix), min(size, self.offset)))
        return found

    def ends(self, first: memoryview, views: Sequence[memoryview]) -> tuple[memoryview, memoryview]:
        """The bytes from ``offset`` on and the last ones, out of the first read and those of ``ranges_beside``."""
        if self.offset is None or self.suffix is None:
            return first, first
        before = views[-1] if len(views) > len(self.ranges) else memoryview(b"")
        last = memoryview(b"".join((before, first))) if before else first
        return first, last

    def cut(self, part: Part, from_offset: memoryview, last: memoryview, ranged: dict[Range, memoryview]) -> memoryview:
        """The bytes of a part, out of what the reads brought."""
        if isinstance(part, SuffixByteRequest) and self.offset != 0:
            return last[max(0, len(last) - part.suffix) :]
        if isinstance(part, SuffixByteRequest):
            return from_offset[max(0, len(from_offset) - part.suffix) :]
        if isinstance(part, RangeByteRequest) and (self.offset is None or part.start < self.offset):
            return ranged[part.start, part.end]
        base = self.offset or 0
        if isinstance(part, RangeByteRequest):
            return from_offset[part.start - base : part.end - base]
        return from_offset[part.offset - base :] if part is not None else from_offset


def plan_parts(parts: Sequence[Part]) -> PartsPlan:
    """The reads for some parts of one object. ``TypeError`` for a part of another form."""
    offsets: list[int] = []
    suffixes: list[int] = []
    ranges: list[Range] = []
    for part in parts:
        if part is None:
            offsets.append(0)
        elif isinstance(part, OffsetByteRequest):
            offsets.append(part.offset)
        elif isinstance(part, SuffixByteRequest):
            suffixes.append(part.suffix)
        elif isinstance(part, RangeByteRequest):
            ranges.append((part.start, part.end))
        else:
            raise TypeError(f"Unexpected byte_range, got {part!r}")
    offset = min(offsets, default=None)
    return PartsPlan(
        offset=offset,
        suffix=None if offset == 0 else max(suffixes, default=None),
        ranges=sorted({one for one in ranges if offset is None or one[0] < offset}),
    )
