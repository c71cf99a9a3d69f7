"""The memory of a segment, charged to the budget until the last view of it is gone, whoever holds it.

A buffer that was handed out as a view is never used again for other bytes.
"""

from __future__ import annotations

import contextlib
import mmap

from aioprefetch.budget import MemoryBudget

# From here on memory comes from the kernel in large pages and goes back to it at once. Writing 8 MiB for the first
# time costs 0.7 ms a MiB in a bytearray (which is filled with zeros before), 0.2 in large pages.
MAPPED_BYTES_MIN = 2 << 20

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


class SmallBuffer(bytearray):
    """Memory of Python's own allocator."""

    __slots__ = ("budget", "charged_bytes")

    def __init__(self, size_bytes: int, budget: MemoryBudget) -> None:
        self.budget = budget
        self.charged_bytes = 0  # If there is no memory, nothing is given back.
        super().__init__(size_bytes)
        self.charged_bytes = size_bytes

    def __del__(self) -> None:
        self.budget.release(self.charged_bytes)


class MappedBuffer(mmap.mmap):
    """Memory of the kernel, unmapped when the last view is gone. Never close it by hand."""

    __slots__ = ("budget", "charged_bytes")

    budget: MemoryBudget
    charged_bytes: int

    def __new__(cls, size_bytes: int, budget: MemoryBudget) -> MappedBuffer:
        """Map it; ``MemoryError`` where the kernel has none."""
        try:
            self = super().__new__(cls, -1, size_bytes, flags=_FLAGS)
        except OSError as error:
            raise MemoryError(f"no memory for a block of {size_bytes} bytes: {error}") from error
        if _HUGE_PAGES is not None:
            with contextlib.suppress(OSError):  # A kernel without them.
                self.madvise(_HUGE_PAGES)
        self.budget = budget
        self.charged_bytes = size_bytes
        return self

    def __del__(self) -> None:
        budget = getattr(self, "budget", None)  # None where nothing could be mapped.
        if budget is not None:
            budget.release(self.charged_bytes)


Buffer = SmallBuffer | MappedBuffer


def new_buffer(size_bytes: int, budget: MemoryBudget) -> Buffer:
    """Zeroed memory of ``size_bytes`` that are reserved in ``budget`` already, and released when it is gone."""
    return (MappedBuffer if size_bytes >= MAPPED_BYTES_MIN else SmallBuffer)(size_bytes, budget)
