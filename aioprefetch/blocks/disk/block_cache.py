"""The block files of one directory: written whole or not at all, checked when read, the least used ones removed.

Everything here blocks and belongs in a thread; any number of threads and processes may use one directory. No response
is ever wrong: whatever does not fit is a miss, and its file is removed.
"""

from __future__ import annotations

import contextlib
import errno
import stat
import threading
import time
from collections.abc import Sequence
from zlib import crc32

from aioprefetch.blocks.disk.directory import FILE_MODE, Descriptor, GuardedDirectory
from aioprefetch.blocks.disk.format import BadBlockFile, BlockKey, decode_header, encode_header, is_block_name
from aioprefetch.blocks.disk.lru import LruIndex
from aioprefetch.blocks.disk.system_calls import SystemCalls, drop_written
from aioprefetch.blocks.disk.temporaries import is_abandoned, is_temporary, temporary_name

# So much of a file system stays free, whatever the capacity says: nothing else on it shall fail for a cache.
RESERVE_SHARE = 0.05
# Looking for what other processes did may take this share of the time.
LOOK_SHARE = 0.05
# A look that takes less than this is always worth it.
LOOK_SECONDS_FREE = 0.02
# And any after so much of the capacity was written: others may have written as much.
LOOK_WRITTEN_SHARE = 16
# A directory that changed so shortly before it was looked at may change again without showing a later time.
RACY_NANOSECONDS = 50_000_000
_NAME_TRIES = 3
# The operating system takes 1024 parts at once; blocks have one or a few.
_PARTS_MAX = 64


class OpenBlock:
    """A block file whose header was found good. It can be read on although the file is removed meanwhile."""

    __slots__ = ("_calls", "_held", "_key", "_sums")

    def __init__(self, held: Descriptor, key: BlockKey, calls: SystemCalls) -> None:
        self._held = held
        self._key = key
        self._calls = calls
        found = calls.status(held.number).st_size
        if found != key.file_bytes:
            raise BadBlockFile(f"it has {found} bytes where {key.file_bytes} are due")
        header = bytearray(key.header_bytes)
        self._read(0, memoryview(header))
        self._sums = decode_header(header, key)

    def piece(self, number: int, memory: bytearray) -> memoryview:
        """A piece of the data in ``memory``, verified. ``BadBlockFile`` when it is not what was written."""
        start, end = self._key.piece(number)
        data = memoryview(memory)[: end - start]
        self._read(self._key.header_bytes + start, data)
        if crc32(data) != self._sums[number]:
            raise BadBlockFile(f"the checksum of its bytes [{start}, {end}) is wrong")
        return data

    def _read(self, position: int, data: memoryview) -> None:
        filled = 0
        while filled < len(data):
            count = self._calls.read(self._held.number, data[filled:], position + filled)
            if count == 0:
                raise BadBlockFile(f"it ends at byte {position + filled}")
            filled += count


class BlockCache:
    """The blocks in the directory below ``path``, ``capacity_bytes`` of them at most.

    ``looked`` tells whether the names in it are known; until then any block may be there. ``is_full``: the last block
    that was put needed room that others had. Every method that blocks
    raises ``ConfigInvalid`` for a directory that others could change and ``OSError`` for one that cannot be had.
    """

    def __init__(self, path: str, *, capacity_bytes: int, calls: SystemCalls) -> None:
        self.capacity_bytes = capacity_bytes
        self.evictions = 0
        self.looked = False
        self.is_full = False
        self._path = path
        self._calls = calls
        self._index = LruIndex()
        self._lock = threading.Lock()  # The index.
        self._opening = threading.Lock()  # The directory.
        self._turn = threading.Lock()  # Who writes or looks.
        self._directory: GuardedDirectory | None = None
        self._closed = threading.Event()
        self._changed_at = -1
        self._look_again_at = 0.0
        self._unseen_bytes = 0  # Written since the last look.

    # --- opening and closing ------------------------------------------------------------------------------------

    def _opened(self, *, check: bool) -> GuardedDirectory:
        """The directory, opened at its first use, and again when somebody removed it and ``check`` finds out."""
        with self._opening:
            if self._closed.is_set():
                raise OSError(errno.EBADF, "the cache is closed")
            directory = self._directory
            if directory is None or (check and directory.is_gone):
                directory = self._directory = GuardedDirectory(self._path, self._calls)
                self._changed_at, self._look_again_at = -1, 0.0
                if self._closed.is_set():  # In the meantime.
                    self._directory = None
            return directory

    def close(self) -> None:
        """Let go of the directory. Does not wait: calls under way end as if nothing had happened."""
        self._closed.set()
        self._directory = None

    # --- what is there ------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        """Whether a block of this name is known of. From any thread, without a system call."""
        return name in self._index

    def __len__(self) -> int:
        return len(self._index)

    @property
    def total_bytes(self) -> int:
        """What the files that are known of take."""
        return self._index.total_bytes

    def look(self) -> None:
        """Find what other processes wrote and removed; at first also what is there from before."""
        with self._turn:
            self._look(self._opened(check=True))

    def _look(self, directory: GuardedDirectory) -> None:
        changed_at, now = directory.changed_at, time.monotonic()
        is_due = now >= self._look_again_at or self._unseen_bytes >= self.capacity_bytes // LOOK_WRITTEN_SHARE
        if changed_at == self._changed_at or not is_due:
            return
        self._unseen_bytes = 0
        names = directory.names()
        with self._lock:
            new, gone = self._index.differing(names)
            for name in gone:
                self._index.discard(name)
        if not self.looked:
            self._sweep(directory, names)
        found = sorted(self._measured(directory, list(filter(is_block_name, new))))
        with self._lock:
            for _, name, size_bytes in found:
                self._index.add(name, size_bytes)
        self.looked = True
        self._changed_at = changed_at if time.time_ns() - changed_at > RACY_NANOSECONDS else -1
        took = time.monotonic() - now
        self._look_again_at = now + (took / LOOK_SHARE if took > LOOK_SECONDS_FREE else 0.0)

    def _measured(self, directory: GuardedDirectory, names: Sequence[str]) -> list[tuple[float, str, int]]:
        """Time of last use, name and size of each; one whose time lies in the future counts as never used."""
        found: list[tuple[float, str, int]] = []
        soon = time.time() + 60.0  # Clocks of file servers differ a little.
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = directory.status_of(name)
                size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 0
                found.append((status.st_mtime if status.st_mtime < soon else 0.0, name, size_bytes))
        return found

    def _sweep(self, directory: GuardedDirectory, names: Sequence[str]) -> None:
        now = time.time()
        for name in filter(is_temporary, names):
            with contextlib.suppress(FileNotFoundError):
                if is_abandoned(name, directory.status_of(name), now=now, is_alive=self._calls.is_alive):
                    directory.remove(name)

    # --- reading ------------------------------------------------------------------------------------------------

    def find(self, key: BlockKey) -> OpenBlock | None:
        """The block, ``None`` when it is not there. ``BadBlockFile`` or ``OSError``: remove it by ``drop``."""
        directory = self._opened(check=False)
        try:
            held = directory.open(key.name)
        except FileNotFoundError:
            with self._lock:
                self._index.discard(key.name)
            return None
        block = OpenBlock(held, key, self._calls)
        with contextlib.suppress(OSError):  # On a read-only file system the order is that of this process alone.
            self._calls.touch(held.number)
        with self._lock:
            self._index.use(key.name)
        return block

    def drop(self, name: str) -> None:
        """Remove a file of which nothing good is to be expected."""
        with self._lock:
            self._index.discard(name)
        directory = self._directory
        if directory is not None:
            with contextlib.suppress(OSError):
                directory.remove(name)

    # --- writing ------------------------------------------------------------------------------------------------

    def put(self, key: BlockKey, data: Sequence[memoryview], *, goes_first: bool = False) -> bool:
        """Write a block; whether there was room for it. If it fails nothing is left behind. Raises ``OSError``.

        With ``goes_first`` it makes room for the next one, unless it is read before.
        """
        with self._turn:
            directory = self._opened(check=True)
            self._look(directory)
            if key.name in self._index:
                return True
            if not self._make_room(directory, key):
                return False
            self._write(directory, key, [encode_header(key, data), *data])
            with self._lock:
                self._index.add(key.name, key.file_bytes, goes_first=goes_first)
            self._unseen_bytes += key.file_bytes
            with contextlib.suppress(OSError):  # The block is there; what fails now fails again at the next.
                # Others may have written in the same room meanwhile: who looks last sees all, and removes what is over.
                self._look(directory)
                self._remove(directory, self._index.total_bytes - self.capacity_bytes)
            return True

    def _make_room(self, directory: GuardedDirectory, key: BlockKey) -> bool:
        """Remove the least used files until the block fits below the capacity and leaves the reserve free."""
        size_bytes = key.file_bytes
        if size_bytes > self.capacity_bytes:
            return False
        free_bytes, all_bytes = directory.space()
        over = self._index.total_bytes + size_bytes - self.capacity_bytes
        short = int(all_bytes * RESERVE_SHARE) + size_bytes - free_bytes
        self.is_full = max(over, short) > 0
        return self._remove(directory, max(over, short)) >= short

    def _remove(self, directory: GuardedDirectory, need_bytes: int) -> int:
        """Remove the least used files until enough bytes are freed, or none is left. Returns the bytes freed."""
        with self._lock:
            victims = {name: self._index.size(name) for name in self._index.victims(need_bytes)}
        for name in victims:
            directory.remove(name)
            with self._lock:
                self._index.discard(name)
            self.evictions += 1
        return sum(victims.values())

    def _write(self, directory: GuardedDirectory, key: BlockKey, parts: Sequence[bytes | memoryview]) -> None:
        calls = self._calls
        temporary, descriptor = self._create(directory)
        try:
            try:
                calls.change_mode(descriptor, FILE_MODE)
                left: Sequence[bytes | memoryview] = parts
                while left:
                    count = calls.write(descriptor, left[:_PARTS_MAX])
                    if count == 0:
                        raise OSError(errno.EIO, "nothing was written")
                    left = drop_written(left, count)
            finally:
                calls.close(descriptor)
            directory.rename(temporary, key.name)
        except BaseException:
            with contextlib.suppress(OSError):
                directory.remove(temporary)
            raise

    def _create(self, directory: GuardedDirectory) -> tuple[str, int]:
        tries = _NAME_TRIES
        while True:
            name, tries = temporary_name(), tries - 1
            try:
                return name, directory.create(name)
            except FileExistsError:
                if not tries:
                    raise
