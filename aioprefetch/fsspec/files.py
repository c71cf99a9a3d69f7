"""Files as fsspec's callers open them: a ``SyncFile`` that pickles, a file to write that appears at its end."""

from __future__ import annotations

import io
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, SupportsIndex

from fsspec.transaction import Transaction

from aioprefetch.errors import Closed
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import SyncFile, SyncWriteFile

if TYPE_CHECKING:
    from aioprefetch.operator.write_source import BytesLike
    from aioprefetch.operator.writer import ObjectWriter
    from aioprefetch.reader import RangeReader

# Context managers that close their file in the same way whether their block has failed or not.
CLOSES_BLINDLY = frozenset(
    {
        ("fsspec.core", "OpenFile.__exit__"),
        ("pandas.io.common", "IOHandles.__exit__"),
        ("pyarrow.parquet.core", "ParquetWriter.__exit__"),
    }
)
# The calls between such an ``__exit__`` and the ``close`` of the file: theirs, and those of text and compression.
CALLS_BETWEEN_MAX = 12


class FileSystem(Protocol):
    """The file system of a file, as far as a file needs it."""

    def open(self, path: str, mode: str, **options: Any) -> Any:
        """Another file."""

    def info(self, path: str) -> dict[str, Any]:
        """The entry of a path."""
        ...

    def unstrip_protocol(self, name: str) -> str:
        """A path with its protocol."""
        ...

    def invalidate_cache(self, path: str) -> None:
        """Believe no listing of which the path is a part."""


class ReadFile(SyncFile):
    """A ``SyncFile`` of a file system: no request before the first read, hits on the caller's thread.

    It pickles as file system, path, position and the version that it has read; as the callers of fsspec expect, one
    that is collected unclosed is closed without a word.
    """

    warns_unclosed = False

    def __init__(self, fs: FileSystem, path: str, operator: Operator, key: str, options: Mapping[str, Any]) -> None:
        self.fs = fs
        self.path = path
        self._arguments = dict(options)
        super().__init__(operator, key, options, name=fs.unstrip_protocol(path))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:  # type: ignore[override]  # a SyncFile does not
        options = self._arguments
        if self.etag is not None and "version" not in options:
            options = options | {"etag": self.etag}
        return _reopened, (self.fs, self.path, options, 0 if self.closed else self.tell())

    @property
    def full_name(self) -> str:
        """The path with its protocol."""
        return str(self.name)

    @property
    def details(self) -> dict[str, Any]:
        """The ``info`` of the path: a request, unless its directory was listed."""
        return self.info()

    def info(self) -> dict[str, Any]:
        """The ``info`` of the path."""
        return self.fs.info(self.path)


class BlockCachedFile(ReadFile):
    """A ``ReadFile`` opened with ``cache_type="none"``, before which fsspec's ``blockcache`` puts a cache on a disk.

    It assigns that to ``cache``, and at its end ``closed``, as the files of fsspec's own let it.
    """

    cache: Any = None

    @property
    def blocksize(self) -> int:
        """The bytes of a block of the cache."""
        block_bytes: int = self._arguments.get("block_bytes") or self.operator.options.block_bytes
        return block_bytes

    @property
    def closed(self) -> bool:
        """Whether the file is closed. To assign it has no effect: ``close`` does it."""
        return super().closed

    @closed.setter
    def closed(self, value: bool) -> None:
        pass

    def _fetch_range(self, start: int, end: int) -> bytes:
        return super()._read(start, end - start)

    def _read(self, start: int, length: int | None) -> bytes:
        if self.cache is None:
            return super()._read(start, length)
        end = self.size if length is None else min(start + length, self.size)
        return bytes(self.cache._fetch(start, end))

    def _view(self, start: int, length: int | None) -> memoryview:
        return super()._view(start, length) if self.cache is None else memoryview(self._read(start, length))

    def _fill(self, target: memoryview) -> int:
        if self.cache is None:
            return super()._fill(target)
        data = self._read(self._position, len(target))
        target[: len(data)] = data
        return len(data)


def _reopened(fs: FileSystem, path: str, options: dict[str, Any], position: int) -> Any:
    file = fs.open(path, "rb", **options)
    if position:
        file.seek(position)
    return file


class WriteFile(SyncWriteFile):
    """A file to write. The object appears when it is closed, or by ``commit`` in a transaction; never half of it.

    A ``with`` block that fails leaves nothing, and so does a file that is collected unclosed (``ResourceWarning``).
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        operator: Operator,
        key: str,
        options: Mapping[str, Any],
        *,
        mode: str,
        autocommit: bool,
    ) -> None:
        self.fs = fs
        self.path = path
        self.autocommit = autocommit
        super().__init__(
            operator,
            key,
            options,
            name=fs.unstrip_protocol(path),
            mode=mode,
            on_end=lambda: fs.invalidate_cache(path),
        )

    @property
    def full_name(self) -> str:
        """The path with its protocol."""
        return str(self.name)

    def flush(self, force: bool = False) -> None:
        """Do nothing: no reader of the store sees a part of an object."""

    def close(self) -> None:
        """Let the object appear, or with ``autocommit=False`` send all of it for ``commit``. May be called twice.

        If it fails, nothing is left behind. Where a ``with fsspec.open(...)`` block ends by an error, which fsspec
        does not hand on to the file, it writes no object (pandas and pyarrow close their files so too).
        """
        error = None if self.closed else _failure_of_block()
        if error is not None:
            self.discard(error)
            return
        if self.autocommit or self.closed:
            super().close()
            return
        try:
            self._check("close")
            self._send()
        except BaseException as failure:
            self.discard(failure)
            raise
        io.BufferedIOBase.close(self)

    def commit(self) -> None:
        """Let the object of a closed file appear, at the end of a transaction."""
        if not self.closed:
            error = Closed(
                "the file is still open at the end of its transaction: no object is written",
                operation="close",
                path=self.path,
            )
            self.discard(error)
            raise error
        self._commit()


def _failure_of_block() -> BaseException | None:
    """The error by which a ``with`` block is left whose end closes the file blindly, ``None`` if there is none."""
    if sys.exception() is None:
        return None
    frame = sys._getframe(1)
    for _ in range(CALLS_BETWEEN_MAX):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        if (frame.f_globals.get("__name__"), frame.f_code.co_qualname) in CLOSES_BLINDLY:
            given = frame.f_locals
            values = (*given.values(), *given.get("args", ()))
            return next((value for value in values if isinstance(value, BaseException)), None)
    return None


class WholeTransaction(Transaction):  # type: ignore[misc]  # fsspec has no types
    """Files that appear together at the end of a block: nothing does before all of them are closed."""

    files: Any

    def complete(self, commit: bool = True) -> None:
        """Let all files appear, or none. The first failure ends it: files before it are there, later ones are not."""
        # A file that is still open first: its error is raised before any object appears, and fsspec discards the rest.
        files: Iterable[WriteFile] = self.files
        self.files = deque(sorted(files, key=lambda file: bool(file.closed)))
        super().complete(commit)


class AsyncWriteFile:
    """A file of ``open_async`` to write. It appears at ``close``, or at the end of a block, unless that fails."""

    mode = "wb"

    def __init__(self, fs: FileSystem, path: str, writer: ObjectWriter) -> None:
        self.fs = fs
        self.path = path
        self.writer = writer

    async def write(self, data: BytesLike) -> int:
        """Append bytes; returns their number."""
        return await self.writer.write(data)

    def tell(self) -> int:
        """The bytes written so far."""
        return self.writer.size

    async def close(self) -> None:
        """Let the object appear. If that fails, nothing is left behind."""
        try:
            await self.writer.close()
        finally:
            self.fs.invalidate_cache(self.path)

    async def discard(self) -> None:
        """Write no object."""
        await self.writer.abort()

    async def __aenter__(self) -> Self:
        await self.writer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.writer.__aexit__(kind, error, trace)
        finally:
            self.fs.invalidate_cache(self.path)


class AsyncReadFile:
    """A file of ``open_async``: ``await f.read(n)`` on the loop that uses it."""

    mode = "rb"

    def __init__(self, reader: RangeReader, path: str) -> None:
        self.path = path
        self.reader = reader

    async def read(self, length: int = -1) -> bytes:
        """``length`` bytes from the cursor, or all that is left; fewer at the end of the object only."""
        return await self.reader.read(-1 if length is None else length)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int | None:
        """Move the cursor, without I/O; the new position, ``None`` from an end that the next read finds."""
        return self.reader.seek(offset, whence)

    def tell(self) -> int:
        """The position of the cursor."""
        return self.reader.tell()

    async def close(self) -> None:
        """Release memory and connections."""
        await self.reader.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()
