"""A file in memory that holds only the bytes in use.

Requested bytes are received at their true offsets into a private mapping as large as the file. pyarrow reads the
mapping as if it were the file, without a copy, and bytes that are no longer needed go back to the kernel page by page.
Untouched pages cost nothing, so a mapping of many gigabytes is as cheap as its resident part.
"""

from __future__ import annotations

import mmap
import platform
import sys
from bisect import bisect_right

import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.ranges import Range

PAGE_BYTES = mmap.PAGESIZE

_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None)

# Without this flag the kernel may refuse a mapping larger than its free memory. Python knows its name since 3.13; its
# value differs by architecture.
_IS_GENERIC = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64", "riscv64")
_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if _IS_GENERIC else 0x40 if sys.platform == "darwin" else 0)


class Coverage:
    """The number of users of each byte: counts over half-open ranges. Pure.

    ``_starts[i]`` begins a stretch of ``_counts[i]`` that ends where the next one begins; the last one has no end.
    """

    def __init__(self) -> None:
        self._starts = [0]
        self._counts = [0]

    def add(self, start: int, end: int) -> None:
        """Increment the number of uses of every byte of ``[start, end)``."""
        self._change(start, end, 1)

    def remove(self, start: int, end: int) -> list[Range]:
        """Decrement the number of uses of every byte of ``[start, end)``. Returns the parts without uses, in order."""
        freed: list[Range] = []
        for low, high in self._change(start, end, -1):
            if freed and freed[-1][1] == low:
                freed[-1] = (freed[-1][0], high)
            else:
                freed.append((low, high))
        return freed

    def is_idle(self, start: int, end: int) -> bool:
        """Whether no byte of ``[start, end)`` is needed."""
        index = bisect_right(self._starts, start) - 1
        position = start
        while position < end:
            if self._counts[index]:
                return False
            index += 1
            if index == len(self._starts):
                break
            position = self._starts[index]
        return True

    def _change(self, start: int, end: int, step: int) -> list[Range]:
        """Add ``step`` to the counts of ``[start, end)``, never below 0; return the stretches with count 0 now."""
        if end <= start:
            return []
        first, last = self._cut(start), self._cut(end)
        emptied: list[Range] = []
        for index in range(first, last):
            if self._counts[index] + step >= 0:
                self._counts[index] += step
                if step < 0 and self._counts[index] == 0:
                    emptied.append((self._starts[index], self._starts[index + 1]))
        self._join(max(first, 1), last)
        return emptied

    def _cut(self, position: int) -> int:
        """The index of the stretch that begins at ``position``, made if need be."""
        index = bisect_right(self._starts, position) - 1
        if self._starts[index] != position:
            index += 1
            self._starts.insert(index, position)
            self._counts.insert(index, self._counts[index - 1])
        return index

    def _join(self, first: int, last: int) -> None:
        """Make neighbours of the same count one stretch, from stretch ``first`` to ``last``."""
        for index in range(min(last, len(self._starts) - 1), first - 1, -1):
            if self._counts[index] == self._counts[index - 1]:
                del self._starts[index], self._counts[index]


class SparseFile:
    """Memory of ``size`` bytes at the offsets of a file: the ``memory`` that its reads are received into.

    ``Unsupported`` if the machine has no address space for it. Belongs to one thread, apart from the readers of
    ``source``: those may be in any thread, and must be done with bytes before they are discarded.
    """

    def __init__(self, size: int, *, path: str = "") -> None:
        self.size = size
        self._mapping = _new_mapping(size, path)
        self._view = memoryview(self._mapping)
        self._needed = Coverage()

    def allocate(self, start: int, end: int) -> memoryview:
        """Writable memory of exactly the file's ``[start, end)``, needed until it is discarded as often."""
        self._needed.add(start, end)
        return self._view[start:end]

    def discard(self, start: int, end: int) -> None:
        """``[start, end)`` is needed once less. Unneeded memory goes to the kernel, page by page, and reads as zeros.

        A page of the kernel stays while a neighbour needs a byte of it.
        """
        for low, high in self._needed.remove(start, end):
            self._drop(low, high)

    def put(self, start: int, data: bytes | memoryview) -> None:
        """Copy bytes that were received elsewhere (the file's tail) to their place; they are not discarded."""
        self.allocate(start, start + len(data))[:] = data

    def view(self, start: int, end: int) -> memoryview:
        """Read-only memory of ``[start, end)``, received or not."""
        return self._view[start:end].toreadonly()

    def source(self) -> pa.BufferReader:
        """The file for pyarrow: reading copies nothing. Each has a position of its own."""
        return pa.BufferReader(pa.py_buffer(self._view))

    def _drop(self, start: int, end: int) -> None:
        if _DONT_NEED is None:
            return
        low, high = start - start % PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES
        if not self._needed.is_idle(low, start):
            low += PAGE_BYTES
        if not self._needed.is_idle(end, high):
            high -= PAGE_BYTES
        if low < high:
            self._mapping.madvise(_DONT_NEED, low, high - low)


def _new_mapping(size: int, path: str) -> mmap.mmap:
    # An empty mapping is an error. Whole pages, so that the last one can be discarded as the others.
    whole = max(PAGE_BYTES, -(-size // PAGE_BYTES) * PAGE_BYTES)
    try:
        return mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise Unsupported(
            f"this machine has no room for a mapping as large as the file, {size} bytes: {error}",
            operation="scan",
            path=path,
        ) from error
