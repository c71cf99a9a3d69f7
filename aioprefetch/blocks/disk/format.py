"""The format of a block file: a checked header, then the bytes of one block. Pure, no I/O.

::

    8 bytes   magic
    2 bytes   format version
    4 bytes   length of the header
    4 bytes   length of the identity
    8 bytes   length of the data
    4 bytes   length of a piece
    ...       the identity: what the data are, each part with its length before it
    ...       4 bytes for each piece of the data: its CRC32
    4 bytes   CRC32 of everything above
    ...       the data, up to the end of the file

Integers are big endian. Who looks for a block knows its identity, and so every byte of the header but the checksums:
all is compared, nothing is parsed, and no length that a file claims is ever believed. The checksums guard against
accidents; who may write into the directory is trusted. Each piece has its own, so that a part of a block can be
verified without the rest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from aioprefetch.ranges import BlockGrid

MAGIC = b"aiopfblk"
FORMAT_VERSION = 1
# What is read, checked and handed on at once: less costs more turns of the loop, more needs more memory beside the
# block's own.
PIECE_BYTES = 1 << 20
# A longer header (a path of many thousands of characters, a block of many gigabytes) is not worth a file.
HEADER_BYTES_MAX = 64 << 10
SUFFIX = ".block"

_PREFIX = struct.Struct(">8sHIIQI")
_SUM = struct.Struct(">I")
_NONE = b"\xff\xff\xff\xff"


class BadBlockFile(Exception):
    """A file is not the block that was looked for, whole and unharmed. Never leaves the disk tier: it is a miss."""


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Which block a file holds: its name, the identity in its header, and how many bytes it has."""

    name: str
    identity: bytes
    data_bytes: int

    @property
    def header_bytes(self) -> int:
        """Length of the header."""
        return _PREFIX.size + len(self.identity) + _SUM.size * (len(self.pieces) + 1)

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return self.header_bytes + self.data_bytes

    @property
    def pieces(self) -> range:
        """Where the pieces of the data start."""
        return range(0, self.data_bytes, PIECE_BYTES)

    def piece(self, number: int) -> tuple[int, int]:
        """Where piece ``number`` of the data starts and ends."""
        start = number * PIECE_BYTES
        return start, min(start + PIECE_BYTES, self.data_bytes)


class FileIdentity:
    """One version of one object on one grid: what its blocks have in common. ``key`` says it of a single block.

    ``namespace`` holds the store and the principal, ``tenant`` what the user tells apart. Nothing of it shows in the
    names of files, which are hashes; two identities are never written the same way, since lengths stand before parts.
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
        """What block ``index`` is, ``None`` when its header would be too long for a file."""
        start, end = self._grid.bounds(index)
        key = BlockKey(self.name(index), self._encoded + index.to_bytes(8, "big"), end - start)
        return key if key.header_bytes <= HEADER_BYTES_MAX else None


def _text(text: str | None) -> bytes:
    if text is None:
        return _NONE
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(4, "big") + data


def is_block_name(name: str) -> bool:
    """Whether a file of this name is a block, of whatever format version."""
    digest = name.removesuffix(SUFFIX)
    return len(digest) == 64 and len(name) == 64 + len(SUFFIX) and not set(digest) - set("0123456789abcdef")


def encode_header(key: BlockKey, data: Iterable[memoryview]) -> bytes:
    """The header before ``data``, which together are the whole block."""
    sums = b"".join(map(_SUM.pack, _checksums(data)))
    header = _fixed(key) + sums
    return header + _SUM.pack(crc32(header))


def decode_header(raw: bytes | bytearray, key: BlockKey) -> tuple[int, ...]:
    """The checksums of the pieces. ``BadBlockFile`` unless ``raw``, of the right length, is the header of ``key``."""
    fixed = _fixed(key)
    if raw[: len(MAGIC)] != MAGIC:
        raise BadBlockFile("it does not begin with the magic bytes")
    if raw[: len(fixed)] != fixed:
        raise BadBlockFile("it is of another format version, or another block")
    if crc32(raw[: -_SUM.size]) != _SUM.unpack(raw[-_SUM.size :])[0]:
        raise BadBlockFile("the checksum of its header is wrong")
    return tuple(number for (number,) in _SUM.iter_unpack(raw[len(fixed) : -_SUM.size]))


def _fixed(key: BlockKey) -> bytes:
    """What of the header is known to whoever knows the key."""
    lengths = (key.header_bytes, len(key.identity), key.data_bytes, PIECE_BYTES)
    return _PREFIX.pack(MAGIC, FORMAT_VERSION, *lengths) + key.identity


def _checksums(data: Iterable[memoryview]) -> Iterator[int]:
    checksum, room = 0, PIECE_BYTES
    for view in data:
        position = 0
        while position < len(view):
            taken = view[position : position + room]
            checksum = crc32(taken, checksum)
            position, room = position + len(taken), room - len(taken)
            if not room:
                yield checksum
                checksum, room = 0, PIECE_BYTES
    if room < PIECE_BYTES:
        yield checksum
