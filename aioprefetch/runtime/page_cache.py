"""System calls that never wait for a disk: they answer from the memory of the kernel, or say that they cannot.

A hop to a thread and back costs some 100 µs of CPU, and the kernel copies 4 KiB out of its page cache in 2 µs. So what
is cached is read on the event loop, and a thread is asked only where the disk has to be waited for.

* Reads are ``preadv`` with ``RWF_NOWAIT``. File systems that do not know the flag say ``EOPNOTSUPP``: tmpfs, overlay,
  FUSE, NFS. Those are also the ones whose ``open`` and ``fstat`` may wait for a server, so a file is opened and looked
  at on the loop only where the flag is known.
* ``open_below`` is ``openat2`` with ``RESOLVE_CACHED`` (Linux 5.12): the path is resolved in the kernel's memory or not
  at all, below a directory, through no link and no other mount. Python has no function for it, hence ctypes.

Where one of the two is missing (macOS, older kernels, some sandboxes) everything goes to threads. Local files
(``services/fs``) and the files of the disk tier (``cache/files``) are read so.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Callable
from functools import lru_cache

_NUMBER = 437  # Of openat2, on all of these.
_MACHINES = ("x86_64", "aarch64", "riscv64", "ppc64le", "s390x")

_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE_CACHED = 0x20
_INSIDE = _RESOLVE_CACHED | _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_XDEV
_AT_FDCWD = -100

NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# Without the flag ``preadv`` would wait like any other read.
KNOWS_NOWAIT = NOWAIT != 0

# The number of names known as regular files, as of the last look.
_LOOKED_AT_MAX = 1024

_LOOK = getattr(os, "O_PATH", 0) | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class _How(ctypes.Structure):
    """``struct open_how``."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _OpenAt2:
    """``openat2(directory, path, how)``: a descriptor, or -1 for any failure."""

    def __init__(self) -> None:
        # It never waits, so it keeps the lock of the interpreter: to let go of it costs as much as the call.
        self._call = ctypes.PyDLL(None).syscall
        self._call.restype = ctypes.c_long
        self._call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
        self._size = ctypes.sizeof(_How)

    def __call__(self, directory: int, path: bytes, how: _How) -> int:
        return int(self._call(_NUMBER, directory, path, ctypes.addressof(how), self._size))


@lru_cache(maxsize=1)
def _openat2() -> _OpenAt2 | None:
    """The system call, ``None`` where it is missing, forbidden, or does not know ``RESOLVE_CACHED``."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or os.uname().machine not in _MACHINES:
        return None
    try:
        call = _OpenAt2()
    except (OSError, AttributeError):
        return None
    descriptor = call(_AT_FDCWD, b"/", _How(_LOOK | os.O_DIRECTORY, 0, _RESOLVE_CACHED))
    if descriptor < 0:
        return None
    os.close(descriptor)
    return call


_FILE_OF_OURS = _How(_READ | os.O_NOFOLLOW, 0, _INSIDE | _RESOLVE_NO_SYMLINKS)


def can_open() -> bool:
    """Whether ``open_below`` may ever succeed here."""
    return _openat2() is not None


def open_below(directory: int, name: str) -> int | None:
    """A descriptor of what has a name in a directory that no other user can enter, for reading.

    ``None`` if the name is not cached, is a link or cannot be opened. The caller looks at what it has opened, and finds
    out about a failure in a thread.
    """
    call = _openat2()
    descriptor = -1 if call is None else call(directory, os.fsencode(name), _FILE_OF_OURS)
    return None if descriptor < 0 else descriptor


def answers(descriptor: int, read: Callable[[int, memoryview, int], int]) -> bool:
    """Whether the file system of an open file can tell what is cached: ``read`` reads it so. An empty file says no."""
    try:
        return read(descriptor, memoryview(bytearray(1)), 0) > 0
    except BlockingIOError:
        return True
    except OSError:
        return False


class PageCache:
    """The calls of one root. Each fails rather than wait, so all may be made on an event loop.

    A test may override any of them to fail as a file system does.
    """

    def __init__(self, root: str, *, follow_symlinks: bool) -> None:
        links = 0 if follow_symlinks else _RESOLVE_NO_SYMLINKS
        last = 0 if follow_symlinks else os.O_NOFOLLOW
        self._root = os.fsencode(root)
        self._enter = _How(_LOOK | os.O_DIRECTORY, 0, _RESOLVE_CACHED)
        self._look = _How(_LOOK | last, 0, _INSIDE | links)
        self._read = _How(_READ | last, 0, _INSIDE | links)
        self._looked_at: set[bytes] = set()

    @property
    def can_open(self) -> bool:
        """Whether ``open`` may ever succeed."""
        return can_open()

    def open(self, path: str) -> int | None:
        """A descriptor of the regular file at ``path`` below the root, for reading.

        ``None`` for everything else: the path is not cached, names no regular file, leaves the root or its mount,
        or cannot be opened. The caller finds out in a thread.
        """
        call = _openat2()
        if call is None:
            return None
        name = os.fsencode(path)
        root = call(_AT_FDCWD, self._root, self._enter)
        if root < 0:
            return None
        try:
            is_regular = name in self._looked_at or self._is_regular(call, root, name)
            descriptor = call(root, name, self._read) if is_regular else -1
        finally:
            os.close(root)
        return None if descriptor < 0 else descriptor

    def _is_regular(self, call: _OpenAt2, root: int, name: bytes) -> bool:
        """Look at a file before it is opened for the first time, since opening some devices is an act of its own."""
        looked = call(root, name, self._look)
        if looked < 0:
            return False
        try:
            is_regular = stat.S_ISREG(os.fstat(looked).st_mode)
        finally:
            os.close(looked)
        if is_regular:
            if len(self._looked_at) >= _LOOKED_AT_MAX:
                self._looked_at.clear()
            self._looked_at.add(name)
        return is_regular

    def read(self, descriptor: int, buffer: memoryview, position: int) -> int:
        """Read what is cached from ``position`` on; returns the number of bytes, 0 at the end of the file.

        Raises ``BlockingIOError`` where nothing is, and ``OSError`` with ``EOPNOTSUPP`` where the file system cannot
        tell.
        """
        return os.preadv(descriptor, [buffer], position, NOWAIT)
