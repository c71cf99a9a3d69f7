"""Decompresses streams of gzip, zstd and snappy in steps with bounded output."""

from __future__ import annotations

import importlib
import re
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid, MissingDependency
from aioprefetch.source.formats.corruption import corrupt

T = TypeVar("T")

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


class Decompressor(Protocol):
    """A decompressor of one stream. Errors are ``UntrustedMetadata`` with the position in the compressed file."""

    def feed(self, data: bytes) -> None:
        """Add compressed bytes. Allowed only after ``take`` has returned all output of the earlier bytes."""
        ...

    def take(self) -> bytes:
        """Up to about 1 MiB of output; empty if more compressed bytes are needed."""
        ...

    def finish(self) -> None:
        """Mark the end of the file. Raises if the stream is incomplete."""
        ...


class GzipStream:
    """gzip with any number of members. Zeros after a member are padding, as for the gzip command."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = b""
        self._view = memoryview(b"")
        self._at = 0
        self._base = 0
        self._members = 0
        self._slice_bytes = _SLICE_BYTES_FIRST
        self._member: zlib._Decompress | None = None

    @property
    def position(self) -> int:
        """The number of compressed bytes that were used."""
        return self._base + self._at

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


class ZstdStream:
    """zstd with any number of frames. A window above 128 MiB is refused, as by the zstd command."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._module = _zstd(path)
        self._data = memoryview(b"")
        self._at = 0
        self._base = 0
        self._frames = 0
        self._slice_bytes = _SLICE_BYTES_FIRST
        self._frame: Any = None

    @property
    def position(self) -> int:
        """The number of compressed bytes that were used."""
        return self._base + self._at

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


class SnappyStream:
    """snappy in the framing format ("sNaPpY"), or in the blocks that the SnappyCodec of Hadoop and Spark writes.

    The first bytes distinguish the two. The checksums of the framing format are not verified, but the lengths are.
    Neither format marks its end: a file that was cut between two blocks looks whole. A raw snappy block without a frame
    is refused: it could only be decompressed as a whole, and cannot be distinguished from garbage.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = bytearray()
        self._used = 0
        self._base = 0
        self._chunks: Iterator[bytes] | None = None
        self._block_left = 0  # The output of the current Hadoop block that is still missing.

    @property
    def position(self) -> int:
        """The number of compressed bytes that were used."""
        return self._base + self._used

    def feed(self, data: bytes) -> None:
        del self._data[: self._used]
        self._base += self._used
        self._used = 0
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
        if self._used < len(self._data) or self._block_left:
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
            self._used += len(chunk)
            if output:
                yield output

    def _hadoop(self) -> Iterator[bytes]:
        while True:
            while (head := self._peek(4)) is None:
                yield b""
            self._block_left = int.from_bytes(head, "big")
            if self._block_left > 16 * _SNAPPY_HADOOP_BYTES_MAX:
                raise self._corrupt(self._no_snappy())
            self._used += 4
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
                self._used += len(chunk)
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
        end = self._used + size
        return bytes(self._data[self._used : end]) if end <= len(self._data) else None

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
