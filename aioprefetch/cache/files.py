"""The entries in one local directory: written whole or not at all, checked when read, evicted when least recently used.

Everything here blocks and belongs in a thread, except ``EntryFiles.read_cached``; any number of threads and processes
may use one directory. It never returns a wrong byte: an invalid file is a miss, and is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from aioprefetch.cache.directory import CLAIM, Descriptor, GuardedDirectory, SystemCalls
from aioprefetch.cache.entry import (
    PIECE_BYTES,
    BadEntry,
    EntryKey,
    EntryTail,
    aligned,
    checksums,
    decode_tail,
    encode_tail,
    is_entry_name,
    piece_bytes,
)
from aioprefetch.cache.index import Looks, LruIndex

# This share of a file system always stays free: a cache must not make other programs fail.
RESERVE_SHARE = 0.05
# A directory that changed less than this before its listing may change again without a later time of change.
RACY_NANOSECONDS = 50_000_000
# The operating system takes 1024 parts at once; blocks have one or a few.
_PARTS_MAX = 64
# Bytes that are read and verified at once, while they are still in the caches of the processor.
READ_BYTES = 4 * PIECE_BYTES
# No more entries are open at once between two reads of them.
OPEN_MAX = 64
# A read needs this much memory for the parts of its first and last piece that no read has asked for.
SCRATCH_BYTES = 2 * PIECE_BYTES


def drop_moved(parts: Iterable[bytes | bytearray | memoryview], count: int) -> list[memoryview]:
    """The rest of ``parts`` after ``count`` bytes of them were written or read."""
    left: list[memoryview] = []
    for part in parts:
        if count < len(part):
            left.append(memoryview(part)[count:])
        count = max(0, count - len(part))
    return left


class OpenEntry:
    """An entry file of the right size. It can still be read after it was removed. Raises ``BadEntry`` for another size.

    An unknown ``tail`` is read and verified with the first bytes.
    """

    __slots__ = ("_descriptor", "_key", "_read", "_seconds", "tail")

    def __init__(
        self, descriptor: Descriptor, file_bytes: int, key: EntryKey, calls: SystemCalls, *, is_cached: bool = False
    ) -> None:
        self._descriptor = descriptor
        self._key = key
        self._read: Callable[[int, Sequence[bytearray | memoryview], int], int]
        self._read = calls.read_cached if is_cached else calls.read
        self._seconds = calls.seconds
        self.tail: EntryTail | None = None
        if file_bytes != key.file_bytes:
            raise BadEntry(f"it has {file_bytes} bytes, not {key.file_bytes}")

    def read(self, start: int, target: memoryview, scratch: memoryview, *, seconds_max: float) -> int:
        """Fill ``target`` with the data from ``start`` on, verified; returns the number of bytes.

        It ends early after ``READ_BYTES`` at which ``seconds_max`` are over. ``scratch`` are ``SCRATCH_BYTES`` for the
        rest of the pieces. Raises ``BadEntry``; what is in ``target`` beyond the returned number of bytes may be wrong.
        """
        position, end = start, start + len(target)
        ends_at = self._seconds() + seconds_max
        while position < end:
            low, high = aligned(position, end, self._key.data_bytes)
            high = min(high, low + READ_BYTES)
            stop = min(high, end)
            before, after = scratch[: position - low], scratch[PIECE_BYTES : PIECE_BYTES + high - stop]
            try:
                self._read_pieces(low, high, [before, target[position - start : stop - start], after])
            except (BadEntry, OSError):
                if position == start:
                    raise
                break  # What is verified is of use. The next call meets the failure.
            position = stop
            if self._seconds() >= ends_at:
                break
        return position - start

    def _read_pieces(self, low: int, high: int, parts: Sequence[memoryview]) -> None:
        tail = self.tail
        if tail is None:
            raw = bytearray(self._key.file_bytes - self._key.data_bytes)
            if high == self._key.data_bytes:
                self._fill(low, [*parts, raw])
            else:
                self._fill(self._key.data_bytes, [raw])
                self._fill(low, parts)
            tail = decode_tail(raw, identity=self._key.identity, file_bytes=self._key.file_bytes)
            if tail.data_bytes != self._key.data_bytes:
                raise BadEntry(f"it has {tail.data_bytes} bytes of data, not {self._key.data_bytes}")
            self.tail = tail
        else:
            self._fill(low, parts)
        tail.verify(low, *parts)

    def _fill(self, position: int, parts: Sequence[bytearray | memoryview]) -> None:
        left: Sequence[bytearray | memoryview] = [part for part in parts if part]
        while left:
            count = self._read(self._descriptor.number, left, position)
            if count == 0:
                raise BadEntry(f"it ends at byte {position}")
            position += count
            left = drop_moved(left, count) if count < sum(map(len, left)) else ()


class EntryFiles:
    """The entries in the directory below ``path``, of at most ``capacity_bytes`` bytes together.

    ``looked`` says whether the directory was listed; until then any entry may be there. ``is_full`` says whether the
    last entry that was put needed room of others. Every method that blocks raises ``ConfigInvalid`` for a directory
    that others could change, and ``OSError`` for an unusable directory.
    """

    def __init__(self, path: str, *, capacity_bytes: int, calls: SystemCalls) -> None:
        self.capacity_bytes = capacity_bytes
        self.evictions = 0
        self.looked = False
        self.is_full = False
        self._path = path
        self._calls = calls
        # With the tails known so far: a verified tail is not read again.
        self._index: LruIndex[EntryTail | None] = LruIndex()
        self._lock = threading.Lock()  # The index.
        self._opening = threading.Lock()  # The directory.
        self._turn = threading.Lock()  # One thread writes or lists at a time.
        self._directory: GuardedDirectory | None = None
        self._closed = threading.Event()
        self._changed_at = -1
        self._looks = Looks(capacity_bytes)
        # When which entries were read on the loop, as far as index and times do not know it yet. Some are open still.
        self.uses: dict[str, tuple[float, EntryTail | None, OpenEntry | None]] = {}
        self._claims: dict[str, Descriptor] = {}

    # --- opening and closing ------------------------------------------------------------------------------------

    def _opened(self, *, check: bool) -> GuardedDirectory:
        """The directory, opened at its first use, and again if ``check`` finds that it was removed."""
        with self._opening:
            if self._closed.is_set():
                raise OSError(errno.EBADF, "the cache is closed")
            directory = self._directory
            if directory is None or (check and directory.is_gone):
                directory = self._directory = GuardedDirectory(self._path, self._calls)
                self._changed_at = -1
                self._looks.forget()
                if self._closed.is_set():  # It was closed meanwhile.
                    self._directory = None
            return directory

    def close(self) -> None:
        """Close the directory and give up all claims, without waiting: calls in progress end as if it were open."""
        self._closed.set()
        self._directory = None
        self._claims.clear()
        self.uses = {}

    # --- listing ------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        """Whether an entry of this name was seen. From any thread, without a system call."""
        return name in self._index

    def __len__(self) -> int:
        return len(self._index)

    @property
    def total_bytes(self) -> int:
        """The bytes of all known files."""
        return self._index.total_bytes

    def look(self) -> None:
        """List the directory for the changes of other processes; the first time, for all that is in it."""
        with self._turn:
            self._look(self._opened(check=True))

    def _look(self, directory: GuardedDirectory) -> None:
        changed_at, now = directory.changed_at, self._calls.seconds()
        looks = self._looks
        if changed_at == self._changed_at or not (looks.is_cheap(now) or looks.has_written_much):
            return
        looks.began()
        names = directory.names()
        with self._lock:
            new, gone = self._index.differing(names)
            for name in gone:
                self._index.discard(name)
        if not self.looked:
            claimed = [name.removesuffix(CLAIM) for name in names if name.endswith(CLAIM)]
            self.release(name for name in claimed if name not in self._claims and self._hold(directory, name))
        measured = sorted(self._measured(directory, list(filter(is_entry_name, new))))
        with self._lock:
            for used_at, name, size_bytes in measured:
                self._index.add(name, size_bytes, None, used_at=used_at)
        self.looked = True
        self._changed_at = changed_at if time.time_ns() - changed_at > RACY_NANOSECONDS else -1
        looks.ended(now, self._calls.seconds())

    def _measured(self, directory: GuardedDirectory, names: Sequence[str]) -> list[tuple[float, str, int]]:
        """Time of last use, name and size of each file. A time in the future counts as never used."""
        measured: list[tuple[float, str, int]] = []
        soon = time.time() + 60.0  # Clocks of file servers differ a little.
        for name in names:
            status = directory.status_of(name)
            if status is not None:
                size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 0
                measured.append((status.st_mtime if status.st_mtime < soon else 0.0, name, size_bytes))
        return measured

    # --- reading ------------------------------------------------------------------------------------------------

    def find(self, key: EntryKey) -> OpenEntry | None:
        """The entry, ``None`` when it is not there. After ``BadEntry`` or ``OSError`` remove it by ``drop``."""
        directory = self._opened(check=False)
        try:
            held, file_bytes = directory.open(key.name)
        except FileNotFoundError:
            with self._lock:
                self._index.discard(key.name)
            return None
        entry = OpenEntry(held, file_bytes, key, self._calls)
        directory.learn(held)
        now = time.time()
        directory.touch(key.name, now)
        with self._lock:
            self._index.use(key.name, now)
        return entry

    def read_cached(self, key: EntryKey, start: int, target: memoryview, scratch: memoryview) -> bool:
        """``find`` and ``OpenEntry.read`` where the kernel has the file in memory. Never waits.

        ``False`` if not, and also for every failure, which ``find`` meets again. The use is noted; ``touch`` makes it
        known to other processes, and closes what stays open until then.
        """
        directory = self._directory
        if directory is None or not directory.answers:
            return False
        used = self.uses.pop(key.name, None)
        entry = kept = None if used is None else used[2]
        try:
            if entry is None:
                if (opened := directory.open_now(key.name)) is None:
                    return False
                entry = OpenEntry(*opened, key, self._calls, is_cached=True)
                entry.tail = self._index.get(key.name)
            if entry.read(start, target, scratch, seconds_max=1.0) < len(target):
                return False
        except BadEntry:
            return False
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                directory.answers = False
            return False
        self.uses[key.name] = time.time(), entry.tail, entry if kept or len(self.uses) < OPEN_MAX else None
        return True

    def touch(self) -> None:
        """Bring the reads on the loop into the index, and into the times of the files."""
        uses, self.uses = self.uses, {}
        used = list(uses.items())  # At once: the loop may be adding one.
        with self._lock:
            for name, (used_at, tail, _) in used:
                self._index.use(name, used_at, tail)
        directory = self._directory
        if directory is not None:
            for name, (used_at, _, _) in used:
                directory.touch(name, used_at)

    def drop(self, name: str) -> None:
        """Remove a file that cannot be used."""
        with self._lock:
            self._index.discard(name)
        directory = self._directory
        if directory is not None:
            with contextlib.suppress(OSError):
                directory.remove(name)

    # --- claims -------------------------------------------------------------------------------------------------

    def claim(self, names: Sequence[str]) -> dict[str, bool]:
        """Claim entries that are to be made, in order; whether each is there already (``True``) or was claimed.

        It ends with the first that is there, or before the first that another process makes now. A claim is given up by
        ``release``, or by the death of the process.
        """
        directory = self._opened(check=True)
        found: dict[str, bool] = {}
        for name in names:
            is_ours = self._hold(directory, name)
            status = directory.status_of(name)  # After the claim: its last holder may just have made the entry.
            if status is not None:
                self.release([name])
                with self._lock:
                    if name not in self._index:
                        self._index.add(name, status.st_size, None, used_at=time.time())
            if status is not None or is_ours:
                found[name] = status is not None
            if status is not None or not is_ours:
                break
        return found

    def _hold(self, directory: GuardedDirectory, name: str) -> bool:
        """Whether the claim of an entry is held now."""
        if name not in self._claims and (claim := directory.claim(name)) is not None:
            self._claims[name] = claim
        return name in self._claims

    def is_coming(self, name: str) -> bool:
        """Whether an entry is there, or a process has claimed it."""
        directory = self._opened(check=False)
        return any(directory.status_of(one) is not None for one in (name, name + CLAIM))

    def release(self, names: Iterable[str]) -> None:
        """Give up the claims of these names; names without a claim are ignored."""
        directory = self._directory
        for name in names:
            claim = self._claims.pop(name, None)
            if claim is not None and directory is not None:
                with contextlib.suppress(OSError):
                    directory.remove(name + CLAIM)  # Before the lock ends.

    # --- writing ------------------------------------------------------------------------------------------------

    def put(
        self, key: EntryKey, data: Sequence[memoryview], *, goes_first: bool = False, replaces: bool = False
    ) -> bool:
        """Write an entry and return whether there was room for it. A failure (``OSError``) leaves nothing behind.

        Its claim ends, however this does. With ``goes_first`` it is the next to be evicted, unless it is read before.
        An existing entry stays as it is, unless the new one ``replaces`` it.
        """
        sums = checksums(data, piece_bytes(key.data_bytes))
        try:
            with self._turn:
                directory = self._opened(check=True)
                self._look(directory)
                if (key.name in self._index and not replaces) or not self._hold(directory, key.name):
                    return True  # It is there, or another process makes it.
                if not self._make_room(directory, key):
                    return False
                self._write(directory, key, [*data, encode_tail(key.identity, b"", key.data_bytes, sums)])
                with self._lock:
                    self._index.add(key.name, key.file_bytes, None, used_at=0.0 if goes_first else time.time())
                self._looks.wrote(key.file_bytes)
                with contextlib.suppress(OSError):  # The entry is written; the next put reports a lasting failure.
                    # Other processes may have used the same room meanwhile: the last one to list removes the excess.
                    self._look(directory)
                    self._remove(directory, self._index.total_bytes - self.capacity_bytes)
                return True
        finally:
            self.release([key.name])

    def _make_room(self, directory: GuardedDirectory, key: EntryKey) -> bool:
        """Remove the least used files until the entry fits below the capacity and leaves the reserve free."""
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
        if need_bytes > 0:
            self.touch()
        with self._lock:
            victims = {name: self._index.size(name) for name in self._index.victims(need_bytes)}
        for name in victims:
            directory.remove(name)
            with self._lock:
                self._index.discard(name)
            self.evictions += 1
        return sum(victims.values())

    def _write(self, directory: GuardedDirectory, key: EntryKey, parts: Sequence[bytes | memoryview]) -> None:
        calls, claim = self._calls, self._claims.get(key.name)
        if claim is None:
            raise OSError(errno.EBADF, "the cache is closed")
        number = claim.number
        calls.truncate(number, 0)  # A process that was killed may have left a part of it.
        left: Sequence[bytes | memoryview] = parts
        while left:
            count = calls.write(number, left[:_PARTS_MAX])
            if count == 0:
                raise OSError(errno.EIO, "nothing was written")
            left = drop_moved(left, count)
        calls.close(os.dup(number))  # It reports what a file server has not taken. The lock stays.
        directory.fulfil(key.name)
        self._claims.pop(key.name, None)  # The lock ends with the descriptor.
