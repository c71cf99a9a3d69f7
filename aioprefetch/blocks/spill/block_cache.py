"""The block files of one directory: written whole or not at all, checked when read, the least used ones removed.

Everything here blocks and belongs in a thread, except ``BlockCache.read_cached``; any number of threads and processes
may use one directory. No byte is ever wrong: a file that does not fit is a miss, and is removed. The key of a block
gives the name of its file and the identity in the file's header.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import stat
import threading
import time
from collections import deque
from collections.abc import Sequence

from aioprefetch.blocks.spill.directory import (
    FILE_MODE,
    Descriptor,
    GuardedDirectory,
    SystemCalls,
    drop_moved,
    is_abandoned,
    is_temporary,
    temporary_name,
)
from aioprefetch.blocks.spill.entry import (
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    MAGIC,
    PIECE_BYTES,
    SUFFIX,
    BadEntry,
    EntryHeader,
    LruIndex,
    aligned,
    checksums,
    decode_header,
    encode_header,
    header_length,
)
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import BlockGrid

# The end of the names in format version 1. Such files are removed unread.
OLD_SUFFIX = ".block"

_NO_TEXT = b"\xff\xff\xff\xff"
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class BlockKey:
    """The file of one block: its name, the identity in its header, the length of that, and the size of its data."""

    name: str
    identity: bytes
    header_bytes: int
    data_bytes: int

    @property
    def file_bytes(self) -> int:
        """The length of the file in bytes."""
        return self.header_bytes + self.data_bytes


class FileIdentity:
    """The common identity of the blocks of one version of an object on one grid. ``key`` adds the number of a block.

    ``namespace`` holds the store and the principal, ``tenant`` a separation that the user configures. The names of
    files are hashes and show none of it. A length stands before each part, so that different identities never have
    the same encoding.
    """

    __slots__ = ("_encoded", "_grid", "_hashed")

    def __init__(
        self,
        *,
        tenant: str,
        namespace: Sequence[str],
        path: str,
        version: str | None,
        etag: str | None,
        size: int,
        block_bytes: int,
    ) -> None:
        parts = [_text(tenant), len(namespace).to_bytes(4, "big"), *map(_text, namespace)]
        parts += [_text(path), _text(version), _text(etag), size.to_bytes(8, "big"), block_bytes.to_bytes(8, "big")]
        self._encoded = b"".join(parts)
        self._hashed = hashlib.sha256(MAGIC + FORMAT_VERSION.to_bytes(2, "big") + self._encoded)
        self._grid = BlockGrid(size, block_bytes)

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self._grid.size

    def name(self, index: int) -> str:
        """The name of the file of block ``index``."""
        hashed = self._hashed.copy()
        hashed.update(index.to_bytes(8, "big"))
        return hashed.hexdigest() + SUFFIX

    def key(self, index: int) -> BlockKey | None:
        """The key of block ``index``, ``None`` when its header would be too long for a file."""
        start, end = self._grid.bounds(index)
        identity, data_bytes = self._encoded + index.to_bytes(8, "big"), end - start
        header_bytes = header_length(identity, b"", data_bytes)
        if header_bytes > HEADER_BYTES_MAX:
            return None
        return BlockKey(self.name(index), identity, header_bytes, data_bytes)


def _text(text: str | None) -> bytes:
    if text is None:
        return _NO_TEXT
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(4, "big") + data


def is_block_name(name: str, suffix: str = SUFFIX) -> bool:
    """Whether a name is that of a block file."""
    return len(name) == 64 + len(suffix) and name.endswith(suffix) and _HEX.issuperset(name[:64])


def is_old_name(name: str) -> bool:
    """Whether a name is that of a block file of an earlier format version."""
    return is_block_name(name, OLD_SUFFIX)


# --- files in a directory ---------------------------------------------------------------------------------------------

# This share of a file system always stays free: a cache must not make other programs fail.
RESERVE_SHARE = 0.05
# Listing the directory for the changes of other processes may take this share of the time.
LOOK_SHARE = 0.05
# A listing that takes less time than this is always worth it.
LOOK_SECONDS_FREE = 0.02
# So is a listing after this share (1 / n) of the capacity was written: other processes may have written as much.
LOOK_WRITTEN_SHARE = 16
# A directory that changed less than this before its listing may change again without a later time of change.
RACY_NANOSECONDS = 50_000_000
_NAME_TRIES = 3
# The operating system takes 1024 parts at once; blocks have one or a few.
_PARTS_MAX = 64
# Bytes that are read and verified at once, while they are still in the caches of the processor.
READ_BYTES = 4 * PIECE_BYTES
# A read needs this much memory for the parts of its first and last piece that no read has asked for.
SCRATCH_BYTES = 2 * PIECE_BYTES


class OpenBlock:
    """A block file of the right size. It can still be read after it was removed. Raises ``BadEntry`` for another one.

    The header is read, and verified, with the first bytes.
    """

    __slots__ = ("_calls", "_descriptor", "_header", "_key")

    def __init__(self, descriptor: Descriptor, file_bytes: int, key: BlockKey, calls: SystemCalls) -> None:
        self._descriptor = descriptor
        self._key = key
        self._calls = calls
        self._header: EntryHeader | None = None
        if file_bytes != key.file_bytes:
            raise BadEntry(f"it has {file_bytes} bytes, not {key.file_bytes}")

    def read(self, start: int, target: memoryview, scratch: memoryview, *, seconds_max: float) -> int:
        """Fill ``target`` with the data from ``start`` on, verified; returns the number of bytes.

        It ends early after ``READ_BYTES`` at which ``seconds_max`` are over. ``scratch`` are ``SCRATCH_BYTES`` for the
        rest of the pieces. Raises ``BadEntry``; what is in ``target`` beyond the returned number of bytes may be wrong.
        """
        position, end = start, start + len(target)
        ends_at = self._calls.seconds() + seconds_max
        while position < end:
            low, high = aligned(position, end, self._key.data_bytes)
            high = min(high, low + READ_BYTES)
            stop = min(high, end)
            before, after = scratch[: position - low], scratch[PIECE_BYTES : PIECE_BYTES + high - stop]
            try:
                self._read_pieces(low, [before, target[position - start : stop - start], after])
            except (BadEntry, OSError):
                if position == start:
                    raise
                break  # What is verified is of use. The next call meets the failure.
            position = stop
            if self._calls.seconds() >= ends_at:
                break
        return position - start

    def read_cached(self, room: memoryview) -> memoryview | None:
        """All of the data, verified, in ``room``, if the kernel has the file in memory. Never waits."""
        key = self._key
        whole = room[: key.file_bytes]
        if self._calls.read_cached(self._descriptor.number, whole, 0) < len(whole):
            return None
        data = whole[key.header_bytes :]
        self._decode(whole[: key.header_bytes]).verify(0, data)
        return data

    def _read_pieces(self, low: int, parts: Sequence[memoryview]) -> None:
        data_at = self._key.header_bytes
        header = self._header
        if header is None:
            raw = bytearray(data_at)
            if low == 0:
                self._fill(0, [raw, *parts])
            else:
                self._fill(0, [raw])
                self._fill(data_at + low, parts)
            header = self._header = self._decode(raw)
        else:
            self._fill(data_at + low, parts)
        header.verify(low, *parts)

    def _fill(self, position: int, parts: Sequence[bytearray | memoryview]) -> None:
        left: Sequence[bytearray | memoryview] = [part for part in parts if part]
        while left:
            count = self._calls.read(self._descriptor.number, left, position)
            if count == 0:
                raise BadEntry(f"it ends at byte {position}")
            position += count
            left = drop_moved(left, count)

    def _decode(self, raw: bytearray | memoryview) -> EntryHeader:
        key = self._key
        header = decode_header(raw, identity=key.identity, file_bytes=key.file_bytes)
        if header.data_bytes != key.data_bytes:
            raise BadEntry(f"it has {header.data_bytes} bytes of data, not {key.data_bytes}")
        return header


class BlockCache:
    """The blocks in the directory below ``path``, of at most ``capacity_bytes`` bytes together.

    ``looked`` says whether the directory was listed; until then any block may be there. ``is_full`` says whether the
    last block that was put needed room of other blocks. Every method that blocks raises ``ConfigInvalid`` for a
    directory that others could change, and ``OSError`` for one that cannot be used.
    """

    def __init__(self, path: str, *, capacity_bytes: int, calls: SystemCalls) -> None:
        self.capacity_bytes = capacity_bytes
        self.evictions = 0
        self.looked = False
        self.is_full = False
        self._path = path
        self._calls = calls
        self._index: LruIndex[None] = LruIndex()
        self._lock = threading.Lock()  # The index.
        self._opening = threading.Lock()  # The directory.
        self._turn = threading.Lock()  # One thread writes or lists at a time.
        self._directory: GuardedDirectory | None = None
        self._closed = threading.Event()
        self._changed_at = -1
        self._look_again_at = 0.0
        self._unseen_bytes = 0  # The bytes written since the last listing.
        # The reads on the loop, by name and time, that the index and the times of the files do not know of yet.
        self._uses: deque[tuple[str, float]] = deque()
        self._untouched: dict[str, float] = {}

    # --- opening and closing ------------------------------------------------------------------------------------

    def _opened(self, *, check: bool) -> GuardedDirectory:
        """The directory, opened at its first use, and again if ``check`` finds that it was removed."""
        with self._opening:
            if self._closed.is_set():
                raise OSError(errno.EBADF, "the cache is closed")
            directory = self._directory
            if directory is None or (check and directory.is_gone):
                directory = self._directory = GuardedDirectory(self._path, self._calls)
                self._changed_at, self._look_again_at = -1, 0.0
                if self._closed.is_set():  # It was closed meanwhile.
                    self._directory = None
            return directory

    def close(self) -> None:
        """Close the directory, without waiting: calls in progress end as if it were still open."""
        self._closed.set()
        self._directory = None

    # --- listing ------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        """Whether a block of this name was seen. From any thread, without a system call."""
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
        measured = sorted(self._measured(directory, list(filter(is_block_name, new))))
        with self._lock:
            for used_at, name, size_bytes in measured:
                self._index.add(name, size_bytes, None, used_at=used_at)
        self.looked = True
        self._changed_at = changed_at if time.time_ns() - changed_at > RACY_NANOSECONDS else -1
        took = self._calls.seconds() - now
        self._look_again_at = now + (took / LOOK_SHARE if took > LOOK_SECONDS_FREE else 0.0)

    def _measured(self, directory: GuardedDirectory, names: Sequence[str]) -> list[tuple[float, str, int]]:
        """Time of last use, name and size of each file. A time in the future counts as never used."""
        measured: list[tuple[float, str, int]] = []
        soon = time.time() + 60.0  # Clocks of file servers differ a little.
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = directory.status_of(name)
                size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 0
                measured.append((status.st_mtime if status.st_mtime < soon else 0.0, name, size_bytes))
        return measured

    def _sweep(self, directory: GuardedDirectory, names: Sequence[str]) -> None:
        """Remove the files of earlier format versions, and the temporary files of processes that were killed."""
        now = time.time()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if is_old_name(name) or (
                    is_temporary(name)
                    and is_abandoned(name, directory.status_of(name), now=now, is_alive=self._calls.is_alive)
                ):
                    directory.remove(name)

    # --- reading ------------------------------------------------------------------------------------------------

    def find(self, key: BlockKey) -> OpenBlock | None:
        """The block, ``None`` when it is not there. After ``BadEntry`` or ``OSError`` remove it by ``drop``."""
        directory = self._opened(check=False)
        try:
            held, file_bytes = directory.open(key.name)
        except FileNotFoundError:
            with self._lock:
                self._index.discard(key.name)
            return None
        block = OpenBlock(held, file_bytes, key, self._calls)
        directory.learn(held)
        now = time.time()
        directory.touch(key.name, now)
        with self._lock:
            self._index.use(key.name, now)
        return block

    def read_cached(self, key: BlockKey, room: memoryview) -> memoryview | None:
        """The data of a block, verified, in ``room``, if the kernel has its file in memory. Never waits.

        ``None`` if not, and also for every failure, which ``find`` meets again. The use is noted; ``touch`` makes it
        known to other processes.
        """
        directory = self._directory
        if directory is None or not directory.answers:
            return None
        try:
            opened = directory.open_now(key.name)
            data = None if opened is None else OpenBlock(*opened, key, self._calls).read_cached(room)
        except BadEntry:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                directory.answers = False
            return None
        if data is not None:
            self._uses.append((key.name, time.time()))
        return data

    @property
    def has_uses(self) -> bool:
        """Whether there is something for ``touch`` to do. From any thread."""
        return bool(self._uses or self._untouched)

    def touch(self) -> None:
        """Set the times of the files that ``read_cached`` has read."""
        with self._lock:
            self._note_uses()
            untouched, self._untouched = self._untouched, {}
        directory = self._directory
        if directory is not None:
            for name, used_at in untouched.items():
                directory.touch(name, used_at)

    def _note_uses(self) -> None:
        """Put the reads on the loop into the index. With the lock of the index."""
        while self._uses:
            name, used_at = self._uses.popleft()
            self._index.use(name, used_at)
            self._untouched[name] = used_at

    def drop(self, name: str) -> None:
        """Remove a file that cannot be used."""
        with self._lock:
            self._index.discard(name)
        directory = self._directory
        if directory is not None:
            with contextlib.suppress(OSError):
                directory.remove(name)

    # --- writing ------------------------------------------------------------------------------------------------

    def put(self, key: BlockKey, data: Sequence[memoryview], *, goes_first: bool = False) -> bool:
        """Write a block and return whether there was room for it. A failure (``OSError``) leaves nothing behind.

        With ``goes_first`` it is the next to be evicted, unless it is read before.
        """
        with self._turn:
            directory = self._opened(check=True)
            self._look(directory)
            if key.name in self._index:
                return True
            if not self._make_room(directory, key):
                return False
            header = encode_header(key.identity, b"", key.data_bytes, checksums(data))
            self._write(directory, key, [header, *data])
            with self._lock:
                self._index.add(key.name, key.file_bytes, None, used_at=0.0 if goes_first else time.time())
            self._unseen_bytes += key.file_bytes
            with contextlib.suppress(OSError):  # The block is written; the next put reports a lasting failure.
                # Other processes may have used the same room meanwhile: the last one to list removes the excess.
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
            self._note_uses()
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
                    left = drop_moved(left, count)
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
