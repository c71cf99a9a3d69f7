"""The verbs of an Operator for code without an event loop."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import IO, TYPE_CHECKING, Any, Literal, Never, Self, TextIO, TypeVar, Unpack, overload

from aioprefetch.errors import Closed, InvalidArgument, ObjectChanged
from aioprefetch.operator.open_file import KeyedBuilder
from aioprefetch.operator.shared import checked_operator, clone_with_hold
from aioprefetch.ranges import checked_int, checked_range
from aioprefetch.runtime.closing import Closing
from aioprefetch.runtime.events import EventBus
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.runtime.statistics import StatisticsSnapshot
from aioprefetch.sync.file import SyncFile
from aioprefetch.sync.iteration import BlockingListing
from aioprefetch.sync.loop_thread import LoopThread, leak_in_child, loop_thread, process_lock, refuse_in_loop
from aioprefetch.sync.opening import open_object
from aioprefetch.values import Capability, Metadata, ServiceInfo
from aioprefetch.verbs.arguments import checked_path
from aioprefetch.verbs.requests import WriteOptions

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from aioprefetch.operator.operator import Operator
    from aioprefetch.operator.options import AnyFileOptions, CopyOptions, OpenOptions, RangesOptions, UploadOptions
    from aioprefetch.reader.options import ProgressCallback
    from aioprefetch.reader.reader import RangeReader
    from aioprefetch.sync.codecs import Compression, TextWriteFile
    from aioprefetch.sync.write_file import SyncWriteFile
    from aioprefetch.verbs.requests import LocalPath, MoveOptions, ObjectName, PresignOptions, ReadOptions, StatOptions
    from aioprefetch.verbs.upload import BytesLike, WriteSource

T = TypeVar("T")

READERS_MAX = 64
CLOSE_SECONDS_MAX = 10.0
# For one reader.
PART_CLOSE_SECONDS_MAX = 5.0


class BlockingOperator(Closing):
    """The synchronous twin of an Operator: the same verbs, from any thread but the loop's own.

    It pickles as its operator, and works after a fork: parent and child each have a loop thread. ``read_at`` keeps up
    to ``readers_max`` readers open, so that bytes read once are served on the caller's thread.

    Closing it ends its own use of the operator on the loop thread; connections, readers and files there end with the
    last user, so that other threads may have a ``BlockingOperator`` of the same operator.
    """

    def __init__(self, operator: Operator, *, readers_max: int = READERS_MAX) -> None:
        if checked_int(readers_max, "readers_max", operation="configure", path="") < 1:
            raise InvalidArgument(f"readers_max must be at least 1, not {readers_max}", operation="configure")
        self._given = checked_operator(operator, "configure")
        self._operator = clone_with_hold(operator)
        self._readers_max = readers_max
        self._closed = False
        self._start()

    def __repr__(self) -> str:
        return f"<BlockingOperator {self._operator!r}{' closed' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        return self._operator._repr_html_()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._given, self._readers_max)

    def __truediv__(self, key: str) -> Any:
        """The ``ap.sync.Path`` of a key, whose module imports this one."""
        import importlib

        return importlib.import_module("aioprefetch.sync.path").Path.of(self, key)

    def __enter__(self) -> Self:
        self._live("open")
        return self

    @property
    def operator(self) -> Operator:
        """The operator that it stands for."""
        return self._given

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
    def events(self) -> EventBus:
        """The events of the operator in this process; a read out of memory calls listeners on the caller's thread."""
        return self._operator.events

    @property
    def statistics(self) -> StatisticsSnapshot:
        """The counters of the operator in this process."""
        return self._operator.statistics

    def stat(self, path: str, **options: Unpack[StatOptions]) -> Metadata:
        """The metadata of an object, or of a directory when ``path`` ends with ``/``."""
        return self._run("stat", path, lambda op: op.stat(path, **options))

    def check(self) -> None:
        """Ask the store for one entry, by one request, and raise what is wrong; as ``Operator.check``."""
        self._run("check", "", lambda op: op.check())

    def exists(self, path: str) -> bool:
        """Whether there is an object or a directory at ``path``."""
        return self._run("exists", path, lambda op: op.exists(path))

    def read(
        self,
        path: str,
        *positional: Never,
        offset: int = 0,
        size: int | None = None,
        suffix: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> bytes:
        """The bytes of an object; options as in ``Operator.read``."""
        return self._run(
            "read", path, lambda op: op.read(path, *positional, offset=offset, size=size, suffix=suffix, **options)
        )

    def view(
        self,
        path: str,
        *positional: Never,
        offset: int = 0,
        size: int | None = None,
        suffix: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> memoryview:
        """Read like ``read``; returns a read-only ``memoryview`` without a copy."""
        return self._run(
            "view", path, lambda op: op.view(path, *positional, offset=offset, size=size, suffix=suffix, **options)
        )

    def read_into(self, path: str, offset: int, buffer: WriteableBuffer, **options: Unpack[ReadOptions]) -> int:
        """Fill a writable buffer from ``offset``; returns the number of bytes."""
        return self._run("read_into", path, lambda op: op.read_into(path, offset, buffer, **options))

    def download(
        self, path: str, target: LocalPath, *, version: str | None = None, on_progress: ProgressCallback | None = None
    ) -> Metadata:
        """Write an object into a local file, or a directory (``dir/``) into a local one; as ``Operator.download``.

        ``on_progress`` runs on the loop thread.
        """
        return self._run(
            "download", path, lambda op: op.download(path, target, version=version, on_progress=on_progress)
        )

    def read_ranges(self, path: str, ranges: Iterable[Sequence[int]], **options: Unpack[RangesOptions]) -> list[bytes]:
        """The bytes of each ``(start, end)``; neighbours share requests."""
        return self._run("read_ranges", path, lambda op: op.read_ranges(path, ranges, **options))

    def view_ranges(
        self, path: str, ranges: Iterable[Sequence[int]], **options: Unpack[RangesOptions]
    ) -> list[memoryview]:
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

    @overload
    def open(
        self, path: str, mode: Literal["rb", "br"] = "rb", *, compression: None = None, **options: Unpack[OpenOptions]
    ) -> SyncFile: ...

    @overload
    def open(  # type: ignore[overload-overlap]  # a RawIOBase, and so not IO
        self,
        path: str,
        mode: Literal["wb", "xb", "bw", "bx"],
        *,
        compression: None = None,
        **options: Unpack[WriteOptions],
    ) -> SyncWriteFile: ...

    @overload
    def open(
        self,
        path: str,
        mode: Literal["w", "wt", "tw", "x", "xt", "tx"],
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        compression: Compression | None = None,
        **options: Unpack[WriteOptions],
    ) -> TextWriteFile: ...

    @overload
    def open(
        self,
        path: str,
        mode: Literal["r", "rt", "tr"],
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        compression: Compression | None = None,
        **options: Unpack[OpenOptions],
    ) -> TextIO: ...

    @overload
    def open(
        self,
        path: str,
        mode: Literal["rb", "br", "wb", "xb", "bw", "bx"] = "rb",
        *,
        compression: Compression,
        **options: Unpack[AnyFileOptions],
    ) -> IO[bytes]: ...

    @overload
    def open(
        self,
        path: str,
        mode: str = "rb",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        compression: Compression | None = None,
        **options: Unpack[AnyFileOptions],
    ) -> IO[Any]: ...

    def open(
        self,
        path: str,
        mode: str = "rb",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        compression: Compression | None = None,
        **options: Unpack[AnyFileOptions],
    ) -> Any:
        """A file object over ``path``, as ``aioprefetch.sync.open`` opens it.

        Options as in ``Operator.reader`` to read, as in ``Operator.write`` to write. No request is sent before the
        first read, or the first part that is written.
        """
        readers = self._live("open", path)
        text = {"encoding": encoding, "errors": errors, "newline": newline}
        return open_object(
            path,
            mode,
            self._operator,
            options,
            text=text,
            compression=compression,
            on_end=lambda: readers.drop(path),
        )

    def writer(self, path: str, **options: Unpack[WriteOptions]) -> SyncWriteFile:
        """A file to write: ``with bo.writer("k") as w: w.write(b"...")``. It appears when the block ends, whole.

        The same as ``open(path, "wb")``; options as in ``Operator.write``.
        """
        return self.open(path, "wb", **options)

    def open_file(self, path: str) -> BlockingOpenFileBuilder:
        """A file by Hadoop's keys: ``open_file("k").opt(key, value).build()``. See ``BlockingOpenFileBuilder``."""
        self._live("open_file", path)
        return BlockingOpenFileBuilder(checked_path(path, "open_file"), self._operator, self.open)

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = False,
        start_after: str | None = None,
        glob: str | None = None,
        versions: bool = False,
        limit: int | None = None,
    ) -> BlockingListing:
        """Iterate over the entries whose path begins with ``prefix``; options as in ``Operator.list``."""
        self._live("list", prefix)
        listing = self._operator.list(
            prefix, recursive=recursive, start_after=start_after, glob=glob, versions=versions, limit=limit
        )
        return BlockingListing(listing)

    def write(self, path: str, data: BytesLike | WriteSource, **options: Unpack[WriteOptions]) -> Metadata:
        """Write an object from bytes, a binary file or an iterable of bytes; it appears whole or not at all.

        Files and iterables are read on a worker thread, asynchronous ones on the loop thread of ``aioprefetch.sync``:
        ``WrongLoop`` for those where an event loop runs in the caller's thread, which they might wait for. Options as
        in ``Operator.write``.
        """
        from aioprefetch.verbs.upload import is_asynchronous

        if is_asynchronous(data):
            refuse_in_loop("write")
        return self._change("write", path, lambda op: op.write(path, data, **options))

    def upload(self, source: LocalPath, path: str, **options: Unpack[UploadOptions]) -> Metadata:
        """Write an object from a local file, or below ``dir/`` what a directory has; as ``Operator.upload``.

        ``on_progress`` runs on the loop thread.
        """
        try:
            return self._change("upload", path, lambda op: op.upload(source, path, **options))
        finally:
            self.drop_readers(path)

    def copy(self, source: str, target: str, **options: Unpack[CopyOptions]) -> Metadata:
        """Copy an object within the store; as ``Operator.copy``. ``on_progress`` runs on the loop thread."""
        return self._change("copy", target, lambda op: op.copy(source, target, **options))

    def move(self, source: str, target: str, **conditions: Unpack[MoveOptions]) -> Metadata:
        """Move an object to ``target``, which it replaces, or what is below ``dir/``; as ``Operator.move``."""
        try:
            return self._run("move", target, lambda op: op.move(source, target, **conditions))
        finally:
            self.drop_readers(source)
            self.drop_readers(target)

    def delete(
        self, path: str | Iterable[ObjectName], *, version: str | None = None, if_match: str | None = None
    ) -> None:
        """Delete an object (or a ``version`` of it), or several (``(path, version)``). Missing objects are ignored."""
        if isinstance(path, str):
            self._change("delete", path, lambda op: op.delete(path, version=version, if_match=if_match))
            return
        paths = list(path)
        try:
            self._run("delete", "", lambda op: op.delete(paths, version=version, if_match=if_match))
        finally:
            for each in paths:
                self._readers.drop(each[0] if isinstance(each, tuple) else each)

    def abort_uploads(self, prefix: str = "", *, older_than_seconds: float | None = None) -> int:
        """Abort the uploads below ``prefix`` that were never completed; returns their number."""
        return self._run(
            "abort_uploads", prefix, lambda op: op.abort_uploads(prefix, older_than_seconds=older_than_seconds)
        )

    def delete_all(self, prefix: str) -> None:
        """Delete every object below the directory ``prefix``, which ends with ``/``, and the directory."""
        try:
            self._run("delete_all", prefix, lambda op: op.delete_all(prefix))
        finally:
            self.drop_readers(prefix)

    def create_dir(self, path: str) -> None:
        """Create a directory and its parents; ``path`` ends with ``/``."""
        self._run("create_dir", path, lambda op: op.create_dir(path))

    def presign(self, path: str, **options: Unpack[PresignOptions]) -> str:
        """A URL whose bearer may do ``method`` with the object until it expires. It is a secret."""
        return self._run("presign", path, lambda op: op.presign(path, **options))

    def drop_readers(self, path: str = "") -> None:
        """Close the readers that ``read_at`` keeps of ``path``, and of what is below it: it reads what is there then.

        Verbs of this object that change something do so by themselves; this is for what others have changed.
        """
        if not self._closed and isinstance(path, str):
            readers = self._live("drop_readers", path)
            readers.drop(path)
            readers.drop_under(path if not path or path.endswith("/") else f"{path}/")

    def close(self) -> None:
        """Close its readers, and stop using the operator on the loop thread. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._generation == fork_generation():
            self._thread.finish(self._aclose, timeout_seconds=CLOSE_SECONDS_MAX)

    async def _aclose(self) -> None:
        try:
            await self._readers.aclose()
        finally:
            await self._operator.aclose()

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

    def run_verb(self, operation: str, path: str, call: Callable[[Operator], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of its operator on the loop thread; ``read_at`` sees what it has changed at ``path``."""
        return self._change(operation, path, call)

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
        """Read through the path's reader, opened if needed."""
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

    async def aclose(self) -> None:
        """Close all of them, on the loop thread; those in which a thread reads end with that read.

        If one fails, the others are closed, and its error is raised.
        """
        with self._lock:
            idle = [entry for entry in self._open.values() if self._retire(entry)]
            self._open.clear()
        async with AsyncExitStack() as closing:
            for entry in idle:
                closing.push_async_callback(entry.reader.aclose)

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
