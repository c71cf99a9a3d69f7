"""The bytes of an item, at its version: read whole or in pieces, and decompressed.

Small files are one GET, larger ones are read in pieces by a reader, which costs ten times a GET, and pays from the
second request on. Streams of gzip, zstd and snappy are decompressed in steps with bounded output.
"""

from __future__ import annotations

import importlib
import re
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import pyarrow as pa

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.request_events import served
from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConditionNotMatch, ConfigInvalid, MissingDependency
from aioprefetch.operator.open_file import READ_POLICY, SPLIT_END, SPLIT_START
from aioprefetch.operator.operator import Operator
from aioprefetch.reader import RangeReader
from aioprefetch.reader.options import CHUNK_BYTES
from aioprefetch.source.formats.corruption import corrupt
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.values import ReadRequest

T = TypeVar("T")

# Larger files are read in pieces. The next piece is read while one is decoded.
WHOLE_BYTES_MAX = 1 << 20

# The end of the record that crosses the end of an item is searched in steps. This is the first one.
BEYOND_BYTES = 64 << 10
BEYOND_BYTES_MAX = 8 << 20

# The message of ``ObjectChanged`` for a file that was replaced since it was listed.
OVERWRITTEN = "the file was overwritten after it was listed"

# The number of bytes of a part that are requested ahead.
AHEAD_BYTES = 16 << 20


def check_open_file(operator: Operator, file: SourceFile, settings: Mapping[str, str]) -> None:
    """Check the ``openFile`` settings of a file that is read without a reader.

    Raises ``ConfigInvalid`` and ``Unsupported`` as ``OpenFileBuilder.build`` does. The listed length, ETag and version
    of the file override settings. Settings of a reader have no effect.
    """
    if settings:
        operator.open_file(file.key).propagate(settings).with_status(file).build()


def comes_whole(file: SourceFile) -> bool:
    """Whether to read a file by ``read_whole``: it is small and has no weak ETag, which a store cannot check."""
    return 0 < file.size <= WHOLE_BYTES_MAX and not (file.etag and is_weak(file.etag))


async def read_whole(operator: Operator, file: SourceFile, settings: Mapping[str, str]) -> bytes:
    """All bytes of this version of a file, by one GET. ``ObjectChanged`` if the store has another version."""
    check_open_file(operator, file, settings)
    request = ReadRequest(path=file.key, if_match=file.etag, version=file.version)
    pin = VersionPin(file.etag, file.version, file.size, path=file.key, operation="read_items")
    sink = CollectSink(operator.runtime().budget)
    try:
        response = await served(operator.accessor(), operator.runtime()).read(request, sink)
    except ConditionNotMatch as error:
        raise pin.explain(error, message=OVERWRITTEN) from error
    data = sink.to_bytes()
    if file.etag and response.head.etag not in (None, file.etag):  # Some stores ignore conditions.
        raise pin.changed(response.head.etag, OVERWRITTEN)
    if len(data) != file.size:
        raise pin.changed(None, f"the file has {len(data)} bytes, and had {file.size} when it was listed")
    return data


async def read_content(operator: Operator, file: SourceFile, settings: Mapping[str, str]) -> bytes:
    """All bytes of this version of a file, of any size: in their place at once, not by way of blocks."""
    if comes_whole(file):
        return await read_whole(operator, file, settings)
    if file.size == 0:
        return b""
    if file.etag and is_weak(file.etag):
        async with await open_pinned(operator, file, settings, policy="whole-file") as reader:
            return await reader.read_at(0, file.size)
    check_open_file(operator, file, settings)
    pin = VersionPin(file.etag, file.version, file.size, path=file.key, operation="read_items")
    try:
        data = await operator.read(file.key, if_match=file.etag, version=file.version)
    except ConditionNotMatch as error:
        raise pin.explain(error, message=OVERWRITTEN) from error
    if len(data) != file.size:
        raise pin.changed(None, f"the file has {len(data)} bytes, and had {file.size} when it was listed")
    return data


async def open_pinned(
    operator: Operator,
    file: SourceFile,
    settings: Mapping[str, str],
    *,
    policy: str,
    split: tuple[int, int] | None = None,
) -> RangeReader:
    """A reader of this version of a file, without any request.

    ``settings`` of ``openFile`` override ``policy`` and ``split``.

    ``ConfigInvalid`` for an unknown mandatory setting.
    """
    builder = operator.open_file(file.key).opt(READ_POLICY, policy)
    if split is not None:
        builder.opt(SPLIT_START, split[0]).opt(SPLIT_END, split[1])
    return await builder.propagate(settings).with_status(file).build()


async def pieces(
    operator: Operator, item: FetchItem, settings: Mapping[str, str], *, begin: int
) -> AsyncGenerator[bytes, None]:
    """The bytes of the file from ``begin`` on: in large pieces to the end of the item, then in small ones beyond it.

    Closing it early leaves no request in flight.
    """
    if item.file.size == 0:
        return
    if item.is_whole and comes_whole(item.file):
        yield await read_whole(operator, item.file, settings)
        return
    policy, split = ("sequential", None) if item.is_whole else ("random", (begin, item.stop))
    async with await open_pinned(operator, item.file, settings, policy=policy, split=split) as reader:
        if item.is_whole:
            async with reader.stream() as chunks:
                async for chunk in chunks:
                    yield chunk
        else:
            async with aclosing(_part(reader, begin, item.stop)) as chunks_of_part:
                async for chunk in chunks_of_part:
                    yield chunk


async def _part(reader: RangeReader, position: int, stop: int) -> AsyncGenerator[bytes, None]:
    """The bytes from ``position`` on, beyond ``stop`` too. Up to ``stop`` they are requested ahead, in exact ranges.

    Whole blocks would exceed the part at both ends, by bytes that the neighbouring parts fetch again.
    """
    requested = position
    while position < stop:
        chunk = await reader.read_at(position, min(CHUNK_BYTES, stop - position))
        if not chunk:
            return
        position += len(chunk)
        if requested < min(stop, position + AHEAD_BYTES // 2):
            begin, requested = max(requested, position), min(stop, position + AHEAD_BYTES)
            reader.will_need([(begin, requested)])
        yield chunk
    size = BEYOND_BYTES
    while chunk := await reader.read_at(position, size):
        position += len(chunk)
        size = min(2 * size, BEYOND_BYTES_MAX)
        yield chunk


async def beginning(operator: Operator, file: SourceFile, settings: Mapping[str, str], size: int) -> bytes:
    """The first ``size`` bytes of a file, by one exact request."""
    if file.size == 0:
        return b""
    if file.size <= size and comes_whole(file):
        return await read_whole(operator, file, settings)
    async with await open_pinned(operator, file, settings, policy="random") as reader:
        return await reader.read_at(0, size)


# --- compression ------------------------------------------------------------------------------------------------------

# The approximate maximum output of one call of `take`.
OUT_BYTES = 1 << 20

# A decompressor copies the input after the end of a member or a frame. Each member starts with a short slice of input,
# and slices double, so that all these copies together are not larger than the file.
_SLICE_BYTES_FIRST = 128
_GZIP_SLICE_BYTES_MAX = 32 << 10
_ZSTD_SLICE_BYTES_MAX = 64 << 10

# Smaller work takes less time than a change of thread.
THREAD_BYTES = 64 << 10

# The compressed bytes for one call on a thread: they double while the output is larger than the input.
_THREAD_SLICE_BYTES_MIN = 128 << 10
_THREAD_SLICE_BYTES_MAX = 16 << 20

OffLoop = Callable[..., Awaitable[T]]

_GZIP_WINDOW_BITS = 31
_ZEROS = re.compile(rb"\0*+")

_SNAPPY_MAGIC = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_FRAMED_BYTES_MAX = 1 << 16  # The maximum content of a chunk by the framing format.
_SNAPPY_HADOOP_BYTES_MAX = 64 << 20  # Hadoop's buffer is 256 KiB unless a job sets another size.
_SNAPPY_CODEC = pa.Codec("snappy")


class Decompressor(ABC):
    """A decompressor of one stream. Errors are ``UntrustedMetadata`` with the position in the compressed file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0
        self._base = 0

    @property
    def position(self) -> int:
        """The number of compressed bytes that were used."""
        return self._base + self._at

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Add compressed bytes. Allowed only after ``take`` has returned all output of the earlier bytes."""

    @abstractmethod
    def take(self) -> bytes:
        """Up to about 1 MiB of output; empty if more compressed bytes are needed."""

    @abstractmethod
    def finish(self) -> None:
        """Mark the end of the file. Raises if the stream is incomplete."""


class GzipStream(Decompressor):
    """gzip with any number of members. Zeros after a member are padding, as for the gzip command."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._data = b""
        self._view = memoryview(b"")
        self._members = 0
        self._slice_bytes = _SLICE_BYTES_FIRST
        self._member: zlib._Decompress | None = None

    def feed(self, data: bytes) -> None:
        self._base += len(self._data)
        self._data, self._view, self._at = data, memoryview(data), 0

    def take(self) -> bytes:
        parts: list[bytes] = []
        room = OUT_BYTES
        while room > 0:
            member = self._member or self._next_member()
            if member is None:
                break
            output = self._inflate(member, room)
            if output:
                parts.append(output)
                room -= len(output)
            elif self._at == len(self._data) and not member.eof:
                break
        return b"".join(parts)

    def finish(self) -> None:
        if self._member is not None:
            raise corrupt("the gzip stream is cut short", path=self._path, offset=self.position)

    def _next_member(self) -> zlib._Decompress | None:
        if self._members:
            zeros = _ZEROS.match(self._data, self._at)
            self._at = self._at if zeros is None else zeros.end()
        if self._at >= len(self._data):
            return None
        self._members += 1
        self._slice_bytes = _SLICE_BYTES_FIRST
        self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        return self._member

    def _inflate(self, member: zlib._Decompress, room: int) -> bytes:
        piece = self._view[self._at : self._at + self._slice_bytes]
        self._slice_bytes = min(2 * self._slice_bytes, _GZIP_SLICE_BYTES_MAX)
        try:
            output = member.decompress(piece, room)
        except zlib.error as error:
            what = "this is not gzip" if self._members == 1 else "data after a gzip member is not another member"
            raise corrupt(f"{what}, or it is damaged: {error}", path=self._path, offset=self.position) from error
        self._at += len(piece) - len(member.unused_data if member.eof else member.unconsumed_tail)
        if member.eof:
            self._member = None
        return output


class ZstdStream(Decompressor):
    """zstd with any number of frames. A window above 128 MiB is refused, as by the zstd command."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._module = _zstd(path)
        self._data = memoryview(b"")
        self._frames = 0
        self._slice_bytes = _SLICE_BYTES_FIRST
        self._frame: Any = None

    def feed(self, data: bytes) -> None:
        self._base += len(self._data)
        self._data, self._at = memoryview(data), 0

    def take(self) -> bytes:
        parts: list[bytes] = []
        room = OUT_BYTES
        while room > 0:
            if self._frame is None:
                if self._at >= len(self._data):
                    break
                self._frames += 1
                self._slice_bytes = _SLICE_BYTES_FIRST
                self._frame = self._module.ZstdDecompressor()
            elif self._frame.needs_input and self._at >= len(self._data):
                break
            output = self._decompress(room)
            parts.append(output)
            room -= len(output)
        return b"".join(parts)

    def finish(self) -> None:
        if self._frame is not None:
            raise corrupt("the zstd stream is cut short", path=self._path, offset=self.position)

    def _decompress(self, room: int) -> bytes:
        frame = self._frame
        piece = self._data[self._at : self._at + self._slice_bytes] if frame.needs_input else b""
        self._slice_bytes = min(2 * self._slice_bytes, _ZSTD_SLICE_BYTES_MAX)
        try:
            output: bytes = frame.decompress(piece, room)
        except self._module.ZstdError as error:
            what = "this is not zstd" if self._frames == 1 else "data after a zstd frame is not another frame"
            raise corrupt(f"{what}, or it is damaged: {error}", path=self._path, offset=self.position) from error
        self._at += len(piece)
        if frame.eof:
            self._at -= len(frame.unused_data)
            self._frame = None
        return output


def _zstd(path: str) -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(
            "zstd needs Python 3.14 or the package backports.zstd: pip install 'aioprefetch[spark]'",
            operation="read_items",
            path=path,
        ) from error


class SnappyStream(Decompressor):
    """snappy in the framing format ("sNaPpY"), or in the blocks that the SnappyCodec of Hadoop and Spark writes.

    The first bytes distinguish the two. The checksums of the framing format are not verified, but the lengths are.
    Neither format marks its end: a file that was cut between two blocks looks whole. A raw snappy block without a frame
    is refused: it could only be decompressed as a whole, and cannot be distinguished from garbage.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._data = bytearray()
        self._chunks: Iterator[bytes] | None = None
        self._block_left = 0  # The output of the current Hadoop block that is still missing.

    def feed(self, data: bytes) -> None:
        del self._data[: self._at]
        self._base += self._at
        self._at = 0
        self._data += data

    def take(self) -> bytes:
        if self._chunks is None:
            if len(self._data) < 4:
                return b""
            self._chunks = self._framed() if self._data[:4] == _SNAPPY_MAGIC[:4] else self._hadoop()
        parts: list[bytes] = []
        room = OUT_BYTES
        while room > 0:
            output = next(self._chunks)
            if not output:
                break
            parts.append(output)
            room -= len(output)
        return b"".join(parts)

    def finish(self) -> None:
        if self._at < len(self._data) or self._block_left:
            raise self._corrupt("the snappy stream is cut short")

    # Both generators yield empty bytes if they need more input.

    def _framed(self) -> Iterator[bytes]:
        is_first = True
        while True:
            while (head := self._peek(4)) is None:
                yield b""
            kind, size = head[0], int.from_bytes(head[1:], "little")
            while (chunk := self._peek(4 + size)) is None:
                yield b""
            body = chunk[4:]
            if kind == 0xFF:
                if chunk != _SNAPPY_MAGIC:
                    raise self._corrupt("a snappy frame begins with another identifier than sNaPpY")
            elif is_first or 0x02 <= kind <= 0x7F or (kind <= 0x01 and size < 4):
                raise self._corrupt(f"a snappy frame has a chunk of the unknown kind {kind:#04x}, or of a wrong size")
            output = b""
            if kind == 0x00:
                output = self._raw(body[4:], _SNAPPY_FRAMED_BYTES_MAX)
            elif kind == 0x01:
                output = body[4:]
            is_first = False
            self._at += len(chunk)
            if output:
                yield output

    def _hadoop(self) -> Iterator[bytes]:
        while True:
            while (head := self._peek(4)) is None:
                yield b""
            self._block_left = int.from_bytes(head, "big")
            if self._block_left > 16 * _SNAPPY_HADOOP_BYTES_MAX:
                raise self._corrupt(self._no_snappy())
            self._at += 4
            while self._block_left:
                while (head := self._peek(4)) is None:
                    yield b""
                size = int.from_bytes(head, "big")
                if not 0 < size <= _SNAPPY_HADOOP_BYTES_MAX:
                    raise self._corrupt(self._no_snappy())
                while (chunk := self._peek(4 + size)) is None:
                    yield b""
                output = self._raw(chunk[4:], min(self._block_left, _SNAPPY_HADOOP_BYTES_MAX))
                self._block_left -= len(output)
                self._at += len(chunk)
                if output:
                    yield output

    def _no_snappy(self) -> str:
        if self.position > 4:
            return "a snappy block has an impossible length: the file is damaged"
        return (
            "this is neither the snappy framing format (sNaPpY) nor what Hadoop's SnappyCodec writes; "
            "a raw snappy block cannot be streamed and is not supported"
        )

    def _peek(self, size: int) -> bytes | None:
        """The next ``size`` bytes, without using them; ``None`` if they have not all been fed."""
        end = self._at + size
        return bytes(self._data[self._at : end]) if end <= len(self._data) else None

    def _raw(self, block: bytes, size_max: int) -> bytes:
        """Decompress a raw block. Its stated length is checked before memory is allocated for it."""
        size = shift = 0
        for byte in block[:5]:
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            raise self._corrupt("a snappy block says no length")
        if size > size_max:
            raise self._corrupt(f"a snappy block claims {size} bytes where at most {size_max} can be")
        try:
            content: bytes = _SNAPPY_CODEC.decompress(block, decompressed_size=size, asbytes=True) if size else b""
        except (OSError, ValueError) as error:
            raise self._corrupt(f"a snappy block is damaged: {error}") from error
        return content

    def _corrupt(self, message: str) -> Exception:
        return corrupt(message, path=self._path, offset=self.position)


_STREAMS: dict[str, Callable[[str], Decompressor]] = {"gzip": GzipStream, "zstd": ZstdStream, "snappy": SnappyStream}


def decompressor(compression: str, path: str) -> Decompressor:
    """A new decompressor for the file at ``path``. ``MissingDependency`` if zstd is not installed."""
    make = _STREAMS.get(compression)
    if make is None:
        raise ConfigInvalid(
            f"compression={compression!r} must be one of {', '.join(_STREAMS)}", operation="read_items", path=path
        )
    return make(path)


async def decompressed(
    pieces: AsyncIterable[bytes], compression: str, path: str, off_loop: OffLoop[bytes]
) -> AsyncGenerator[bytes, None]:
    """The output of a compressed stream, in pieces of about 1 MiB. ``off_loop`` runs the work on a thread.

    A thread cannot be cancelled, so bytes with little output, such as thousands of empty members, are passed to it in
    short slices.
    """
    stream = decompressor(compression, path)
    size = _THREAD_SLICE_BYTES_MIN
    async for piece in pieces:
        is_small = len(piece) < THREAD_BYTES
        at = 0
        while at < len(piece):
            part = piece[at : at + size]
            stream.feed(part)
            output_bytes = 0
            while output := stream.take() if is_small else await off_loop(stream.take):
                output_bytes += len(output)
                yield output
            at += len(part)
            size = min(2 * size, _THREAD_SLICE_BYTES_MAX) if output_bytes >= len(part) else _THREAD_SLICE_BYTES_MIN
    stream.finish()


def decompressed_whole(data: bytes, compression: str, path: str, bytes_max: int) -> bytes | None:
    """The output of a whole file; ``None`` if it exceeds ``bytes_max``."""
    stream = decompressor(compression, path)
    stream.feed(data)
    parts: list[bytes] = []
    room = bytes_max
    while output := stream.take():
        room -= len(output)
        if room < 0:
            return None
        parts.append(output)
    stream.finish()
    return b"".join(parts)
