"""The responses to a plan, put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

import numpy as np

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.physical.protocols import Bytes
from aioprefetch.ranges import Range
from aioprefetch.scheduler.pending_read import Stretch

# So many answers of so few bytes are copied by number, byte by byte; fewer or larger ones each by itself.
_GATHERED_MIN = 256
_GATHERED_BYTES_MAX = 64
# So many at once: the numbers of their bytes take eight times the memory of these.
_GATHERED_TOGETHER = 1 << 14


class Gathered(Sequence[memoryview]):
    """Answers that lie back to back in ``data``: a view is made of those alone that somebody looks at."""

    def __init__(self, data: Bytes, bounds: Sequence[int]) -> None:
        self.data = data
        self.bounds = bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.data.data[self.bounds[index] : self.bounds[index + 1]]

    def __iter__(self) -> Answers:
        return Answers([self])


class Answers(Iterator[memoryview]):
    """The responses to several plans one after the other, or some of them together."""

    def __init__(self, plans: Sequence[Sequence[memoryview]]) -> None:
        self._plans = plans
        self._plan = 0
        self._index = 0

    def __next__(self) -> memoryview:
        while self._plan < len(self._plans):
            if self._index < len(self._plans[self._plan]):
                self._index += 1
                return self._plans[self._plan][self._index - 1]
            self._plan, self._index = self._plan + 1, 0
        raise StopIteration

    def gathered(self, count: int) -> Bytes | None:
        """The next ``count`` as they lie back to back, not copied; ``None`` if they do not."""
        while self._plan < len(self._plans) and self._index == len(self._plans[self._plan]):
            self._plan, self._index = self._plan + 1, 0
        if self._plan == len(self._plans):
            return None
        found, end = self._plans[self._plan], self._index + count
        if not isinstance(found, Gathered) or end > len(found):
            return None
        data = found.data[found.bounds[self._index] : found.bounds[end]]
        self._index = end
        return data


def gathered(ranges: Sequence[Range], stretches: Sequence[Stretch]) -> Gathered | None:
    """The responses to ``ranges`` (which may be empty), put together; ``None`` where a view of each is better."""
    counted = sum(len(starts) for starts, _, _, _ in stretches)
    bounds = np.zeros(len(ranges) + 1, np.int64)
    if counted < _GATHERED_MIN:
        return None
    np.cumsum(np.fromiter((end - start for start, end in ranges), np.int64, len(ranges)), out=bounds[1:])
    if bounds[-1] > _GATHERED_BYTES_MAX * counted:
        return None
    parts = [part for stretch in stretches for part in _copied(*stretch)]
    data = np.concatenate(parts)
    if data.size != bounds[-1]:
        raise UntrustedMetadata("a read brought another number of bytes than was asked for")
    return Gathered(data, bounds.tolist())


def _copied(starts: Sequence[int], ends: Sequence[int], base: int, view: memoryview) -> Iterator[Bytes]:
    data = np.frombuffer(view, np.uint8)
    for first in range(0, len(starts), _GATHERED_TOGETHER):
        places = np.array(starts[first : first + _GATHERED_TOGETHER], np.int64) - base
        sizes = np.array(ends[first : first + _GATHERED_TOGETHER], np.int64) - base - places
        before = np.cumsum(sizes) - sizes
        yield data[np.repeat(places - before, sizes) + np.arange(int(sizes.sum()))]


def joined(reads: Iterator[memoryview], count: int) -> Bytes:
    """The next ``count`` answers as one array: no copy of a single one."""
    found = reads.gathered(count) if isinstance(reads, Answers) else None
    if found is not None:
        return found
    if count == 1:
        return np.frombuffer(next(reads), np.uint8)
    return np.frombuffer(b"".join(islice(reads, count)), np.uint8)


def check_fits(needed_bytes: int, buffer: Range, what: str) -> None:
    """``UntrustedMetadata`` when a buffer of the file is smaller than what the page claims to keep in it."""
    if needed_bytes > buffer[1] - buffer[0]:
        raise UntrustedMetadata(f"{what} need {needed_bytes} bytes and have {buffer[1] - buffer[0]}")
