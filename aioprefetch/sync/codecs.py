"""Text and compression around files of bytes, by Python's own ``io``, ``gzip``, ``bz2``, ``lzma`` and ``zstd``."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, SupportsIndex, get_args

from aioprefetch.errors import Closed, InvalidArgument, InvalidType, MissingDependency
from aioprefetch.sync.write_file import Discarding, SyncWriteFile
from aioprefetch.verbs.upload import checked_chunk

if TYPE_CHECKING:
    import gzip

    from _typeshed import ReadableBuffer, WriteableBuffer

Compression = Literal["infer", "gzip", "bz2", "xz", "zstd"]

_BY_SUFFIX = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
# The bytes that are read ahead of a text or of a decompressor: one step into the block store for each.
BUFFER_BYTES = 128 << 10


def codec_of(compression: str | None, path: str) -> str | None:
    """The name of the codec, ``None`` for plain bytes; ``infer`` goes by the end of the path."""
    if compression is None:
        return None
    names = get_args(Compression)
    if compression not in names:
        raise InvalidArgument(
            f"compression={compression!r} must be None or one of {', '.join(map(repr, names))}",
            operation="open",
            path=path,
        )
    if compression != "infer":
        return compression
    return next((codec for suffix, codec in _BY_SUFFIX.items() if path.lower().endswith(suffix)), None)


def codec_file(codec: str, file: Any, mode: Literal["rb", "wb"], path: str) -> Any:
    """The file object of a codec around ``file``. Raises ``MissingDependency`` where zstd is not installed."""
    if codec == "gzip":
        return _gzip_file()(fileobj=file, mode=mode)
    if codec == "bz2":
        import bz2

        return bz2.BZ2File(file, mode)
    if codec == "xz":
        import lzma

        return lzma.LZMAFile(file, mode)
    zstd = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(zstd).ZstdFile(file, mode)
    except ImportError as error:
        raise MissingDependency(
            "compression='zstd' needs Python 3.14 or the package backports.zstd: pip install backports.zstd",
            operation="open",
            path=path,
        ) from error


@cache
def _gzip_file() -> type[gzip.GzipFile]:
    import gzip

    class QuietGzipFile(gzip.GzipFile):
        """Without the warning that Python 3.14 adds for an object collected unclosed: the file around it warns."""

        def __del__(self) -> None:
            super(gzip.GzipFile, self).__del__()

    return QuietGzipFile


class DecompressedFile(io.BufferedIOBase):
    """The bytes behind a compressed object, as Python's own module reads them. Closing it closes the object."""

    mode = "rb"

    def __init__(self, file: io.RawIOBase, codec: str, *, name: str) -> None:
        super().__init__()
        self.name = name
        self._file = file
        self._codec: Any = file  # What is collected is closed, also where the codec is missing.
        self._codec = codec_file(codec, io.BufferedReader(file, BUFFER_BYTES), "rb", name)

    def readable(self) -> bool:
        """True. ``ValueError`` when closed, as for every file."""
        return bool(self._codec.readable())

    def seekable(self) -> bool:
        """True: seeking back decompresses from the start."""
        return bool(self._codec.seekable())

    def read(self, size: int | None = -1) -> bytes:
        """``size`` bytes, or all that are left; fewer at the end only."""
        return bytes(self._codec.read(-1 if size is None else size))

    def read1(self, size: int = -1, /) -> bytes:
        """Some bytes, ``b""`` at the end only."""
        return bytes(self._codec.read1(size))

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer; how many bytes it took."""
        return int(self._codec.readinto(buffer))

    def readline(self, size: int | None = -1, /) -> bytes:
        """The bytes up to and with the next newline."""
        return bytes(self._codec.readline(-1 if size is None else size))

    def peek(self, size: int = 0, /) -> bytes:
        """The next bytes, without moving on."""
        return bytes(self._codec.peek(size))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move among the decompressed bytes."""
        return int(self._codec.seek(offset, whence))

    def tell(self) -> int:
        """The position among the decompressed bytes."""
        return int(self._codec.tell())

    def close(self) -> None:
        """Close the object too. May be called twice."""
        if not self.closed:
            try:
                self._codec.close()
            finally:
                self._file.close()
                super().close()


class CodecSink:
    """The sink of a codec: the file, or nothing once this is discarded, so that the codec can end in peace.

    It has no ``close``: some codecs close what they write into, and only ``CompressedFile`` knows whether all is well.
    """

    def __init__(self, file: SyncWriteFile) -> None:
        self._file = file
        self.is_discarded = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Append bytes; returns their number."""
        return memoryview(data).nbytes if self.is_discarded else self._file.write(data)

    def flush(self) -> None:
        """Do nothing: no reader of the store sees a part of an object."""


class FileOverFile(Discarding):
    """A file to write over another one, which writes no object where it is collected unclosed."""

    def __del__(self) -> None:
        """Not ``close``."""

    def __reduce_ex__(self: Any, protocol: SupportsIndex) -> NoReturn:
        raise InvalidType("an open file cannot be pickled; open the path again", operation="pickle", path=self.name)


class CompressedFile(FileOverFile, io.BufferedIOBase):
    """Compresses into a file that is open for writing. Closing it closes that, and lets the object appear.

    ``codec`` makes the file object that compresses, around what it writes into.
    """

    mode = "wb"

    def __init__(self, file: SyncWriteFile, codec: Callable[[CodecSink], Any], *, name: str) -> None:
        super().__init__()
        self.name = name
        self._file = file
        self._sink = CodecSink(file)
        self._position = 0
        self._is_broken = False
        try:
            self._codec = codec(self._sink)
        except BaseException:
            file.discard()
            raise

    def writable(self) -> bool:
        """True. ``ValueError`` when closed, as for every file."""
        return self._file.writable()

    def write(self, data: ReadableBuffer, /) -> int:
        """Append bytes; returns how many, before compression. ``InvalidType`` for what is not bytes, such as text."""
        self._file.writable()
        chunk = checked_chunk(data, self.name)
        try:
            self._codec.write(chunk)
        except BaseException:  # KeyboardInterrupt too, at any point: the codec may have taken half of it.
            self._is_broken = True
            raise
        self._position += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        """The bytes written so far, before compression."""
        self._file.writable()
        return self._position

    def close(self) -> None:
        """Write what is left and let the object appear. May be called twice. If it fails, nothing is left behind."""
        if self.closed:
            return
        try:
            if self._is_broken:
                raise Closed("a write of the file has failed: no object is written", operation="close", path=self.name)
            self._codec.close()
            self._file.close()
        except BaseException as error:
            self.discard(error)
            raise
        super().close()

    def discard(self, error: BaseException | None = None) -> None:
        """Write no object. May be called twice."""
        self._sink.is_discarded = True
        try:
            self._file.discard(error)
        finally:
            super().close()
            with suppress(Exception):  # It has ended already, or fails at its end too.
                self._codec.close()


class TextWriteFile(FileOverFile, io.TextIOWrapper):
    """Text into a file that is open for writing: ``io.TextIOWrapper``. A failing block leaves no object."""

    mode: str

    def __init__(self, file: SyncWriteFile | CompressedFile, text: Mapping[str, str | None], *, mode: str) -> None:
        # Python writes the mark at the start of UTF-16 and UTF-32 only where it can ask whether this is the start.
        file.seekable = lambda: True  # type: ignore[method-assign]
        super().__init__(file, **text)  # type: ignore[arg-type]
        del file.seekable
        self.mode = mode
        self._is_broken = False

    def write(self, text: str, /) -> int:
        """Append text; returns the number of its characters. ``TypeError`` for bytes and other types."""
        try:
            return super().write(text)
        except (UnicodeError, TypeError):  # Nothing of it was taken.
            raise
        except BaseException:  # KeyboardInterrupt too: Python has dropped the text that it had gathered.
            self._is_broken = True
            raise

    def discard(self, error: BaseException | None = None) -> None:
        """Write no object. May be called twice."""
        self.buffer.discard(error)  # type: ignore[attr-defined]  # a SyncWriteFile or a CompressedFile

    def close(self) -> None:
        """Write what is left and let the object appear. May be called twice. If it fails, nothing is left behind."""
        if self.closed:
            return
        try:
            if self._is_broken:
                raise Closed("a write of the file has failed: no object is written", operation="close", path=self.name)
            self.flush()  # Where this fails in ``close`` itself, Python closes the file below, and an object appears.
            super().close()
        except BaseException as error:
            self.discard(error)
            raise

    def flush(self) -> None:
        """Hand the text that was gathered to the file below; no reader of the store sees a part of an object."""
        try:
            super().flush()
        except BaseException:
            self._is_broken = True
            raise

    def __enter__(self) -> Self:
        self.buffer.writable()
        return self


def layered(
    file: Any,
    mode: str,
    text: Mapping[str, str | None],
    *,
    compressed: Callable[[Any], Any] | None,
    decompressed: Callable[[Any], Any] | None,
) -> Any:
    """A file of bytes with compression and text around it, as ``mode`` says; if that fails, it is closed.

    ``compressed`` makes the file to write of a codec, ``decompressed`` that to read. A write that fails is discarded.
    """
    is_text = "b" not in mode
    if "r" not in mode:
        written = file if compressed is None else compressed(file)
        return text_writer(written, text, mode=mode) if is_text else written
    try:
        read = file if decompressed is None else decompressed(file)
        return text_reader(read, text, mode=mode) if is_text else read
    except BaseException:
        file.close()
        raise


def text_reader(
    file: io.RawIOBase | DecompressedFile, text: Mapping[str, str | None], *, mode: str
) -> io.TextIOWrapper:
    """The text of a file that is open for reading. ``text`` are encoding, errors and newline."""
    buffered = file if isinstance(file, DecompressedFile) else io.BufferedReader(file, BUFFER_BYTES)
    reader = io.TextIOWrapper(buffered, **text)  # type: ignore[arg-type]
    reader.mode = mode  # type: ignore[misc]  # as Python's own ``open`` sets it
    return reader


def text_writer(file: SyncWriteFile | CompressedFile, text: Mapping[str, str | None], *, mode: str) -> TextWriteFile:
    """Text into a file that is open for writing."""
    try:
        return TextWriteFile(file, text, mode=mode)
    except BaseException:
        file.discard()
        raise
