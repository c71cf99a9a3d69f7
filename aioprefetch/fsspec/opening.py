"""Files as fsspec's callers open them: to read, in pickles too; to write, where a failing block leaves nothing.

fsspec wraps files in ``io.TextIOWrapper`` and in its codecs, and closes these: what a block that failed has written
would appear. Here ``aioprefetch.sync.codecs`` are used, which discard.
"""

from __future__ import annotations

import io
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.transaction import Transaction

from aioprefetch.errors import AlreadyExists, Closed, InvalidArgument, InvalidType, NotFound, Unsupported
from aioprefetch.fsspec.options import Settings, check_no_option_left, reader_options, write_options
from aioprefetch.fsspec.tree import Place
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import SyncFile, SyncWriteFile, codecs
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.sync.opening import Mode
from aioprefetch.values import Metadata
from aioprefetch.verbs.writer import PLACEMENT, ObjectWriter, description_of

if TYPE_CHECKING:
    from aioprefetch.reader import RangeReader
    from aioprefetch.verbs.upload import BytesLike

# Context managers that close their file in the same way whether their block has failed or not.
CLOSES_BLINDLY = frozenset(
    {
        ("fsspec.core", "OpenFile.__exit__"),
        ("pandas.io.common", "IOHandles.__exit__"),
        ("pyarrow.parquet.core", "ParquetWriter.__exit__"),
    }
)
# The calls between such an ``__exit__`` and the ``close`` of the file: theirs, and the calls of text and compression.
CALLS_BETWEEN_MAX = 12


class ReadFile(SyncFile):
    """A ``SyncFile`` of a file system: no request before the first read, hits on the caller's thread.

    It pickles as file system, path, position and the version that it has read; as the callers of fsspec expect, one
    that is collected unclosed is closed without a word.
    """

    warns_unclosed = False

    def __init__(self, fs: Any, path: str, operator: Operator, key: str, options: Mapping[str, Any]) -> None:
        self.fs = fs
        self.path = path
        self._arguments = dict(options)
        self.leaves_facts = fs.dircache.use_listings_cache
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
    def version_id(self) -> str | None:
        """The version that is read, if that is known. A ``version_aware`` file system asks for it."""
        reader = self._live("version_id")
        if reader.etag is None and self.fs.version_aware:
            self._wait_for(self._find_size(by_tail=False))
            return reader.version or self.info().get("VersionId")
        return reader.version

    @property
    def details(self) -> dict[str, Any]:
        """The ``info`` of the path: a request, unless its directory was listed."""
        return self.info()

    def info(self) -> dict[str, Any]:
        """The ``info`` of the path."""
        info: dict[str, Any] = self.fs.info(self.path)
        return info


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


def _reopened(fs: Any, path: str, options: dict[str, Any], position: int) -> Any:
    file = fs.open(path, "rb", **options)
    if position:
        file.seek(position)
    return file


class WriteFile(SyncWriteFile):
    """A file to write. The object appears when it is closed, or by ``commit`` in a transaction; never half of it.

    A ``with`` block that fails leaves nothing, and so does a file that nothing closes, as of every ``SyncWriteFile``.
    """

    def __init__(
        self,
        fs: Any,
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

    @property
    def version_id(self) -> str | None:
        """The version that was written, once it has appeared in a store that keeps them."""
        return None if self.metadata is None else self.metadata.version

    def flush(self, force: bool = False) -> None:
        """Do nothing: no reader of the store sees a part of an object."""

    def close(self) -> None:
        """Let the object appear, or with ``autocommit=False`` send all of it for ``commit``. May be called twice.

        If it fails, nothing is left behind. Where a ``with fsspec.open(...)`` block ends by an error, which fsspec
        does not hand on to the file, it writes no object (pandas and pyarrow close their files so too).
        """
        error = None if self.closed else _failure_of_block()
        if error is None:
            super().close()
        else:
            self.discard(error)

    def _complete(self) -> None:
        if self.autocommit:
            self._commit()
        else:
            self._send()

    def commit(self) -> None:
        """Let the object of a closed file appear, at the end of a transaction. ``Closed`` if it was discarded."""
        try:
            if not self.closed:
                why = "the file is still open at the end of its transaction: no object is written"
                raise Closed(why, operation="close", path=self.path)
            self._commit()
        except BaseException as error:
            self.discard(error)
            raise


def _failure_of_block() -> BaseException | None:
    """The error by which a ``with`` block is left whose end closes the file blindly, or ``None``."""
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
    fs: Any

    def complete(self, commit: bool = True) -> None:
        """Let all files appear, or none. The first failure ends it: files before it are there, later ones are not."""
        # A file that is still open first: its error is raised before any object appears.
        files: list[WriteFile] = sorted(self.files, key=lambda file: bool(file.closed))
        # It ends here and in any case: fsspec before 2026.9 stays in a transaction that fails, and loses later writes.
        self.fs._intrans, self.fs._transaction, self.fs, self.files = False, None, None, deque()
        with ExitStack() as ending:
            for file in files:
                ending.callback(file.discard)  # Without effect once the object has appeared.
            for file in files if commit else ():
                file.commit()


class AsyncWriteFile:
    """A file of ``open_async`` to write. It appears at ``close``, or at the end of a block, unless that fails."""

    mode = "wb"

    def __init__(self, fs: Any, path: str, writer: ObjectWriter) -> None:
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
        self.size = reader.size

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


# --- modes and options ------------------------------------------------------------------------------------------------

# Codecs of fsspec for which ``DecompressedFile`` stands in: it buffers and closes what is below it.
_BUFFERED = {"gzip": "gzip", "bz2": "bz2", "xz": "xz", "lzma": "xz"}
# The bytes of an object that are read at once, to be written again before the appended ones.
APPEND_BYTES = 8 << 20
TEXT_OPTIONS = ("encoding", "errors", "newline")
# Options of fsspec's files, and of s3fs's uploads, that say nothing about a write.
_NOT_OF_WRITES = frozenset(
    {
        *("cache_options", "cache_type", "size", "fill_cache", "check_on_open", "requester_pays"),
        *("chunksize", "max_concurrency"),
    }
)


class FileMode(Mode):
    """A mode of fsspec's ``open``: ours, and ``a``, which is ``w`` after what is there. Raises as that."""

    def __init__(self, mode: object, *, path: str) -> None:
        self.appends = isinstance(mode, str) and sorted(mode) in (["a"], ["a", "b"], ["a", "t"])
        super().__init__(mode.replace("a", "w") if isinstance(mode, str) and self.appends else mode, path=path)
        if self.appends:
            self.name = self.name.replace("w", "a")

    @property
    def of_bytes(self) -> str:
        """The mode of the file of bytes below a text."""
        return f"{self.name.removesuffix('b')}b"


def payer(fs: Any, options: Mapping[str, Any]) -> Any:
    """The file system of an ``open``: this one, or one with another ``requester_pays``."""
    pays = options.get("requester_pays")
    if pays is None or bool(pays) is bool(fs._settings.store.get("request_payer")):
        return fs
    words = {name: value for name, value in fs.storage_options.items() if name != "request_payer"}
    return type(fs)(**{**words, "requester_pays": pays})


def opened(
    fs: Any,
    path: str,
    mode: FileMode,
    settings: Settings,
    options: Mapping[str, Any],
    *,
    block_size: int | None,
    autocommit: bool,
    version_id: str | None,
) -> ReadFile | WriteFile:
    """A file of bytes of a file system, from the options of ``open`` and its own."""
    place: Place = payer(fs, options).place_of(path)
    if mode.kind == "r":
        place = place._replace(key=place.directory) if path.endswith("/") else place
        chosen = reading_options(settings, place, options, block_size=block_size, version_id=version_id)
        file_type = BlockCachedFile if options.get("cache_type") == "none" else ReadFile
        file = file_type(fs, path, place.operator, place.key, chosen)
        if options.get("check_on_open", settings.check_on_open):
            file.begin()
        return file
    if place.version is not None:
        raise InvalidArgument("a version is not written: leave ?versionId= out", operation="open", path=path)
    chosen = writing_options(settings, "overwrite", options)
    if mode.kind == "x":
        if loop_thread().run(_existing(place)) is not None:
            raise place.error(AlreadyExists, "mode='xb' is for an object that is not there yet", "open", path)
        chosen["if_not_exists"] = True
    found = loop_thread().run(_existing(place)) if mode.appends and place.operator.capability.write else None
    if mode.appends:
        chosen = appending_options(place, found, chosen)
    written = WriteFile(fs, path, place.operator, place.key, chosen, mode=mode.of_bytes, autocommit=autocommit)
    if found is not None and found.size:
        before = {"policy": "sequential", "etag": found.etag}
        try:
            with ReadFile(fs, path, place.operator, place.key, before) as file:
                while piece := file.read(APPEND_BYTES):
                    written.write(piece)
        except BaseException as error:
            written.discard(error)
            raise
    return written


async def _existing(place: Place) -> Metadata | None:
    try:
        return await place.operator.stat(place.key)
    except NotFound:
        return None


def appending_options(place: Place, found: Metadata | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a write that appends to what was found: its description, and that no other writer comes between.

    That is only compared where the store can.
    """
    capability = place.operator.capability
    if found is None:
        return {**({"if_not_exists": True} if capability.write_if_not_exists else {}), **chosen}
    condition = {"if_match": found.etag} if capability.write_if_match and found.etag else {}
    place_kept = {"storage_class": found.storage_class} if found.storage_class else {}
    return {**description_of(found, capability), **place_kept, **condition, **chosen}


def codec_of(compression: str | None, path: str) -> str | None:
    """The name of a codec of fsspec, ``None`` for plain bytes; ``infer`` goes by the end of the path."""
    if compression is None:
        return None
    try:
        name: str | None = get_compression(path, compression)
    except ValueError:
        known = ", ".join(repr(name) for name in ("infer", *sorted(name for name in compr if name)))
        raise InvalidArgument(
            f"compression={compression!r} must be None or one of {known}; others need a package that is not installed",
            operation="open",
            path=path,
        ) from None
    return name


def wrapped_file(file: ReadFile | WriteFile, mode: Mode, *, codec: str | None, text: Mapping[str, str | None]) -> Any:
    """A file of bytes with compression and text around it. If that fails, it is closed, and nothing is written."""
    if codec is None:
        return codecs.layered(file, mode.name, text, compressed=None, decompressed=None)
    name, make = str(file.name), compr[codec]

    def decompressed(below: ReadFile) -> Any:
        if codec in _BUFFERED:
            return codecs.DecompressedFile(below, _BUFFERED[codec], name=name)
        return make(io.BufferedReader(below, codecs.BUFFER_BYTES), mode="r")

    return codecs.layered(
        file,
        mode.name,
        text,
        compressed=lambda below: codecs.CompressedFile(below, partial(make, mode="w"), name=name),
        decompressed=decompressed,
    )


def text_options(mode: Mode, options: dict[str, Any], path: str) -> dict[str, str | None]:
    """Take the options of a text out of ``options``; UTF-8 by default. ``InvalidArgument`` for some beside bytes."""
    text = {name: options.pop(name, None) for name in TEXT_OPTIONS}
    for name, value in text.items():
        if value is not None and not mode.is_text:
            raise InvalidArgument(
                f"{name} is an option of a text, and mode={mode.name!r} is of bytes", operation="open", path=path
            )
        if not (value is None or isinstance(value, str)):
            raise InvalidType(f"{name} must be a string, not {value!r}", operation="open", path=path)
    return {**text, "encoding": text["encoding"] or "utf-8"}


def reading_options(
    settings: Settings,
    place: Place,
    options: Mapping[str, Any],
    *,
    block_size: int | None,
    version_id: str | None,
) -> dict[str, Any]:
    """The options of a reader, from ``open`` and the file system."""
    names = {name: value for name, value in options.items() if value is not None}
    for name in ("requester_pays", "check_on_open"):
        names.pop(name, None)
    chosen = {**settings.reader, **reader_options(names, block_size=block_size)}
    check_no_option_left(names, settings)
    version = version_id or place.version
    return chosen | ({"version": version} if version else {})


def writing_options(settings: Settings, mode: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a write, from the verb and the file system. ``mode`` is ``overwrite`` or ``create``."""
    taken = {name: value for name, value in options.items() if name not in _NOT_OF_WRITES}
    chosen = write_options(taken, settings)
    if mode == "create":
        chosen["if_not_exists"] = True
    elif mode != "overwrite":
        raise InvalidArgument(f"mode={mode!r} must be 'overwrite' or 'create'", operation="write")
    return chosen


def copying_options(settings: Settings, options: Mapping[str, Any], *, preserve_etag: bool | None) -> dict[str, Any]:
    """The options of a copy: how the store keeps it. Its description comes from its source."""
    if preserve_etag:
        raise Unsupported("the store chooses the ETag of a copy: leave preserve_etag= out", operation="copy")
    return write_options(options, settings, allowed=PLACEMENT, of="a copy")
