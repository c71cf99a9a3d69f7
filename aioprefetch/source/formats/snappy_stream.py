"""snappy as files have it: the framing format ("sNaPpY"), and the blocks that Hadoop's and Spark's SnappyCodec writes.

Which one it is, the first bytes tell. A file that is one raw snappy block has no such frame: it can only be
decompressed as a whole, and nothing tells it from garbage, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from aioprefetch.source.formats.corruption import corrupt

OUT_BYTES = 1 << 20

_MAGIC = b"\xff\x06\x00\x00sNaPpY"
_FRAMED_BYTES_MAX = 1 << 16  # The framing format's own limit of what a chunk holds.
_HADOOP_BYTES_MAX = 64 << 20  # Hadoop's buffer is 256 KiB unless a job sets another.
_CODEC = pa.Codec("snappy")


class SnappyStream:
    """See ``Decompressor``. The checksums of the framing format are not verified, the lengths are.

    Neither format has an end: a file that was cut between two blocks looks whole.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = bytearray()
        self._used = 0
        self._base = 0
        self._chunks: Iterator[bytes] | None = None
        self._left = 0  # Of a Hadoop block: how much is still to come out of it.

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
            self._chunks = self._framed() if self._data[:4] == _MAGIC[:4] else self._hadoop()
        parts: list[bytes] = []
        room = OUT_BYTES
        while room > 0:
            found = next(self._chunks)
            if not found:
                break
            parts.append(found)
            room -= len(found)
        return b"".join(parts)

    def finish(self) -> None:
        if self._used < len(self._data) or self._left:
            raise self._corrupt("the snappy stream is cut short")

    # Both give an empty chunk where more input is needed, and go on when there is some.

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
                if chunk != _MAGIC:
                    raise self._corrupt("a snappy frame begins with another identifier than sNaPpY")
            elif is_first or 0x02 <= kind <= 0x7F or (kind <= 0x01 and size < 4):
                raise self._corrupt(f"a snappy frame has a chunk of the unknown kind {kind:#04x}, or of a wrong size")
            found = b""
            if kind == 0x00:
                found = self._raw(body[4:], _FRAMED_BYTES_MAX)
            elif kind == 0x01:
                found = body[4:]
            is_first = False
            self._used += len(chunk)
            if found:
                yield found

    def _hadoop(self) -> Iterator[bytes]:
        while True:
            while (head := self._peek(4)) is None:
                yield b""
            self._left = int.from_bytes(head, "big")
            if self._left > 16 * _HADOOP_BYTES_MAX:
                raise self._corrupt(self._no_snappy())
            self._used += 4
            while self._left:
                while (head := self._peek(4)) is None:
                    yield b""
                size = int.from_bytes(head, "big")
                if not 0 < size <= _HADOOP_BYTES_MAX:
                    raise self._corrupt(self._no_snappy())
                while (chunk := self._peek(4 + size)) is None:
                    yield b""
                found = self._raw(chunk[4:], min(self._left, _HADOOP_BYTES_MAX))
                self._left -= len(found)
                self._used += len(chunk)
                if found:
                    yield found

    def _no_snappy(self) -> str:
        if self.position > 4:
            return "a snappy block has an impossible length: the file is damaged"
        return (
            "this is neither the snappy framing format (sNaPpY) nor what Hadoop's SnappyCodec writes; "
            "a raw snappy block cannot be streamed and is not supported"
        )

    def _peek(self, size: int) -> bytes | None:
        """The next bytes, which are not used yet; ``None`` while they are not all there."""
        end = self._used + size
        return bytes(self._data[self._used : end]) if end <= len(self._data) else None

    def _raw(self, block: bytes, size_max: int) -> bytes:
        """A raw block: its length in front, seven bits a byte, is checked before memory is taken for it."""
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
            found: bytes = _CODEC.decompress(block, decompressed_size=size, asbytes=True) if size else b""
        except (OSError, ValueError) as error:
            raise self._corrupt(f"a snappy block is damaged: {error}") from error
        return found

    def _corrupt(self, message: str) -> Exception:
        return corrupt(message, path=self._path, offset=self.position)
