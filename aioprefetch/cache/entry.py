"""The format of an entry: the data, and behind it a tail that says which data these are. Pure, no I/O.

The tail comes last, so that an entry can be written while its data arrive. This is the format::

    ...       the data, from the first byte of the file on
    ...       the identity: which data these are
    ...       the facts: the values stored beside the data
    ...       4 bytes for each piece of the data: its CRC32
    8 bytes   length of the data
    4 bytes   length of the identity
    4 bytes   length of the facts
    4 bytes   length of a piece
    4 bytes   length of the tail
    2 bytes   format version
    8 bytes   magic
    4 bytes   CRC32 of the tail up to here

Integers are big endian. A reader of an entry knows its identity, which is compared and never parsed, and the true size
of the file, which every claimed length has to fit. Anything else is a ``BadEntry``, which is a miss.

Each piece has a checksum of its own, so that a range of an entry is verified by the pieces it touches. CRC32 is in the
standard library, detects every burst error of up to 32 bits, and costs 0.2 ms for a MiB. It guards against accidents:
a user who may write into the directory or store is trusted.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Self
from zlib import crc32

from aioprefetch.lean_dataclass import dataclass

MAGIC = b"aiopfent"
FORMAT_VERSION = 4
# A piece is the smallest range that is read and verified: of 16 KiB, and more where the data would have too many.
# Smaller pieces need longer tails; larger ones make a small hit slow.
PIECE_BYTES_MIN, PIECE_BYTES = 16 << 10, 256 << 10
_PIECES_BITS = 7
# Entries with a longer tail (a path of many thousands of characters, an object of 4 GiB) are not stored.
TAIL_BYTES_MAX = 64 << 10
# The end of the name of every entry of this format version.
SUFFIX = ".entry"

_END = struct.Struct(">QIIIIH8sI")
_SUM = struct.Struct(">I")
_HEX = frozenset("0123456789abcdef")


class BadEntry(Exception):
    """A file is not the entry that was looked up, whole and undamaged. Never leaves the caches: it is a miss."""


@dataclass(frozen=True, slots=True)
class EntryTail:
    """The verified tail of an entry: facts, length of the data, the checksum of each piece."""

    facts: bytes
    data_bytes: int
    checksums: tuple[int, ...]

    def verify(self, start: int, *parts: memoryview) -> None:
        """Check whole pieces that were read at ``start``, where one begins, however they are divided.

        Raises ``BadEntry``.
        """
        piece = piece_bytes(self.data_bytes)
        for number, checksum in enumerate(checksums(parts, piece), start // piece):
            if checksum != self.checksums[number]:
                first = number * piece
                end = min(first + piece, self.data_bytes)
                raise BadEntry(f"the checksum of its bytes [{first}, {end}) is wrong")


@dataclass(frozen=True, slots=True)
class EntryKey:
    """All that is known of an entry before it is read: its name, its identity, the lengths of its data and its file."""

    name: str
    identity: bytes
    data_bytes: int
    file_bytes: int

    @classmethod
    def of(cls, name: str, identity: bytes, data_bytes: int) -> Self | None:
        """The key of such an entry, ``None`` when its tail would be too long for a file."""
        tail_bytes = tail_length(identity, b"", data_bytes)
        return cls(name, identity, data_bytes, data_bytes + tail_bytes) if tail_bytes <= TAIL_BYTES_MAX else None


def encoded(*parts: str | int | None) -> bytes:
    """An identity. A mark or a length stands before each part: different parts never have the same encoding."""
    pieces: list[bytes] = []
    for part in parts:
        if part is None:
            pieces.append(b"\xff\xff\xff\xff")
        elif isinstance(part, int):
            pieces.append(part.to_bytes(8, "big"))
        else:
            data = part.encode("utf-8", "surrogatepass")
            pieces += (len(data).to_bytes(4, "big"), data)
    return b"".join(pieces)


class Naming:
    """The names of the entries whose identities share a beginning. A name is a hash: it hides the identity."""

    __slots__ = ("_hashed",)

    def __init__(self, identity: bytes) -> None:
        self._hashed = hashlib.sha256(MAGIC + FORMAT_VERSION.to_bytes(2, "big") + identity)

    def name(self, rest: bytes = b"") -> str:
        """The name of the entry with this end of its identity."""
        hashed = self._hashed.copy()
        hashed.update(rest)
        return hashed.hexdigest() + SUFFIX


def is_entry_name(name: str) -> bool:
    """Whether a name belongs to an entry. Entries of other format versions are never looked up, and get evicted."""
    return len(name) == 64 + len(SUFFIX) and name.endswith(SUFFIX) and _HEX.issuperset(name[:64])


def piece_bytes(data_bytes: int) -> int:
    """The length of the pieces of ``data_bytes`` bytes, a power of two; the last piece may be shorter."""
    if data_bytes <= PIECE_BYTES_MIN << _PIECES_BITS:
        return PIECE_BYTES_MIN
    return min(PIECE_BYTES, 1 << (data_bytes - 1 >> _PIECES_BITS).bit_length())


def aligned(start: int, end: int, data_bytes: int) -> tuple[int, int]:
    """The smallest range of whole pieces of ``data_bytes`` bytes that holds ``[start, end)``."""
    piece = piece_bytes(data_bytes)
    return start - start % piece, min(data_bytes, -(-end // piece) * piece)


def tail_length(identity: bytes, facts: bytes, data_bytes: int) -> int:
    """Bytes of the tail behind ``data_bytes`` bytes of data."""
    return len(identity) + len(facts) + _SUM.size * -(-data_bytes // piece_bytes(data_bytes)) + _END.size


class Checksums:
    """The CRC32 of each ``piece`` bytes of data that come in parts."""

    def __init__(self, piece: int) -> None:
        self._found: list[int] = []
        self._piece = piece
        self._checksum, self._room = 0, piece

    def add(self, part: memoryview) -> None:
        """Add the next part."""
        if len(part) < self._room:
            self._checksum, self._room = crc32(part, self._checksum), self._room - len(part)
            return
        position = 0
        while position < len(part):
            taken = part[position : position + self._room]
            self._checksum = crc32(taken, self._checksum)
            position, self._room = position + len(taken), self._room - len(taken)
            if not self._room:
                self._found.append(self._checksum)
                self._checksum, self._room = 0, self._piece

    def all(self) -> tuple[int, ...]:
        """The checksums of all pieces; the last piece may still be incomplete."""
        return (*self._found, self._checksum) if self._room < self._piece else tuple(self._found)


def checksums(parts: Iterable[memoryview], piece: int) -> tuple[int, ...]:
    """The CRC32 of each ``piece`` bytes of the data, however the data is divided into parts."""
    found = Checksums(piece)
    for part in parts:
        found.add(part)
    return found.all()


def encode_tail(identity: bytes, facts: bytes, data_bytes: int, sums: tuple[int, ...]) -> bytes:
    """The bytes behind the data, ``sums`` being the checksums of its pieces."""
    piece, tail_bytes = piece_bytes(data_bytes), tail_length(identity, facts, data_bytes)
    lengths = (data_bytes, len(identity), len(facts), piece, tail_bytes)
    tail = identity + facts + b"".join(map(_SUM.pack, sums)) + _END.pack(*lengths, FORMAT_VERSION, MAGIC, 0)
    tail = tail[: -_SUM.size]
    return tail + _SUM.pack(crc32(tail))


def claimed_length(raw: bytes) -> int:
    """The length that the end of a file claims for its tail; 0 for an impossible one."""
    if len(raw) < _END.size:
        return 0
    length: int = _END.unpack_from(raw, len(raw) - _END.size)[4]
    return length if length <= TAIL_BYTES_MAX else 0


def decode_tail(raw: bytes | bytearray | memoryview, *, identity: bytes, file_bytes: int) -> EntryTail:
    """Decode the tail of a file of ``file_bytes`` bytes from ``raw``, its last bytes.

    Raises ``BadEntry`` unless it is the tail of ``identity`` and everything fits together.
    """
    if len(raw) < _END.size:
        raise BadEntry(f"{len(raw)} bytes hold no tail")
    ends_at = len(raw) - _END.size
    data_bytes, identity_bytes, facts_bytes, piece, tail_bytes, version, magic, checksum = _END.unpack_from(
        raw, ends_at
    )
    if magic != MAGIC:
        raise BadEntry("it does not end with the magic bytes")
    if version != FORMAT_VERSION:
        raise BadEntry(f"format version {version} is not {FORMAT_VERSION}")
    if tail_bytes > min(TAIL_BYTES_MAX, len(raw)):
        raise BadEntry(f"a tail of {tail_bytes} bytes is too long")
    if data_bytes + tail_bytes != file_bytes:
        raise BadEntry(f"it has {file_bytes} bytes, not the {data_bytes + tail_bytes} of its tail")
    begins_at = len(raw) - tail_bytes
    facts_at = begins_at + len(identity)
    sums_at = facts_at + facts_bytes
    if identity_bytes != len(identity) or raw[begins_at:facts_at] != identity:
        raise BadEntry("it is another entry")
    count = -(-data_bytes // piece_bytes(data_bytes))
    if (ends_at, piece) != (sums_at + _SUM.size * count, piece_bytes(data_bytes)):
        raise BadEntry("the lengths in its tail do not fit together")
    if crc32(raw[begins_at : -_SUM.size]) != checksum:
        raise BadEntry("the checksum of the tail is wrong")
    return EntryTail(bytes(raw[facts_at:sums_at]), data_bytes, struct.unpack_from(f">{count}I", raw, sums_at))
