"""The verbs of an Operator for code without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from aioprefetch.errors import Closed, InvalidArgument, ObjectChanged
from aioprefetch.operator.arguments import checked_path
from aioprefetch.operator.open_file import KeyedBuilder
from aioprefetch.operator.writer import BytesLike, WriteSource, is_asynchronous
from aioprefetch.ranges import checked_int, checked_range
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.sync.file import SyncFile
from aioprefetch.sync.file import open as open_file
from aioprefetch.sync.loop_thread import LoopThread, leak_in_child, loop_thread, process_lock, refuse_in_loop
from aioprefetch.values import Capability, Entry, Metadata, ServiceInfo

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from aioprefetch.operator.operator import Operator
    from aioprefetch.reader.reader import RangeReader

T = TypeVar("T")

READERS_MAX = 64
CLOSE_SECONDS_MAX = 10.0
# For one reader, or one listing.
PART_CLOSE_SECONDS_MAX = 5.0

# A page of S3 has 1000 entries. A batch ends after this time with the entries that it has, so that a sparse listing (a
# glob that matches few names) still shows its entries.
BATCH_ENTRIES_MAX = 1000
BATCH_SECONDS_MAX = 0.2


class BlockingOperator:
    """The synchronous twin of an Operator: the same verbs, from any thread but the loop's own.

    It pickles as its operator, and works after a fork: parent and child each have a loop thread. ``read_at`` keeps up
    to ``readers_max`` readers open, so that bytes read once are served on the caller's thread.

    Closing it closes the operator's readers and files on the loop thread.
    """

    def __init__(self, operator: Operator, *, readers_max: int = READERS_MAX) -> None:
        if checked_int(readers_max, "readers_max", operation="configure", path="") < 1:
            raise InvalidArgument(f"readers_max must be at least 1, not {readers_max}", operation="configure")
        self._operator = operator
        self._readers_max = readers_max
        self._closed = False
        self._start()

    def __repr__(self) -> str:
        return f"<BlockingOperator {self._operator!r}{' closed' if self._closed else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._operator, self._readers_max)

    def __enter__(self) -> Self:
        self._live("open")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def operator(self) -> Operator:
        """The operator that it stands for."""
        return self._operator

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def capability(self) -> Capability:
        """The operations that the store supports."""
        return self._operator.capability

    @property
    def info(self) -> ServiceInfo:
        """The identity of the store."""
        return self._operator.info

    @property
    def statistics(self) -> Any:
        """The counters of the operator in this process."""
        return self._operator.statistics

    def stat(self, path: str, **options: Any) -> Metadata:
        """The metadata of an object, or of a directory when ``path`` ends with ``/``."""
        return self._run("stat", path, lambda op: op.stat(path, **options))

    def exists(self, path: str) -> bool:
        """Whether there is an object or a directory at ``path``."""
        return self._run("exists", path, lambda op: op.exists(path))

    def read(self, path: str, **options: Any) -> bytes:
        """The bytes of an object; options as in ``Operator.read`` (``offset``, ``size``, ``suffix``, ...)."""
        return self._run("read", path, lambda op: op.read(path, **options))

    def view(self, path: str, **options: Any) -> memoryview:
        """Read like ``read``; returns a read-only ``memoryview`` without a copy."""
        return self._run("view", path, lambda op: op.view(path, **options))

    def read_into(self, path: str, offset: int, buffer: WriteableBuffer) -> int:
        """Fill a writable buffer from ``offset``; returns the number of bytes."""
        return self._run("read_into", path, lambda op: op.read_into(path, offset, buffer))

    def download(self, path: str, target: str | os.PathLike[str], **options: Any) -> Metadata:
        """Write an object into a local file, which appears whole or not at all; ``on_progress`` runs on the loop."""
        return self._run("download", path, lambda op: op.download(path, target, **options))

    def read_ranges(self, path: str, ranges: Iterable[Sequence[int]], **options: Any) -> list[bytes]:
        """The bytes of each ``(start, end)``; neighbours share requests."""
        return self._run("read_ranges", path, lambda op: op.read_ranges(path, ranges, **options))

    def view_ranges(self, path: str, ranges: Iterable[Sequence[int]], **options: Any) -> list[memoryview]:
        """Read like ``read_ranges``; returns read-only views."""
        return self._run("view_ranges", path, lambda op: op.view_ranges(path, ranges, **options))

    def read_at(self, path: str, offset: int, size: int | None) -> bytes:
        """``size`` bytes from ``offset`` (``None``: to the end), through a reader that is kept open.

        Each call returns bytes of one version. Resident bytes are served as they are, without a request: of the
        version that was first seen, unless this object wrote, copied over or deleted the path since. When a request
        shows that the object was overwritten, the read is done once more on the new version; ``ObjectChanged`` if it
        changes again meanwhile. To read one version throughout, use ``open``.
        """
        start, length = checked_range(offset, size, operation="read_at", path=path)
        readers = self._live("read_at", path)
        data = readers.peek(path, start, length)
        if data is not None:
            return data
        try:
            return readers.read_at(path, start, length)
        except ObjectChanged:
            readers.drop(path)
            return readers.read_at(path, start, length)

    def open(self, path: str, mode: str = "rb", **reader_options: Any) -> SyncFile:
        """A file object over ``path``; options as in ``Operator.reader``. No request is sent before the first read.

        ``Unsupported`` for any other ``mode`` than ``rb``.
        """
        self._live("open", path)
        return open_file(path, mode, operator=self._operator, **reader_options)

    def open_file(self, path: str) -> BlockingOpenFileBuilder:
        """A file by Hadoop's keys: ``open_file("k").opt(key, value).build()``. See ``BlockingOpenFileBuilder``."""
        self._live("open_file", path)
        return BlockingOpenFileBuilder(checked_path(path, "open_file"), self._operator, self.open)

    def list(self, prefix: str = "", **options: Any) -> BlockingListing:
        """Iterate over the entries whose path begins with ``prefix``; options as in ``Operator.list``."""
        self._live("list", prefix)
        return BlockingListing(self._operator.list(prefix, **options))

    def write(self, path: str, data: BytesLike | WriteSource, **options: Any) -> Metadata:
        """Write an object from bytes, a binary file or an iterable of bytes; it appears whole or not at all.

        Files and iterables are read on a worker thread, asynchronous ones on the loop thread of ``aioprefetch.sync``:
        ``WrongLoop`` for those where an event loop runs in the caller's thread, which they might wait for. Options as
        in ``Operator.write``.
        """
        if is_asynchronous(data):
            refuse_in_loop("write")
        return self._change("write", path, lambda op: op.write(path, data, **options))

    def copy(self, source: str, target: str) -> Metadata:
        """Copy an object within the store."""
        return self._change("copy", target, lambda op: op.copy(source, target))

    def delete(self, path: str) -> None:
        """Delete an object. A missing object is ignored."""
        self._change("delete", path, lambda op: op.delete(path))

    def delete_all(self, prefix: str) -> None:
        """Delete every object below the directory ``prefix``, which ends with ``/``, and the directory."""
        try:
            self._run("delete_all", prefix, lambda op: op.delete_all(prefix))
        finally:
            self._readers.drop_under(prefix)

    def create_dir(self, path: str) -> None:
        """Create a directory and its parents; ``path`` ends with ``/``."""
        self._run("create_dir", path, lambda op: op.create_dir(path))

    def presign(self, path: str, **options: Any) -> str:
        """A URL that lets its bearer read the object for ``expires_seconds``. It is a secret."""
        return self._run("presign", path, lambda op: op.presign(path, **options))

    def close(self) -> None:
        """Close the readers and the operator on the loop thread. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._generation == fork_generation():
            self._thread.finish(self._operator.aclose, timeout_seconds=CLOSE_SECONDS_MAX)

    def _start(self) -> None:
        self._thread = loop_thread()
        self._readers = OpenReaders(self._operator, self._readers_max)
        self._generation = fork_generation()

    def _live(self, operation: str, path: str = "") -> OpenReaders:
        """The open readers of this process, or ``Closed``."""
        if self._closed:
            raise Closed("the operator is closed", operation=operation, path=path)
        if self._generation != fork_generation():
            with process_lock():
                if self._generation != fork_generation():
                    leak_in_child(self._readers)  # the readers and their lock belong to the parent
                    self._start()
        return self._readers

    def _run(self, operation: str, path: str, call: Callable[[Operator], Coroutine[Any, Any, T]]) -> T:
        self._live(operation, path)
        return self._thread.run(call(self._operator))

    def _change(self, operation: str, path: str, call: Callable[[Operator], Coroutine[Any, Any, T]]) -> T:
        """Run a change of ``path`` that the next ``read_at`` sees: after a failure too, since it may have worked."""
        try:
            return self._run(operation, path, call)
        finally:
            self._readers.drop(path)


def _rebuild(operator: Operator, readers_max: int) -> BlockingOperator:
    return BlockingOperator(operator, readers_max=readers_max)


class OpenReader:
    """A reader, and how many threads wait for a read of it; closed when it is dropped and no thread waits."""

    __slots__ = ("dropped", "reader", "users")

    def __init__(self, reader: RangeReader) -> None:
        self.reader = reader
        self.users = 0
        self.dropped = False


class OpenReaders:
    """At most ``readers_max`` open readers by path, of one loop thread. Safe from any other thread."""

    def __init__(self, operator: Operator, readers_max: int) -> None:
        self._operator = operator
        self._readers_max = readers_max
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenReader] = OrderedDict()
        self._thread: LoopThread = loop_thread()

    def __len__(self) -> int:
        return len(self._open)

    def peek(self, path: str, offset: int, size: int | None) -> bytes | None:
        """The bytes if all of them are resident, on the caller's thread."""
        with self._lock:  # so that the reader is not closed meanwhile
            entry = self._open.get(path)
            if entry is None:
                return None
            self._open.move_to_end(path)
            return entry.reader._peek(offset, size)

    def read_at(self, path: str, offset: int, size: int | None) -> bytes:
        """Read through the path's reader, opened if there is none."""
        entry = self._take(path)
        try:
            return self._thread.run(entry.reader.read_at(offset, size))
        finally:
            self._give_back(entry)

    def drop(self, path: str) -> None:
        """Forget the path's reader: the next read sees the object as it is then."""
        with self._lock:
            entry = self._open.pop(path, None)
            idle = entry is not None and self._retire(entry)
        if idle and entry is not None:
            self._close(entry)

    def drop_under(self, directory: str) -> None:
        """``drop`` for every path that begins with ``directory``."""
        with self._lock:
            paths = [path for path in self._open if path.startswith(directory)]
        for path in paths:
            self.drop(path)

    def _take(self, path: str) -> OpenReader:
        with self._lock:
            entry = self._open.get(path)
            if entry is not None:
                entry.users += 1
                return entry
        opened = OpenReader(self._operator.reader(path))
        with self._lock:
            entry = self._open.setdefault(path, opened)  # another thread may have been faster
            entry.users += 1
            self._open.move_to_end(path)
            surplus = [opened] if entry is not opened else []
            while len(self._open) > self._readers_max:
                _, evicted = self._open.popitem(last=False)
                if self._retire(evicted):
                    surplus.append(evicted)
        for reader in surplus:
            self._close(reader)
        return entry

    def _give_back(self, entry: OpenReader) -> None:
        with self._lock:
            entry.users -= 1
            idle = entry.dropped and not entry.users
        if idle:
            self._close(entry)

    @staticmethod
    def _retire(entry: OpenReader) -> bool:
        """Mark as dropped; returns whether it is idle, so that the caller closes it."""
        entry.dropped = True
        return not entry.users

    def _close(self, entry: OpenReader) -> None:
        self._thread.finish(entry.reader.aclose, timeout_seconds=PART_CLOSE_SECONDS_MAX)


class AsyncListing(Protocol):
    """The listing of ``Operator.list``."""

    def __anext__(self) -> Awaitable[Entry]:
        """The next entry."""

    async def aclose(self) -> None:
        """End the listing."""


class BlockingListing:
    """The entries of a listing, one after the other. Leave it early with ``close`` or ``with``."""

    def __init__(self, listing: AsyncListing) -> None:
        self._listing = listing
        self._thread = loop_thread()
        self._ready: deque[Entry] = deque()
        self._ended = False
        self._error: Exception | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        if not self._ready and self._error is None and not self._ended:
            self._thread.run(self._fill())
        if self._ready:
            return self._ready.popleft()
        error, self._error = self._error, None
        raise error or StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._thread.finish(self._listing.aclose, timeout_seconds=0)

    def close(self) -> None:
        """End the iteration and drop the entries that are ready. May be called twice."""
        self._ready.clear()
        if not self._ended:
            self._ended = True
            self._thread.finish(self._listing.aclose, timeout_seconds=PART_CLOSE_SECONDS_MAX)

    async def _fill(self) -> None:
        """The next batch. Entries before an error are delivered before the error is raised."""
        loop = asyncio.get_running_loop()
        enough = loop.time() + BATCH_SECONDS_MAX
        while len(self._ready) < BATCH_ENTRIES_MAX:
            try:
                self._ready.append(await self._listing.__anext__())
            except StopAsyncIteration:
                self._ended = True
                return
            except Exception as error:
                self._error = error
                return
            if loop.time() >= enough:
                return


class BlockingOpenFileBuilder(KeyedBuilder):
    """Opens one object by Hadoop's keys, as a file; made by ``BlockingOperator.open_file(path)``."""

    def __init__(self, path: str, operator: Operator, open_file: Callable[..., SyncFile]) -> None:
        super().__init__(path, operator.reader, operator.options)
        self._open_file = open_file

    def build(self) -> SyncFile:
        """Check everything, and open; nothing is sent before the first read.

        Raises the errors of ``OpenFileBuilder.build`` and of awaiting its result: ``IsADirectory`` if the path ends
        with ``/``, ``NotFound`` when the status is a directory's. Each call opens another file.
        """
        _, options = self._resolve()
        return self._open_file(self._path, **options)
