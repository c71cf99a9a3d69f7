"""Memory for the bytes of objects, and the idle memory that is kept for the next buffers.

Fresh memory from the kernel costs more than receiving bytes into it: each page is a fault and is zeroed, and in a
virtual machine the host may have to allocate it too. So a mapping whose last view is gone stays with the budget for a
while, **idle**, and the next buffer of the same size gets it unchanged.

A buffer is released by its destructor, never by a call. It is a ctypes array over a mapping: every slice of a view
keeps the array alive, and the mapping becomes free when the array dies, never before. A buffer still holds its earlier
bytes, so its users must hand out only the parts that they have received into.
"""

from __future__ import annotations

import io
import mmap
import sys
import threading
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from ctypes import Array, c_ubyte

T = TypeVar("T")

# Buffers of at least this size are mapped from the kernel, and kept for the next buffer of their size. Smaller ones
# come from Python's allocator, which has a cache of its own. Large pages are not asked for: docs/decisions/0016.
MAPPED_BYTES_MIN = 2 << 20

# The maximum of idle memory that no reservation waits for: this share of the limit, and no more than some blocks.
IDLE_SHARE = 4
IDLE_BYTES_MAX = 64 << 20

# Lent memory comes in multiples of this size, so that results of similar sizes share mappings.
LENT_STEP_BYTES = 2 << 20

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class ResultStream(io.BytesIO):
    """A stream around the memory of a result, which a failed read may leave behind with views of it.

    Its finalizer does nothing. Since Python 3.13 ``io``'s own writes an error to standard error if the garbage
    collector finds a stream with views.
    """

    __slots__ = ()

    def __del__(self) -> None:
        pass


def _popped(items: list[T], index: int) -> tuple[T, int]:
    """An item that is taken out of a list, and its reference count."""
    item = items.pop(index)
    return item, sys.getrefcount(item)


# The count of an item that nothing else refers to: 2, and 1 from Python 3.14 on, where a call borrows its arguments.
ALONE = _popped([object()], 0)[1]


class IdleMemory:
    """Unused mappings, the most recently used at the end. Belongs to one thread; its owner bounds it.

    ``limit_bytes`` is the maximum that may stay idle, where the owner may use ``of_bytes``.
    """

    def __init__(self, of_bytes: int) -> None:
        self.limit_bytes = min(of_bytes // IDLE_SHARE, IDLE_BYTES_MAX)
        self.size_bytes = 0
        self._mappings: list[mmap.mmap] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._mappings)

    def take(self, size_bytes: int) -> mmap.mmap | None:
        """The most recently used mapping of exactly that size, or ``None``."""
        for index in range(len(self._mappings) - 1, -1, -1):
            if len(self._mappings[index]) == size_bytes:
                mapping, references = _popped(self._mappings, index)
                self.size_bytes -= size_bytes
                if references <= ALONE:
                    return mapping
                # A finalizer has revived a view, or runs in another thread: the view keeps the memory.
        return None

    def add(self, mapping: mmap.mmap) -> None:
        """Keep a mapping, unless closed."""
        if not self._closed:
            self._mappings.append(mapping)
            self.size_bytes += len(mapping)

    def shrink(self, bytes_max: int) -> None:
        """Keep at most ``bytes_max``; the least recently used mappings go back to the kernel."""
        while self.size_bytes > bytes_max and self._mappings:
            self.size_bytes -= len(self._mappings.pop(0))

    def close(self) -> None:
        """Return all mappings to the kernel, and keep no later ones."""
        self._closed = True
        self.shrink(0)


class Exports:
    """The number of buffer bytes that views handed out still hold. May be called from any thread."""

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
        """Count a buffer of that size as viewed."""
        with self._lock:
            self._size_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count a buffer no longer as viewed. Takes no lock, because destructors may run anywhere."""
        self._returned.append(size_bytes)


class Owner(Protocol):
    """The owner of buffers, which counts their memory and keeps idle mappings: the budget of a runtime."""

    @property
    def exports(self) -> Exports:
        """The buffers that views outside keep alive."""

    def find_idle(self, size_bytes: int) -> mmap.mmap | None:
        """Take an idle mapping of that size."""

    def release(self, size_bytes: int, mapping: mmap.mmap | None = None) -> None:
        """Take back ``size_bytes`` that were charged for a buffer, and its mapping; from any thread."""


class Lease:
    """The charge of a buffer, returned to its owner when the last view is gone; or of bytes kept somewhere else."""

    __slots__ = ("charged_bytes", "mapping", "owner")

    def __init__(self, owner: Owner, charged_bytes: int, mapping: mmap.mmap | None = None) -> None:
        self.owner = owner
        self.charged_bytes = charged_bytes
        self.mapping = mapping

    def shrink(self, size_bytes: int) -> None:
        """Return what is charged beyond ``size_bytes``, because the bytes turned out to be fewer."""
        surplus_bytes = self.charged_bytes - size_bytes
        if surplus_bytes > 0:
            self.charged_bytes = size_bytes
            self.owner.release(surplus_bytes)

    def __del__(self) -> None:
        self.owner.release(self.charged_bytes, self.mapping)


class SmallBuffer(bytearray):
    """Memory of Python's own allocator, and its own lease: there are many."""

    __slots__ = ("charged_bytes", "owner")

    owner: Owner
    charged_bytes: int

    @property
    def lease(self) -> SmallBuffer:
        """The charge of the buffer."""
        return self

    def __del__(self) -> None:
        owner = getattr(self, "owner", None)  # There was no memory for it otherwise.
        if owner is not None:
            owner.release(self.charged_bytes)


if TYPE_CHECKING:

    class MappedBuffer(Array[c_ubyte]):
        """Memory of the kernel: an array over a mapping. There is a type for each length, made by ``new_buffer``."""

        lease: Lease

    class ExportedBuffer(Array[c_ubyte]):
        """The memory of a buffer, for views outside, which keep it and so the buffer. A type for each length."""

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


Buffer: TypeAlias = "SmallBuffer | MappedBuffer"


def new_buffer(size_bytes: int, owner: Owner) -> Buffer:
    """Memory of ``size_bytes`` that are charged to its owner already, and released when the last view is gone.

    Its content is undefined. Raises ``MemoryError`` without memory; then nothing is released.
    """
    if size_bytes >= MAPPED_BYTES_MIN:
        return _mapped(size_bytes, owner, charged_bytes=size_bytes)
    buffer = SmallBuffer(size_bytes)
    buffer.owner = owner
    buffer.charged_bytes = size_bytes
    return buffer


def lend_buffer(size_bytes: int, owner: Owner | None) -> memoryview:
    """Writable memory for a result that belongs to the caller: not charged, but kept as idle memory afterwards.

    Its content is undefined. Without an owner, and for small results, it comes from Python's allocator.
    """
    if owner is None or size_bytes < MAPPED_BYTES_MIN:
        return memoryview(bytearray(size_bytes))
    whole_bytes = -(-size_bytes // LENT_STEP_BYTES) * LENT_STEP_BYTES
    return view_of(_mapped(whole_bytes, owner, charged_bytes=0))[:size_bytes]


def export_buffer(buffer: Buffer) -> ExportedBuffer:
    """The memory of a buffer for views from outside. The owner's ``exports`` counts it until the last view is gone."""
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
        return mmap.mmap(-1, size_bytes, flags=_FLAGS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for a block of {size_bytes} bytes: {error}") from error


@lru_cache(maxsize=64)
def _mapped_type(size_bytes: int) -> type[MappedBuffer]:
    return cast("type[MappedBuffer]", _array_type("MappedBuffer", size_bytes))


@lru_cache(maxsize=64)
def _exported_type(size_bytes: int) -> type[ExportedBuffer]:
    return cast("type[ExportedBuffer]", _array_type("ExportedBuffer", size_bytes))


def _array_type(name: str, size_bytes: int) -> Any:
    import ctypes  # Takes milliseconds to load, which a process that reads little need not pay.

    return type(name, (ctypes.Array,), {"_type_": ctypes.c_ubyte, "_length_": size_bytes})
