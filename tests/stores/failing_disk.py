"""System calls that fail, hang or are counted as a test wants, and the blocks that these tests put on the disk."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aioprefetch.blocks.disk_tier import BlockIdentity
from aioprefetch.cache.directory import SystemCalls
from aioprefetch.cache.entry import PIECE_BYTES, BadEntry, EntryKey
from aioprefetch.cache.files import SCRATCH_BYTES, EntryFiles, OpenEntry
from aioprefetch.reader.reader import RangeReader
from aioprefetch.testing.oracle import pattern

OPERATIONS = (
    *("open", "close", "make_directory", "change_mode", "status", "status_of", "names", "write", "read", "touch"),
    *(
        "rename",
        "remove",
        "remove_directory",
        "space",
        "lock",
        "truncate",
        "open_cached",
        "read_cached",
        "answers_from_memory",
    ),
)


class StillCalls(SystemCalls):
    """The system's calls with a clock that stands still: no listing ever takes long, so none is put off.

    ``is_warm``: the kernel has every file in memory, on every file system. Otherwise all is left to threads.
    """

    is_warm = False

    def seconds(self) -> float:
        return 0.0

    def open_cached(self, directory: int, name: str) -> int | None:
        try:
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        except OSError:
            return None

    def read_cached(self, descriptor: int, parts: Sequence[bytearray | memoryview], position: int) -> int:
        return os.preadv(descriptor, parts, position)

    def answers_from_memory(self, descriptor: int) -> bool:
        return self.is_warm


class FailingCalls(StillCalls):
    """Calls ``before`` at each call, which may raise. A call to close closes in any case."""

    def __init__(self, before: Callable[[str], None] | None = None) -> None:
        self.made: list[str] = []
        self.before = before
        self._lock = threading.Lock()

    def note(self, operation: str) -> None:
        with self._lock:
            self.made.append(operation)
        if self.before is not None:
            self.before(operation)


def _failing(operation: str) -> Callable[..., Any]:
    def call(self: FailingCalls, *arguments: Any, **keywords: Any) -> Any:
        real = getattr(super(FailingCalls, self), operation)
        if operation == "close":
            real(*arguments, **keywords)
            return self.note(operation)
        self.note(operation)
        return real(*arguments, **keywords)

    return call


for _operation in OPERATIONS:
    setattr(FailingCalls, _operation, _failing(_operation))


class WarmCalls(FailingCalls):
    """The kernel has every file in memory, on any file system. ``counts`` has an entry for each read of it, at most."""

    is_warm = True

    def __init__(self, before: Callable[[str], None] | None = None) -> None:
        super().__init__(before)
        self.counts: list[int] = []

    def read_cached(self, descriptor: int, parts: Sequence[bytearray | memoryview], position: int) -> int:
        count = super().read_cached(descriptor, parts, position)
        return min(count, self.counts.pop(0)) if self.counts else count


def failing(operation: str, number: int) -> Callable[[str], None]:
    """Every call of one operation fails with an errno."""

    def before(made: str) -> None:
        if made == operation:
            raise OSError(number, os.strerror(number))

    return before


class Halted:
    """Calls of one operation wait until they are let go."""

    def __init__(self, operation: str) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._operation = operation

    def __call__(self, operation: str) -> None:
        if operation == self._operation:
            self.reached.set()
            self.go_on.wait(20)


class EveryNth:
    """Every n-th call fails, whatever it is."""

    def __init__(self, n: int, number: int = errno.EIO) -> None:
        self.count = 0
        self._n = n
        self._number = number
        self._lock = threading.Lock()

    def __call__(self, operation: str) -> None:
        with self._lock:
            self.count += 1
            fails = self.count % self._n == 0
        if fails:
            raise OSError(self._number, os.strerror(self._number))


def identity(**other: Any) -> BlockIdentity:
    """The object that the tests write: 1000 bytes in blocks of 100, unless another is given."""
    given: dict[str, Any] = {
        "tenant": "",
        "namespace": ("s3", "https://endpoint", "region", "bucket", "root", "principal"),
        "path": "key",
        "version": None,
        "etag": "etag",
        "size": 1000,
        "block_bytes": 100,
    }
    given |= other
    return BlockIdentity(name=(given.pop("namespace"), given.pop("path")), **given)


def key_of(index: int = 0, **other: Any) -> EntryKey:
    """A block of that object."""
    key = identity(**other).key(index)
    assert key is not None
    return key


def data_of(key: EntryKey) -> bytes:
    """The bytes of a block: those that its name calls for."""
    start = int(key.name[:6], 16)
    return pattern(start, start + key.data_bytes)


def cache_in(path: Path, *, capacity_bytes: int = 1 << 20, calls: SystemCalls | None = None) -> EntryFiles:
    """A cache with its files below a path."""
    return EntryFiles(str(path), capacity_bytes=capacity_bytes, calls=calls or StillCalls())


def put(cache: EntryFiles, key: EntryKey) -> bool:
    """Write a block."""
    return cache.put(key, [memoryview(data_of(key))])


def read(cache: EntryFiles, key: EntryKey) -> bytes | None:
    """A whole block, ``None`` when it is not there; ``BadEntry`` when it is not what was written."""
    found = cache.find(key)
    if found is None:
        return None
    pieces = range(0, key.data_bytes, PIECE_BYTES)
    return b"".join(piece_of(found, key, start // PIECE_BYTES) for start in pieces)


def piece_of(block: OpenEntry, key: EntryKey, number: int) -> bytes:
    """A piece of a block."""
    start = number * PIECE_BYTES
    data = bytearray(min(PIECE_BYTES, key.data_bytes - start))
    count = block.read(start, memoryview(data), memoryview(bytearray(SCRATCH_BYTES)), seconds_max=60.0)
    assert count == len(data)
    return bytes(data)


def is_bad(cache: EntryFiles, key: EntryKey) -> bool:
    """Whether the file of a block is refused."""
    try:
        return read(cache, key) is None
    except BadEntry:
        return True


def private(path: Path) -> Path:
    """The directory in which the files lie."""
    return path / f"aioprefetch-blocks-{os.geteuid()}"


def files_in(path: Path) -> list[str]:
    """The names of all files below a path."""
    return sorted(one.name for one in path.rglob("*") if not one.is_dir())


def file_of(path: Path, key: EntryKey) -> Path:
    """Where a block lies."""
    return private(path) / key.name


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until something holds. Threads take part, so it turns in real time."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - threads set no asyncio.Event
            await asyncio.sleep(0)


async def read_until_on_disk(reader: RangeReader, data: bytes, path: Path, count: int) -> None:
    """Read a whole object again and again until ``count`` files are there: on a busy machine writing gives way."""
    async with asyncio.timeout(20):
        while len(files_in(path)) < count:
            assert await reader.read_at(0, len(data)) == data
