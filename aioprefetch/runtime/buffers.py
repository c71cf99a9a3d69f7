"""Memory for bytes of objects, and the little of it that is kept for the next ones.

What the kernel gives for the first time costs more than the bytes that are received into it: each page is a fault and
is zeroed, and in a virtual machine the host may have to find it too. So a mapping whose last view is gone stays with
the budget for a while, **idle**, and the next buffer of the same size gets it as it is.

Nobody gives a buffer back by hand. It is a ctypes array over a mapping: every slice of a view keeps the array alive,
whoever holds it, and the mapping is free when the array dies, never before. What a buffer held before is still in it:
whoever hands it out hands out received bytes alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from collections import deque
from functools import lru_cache
from typing import Protocol, cast

# From here on memory comes from the kernel in large pages, and is kept for the next buffer of its size. Smaller memory
# is Python's own, which keeps some by itself.
MAPPED_BYTES_MIN = 2 << 20

# Idle memory that nothing waits for is this share of what its owner may use at most, and no more than some blocks.
IDLE_SHARE = 4
IDLE_BYTES_MAX = 64 << 20

# What is lent comes in steps of this size, which is a large page, so that results of similar sizes share mappings.
LENT_STEP_BYTES = 2 << 20

# How many references an object has that nothing but one local name and the question itself hold.
ALONE = 2

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


class IdleMemory:
    """Mappings that nobody uses, the one used last at the end. Belongs to one thread; its owner bounds it.

    ``limit_bytes`` is how much of it may wait for whoever comes, where the owner may use ``of_bytes``.
    """

    def __init__(self, of_bytes: int) -> None:
        self.limit_bytes = min(of_bytes // IDLE_SHARE, IDLE_BYTES_MAX)
        self.size_bytes = 0
        self._mappings: list[mmap.mmap] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._mappings)

    def take(self, size_bytes: int) -> mmap.mmap | None:
        """The mapping of exactly that size that was used last, ``None`` where there is none."""
        for index in range(len(self._mappings) - 1, -1, -1):
            if len(self._mappings[index]) == size_bytes:
                mapping = self._mappings.pop(index)
                self.size_bytes -= size_bytes
                if sys.getrefcount(mapping) <= ALONE:
                    return mapping
                # A finalizer has brought a view back to life, or one is at it in another thread: it keeps the memory.
        return None

    def add(self, mapping: mmap.mmap) -> None:
        """Keep a mapping, unless closed."""
        if not self._closed:
            self._mappings.append(mapping)
            self.size_bytes += len(mapping)

    def shrink(self, most_bytes: int) -> None:
        """Keep ``most_bytes`` at most: those that were not used for longest go to the kernel."""
        while self.size_bytes > most_bytes and self._mappings:
            self.size_bytes -= len(self._mappings.pop(0))

    def close(self) -> None:
        """Give everything to the kernel, and keep nothing from now on."""
        self._closed = True
        self.shrink(0)


class Exports:
    """How many bytes of buffers are held by views that were handed out. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._size_bytes = 0
        self._returned: deque[int] = deque()

    @property
    def size_bytes(self) -> int:
        """The memory that stays while these views live: whole buffers, however little of one is viewed."""
        with self._lock:
            while self._returned:
                self._size_bytes -= self._returned.popleft()
            return self._size_bytes

    def add(self, size_bytes: int) -> None:
        """A buffer of that size is viewed from now on."""
        with self._lock:
            self._size_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Its last view is gone. Takes no lock: it runs in destructors, in the middle of anything."""
        self._returned.append(size_bytes)


class Owner(Protocol):
    """Who counts the memory of buffers and keeps what is idle: the budget of a runtime."""

    @property
    def exports(self) -> Exports:
        """What views outside hold of the buffers."""
        ...

    def find_idle(self, size_bytes: int) -> mmap.mmap | None:
        """An idle mapping of that size, which is the caller's from now on."""
        ...

    def release(self, size_bytes: int, mapping: mmap.mmap | None = None) -> None:
        """``size_bytes`` that were charged for a buffer come back, and its mapping; from any thread."""
        ...


class Lease:
    """What a buffer is charged for, and where it goes when its last view is gone."""

    __slots__ = ("charged_bytes", "mapping", "owner")

    def __init__(self, owner: Owner, charged_bytes: int, mapping: mmap.mmap | None = None) -> None:
        self.owner = owner
        self.charged_bytes = charged_bytes
        self.mapping = mapping

    def __del__(self) -> None:
        self.owner.release(self.charged_bytes, self.mapping)


class SmallBuffer(bytearray):
    """Memory of Python's own allocator."""

    __slots__ = ("lease",)

    lease: Lease


class MappedBuffer(ctypes.Array[ctypes.c_ubyte]):
    """Memory of the kernel: an array over a mapping. There is a type for each length, made by ``new_buffer``."""

    _type_ = ctypes.c_ubyte
    _length_ = 0

    lease: Lease


class ExportedBuffer(ctypes.Array[ctypes.c_ubyte]):
    """The memory of a buffer, for views outside: they keep it alive, and with it the buffer. A type for each length."""

    _type_ = ctypes.c_ubyte
    _length_ = 0

    hold: ExportHold


class ExportHold:
    """Counts a buffer as viewed for as long as it lives."""

    __slots__ = ("_exports", "_size_bytes")

    def __init__(self, exports: Exports, size_bytes: int) -> None:
        self._exports = exports
        self._size_bytes = size_bytes
        exports.add(size_bytes)

    def __del__(self) -> None:
        self._exports.give_back(self._size_bytes)


Buffer = SmallBuffer | MappedBuffer


def new_buffer(size_bytes: int, owner: Owner) -> Buffer:
    """Memory of ``size_bytes`` that are charged to its owner already, and released when the last view is gone.

    What is in it is undefined. ``MemoryError`` where there is none; then nothing is released.
    """
    if size_bytes >= MAPPED_BYTES_MIN:
        return _mapped(size_bytes, owner, charged_bytes=size_bytes)
    buffer = SmallBuffer(size_bytes)
    buffer.lease = Lease(owner, size_bytes)
    return buffer


def lend_buffer(size_bytes: int, owner: Owner | None) -> memoryview:
    """Writable memory for a result that belongs to its caller: charged to nobody, kept like the others afterwards.

    What is in it is undefined. Without an owner it is memory of Python's own, and so are small ones.
    """
    if owner is None or size_bytes < MAPPED_BYTES_MIN:
        return memoryview(bytearray(size_bytes))
    whole_bytes = -(-size_bytes // LENT_STEP_BYTES) * LENT_STEP_BYTES
    return view_of(_mapped(whole_bytes, owner, charged_bytes=0))[:size_bytes]


def export_buffer(buffer: Buffer) -> ExportedBuffer:
    """The same memory to be viewed from outside; counted by the owner's ``exports`` until the last view is gone."""
    exported = _exported_type(len(buffer)).from_buffer(buffer)
    exported.hold = ExportHold(buffer.lease.owner.exports, len(buffer))
    return exported


def view_of(buffer: Buffer | ExportedBuffer) -> memoryview:
    """The bytes of a buffer, writable."""
    return memoryview(buffer).cast("B")


def _mapped(size_bytes: int, owner: Owner, *, charged_bytes: int) -> MappedBuffer:
    mapping = owner.find_idle(size_bytes)
    if mapping is None:
        mapping = _new_mapping(size_bytes)
    buffer = _mapped_type(size_bytes).from_buffer(mapping)
    buffer.lease = Lease(owner, charged_bytes, mapping)
    return buffer


def _new_mapping(size_bytes: int) -> mmap.mmap:
    try:
        mapping = mmap.mmap(-1, size_bytes, flags=_FLAGS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for a block of {size_bytes} bytes: {error}") from error
    if _HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # A kernel without them.
            mapping.madvise(_HUGE_PAGES)
    return mapping


@lru_cache(maxsize=64)
def _mapped_type(size_bytes: int) -> type[MappedBuffer]:
    return cast("type[MappedBuffer]", type("MappedBuffer", (MappedBuffer,), {"_length_": size_bytes}))


@lru_cache(maxsize=64)
def _exported_type(size_bytes: int) -> type[ExportedBuffer]:
    return cast("type[ExportedBuffer]", type("ExportedBuffer", (ExportedBuffer,), {"_length_": size_bytes}))
